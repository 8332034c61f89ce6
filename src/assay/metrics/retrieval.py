"""Retrieval metrics per query. Shapes: Q queries, K ranks.

`relevant` says which of the K nearest references are of the query's class, nearest first. `total`
(R) is the number of references of its class, without the query itself. Where R = 0 a score is NaN,
never silently 0.
"""

import torch
from torch import Tensor

from assay.metrics.metric import metric


@metric("precision_at_1", ranks=1)
def precision_at_1(relevant: Tensor, total: Tensor) -> Tensor:
    """1 where the nearest reference is of the query's class.

    >>> precision_at_1(torch.tensor([[True, False], [False, True]]), torch.tensor([2, 2]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return _nan_where_none(relevant[:, 0].double(), total)


@metric("recall_at_k")
def recall_at_k(relevant: Tensor, total: Tensor, k: int) -> Tensor:
    """1 where any of the k nearest references is of the query's class (Jegou et al. 2011; so used
    since Song et al. 2016).

    >>> recall_at_k(torch.tensor([[False, True], [False, False]]), torch.tensor([2, 2]), 2)
    tensor([1., 0.], dtype=torch.float64)
    """
    return _nan_where_none(_first_k(relevant, k).any(1).double(), total)


@metric("r_precision")
def r_precision(relevant: Tensor, total: Tensor) -> Tensor:
    """Share of the query's class among its R nearest (Musgrave et al. 2020,
    arxiv.org/abs/2003.08505).

    >>> r_precision(torch.tensor([[True, False, True]]), torch.tensor([3])).round(decimals=4)
    tensor([0.6667], dtype=torch.float64)
    """
    return _nan_where_none(_first_r(relevant, total).sum(1).double() / total, total)


@metric("map_at_r")
def map_at_r(relevant: Tensor, total: Tensor) -> Tensor:
    """Mean average precision at R (Musgrave et al. 2020, arxiv.org/abs/2003.08505).

    MAP@R = 1/R sum_{i=1..R} precision(i) rel(i). Needs K >= max R.

    >>> map_at_r(torch.tensor([[True, False, True]]), torch.tensor([3])).round(decimals=4)
    tensor([0.5556], dtype=torch.float64)
    """
    return _nan_where_none(_sum_of_precisions(_first_r(relevant, total)) / total, total)


@metric("map_at_k")
def map_at_k(relevant: Tensor, total: Tensor, k: int) -> Tensor:
    """Mean average precision at k (Weyand et al. 2020, Google Landmarks v2,
    arxiv.org/abs/2004.01804).

    mAP@k = 1/min(R, k) sum_{i=1..k} precision(i) rel(i): a perfect ranking scores 1 whether R is
    above or below k.

    >>> map_at_k(torch.tensor([[True, True, False]]), torch.tensor([50]), 2)
    tensor([1.], dtype=torch.float64)
    """
    return _nan_where_none(_sum_of_precisions(_first_k(relevant, k)) / total.clamp(max=k), total)


@metric("mrr", "first hit")
def mrr(first: Tensor) -> Tensor:
    """Mean reciprocal rank: 1 over the rank of the first reference of the query's class.

    >>> mrr(torch.tensor([1, 4]))
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    return 1 / first.double()


def _sum_of_precisions(hits_QK: Tensor) -> Tensor:
    """Return sum_i precision(i) rel(i), added rank by rank.

    So its last digit does not depend on how many ranks follow.
    """
    ranks_K = torch.arange(1, hits_QK.shape[1] + 1, device=hits_QK.device)
    return (hits_QK.cumsum(1).double() / ranks_K * hits_QK).cumsum(1)[:, -1]


def _first_r(relevant: Tensor, total: Tensor) -> Tensor:
    """Return the hits among each query's first R ranks."""
    most = int(total.max()) if len(total) else 0
    if relevant.shape[1] < most:
        raise ValueError(
            f"a query has {most} relevant references, but only {relevant.shape[1]} neighbours were"
            " given"
        )
    return relevant & (torch.arange(relevant.shape[1], device=relevant.device) < total[:, None])


def _first_k(relevant: Tensor, k: int) -> Tensor:
    """Return the hits among the first k ranks."""
    if relevant.shape[1] < k:
        raise ValueError(f"k is {k}, but only {relevant.shape[1]} neighbours were given")
    return relevant[:, :k]


def _nan_where_none(scores: Tensor, total: Tensor) -> Tensor:
    return scores.masked_fill(total == 0, torch.nan)
