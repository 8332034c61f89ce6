"""What a trunk is, and the registry that the modules of this folder fill."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from assay.protocols import Kind, Pooling
from assay.registry import Registry


@dataclass(frozen=True)
class Origin:
    """Where the pretrained weights of a trunk come from.

    Args:
        pretrained_on: the data they were trained on.
        source: the file, package or address, the same on every machine.
        fetch: reads or downloads them; raises `OSError` where they cannot be had.
    """

    pretrained_on: str
    source: str
    fetch: Callable[[], Mapping[str, Tensor]]


class Trunk(nn.Module):
    """Turns images (N, inputs, H, W) with values in [0, 1], or vectors (N, inputs), into features
    (N, features).

    A trunk normalises its input and pools its maps itself. `smallest` is the least side of an image
    in pixels, `side` the one it was made for; None leaves it to the modality of the data.
    `libraries` are those that its network is written in, torch apart: a run's key holds their versions.
    """

    takes: ClassVar[Kind] = "images"
    smallest: ClassVar[int] = 1
    libraries: ClassVar[tuple[str, ...]] = ()
    side: ClassVar[int | None] = None
    features: int

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__()
        self.inputs, self.pooling = inputs, pooling

    @classmethod
    def origin(cls) -> Origin | None:
        """The weights meant by `--set weights=pretrained`; None where there are none."""
        return None


trunks = Registry[type[Trunk]]("trunk")
