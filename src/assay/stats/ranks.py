"""Ranks of methods, over reproductions of one data set or over several data sets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from assay.stats.intervals import ALPHA

Source = Literal["exact", "permutations", "F"]
"""Origin of a p value: all permutations of the ranks, a sample of them, or Iman and
Davenport's F distribution.
"""

FEW_BLOCKS = 20
"""Up to so many data sets p comes from permutations of the ranks; above, the F distribution is as
good.
"""

MOST_ROWS = 500_000
"""Rank sums that are held at once for an exact p; where there would be more, permutations are
sampled.
"""

SAMPLED = 100_000
"""Permutations that are sampled."""


@dataclass(frozen=True)
class Friedman:
    """Friedman's test of the ranks of methods over data sets, with the critical difference.

    Args:
        ranks: mean rank of each method, 1 is best.
        blocks: number of data sets (N); there are k methods.
        chi_square: Friedman's statistic, corrected for ties; chi-square with k - 1 degrees of
            freedom.
        p_chi_square: of it.
        f: Iman and Davenport's statistic, (N - 1) X / (N (k - 1) - X); F with k - 1 and (k - 1)(N -
            1) degrees of freedom.
        p_f: of it.
        p: the one to read: by permutations up to `FEW_BLOCKS` data sets, else `p_f`.
        p_from: which of them it is.
        critical_difference: Nemenyi's.
    """

    ranks: dict[str, float]
    blocks: int
    chi_square: float
    p_chi_square: float
    f: float
    p_f: float
    p: float
    p_from: Source
    critical_difference: float


def ranks(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Compute mean ranks over reproductions, 1 is best.

    Ties share their mean rank; a single value stands for every row.
    """
    rows = max(len(values) for values in scores.values())
    table = np.array(
        [list(values) * rows if len(values) == 1 else list(values) for values in scores.values()]
    )
    return dict(zip(scores, _rank_columns(table).mean(axis=1).tolist(), strict=True))


def friedman(scores: Mapping[str, Sequence[float]], alpha: float = ALPHA) -> Friedman:
    """Compute Friedman's test (1937) with Iman and Davenport's statistic (1980).

    Demsar (2006, jmlr.org/papers/v7/demsar06a) recommends this.

    `scores` holds each method's values in the order of the data sets, higher is better. With R_j
    the rank sums, N data sets and k methods:  X = (12 sum_j R_j^2 / (N k (k + 1)) - 3 N (k + 1)) /
    (1 - sum over ties of (t^3 - t) / (N (k^3 - k))).

    Both approximations are poor for few data sets. There p is the share of all ways to exchange
    ranks within data sets, (k!)^N of them, that give at least this X.
    """
    table = np.array(list(scores.values())).T
    blocks, k = table.shape
    if blocks < 2 or k < 2:
        raise ValueError(
            f"ranks over data sets need at least two of them and two methods, got {blocks} and {k}"
        )
    ranked = _rank_columns(table.T).T
    counts = [np.unique(row, return_counts=True)[1] for row in ranked]
    tied = 1 - sum(float((count**3 - count).sum()) for count in counts) / (blocks * (k**3 - k))
    raw = 12 * float(np.square(ranked.sum(0)).sum()) / (blocks * k * (k + 1)) - 3 * blocks * (k + 1)
    chi_square = raw / tied if tied > 0 else 0.0
    f = _iman_davenport(chi_square, blocks, k)
    p_f = float(special.fdtrc(k - 1, (k - 1) * (blocks - 1), f))
    p, p_from = permutation_p(ranked) if blocks <= FEW_BLOCKS else (p_f, "F")
    return Friedman(
        ranks=dict(zip(scores, ranked.mean(0).tolist(), strict=True)),
        blocks=blocks,
        chi_square=chi_square,
        p_chi_square=float(special.chdtrc(k - 1, chi_square)),
        f=f,
        p_f=p_f,
        p=p,
        p_from=p_from,
        critical_difference=critical_difference(k, blocks, alpha),
    )


def permutation_p(ranked_NK: NDArray[np.float64]) -> tuple[float, Source]:
    """Return the share of rank permutations within data sets with rank sums at least this unequal.

    Unequal by sum_j R_j^2, with which Friedman's statistic grows. `exact` where all ways can be
    enumerated, else from `SAMPLED` of them, drawn with the seed 0: (1 + those as unequal) / (1 +
    all), which is never too small on average.

    >>> permutation_p(np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]]))
    (0.0277..., 'exact')
    """
    doubled = np.rint(2 * ranked_NK).astype(np.int64)
    observed = int(np.square(doubled.sum(0)).sum())
    rows = tuple(sorted(tuple(sorted(row)) for row in doubled.tolist()))
    exact = all_permutations(rows)
    if exact is None:
        return (1 + int((sample_permutations(rows) >= observed).sum())) / (
            1 + SAMPLED
        ), "permutations"
    unequal, ways = exact
    return float(ways[unequal >= observed].sum() / ways.sum()), "exact"


