"""`Miner`, and the registry that the modules of this folder fill."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from assay.pairs import (
    Mined,
    References,
    all_pairs,
    as_compared,
    check_batch,
    check_mined,
    without_autocast,
)
from assay.registry import Paper, Registry


class Miner(ABC):
    """Chooses pairs or triplets from the vectors that the loss will compare.

    No gradient goes through the choice. A random choice draws from torch's own generator, which a
    run seeds.

    Attributes:
        normalise: whether the miner sees unit vectors; in a method, as its loss does.
    """

    paper: ClassVar[Paper | None] = None
    departures: ClassVar[tuple[str, ...]] = ()
    normalise: bool = True

    @torch.no_grad()
    def __call__(self, z: Tensor, y: Tensor, references: References | None = None) -> Mined:
        """Return the pairs or triplets of this batch that the loss should compare."""
        check_batch(z, y)
        with without_autocast(z.device):
            z = as_compared(z, self.normalise)
            if references is None:
                references = References.of_batch(z, y)
            else:
                references = References(
                    as_compared(references.z, self.normalise), references.y, references.own
                )
            nothing = len(y) == 0 or len(references.y) == 0
            mined = all_pairs(y, references) if nothing else self.mine(z, y, references)
            check_mined(mined, len(y), len(references.y))
            return mined

    @abstractmethod
    def mine(self, z: Tensor, y: Tensor, references: References) -> Mined:
        """Apply the rule of the miner."""


miners = Registry[type[Miner]]("miner")
