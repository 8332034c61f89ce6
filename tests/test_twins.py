"""Verdicts on twins: benchmarks/twins.py in small, against the limits that it must keep."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def twins():
    """The benchmark, which imports its neighbour `search`."""
    sys.path.insert(0, str(BENCHMARKS))
    yield runpy.run_path(str(BENCHMARKS / "twins.py"))
    sys.path.remove(str(BENCHMARKS))


SCENARIOS = [
    "equal spreads",
    "one noisy, five times",
    "half noisy, five times",
    "spreads as measured",
    "recorded landscapes",
]


def test_a_pool_of_real_searches_is_shown_with_its_twins_spread_coverage_and_power(twins, capsys):
    draw = np.random.default_rng(0)
    pool = {
        name: draw.normal(0.5, spread, 16).tolist()
        for name, spread in (("a", 0.002), ("b", 0.01), ("c", 0.004))
    }
    twins["show_pool"](pool, benches=60)
    shown = capsys.readouterr().out
    assert "| a | 16 |" in shown
    assert "Two independent searches of one method differ by about" in shown
    assert "| b, c |" in shown


def test_a_pool_too_small_for_twins_is_refused(twins):
    with pytest.raises(SystemExit, match="a: twins of 4 searches need 8"):
        twins["show_pool"]({"a": [0.5] * 7}, benches=10)


def test_few_benches_are_judged_as_compare_judges_them(twins):
    for methods in twins["SIZES"]:
        assert twins["false_better"]("equal spreads", methods, 4, True, benches=100) <= 0.12


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("searches", [3, 4, 8])
def test_equal_methods_are_called_better_in_at_most_six_percent_of_benches(
    twins, scenario, searches
):
    for methods in twins["SIZES"]:
        for yardstick in (True, False):
            assert (
                twins["false_better"](scenario, methods, searches, yardstick, benches=2000) <= 0.06
            )


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("smallest", [3.0, 100.0])
def test_methods_that_differ_by_the_declared_difference_are_rarely_called_equivalent(
    twins, scenario, smallest
):
    for methods in twins["SIZES"]:
        assert twins["false_equivalent"](scenario, methods, smallest, benches=2000) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_three_looks_together_keep_the_limit_and_naive_ones_do_not(twins, scenario):
    spending, naive = [0.04, 0.005, 0.0025], [0.05] * 3
    for methods in (2, 4, 10):
        assert twins["false_over_looks"](scenario, methods, spending, benches=2000) <= 0.06
    assert twins["false_over_looks"](scenario, 2, naive, benches=2000) > 0.06


@pytest.mark.slow
def test_intervals_of_one_method_cover_the_truth(twins):
    for searches in (2, 3, 4, 8):
        units = twins["generator"]("coverage", searches).normal(size=(2000, searches))
        assert 0.93 <= twins["covered"](units, 0.0) <= 0.97
    for experiment in twins["EXPERIMENTS"]:
        for quasi_random in (True, False):
            draw = twins["generator"]("landscapes", experiment, quasi_random)
            units = twins["search_many"](draw, experiment, 8000, quasi_random).reshape(2000, 4)
            assert twins["covered"](units, twins["truth"](experiment, quasi_random)) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("classes", [10, 16, 50, 200])
def test_intervals_over_classes_cover_the_truth(twins, classes):
    for single in (False, True):
        assert twins["covered_over_classes"](classes, 2000, single) >= 0.92


@pytest.mark.slow
def test_the_advised_number_of_searches_is_the_one_that_simulation_finds(twins):
    for difference, deviations in twins["PLANS"]:
        for methods, comparisons in twins["FAMILIES"]:
            planned = twins["plan"](difference, deviations, methods, comparisons, benches=20_000)
            assert planned.power >= 0.785
            assert planned.one_less <= 0.815
