"""Easy positives. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.miners.hard import hard
from assay.miners.miner import Miner, miners
from assay.miners.semihard import semihard
from assay.pairs import References, Triplets, all_pairs, distances
from assay.registry import Paper
from assay.space import one_of


@miners("easy_positive")
class EasyPositiveMiner(Miner):
    """Each anchor with its nearest positive, and a hard or semi-hard negative.

    `hard`: the nearest negative.
    `semihard`: the nearest negative that is farther than the positive, else the farthest.

    Args:
        negatives: `semihard` or `hard`.
    """

    paper = Paper(
        "Improved Embeddings with Easy Positive Triplet Mining", 2020, "arxiv.org/abs/1904.04370"
    )

    def __init__(self, *, negatives: str = "semihard") -> None:
        self.negatives = one_of(("semihard", "hard"), "negatives", negatives)

    def mine(self, z: Tensor, y: Tensor, references: References) -> Triplets:
        # an anchor without a positive or a negative has no triplet
        pairs, d_NM = all_pairs(y, references), distances(z, references.z)
        d_ap_N, nearest_N = d_NM.masked_fill(~pairs.positive, torch.inf).min(1)
        negative_NM = (
            hard(d_NM, pairs.negative)
            if self.negatives == "hard"
            else semihard(d_NM, d_ap_N, pairs.negative)
        )
        has_positive_N1 = pairs.positive.any(1)[:, None]
        return Triplets(
            torch.arange(len(y), device=y.device), nearest_N, negative_NM & has_positive_N1
        )
