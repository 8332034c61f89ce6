"""Triplet of FaceNet, on semi-hard triplets. Shapes: N batch, M references, P positive pairs."""

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import References, Triplets, distances, squared_distances, triplet_hinges
from assay.registry import Paper
from assay.space import Real, Space, at_least

PAPER = Paper(
    "FaceNet: A Unified Embedding for Face Recognition and Clustering",
    2015,
    "arxiv.org/abs/1503.03832",
    equation="3",
)


@losses("triplet_mean")
class TripletMean(Loss):
    """The triplet hinge, averaged over all triplets, those that cost nothing included.

    Eq. 3, on distances instead of their squares:
        mean over the triplets of [d_ap - d_an + m]+

    Args:
        margin: by how much a negative must be farther (m).
    """

    compares = "triplets"
    paper = PAPER
    departures = ("distances are not squared",)

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        total, _ = triplet_hinges(distances(z, references.z), triplets, self.margin)
        return total / triplets.negative.count_nonzero().clamp(min=1)


@losses("triplet_squared")
class TripletSquared(Loss):
    """The triplet hinge on squared distances of embeddings that are not normalised.

    Eq. 3:  mean over the triplets of [|a - p|^2 - |a - n|^2 + m]+

    Args:
        margin: by how much a negative's squared distance must be larger (m).
    """

    normalise = False
    compares = "triplets"
    paper = PAPER
    departures = ("embeddings are not normalised, as in the unbiased evaluation",)

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        # a common offset of raw embeddings would cost the digits of their differences
        centre_D = z.detach().mean(0)
        total, _ = triplet_hinges(
            squared_distances(z - centre_D, references.z - centre_D), triplets, self.margin
        )
        return total / triplets.negative.count_nonzero().clamp(min=1)


methods.add(
    Method(
        "triplet_semihard",
        TripletMean,
        miner="semihard",
        space=Space(margin=Real(0, 2, natural="both")),
        about="each positive pair with the nearest negative that is farther",
    ),
    Method(
        "triplet_semihard_squared",
        TripletSquared,
        miner="semihard",
        space=Space(margin=Real(0, 2, natural="low")),
        about="semi-hard triplets on squared distances of raw embeddings",
    ),
)
