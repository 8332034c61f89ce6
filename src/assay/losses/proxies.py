"""What losses share that compare with one weight per class, a proxy. Shapes: N batch, C classes, D
dims.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.pairs import unit

START = "weights start from N(0, 1/D) as for every method with weights"
"""Where the weights of every method with weights depart from its paper."""

NO_LABEL = -1 << 62
"""Nobody's label: torch's own choice, -100, would be left out without a word instead of being
refused.
"""


def cosines(z_ND: Tensor, y_N: Tensor, weights_CD: Tensor) -> Tensor:
    """Similarities (N, C) of unit vectors to the weights, which are normalised here; each label
    must have one.
    """
    check_fit(z_ND, y_N, weights_CD)
    return z_ND @ unit(weights_CD.to(z_ND.dtype)).T


def is_own_class(y_N: Tensor, classes: int) -> Tensor:
    """Mask (N, C): which class is each sample's."""
    return torch.zeros(len(y_N), classes, dtype=torch.bool, device=y_N.device).scatter(
        1, y_N.long()[:, None], True
    )


def cross_entropy(logits_NC: Tensor, y_N: Tensor) -> Tensor:
    """Mean over the batch of -log softmax at the label."""
    return (
        F.cross_entropy(logits_NC, y_N.long(), ignore_index=NO_LABEL)
        if len(y_N)
        else logits_NC.sum()
    )


def of_own_class(s_NC: Tensor, y_N: Tensor) -> Tensor:
    """Each sample's similarity to its own class (N, 1)."""
    return s_NC.gather(1, y_N.long()[:, None])


def with_own_class(s_NC: Tensor, y_N: Tensor, own_N1: Tensor) -> Tensor:
    """The similarities with that of each sample's own class replaced."""
    return s_NC.scatter(1, y_N.long()[:, None], own_N1)


def check_fit(z_ND: Tensor, y_N: Tensor, weights: Tensor) -> None:
    """Refuse embeddings and labels that the weights (C, ..., D) were not made for."""
    check_labels(y_N, len(weights))
    if z_ND.shape[1] != weights.shape[-1]:
        raise ValueError(
            f"setup was told embeddings of {weights.shape[-1]} dimensions, got {z_ND.shape[1]}"
        )


def check_labels(y_N: Tensor, classes: int) -> None:
    """Refuse labels that have no weight; on other devices than the CPU that is left to torch, so as
    not to wait for them.
    """
    if classes == 0:
        raise ValueError("there is no weight for any class yet: call setup(dim, classes) first")
    if y_N.device.type != "cpu" or torch.compiler.is_compiling() or len(y_N) == 0:
        return
    try:
        labels = y_N.tolist()
    except RuntimeError:  # stacked by `torch.vmap`
        return
    worst = min(labels) if min(labels) < 0 else max(labels)
    if not 0 <= worst < classes:
        raise ValueError(
            f"label {worst} has no weight: setup was told {classes} classes, so labels are 0 to"
            f" {classes - 1}"
        )
