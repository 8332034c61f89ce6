"""From samples to unit vectors, and the PCA that reduces the features of an untrained trunk. Shapes: N samples, F features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.augment import to_tensor
from assay.data.dataset import Pixels, Vectors

BATCH = 256


def embed(network: nn.Module, x: Pixels | Vectors, device: torch.device) -> Tensor:
    """Unit vectors (N, dim) of the samples, on the CPU; the network is left in evaluation mode."""
    return F.normalize(outputs(network, x, device), dim=1)


@torch.no_grad()
def outputs(network: nn.Module, x: Pixels | Vectors, device: torch.device) -> Tensor:
    """What the network says to the samples, in batches, on the CPU."""
    network.eval()
    parts = [network(to_tensor(x[start : start + BATCH]).to(device)).cpu() for start in range(0, len(x), BATCH)]
    return torch.cat(parts)


def fit_pca(features_NF: Tensor, width: int) -> nn.Linear:
    """A linear layer that centres and projects onto the `width` directions of largest variance.

    Signs are fixed (the largest entry of a direction is positive), so that the same features give the same layer.
    """
    exact_NF = features_NF.double()
    mean_F = exact_NF.mean(0)
    directions_FF = torch.linalg.eigh(torch.cov(exact_NF.T, correction=0).reshape(len(mean_F), -1)).eigenvectors
    chosen_WF = directions_FF.flip(1)[:, :width].T
    largest_W1 = chosen_WF.gather(1, chosen_WF.abs().argmax(1, keepdim=True))
    chosen_WF = chosen_WF * largest_W1.sign()
    layer = nn.Linear(len(mean_F), len(chosen_WF))
    with torch.no_grad():
        layer.weight.copy_(chosen_WF)
        layer.bias.copy_(-(chosen_WF @ mean_F))
    return layer
