"""From a convolutional trunk's maps to features. Shapes: N batch, C channels, H x W positions."""

import torch
from torch import Tensor, nn

from assay.protocols import Pooling


class Average(nn.Module):
    """The mean over positions: f_c = 1/(HW) sum_p x_cp."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, C)."""
        return x.mean((2, 3))


class AveragePlusMax(nn.Module):
    """The sum of mean and maximum, as in the code of Kim et al. 2020 (arxiv.org/abs/2003.13911).

    f_c = 1/(HW) sum_p x_cp + max_p x_cp
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, C)."""
        return x.mean((2, 3)) + x.amax((2, 3))


class GeneralisedMean(nn.Module):
    """GeM (Radenovic et al. 2018, arxiv.org/abs/1711.02512, Eq. 3), one learned exponent for all
    channels.

    f_c = (1/(HW) sum_p max(x_cp, 1e-6)^p)^(1/p);  p = 1 is the mean, p -> infinity the maximum.

    Args:
        exponent: p before training.
        least: smaller values, negative ones among them, count as this.
    """

    def __init__(self, exponent: float = 3.0, least: float = 1e-6) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(exponent))
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, C)."""
        return x.clamp(min=self.least).pow(self.exponent).mean((2, 3)).pow(1 / self.exponent)


def make_pool(pooling: Pooling) -> nn.Module:
    """Return the module called `pooling`, from maps (N, C, H, W) to features (N, C)."""
    pools: dict[Pooling, type[nn.Module]] = {
        "avg": Average,
        "avg+max": AveragePlusMax,
        "gem": GeneralisedMean,
    }
    return pools[pooling]()
