"""Sums and means over masks, without overflow.

Over an empty mask they are 0, but still attached to the graph.
Shapes: N batch, M references, P positive pairs, B histogram nodes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.pairs.masks import Pairs, Triplets


def log_sum_exp(x_NM: Tensor, mask_NM: Tensor, dim: int = 1) -> Tensor:
    """Return the logarithm of the sum of e^x over the mask, along a dimension.

    Over an empty mask it is -inf, without gradient.
    """
    return torch.where(mask_NM, x_NM, -torch.inf).logsumexp(dim)


def log1p_exp(x: Tensor) -> Tensor:
    """Return log(1 + e^x), exact at both ends."""
    return F.softplus(x, threshold=50)


def log1p_sum_exp(x_NM: Tensor, mask_NM: Tensor, dim: int = 1) -> Tensor:
    """Return log(1 + sum of e^x over the mask), along a dimension; 0 over an empty mask."""
    return log1p_exp(log_sum_exp(x_NM, mask_NM, dim))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the mask, 0 over an empty one, whatever `x` holds outside."""
    return torch.where(mask, x, 0).sum() / mask.count_nonzero().clamp(min=1)


def triplet_hinges(d_NM: Tensor, triplets: Triplets, margin: float) -> tuple[Tensor, Tensor]:
    """Return the sum of [d_ap - d_an + m]+ over the triplets, and how many are above 0.

    A hinge is linear where it is above 0. Counting such triplets for each pair therefore gives the
    sum and its gradient as a weighted sum of distances, and nothing of size (P, M) is kept for the
    backward pass.
    """
    anchor_P, positive_P = triplets.anchor, triplets.positive
    with torch.no_grad():
        d_PM = d_NM.index_select(0, anchor_P)
        reach_P1 = d_PM.gather(1, positive_P[:, None]) + margin
        active_PM = ((d_PM < reach_P1) & triplets.negative).to(d_NM.dtype)
        active_P1 = active_PM.sum(1, keepdim=True)
        active = active_P1.sum()
        pulls_PM = active_PM.neg_().scatter_add_(1, positive_P[:, None], active_P1)
        weights_NM = torch.zeros_like(d_NM).index_add_(0, anchor_P, pulls_PM)
    return (weights_NM * d_NM).sum() + margin * active, active


def soft_histograms(
    x_NM: Tensor, pairs: Pairs, low: float, high: float, bins: int
) -> tuple[Tensor, Tensor]:
    """Return soft counts of positive and negative pairs of each row on a grid (N, B).

    The grid has `bins` + 1 nodes from `low` to `high`. A value between two nodes counts for both,
    in proportion to its nearness (a triangular kernel one step wide), so that counts are
    differentiable.
    """
    place_NM = ((x_NM - low) * (bins / (high - low))).clamp(0, bins)
    below_NM = place_NM.detach().floor().clamp(max=bins - 1)
    counted_NM = (pairs.positive | pairs.negative).to(x_NM.dtype)
    upper_NM = (place_NM - below_NM) * counted_NM
    # negatives have a grid of their own, beside that of the positives
    node_NM = below_NM.nan_to_num().long() + pairs.negative * (bins + 1)
    counts_NB = x_NM.new_zeros(len(x_NM), 2 * (bins + 1)).scatter_add(
        1, node_NM, counted_NM - upper_NM
    )
    counts_NB = counts_NB.scatter_add(1, node_NM + 1, upper_NM)
    return counts_NB[:, : bins + 1], counts_NB[:, bins + 1 :]
