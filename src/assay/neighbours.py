"""Exact k nearest neighbours by cosine similarity. Shapes: Q queries, R references, D dims, C candidates.

Candidates are found in float32; those that can decide are recomputed in float64, each pair by itself, and sorted by
(similarity, index): the result is that of a brute force in float64, whatever the tiles.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 1 << 22
"""Entries of a similarity tile: bounds memory whatever the number of references."""

SLACK = 1e-5
"""More than float32 can be wrong about a dot product of unit vectors."""


def nearest(queries: Tensor, references: Tensor, k: int, exclude: Tensor | None = None) -> Tensor:
    """Indices (Q, k) of the k most similar references of each query, ties by lower index.

    Args:
        queries: vectors (Q, D) of any norm.
        references: vectors (R, D) of any norm.
        k: how many.
        exclude: for each query the index of a reference to leave out (itself), or None.

    >>> z = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    >>> nearest(z, z, k=1, exclude=torch.arange(3)).T
    tensor([[1, 0, 0]])

    """
    available = len(references) - (exclude is not None)
    if not 1 <= k <= available:
        raise ValueError(f"k is {k}, but a query has {available} references to choose from")
    exact_QD, exact_RD = _unit(queries), _unit(references)
    rough_QD, rough_RD = exact_QD.float(), exact_RD.float()
    found = torch.empty(len(queries), k, dtype=torch.long, device=queries.device)
    for rows in _tiles(len(queries), max(1, TILE // len(references))):
        s_QR = rough_QD[rows] @ rough_RD.T
        if exclude is not None:
            s_QR.scatter_(1, exclude[rows, None], -torch.inf)
        found[rows] = _decide(s_QR, exact_QD[rows], exact_RD, k)
    return found


def _decide(s_QR: Tensor, exact_QD: Tensor, exact_RD: Tensor, k: int) -> Tensor:
    """The k best of each row, from the candidates that float32 cannot tell from the k-th."""
    bound_Q = s_QR.topk(k, dim=1, sorted=False).values.amin(1) - SLACK
    wanted_Q = (s_QR >= bound_Q[:, None]).sum(1)
    best = torch.empty(len(s_QR), k, dtype=torch.long, device=s_QR.device)
    for rows in _rows_of_similar_width(wanted_Q, exact_RD.shape[1]):
        width = int(wanted_Q[rows].max())
        candidates_QC = s_QR[rows].topk(width, dim=1, sorted=False).indices.sort(dim=1).values
        exact_QC = (exact_QD[rows, None, :] * exact_RD[candidates_QC]).sum(-1)
        order_QC = exact_QC.sort(dim=1, descending=True, stable=True).indices[:, :k]
        best[rows] = candidates_QC.gather(1, order_QC)
    return best


def _unit(z: Tensor) -> Tensor:
    """Unit vectors in float64, whatever their norm was: first scaled so that squares neither vanish nor overflow."""
    exact = z.detach().double()
    largest = exact.abs().amax(1, keepdim=True)
    return F.normalize(exact / torch.where(largest > 0, largest, 1), dim=1)


def _rows_of_similar_width(wanted_Q: Tensor, dim: int) -> Iterator[Tensor]:
    """Groups of rows whose candidates fit in a tile, narrow rows apart from wide ones."""
    order = wanted_Q.argsort()
    start = 0
    while start < len(order):
        stop = len(order)
        while stop - start > 1 and (stop - start) * int(wanted_Q[order[stop - 1]]) * dim > TILE:
            stop = start + (stop - start) // 2
        yield order[start:stop]
        start = stop


def _tiles(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