@lru_cache(maxsize=16)
def all_permutations(
    rows: tuple[tuple[int, ...], ...],
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return all values of sum_j R_j^2 over permutations of each row, and their counts.

    None where there are too many.

    Rows are added one after another. Methods are exchangeable, so rank sums count in ascending
    order only, and the first row needs one order.
    """
    k, base = len(rows[0]), sum(max(row) for row in rows) + 1
    sums_SK, ways_S = np.array(rows[:1]), np.ones(1)
    for number, row in enumerate(rows[1:], start=2):
        if len(sums_SK) * math.factorial(k) > MOST_ROWS:
            return None
        orders_PK = np.array(list(permutations(row)))
        sums_SK = (sums_SK[:, None] + orders_PK[None]).reshape(-1, k)
        ways_S = np.repeat(ways_S, len(orders_PK))
        if number < len(rows):
            if base**k >= 2**62:
                return None
            sums_SK.sort(axis=1)
            _, first, place = np.unique(
                sums_SK @ (base ** np.arange(k)), return_index=True, return_inverse=True
            )
            sums_SK, ways_S = sums_SK[first], np.bincount(place, weights=ways_S).astype(np.float64)
    values, place = np.unique(np.square(sums_SK).sum(1), return_inverse=True)
    return values, np.bincount(place, weights=ways_S).astype(np.float64)


@lru_cache(maxsize=16)
def sample_permutations(rows: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Return sum_j R_j^2 of `SAMPLED` random permutations of each row, drawn with the seed 0."""
    draw = np.random.default_rng(0)
    sums = np.tile(rows[0], (SAMPLED, 1))
    for row in rows[1:]:
        sums += draw.permuted(np.tile(row, (SAMPLED, 1)), axis=1)
    found: NDArray[np.int64] = np.square(sums).sum(1)
    return found


def critical_difference(methods: int, blocks: int, alpha: float = ALPHA) -> float:
    """Compute Nemenyi's critical difference (1963) of mean ranks, for all pairs at once.

    Methods differ where their mean ranks are further apart.

    q sqrt(k (k + 1) / (6 N)), q the studentised range of k with infinite degrees of freedom over
    sqrt(2).

    >>> round(critical_difference(methods=5, blocks=30), 3)
    1.114
    """
    q = _range_of_normals(methods, 1 - alpha) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def ties(mean_ranks: Mapping[str, float], critical_difference: float) -> list[tuple[str, ...]]:
    """Return the largest groups of methods, best first, that the ranks do not separate.

    No two methods of a group are further apart than the critical difference.

    >>> ties({"a": 1.0, "b": 1.5, "c": 2.4, "d": 4.0}, 1.0)
    [('a', 'b'), ('b', 'c')]
    """
    order = sorted(mean_ranks, key=lambda name: (mean_ranks[name], name))
    reach = [
        max(
            j
            for j in range(i, len(order))
            if mean_ranks[order[j]] - mean_ranks[order[i]] <= critical_difference
        )
        for i in range(len(order))
    ]
    return [
        tuple(order[i : end + 1])
        for i, end in enumerate(reach)
        if end > i and (i == 0 or end > reach[i - 1])
    ]


def _rank_columns(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank the values of each column, the highest is 1; ties share their mean rank.

    A column with a value that is not a number has no ranks.
    """
    higher = (table > table[:, None]).sum(axis=1)
    equal = (table == table[:, None]).sum(axis=1)
    ranked: NDArray[np.float64] = higher + (equal + 1) / 2
    ranked[:, np.isnan(table).any(axis=0)] = np.nan
    return ranked


def _range_of_normals(k: int, probability: float) -> float:
    """Compute the value below which the range of k standard normals stays with this probability.

    P(range <= q) = k integral of phi(z) (Phi(z) - Phi(z - q))^(k-1) dz: the studentised range with
    infinite degrees of freedom, which scipy computes too, in seconds instead of milliseconds.
    """
    from scipy.optimize import brentq  # 0.2 s, which tables without ranks need not wait for

    z = np.linspace(-9, 9, 4001)
    density, below, step = (
        np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi),
        special.ndtr(z),
        z[1] - z[0],
    )

    def missing(q: float) -> float:
        return (
            float(k * step * (density * (below - special.ndtr(z - q)) ** (k - 1)).sum())
            - probability
        )

    return float(brentq(missing, 0, 20, xtol=1e-10))


def _iman_davenport(chi_square: float, blocks: int, k: int) -> float:
    """Compute Iman and Davenport's statistic; infinite where all data sets rank methods alike."""
    below = blocks * (k - 1) - chi_square
    return (blocks - 1) * chi_square / below if below > 1e-9 else math.inf
