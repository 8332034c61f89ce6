"""Scores of matches: one place, so that a match has one score whichever back end found it.

A score is computed pair by pair in double precision from the stored vector and the prepared query.
Its bits do not depend on the other queries and candidates. More is more similar:

- cosine: the dot product of two unit vectors;
- euclidean: minus their distance;
- hamming: minus the number of bits that differ.

Shapes: Q queries, C candidates, K matches, P pairs, D dims, B bytes of packed bits.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import BadInput
from assay.index.vectors import Rows, StoredVectors
from assay.protocols import Similarity

Scores = NDArray[np.float64]

AT_ONCE = 1 << 20
"""Numbers of pairs that are compared at once: bounds memory."""

LARGEST = 1e15
"""Numbers above this could not be squared and added in single precision."""

Bits = NDArray[np.uint8] | NDArray[np.uint64]


def prepare(
    z: ArrayLike, similarity: Similarity, dtype: type[np.floating[Any]] = np.float32
) -> NDArray[Any]:
    """Return embeddings, or queries, in the form in which an index stores and compares them.

    Args:
        z: embeddings (N, D); for hamming also bits that are packed already, as uint8.
        similarity: cosine (unit vectors; a zero vector stays one), euclidean (as they are) or
            hamming (packed bits z > 0).
        dtype: float32, or float16 for half the size.

    >>> prepare([[3, 4], [0, 0]], "cosine")
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    >>> prepare([[0.5, -1, 2]], "hamming")
    array([[160]], dtype=uint8)
    """
    given = np.asarray(z)
    if similarity == "hamming":
        return given if given.dtype == np.uint8 else np.packbits(given > 0, axis=1)
    x = np.asarray(given, dtype=np.float64)
    most = LARGEST if dtype == np.float32 else float(np.finfo(dtype).max)
    fit = np.isfinite(x) if similarity == "cosine" else np.abs(x) <= most
    if not fit.all():
        row = int(np.argmin(fit.all(axis=1)))
        raise BadInput(
            f"vector {row} holds numbers that cannot be compared (NaN, infinite"
            + (")" if similarity == "cosine" else f", or above {most:.0e})")
            + "; remove it, or check the model"
        )
    if similarity == "cosine":
        x = x / np.maximum(np.abs(x).max(axis=1, keepdims=True, initial=0), np.finfo(float).tiny)
        x /= np.maximum(np.sqrt(np.square(x).sum(axis=1, keepdims=True)), 1)
    return x.astype(dtype)


def score_candidates(
    vectors: StoredVectors, queries: NDArray[Any], candidates: Rows, k: int
) -> tuple[Rows, Scores]:
    """Return rows and scores (Q, K) of the best candidates (Q, C), ties by lower row.

    Where there are fewer than k candidates, rows are -1 and scores -inf.

    >>> stored = StoredVectors(np.eye(2, dtype=np.float32), "cosine")
    >>> score_candidates(stored, prepare([[3, 4]], "cosine"), np.array([[0, 1, -1]]), k=3)
    (array([[ 1,  0, -1]]), array([[0.80000001, 0.60000002,       -inf]]))
    """
    scores = np.full(candidates.shape, -np.inf)
    query_P, place_P = np.nonzero(candidates >= 0)
    scores[query_P, place_P] = score_pairs(vectors, queries, query_P, candidates[query_P, place_P])
    best = np.lexsort((candidates, -scores), axis=1)[:, :k]
    rows_QK = np.full((len(candidates), k), -1, dtype=np.int64)
    scores_QK = np.full((len(candidates), k), -np.inf)
    rows_QK[:, : best.shape[1]] = np.take_along_axis(candidates, best, axis=1)
    scores_QK[:, : best.shape[1]] = np.take_along_axis(scores, best, axis=1)
    return rows_QK, scores_QK


def score_pairs(
    vectors: StoredVectors, queries: NDArray[Any], query_P: Rows, row_P: Rows
) -> Scores:
    """Return the scores (P,) of pairs of a query and a stored row."""
    scores = np.empty(len(row_P))
    size = max(1, AT_ONCE // max(1, vectors.width))
    for start in range(0, len(row_P), size):
        part = slice(start, start + size)
        left, right = queries[query_P[part]], vectors.read(row_P[part])
        scores[part] = _score(left, right, vectors.similarity)
    return scores


def differing(left: Bits, right: Bits) -> NDArray[Any]:
    """Return how many bits of bytes, or of larger words, differ; the shapes broadcast."""
    return np.bitwise_count(np.bitwise_xor(left, right))


def _score(left_PD: NDArray[Any], right_PD: NDArray[Any], similarity: Similarity) -> Scores:
    if similarity == "hamming":
        return np.asarray(-differing(left_PD, right_PD).sum(axis=1, dtype=np.float64))
    left_PD, right_PD = left_PD.astype(np.float64), right_PD.astype(np.float64)
    if similarity == "cosine":
        return np.asarray(np.multiply(left_PD, right_PD, out=left_PD).sum(axis=1))
    squares_PD = np.square(np.subtract(left_PD, right_PD, out=left_PD), out=left_PD)
    return np.asarray(-np.sqrt(squares_PD.sum(axis=1)))
