"""Contrastive. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.losses.loss import losses
from assay.method import Loss, Method, methods
from assay.pairs import Pairs, References, all_pairs, distances, mean_of_active
from assay.registry import Paper
from assay.space import Real, Space


@losses("contrastive")
class Contrastive(Loss):
    """Pulls positives inside one radius and pushes negatives outside another.

    Eq. 4, with two margins and without the squares:
        mean of [d - pos]+ over its non-zero terms in P, plus mean of [neg - d]+ over its non-zero terms in Q

    Args:
        pos_margin: distance below which a positive pair costs nothing.
        neg_margin: distance above which a negative pair costs nothing.
    """

    paper = Paper(
        "Dimensionality Reduction by Learning an Invariant Mapping", 2006, "doi.org/10.1109/CVPR.2006.100", equation="4"
    )
    departures = (
        "hinges are not squared, positives have a margin too, and each mean is over non-zero terms, "
        "as in the form that the reality check benchmarked",
    )

    def __init__(self, *, pos_margin: float = 0.0, neg_margin: float = 0.5) -> None:
        super().__init__()
        self.pos_margin, self.neg_margin = pos_margin, neg_margin

    def forward(self, z: Tensor, y: Tensor, mined: Pairs | None = None, references: References | None = None) -> Tensor:
        """The equation above."""
        references = references or References.of_batch(z, y)
        pairs = mined or all_pairs(y, references)
        d_NM = distances(z, references.z)
        pull_NM = torch.relu(d_NM - self.pos_margin) * pairs.positive
        push_NM = torch.relu(self.neg_margin - d_NM) * pairs.negative
        return mean_of_active(pull_NM) + mean_of_active(push_NM)


methods.add(
    Method(
        "contrastive",
        Contrastive,
        space=Space(pos_margin=Real(0, 2, natural="both"), neg_margin=Real(0, 2, natural="both")),
        about="two margins on the distances of pairs",
    )
)
