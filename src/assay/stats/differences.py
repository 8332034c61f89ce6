"""Paired differences between methods, what they settle, and how many reproductions would settle more."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from scipy import special, stats

from assay.stats.intervals import ALPHA, Interval, deviation, t_interval

Verdict = Literal["better", "worse", "no difference found", "too few to tell"]

FEWEST = 3
"""Two reproductions settle nothing, however far apart."""
EFFECT = 2.0
"""The paired difference, in its own standard deviations, that a comparison should be able to see ..."""
POWER = 0.8
"""... at least this often; else it is too small to say that nothing was found."""
MOST = 10_000
"""Reproductions beyond which nobody would go."""
CERTAIN = 50.0
"""An effect that any number of reproductions sees; the noncentral t is not computed beyond it."""


@dataclass(frozen=True)
class Difference:
    """Method `first` against method `second`, paired over reproductions.

    `p` is Holm's adjusted value; `deviation` the standard deviation of the differences, None for a single one; `effect` the mean
    difference in such deviations; `comparisons` how many pairs were tested together.
    """

    first: str
    second: str
    interval: Interval
    p: float | None
    effect: float | None
    verdict: Verdict
    deviation: float | None
    comparisons: int


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979): p_(i) -> max over j <= i of min(1, (m - j) p_(j)), j from 0.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def paired_differences(scores: Mapping[str, Sequence[float]], alpha: float = ALPHA) -> list[Difference]:
    """Every pair of methods, by a paired t test over reproductions with Holm's correction over all pairs.

    `scores` holds each method's values in the order of the reproductions. A method with a single value (a
    deterministic baseline) is compared as a constant.
    """
    pairs = list(itertools.combinations(scores, 2))
    compared = [subtract(scores[first], scores[second]) for first, second in pairs]
    tested = [(index, _t_test(values)) for index, values in enumerate(compared) if len(values) > 1]
    adjusted = dict(zip([index for index, _ in tested], holm([p for _, p in tested]), strict=True))
    return [
        _difference(first, second, compared[index], adjusted.get(index), len(tested), alpha)
        for index, (first, second) in enumerate(pairs)
    ]


def power(n: int, comparisons: int, effect: float = EFFECT, alpha: float = ALPHA) -> float:
    """How often a paired t test over n reproductions sees a difference of `effect` standard deviations.

    At the strictest step of Holm's correction: two-sided level alpha / comparisons, noncentral t.

    >>> round(power(10, 10), 2), round(power(3, 10), 2)
    (0.98, 0.06)
    """
    if n < 2:
        return 0.0
    critical = special.stdtrit(n - 1, 1 - alpha / comparisons / 2)
    return float(1 - special.nctdtr(n - 1, effect * math.sqrt(n), critical))


def reproductions_needed(comparisons: int, alpha: float = ALPHA) -> int:
    """The fewest reproductions with which "no difference found" means something."""
    return next(n for n in itertools.count(2) if power(n, comparisons, alpha=alpha) >= POWER)


def reproductions_to_see(difference: float, deviation: float, comparisons: int, alpha: float = ALPHA) -> int | None:
    """The fewest reproductions that see a difference at least four times in five; None where it would take over 10,000.

    From the standard deviation of the paired differences, as in `power`: at the strictest step of Holm's correction.

    >>> reproductions_to_see(0.01, 0.01, comparisons=1), reproductions_to_see(0.01, 0.01, comparisons=91)
    (10, 25)
    """
    if deviation == 0:
        return FEWEST if difference else None
    effect = min(abs(difference) / deviation, CERTAIN)
    sees = partial(_sees, comparisons=comparisons, effect=effect, alpha=alpha)
    if not sees(MOST):
        return None
    return bisect_left(range(MOST + 1), True, lo=FEWEST, key=sees)


def subtract(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """First minus second in each reproduction; a single value stands for every one."""
    rows = max(len(first), len(second))
    for values in (first, second):
        if len(values) not in (1, rows):
            raise ValueError(f"paired methods need equally many reproductions, got {len(first)} and {len(second)}")
    broadcast = [list(values) * rows if len(values) == 1 else values for values in (first, second)]
    return [round(a - b, 12) for a, b in zip(*broadcast, strict=True)]  # below that is rounding, not a difference


def relative_gain(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """By what share of the second's score the first lies above it, paired over reproductions; None where that is not above 0.

    >>> relative_gain([0.6, 0.3], [0.5, 0.25])
    Interval(mean=0.2, low=0.2, high=0.2, n=2)
    """
    if min(second) <= 0:
        return None
    gained = subtract(first, second)
    below = list(second) * len(gained) if len(second) == 1 else second
    return t_interval([round(difference / base, 12) for difference, base in zip(gained, below, strict=True)])


def _sees(n: int, comparisons: int, effect: float, alpha: float) -> bool:
    return power(n, comparisons, effect, alpha) >= POWER


def _t_test(values: Sequence[float]) -> float:
    """Two-sided p of the paired t test; differences that do not vary are certain, or nothing at all."""
    spread = deviation(values)
    mean = math.fsum(values) / len(values)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / (spread / math.sqrt(len(values))), len(values) - 1))


def _difference(first: str, second: str, values: Sequence[float], p: float | None, comparisons: int, alpha: float) -> Difference:
    interval = t_interval(values, 1 - alpha)
    spread = deviation(values) if len(values) > 1 else None
    effect = interval.mean / spread if spread else None
    return Difference(first, second, interval, p, effect, _verdict(interval, p, comparisons, alpha), spread, comparisons)


def _verdict(interval: Interval, p: float | None, comparisons: int, alpha: float) -> Verdict:
    if p is not None and p <= alpha and interval.n >= FEWEST:
        return "better" if interval.mean > 0 else "worse"
    enough = p is not None and power(interval.n, comparisons, alpha=alpha) >= POWER
    return "no difference found" if enough else "too few to tell"
