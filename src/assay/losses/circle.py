"""Circle, on pairs and on class weights. Shapes: N batch, M references, C classes."""

import torch
from torch import Tensor

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import PROXY_START, cosines, is_own_class
from assay.pairs import Pairs, References, log1p_exp, log_sum_exp, masked_mean, similarities
from assay.registry import Paper
from assay.space import Real, Space, above, at_least

PAPER = Paper(
    "Circle Loss: A Unified Perspective of Pair Similarity Optimization",
    2020,
    "arxiv.org/abs/2002.10857",
    equation="6",
)


@losses("circle")
class Circle(Loss):
    """Weighs each similarity by how far it is from its optimum.

    Eq. 6:  mean over anchors of log(1 + sum_n e^(g a_n (s_n - m)) sum_p e^(-g a_p (s_p - 1 + m)))
    with a_p = [1 + m - s_p]+ and a_n = [s_n + m]+, which carry no gradient.
    The mean is over anchors that have both kinds of pair.

    Args:
        margin: relaxation (m).
        gamma: sharpness (g).
    """

    compares = "pairs"
    paper = PAPER
    departures = ("the mean is over anchors that have both kinds of pair",)

    def __init__(self, *, margin: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        self.margin, self.gamma = at_least(0, "margin", margin), above(0, "gamma", gamma)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        return encircle(similarities(z, references.z), pairs, self.margin, self.gamma)


@losses("circle_class")
class CircleClass(Loss):
    """Weighs the similarity to each class weight by how far it is from its optimum.

    Eq. 6 with one positive, the own class's weight, and the other classes' weights as negatives:
        mean_i log(1 + sum_{c != y} e^(g a_c (s_c - m)) e^(-g a_y (s_y - 1 + m)))

    Args:
        margin: relaxation (m).
        gamma: sharpness (g).
    """

    compares = "classes"
    paper = PAPER
    departures = (PROXY_START,)

    def __init__(self, *, margin: float = 0.4, gamma: float = 256.0) -> None:
        super().__init__()
        self.margin, self.gamma = at_least(0, "margin", margin), above(0, "gamma", gamma)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        s_NC = cosines(z, y, self.weights)
        own_NC = is_own_class(y, len(self.weights))
        return encircle(s_NC, Pairs(own_NC, ~own_NC), self.margin, self.gamma)


def encircle(s_NM: Tensor, pairs: Pairs, margin: float, gamma: float) -> Tensor:
    """Compute the equation on any similarities."""
    constant_NM = s_NM.detach()
    pull_NM = -gamma * torch.relu(1 + margin - constant_NM) * (s_NM - 1 + margin)
    push_NM = gamma * torch.relu(constant_NM + margin) * (s_NM - margin)
    cost_N = log1p_exp(log_sum_exp(push_NM, pairs.negative) + log_sum_exp(pull_NM, pairs.positive))
    return masked_mean(cost_N, pairs.positive.any(1) & pairs.negative.any(1))


SPACE = Space(margin=Real(0, 1, natural="low"), gamma=Real(1, 512))

methods.add(
    Method(
        "circle", Circle, space=SPACE, about="pairs weighed by how far they are from their optimum"
    ),
    Method(
        "circle_class",
        CircleClass,
        batch="classification",
        space=SPACE | Space(weights_lr=WEIGHTS_LR),
        about="circle with similarities to class weights",
    ),
)
