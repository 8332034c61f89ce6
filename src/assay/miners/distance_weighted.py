"""Distance-weighted sampling. Shapes: N batch, M references, P positive pairs, D dims."""

from typing import ClassVar

import torch
from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.miners.semihard import only
from assay.pairs import References, Triplets, all_pairs, as_triplets, distances
from assay.registry import Paper
from assay.space import above, at_least


@miners("distance_weighted")
class DistanceWeightedMiner(Miner):
    """Each positive pair with one negative, drawn so that all distances are about equally likely.

    w_n = 1 / q(d_an), q the density of distances between random points of the unit sphere:
        log w = (2 - D) log d - (D - 3)/2 log(1 - d^2 / 4)
    d is raised to the cutoff, and w = 0 beyond the limit. Where this leaves an anchor no negative,
    all of them have equal weights.

    Args:
        cutoff: distances below count as this.
        limit: distances above are not drawn: beyond sqrt(2) the weight would rise again.
    """

    paper = Paper("Sampling Matters in Deep Embedding Learning", 2017, "arxiv.org/abs/1706.07567")
    departures: ClassVar[tuple[str, ...]] = (
        "no negative beyond the limit, and equal chances where that leaves none",
    )

    def __init__(self, *, cutoff: float = 0.5, limit: float = 1.4) -> None:
        self.cutoff = above(0, "cutoff", cutoff)
        self.limit = at_least(self.cutoff, "limit", limit)

    def mine(self, z: Tensor, y: Tensor, references: References) -> Triplets:
        pairs = all_pairs(y, references)
        triplets = as_triplets(pairs)
        log_weight_NM = self.log_weights(distances(z, references.z), pairs.negative, z.shape[1])
        chosen_P = draw_columns(log_weight_NM[triplets.anchor])
        return Triplets(triplets.anchor, triplets.positive, only(chosen_P, triplets.negative))

    def log_weights(self, d_NM: Tensor, negative_NM: Tensor, dim: int) -> Tensor:
        """Return log weights of negatives, up to a constant per row; -inf where never drawn."""
        raised_NM = d_NM.clamp(min=self.cutoff)
        admitted_NM = negative_NM & (d_NM <= self.limit)
        log_NM = (2 - dim) * raised_NM.log() - (dim - 3) / 2 * torch.log1p(
            -raised_NM.square().clamp(max=4 - 1e-6) / 4
        )
        log_NM = torch.where(
            admitted_NM.any(1, keepdim=True), log_NM.masked_fill(~admitted_NM, -torch.inf), 0
        )
        return log_NM.masked_fill(~negative_NM, -torch.inf)


def draw_columns(log_weight_PM: Tensor) -> Tensor:
    """Draw one column of each row (P,), with chances in proportion to the weights.

    A race of exponential clocks; where all weights of a row are 0, any column.
    """
    clock_PM = torch.empty_like(log_weight_PM).exponential_()
    clock_PM.clamp_(min=torch.finfo(log_weight_PM.dtype).tiny)
    return (log_weight_PM - clock_PM.log()).argmax(1)
