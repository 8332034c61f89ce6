"""Lengths, distances and angles with finite gradients everywhere.

Shapes: N batch, M references, D dims.

The functions that losses begin with have their gradient in closed form: the numbers of automatic
differentiation in fewer operations, and 0 where there is no gradient. Second derivatives are
refused.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
