"""What a miner is, and the registry that the modules of this folder fill."""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.pairs import Pairs, References, Triplets
from assay.registry import Paper, Registry


class Miner:
    """Chooses pairs or triplets from unit vectors; no gradient goes through the choice."""

    paper: ClassVar[Paper]

    @torch.no_grad()
    def __call__(self, z: Tensor, y: Tensor, references: References | None = None) -> Pairs | Triplets:
        """What the loss should look at in this batch."""
        z = F.normalize(z, dim=1)
        if references is None:
            return self.mine(z, y, References.of_batch(z, y))
        return self.mine(z, y, References(F.normalize(references.z, dim=1), references.y, references.own))

    @abstractmethod
    def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs | Triplets:
        """The rule."""


miners = Registry[type[Miner]]("miner")
