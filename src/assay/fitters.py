"""Heads in closed form: a linear layer that is computed from features instead of trained by steps.

Shapes: N samples, F features, W directions.
"""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from assay.space import Value

SQUARE = 4096
"""Up to this many features the matrix of their covariances is small, also where samples are few."""


Fitter = Callable[..., nn.Linear]
"""A function `(features_NF, y_N, width, **parameters)` that fits a linear layer to features and
their labels, with at most `width` outputs.

The parameters of the method come by name and have defaults. Equal arguments give equal layers.
"""


def parameters_of(fitter: Fitter) -> dict[str, Value]:
    """Return the parameters of a fitter with their defaults.

    >>> parameters_of(pca)
    {}
    """
    of_all = list(inspect.signature(fitter).parameters.values())
    return {parameter.name: parameter.default for parameter in of_all[3:]}


def linear(weight_WF: Tensor, centre_F: Tensor) -> nn.Linear:
    """Return the layer x -> W (x - centre), in single precision."""
    layer = nn.Linear(weight_WF.shape[1], weight_WF.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight_WF)
        layer.bias.copy_(-(weight_WF @ centre_F))
    return layer


def pca(features_NF: Tensor, y_N: Tensor, width: int) -> nn.Linear:
    """Project onto the directions of largest variance; labels play no part.

    Features are centred first. Signs are fixed (the largest entry of a direction is positive), so
    that the same features give the same layer. Memory and time are those of the smaller of N and F:
    features that are many and more than the samples are not multiplied with one another. There are
    at most N - 1 directions.
    """
    width = min(width, features_NF.shape[1], len(features_NF) - 1)
    exact_NF = features_NF.double()
    mean_F = exact_NF.mean(0)
    if len(mean_F) <= max(len(exact_NF), SQUARE):
        directions_FF = torch.linalg.eigh(
            torch.cov(exact_NF.T, correction=0).reshape(len(mean_F), -1)
        ).eigenvectors
        chosen_WF = directions_FF.flip(1)[:, :width].T
    else:
        exact_NF -= mean_F
        weights_NN = torch.linalg.eigh(exact_NF @ exact_NF.T).eigenvectors
        chosen_FW = exact_NF.T @ weights_NN.flip(1)[:, :width]
        chosen_WF = torch.linalg.qr(chosen_FW).Q.T  # of length 1, also where there is no variance
    largest_W1 = chosen_WF.gather(1, chosen_WF.abs().argmax(1, keepdim=True))
    return linear(chosen_WF * largest_W1.sign(), mean_F)
