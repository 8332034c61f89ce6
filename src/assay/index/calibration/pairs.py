"""Shares of pairs that are accepted at each threshold, for each class and each pair of classes.

Shapes: N samples, D dims, C classes, K thresholds, R rows of a tile, P pairs.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.index.calibration.limits import Floats
from assay.progress import Progress, silent
from assay.protocols import Similarity

Whole = NDArray[np.int64]

THRESHOLDS = 256
"""Thresholds of a curve where scores have more values: half of them split the pairs of one class
evenly, the others are spaced evenly by the logarithm of the share of pairs of two classes.
"""

STEPS = 1 << 19
"""Steps of rounded scores between 0 and 1; a threshold lies half a step below them, so that the
rounding of another library changes nothing.
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
    scores = _Scores.of(np.asarray(z_ND)[order], similarity)
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
        np.asarray((edges_K + scores.lowest - 0.5) * scores.step, dtype=np.float64),
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


def _edges(scores: "_Scores", starts_C: Whole, progress: Progress) -> Whole:
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


@dataclass(frozen=True)
class _Scores:
    """Rounded scores of pairs, numbered from the lowest that there can be."""

    z_ND: NDArray[Any]
    norms_N: Floats | None
    step: float
    lowest: int
    bins: int

    def __len__(self) -> int:
        return len(self.z_ND)

    @classmethod
    def of(cls, z_ND: NDArray[Any], similarity: Similarity) -> "_Scores":
        """Return the scores of prepared vectors."""
        if similarity == "hamming":
            packed = z_ND if z_ND.dtype == np.uint8 else np.packbits(z_ND > 0, axis=1)
            signs = np.unpackbits(packed, axis=1).astype(np.float32) * 2 - 1
            return cls(signs, None, 1.0, -signs.shape[1], signs.shape[1] + 1)
        z_ND = z_ND.astype(np.float64)
        if not np.isfinite(z_ND).all():
            raise BadInput("the embeddings hold NaN or infinity; calibrate a model that works")
        if similarity == "cosine":
            lengths_N1 = np.linalg.norm(z_ND, axis=1, keepdims=True)
            unit_ND = z_ND / np.where(lengths_N1 > 0, lengths_N1, 1)
            return cls(unit_ND, None, 1 / STEPS, -STEPS, 2 * STEPS + 1)
        z_ND = z_ND - z_ND.mean(axis=0)
        norms_N = np.square(z_ND).sum(axis=1)
        farthest = 2 * float(np.sqrt(norms_N.max()))
        scale = 2.0 ** np.ceil(np.log2(farthest)) if farthest > 0 else 1.0
        return cls(z_ND, norms_N, scale / STEPS, -STEPS, STEPS + 1)

    def between(self, rows: slice, columns: slice) -> Whole:
        """Return the rounded scores of some pairs, from 0."""
        product = self.z_ND[rows] @ self.z_ND[columns].T
        if self.step == 1.0 and self.norms_N is None:
            scores = (product - self.z_ND.shape[1]) / 2
        elif self.norms_N is None:
            scores = product
        else:
            squares = self.norms_N[rows, None] + self.norms_N[columns] - 2 * product
            scores = -np.sqrt(np.maximum(squares, 0))
        found = np.rint(scores / self.step).astype(np.int64) - self.lowest
        return np.asarray(np.clip(found, 0, self.bins - 1))
