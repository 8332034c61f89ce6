"""Triplet, and the weak form in which the literature beats it. Shapes: N batch, M references, P positive pairs."""

from torch import Tensor

from assay.domain import at_least
from assay.losses.loss import losses
from assay.method import Loss, Method, methods
from assay.pairs import References, Triplets, distances, triplet_hinges
from assay.registry import Paper
from assay.space import Real, Space


@losses("triplet")
class Triplet(Loss):
    """Wants every negative farther from the anchor than the positive, by a margin.

    On distances instead of their squares:
        mean over its non-zero terms of [d_ap - d_an + m]+, all valid triplets

    Args:
        margin: by how much a negative must be farther (m).
    """

    compares = "triplets"
    paper = Paper(
        "Distance Metric Learning for Large Margin Nearest Neighbor Classification",
        2006,
        "papers.nips.cc/paper/2795-distance-metric-learning-for-large-margin-nearest-neighbor-classification",
    )
    departures = (
        "distances are not squared, and the mean is over non-zero terms, as in the form that the reality check benchmarked",
    )

    def __init__(self, *, margin: float = 0.1) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        """The equation above."""
        total, active = triplet_hinges(distances(z, references.z), triplets, self.margin)
        return total / active.clamp(min=1)


methods.add(
    Method(
        "triplet",
        Triplet,
        space=Space(margin=Real(0, 2, natural="both")),
        about="a margin between the distances to a positive and to a negative",
    ),
    Method(
        "triplet_sampled",
        Triplet,
        miner="random",
        fixed={"of": "triplets", "margin": 1.0},
        space=Space(),
        own_departures=("N/3 random triplets of a batch of N, margin 1: the weak baseline of the literature",),
        about="a weak baseline: triplet on a few random triplets",
    ),
)
