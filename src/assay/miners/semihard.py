"""Semi-hard triplets. Shapes: N batch, M references, P positive pairs."""

import torch
from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.pairs import References, Triplets, all_pairs, as_triplets, distances
from assay.registry import Paper


@miners("semihard")
class SemihardMiner(Miner):
    """Each positive pair with the nearest negative that is farther than the positive.

    For (a, p): the n with the smallest d_an > d_ap, else the n with the largest d_an.
    """

    paper = Paper(
        "FaceNet: A Unified Embedding for Face Recognition and Clustering",
        2015,
        "arxiv.org/abs/1503.03832",
        equation="4",
    )
    departures = (
        (
            "no margin bounds the negative from above; where none is farther than the positive, the"
            " farthest is taken"
        ),
    )

    def mine(self, z: Tensor, y: Tensor, references: References) -> Triplets:
        triplets = as_triplets(all_pairs(y, references))
        d_NM = distances(z, references.z)
        d_ap_P = d_NM[triplets.anchor, triplets.positive]
        chosen_PM = semihard(d_NM[triplets.anchor], d_ap_P, triplets.negative)
        return Triplets(triplets.anchor, triplets.positive, chosen_PM)


def semihard(d_PM: Tensor, d_ap_P: Tensor, negative_PM: Tensor) -> Tensor:
    """Return a mask (P, M) of the nearest negative beyond the positive, else of the farthest.

    A row without negatives stays empty.
    """
    beyond_PM = negative_PM & (d_PM > d_ap_P[:, None])
    nearest_P = d_PM.masked_fill(~beyond_PM, torch.inf).argmin(1)
    farthest_P = d_PM.masked_fill(~negative_PM, -torch.inf).argmax(1)
    chosen_P = torch.where(beyond_PM.any(1), nearest_P, farthest_P)
    return only(chosen_P, negative_PM)


def only(chosen_P: Tensor, mask_PM: Tensor) -> Tensor:
    """Return the mask with only the chosen column of each row."""
    return torch.zeros_like(mask_PM).scatter(1, chosen_P[:, None], True) & mask_PM
