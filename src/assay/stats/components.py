"""Components of the spread of a score, with limits: search, training seed, test classes.

Also how smooth a score is over checkpoints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from assay.stats.intervals import ALPHA, Floats, Interval, deviation, spread


@dataclass(frozen=True)
class Component:
    """A standard deviation with its 95% limits and its degrees of freedom."""

    deviation: float
    low: float
    high: float
    freedom: int


@dataclass(frozen=True)
class Components:
    """The spread of one method.

    Args:
        seed: over training seeds, within searches; None where no search was trained twice.
        search: over searches, without what seeds add; None where there is one search, or seeds
            cannot be separated.
        together: over the means of searches, which is search and seed together: what intervals are
            made of; None where there is one search.
    """

    seed: Component | None
    search: Component | None
    together: Component | None


def components(by_search: Sequence[Sequence[float]]) -> Components:
    """Split the spread of a method's scores, a row of reproductions for each search.

    seed^2 = mean square within searches;  together^2 = s^2, the variance of the means of searches;
    search^2 = max(0, s^2 - seed^2 / R). Limits are those of chi-square; those of `search` are
    Williams's and Tukey's (1962), which give the former where seeds do not matter. With unequal
    rows R is their harmonic mean.

    >>> found = components([[0.50, 0.52], [0.60, 0.62]])
    >>> [round(part.deviation, 4) for part in (found.seed, found.search, found.together)]
    [0.0141, 0.07, 0.0707]
    """
    if not by_search or not all(by_search):
        raise ValueError("every search needs at least one score")
    if not all(math.isfinite(value) for row in by_search for value in row):
        raise ValueError("a score of a search is no number")
    within, freedom = spread(by_search), sum(len(row) - 1 for row in by_search)
    seed = None if within is None else with_limits(within, freedom)
    if len(by_search) == 1:
        return Components(seed, None, None)
    together = with_limits(
        deviation([math.fsum(row) / len(row) for row in by_search]), len(by_search) - 1
    )
    if seed is None:
        return Components(None, None, together)
    repeats = len(by_search) / math.fsum(1 / len(row) for row in by_search)
    return Components(seed, _without_seeds(together, seed, repeats), together)


def with_limits(deviation: float, freedom: int) -> Component:
    """Return a standard deviation s with its 95% limits, s sqrt(n / chi2(n, 97.5% and 2.5%)).

    >>> with_limits(1.0, 2)
    Component(deviation=1.0, low=0.520..., high=6.284..., freedom=2)
    """
    least, most = (
        2 * float(special.gammaincinv(freedom / 2, tail)) for tail in (ALPHA / 2, 1 - ALPHA / 2)
    )
    return Component(
        deviation,
        deviation * math.sqrt(freedom / most),
        deviation * math.sqrt(freedom / least),
        freedom,
    )


def aa_difference(spreads: Sequence[float]) -> float:
    """Return by how much two independent searches of one method differ: sqrt(2) times their spread.

    Spreads of several methods enter by their root mean square.

    >>> round(aa_difference([0.003, 0.004]), 6)
    0.005
    """
    if not spreads:
        raise ValueError(
            "the difference between two searches needs the spread of at least one method"
        )
    return math.sqrt(2 * math.fsum(value**2 for value in spreads) / len(spreads))


def over_classes(sums_a: Floats, sums_b: Floats, counts: Floats) -> Interval:
    """Return the interval of a difference over test classes, as if they were drawn anew.

    D_c = sum over a class's queries of A - B, averaged over runs; d = sum of D_c / sum of n_c;
    d_(c) the same without class c; d +- t(C - 1) sqrt( (C - 1) / C sum of (d_(c) - d)^2 ), the
    jackknife of a ratio. Classes without queries do not count. Every query keeps its score against
    the whole gallery: a gallery of redrawn classes would let copies find each other.

    Args:
        sums_a: sum over each class's queries of the first method's scores.
        sums_b: the same of the second method; zeros for the score of one method.
        counts: queries of each class.

    >>> a, b = np.array([3.0, 1.0, 2.0]), np.array([2.0, 1.0, 1.0])
    >>> over_classes(a, b, np.array([4.0, 4.0, 4.0]))
    Interval(mean=0.166..., low=-0.191..., high=0.525..., n=3)
    """
    mean, error, classes = _ratio(sums_a, sums_b, counts)
    if error is None:
        return Interval(mean, None, None, classes)
    half = -float(special.stdtrit(classes - 1, ALPHA / 2)) * error
    return Interval(mean, mean - half, mean + half, classes)


def class_error(sums_a: Floats, sums_b: Floats, counts: Floats) -> Component | None:
    """Return the standard error of `over_classes` with its 95% limits; None for one class."""
    _, error, classes = _ratio(sums_a, sums_b, counts)
    return None if error is None else with_limits(error, classes - 1)


def autocorrelation(values: Sequence[float], lag: int = 1) -> float:
    """Compute how much a curve over checkpoints resembles itself `lag` checkpoints later.

    The result is near 1 where the curve is smooth, and 0 where it is noise.

    r = sum_t (x_t - m)(x_{t+lag} - m) / sum_t (x_t - m)^2, m the mean of all values. The numerator
    has `lag` terms fewer, so that |r| <= 1, and short curves are drawn towards 0. NaN for a curve
    that never changes, and for fewer than lag + 2 values: lag + 1 have one product only, and two
    values give -1/2 whatever they are.

    At lag one, over validation curves, the reality check (Musgrave et al. 2020,
    arxiv.org/abs/2003.08505) reports 0.73 for R@1 and 0.81 for MAP@R.

    >>> autocorrelation([1.0, 2.0, 3.0, 4.0, 5.0]), autocorrelation([1.0, 2.0, 1.0, 2.0])
    (0.4, -0.75)
    """
    if lag < 1:
        raise ValueError(f"a curve is compared with itself at a lag of at least 1, got {lag}")
    if len(values) < lag + 2 or min(values) == max(values):
        return math.nan
    deviations = np.asarray(values) - math.fsum(values) / len(values)
    return float(deviations[:-lag] @ deviations[lag:] / (deviations @ deviations))


def _without_seeds(together: Component, seed: Component, repeats: float) -> Component:
    """Subtract the seeds' part from the spread of the means of searches."""
    between, part, freedom = together.deviation**2, seed.deviation**2 / repeats, together.freedom
    tails = np.array([1 - ALPHA / 2, ALPHA / 2])
    chi_squares = 2 * special.gammaincinv(freedom / 2, tails)
    ratios = special.fdtri(freedom, seed.freedom, tails)
    low, high = np.sqrt(np.maximum(0.0, (between - part * ratios) * freedom / chi_squares)).tolist()
    return Component(math.sqrt(max(0.0, between - part)), low, high, freedom)


def _ratio(sums_a: Floats, sums_b: Floats, counts: Floats) -> tuple[float, float | None, int]:
    """Compute the mean over queries, its standard error over classes, and the number of classes."""
    if not len(sums_a) == len(sums_b) == len(counts):
        raise ValueError(
            f"classes differ in number: {len(sums_a)}, {len(sums_b)} and {len(counts)}"
        )
    if not np.isfinite([sums_a, sums_b, counts]).all():
        raise ValueError("a sum or a count over classes is no number")
    counted = counts > 0
    classes = int(counted.sum())
    if classes == 0:
        raise ValueError("no class has a query that counts")
    queries, differences = counts[counted], (sums_a - sums_b)[counted]
    total = float(queries.sum())
    mean = float(differences.sum()) / total
    if classes == 1:
        return mean, None, 1
    without = (mean * queries - differences) / (total - queries)  # d_(c) - d
    return mean, math.sqrt((classes - 1) / classes * float(np.square(without).sum())), classes
