"""Trunks by name (those of this folder, of the user, or any model of timm), what trunks for photos
share, and the pools from their maps to features. Shapes: N batch, C channels, H x W positions.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from assay.errors import BadInput
from assay.protocols import Pooling, SampleKind
from assay.registry import Registry, UnknownName

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class WeightsOrigin:
    """The source of a trunk's pretrained weights.

    Args:
        pretrained_on: the data that they were trained on.
        source: the file, package or address, the same on every machine.
        fetch: reads or downloads them; raises `OSError` if that fails.
    """

    pretrained_on: str
    source: str
    fetch: Callable[[], Mapping[str, Tensor]]


class Trunk(nn.Module):
    """A network from images (N, inputs, H, W) or vectors (N, inputs) to features (N, features).

    Images have values in [0, 1]. A trunk normalises its input and pools its maps itself.

    Attributes:
        takes: images or vectors.
        smallest: the smallest side of an image in pixels.
        side: the side of images that the trunk was made for; None: by the modality of the data.
        libraries: packages, except torch, that the network is written in; their versions are part
            of a run's key.
        features: the number of features.
    """

    takes: ClassVar[SampleKind] = "images"
    smallest: ClassVar[int] = 1
    libraries: ClassVar[tuple[str, ...]] = ()
    side: ClassVar[int | None] = None
    features: int

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__()
        self.inputs, self.pooling = inputs, pooling

    @classmethod
    def origin(cls) -> WeightsOrigin | None:
        """Return the source of `--set weights=pretrained`; None if there are no such weights."""
        return None


trunks = Registry[type[Trunk]]("trunk")


def find(name: str) -> type[Trunk]:
    """Return the trunk called `name`.

    A name that is not registered is looked up in timm, with or without a pretrained tag.
    """
    from assay.trunks import timm  # timm's trunks are trunks, so their module imports this one

    if name in trunks:
        return trunks[name]
    if timm.has(name):
        return timm.trunk_of(name)
    near = difflib.get_close_matches(name, dict.fromkeys([*trunks, *timm.names()]), n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise UnknownName(
        f"no trunk is called {name!r}{hint} (all: {', '.join(sorted(trunks))}, and every name of"
        " timm's)"
    )


def build(name: str, inputs: int, pooling: Pooling = "avg") -> Trunk:
    """Return a new trunk with weights from torch's current random state.

    `inputs` is the number of channels of images or of numbers in a vector.
    """
    kind = find(name)
    # a user's own trunk may have no parameter `pooling`
    return kind(inputs) if pooling == "avg" else kind(inputs, pooling)


# --- Trunks for photos ---


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


# --- Pooling ---


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
