"""Exact search: a query against all stored vectors, block by block.

Products are computed in single precision. Rows whose products come within the rounding error of a
query's k-th best are scored again in double precision, so that the result is that of a loop over
all rows in double precision. Memory does not grow with the number of rows.

Shapes: N stored rows, Q queries, K matches, C candidates, R rows of a block, P pairs kept, D dims,
B bytes, W words.
"""

import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.index.scoring import Scores, differing, score_candidates, score_pairs
from assay.index.vectors import Mask, Rows, StoredVectors

if TYPE_CHECKING:
    from assay.index.backends import Backend

Floats = NDArray[np.float32]

PRODUCTS = 1 << 20
"""Products that are computed at once."""

LEAST_ROWS, MOST_ROWS = 1 << 10, 1 << 16
"""Rows of a block: few for many queries, so that their products stay in the caches."""

CONVERTED = 1 << 19
"""Most numbers of a block that is converted, or bytes of bits, so that it stays in the caches."""

QUERIES = 1 << 10
"""Most queries that are searched at once."""

PLACES = 1 << 18
"""Matches of all queries that are searched at once: bounds memory."""

CROWD = 8
"""How many times k pairs of a query may be kept before they are scored exactly."""

MANY = 16
"""Queries from which on products weigh more than reading rows. For bits, products of -1 and 1 are
then faster than counting (measured).
"""

GATHER = {False: 8, True: 2}
"""Allowed rows are read one by one where they are fewer than one in so many, for few queries and
for many (measured); otherwise all rows are read in their order.
"""

ROUNDING = float(np.finfo(np.float32).eps) / 2 * 1.01


