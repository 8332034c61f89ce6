"""Shared maths of losses and miners: which samples are compared, how far apart they are, sums over
masks. Shapes: N batch, M references, P positive pairs, D dims, B histogram nodes.

Triplets are not enumerated: they are positive pairs (P) with a mask of negatives for each (P, M).

Lengths, distances and angles have finite gradients everywhere. The functions that losses begin with
have their gradient in closed form: the numbers of automatic differentiation in fewer operations,
and 0 where there is no gradient. Second derivatives are refused.

Sums and means over masks do not overflow. Over an empty mask they are 0, but still attached to the
graph.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = [
    "Mined",
    "Pairs",
    "References",
    "Triplets",
    "all_pairs",
    "as_compared",
    "as_pairs",
    "as_triplets",
    "check_batch",
    "check_mined",
    "distances",
    "log1p_exp",
    "log1p_sum_exp",
    "log_sum_exp",
    "masked_mean",
    "pair_counts",
    "similarities",
    "sine",
    "soft_histograms",
    "squared_distances",
    "triplet_hinges",
    "unit",
    "without_autocast",
]


# --- Which samples are compared ---


@dataclass(frozen=True)
class References:
    """The samples that a batch is compared with: the batch itself, or a memory of past batches.

    Args:
        z: embeddings (M, D).
        y: labels (M,).
        own: each sample's own column among the references (N,), which is never its positive; None
            if the references do not hold the batch.
    """

    z: Tensor
    y: Tensor
    own: Tensor | None

    @classmethod
    def of_batch(cls, z: Tensor, y: Tensor) -> "References":
        """Return the batch itself as references."""
        return cls(z, y, torch.arange(len(y), device=y.device))


@dataclass(frozen=True)
class Pairs:
    """Pairs (sample, reference) to pull together and to push apart, as masks (N, M)."""

    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Triplets:
    """Positive pairs, and for each the references to push away.

    No pair stands in two rows. A row without a negative (`~negative.any(1)`) is no triplet and has
    no effect; its positive may be any column.

    Args:
        anchor: row of each pair's sample (P,).
        positive: column of each pair's reference (P,).
        negative: mask (P, M) of the negatives compared with the pair.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor


Mined = Pairs | Triplets


def check_batch(z: Tensor, y: Tensor) -> None:
    """Raise a `ValueError` unless these are embeddings (N, D) with integer labels (N,)."""
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise ValueError(
            f"z is of shape (N, D) and y of shape (N,), got {tuple(z.shape)} and {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels are integers, got {y.dtype}; use y.long()")


def check_mined(mined: Mined, count: int, references: int) -> None:
    """Raise a `ValueError` unless this was mined from this batch and these references."""
    if not isinstance(mined, Pairs | Triplets):
        raise ValueError(f"what a miner chooses is Pairs or Triplets, got {type(mined).__name__}")
    rows = count if isinstance(mined, Pairs) else len(mined.anchor)
    if mined.negative.shape != (rows, references):
        raise ValueError(
            f"mined from other samples: masks of shape {tuple(mined.negative.shape)} instead of"
            f" ({rows}, {references})"
        )


def all_pairs(y: Tensor, references: References) -> Pairs:
    """Return every pair: positive where labels agree, negative where they differ.

    A sample is not its own positive.
    """
    same_NM = y[:, None] == references.y
    positive_NM = same_NM
    if references.own is not None:
        positive_NM = same_NM.scatter(1, references.own[:, None], False)
    return Pairs(positive_NM, ~same_NM)


def as_pairs(mined: Mined, count: int) -> Pairs:
    """Return the pairs, each once, among the pairs or triplets mined for `count` samples."""
    if isinstance(mined, Pairs):
        return mined
    positive_NM, negative_NM = pair_counts(mined, count)
    return Pairs(positive_NM > 0, negative_NM > 0)


def as_triplets(mined: Mined) -> Triplets:
    """Return triplets; pairs become each positive pair with every negative of its anchor."""
    if isinstance(mined, Triplets):
        return mined
    anchor_P, positive_P = mined.positive.nonzero(as_tuple=True)
    return Triplets(anchor_P, positive_P, mined.negative[anchor_P])


def pair_counts(mined: Mined, count: int) -> tuple[Tensor, Tensor]:
    """Return in how many triplets each pair is the positive and the negative pair: two (N, M)."""
    if isinstance(mined, Pairs):
        positives_N1 = mined.positive.sum(1, keepdim=True)
        negatives_N1 = mined.negative.sum(1, keepdim=True)
        return mined.positive * negatives_N1, mined.negative * positives_N1
    nothing_NM = mined.anchor.new_zeros(count, mined.negative.shape[1])
    negatives_P = mined.negative.sum(1)
    return (
        nothing_NM.index_put((mined.anchor, mined.positive), negatives_P, accumulate=True),
        nothing_NM.index_add(0, mined.anchor, mined.negative.to(nothing_NM.dtype)),
    )


