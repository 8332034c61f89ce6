"""Margin, with one boundary or one per class. Shapes: N batch, M references, C classes."""

import torch
from torch import Tensor, nn

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import check_labels
from assay.pairs import Mined, References, distances, pair_counts
from assay.registry import Paper
from assay.space import Real, Space, at_least

PAPER = Paper("Sampling Matters in Deep Embedding Learning", 2017, "arxiv.org/abs/1706.07567")
DEPARTURES = (
    (
        "all triplets of a batch where none are mined, and a divisor that counts hinges per"
        " triplet, as in the form that the reality check benchmarked"
    ),
    "the boundary has a learning rate of its own, and no regulariser (nu = 0)",
)


@losses("margin")
class Margin(Loss):
    """Wants positives inside and negatives outside of a learnt boundary, by a margin.

    Over all valid triplets (a, p, n):
        sum of [d_ap - b + m]+ and [b - d_an + m]+, divided by the number of those above 0
    A positive pair counts once for each negative of its anchor, a negative pair once for each
    positive.

    Args:
        margin: how far from the boundary a pair costs nothing (m).
        beta: where the boundary starts (b), a weight.
    """

    compares = "either"
    undecayed = ("beta",)
    paper = PAPER
    departures = DEPARTURES

    def __init__(self, *, margin: float = 0.2, beta: float = 1.2) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)
        self.beta = nn.Parameter(torch.tensor(float(at_least(0, "beta", beta))))

    def forward(self, z: Tensor, y: Tensor, mined: Mined, references: References) -> Tensor:
        return around(self.beta, self.margin, distances(z, references.z), mined)


@losses("margin_per_class")
class MarginPerClass(Loss):
    """Wants positives inside, negatives outside of a boundary learnt for each class, by a margin.

    Over all valid triplets (a, p, n), y the anchor's class:
        sum of [d_ap - b_y + m]+ and [b_y - d_an + m]+, divided by the number of those above 0

    Args:
        margin: how far from the boundary a pair costs nothing (m).
        beta: where every class's boundary starts (b), a weight.
    """

    compares = "either"
    undecayed = ("beta",)
    paper = PAPER
    departures = DEPARTURES

    def __init__(self, *, margin: float = 0.2, beta: float = 1.2) -> None:
        super().__init__()
        self.margin, self.start = at_least(0, "margin", margin), at_least(0, "beta", beta)
        self.setup(dim=0, classes=0)

    def setup(self, dim: int, classes: int) -> None:
        """Make one boundary per class."""
        self.beta = nn.Parameter(torch.full((classes,), float(self.start)))

    def forward(self, z: Tensor, y: Tensor, mined: Mined, references: References) -> Tensor:
        check_labels(y, len(self.beta))
        return around(
            self.beta.index_select(0, y.long())[:, None],
            self.margin,
            distances(z, references.z),
            mined,
        )


def around(beta_N1: Tensor, margin: float, d_NM: Tensor, mined: Mined) -> Tensor:
    """Compute the equation with each anchor's boundary.

    A hinge is linear where it is above 0. So counting such hinges for each pair gives the sum and
    its gradient as a weighted sum of distances.
    """
    beyond_NM = d_NM - beta_N1
    with torch.no_grad():
        positive_NM, negative_NM = pair_counts(mined, len(d_NM))
        pulls_NM = torch.where(beyond_NM > -margin, positive_NM, 0)
        pushes_NM = torch.where(beyond_NM < margin, negative_NM, 0)
        active = (pulls_NM + pushes_NM).sum(dtype=d_NM.dtype)
        weights_NM = (pulls_NM - pushes_NM).to(d_NM.dtype)
    return (weights_NM * beyond_NM).sum() / active.clamp(min=1) + margin * active.clamp(max=1)


SPACE = Space(
    margin=Real(0, 2, natural="low"), beta=Real(0, 2, natural="both"), weights_lr=WEIGHTS_LR
)

methods.add(
    Method(
        "margin",
        Margin,
        space=SPACE,
        about="a learnt boundary between the distances of positives and negatives",
    ),
    Method(
        "margin_per_class",
        MarginPerClass,
        space=SPACE,
        about="margin with a boundary for each class",
    ),
    Method(
        "margin_distance_weighted",
        MarginPerClass,
        miner="distance_weighted",
        space=SPACE,
        about="margin per class, on negatives drawn evenly over all distances",
    ),
    Method(
        "margin_distance_weighted_near",
        MarginPerClass,
        miner="distance_weighted",
        fixed={"beta": 0.6},
        space=Space(margin=SPACE["margin"], weights_lr=WEIGHTS_LR),
        own_departures=(
            (
                "the boundary starts at 0.6, as in one of the two forms of Roth et al. (2020,"
                " arxiv.org/abs/2002.08473)"
            ),
        ),
        about="margin per class, on distance-weighted negatives, with boundaries that start at 0.6",
    ),
)
