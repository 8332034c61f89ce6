"""The search on landscapes that others recorded and on standard functions: no more trials to 99%
than guessing needs.
"""

import math
import runpy
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

benchmark = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "search.py"))
LANDSCAPES, RECORDED, SYNTHETIC, TRIALS = (
    benchmark[name] for name in ("LANDSCAPES", "RECORDED", "SYNTHETIC", "TRIALS")
)

LOWEST = {
    "branin 2": (math.pi, 2.275),
    "six-hump camel 2": (0.0898, -0.7126),
    "hartmann 3": (0.114614, 0.555649, 0.852547),
    "levy 4": (1, 1, 1, 1),
    "rosenbrock 4": (1, 1, 1, 1),
    "ackley 5": (0, 0, 0, 0, 0),
    "styblinski-tang 5": (-2.903534,) * 5,
}
"""Where each function is known to be lowest."""


def trials_needed(name, search, seeds):
    """The median over seeds."""
    landscape = LANDSCAPES[name]()
    return median(
        benchmark["needed"](benchmark["climb"](landscape, search, seed)) for seed in range(seeds)
    )


def up_and_down(landscape):
    """The sum of all steps from one end of the only range to the other."""
    ((parameter, range_),) = landscape.space.items()
    heights = [landscape.value({parameter: range_.at(step / 1000)}) for step in range(1001)]
    return sum(abs(after - before) for before, after in pairwise(heights))


# --- The landscapes ---


def test_every_search_that_recorded_the_value_of_each_trial_is_a_landscape():
    assert set(benchmark["records"]()) == set(RECORDED)


@pytest.mark.parametrize("experiment", RECORDED)
def test_a_recorded_landscape_has_the_recorded_values(experiment):
    landscape, points = LANDSCAPES[experiment](), benchmark["records"]()[experiment]
    ((parameter, range_),) = landscape.space.items()
    assert [landscape.value({parameter: point}) for point in points] == pytest.approx(
        list(points.values())
    )
    assert landscape.share(max(points.values())) == 1
    assert all(-1e-9 <= range_.share(point) <= 1 + 1e-9 for point in points)


@pytest.mark.parametrize("experiment", RECORDED)
def test_a_smoothed_landscape_has_lower_peaks_and_goes_up_and_down_less(experiment):
    rough, smooth = LANDSCAPES[experiment](), LANDSCAPES[f"{experiment} smoothed"]()
    assert 0.95 * rough.best < smooth.best < rough.best
    assert up_and_down(smooth) < 0.9 * up_and_down(rough)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_function_is_best_where_it_is_known_to_be(name):
    landscape = LANDSCAPES[name]()
    at = dict(zip(landscape.space, LOWEST[name], strict=True))
    assert len(landscape.space) == int(name.split()[-1])
    assert landscape.share(landscape.value(at)) == pytest.approx(1, abs=1e-6)
    assert all(landscape.value(landscape.defaults(seed)) < landscape.best for seed in range(100))


# --- The search on them ---


def test_a_search_that_never_gets_there_counts_one_trial_more_than_there_are():
    assert benchmark["needed"]([0.5, 0.989] * (TRIALS // 2)) == TRIALS + 1
    assert benchmark["needed"]([0.5, 0.99, 1.0]) == 2


@pytest.mark.parametrize("name", ["cub_ntxent_large_batch", "sop_triplet smoothed", "hartmann 3"])
def test_a_few_searches_need_no_more_trials_than_guessing(name):
    assert trials_needed(name, "bayesian", seeds=3) <= trials_needed(name, "random", seeds=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECORDED, *SYNTHETIC])
def test_the_median_search_needs_no_more_trials_than_guessing_on_any_landscape(name):
    """Medians of 20 seeds move by several trials, so the landscapes of one parameter get 100 and
    guessing a thousand.
    """
    seeds = 100 if name in RECORDED else 20
    assert trials_needed(name, "bayesian", seeds) <= trials_needed(
        name, "random", benchmark["GUESSES"]
    )