class Scan:
    """Exact search of stored vectors, from any number of threads at once."""

    def __init__(self, vectors: StoredVectors) -> None:
        self.vectors = vectors
        self._measuring = threading.Lock()
        self._halves: Floats | None = None

    def nearest(self, queries: NDArray[Any], k: int, allowed: Mask | None) -> Rows:
        """Return the k nearest allowed rows (Q, K) of each query, ties by lower row.

        Where fewer than k are allowed, K is their number.
        """
        return self.nearest_of(queries, k, None if allowed is None else np.flatnonzero(allowed))

    def nearest_of(self, queries: NDArray[Any], k: int, rows: Rows | None) -> Rows:
        """Return the k nearest (Q, K) of some rows, given in rising order; None: of all rows."""
        if rows is not None and len(rows) == len(self.vectors):
            rows = None
        k = min(k, len(self.vectors) if rows is None else len(rows))
        found = np.full((len(queries), k), -1, dtype=np.int64)
        if not k:
            return found
        if self.vectors.similarity == "hamming" and len(queries) >= MANY:
            return _nearest_bits(self.vectors.rows, queries, k, rows)
        for part in _portions(len(queries), k):
            found[part] = self._search(queries[part], k, rows)
        return found

    def _search(self, queries: NDArray[Any], k: int, rows: Rows | None) -> Rows:
        kept = _Kept(self.vectors, queries, k, self._gaps(queries))
        size = self._rows_at_once(len(queries))
        room = np.empty((len(queries), size), dtype=np.float32)
        for numbers, block, hidden in self._blocks(rows, len(queries), size):
            out_QR = room[:, : len(block)]
            if self.vectors.similarity == "hamming":
                _agreement(queries, block, out_QR)
            else:
                np.matmul(queries, block.T, out=out_QR)
            if self._halves is not None:
                out_QR -= self._halves[numbers]
            if hidden is not None:
                out_QR[:, hidden] = -np.inf
            kept.offer(out_QR, numbers)
        return kept.settle()

    def _rows_at_once(self, queries: int) -> int:
        """Return how many rows a block has: as many as the caches hold."""
        size = min(MOST_ROWS, max(LEAST_ROWS, PRODUCTS // queries))
        if self.vectors.rows.dtype != np.float32:
            size = min(size, max(LEAST_ROWS, CONVERTED // self.vectors.width))
        return min(size, len(self.vectors))

    def _blocks(
        self, rows: Rows | None, queries: int, size: int
    ) -> Iterator[tuple[slice | Rows, NDArray[Any], Rows | None]]:
        """Yield numbers of rows, the rows, and the places of those that are not allowed."""
        total = len(self.vectors)
        if rows is not None and GATHER[queries >= MANY] * len(rows) <= total:
            for start in range(0, len(rows), size):
                numbers = rows[start : start + size]
                yield numbers, self.vectors.read(numbers), None
            return
        for start in range(0, total, size):
            place = slice(start, min(start + size, total))
            hidden = None
            if rows is not None:
                first, last = np.searchsorted(rows, (place.start, place.stop))
                absent = np.ones(place.stop - place.start, dtype=np.bool_)
                absent[rows[first:last] - place.start] = False
                hidden = np.flatnonzero(absent)
            yield place, self.vectors.read(place), hidden

    def _gaps(self, queries: NDArray[Any]) -> Floats:
        """Return by how much two products of a query may be in the wrong order.

        A product of D terms, added in any order, errs by at most about D u |q| |r|.
        """
        if self.vectors.similarity == "hamming":
            return np.zeros(len(queries), dtype=np.float32)
        lengths_Q = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1))
        longest, extra = 1.001, 0.0
        if self.vectors.similarity == "euclidean":
            with self._measuring:
                if self._halves is None:
                    self._halves = _halves(self.vectors)
            extra = float(self._halves.max())
            longest = math.sqrt(2 * extra) * 1.001
        error_Q = (self.vectors.width + 4) * ROUNDING * longest * lengths_Q + 4 * ROUNDING * extra
        # Products of tiny numbers vanish.
        error_Q += self.vectors.width * float(np.finfo(np.float32).tiny) * (lengths_Q > 0)
        return np.asarray(2 * error_Q, dtype=np.float32)


def nearest_by(
    backend: "Backend",
    scan: Scan,
    queries: NDArray[Any],
    k: int,
    allowed: Mask | None,
    effort: int | None,
) -> tuple[Rows, Scores]:
    """Return the k nearest rows (Q, K) that a back end finds, best first, and their scores.

    Queries are searched in portions, so that memory does not grow with their number.

    Args:
        backend: an opened back end.
        scan: exact search of the same vectors, for queries for which it finds too few.
        queries: prepared as the stored vectors are.
        k: matches of a query, of which there are as many allowed rows at least.
        allowed: which rows may be found; None: all.
        effort: how hard the back end tries.
    """
    rows_QK = np.empty((len(queries), k), dtype=np.int64)
    scores_QK = np.empty((len(queries), k))
    for part in _portions(len(queries), k):
        some = queries[part]
        found = completed(backend.candidates(some, k, allowed, effort), some, k, scan, allowed)
        rows_QK[part], scores_QK[part] = score_candidates(scan.vectors, some, found, k)
    return rows_QK, scores_QK


def completed(found: Rows, queries: NDArray[Any], k: int, scan: Scan, allowed: Mask | None) -> Rows:
    """Return candidates (Q, C), with the k nearest rows for queries that have fewer than k of them.

    >>> scan = Scan(StoredVectors(np.eye(3, dtype=np.float32), "cosine"))
    >>> completed(np.array([[2, 1], [0, -1]]), np.eye(2, 3, dtype=np.float32), 2, scan, None)
    array([[2, 1],
           [1, 0]])
    """
    short = np.flatnonzero((found >= 0).sum(axis=1) < k)
    if not len(short):
        return found
    exact = scan.nearest(queries[short], k, allowed)
    wide = np.full((len(found), max(found.shape[1], exact.shape[1])), -1, dtype=np.int64)
    wide[:, : found.shape[1]] = found
    wide[short] = -1
    wide[short, : exact.shape[1]] = exact
    return wide


def _portions(queries: int, k: int) -> Iterator[slice]:
    """Yield the queries that are searched at once for k matches each."""
    size = max(1, min(QUERIES, PLACES // max(1, k)))
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


class _Kept:
    """Pairs that may be among the k nearest of their query, of blocks offered by rising row."""

    def __init__(
        self, vectors: StoredVectors, queries: NDArray[Any], k: int, gap_Q: Floats
    ) -> None:
        self.vectors, self.queries, self.k, self.gap_Q = vectors, queries, k, gap_Q
        self.bound_Q = np.full(len(queries), -np.inf, dtype=np.float32)
        self.parts: list[tuple[Rows, Rows, Floats]] = []
        self.count, self.limit = 0, 0

    def offer(self, product_QR: Floats, numbers: slice | Rows) -> None:
        """Keep the pairs above their query's bound."""
        if self.bound_Q[0] == -np.inf and product_QR.shape[1] >= self.k:
            self._begin(product_QR)
        hit = np.flatnonzero(product_QR.max(axis=1) > self.bound_Q)
        if not len(hit):
            return
        above = np.flatnonzero(product_QR[hit] > self.bound_Q[hit, None])
        query_P, place_P = np.divmod(above, product_QR.shape[1])
        query_P = hit[query_P]
        row_P = place_P + numbers.start if isinstance(numbers, slice) else numbers[place_P]
        self.parts.append((query_P, row_P, product_QR[query_P, place_P]))
        self.count += len(above)
        if self.count > self.limit:
            self._raise_bounds()

    def settle(self) -> Rows:
        """Return the k nearest (Q, K) by exact score, ties by lower row."""
        query_P, row_P, _ = self._raise_bounds()
        return self._best(query_P, row_P)[1].reshape(len(self.queries), self.k)

    def _begin(self, product_QR: Floats) -> None:
        """Set bounds just below what k rows of the first block reach."""
        place = product_QR.shape[1] - self.k
        reached_Q = np.partition(product_QR, place, axis=1)[:, place] - self.gap_Q
        self.bound_Q = np.nextafter(reached_Q, np.float32(-np.inf))

    def _raise_bounds(self) -> tuple[Rows, Rows, Floats]:
        """Drop pairs that cannot be among the k nearest any more; return the others."""
        query_P, row_P, value_P = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        order = np.lexsort((row_P, -value_P, query_P))
        query_P, row_P, value_P = query_P[order], row_P[order], value_P[order]
        rank_P, first_Q, count_Q = _ranks(query_P, len(self.queries))
        full = np.flatnonzero(count_Q >= self.k)
        reached = value_P[first_Q[full] + self.k - 1] - self.gap_Q[full]
        self.bound_Q[full] = np.maximum(self.bound_Q[full], reached)
        stays_P = (value_P > self.bound_Q[query_P]) | (rank_P < self.k)
        crowded_Q = np.bincount(query_P[stays_P], minlength=len(self.queries)) > CROWD * self.k
        if crowded_Q.any():
            # Many rows are nearly equal: their exact order says which k of them to keep.
            close = np.flatnonzero(stays_P & crowded_Q[query_P])
            stays_P[close] = False
            stays_P[close[self._best(query_P[close], row_P[close])[2]]] = True
        pairs = query_P[stays_P], row_P[stays_P], value_P[stays_P]
        self.parts, self.count = [pairs], len(pairs[0])
        self.limit = max(4 * self.count, PRODUCTS >> 4)
        return pairs

    def _best(self, query_P: Rows, row_P: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the pairs that are the k best of their query, best first, and their places."""
        score_P = score_pairs(self.vectors, self.queries, query_P, row_P)
        order = np.lexsort((row_P, -score_P, query_P))
        rank_P, _, _ = _ranks(query_P[order], len(self.queries))
        order = order[rank_P < self.k]
        return query_P[order], row_P[order], order


def _ranks(query_P: Rows, queries: int) -> tuple[Rows, Rows, Rows]:
    """Return each pair's place among those of its query, and where each query begins and how many
    it has. Pairs are sorted by query.
    """
    first_Q = np.searchsorted(query_P, np.arange(queries + 1))
    return np.arange(len(query_P)) - first_Q[query_P], first_Q[:-1], np.diff(first_Q)


def _halves(vectors: StoredVectors) -> Floats:
    """Return half the squared length of each row.

    -|q - r|^2 / 2 is q.r - |r|^2 / 2 and a number that only depends on the query.
    """
    halves = np.empty(len(vectors), dtype=np.float32)
    for place, block in vectors.blocks():
        halves[place] = np.square(block, dtype=np.float64).sum(axis=1) / 2
    return halves


def _agreement(queries: NDArray[np.uint8], block: NDArray[np.uint8], out_QR: Floats) -> None:
    """Write minus the number of bits that differ."""
    word = np.dtype(f"u{math.gcd(block.shape[1], 8)}")
    left_QW, right_RW = np.ascontiguousarray(queries).view(word), block.view(word)
    for query, left_W in enumerate(left_QW):
        np.negative(_row_sums(differing(left_W, right_RW)), out=out_QR[query], dtype=np.float32)


def _row_sums(counts_RW: NDArray[Any]) -> NDArray[Any]:
    """Return the sums (R,) of rows of bytes: two neighbours at a time become a wider number.

    >>> _row_sums(np.array([[1, 2, 3, 4], [0, 0, 0, 255]], dtype=np.uint8))
    array([ 10, 255], dtype=uint32)
    """
    for size in (2, 4, 8):
        if counts_RW.shape[1] % 2:
            break
        both = counts_RW.view(f"u{size}")
        shift = both.dtype.type(4 * size)
        counts_RW = (both & both.dtype.type((1 << 4 * size) - 1)) + (both >> shift)
    return counts_RW[:, 0] if counts_RW.shape[1] == 1 else counts_RW.sum(axis=1)


def _nearest_bits(
    stored: NDArray[np.uint8], queries: NDArray[np.uint8], k: int, rows: Rows | None
) -> Rows:
    """Return the k nearest rows by products of bits as -1 and 1."""
    import torch

    from assay.neighbours import Vectors, nearest

    chosen = None if rows is None else torch.from_numpy(rows)
    found = nearest(queries, Vectors(stored, chosen=chosen), k, similarity="hamming").numpy()
    return found if rows is None else rows[found]
