"""Candidates in their exact order. Shapes: Q queries, W candidates, P pairs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.neighbours.similarity import VectorSimilarity
from assay.neighbours.vectors import slices

NONE = torch.iinfo(torch.int32).max
"""Index that stands for no reference; it sorts after all others."""

PAIRS = 1 << 19
"""Numbers of pairs that are compared exactly at once: bounds memory."""


def nearest_first(
    compared: VectorSimilarity, ids: Tensor, value_QW: Tensor, index_QW: Tensor, k: int
) -> Tensor:
    """Return the k nearest (Q, k) of the candidates, -1 where there are fewer.

    Candidates whose gaps overlap are compared exactly, then by index; all others are in order
    already.

    Args:
        compared: the similarity.
        ids: indices (Q,) of the queries.
        value_QW: products, -inf where there is no candidate.
        index_QW: indices of the references, NONE where there is no candidate.
        k: how many candidates are wanted.
    """
    lower_QW, order_QW = (value_QW - gaps(compared, ids, index_QW, value_QW.dtype)).sort(
        dim=1, descending=True
    )
    value_QW, index_QW = value_QW.gather(1, order_QW), index_QW.gather(1, order_QW)
    highest_after_QW = value_QW.flip(1).cummax(1).values.flip(1)[:, 1:]
    # whether a candidate is apart from the one before it, and from the one after it
    apart_QW = F.pad(highest_after_QW < lower_QW[:, :-1], (1, 1), value=True)
    run_QW = apart_QW[:, :-1].cumsum(1, dtype=torch.int32)
    unsure_QW = ~(apart_QW[:, :-1] & apart_QW[:, 1:]) & (index_QW != NONE)
    unsure_QW &= run_QW <= run_QW[:, k - 1, None]  # after the k-th it does not matter
    touched = unsure_QW.any(1).nonzero()[:, 0]
    if len(touched):
        width = int(unsure_QW.any(0).nonzero().max()) + 1
        index_QW[touched, :width] = _resolve(
            compared,
            ids[touched],
            value_QW[touched, :width],
            index_QW[touched, :width],
            run_QW[touched, :width],
            unsure_QW[touched, :width],
        )
    best = index_QW[:, :k]
    return best.masked_fill(best == NONE, -1)


def gaps(compared: VectorSimilarity, ids: Tensor, index_QW: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gaps of the candidates; any number where there is no candidate."""
    return compared.gap(
        ids[:, None], index_QW.clamp(max=len(compared.references) - 1).long(), dtype
    )


def exact_scores(compared: VectorSimilarity, query_P: Tensor, reference_P: Tensor) -> Tensor:
    """Return exact scores (P,) of any number of pairs, computed some at a time."""
    exact_P = torch.empty(len(query_P), dtype=torch.float64, device=query_P.device)
    for part in slices(len(query_P), max(1, PAIRS // compared.references.dim)):
        exact_P[part] = compared.exact(query_P[part], reference_P[part])
    return exact_P


def _resolve(
    compared: VectorSimilarity,
    ids: Tensor,
    value_QW: Tensor,
    index_QW: Tensor,
    run_QW: Tensor,
    unsure_QW: Tensor,
) -> Tensor:
    """Return indices sorted by run, then by falling exact score, then by index.

    Only unsure candidates need their exact score.
    """
    exact_QW = value_QW.double()
    rounded_QW = unsure_QW & (gaps(compared, ids, index_QW, value_QW.dtype) > 0)
    exact_QW[rounded_QW] = exact_scores(
        compared, ids[rounded_QW.nonzero()[:, 0]], index_QW[rounded_QW]
    )
    order_QW = index_QW.argsort(dim=1)
    order_QW = order_QW.gather(
        1, exact_QW.gather(1, order_QW).argsort(dim=1, descending=True, stable=True)
    )
    order_QW = order_QW.gather(1, run_QW.gather(1, order_QW).argsort(dim=1, stable=True))
    return index_QW.gather(1, order_QW)
