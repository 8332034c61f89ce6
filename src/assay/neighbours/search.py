"""The search: tiles of products, queries by references, bounded in both directions."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.neighbours.bits import multiply
from assay.neighbours.candidates import (
    NONE,
    Candidates,
    exhaustive,
    nearest_first,
    places_for,
)
from assay.neighbours.similarity import VectorSimilarity, WhichCount, standing, vector_similarities
from assay.neighbours.tiles import TILE, Multiplier, Transposed
from assay.neighbours.vectors import Vectors, as_indices, slices
from assay.progress import Progress, silent

PANEL = 6
"""Tiles that are processed together where each tile serves one side."""

WORTH = 1 << 15
"""Multiplications that cost as much as one reference that passes a bound (measured)."""

SORTED = 16
"""Rows are sorted whole where fewer than this many times k references are searched."""

ROWS = 1 << 20
"""Products in whole rows that are sorted at once: bounds memory."""

STAGE = "neighbours"
"""Name of the stage that progress reports."""

BUFFER = 1 << 24
"""Places of candidates at once, unless the references themselves hold more numbers."""

AnyVectors = ArrayLike | Tensor | Vectors


def nearest(
    queries: AnyVectors,
    references: AnyVectors,
    k: int,
    exclude: ArrayLike | Tensor | None = None,
    *,
    similarity: str = "cosine",
    counts: WhichCount | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Return indices (Q, k) of the k most similar references of each query, ties by lower index.

    The result is exact: that of a brute-force search in double precision. Products are computed in
    single precision, and pairs that its rounding cannot order are compared again in double
    precision. Memory does not grow with Q x R.

    Args:
        queries: vectors (Q, D): numpy array, memory-mapped file or tensor.
        references: vectors (R, D). If it is the same object as `queries`, each product serves both
            sides.
        k: how many references per query.
        exclude: for each query the index of a reference to leave out (itself), -1 for none; or
            None.
        similarity: cosine, dot, euclidean, or hamming: the fewer bits z > 0 differ, the more
            similar. Vectors of uint8 are bits that are packed already (`numpy.packbits`).
        counts: which references count for which queries (other camera, other category, junk): a
            function of two tensors, query and reference indices, whose shapes broadcast; it returns
            True or False for each pair. Where fewer than k references count for a query (or are
            left after `exclude`), the rest of its row is -1.
        progress: called with the stage "neighbours", the pairs compared so far and their total;
            queries that must be searched again (collapsed vectors) come after that.

    >>> z = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    >>> nearest(z, z, k=1, exclude=torch.arange(3)).T
    tensor([[1, 0, 0]])
    >>> camera = torch.tensor([0, 0, 1])
    >>> nearest(z, z, k=2, counts=lambda q, r: camera[q] != camera[r])
    tensor([[ 2, -1],
            [ 2, -1],
            [ 0,  1]])

    """
    left, right, excluded = sides(queries, references, exclude, similarity)
    most = available(len(right), excluded)
    if not 1 <= k <= most:
        raise ValueError(f"k is {k}, but a query has {most} references to choose from")
    if not len(left):
        return torch.empty(0, k, dtype=torch.long, device=left.device)
    search = _Search(
        vector_similarities[similarity](left, right),
        k,
        excluded,
        as_mask(counts),
        progress or silent,
    )
    with torch.no_grad(), full_precision(left.device):
        return search.run()


