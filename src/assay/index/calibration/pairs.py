"""Shares of pairs that are accepted at each threshold, for each class and each pair of classes.

Shapes: N samples, D dims, C classes, K thresholds, R rows of a tile, P pairs.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.index.calibration.limits import Floats
from assay.index.calibration.pair_scores import PairScores, Whole
from assay.progress import Progress, silent
from assay.protocols import Similarity

THRESHOLDS = 256
"""Thresholds of a curve where scores have more values: half of them split the pairs of one class
evenly, the others are spaced evenly by the logarithm of the share of pairs of two classes.
"""

TILE = 1 << 22
"""Pairs that are compared at a time."""


@dataclass(frozen=True)
class AcceptedPairs:
    """Shares of pairs with a score of at least each threshold.

    Args:
        thresholds_K: the thresholds, rising; the first accepts every pair.
        own_CK: share of the pairs of one class that are accepted, for each class with two samples.
        others_CK: for each class, the sum over all other classes of the share of the pairs of both.
        squares_K: sum of the squared shares of all ordered pairs of classes.
        largest_K: the largest share of a pair of classes.
        touched_K: pairs of classes of which at least one pair of samples is accepted.
        pairs: pairs of samples of one class, and of two classes.
    """

    thresholds_K: Floats
    own_CK: Floats
    others_CK: Floats
    squares_K: Floats
    largest_K: Floats
    touched_K: Whole
    pairs: tuple[int, int]


def compare_pairs(
    z_ND: NDArray[Any], y_N: NDArray[Any], similarity: Similarity, progress: Progress = silent
) -> AcceptedPairs:
    """Compare all pairs of samples, a tile at a time.

    Scores are those of an index: the cosine, minus the Euclidean distance, or minus the number of
    bits that differ.

    Args:
        z_ND: embeddings; rows of uint8 are packed bits.
        y_N: labels, compared by equality.
        similarity: cosine, euclidean or hamming.
        progress: called with a stage, the classes done and their total.
    """
    names, y_N = np.unique(np.asarray(y_N), return_inverse=True)
    order = np.argsort(y_N, kind="stable")
    scores = PairScores.of(np.asarray(z_ND)[order], similarity)
    sizes_C = np.bincount(y_N)
    starts_C = np.concatenate([[0], np.cumsum(sizes_C)])
    edges_K = _edges(scores, starts_C, progress)
    place = np.zeros(scores.bins, dtype=np.int64)  # of a score among the thresholds
    place[edges_K[1:]] = 1
    place = place.cumsum()
    count, many = len(edges_K), len(names)
    class_N = np.repeat(np.arange(many), sizes_C) * count
    own, others_CK = [], np.zeros((many, count))
    squares_K, largest_K = np.zeros(count), np.zeros(count)
    touched_K = np.zeros(count, dtype=np.int64)
    for one, (first, last) in enumerate(pairwise(starts_C.tolist())):
        found = np.zeros(many * count, dtype=np.int64)
        for rows in _tiles(first, last, len(scores)):
            places_RN = place[scores.between(rows, slice(None))] + class_N
            found += np.bincount(places_RN.ravel(), minlength=many * count)
            own_R = places_RN[np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop)]
            found -= np.bincount(own_R, minlength=many * count)  # a sample with itself
        accepted_CK = found.reshape(many, count)[:, ::-1].cumsum(axis=1)[:, ::-1]
        size = int(sizes_C[one])
        if size > 1:
            own.append(accepted_CK[one] / (size * (size - 1)))
        shares_CK = accepted_CK / (size * sizes_C[:, None])
        shares_CK[one] = 0
        others_CK[one] = shares_CK.sum(axis=0)
        squares_K += np.square(shares_CK).sum(axis=0)
        largest_K = np.maximum(largest_K, shares_CK.max(axis=0))
        touched_K += np.count_nonzero(shares_CK, axis=0)
        progress("comparing pairs", one + 1, many)
    same = int((sizes_C * (sizes_C - 1)).sum()) // 2
    total = len(scores) * (len(scores) - 1) // 2
    return AcceptedPairs(
        scores.thresholds(edges_K),
        np.array(own).reshape(-1, count),
        others_CK,
        squares_K,
        largest_K,
        touched_K // 2,
        (same, total - same),
    )


def _tiles(first: int, last: int, width: int) -> list[slice]:
    size = max(1, TILE // width)
    return [slice(start, min(start + size, last)) for start in range(first, last, size)]


def _edges(scores: PairScores, starts_C: Whole, progress: Progress) -> Whole:
    """Return the rounded scores at which thresholds lie, rising, the lowest of all first."""
    same, every = np.zeros(scores.bins, dtype=np.int64), np.zeros(scores.bins, dtype=np.int64)
    many = len(starts_C) - 1
    for one, (first, last) in enumerate(pairwise(starts_C.tolist())):
        for rows in _tiles(first, last, len(scores)):
            bins_RN = scores.between(rows, slice(None))
            bins_RN[np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop)] = 0
            every += np.bincount(bins_RN.ravel(), minlength=scores.bins)
            same += np.bincount(bins_RN[:, first:last].ravel(), minlength=scores.bins)
        for counts in (same, every):
            counts[0] -= last - first  # samples with themselves, counted as the lowest score
        progress("scores of pairs", one + 1, many)
    seen = np.flatnonzero(every)
    if len(seen) <= THRESHOLDS:
        return seen
    above_same = same[::-1].cumsum()[::-1]
    other = every - same
    above_other = other[::-1].cumsum()[::-1]
    even = np.linspace(1, above_same[0], THRESHOLDS // 2) if above_same[0] else np.array([])
    spaced = np.geomspace(1, max(above_other[0], 1), THRESHOLDS // 2)
    wanted = [
        np.searchsorted(-above, -least, side="right") - 1
        for above, least in ((above_same, even), (above_other, spaced))
    ]
    just_above = np.flatnonzero(other)[-1:] + 1  # accepts no pair of two classes
    chosen = np.unique(np.concatenate([seen[:1], *wanted, just_above]))
    chosen = chosen[(chosen >= seen[0]) & (chosen <= seen[-1])]
    return np.unique(seen[np.searchsorted(seen, chosen)])
