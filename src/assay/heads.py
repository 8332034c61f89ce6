"""The head of a model: the linear layer from features to an embedding, of one part or several.

Shapes: N batch, D width of an embedding, K parts.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class HeadShape:
    """The shape of a head, as the loss that it is trained by wants it.

    Args:
        parts: widths of its parts, which stand side by side in an embedding; a usual head has one.
        weights: weights of the parts in the similarity of two embeddings; empty: all are equal.
        layer_norm: whether features are standardised before the head, without weights.
        bias: whether the layer has a bias.
        dropout: share of the outputs that are set to 0 in training.
    """

    parts: tuple[int, ...]
    weights: tuple[float, ...] = ()
    layer_norm: bool = False
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.parts or min(self.parts) < 1:
            raise ValueError(f"the parts of a head have at least one number each, got {self.parts}")
        positive = all(0 < weight < math.inf for weight in self.weights)
        if self.weights and (len(self.weights) != len(self.parts) or not positive):
            raise ValueError(
                f"a head of {len(self.parts)} parts has as many weights above 0, got {self.weights}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is at least 0 and below 1, got {self.dropout}")

    @property
    def dim(self) -> int:
        """Width of an embedding."""
        return sum(self.parts)


def joined(z_ND: Tensor, parts: tuple[int, ...], weights: tuple[float, ...]) -> Tensor:
    """Return embeddings whose inner product is the weighted mean of the cosines of their parts.

    z_k <- sqrt(w_k / sum w) z_k / |z_k|,  so that  z . z' = sum_k w_k cos(z_k, z'_k) / sum w

    >>> joined(torch.tensor([[3.0, 4.0, 5.0]]), (2, 1), (1.0, 3.0))
    tensor([[0.3000, 0.4000, 0.8660]])
    """
    shares = weights or (1.0,) * len(parts)
    total = sum(shares)
    scaled = [
        F.normalize(part, dim=1) * math.sqrt(share / total)
        for part, share in zip(torch.split(z_ND, list(parts), dim=1), shares, strict=True)
    ]
    return torch.cat(scaled, dim=1)
