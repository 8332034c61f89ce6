"""Standard errors of differences between methods, with variances that lean on those of the whole family.

Shapes: M methods, P pairs; axes before these are benches, so that simulations take the same path as a report.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WELCH_UP_TO = 3
"""Methods up to which each variance stands for itself."""
TOO_FEW = 2
"""Units of a method with which neither shrinking nor Satterthwaite's approximation keeps its promise."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Variance of each pair's difference of means, and its degrees of freedom (NaN where the variance is 0)."""

    variance: Floats
    freedom: Floats


def pair_errors(variances_M: Floats, counts_M: NDArray[np.int_], first_P: NDArray[np.int_], second_P: NDArray[np.int_]) -> Errors:
    """Compute V and nu of the difference between two methods' means, for every pair.

    s_m^2 is the variance of a method over its n_m units. A method with one unit is a constant: no variance, and no member of
    the family when M is counted. With own variances (M <= 3, Welch 1947):

        V = s_a^2/n_a + s_b^2/n_b        nu = V^2 / sum over both of (s^2/n)^2 / (n - 1)

    From M = 4 on variances are shrunk towards their mean over methods with a fixed weight of one degree of freedom:

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
    own_M = np.where(repeated_M, variances_M, 0.0)
    freedom_M = np.where(repeated_M, counts_M - 1.0, 1.0)
    most = float((counts_M - 1).sum())
    variance, freedom = _add_up(own_M / counts_M, freedom_M, first_P, second_P)
    few_P = (counts_M[first_P] == TOO_FEW) | (counts_M[second_P] == TOO_FEW)
    if repeated_M.sum() > WELCH_UP_TO:
        shrunk_M = shrink(variances_M, counts_M)
        steady, steady_freedom = _add_up(shrunk_M / counts_M, np.where(repeated_M, counts_M, 1.0), first_P, second_P)
        variance = np.where(few_P, variance, steady)
        freedom = np.where(few_P, freedom, np.minimum(steady_freedom, most))
    return Errors(variance, np.where(few_P & np.isfinite(freedom), 1.0, freedom))


def shrink(variances_M: Floats, counts_M: NDArray[np.int_]) -> Floats:
    """Draw each variance towards the mean of all: (mean of s^2 + (n - 1) s^2) / n; 0 for constants."""
    repeated_M = counts_M > 1
    mean = variances_M[..., repeated_M].mean(axis=-1, keepdims=True)
    return np.where(repeated_M, (mean + (counts_M - 1) * variances_M) / counts_M, 0.0)


def _add_up(shares_M: Floats, freedom_M: Floats, first_P: NDArray[np.int_], second_P: NDArray[np.int_]) -> tuple[Floats, Floats]:
    """Add the variances of two means, with Satterthwaite's degrees of freedom."""
    first, second = shares_M[..., first_P], shares_M[..., second_P]
    total = first + second
    squares = first**2 / freedom_M[first_P] + second**2 / freedom_M[second_P]
    return total, np.divide(total**2, squares, out=np.full_like(total, np.nan), where=squares > 0)
