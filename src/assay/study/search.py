"""Searching: which parameters to try next, and what finished trials are worth.

Trial 0 has the defaults, then come quasi-random or random points, or Bayesian optimisation after a
few. Every question depends on (space, results so far, trial number, seed) alone: a restarted search
asks the same questions and finds the results in the store.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from scipy.stats import qmc

from assay.devices import torch_threads
from assay.hashing import derive
from assay.protocols import Search
from assay.records.lines import RunEntry, Trial
from assay.records.run import RunResult
from assay.space import Choice, Integer, Parameters, Range, Real, Space, Value


@dataclass(frozen=True)
class TrialResult:
    """A finished trial as the search sees it.

    Args:
        parameters: parameters that were tried.
        value: validation MAP@R; an estimate where it was given up, None where it diverged.
    """

    parameters: Parameters
    value: float | None

    @classmethod
    def of(cls, trial: Trial) -> "TrialResult":
        """Return the result of a recorded trial."""
        return cls(trial.parameters, trial.value)


def ask(
    space: Space,
    results: Sequence[TrialResult],
    defaults: Mapping[str, Value],
    startup: int,
    seed: int,
    search: Search = "bayesian",
) -> dict[str, Value]:
    """Return the parameters of the next trial, which is number `len(results)`."""
    number = len(results)
    if number == 0:
        return dict(defaults)
    if search == "random":
        return uniform(space, number, seed)
    completed = [trial.value for trial in results if trial.value is not None]
    if not depends_on_results(number, startup, search) or not completed:
        return quasi_random(space, number - 1, seed)
    worst = min(completed)
    values = [worst if trial.value is None else trial.value for trial in results]
    return _by_model(
        space, [trial.parameters for trial in results], values, derive(seed, "model", number)
    )


def depends_on_results(number: int, startup: int, search: Search) -> bool:
    """Return whether trial `number` can be asked for only after those before it have ended."""
    return search == "bayesian" and number > startup


def uniform(space: Space, number: int, seed: int) -> dict[str, Value]:
    """Return a point drawn uniformly from the space on its search scales, for this trial alone."""
    return _at(space, np.random.default_rng(derive(seed, "uniform", number)).random(len(space)))


def quasi_random(space: Space, index: int, seed: int) -> dict[str, Value]:
    """Return point `index` of a scrambled Halton sequence over the space."""
    points = qmc.Halton(len(space), scramble=True, rng=derive(seed, "halton") % 2**32).random(
        index + 1
    )
    return _at(space, points[index])


def _at(space: Space, shares: Iterable[float]) -> dict[str, Value]:
    return {
        name: range_.at(float(share))
        for (name, range_), share in zip(space.items(), shares, strict=True)
    }


def _by_model(
    space: Space, tried: Sequence[Parameters], values: Sequence[float], seed: int
) -> dict[str, Value]:
    """Return the point of which a Gaussian process expects most (optuna's GPSampler).

    A failed trial enters with the worst completed value, since it has none of its own.
    """
    distributions = {name: _distribution(range_) for name, range_ in space.items()}
    with (
        torch_threads(1),
        warnings.catch_warnings(),
    ):  # sums in another order would give another point
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.GPSampler(seed=seed % 2**32, n_startup_trials=0)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for parameters, value in zip(tried, values, strict=True):
            inside = {name: _inside(space[name], parameters[name]) for name in space}
            study.add_trial(
                optuna.trial.create_trial(params=inside, distributions=distributions, value=value)
            )
        asked = study.ask(distributions).params
    return {name: _inside(range_, asked[name]) for name, range_ in space.items()}


def _distribution(range_: Range) -> optuna.distributions.BaseDistribution:
    if isinstance(range_, Choice):
        return optuna.distributions.CategoricalDistribution(range_.options)
    if isinstance(range_, Integer):
        return optuna.distributions.IntDistribution(range_.low, range_.high, log=range_.log)
    return optuna.distributions.FloatDistribution(range_.low, range_.high, log=range_.log)


def _inside(range_: Range, value: Value) -> Value:
    """Return the value rounded, and inside the range; a default may lie outside."""
    if isinstance(range_, Real):
        return range_.at(min(max(range_.share(float(value)), 0.0), 1.0))
    if isinstance(range_, Integer):
        return min(max(int(value), range_.low), range_.high)
    return value


def distance(space: Space, one: Parameters, other: Parameters) -> float:
    """Return how far apart two points of a space lie on the search scale.

    It is the largest share of a range between them, and infinite where a choice or a parameter that
    is not searched differs.

    >>> round(distance(Space(scale=Real(0.01, 100, log=True)), {"scale": 1}, {"scale": 10}), 6)
    0.25
    """
    apart = [0.0]
    for name in {*one, *other}:
        if one.get(name) == other.get(name):
            continue
        range_ = space.get(name)
        if range_ is None or isinstance(range_, Choice) or name not in one or name not in other:
            return math.inf
        ends = float(one[name]), float(other[name])
        apart.append(abs(range_.share(ends[0]) - range_.share(ends[1])))
    return max(apart)


# --- finished trials ---


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the highest value, the earliest among equals; None if none."""
    finished = [trial for trial in trials if trial.map_at_r is not None]
    return max(finished, key=lambda trial: trial.map_at_r or 0.0, default=None)


def estimate(first: float, before: Sequence[Trial]) -> float:
    """Return what a trial that was given up would have come to.

    It is the MAP@R of its first fold, scaled as the best trial's mean is to its first fold.
    """
    best = best_of(before)
    assert best is not None, "only a trial that is worse than another is given up"
    assert best.map_at_r is not None
    return first * best.map_at_r / best.runs[0].validation["map_at_r"]


def is_hopeless(first: RunResult | RunEntry, trials: Sequence[Trial], share: float | None) -> bool:
    """Return whether a trial's first fold lies below the best trial's by more than the share."""
    best = best_of(trials)
    if share is None or best is None or first.status == "diverged":
        return False
    return first.validation["map_at_r"] < (1 - share) * best.runs[0].validation["map_at_r"]
