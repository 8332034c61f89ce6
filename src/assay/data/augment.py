"""From stored samples to a batch of tensors: random crops for training, the centre for evaluation.

Shapes: N images, C channels, H x W pixels, S side of the result.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.data.dataset import Pixels, Samples, Vectors
from assay.protocols import ResolvedAugment

CPU = torch.device("cpu")
TRIES = 10
Boxes = NDArray[np.int64]
"""Top, left, height and width of a crop in each image (N, 4)."""


def to_tensor(x: Vectors | Pixels) -> Tensor:
    """Return images (N, H, W, C) as numbers (N, C, H, W) in [0, 1], in the layout of channels_last;
    vectors as they are.
    """
    tensor = torch.from_numpy(np.array(x))  # a copy: views are memory-mapped and read-only
    return tensor.permute(0, 3, 1, 2).float() / 255 if tensor.dtype == torch.uint8 else tensor


def augment(
    x: Samples,
    ranges: ResolvedAugment,
    size: int,
    draw: torch.Generator,
    device: torch.device = CPU,
) -> Tensor:
    """Crop and mirror each image at random, rotate and shear it too where the ranges say so;
    vectors pass unchanged.
    """
    if _are_vectors(x):
        return to_tensor(x).to(device)
    if ranges.rotation or ranges.shear:
        assert isinstance(x, np.ndarray), "a protocol that rotates images gives them one shape"
        return turn(to_tensor(x).to(device), ranges, size, draw)
    boxes, mirrored = draw_crops(_shapes(x), ranges, draw)
    return resample(cut(x, boxes), mirrored, size, device)


def centre(x: Samples, size: int) -> Tensor:
    """Cut out the central square of each image, not scaled (torchvision's CenterCrop); vectors pass
    unchanged.
    """
    if _are_vectors(x) or (isinstance(x, np.ndarray) and x.shape[1:3] == (size, size)):
        return to_tensor(x)
    corners = np.rint((_shapes(x) - size) / 2).astype(np.int64)
    return to_tensor(
        np.stack(cut(x, np.concatenate([corners, np.full_like(corners, size)], axis=1)))
    )


def cut(x: Samples, boxes: Boxes) -> list[Pixels]:
    """Return the boxes of the images, nothing copied."""
    corners = zip(x, boxes.tolist(), strict=True)
    return [
        image[top : top + height, left : left + width]
        for image, (top, left, height, width) in corners
    ]


def draw_crops(
    shapes: Boxes, ranges: ResolvedAugment, draw: torch.Generator
) -> tuple[Boxes, Tensor]:
    """Draw a crop inside each image of height and width `shapes` (N, 2), and which images are
    mirrored (N,).

    As torchvision's RandomResizedCrop: the share of the image's area is uniform, the aspect
    log-uniform; of ten draws the first that fits, else the largest central crop whose aspect is in
    range.
    """
    uniform = torch.rand(2 * TRIES + 3, len(shapes), generator=draw, dtype=torch.float64).numpy()
    high, wide = shapes.T
    area = (ranges.area[0] + (ranges.area[1] - ranges.area[0]) * uniform[:TRIES]) * high * wide
    low, top = (math.log(end) for end in ranges.aspect)
    aspect = np.exp(low + (top - low) * uniform[TRIES : 2 * TRIES])
    tried = np.rint(np.sqrt([area / aspect, area * aspect])).astype(np.int64)
    fits = ((tried >= 1) & (tried <= shapes.T[:, None])).all(0)
    first = tried[:, fits.argmax(0), np.arange(len(shapes))].T
    found = np.logical_or.reduce(fits)[:, None]
    within = np.where(found, first, _largest(shapes, ranges.aspect))
    left_over = shapes - within
    corners = np.where(
        found,
        np.floor(uniform[2 * TRIES : 2 * TRIES + 2].T * (left_over + 1)).astype(np.int64),
        left_over // 2,
    )
    return np.concatenate([corners, within], axis=1), torch.from_numpy(uniform[-1] < ranges.flip)


def resample(
    crops: Sequence[Pixels], mirrored: Tensor, size: int, device: torch.device = CPU
) -> Tensor:
    """Scale crops of any shapes (H, W, C) to (N, C, S, S) in [0, 1], some of them mirrored.

    Bilinear with antialiasing, which is linear in rows and in columns: two batched products with
    matrices of weights, one resampling for the whole batch on any device.
    """
    shapes = torch.from_numpy(_shapes(crops)).to(device)
    batch = torch.from_numpy(_pad(crops)).to(device).permute(0, 3, 1, 2).float()
    rows_NSH = weights(shapes[:, 0], batch.shape[2], size)
    columns_NSW = weights(shapes[:, 1], batch.shape[3], size)
    columns_NSW = (
        torch.where(mirrored.to(device)[:, None, None], columns_NSW.flip(1), columns_NSW) / 255
    )
    scaled = rows_NSH[:, None] @ batch @ columns_NSW.transpose(1, 2)[:, None]
    return scaled.contiguous(memory_format=torch.channels_last)


def weights(lengths: Tensor, longest: int, size: int) -> Tensor:
    """Return matrices (N, size, longest) that scale the first `lengths` entries of lines to `size`.

    Output i lies at c = (i + 1/2) length / size; it weighs entry j by max(0, 1 - |j + 1/2 - c| /
    max(1, length / size)), normalised to 1: the triangle filter that torchvision and Pillow scale
    with.
    """
    scale_N11 = lengths[:, None, None].double() / size
    centre_NS1 = (torch.arange(size, device=lengths.device)[:, None] + 0.5) * scale_N11
    position_L = torch.arange(longest, device=lengths.device) + 0.5
    triangle_NSL = (1 - (position_L - centre_NS1).abs() / scale_N11.clamp(min=1)).clamp(min=0)
    triangle_NSL = torch.where(position_L < lengths[:, None, None], triangle_NSL, 0.0)
    return (triangle_NSL / triangle_NSL.sum(2, keepdim=True)).float()


def turn(x: Tensor, ranges: ResolvedAugment, size: int, draw: torch.Generator) -> Tensor:
    """Crop, mirror, rotate and shear each image (N, C, H, W) at random.

    For each image: area and aspect (log-uniform) of a crop inside it, a flip, a rotation and a
    horizontal shear, as one matrix from output to input coordinates, sampled bilinearly; what falls
    outside takes the border's colour.
    """
    theta_N23 = affine(len(x), ranges, draw).to(x.device)
    grid = F.affine_grid(theta_N23, [len(x), x.shape[1], size, size], align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def affine(count: int, ranges: ResolvedAugment, draw: torch.Generator) -> Tensor:
    """Draw matrices (count, 2, 3) from output to input coordinates, both in [-1, 1]."""
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


def _are_vectors(x: Samples) -> TypeGuard[Vectors]:
    return isinstance(x, np.ndarray) and x.ndim == 2


def _shapes(x: Samples | Sequence[Pixels]) -> Boxes:
    """Return height and width of each image (N, 2)."""
    return np.array([image.shape[:2] for image in x], dtype=np.int64)


def _largest(shapes: Boxes, aspect: tuple[float, float]) -> Boxes:
    """Return height and width of the largest crops whose aspect is in range."""
    high, wide = shapes.T
    nearest = np.clip(wide / high, *aspect)
    tall, broad = (
        np.minimum(high, np.rint(wide / nearest)),
        np.minimum(wide, np.rint(high * nearest)),
    )
    return np.stack([tall, broad], axis=1).clip(min=1).astype(np.int64)


def _pad(crops: Sequence[Pixels]) -> Pixels:
    """Put the crops into the upper left corners of one array."""
    high, wide = (max(crop.shape[axis] for crop in crops) for axis in (0, 1))
    batch = np.zeros((len(crops), high, wide, crops[0].shape[2]), dtype=np.uint8)
    for row, crop in zip(batch, crops, strict=True):
        row[: crop.shape[0], : crop.shape[1]] = crop
    return batch
