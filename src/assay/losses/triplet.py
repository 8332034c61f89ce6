"""Triplet, and the weak form of the literature.

Shapes: N batch, M references, P positive pairs.
"""

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import References, Triplets, distances, squared_distances, triplet_hinges
from assay.registry import Paper
from assay.space import Real, Space, at_least, one_of


@losses("triplet")
class Triplet(Loss):
    """Wants every negative farther from the anchor than the positive, by a margin.

    On distances instead of their squares:
        mean over its non-zero terms of [d_ap - d_an + m]+, all valid triplets
    with distance = squared:
        d_ap^2 and d_an^2 in the place of d_ap and d_an
    with over = all:
        mean over all terms, those that are 0 included

    Args:
        margin: by how much a negative must be farther (m).
        distance: what the margin is on: `plain` distances, or `squared` ones.
        over: what the mean is over: the `active` triplets, whose term is above 0, or `all`.
    """

    compares = "triplets"
    paper = Paper(
        "Distance Metric Learning for Large Margin Nearest Neighbor Classification",
        2006,
        "papers.nips.cc/paper/2795-distance-metric-learning-for-large-margin-nearest-neighbor-classification",
    )
    departures = (
        (
            "distances are not squared, and the mean is over non-zero terms, as in the form that"
            " the reality check benchmarked; the form of Roth et al. (2020,"
            " arxiv.org/abs/2002.08473) is distance=squared, over=all"
        ),
    )

    def __init__(
        self, *, margin: float = 0.1, distance: str = "plain", over: str = "active"
    ) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)
        self.apart = {"plain": distances, "squared": squared_distances}[
            one_of(("plain", "squared"), "distance", distance)
        ]
        self.over = one_of(("active", "all"), "over", over)

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        total, active = triplet_hinges(self.apart(z, references.z), triplets, self.margin)
        return total / (
            active if self.over == "active" else triplets.negative.count_nonzero()
        ).clamp(min=1)


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
        own_departures=(
            "N/3 random triplets of a batch of N, margin 1: the weak baseline of the literature",
        ),
        about="a weak baseline: triplet on a few random triplets",
    ),
)
