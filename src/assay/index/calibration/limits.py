"""Confidence limits of shares of pairs, which are not independent: over classes.

Shapes: C classes, K thresholds.

A share is treated as that of independent trials, of which there are as many as would make it vary
as it does over classes (Korn and Graubard 1998, Survey Methodology 24: Clopper and Pearson's limits
at the effective sample size). A share of 0 then has an upper limit: what was not seen may exist.

scipy is imported by the functions that need it: a search reads calibrations without it.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST_PAIRS = 20
"""Pairs of classes that must have false matches for their spread over classes to be known. Where
fewer have, the spread at the strictest threshold with so many is taken.
"""


def variance_over_classes(shares_CK: Floats) -> Floats:
    """Return the variance (K,) of the mean over classes of one share for each class."""
    return np.asarray(shares_CK.var(axis=0, ddof=1) / len(shares_CK))


def variance_over_pairs(sums_CK: Floats, squares_K: Floats) -> Floats:
    """Return the variance (K,) of the mean over pairs of classes of one share for each pair.

    Two pairs with a class in common are not independent (Aronow, Samii and Assenova 2015, Political
    Analysis 23). With e_ab = share of a, b less the mean, and M = C (C - 1) / 2 pairs:

        ( sum_a (sum_b e_ab)^2 - sum_{a<b} e_ab^2 ) / M^2 x C (C - 1) / (C - 2)^2

    but at least the variance of M independent pairs. To draw classes again with weights w_a w_b
    (the pigeonhole bootstrap, Owen 2007) gives two to four times that where matches are rare, and 0
    where none was seen, see `limits_of_rate`.

    Args:
        sums_CK: for each class, the sum of its shares with all other classes.
        squares_K: sum of the squared shares of all ordered pairs of classes.
    """
    classes = len(sums_CK)
    pairs = classes * (classes - 1) / 2
    mean_K = sums_CK.sum(axis=0) / (2 * pairs)
    alone_K = np.maximum(squares_K / 2 - pairs * mean_K**2, 0)
    joint_K = np.square(sums_CK - (classes - 1) * mean_K).sum(axis=0) - alone_K
    few = classes * (classes - 1) / (classes - 2) ** 2  # the mean is estimated from them too
    return np.asarray(np.maximum(joint_K, alone_K) / pairs**2 * few)


def effective_number(share_K: Floats, variance_K: Floats, units: float) -> Floats:
    """Return how many independent trials would make shares vary so; `units` where none vary."""
    varies = variance_K > 0
    return np.where(varies, share_K * (1 - share_K) / np.where(varies, variance_K, 1), float(units))


def limits_of_share(share_K: Floats, number_K: Floats, classes: int) -> tuple[Floats, Floats]:
    """Return the lower and upper 95% limits of shares of so many effective trials.

    The number is lowered by (z / t_{classes - 1})^2, since the spread itself is estimated.

    >>> low, high = limits_of_share(np.array([0.0, 0.5]), np.array([100.0, 100.0]), 1000)
    >>> low.round(3), high.round(3)
    (array([0.   , 0.398]), array([0.036, 0.602]))
    """
    from scipy import special

    from assay.stats.intervals import ALPHA

    tail = ALPHA / 2
    n_K = number_K * (special.ndtri(tail) / special.stdtrit(classes - 1, tail)) ** 2
    seen_K = np.clip(share_K, 0, 1) * n_K
    missed_K = np.maximum(n_K - seen_K, 0)
    low_K = np.where(
        seen_K > 0, special.betaincinv(np.maximum(seen_K, 1e-9), missed_K + 1, tail), 0
    )
    high_K = np.where(
        missed_K > 0, special.betaincinv(seen_K + 1, np.maximum(missed_K, 1e-9), 1 - tail), 1
    )
    return np.minimum(low_K, share_K), np.maximum(high_K, share_K)


def limits_of_rate(
    rate_K: Floats, variance_K: Floats, largest_K: Floats, classes: int
) -> tuple[Floats, Floats]:
    """Return the lower and upper 95% limits of a mean over pairs of classes.

    Gamma limits of a sum of rare events of different weights (Fay and Feuer 1997, Statistics in
    Medicine 16): the upper one has one event more than was seen, of the largest weight, since two
    classes that look alike may be missing by luck. The variance is raised by (t_{classes - 1} /
    z)^2, since it is estimated itself.

    Args:
        rate_K: the mean.
        variance_K: its variance.
        largest_K: what one more event of the largest weight would add to the mean.
        classes: number of classes.

    >>> rate, variance, event = np.array([0.0]), np.array([0.0]), np.array([0.01])
    >>> [limit.round(4).tolist() for limit in limits_of_rate(rate, variance, event, 10**6)]
    [[0.0], [0.0369]]
    """
    from scipy import special

    from assay.stats.intervals import ALPHA

    tail = ALPHA / 2
    wider = (special.stdtrit(classes - 1, tail) / special.ndtri(tail)) ** 2
    low_K = _gamma_quantile(rate_K, variance_K * wider, tail)
    more_K = variance_K * wider + largest_K**2
    high_K = _gamma_quantile(rate_K + largest_K, more_K, 1 - tail)
    return np.minimum(low_K, rate_K), np.clip(high_K, rate_K, 1)


def _gamma_quantile(mean_K: Floats, variance_K: Floats, level: float) -> Floats:
    """Return the quantile of the gamma distribution of this mean and variance; without a variance
    the mean.
    """
    from scipy import special

    varies = (mean_K > 0) & (variance_K > 0)
    mean, variance = np.where(varies, mean_K, 1), np.where(varies, variance_K, 1)
    quantile_K = special.gammaincinv(mean**2 / variance, level) * variance / mean
    return np.where(varies, quantile_K, mean_K)


def limits_of_ratio(
    above: tuple[Floats, Floats, Floats], below: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return the lower and upper limits of a ratio of two shares, each given with its limits.

    Donner and Zou 2012 (Statistical Methods in Medical Research 21), which needs no share above 0
    in the numerator. Infinite where the denominator may be 0.

    >>> share = np.array([0.1]), np.array([0.05]), np.array([0.2])
    >>> exact = np.array([0.5]), np.array([0.5]), np.array([0.5])
    >>> [limit.round(3).tolist() for limit in limits_of_ratio(share, exact)]
    [[0.1], [0.4]]
    """
    (a, a_low, a_high), (b, b_low, b_high) = above, below
    with np.errstate(divide="ignore", invalid="ignore"):
        under = b_low * (2 * b - b_low)
        root = np.sqrt(np.maximum((a * b) ** 2 - a_high * under * (2 * a - a_high), 0))
        high = np.where(under > 0, (a * b + root) / under, np.inf)
        over = b_high * (2 * b - b_high)
        root = np.sqrt(np.maximum((a * b) ** 2 - a_low * over * (2 * a - a_low), 0))
        low = np.where(over > 0, (a * b - root) / over, a_low / b_high)
    return np.maximum(np.nan_to_num(low), 0), high
