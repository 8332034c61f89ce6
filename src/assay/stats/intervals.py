"""Means with their intervals or bounds, and standard deviations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

ALPHA = 0.05
FEWEST_UNITS = 5
"""Units without which a bootstrap of their mean has no ends."""
FEWEST_FOR_BOUND = 4
"""Values without which a bootstrap of their mean has no bound: the lowest of three lies above the
mean in one of eight draws.
"""
LARGE = 10_000
"""Units above which a bootstrap of their mean tells nothing that its normal limit does not."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; without ends where there is a single value."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half the width, the figure after the +- sign."""
        return None if self.high is None else self.high - self.mean


def t_interval(values: Sequence[float], confidence: float = 1 - ALPHA) -> Interval:
    """Compute Student's interval for the mean: m +- t_{n-1} s / sqrt(n).

    >>> t_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., n=3)
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * deviation(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def bootstrap(
    sums: Floats,
    counts: Floats,
    confidence: float = 1 - ALPHA,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Compute a bootstrap interval of a mean over units of several values each.

    The mean is sum_u S_u / sum_u n_u, and units are redrawn.

    Percentiles (Efron 1979), expanded for few units as Hesterberg does (2015,
    doi.org/10.1080/00031305.2015.1089789): the level alpha / 2 becomes Phi(-sqrt(n / (n - 1))
    t_{n-1, alpha/2}), since resampled means vary too little by that much. Fewer than five units
    cannot cover 95%, for no resampled mean lies outside them: they get no ends. Above LARGE units
    it is the normal distribution that the bootstrap has long reached, of variance sum_u (S_u - m
    n_u)^2 / (sum_u n_u)^2.

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
        half = float(
            special.ndtri((1 + confidence) / 2)
            * np.sqrt(np.square(sums - mean * counts).sum())
            / counts.sum()
        )
        least, most = float((sums / counts).min()), float((sums / counts).max())
        return Interval(mean, max(mean - half, least), min(mean + half, most), len(sums))
    draw = np.random.default_rng(seed)
    means = np.empty(resamples)
    for number in range(resamples):
        drawn = draw.integers(len(sums), size=len(sums))
        means[number] = sums[drawn].sum() / counts[drawn].sum()
    n = len(sums)
    tail = special.ndtr(math.sqrt(n / (n - 1)) * special.stdtrit(n - 1, (1 - confidence) / 2))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, float(low), float(high), len(sums))


def bootstrap_bound(
    values: Sequence[float], confidence: float = 1 - ALPHA, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the mean with a one-sided lower bound from a bootstrap.

    There is no upper end, and no bound below four values.

    For values that are 0 or more by construction, such as what the best of several adds to the
    chosen one: an interval that is symmetric about their mean would reach below 0. The bound is the
    quantile Phi(sqrt(n / (n - 1)) t_{n-1, 1 - confidence}) of the resampled means, which is
    Hesterberg's expansion for few values (2015, doi.org/10.1080/00031305.2015.1089789).

    >>> bootstrap_bound([0.0, 1.0, 2.0, 3.0, 4.0])
    Interval(mean=2.0, low=0.6, high=None, n=5)
    """
    n = len(values)
    if n == 0:
        raise ValueError("a bound needs at least one value")
    mean = math.fsum(values) / n
    if n < FEWEST_FOR_BOUND:
        return Interval(mean, None, None, n)
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    tail = special.ndtr(math.sqrt(n / (n - 1)) * special.stdtrit(n - 1, 1 - confidence))
    return Interval(mean, float(np.quantile(np.asarray(values)[drawn].mean(1), tail)), None, n)


def deviation(values: Sequence[float]) -> float:
    """Compute the standard deviation of a sample, sqrt(sum (x - m)^2 / (n - 1)).

    It is exactly 0 where the values do not vary.
    """
    return float(np.std(values, ddof=1)) if min(values) < max(values) else 0.0


def spread(groups: Sequence[Sequence[float]]) -> float | None:
    """Compute the pooled standard deviation within groups.

    sqrt(sum_g sum_i (x_gi - m_g)^2 / sum_g (n_g - 1))

    None where no group has two values. What groups differ by does not count.

    >>> spread([[1.0, 3.0], [11.0, 13.0]])
    1.414...
    """
    freedom = sum(len(group) - 1 for group in groups)
    if freedom == 0:
        return None
    return math.sqrt(
        sum((len(group) - 1) * deviation(group) ** 2 for group in groups if len(group) > 1)
        / freedom
    )
