"""The miner that keeps every pair."""

from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.pairs import Pairs, References, all_pairs


@miners("all")
class AllMiner(Miner):
    """Every pair of the batch, and so every triplet, as a loss gets without a miner."""

    def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
        return all_pairs(y, references)
