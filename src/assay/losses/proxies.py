"""Shared by losses with a weight per class, a proxy. Shapes: N batch, C classes, D dims."""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.pairs import unit

PROXY_START = "weights start from N(0, 1/D) as for every method with weights"
"""Departure from the paper of every method with weights."""

NO_LABEL = -1 << 62
"""A label that no sample has; samples with torch's default, -100, would be silently ignored."""


def cosines(z_ND: Tensor, y_N: Tensor, weights_CD: Tensor) -> Tensor:
    """Return cosines (N, C) of unit vectors with the weights, which are normalised here.

    Each label must have a weight.
    """
    check_fit(z_ND, y_N, weights_CD)
    return z_ND @ unit(weights_CD.to(z_ND.dtype)).T


def is_own_class(y_N: Tensor, classes: int) -> Tensor:
    """Return a mask (N, C) of each sample's own class."""
    return torch.zeros(len(y_N), classes, dtype=torch.bool, device=y_N.device).scatter(
        1, y_N.long()[:, None], True
    )


def cross_entropy(logits_NC: Tensor, y_N: Tensor) -> Tensor:
    """Return the mean over the batch of -log softmax at the label."""
    return (
        F.cross_entropy(logits_NC, y_N.long(), ignore_index=NO_LABEL)
        if len(y_N)
        else logits_NC.sum()
    )


def of_own_class(s_NC: Tensor, y_N: Tensor) -> Tensor:
    """Return each sample's similarity to its own class (N, 1)."""
    return s_NC.gather(1, y_N.long()[:, None])


def with_own_class(s_NC: Tensor, y_N: Tensor, own_N1: Tensor) -> Tensor:
    """Return the similarities with that to each sample's own class replaced."""
    return s_NC.scatter(1, y_N.long()[:, None], own_N1)


def check_fit(z_ND: Tensor, y_N: Tensor, weights: Tensor) -> None:
    """Raise a `ValueError` for embeddings and labels that do not fit the weights (C, ..., D)."""
    check_labels(y_N, len(weights))
    check_width(z_ND, weights.shape[-1])


def check_width(z_ND: Tensor, dim: int) -> None:
    """Raise a `ValueError` for embeddings of another width than the loss was set up for."""
    if z_ND.shape[1] != dim:
        raise ValueError(f"setup got dim={dim}, but embeddings have {z_ND.shape[1]} dimensions")


def check_labels(y_N: Tensor, classes: int) -> None:
    """Raise a `ValueError` for labels without a weight.

    On other devices than the CPU torch raises its own error: reading labels would wait for them.
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
            f"label {worst} has no weight: setup got classes={classes}, so labels are 0 to"
            f" {classes - 1}"
        )
