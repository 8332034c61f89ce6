"""Inception with batch normalisation, the trunk of most papers of this field.

Ioffe and Szegedy 2015, arxiv.org/abs/1502.03167, Figure 5, as in the Caffe model of 2016. Layers
have its names, so that the public file bn_inception-52deb4733.pth fits, and the input is its input:
BGR, 0 to 255, minus the mean colour.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.errors import BadInput
from assay.protocols import Pooling
from assay.trunks.downloads import from_address
from assay.trunks.trunk import Photo, WeightsOrigin, channels_last, make_pool, trunks

ADDRESS = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"
SHA256 = "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353"


class Block(NamedTuple):
    """Widths of an inception block's branches; a block without `pooled` halves its maps."""

    one: int
    three: tuple[int, int]
    double: tuple[int, int]
    pooled: int
    pool: str = "avg"

    @property
    def stride(self) -> int:
        """Stride: 2 if the block halves its maps, else 1."""
        return 1 if self.pooled else 2

    def out(self, before: int) -> int:
        """Return the channels of all branches; a halving block passes its pooled input on."""
        return self.one + self.three[1] + self.double[1] + (self.pooled or before)


BLOCKS = {
    "3a": Block(64, (64, 64), (64, 96), 32),
    "3b": Block(64, (64, 96), (64, 96), 64),
    "3c": Block(0, (128, 160), (64, 96), 0),
    "4a": Block(224, (64, 96), (96, 128), 128),
    "4b": Block(192, (96, 128), (96, 128), 128),
    "4c": Block(160, (128, 160), (128, 160), 128),
    "4d": Block(96, (128, 192), (160, 192), 128),
    "4e": Block(0, (128, 192), (192, 256), 0),
    "5a": Block(352, (192, 320), (160, 224), 128),
    "5b": Block(352, (192, 320), (192, 224), 128, "max"),
}

Layer = tuple[str, int, int, int, int]
"""Name, channels before and after, kernel, stride."""


def layers() -> Iterator[Layer]:
    """Yield every convolution; batch normalisation, called `<name>_bn`, and ReLU follow each."""
    yield "conv1_7x7_s2", 3, 64, 7, 2
    yield "conv2_3x3_reduce", 64, 64, 1, 1
    yield "conv2_3x3", 64, 192, 3, 1
    before = 192
    for name, block in BLOCKS.items():
        yield from _branches(f"inception_{name}", block, before)
        before = block.out(before)


def _branches(name: str, block: Block, before: int) -> Iterator[Layer]:
    if block.one:
        yield f"{name}_1x1", before, block.one, 1, 1
    yield f"{name}_3x3_reduce", before, block.three[0], 1, 1
    yield f"{name}_3x3", block.three[0], block.three[1], 3, block.stride
    yield f"{name}_double_3x3_reduce", before, block.double[0], 1, 1
    yield f"{name}_double_3x3_1", block.double[0], block.double[1], 3, 1
    yield f"{name}_double_3x3_2", block.double[1], block.double[1], 3, block.stride
    if block.pooled:
        yield f"{name}_pool_proj", before, block.pooled, 1, 1


class Body(nn.Module):
    """The network without its classifier."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        for name, before, after, kernel, stride in layers():
            self.add_module(name, nn.Conv2d(before, after, kernel, stride, padding=kernel // 2))
            self.add_module(f"{name}_bn", nn.BatchNorm2d(after, momentum=0.9))
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, 1024)."""
        features: Tensor = self.pool(self.maps(x))
        return features

    def maps(self, x: Tensor) -> Tensor:
        """Return the maps of the last block: (N, 1024, H / 32, W / 32)."""
        halve = partial(F.max_pool2d, kernel_size=3, stride=2, ceil_mode=True)
        x = halve(self._unit("conv1_7x7_s2", x))
        x = halve(self._unit("conv2_3x3", self._unit("conv2_3x3_reduce", x)))
        for name, block in BLOCKS.items():
            x = self._block(f"inception_{name}", block, x)
        return x

    def _block(self, name: str, block: Block, x: Tensor) -> Tensor:
        three = self._unit(f"{name}_3x3", self._unit(f"{name}_3x3_reduce", x))
        double = self._unit(f"{name}_double_3x3_1", self._unit(f"{name}_double_3x3_reduce", x))
        double = self._unit(f"{name}_double_3x3_2", double)
        if not block.pooled:
            return torch.cat([three, double, F.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
        pool = F.avg_pool2d if block.pool == "avg" else F.max_pool2d
        pooled = self._unit(f"{name}_pool_proj", pool(x, 3, 1, padding=1))
        return torch.cat([self._unit(f"{name}_1x1", x), three, double, pooled], 1)

    def _unit(self, name: str, x: Tensor) -> Tensor:
        return F.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)), inplace=True)


@trunks("bn_inception")
class BNInception(Photo):
    """Inception with batch normalisation (Ioffe and Szegedy 2015, arxiv.org/abs/1502.03167), the
    Caffe model.

    Batch normalisation keeps the published momentum: in torch 0.9 is the weight of the newest
    batch, so running statistics that are not frozen are nearly those of the last batch. The
    branches of a halving block agree for sides from one below a multiple of 32 to six above it: 224
    is such a side, and so is the 227 of the field's protocols.
    """

    name = "bn_inception"
    mean = (104 / 255, 117 / 255, 128 / 255)
    std = (1 / 255, 1 / 255, 1 / 255)
    classifier = ("last_linear", "fc")
    features = 1024

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__(inputs, pooling)
        self.body = channels_last(Body(make_pool(pooling)))

    def check_side(self, height: int, width: int) -> None:
        """Raise `BadInput` for images at which the branches of a halving block do not agree."""
        super().check_side(height, width)
        if any((side + 1) % 32 >= 8 for side in (height, width)):
            near = 32 * round(width / 32)
            raise BadInput(
                f"--set size={width}: the trunk {self.name!r} takes sides from {near - 1} to"
                f" {near + 6}, for example"
            )

    def normalise(self, x: Tensor) -> Tensor:
        """Return BGR, 255 x minus the mean colour."""
        return super().normalise(x.flip(1))

    @classmethod
    def origin(cls) -> WeightsOrigin:
        """Return the source of the file that the papers use, ported from Caffe."""
        fetch = partial(from_address, ADDRESS, SHA256)
        return WeightsOrigin("ImageNet-1k", ADDRESS.rpartition("/")[2], fetch)
