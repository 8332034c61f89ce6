"""What a trunk is, and the registry that the modules of this folder fill."""

from typing import ClassVar, Literal

from torch import nn

from assay.registry import Registry


class Trunk(nn.Module):
    """Turns images (N, channels, H, W) with values in [0, 1], or vectors (N, width), into features.

    `deterministic` says that every build is the same function, so that a baseline on it has no spread; `smallest` is the
    least side of an image in pixels.
    """

    deterministic: ClassVar[bool]
    takes: ClassVar[Literal["images", "vectors"]] = "images"
    smallest: ClassVar[int] = 1
    features: int

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.inputs = inputs


trunks = Registry[type[Trunk]]("trunk")


def build(name: str, inputs: int) -> Trunk:
    """A new trunk for images of `inputs` channels, or vectors of `inputs` numbers, from torch's current random state."""
    return trunks[name](inputs)
