"""The rank of a given reference in a query's list. Shapes: Q queries, R references, P pairs."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.neighbours.bits import multiply
from assay.neighbours.candidates import exact_scores
from assay.neighbours.search import (
    STAGE,
    AnyVectors,
    as_mask,
    full_precision,
    sides,
)
from assay.neighbours.similarity import VectorSimilarity, WhichCount, standing, vector_similarities
from assay.neighbours.tiles import TILE
from assay.neighbours.vectors import as_indices, slices
from assay.progress import Progress, silent


def target_ranks(
    queries: AnyVectors,
    references: AnyVectors,
    targets: ArrayLike | Tensor,
    exclude: ArrayLike | Tensor | None = None,
    *,
    similarity: str = "cosine",
    counts: WhichCount | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Return the rank (Q,) of each query's target among the references, 1 for the nearest.

    The rank is exact, without sorting: 1 + the number of references that come before the target by
    similarity, then by index. The other arguments are those of `nearest`.

    >>> z = torch.tensor([[1.0, 0], [1, 1], [0, 1]])
    >>> target_ranks(z, z, targets=torch.tensor([2, 2, 2]))
    tensor([3, 3, 1])

    """
    left, right, excluded = sides(queries, references, exclude, similarity)
    wanted = as_indices(targets, "targets", left.device)
    if len(wanted) != len(left):
        raise ValueError(f"{len(left)} queries but {len(wanted)} targets; each query needs one")
    if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(right):
        raise ValueError(
            f"targets hold {int(wanted.min())} to {int(wanted.max())}; references are 0 to"
            f" {len(right) - 1}"
        )
    found = torch.ones(len(left), dtype=torch.long, device=left.device)
    blocks = list(slices(len(left), TILE))
    compared = vector_similarities[similarity](left, right) if blocks else None
    with torch.no_grad(), full_precision(left.device):
        for rows in blocks:
            assert compared is not None
            ids = torch.arange(rows.start, rows.stop, device=left.device)
            own = None if excluded is None else excluded[rows]
            found[rows] += _Before(compared, ids, wanted[rows], own, as_mask(counts)).count()
            (progress or silent)(STAGE, rows.stop * len(right), len(left) * len(right))
    return found


class _Before:
    """Counts the references before the targets of some queries."""

    def __init__(
        self,
        compared: VectorSimilarity,
        ids: Tensor,
        targets: Tensor,
        exclude: Tensor | None,
        counts: WhichCount | None,
    ) -> None:
        self.compared, self.ids, self.targets, self.exclude, self.counts = (
            compared,
            ids,
            targets,
            exclude,
            counts,
        )
        self.dtype = torch.float32 if compared.trusts(torch.float32) else torch.float64
        self.trusted = compared.trusts(self.dtype)
        self.left = compared.left(ids, self.dtype)
        right_QD = compared.right(targets, self.dtype)
        self.upper_Q = (self.left * right_QD).sum(1, dtype=self.dtype)
        self.lower_Q = self.upper_Q - compared.gap(ids, targets, self.dtype)
        self.exact_Q = compared.exact(ids, targets)

    def count(self) -> Tensor:
        """Return how many references come before each target."""
        before_Q = torch.zeros_like(self.ids)
        for columns in slices(len(self.compared.references), TILE):
            before_Q += self._count(columns)
        return before_Q

    def _count(self, columns: slice) -> Tensor:
        right_RD = self.compared.right(columns, self.dtype)
        tile_QR = torch.empty(
            len(self.left), len(right_RD), dtype=self.dtype, device=self.ids.device
        )
        multiply(self.left, right_RD, tile_QR)
        columns_R = torch.arange(columns.start, columns.stop, device=self.ids.device)
        above_QR = (
            tile_QR - self.compared.gap(self.ids[:, None], columns_R[None], self.dtype)
            > self.upper_Q[:, None]
        )
        unsure_QR = (tile_QR >= self.lower_Q[:, None]) & ~above_QR
        if not self.trusted:
            above_QR, unsure_QR = torch.zeros_like(above_QR), torch.ones_like(unsure_QR)
        exclude_Q1 = None if self.exclude is None else self.exclude[:, None]
        stands_QR = standing(self.ids[:, None], columns_R[None], exclude_Q1, self.counts)
        before_Q = (above_QR & stands_QR).sum(1)
        query_P, column_P = (unsure_QR & stands_QR).nonzero(as_tuple=True)
        return before_Q.index_add_(0, query_P, self._is_before(query_P, columns_R[column_P]).long())

    def _is_before(self, query_P: Tensor, reference_P: Tensor) -> Tensor:
        exact_P, own_P = (
            exact_scores(self.compared, self.ids[query_P], reference_P),
            self.exact_Q[query_P],
        )
        return (exact_P > own_P) | ((exact_P == own_P) & (reference_P < self.targets[query_P]))
