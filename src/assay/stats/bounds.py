"""Lower bounds of means of values that are never negative."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from assay.stats.intervals import ALPHA, Interval

FEWEST_FOR_BOUND = 4
"""Values without which a bootstrap of their mean has no bound: the lowest of three lies above the
mean in one of eight draws.
"""


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
