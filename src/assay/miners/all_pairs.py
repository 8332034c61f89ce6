"""The miner that leaves nothing out."""

from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.pairs import Pairs, References, all_pairs


@miners("all")
class AllMiner(Miner):
    """Every pair of the batch, and so every triplet: what a loss gets without a miner."""

    def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
        """Positive where labels agree (not with oneself), negative where they differ."""
        return all_pairs(y, references)
