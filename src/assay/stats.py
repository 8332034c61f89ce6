"""Intervals, paired differences and ranks over reproductions. A reproduction is the unit; folds are averaged before."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Verdict = Literal["better", "worse", "no difference found", "too few to tell"]

ALPHA = 0.05
FEWEST_UNITS = 5
"""Units without which a bootstrap of their mean has no ends."""
LARGE = 10_000
"""Units above which a bootstrap of their mean tells nothing that its normal limit does not."""
FEWEST = 3
"""Two reproductions settle nothing, however far apart."""
EFFECT = 2.0
"""The paired difference, in its own standard deviations, that a comparison should be able to see ..."""
POWER = 0.8
"""... at least this often; else it is too small to say that nothing was found."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; no ends where one value is all there is."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half the width, the figure after the +- sign."""
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True)
class Difference:
    """Method `first` against method `second`, paired over reproductions.

    `p` is Holm's adjusted value; `effect` the mean difference in standard deviations of the differences.
    """

    first: str
    second: str
    interval: Interval
    p: float | None
    effect: float | None
    verdict: Verdict


def t_interval(values: Sequence[float], confidence: float = 1 - ALPHA) -> Interval:
    """Student's interval for the mean: m +- t_{n-1} s / sqrt(n).

    >>> t_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., n=3)
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * _deviation(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def bootstrap(
    sums: NDArray[np.float64], counts: NDArray[np.float64], confidence: float = 1 - ALPHA, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Bootstrap of a mean over units of several values each: sum_u S_u / sum_u n_u, units redrawn.

    Percentiles (Efron 1979), expanded for few units as Hesterberg does (2015, doi.org/10.1080/00031305.2015.1089789): the level
    alpha / 2 becomes Phi(-sqrt(n / (n - 1)) t_{n-1, alpha/2}), since resampled means vary too little by that much. Fewer than
    five units cannot cover 95%, for no resampled mean lies outside them: they get no ends. Above LARGE units it is the normal
    distribution that the bootstrap has long reached, of variance sum_u (S_u - m n_u)^2 / (sum_u n_u)^2.

    Args:
        sums: sum of the values of each unit.
        counts: number of values of each unit.
        confidence: of the interval.
        resamples: how often the units are drawn again.
        seed: of the draws.

    >>> bootstrap(np.array([1.0, 1.0, 0.0, 1.0, 0.5]), np.ones(5))
    Interval(mean=0.7, low=0.1, high=1.0, n=5)
    """
    if len(sums) == 0:
        raise ValueError("an interval needs at least one value")
    mean = float(sums.sum() / counts.sum())
    if len(sums) < FEWEST_UNITS:
        return Interval(mean, None, None, len(sums))
    if len(sums) > LARGE:
        half = float(stats.norm.ppf((1 + confidence) / 2) * np.sqrt(np.square(sums - mean * counts).sum()) / counts.sum())
        least, most = float((sums / counts).min()), float((sums / counts).max())
        return Interval(mean, max(mean - half, least), min(mean + half, most), len(sums))
    draw = np.random.default_rng(seed)
    means = np.empty(resamples)
    for number in range(resamples):
        drawn = draw.integers(len(sums), size=len(sums))
        means[number] = sums[drawn].sum() / counts[drawn].sum()
    n = len(sums)
    tail = stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf((1 - confidence) / 2, n - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, float(low), float(high), len(sums))


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
    compared = [_subtract(scores[first], scores[second]) for first, second in pairs]
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
    critical = stats.t.ppf(1 - alpha / comparisons / 2, n - 1)
    return float(stats.nct.sf(critical, n - 1, effect * math.sqrt(n)))


def reproductions_needed(comparisons: int, alpha: float = ALPHA) -> int:
    """The fewest reproductions with which "no difference found" means something."""
    return next(n for n in itertools.count(2) if power(n, comparisons, alpha=alpha) >= POWER)


def ranks(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean rank over reproductions, 1 is best; ties share their mean rank; a single value stands for every row."""
    rows = max(len(values) for values in scores.values())
    table = np.array([list(values) * rows if len(values) == 1 else list(values) for values in scores.values()])
    return dict(zip(scores, stats.rankdata(-table, axis=0).mean(axis=1).tolist(), strict=True))


def autocorrelation(values: Sequence[float], lag: int = 1) -> float:
    """How much a curve over checkpoints resembles itself `lag` checkpoints later: near 1 where it is smooth, 0 where it is noise.

    r = sum_t (x_t - m)(x_{t+lag} - m) / sum_t (x_t - m)^2, m the mean of all values. The numerator has `lag` terms fewer, so
    that |r| <= 1, and short curves are drawn towards 0. NaN for a curve that never changes, and for fewer than lag + 2
    values: lag + 1 have one product only, and two values give -1/2 whatever they are.

    At lag one, over validation curves, the reality check (Musgrave et al. 2020, arxiv.org/abs/2003.08505) reports 0.73 for
    R@1 and 0.81 for MAP@R.

    >>> autocorrelation([1.0, 2.0, 3.0, 4.0, 5.0]), autocorrelation([1.0, 2.0, 1.0, 2.0])
    (0.4, -0.75)
    """
    if lag < 1:
        raise ValueError(f"a curve is compared with itself at a lag of at least 1, got {lag}")
    if len(values) < lag + 2 or min(values) == max(values):
        return math.nan
    deviations = np.asarray(values) - math.fsum(values) / len(values)
    return float(deviations[:-lag] @ deviations[lag:] / (deviations @ deviations))


def _subtract(first: Sequence[float], second: Sequence[float]) -> list[float]:
    rows = max(len(first), len(second))
    for values in (first, second):
        if len(values) not in (1, rows):
            raise ValueError(f"paired methods need equally many reproductions, got {len(first)} and {len(second)}")
    broadcast = [list(values) * rows if len(values) == 1 else values for values in (first, second)]
    return [round(a - b, 12) for a, b in zip(*broadcast, strict=True)]  # below that is rounding, not a difference


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation; exactly 0 where the values do not vary."""
    return float(np.std(values, ddof=1)) if min(values) < max(values) else 0.0


def _t_test(values: Sequence[float]) -> float:
    """Two-sided p of the paired t test; differences that do not vary are certain, or nothing at all."""
    deviation = _deviation(values)
    mean = math.fsum(values) / len(values)
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / (deviation / math.sqrt(len(values))), len(values) - 1))


def _difference(first: str, second: str, values: Sequence[float], p: float | None, comparisons: int, alpha: float) -> Difference:
    interval = t_interval(values, 1 - alpha)
    deviation = _deviation(values)
    effect = interval.mean / deviation if deviation > 0 else None
    return Difference(first, second, interval, p, effect, _verdict(interval, p, comparisons, alpha))


def _verdict(interval: Interval, p: float | None, comparisons: int, alpha: float) -> Verdict:
    if p is not None and p <= alpha and interval.n >= FEWEST:
        return "better" if interval.mean > 0 else "worse"
    enough = p is not None and power(interval.n, comparisons, alpha=alpha) >= POWER
    return "no difference found" if enough else "too few to tell"
