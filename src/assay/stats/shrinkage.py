"""Standard errors of differences between methods, with variances shrunk over the family.

Shapes: M methods, P pairs; axes before these are benches, so that simulations take the same path
as a report.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.stats.intervals import Floats

WELCH_UP_TO = 3
"""Methods up to which each variance stands for itself."""
TOO_FEW = 2
"""Units of a method with which shrinking and Satterthwaite's approximation both fail."""
Counts = NDArray[np.int_]


@dataclass(frozen=True)
class Errors:
    """Variance of each difference of means, and its degrees of freedom; NaN where that is 0."""

    variance: Floats
    freedom: Floats


def pair_errors(variances_M: Floats, counts_M: Counts, first_P: Counts, second_P: Counts) -> Errors:
    """Compute V and nu of the difference between two methods' means, for every pair.

    s_m^2 is the variance of a method over its n_m units. A method with one unit is a constant: no
    variance, and no member of the family when M is counted. With own variances (M <= 3, Welch
    1947):

        V = s_a^2/n_a + s_b^2/n_b        nu = V^2 / sum over both of (s^2/n)^2 / (n - 1)

    From M = 4 on variances are shrunk towards their mean over methods with a fixed weight of one
    degree of freedom:

        v_m = (mean of s^2 + (n_m - 1) s_m^2) / n_m        V = v_a/n_a + v_b/n_b
        nu = min( V^2 / sum over both of (v/n)^2 / n,  sum over methods of (n - 1) )

    A pair with a method of two units takes own variances and one degree of freedom.

    Args:
        variances_M: sample variances, (..., M); those of constants do not count.
        counts_M: units of each method.
        first_P: index of the first method of each pair.
        second_P: index of the second method of each pair.
    """
    repeated_M = counts_M > 1
    mean = (
        variances_M[..., repeated_M].mean(axis=-1, keepdims=True)
        if repeated_M.sum() > WELCH_UP_TO
        else None
    )
    own_M = np.where(repeated_M, variances_M, 0.0)
    first, second = ((own_M[..., index_P], counts_M[index_P]) for index_P in (first_P, second_P))
    return errors_of_two(*first, *second, mean, most=float((counts_M - 1).sum()))


def errors_of_two(
    variance_a: Floats,
    count_a: Counts,
    variance_b: Floats,
    count_b: Counts,
    mean: Floats | None,
    most: float,
) -> Errors:
    """Compute V and nu as `pair_errors` does, from the two methods' own variances.

    Args:
        variance_a: of the first method's units; 0 for a constant.
        count_a: its units.
        variance_b: of the second method's units; 0 for a constant.
        count_b: its units.
        mean: mean of s^2 over the methods of the family; None where there are too few to shrink.
        most: degrees of freedom of all methods together.
    """
    pair = (variance_a, count_a), (variance_b, count_b)
    variance, freedom = _add_up([(own / n, np.maximum(n - 1.0, 1.0)) for own, n in pair])
    few = (count_a == TOO_FEW) | (count_b == TOO_FEW)
    if mean is not None:
        steady, its_freedom = _add_up([(shrink(own, n, mean) / n, n) for own, n in pair])
        variance = np.where(few, variance, steady)
        freedom = np.where(few, freedom, np.minimum(its_freedom, most))
    return Errors(variance, np.where(few & np.isfinite(freedom), 1.0, freedom))


def shrink(variance: Floats, count: Counts, mean: Floats) -> Floats:
    """Draw variances towards the mean of all: (mean of s^2 + (n - 1) s^2) / n; 0 for constants."""
    return np.where(count > 1, (mean + (count - 1) * variance) / count, 0.0)


def _add_up(terms: Sequence[tuple[Floats, Floats | Counts]]) -> tuple[Floats, Floats]:
    """Add variances with so many degrees of freedom each, and find those of the sum.

    Satterthwaite 1946, doi.org/10.2307/3002019.
    """
    total = np.asarray(sum(share for share, _ in terms))
    squares = np.asarray(sum(share**2 / freedom for share, freedom in terms))
    return total, np.divide(total**2, squares, out=np.full_like(total, np.nan), where=squares > 0)
