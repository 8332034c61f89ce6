"""What a sampler is, and the registry that the modules of this folder fill."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.registry import Registry

Indices = NDArray[np.int64]


class Sampler(Protocol):
    """Draws batches for ever, from its own generator."""

    __doc__: str | None

    def __call__(self, y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
        """Batches of indices into `y`, classes x images per class, the images of a class side by
        side.
        """


samplers = Registry[Sampler]("sampler")
