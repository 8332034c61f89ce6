"""Augmentation of a whole batch by one affine resampling. Shapes: N images, C channels, H x W pixels."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.data.dataset import Pixels, Vectors
from assay.protocol import Augment


def to_tensor(x: Pixels | Vectors) -> Tensor:
    """Pixels as numbers in [0, 1], vectors as they are."""
    tensor = torch.from_numpy(np.array(x))  # a copy: views are memory-mapped and read-only
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor


def augment(x: Tensor, ranges: Augment, draw: torch.Generator) -> Tensor:
    """Crop, mirror, turn and shear each image at random; vectors pass.

    For each image: area and aspect (log-uniform) of a crop inside it, a flip, a rotation and a horizontal shear, as one
    matrix from output to input coordinates, sampled bilinearly; what falls outside takes the border's colour.
    """
    if x.ndim == 2:
        return x
    theta_N23 = affine(len(x), ranges, draw)
    grid = F.affine_grid(theta_N23, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def affine(count: int, ranges: Augment, draw: torch.Generator) -> Tensor:
    """Matrices (count, 2, 3) from output to input coordinates, both in [-1, 1]."""
    assert ranges.area and ranges.aspect and ranges.flip is not None, "the protocol was not resolved"
    assert ranges.rotation is not None and ranges.shear is not None, "the protocol was not resolved"
    uniform = torch.rand(7, count, generator=draw)
    area = _between(*ranges.area, uniform[0])
    aspect = _between(math.log(ranges.aspect[0]), math.log(ranges.aspect[1]), uniform[1]).exp()
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    left, top = (1 - width) * (2 * uniform[2] - 1), (1 - height) * (2 * uniform[3] - 1)
    mirror = torch.where(uniform[4] < ranges.flip, -1.0, 1.0)
    angle = math.radians(ranges.rotation) * (2 * uniform[5] - 1)
    slant = (math.radians(ranges.shear) * (2 * uniform[6] - 1)).tan()
    cos, sin = angle.cos(), angle.sin()
    first = torch.stack([width * mirror * cos, width * mirror * (cos * slant - sin), left], dim=1)
    second = torch.stack([height * sin, height * (sin * slant + cos), top], dim=1)
    return torch.stack([first, second], dim=1)


def _between(low: float, high: float, share: Tensor) -> Tensor:
    return low + (high - low) * share