# --- Distances and angles ---


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Compute products inside in the precision of the factors.

    bfloat16 cannot distinguish distances below 0.1.
    """
    return (
        torch.autocast(device.type, enabled=False)
        if torch.is_autocast_enabled(device.type)
        else nullcontext()
    )


def as_compared(z_ND: Tensor, normalise: bool) -> Tensor:
    """Return embeddings in at least single precision, as unit vectors if `normalise`."""
    z_ND = z_ND.float() if z_ND.dtype in (torch.float16, torch.bfloat16) else z_ND
    return unit(z_ND) if normalise else z_ND


def unit(z_ND: Tensor) -> Tensor:
    """Return rows divided by their length.

    u = z / |z|,  du = (dz - u (u . dz)) / |z|
    A row whose length is 0 or infinite in its precision becomes zeros, without gradient.
    """
    return _Unit.apply(z_ND)[0]  # type: ignore[no-untyped-call, no-any-return]


def similarities(z_ND: Tensor, references_MD: Tensor) -> Tensor:
    """Return inner products (N, M), the cosines of unit vectors."""
    if references_MD is z_ND:
        return _OwnSimilarities.apply(z_ND)[0]  # type: ignore[no-untyped-call, no-any-return]
    return z_ND @ references_MD.T


def distances(z_ND: Tensor, references_MD: Tensor) -> Tensor:
    """Return Euclidean distances (N, M); value and gradient are 0 where two vectors coincide.

    d = sqrt(|a|^2 + |b|^2 - 2ab),  dd = (a - b) / d . (da - db)
    This is one matrix product instead of N x M x D differences. Its rounding error is a few units
    in the last place of |a|^2 + |b|^2: a square that is not above this error becomes 0.
    """
    if references_MD is z_ND:
        return _OwnDistances.apply(z_ND)[0]  # type: ignore[no-untyped-call, no-any-return]
    return _Distances.apply(z_ND, references_MD)[0]  # type: ignore[no-untyped-call, no-any-return]


def squared_distances(z_ND: Tensor, references_MD: Tensor) -> Tensor:
    """Return squares of `distances` (N, M), 0 where two vectors differ by rounding only."""
    norms_NM = z_ND.square().sum(1)[:, None] + references_MD.square().sum(1)
    squared_NM = torch.addmm(norms_NM, z_ND, references_MD.T, alpha=-2)
    return torch.where(squared_NM < _noise(norms_NM.detach()), 0, squared_NM)


def sine(cosine: Tensor) -> Tensor:
    """Return the sine of an angle from 0 to 180 degrees from its cosine, without an arc cosine.

    At both ends the gradient is 0.
    """
    return _Sine.apply(cosine)[0]  # type: ignore[no-untyped-call, no-any-return]


class _ClosedForm(torch.autograd.Function):
    """A function with its own gradient; outputs after the first are for the backward pass only.

    `forward` and `setup_context` are separate, so that `torch.vmap` can stack the function.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(*output[1:])


class _Unit(_ClosedForm):
    @staticmethod
    def forward(z_ND: Tensor) -> tuple[Tensor, Tensor]:
        length_N1: Tensor = torch.linalg.vector_norm(z_ND, dim=1, keepdim=True)
        length_N1.masked_fill_(length_N1 <= torch.finfo(z_ND.dtype).tiny, torch.inf)
        return z_ND / length_N1, length_N1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient_ND = gradients[0]
        _, unit_ND, length_N1 = ctx.saved_tensors
        along_N1 = (unit_ND * gradient_ND).sum(1, keepdim=True)
        across_ND: Tensor = torch.addcmul(gradient_ND, unit_ND, along_N1, value=-1).div_(length_N1)
        return across_ND


class _OwnSimilarities(_ClosedForm):
    """The inner products among one set of vectors: half of the backward pass."""

    @staticmethod
    def forward(z_ND: Tensor) -> tuple[Tensor]:
        return (z_ND @ z_ND.T,)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient_NN,) = gradients
        z_ND, _ = ctx.saved_tensors
        along_ND: Tensor = (gradient_NN + gradient_NN.T) @ z_ND
        return along_ND


class _Distances(_ClosedForm):
    @staticmethod
    def forward(z_ND: Tensor, references_MD: Tensor) -> tuple[Tensor, Tensor]:
        norms_NM = z_ND.square().sum(1)[:, None] + references_MD.square().sum(1)
        return _lengths(norms_NM, z_ND, references_MD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        z_ND, references_MD, _, inverse_NM = ctx.saved_tensors
        share_NM = gradients[0] * inverse_NM
        return (
            torch.addmm(share_NM.sum(1)[:, None] * z_ND, share_NM, references_MD, alpha=-1),
            torch.addmm(share_NM.sum(0)[:, None] * references_MD, share_NM.T, z_ND, alpha=-1),
        )


class _OwnDistances(_ClosedForm):
    """The distances among one set of vectors: half of the backward pass."""

    @staticmethod
    def forward(z_ND: Tensor) -> tuple[Tensor, Tensor]:
        norms_N = z_ND.square().sum(1)
        return _lengths(norms_N[:, None] + norms_N, z_ND, z_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient_NN = gradients[0]
        z_ND, _, inverse_NN = ctx.saved_tensors
        share_NN = (gradient_NN + gradient_NN.T) * inverse_NN
        return torch.addmm(share_NN.sum(1)[:, None] * z_ND, share_NN, z_ND, alpha=-1)


class _Sine(_ClosedForm):
    @staticmethod
    def forward(cosine: Tensor) -> tuple[Tensor]:
        return (((1 - cosine) * (1 + cosine)).clamp(min=0).sqrt_(),)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        cosine, sine = ctx.saved_tensors
        return torch.where(sine > 0, -gradient * cosine / sine, 0)


def _lengths(norms_NM: Tensor, z_ND: Tensor, references_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances and their inverses, both 0 where two vectors differ by rounding only."""
    squared_NM = torch.addmm(norms_NM, z_ND, references_MD.T, alpha=-2)
    inverse_NM = torch.where(squared_NM > _noise(norms_NM), squared_NM.rsqrt(), 0)
    return squared_NM.mul_(inverse_NM), inverse_NM


def _noise(norms_NM: Tensor) -> Tensor:
    return (8 * torch.finfo(norms_NM.dtype).eps) * norms_NM


# --- Sums over masks ---


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
