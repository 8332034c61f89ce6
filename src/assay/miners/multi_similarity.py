"""The miner of multi-similarity. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.pairs import Pairs, References, all_pairs
from assay.registry import Paper
from assay.space import at_least


@miners("multi_similarity")
class MultiSimilarityMiner(Miner):
    """Keeps the pairs that the other kind of pair makes informative.

    Eq. 12 and 13:
        a negative is kept if s_an > min_p s_ap - eps, a positive if s_ap < max_n s_an + eps

    Args:
        epsilon: how far beyond the other kind's extreme a pair may lie (eps).
    """

    paper = Paper(
        "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
        2019,
        "arxiv.org/abs/1904.06627",
        equation="12, 13",
    )

    def __init__(self, *, epsilon: float = 0.1) -> None:
        self.epsilon = at_least(0, "epsilon", epsilon)

    def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
        # an anchor without positives keeps no negative, and the reverse
        pairs = all_pairs(y, references)
        s_NM = z @ references.z.T
        hardest_positive_N1 = s_NM.masked_fill(~pairs.positive, torch.inf).amin(1, keepdim=True)
        hardest_negative_N1 = s_NM.masked_fill(~pairs.negative, -torch.inf).amax(1, keepdim=True)
        return Pairs(
            pairs.positive & (s_NM < hardest_negative_N1 + self.epsilon),
            pairs.negative & (s_NM > hardest_positive_N1 - self.epsilon),
        )
