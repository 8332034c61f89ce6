"""Triplet. Shapes: N batch, M references, P positive pairs."""

import torch
from torch import Tensor

from assay.losses.loss import losses
from assay.method import Loss, Method, methods
from assay.pairs import References, Triplets, all_triplets, distances, mean_of_active
from assay.registry import Paper
from assay.space import Real, Space


@losses("triplet")
class Triplet(Loss):
    """Wants every negative farther from the anchor than the positive, by a margin.

    Eq. 10, on distances instead of their squares:
        mean over its non-zero terms of [d_ap - d_an + m]+, all valid triplets

    Args:
        margin: by how much a negative must be farther (m).
    """

    paper = Paper(
        "Distance Metric Learning for Large Margin Nearest Neighbor Classification",
        2006,
        "jmlr.org/papers/v10/weinberger09a.html",
        equation="10",
    )
    departures = (
        "distances are not squared, and the mean is over non-zero terms of all triplets of a batch, "
        "as in the form that the reality check benchmarked",
    )

    def __init__(self, *, margin: float = 0.1) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, z: Tensor, y: Tensor, mined: Triplets | None = None, references: References | None = None) -> Tensor:
        """The equation above."""
        references = references or References.of_batch(z, y)
        triplets = mined or all_triplets(y, references)
        d_NM = distances(z, references.z)
        d_ap_P = d_NM[triplets.anchor, triplets.positive]
        hinge_PM = torch.relu(d_ap_P[:, None] - d_NM[triplets.anchor] + self.margin)
        return mean_of_active(hinge_PM * triplets.negative)


methods.add(
    Method(
        "triplet",
        Triplet,
        space=Space(margin=Real(0, 2, natural="both")),
        about="a margin between the distances to a positive and to a negative",
    )
)