class _Search:
    def __init__(
        self,
        compared: VectorSimilarity,
        k: int,
        exclude: Tensor | None,
        counts: WhichCount | None,
        progress: Progress,
    ) -> None:
        self.compared, self.k, self.exclude, self.counts, self.progress = (
            compared,
            k,
            exclude,
            counts,
            progress,
        )
        self.references = len(compared.references)
        self.multiplier = Multiplier()

    def run(self) -> Tensor:
        """Search in single precision, then the undecided queries in double, then pair by pair.

        Where products are exact, a query is undecided only because it has more ties than places,
        and the first search is followed by one in whole rows.
        """
        device = self.compared.queries.device
        found = torch.empty(len(self.compared.queries), self.k, dtype=torch.long, device=device)
        open_ = torch.arange(len(found), device=device)
        if SORTED * self.k > self.references and self.compared.trusts(torch.float32):
            return self._sort_rows(found)
        for dtype in (torch.float32, torch.float64):
            if len(open_) and self.compared.trusts(dtype):
                open_ = self._search(open_, dtype, found)
                if self.compared.is_exact:
                    self._take_rows(open_, dtype, found)
                    return found
        if len(open_):
            found[open_] = exhaustive(self.compared, open_, self.k, self.exclude, self.counts)
            self.progress(STAGE, len(found) * self.references, len(found) * self.references)
        return found

    def _search(self, ids: Tensor, dtype: torch.dtype, found: Tensor) -> Tensor:
        """Fill in the rows that this precision can decide; return the other queries."""
        budget = max(BUFFER, self.references * self.compared.references.dim // 2)
        parts = [ids[part] for part in slices(len(ids), max(1, budget // places_for(self.k)))]
        lost, before = [], 0
        for part in parts:
            candidates = Candidates(part, self.k, self.compared, dtype, self.counts)
            for done, total in self._scan_for(part)(candidates, dtype):
                self.progress(
                    STAGE,
                    (before + len(part) * done // total) * self.references,
                    len(ids) * self.references,
                )
            before += len(part)
            found[part] = candidates.settle()
            lost.append(part[candidates.lost])
        self.progress = silent  # how many queries are searched again was not known before
        return torch.cat(lost)

    def _sort_rows(self, found: Tensor) -> Tensor:
        """Sort whole rows of products: for a k so large that most references would pass a bound."""
        columns_R = torch.arange(self.references, device=found.device)
        for rows in slices(len(found), max(1, min(TILE, ROWS // self.references))):
            ids = torch.arange(rows.start, rows.stop, device=found.device)
            value_QR = self._rows_of_products(ids, torch.float32)
            absent_QR = ~self._standing(ids, columns_R)
            value_QR.masked_fill_(absent_QR, -torch.inf)
            index_QR = columns_R.expand_as(value_QR).masked_fill(absent_QR, NONE)
            found[rows] = nearest_first(self.compared, ids, value_QR, index_QR, self.k)
            self.progress(STAGE, rows.stop * self.references, len(found) * self.references)
        return found

    def _take_rows(self, ids: Tensor, dtype: torch.dtype, found: Tensor) -> None:
        """Fill in queries by whole rows of exact products, which are whole numbers.

        One number has the product in its upper bits and the index in its lower ones. More than k
        references count for such a query, since it had more ties than places.
        """
        columns_R = torch.arange(self.references, device=ids.device)
        for rows in slices(len(ids), max(1, ROWS // self.references)):
            key_QR = self._rows_of_products(ids[rows], dtype).long() * (NONE + 1) - columns_R
            key_QR.masked_fill_(~self._standing(ids[rows], columns_R), torch.iinfo(torch.long).min)
            found[ids[rows]] = key_QR.topk(self.k, dim=1).indices

    def _rows_of_products(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        left = self.compared.left(ids, dtype)
        value_QR = torch.empty(len(ids), self.references, dtype=dtype, device=ids.device)
        for columns in slices(self.references, TILE):
            multiply(left, self.compared.right(columns, dtype), value_QR[:, columns])
        return value_QR

    def _standing(self, ids: Tensor, columns_R: Tensor) -> Tensor:
        exclude_Q1 = None if self.exclude is None else self.exclude[ids, None]
        return standing(ids[:, None], columns_R[None], exclude_Q1, self.counts)

    def _scan_for(
        self, ids: Tensor
    ) -> Callable[[Candidates, torch.dtype], Iterator[tuple[int, int]]]:
        """Return the cheapest way to go through all products.

        Where queries and references are the same vectors, half of the products are enough: each
        tile is used from both sides. But then references are offered in small portions, the lower
        bounds rise slowly, and about k log(R / k) references pass each bound on the way. This pays
        where a product costs more than that.
        """
        itself = (
            self.compared.symmetric
            and self.compared.queries is self.compared.references
            and self.counts is None
        )
        if not itself or len(ids) < self.references or self.references <= TILE:
            return self._one_side
        if self.exclude is not None and not bool((self.exclude == ids).all()):
            return self._one_side
        passing = self.k * (1 + math.log(self.references / self.k))
        worth = self.references * self.compared.references.dim > WORTH * passing
        return self._both_sides if worth else self._one_side

    def _both_sides(self, candidates: Candidates, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
        """Offer tiles of the upper triangle; each query still meets references by rising index.

        Yields after each tile the number of tiles done and their total.
        """
        blocks = list(slices(self.references, TILE))
        done, total = 0, len(blocks) * (len(blocks) + 1) // 2
        for number, rows in enumerate(blocks):
            left = self.compared.left(rows, dtype)
            for columns in blocks[number:]:
                itself = columns == rows
                right = left if itself else self.compared.right(columns, dtype)
                products = self.multiplier.panel(
                    left,
                    right,
                    columns.start,
                    self._excluded(candidates.ids[rows]) if itself else None,
                    dtype,
                )
                candidates.offer(rows, products)
                if not itself:
                    candidates.offer(
                        columns, Transposed(rows.start, products.tiles[0, :, : len(right)])
                    )
                done += 1
                yield done, total

    def _one_side(self, candidates: Candidates, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
        """Read each panel of references once and multiply it with all queries.

        Yields after each product the number done and their total.
        """
        row_blocks = list(slices(len(candidates.ids), TILE))
        column_blocks = list(slices(self.references, PANEL * TILE))
        done, total = 0, len(column_blocks) * len(row_blocks)
        for columns in column_blocks:
            right = self.compared.right(columns, dtype)
            for rows in row_blocks:
                ids = candidates.ids[rows]
                products = self.multiplier.panel(
                    self.compared.left(ids, dtype),
                    right,
                    columns.start,
                    self._excluded(ids),
                    dtype,
                )
                candidates.offer(rows, products)
                done += 1
                yield done, total

    def _excluded(self, ids: Tensor) -> Tensor | None:
        return None if self.exclude is None else self.exclude[ids]


def sides(
    queries: AnyVectors,
    references: AnyVectors,
    exclude: ArrayLike | Tensor | None,
    similarity: str,
) -> tuple[Vectors, Vectors, Tensor | None]:
    """Return queries, references and the reference that each query leaves out, all checked."""
    left = queries if isinstance(queries, Vectors) else Vectors(queries)
    right = left if references is queries else Vectors(references, left.device)
    excluded = _left_out(exclude, left, right)
    check_comparable(left, right, similarity)
    if not len(right):
        raise ValueError("there are no references to search in")
    if len(right) >= torch.iinfo(torch.int32).max:
        raise ValueError(
            f"{len(right)} references are more than can be searched at once; split them"
        )
    left.check_finite("queries")
    if right is not left:
        right.check_finite("references")
    return left, right, excluded


def check_comparable(queries: Vectors, references: Vectors, similarity: str) -> None:
    """Raise a `ValueError` unless both sides have as many dimensions, in the same form."""
    if similarity == "hamming" and queries.is_packed != references.is_packed:
        packed, other = ("queries", "references")[:: 1 if queries.is_packed else -1]
        raise ValueError(
            f"the {packed} are uint8, bits that are packed already, and the {other} are not; give"
            " both as numbers, or pack both (numpy.packbits(z > 0, axis=1))"
        )
    if queries.dim != references.dim:
        raise ValueError(f"queries have {queries.dim} dimensions, but references {references.dim}")


def available(references: int, exclude: Tensor | None) -> int:
    """Return how many references the query with the most references can choose from."""
    return references - int(exclude is not None and len(exclude) > 0 and bool((exclude >= 0).all()))


def _left_out(
    exclude: ArrayLike | Tensor | None, queries: Vectors, references: Vectors
) -> Tensor | None:
    if exclude is None:
        return None
    indices = as_indices(exclude, "indices to exclude", queries.device)
    if len(indices) != len(queries):
        raise ValueError(
            f"exclude has {len(indices)} entries; {len(queries)} queries leave out one reference"
            " each"
        )
    if len(indices) and not -1 <= int(indices.min()) <= int(indices.max()) < len(references):
        raise ValueError(
            f"exclude holds {int(indices.min())} to {int(indices.max())}; references are 0 to"
            f" {len(references) - 1}"
        )
    return indices


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute products in full precision inside, whatever shortcuts the caller has allowed."""
    with torch.autocast(device.type, enabled=False):
        try:
            allowed = torch.get_float32_matmul_precision()
        except RuntimeError:  # torch raises once the precision was set for a single backend
            with _full_precision_of_backends():
                yield
            return
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(allowed)


@contextmanager
def _full_precision_of_backends() -> Iterator[None]:
    backends: list[Any] = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    allowed = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, allowed, strict=True):
            backend.fp32_precision = precision


def as_mask(counts: WhichCount | None) -> WhichCount | None:
    """Return the same function with its values as a boolean mask."""
    if counts is None:
        return None

    def mask(query: Tensor, reference: Tensor) -> Tensor:
        counted = torch.as_tensor(counts(query, reference), device=query.device).bool()
        return counted.expand_as(query + reference)

    return mask
