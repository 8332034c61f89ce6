"""Retrieval metrics per query. Shapes: Q queries, K ranks.

`relevant` says which of the K nearest references are of the query's class, nearest first; `total` (R) is how many such
references there are, the query itself not among them. Where R = 0 a score is NaN, never silently 0.
"""

import torch
from torch import Tensor

from assay.metrics.metric import metrics


@metrics("precision_at_1")
def precision_at_1(relevant: Tensor, total: Tensor) -> Tensor:
    """1 where the nearest reference is of the query's class.

    >>> precision_at_1(torch.tensor([[True, False], [False, True]]), torch.tensor([2, 2]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return _nan_where_none(relevant[:, 0].double(), total)


@metrics("r_precision")
def r_precision(relevant: Tensor, total: Tensor) -> Tensor:
    """Share of the query's class among its R nearest (Musgrave et al. 2020, arxiv.org/abs/2003.08505).

    >>> r_precision(torch.tensor([[True, False, True]]), torch.tensor([3])).round(decimals=4)
    tensor([0.6667], dtype=torch.float64)
    """
    return _nan_where_none(_first_r(relevant, total).sum(1).double() / total, total)


@metrics("map_at_r")
def map_at_r(relevant: Tensor, total: Tensor) -> Tensor:
    """Mean average precision at R (Musgrave et al. 2020, arxiv.org/abs/2003.08505).

    MAP@R = 1/R sum_{i=1..R} precision(i) rel(i). Needs K >= max R.

    >>> map_at_r(torch.tensor([[True, False, True]]), torch.tensor([3])).round(decimals=4)
    tensor([0.5556], dtype=torch.float64)
    """
    hits_QK = _first_r(relevant, total)
    ranks_K = torch.arange(1, hits_QK.shape[1] + 1, device=hits_QK.device)
    precision_QK = hits_QK.cumsum(1).double() / ranks_K
    return _nan_where_none((precision_QK * hits_QK).sum(1) / total, total)


def _first_r(relevant: Tensor, total: Tensor) -> Tensor:
    """The hits among each query's first R ranks."""
    most = int(total.max()) if len(total) else 0
    if relevant.shape[1] < most:
        raise ValueError(f"a query has {most} relevant references, but only {relevant.shape[1]} neighbours were given")
    return relevant & (torch.arange(relevant.shape[1], device=relevant.device) < total[:, None])


def _nan_where_none(scores: Tensor, total: Tensor) -> Tensor:
    return scores.masked_fill(total == 0, torch.nan)
