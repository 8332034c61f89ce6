"""Planning: the level at which each look decides, and the number of searches that are needed."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from assay.stats.intervals import Floats
from assay.stats.shrinkage import WELCH_UP_TO, errors_of_two

FIRST_LOOK = 0.04
"""Chance of a false "better" that the first look may spend."""
LATER_LOOKS = 0.01
"""Chance of a false verdict that all later looks may spend together."""
HALVINGS = 100
"""How often the chance of a later look is halved at most; smaller ones could not be computed with,
and no question is looked at so often.
"""
POWER = 0.8
"""Share of comparisons that should find the difference they were planned for."""
FEWEST = 2
"""Units of a method below which nothing varies."""
MOST = 10_000
"""Largest number of units of a method that is considered."""
DRAWS = 2048
"""Draws of the variances over which the power is averaged: enough for an error below 0.003."""
PLASTIC = 1.2207440846057596
"""Root of x^4 = x + 1: its powers spread points evenly over three dimensions (Roberts 2018)."""


def alpha_of_look(look: int) -> float:
    """Return the chance of a false "better" that a look may spend: 0.04, then 0.01 / 2^(k-1).

    All looks together have 0.05.

    >>> [alpha_of_look(look) for look in (1, 2, 3)]
    [0.04, 0.005, 0.0025]
    """
    if look < 1:
        raise ValueError(f"looks are counted from 1, got {look}")
    return FIRST_LOOK if look == 1 else LATER_LOOKS / 2 ** min(look - 1, HALVINGS)


def searches_to_see(
    difference: float,
    deviations: Sequence[float],
    comparisons: int,
    methods: int = 2,
    alpha: float = FIRST_LOOK,
    others: float | None = None,
) -> int | None:
    """Return the fewest searches per method that find a difference 80% of the time.

    None where it takes over `MOST`.

    The power is that of `compare` itself: given the estimated variances it is a normal probability,
    and this is averaged over quasi-random draws of the variances (chi-square), each with its own
    shrinkage and degrees of freedom. Nothing is approximated by a noncentral t, of which scipy has
    no value at large differences. The draws are fixed, so the number never rises with the
    difference.

    Args:
        difference: to be found: the smallest that matters, never the one that was seen.
        deviations: standard deviation over searches of the two methods; of one method where the
            other is a fixed value.
        comparisons: pairs that are compared (m).
        methods: methods of the family whose searches vary (M), these included.
        alpha: chance of a false "better" among all pairs.
        others: root mean square deviation of the other methods of the family; None: that of these.

    >>> searches_to_see(0.01, (0.006, 0.006), comparisons=1, methods=2)
    8
    >>> searches_to_see(0.01, (0.006, 0.006), comparisons=6, methods=4)
    12
    >>> searches_to_see(0.01, (0.006, 0.006), comparisons=45, methods=10)
    16
    """
    if not all(math.isfinite(value) and value >= 0 for value in (difference, *deviations)):
        raise ValueError(
            f"planning needs finite values of at least 0, got {difference} and deviations"
            f" {list(deviations)}"
        )
    if len(deviations) not in (1, 2) or methods < len(deviations):
        raise ValueError(
            f"one or two methods of {methods} are compared, got {len(deviations)} deviations"
        )
    if difference == 0:
        return None
    # in one order, since the draws of the first and the second method are not the same
    deviations = sorted(deviations, reverse=True)
    if others is None:
        others = math.sqrt(math.fsum(value**2 for value in deviations) / len(deviations))
    if not any((*deviations, others)):
        return FEWEST

    def enough(searches: int) -> bool:
        return power(searches, difference, deviations, comparisons, methods, alpha, others) >= POWER

    near = _by_normal(difference, deviations, alpha / 2 / comparisons)
    lower, upper = near, near
    while upper < MOST and not enough(upper):
        lower, upper = upper, min(MOST, upper + 2 * (upper - near) + 2)
    if not enough(upper):
        return None
    if upper == near:
        lower = FEWEST
    return bisect_left(range(upper), True, lo=lower, key=enough)


def _by_normal(difference: float, deviations: Sequence[float], tail: float) -> int:
    """Return the searches needed if the variances were known: the number to start from."""
    quantiles = float(special.ndtri(POWER) - special.ndtri(tail))
    searches = math.fsum(value**2 for value in deviations) * (quantiles / difference) ** 2
    return min(max(FEWEST, math.floor(searches)), MOST)


def power(
    searches: int,
    difference: float,
    deviations: Sequence[float],
    comparisons: int,
    methods: int,
    alpha: float,
    others: float,
) -> float:
    """Compute how often `compare` with so many searches finds the higher of two methods better.

    E[ Phi( (difference - t(nu) sqrt(V)) / sqrt(true variance) ) ] over draws of the variances.
    Arguments as of `searches_to_see`.
    """
    freedom, count = searches - 1, np.array(searches)
    drawn = [value**2 * _relative_variances(freedom, axis) for axis, value in enumerate(deviations)]
    mean = None
    if methods > WELCH_UP_TO:
        rest = methods - len(drawn)
        mean = (
            sum(drawn) + rest * others**2 * _relative_variances(rest * freedom, axis=2)
        ) / methods
    second = (drawn[1], count) if len(drawn) == 2 else (np.zeros(DRAWS), np.array(1))
    found = errors_of_two(drawn[0], count, *second, mean, most=float(methods * freedom))
    half = _quantiles(found.freedom, alpha / 2 / comparisons) * np.sqrt(found.variance)
    truth = math.sqrt(math.fsum(value**2 for value in deviations) / searches)
    chances = (
        special.ndtr((difference - half) / truth) if truth else (difference > half).astype(float)
    )
    assert np.isfinite(chances).all()
    return float(chances.mean())


def _quantiles(freedom: Floats, tail: float) -> Floats:
    """Return upper quantiles of t, along lines between 65 of them; any where freedom is NaN."""
    inverse = 1 / np.nan_to_num(freedom, nan=1.0)
    nodes = np.linspace(inverse.min(), inverse.max(), 65)
    return np.interp(inverse, nodes, -special.stdtrit(1 / nodes, tail))


@lru_cache(maxsize=512)
def _relative_variances(freedom: int, axis: int) -> Floats:
    """Draw s^2 / sigma^2, a chi-square over its degrees of freedom, at quasi-random points."""
    points = (0.5 + np.arange(1, DRAWS + 1) * PLASTIC ** -(axis + 1)) % 1
    drawn: Floats = special.gammaincinv(freedom / 2, points) * 2 / freedom
    return drawn
