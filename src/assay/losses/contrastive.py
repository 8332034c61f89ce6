"""Contrastive, and the weak form of the literature. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, distances
from assay.registry import Paper
from assay.space import Real, Space, at_least


@losses("contrastive")
class Contrastive(Loss):
    """Pulls positives inside one radius and pushes negatives outside another.

    Eq. 4, with two margins and without the squares:
        mean of [d - pos]+ over its non-zero terms in P
        + mean of [neg - d]+ over its non-zero terms in Q

    Args:
        pos_margin: distance below which a positive pair costs nothing.
        neg_margin: distance above which a negative pair costs nothing.
    """

    compares = "pairs"
    paper = Paper(
        "Dimensionality Reduction by Learning an Invariant Mapping",
        2006,
        "doi.org/10.1109/CVPR.2006.100",
        equation="4",
    )
    departures = (
        (
            "hinges are not squared, positives have a margin too, and each mean is over non-zero"
            " terms, as in the form that the reality check benchmarked"
        ),
    )

    def __init__(self, *, pos_margin: float = 0.0, neg_margin: float = 0.5) -> None:
        super().__init__()
        self.pos_margin = at_least(0, "pos_margin", pos_margin)
        self.neg_margin = at_least(0, "neg_margin", neg_margin)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        return contrast(distances(z, references.z), pairs, self.pos_margin, self.neg_margin)


def contrast(d_NM: Tensor, pairs: Pairs, pos_margin: float, neg_margin: float) -> Tensor:
    """Return the mean of non-zero [d - pos]+ over positives plus that of [neg - d]+ over negatives.

    A hinge is linear where it is not zero, so its mean is the mean of the distances there, minus or
    plus the margin.
    """
    with torch.no_grad():
        pull_NM = pairs.positive & (d_NM > pos_margin)
        push_NM = pairs.negative & (d_NM < neg_margin)
        pulls, pushes = (
            pull_NM.count_nonzero().to(d_NM.dtype),
            push_NM.count_nonzero().to(d_NM.dtype),
        )
        weights_NM = torch.where(pull_NM, 1 / pulls, torch.where(push_NM, -1 / pushes, 0))
        margins = neg_margin * pushes.clamp(max=1) - pos_margin * pulls.clamp(max=1)
    return (weights_NM * d_NM).sum() + margins


methods.add(
    Method(
        "contrastive",
        Contrastive,
        space=Space(pos_margin=Real(0, 2, natural="both"), neg_margin=Real(0, 2, natural="both")),
        about="two margins on the distances of pairs",
    ),
    Method(
        "contrastive_sampled",
        Contrastive,
        miner="random",
        fixed={"of": "pairs"},
        space=Space(),
        own_departures=(
            (
                "N/2 random pairs of a batch of N, half of them positive: the weak baseline of the"
                " literature"
            ),
        ),
        about="a weak baseline: contrastive on a few random pairs",
    ),
)
