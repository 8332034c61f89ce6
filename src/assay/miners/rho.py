"""Rho-regularisation. Shapes: N batch, M references, P triplets."""

import torch
from torch import Tensor

from assay.miners.distance_weighted import DistanceWeightedMiner, draw_columns
from assay.miners.miner import miners
from assay.miners.semihard import only
from assay.pairs import References, Triplets, all_pairs, distances
from assay.registry import Paper
from assay.space import between


@miners("rho")
class RhoMiner(DistanceWeightedMiner):
    """One triplet of each anchor; some negatives are swapped for samples of the anchor's own class.

    p = a random positive of a
    n = with the swap probability: a random sample of a's class, other than a and p
        else: a distance-weighted negative
    The loss pushes n away either way, so that a class is not drawn together into a point. A class
    of two samples has no third: there, a swapped triplet is (a, a, p). An anchor without a positive
    or without a negative has no triplet.

    The study's swap probabilities: on CUB-200-2011 0.4 for contrastive, triplet and margin with
    beta 0.6, 0.35 for margin with beta 1.2, and 0.3 for SNR; on Cars196 0.35; on Online Products
    0.15.

    Args:
        swap_probability: how often a negative is swapped.
        cutoff: distances below count as this, as in distance-weighted sampling.
        limit: negatives beyond this distance are not drawn while there are nearer ones.
    """

    paper = Paper(
        "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning",
        2020,
        "arxiv.org/abs/2002.08473",
    )
    departures = (
        (
            "a swap changes only the negative, as Roth et al. (2020, arxiv.org/abs/2002.08473)"
            " write; their public code also puts the anchor in the positive's place, here done only"
            " in classes of two samples, where the pull and the push of the one pair would cancel"
        ),
        (
            "no negative beyond the limit, and equal chances where that leaves none; their public"
            " code has no limit, as with limit=2"
        ),
        "an anchor without a negative has no triplet, and so no swap",
    )

    def __init__(
        self, *, swap_probability: float = 0.2, cutoff: float = 0.5, limit: float = 1.4
    ) -> None:
        super().__init__(cutoff=cutoff, limit=limit)
        self.swap_probability = between(0, 1, "swap_probability", swap_probability)

    def mine(self, z: Tensor, y: Tensor, references: References) -> Triplets:
        pairs = all_pairs(y, references)
        log_weight_NM = self.log_weights(distances(z, references.z), pairs.negative, z.shape[1])
        (anchor_P,) = (pairs.positive.any(1) & pairs.negative.any(1)).nonzero(as_tuple=True)
        same_PM, log_weight_PM = pairs.positive[anchor_P], log_weight_NM[anchor_P]
        positive_P = _draw_evenly(same_PM, z)
        third_PM = same_PM & ~only(positive_P, same_PM)
        two_P = ~third_PM.any(1)  # the class has no sample beside anchor and positive
        swapped_P = torch.rand(len(anchor_P), device=z.device) < self.swap_probability
        if references.own is None:
            swapped_P &= ~two_P
        else:
            own_P = references.own[anchor_P]
            third_PM = torch.where(two_P[:, None], same_PM, third_PM)
            positive_P = torch.where(swapped_P & two_P, own_P, positive_P)
        chosen_P = torch.where(swapped_P, _draw_evenly(third_PM, z), draw_columns(log_weight_PM))
        return Triplets(anchor_P, positive_P, only(chosen_P, third_PM | pairs.negative[anchor_P]))


def _draw_evenly(mask_PM: Tensor, z: Tensor) -> Tensor:
    """Draw one column of each row of a mask (P,), all with equal chances."""
    return draw_columns(z.new_zeros(mask_PM.shape).masked_fill_(~mask_PM, -torch.inf))
