"""Which parameters to try next: the defaults, then quasi-random or random points, or Bayesian
optimisation after a few.

Every question is asked afresh from (space, what was told, trial number, seed): a search that is
restarted asks the same questions and finds the answers in the store.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from scipy.stats import qmc

from assay.devices import torch_threads
from assay.hashing import derive
from assay.protocols import Search
from assay.space import Choice, Integer, Parameters, Range, Real, Space, Value


@dataclass(frozen=True)
class TrialResult:
    """A trial that is over: what was tried and what came of it (an estimate where it was given up),
    None where it diverged.
    """

    parameters: Parameters
    value: float | None


def ask(
    space: Space,
    told: Sequence[TrialResult],
    defaults: Mapping[str, Value],
    startup: int,
    seed: int,
    search: Search = "bayesian",
) -> dict[str, Value]:
    """The parameters of the next trial, which is number `len(told)`."""
    number = len(told)
    if number == 0:
        return dict(defaults)
    if search == "random":
        return uniform(space, number, seed)
    completed = [trial.value for trial in told if trial.value is not None]
    if not depends_on_answers(number, startup, search) or not completed:
        return quasi_random(space, number - 1, seed)
    worst = min(completed)
    answers = [worst if trial.value is None else trial.value for trial in told]
    return _by_model(
        space, [trial.parameters for trial in told], answers, derive(seed, "model", number)
    )


def depends_on_answers(number: int, startup: int, search: Search) -> bool:
    """Whether trial `number` can be asked for only when those before it have ended."""
    return search == "bayesian" and number > startup


def uniform(space: Space, number: int, seed: int) -> dict[str, Value]:
    """A point drawn evenly from the space on its search scales, for this trial alone."""
    return _at(space, np.random.default_rng(derive(seed, "uniform", number)).random(len(space)))


def quasi_random(space: Space, index: int, seed: int) -> dict[str, Value]:
    """Point `index` of a scrambled Halton sequence over the space."""
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
    """What a Gaussian process over the trials so far expects most of (optuna's GPSampler).

    A failed trial stands among them with the worst completed value: worse news than that would be
    invented.
    """
    distributions = {name: _distribution(range_) for name, range_ in space.items()}
    with (
        torch_threads(1),
        warnings.catch_warnings(),
    ):  # a sum in another order would be another question
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.GPSampler(seed=seed % 2**32, n_startup_trials=0)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for parameters, value in zip(tried, values, strict=True):
            inside = {name: _inside(space[name], parameters[name]) for name in space}
            study.add_trial(
                optuna.trial.create_trial(params=inside, distributions=distributions, value=value)
            )
        answer = study.ask(distributions).params
    return {name: _inside(range_, answer[name]) for name, range_ in space.items()}


def _distribution(range_: Range) -> optuna.distributions.BaseDistribution:
    if isinstance(range_, Choice):
        return optuna.distributions.CategoricalDistribution(range_.options)
    if isinstance(range_, Integer):
        return optuna.distributions.IntDistribution(range_.low, range_.high, log=range_.log)
    return optuna.distributions.FloatDistribution(range_.low, range_.high, log=range_.log)


def _inside(range_: Range, value: Value) -> Value:
    """The value rounded to what means something, and inside the range (a method's default may lie
    outside).
    """
    if isinstance(range_, Real):
        return range_.at(min(max(range_.share(float(value)), 0.0), 1.0))
    if isinstance(range_, Integer):
        return min(max(int(value), range_.low), range_.high)
    return value
