"""Which samples a loss compares, and the distances between them. Shapes: N batch, M references, P positive pairs, D dims.

Nothing here enumerates triplets: they are positive pairs (P) times the negatives that go with each (P, M).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class References:
    """What a batch is compared with: itself, or a memory of past batches.

    Args:
        z: embeddings (M, D).
        y: labels (M,).
        own: each sample's own column among the references (N,), which is never its positive; None where it has none.
    """

    z: Tensor
    y: Tensor
    own: Tensor | None

    @classmethod
    def of_batch(cls, z: Tensor, y: Tensor) -> "References":
        """The batch itself."""
        return cls(z, y, torch.arange(len(y), device=y.device))


@dataclass(frozen=True)
class Pairs:
    """Pairs (sample, reference) to pull together and to push apart, as masks (N, M)."""

    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Triplets:
    """Positive pairs, and for each the references to push away.

    Args:
        anchor: row of each pair's sample (P,).
        positive: column of each pair's reference (P,).
        negative: mask (P, M) of the negatives compared with the pair.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def all_pairs(y: Tensor, references: References) -> Pairs:
    """Every pair: positive where labels agree (not with oneself), negative where they differ."""
    same_NM = y[:, None] == references.y
    positive_NM = same_NM
    if references.own is not None:
        positive_NM = same_NM.scatter(1, references.own[:, None], False)
    return Pairs(positive_NM, ~same_NM)


def all_triplets(y: Tensor, references: References) -> Triplets:
    """Every positive pair with every negative of its anchor."""
    pairs = all_pairs(y, references)
    anchor_P, positive_P = pairs.positive.nonzero(as_tuple=True)
    return Triplets(anchor_P, positive_P, pairs.negative[anchor_P])


def distances(z_ND: Tensor, references_MD: Tensor) -> Tensor:
    """Euclidean distances (N, M) whose value and gradient are 0, not rounding noise or NaN, where two vectors coincide.

    d^2 = |a|^2 + |b|^2 - 2ab is one matrix product instead of N x M x D differences, but its rounding error is a few units
    in the last place of |a|^2 + |b|^2: what is not above that cannot be told from 0 and is 0.
    """
    if z_ND.dtype in (torch.float16, torch.bfloat16):  # half precision would lose every distance below 0.2
        z_ND, references_MD = z_ND.float(), references_MD.float()
    norms_NM = z_ND.square().sum(1)[:, None] + references_MD.square().sum(1)
    squared_NM = norms_NM - 2 * z_ND @ references_MD.T
    noise_NM = 8 * torch.finfo(squared_NM.dtype).eps * norms_NM.detach()
    return safe_sqrt(torch.where(squared_NM > noise_NM, squared_NM, 0))


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root with value and gradient 0 at and below 0."""
    above = x > 0
    return torch.where(above, x, 1).sqrt() * above


def log1p_sum_exp(x_NM: Tensor, mask_NM: Tensor) -> Tensor:
    """log(1 + sum over the mask of e^x), per row, without overflow; an empty row gives 0 and no gradient."""
    masked_NM = x_NM.masked_fill(~mask_NM, -torch.inf)
    return torch.cat([masked_NM, masked_NM.new_zeros(len(masked_NM), 1)], dim=1).logsumexp(1)


def mean_of_active(terms: Tensor) -> Tensor:
    """Mean over the terms above 0; 0, still attached to the graph, where there is none."""
    return terms.sum() / (terms > 0).sum().clamp(min=1)
