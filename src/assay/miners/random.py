"""Random pairs or triplets. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.pairs import Mined, Pairs, References, Triplets, all_pairs, as_triplets
from assay.registry import Paper
from assay.space import one_of


@miners("random")
class RandomMiner(Miner):
    """A few pairs or triplets at random, as many as would use each sample of the batch once.

    From a batch of N: N/2 pairs, half of them positive (if there are so many), or N/3 triplets, all
    different.

    Args:
        of: `pairs` or `triplets`.
    """

    paper = Paper("A Metric Learning Reality Check", 2020, "arxiv.org/abs/2003.08505")

    def __init__(self, *, of: str = "triplets") -> None:
        self.of = one_of(("pairs", "triplets"), "of", of)

    def mine(self, z: Tensor, y: Tensor, references: References) -> Mined:
        pairs = all_pairs(y, references)
        if self.of == "pairs":
            half = len(y) // 4
            return Pairs(
                _some(pairs.positive, max(1, half)),
                _some(pairs.negative, max(1, len(y) // 2 - half)),
            )
        triplets = as_triplets(pairs)
        return Triplets(
            triplets.anchor, triplets.positive, _some(triplets.negative, max(1, len(y) // 3))
        )


def _some(mask_NM: Tensor, count: int) -> Tensor:
    """Return a mask of `count` random entries of the mask, or of all if there are fewer."""
    ticket_NM = torch.rand(mask_NM.shape, device=mask_NM.device).masked_fill(~mask_NM, -1)
    chosen = ticket_NM.flatten().topk(min(count, mask_NM.numel())).indices
    return (
        torch.zeros_like(mask_NM).flatten().index_fill(0, chosen, True).view_as(mask_NM) & mask_NM
    )
