"""The hardest triplet of each anchor. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.miners.semihard import only
from assay.pairs import References, Triplets, all_pairs, distances
from assay.registry import Paper


@miners("hard")
class HardMiner(Miner):
    """Each anchor with its farthest positive and its nearest negative."""

    paper = Paper(
        "In Defense of the Triplet Loss for Person Re-Identification",
        2017,
        "arxiv.org/abs/1703.07737",
        equation="5",
    )

    def mine(self, z: Tensor, y: Tensor, references: References) -> Triplets:
        # an anchor without a positive or a negative has no triplet
        pairs, d_NM = all_pairs(y, references), distances(z, references.z)
        farthest_N = d_NM.masked_fill(~pairs.positive, -torch.inf).argmax(1)
        negative_NM = hard(d_NM, pairs.negative) & pairs.positive.any(1)[:, None]
        return Triplets(torch.arange(len(y), device=y.device), farthest_N, negative_NM)


def hard(d_NM: Tensor, negative_NM: Tensor) -> Tensor:
    """Return a mask (N, M) of the nearest negative of each row, if it has one."""
    return only(d_NM.masked_fill(~negative_NM, torch.inf).argmin(1), negative_NM)
