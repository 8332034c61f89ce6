"""Shared by trunks for photographs: colour, normalisation, sizes of images."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from assay.errors import BadInput
from assay.protocols import Pooling
from assay.trunks.trunk import Trunk

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photo(Trunk):
    """A `body` after (x - mean) / std per channel; grey images are repeated over three channels.

    Attributes:
        classifier: layers of public files that a trunk does not use.
        multiple: the side of an image is a multiple of this number of pixels.
        only: the side of images of a trunk that takes no other.
    """

    name: ClassVar[str]
    mean: ClassVar[tuple[float, ...]] = IMAGENET_MEAN
    std: ClassVar[tuple[float, ...]] = IMAGENET_STD
    classifier: ClassVar[tuple[str, ...]] = ()
    smallest: ClassVar[int] = 32
    side: ClassVar[int | None] = 224
    multiple: int = 1
    only: int | None = None
    layout: torch.memory_format = torch.channels_last
    body: nn.Module
    _mean: Tensor
    _std: Tensor

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__(inputs, pooling)
        if inputs not in (1, 3):
            raise BadInput(
                f"the trunk {self.name!r} takes images of 1 or 3 channels, got {inputs}; use --set"
                " trunk=conv"
            )
        self.register_buffer("_mean", torch.tensor(self.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(self.std).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, features)."""
        self.check_side(x.shape[-2], x.shape[-1])
        features: Tensor = self.body(self.normalise(x).contiguous(memory_format=self.layout))
        return features

    def normalise(self, x: Tensor) -> Tensor:
        """Return three channels as the body expects them, from images with values in [0, 1]."""
        return (x - self._mean) / self._std

    def translate(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights of a public file by the body's names.

        Files with other names are recognised here.
        """
        return state

    def check_side(self, height: int, width: int) -> None:
        """Raise `BadInput` for images that the body cannot take."""
        given = f"--set size={width}: the trunk {self.name!r} takes images"
        if self.only is not None and (height, width) != (self.only, self.only):
            raise BadInput(f"{given} of {self.only} pixels a side; use --set size={self.only}")
        if min(height, width) < self.smallest:
            raise BadInput(f"{given} of at least {self.smallest} pixels a side")
        if height % self.multiple or width % self.multiple:
            near = max(self.multiple, round(width / self.multiple) * self.multiple)
            raise BadInput(
                f"{given} whose side is a multiple of {self.multiple}; use --set size={near}"
            )


def channels_last(module: nn.Module) -> nn.Module:
    """Return the module with its weights in the layout channels_last."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
