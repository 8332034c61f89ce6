"""Softmax over cosines with a margin for the own class: CosFace, ArcFace, SphereFace.

Shapes: N batch, C classes.
"""

import math

import torch
from torch import Tensor

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import PROXY_START, cosines, cross_entropy, of_own_class, with_own_class
from assay.pairs import sine
from assay.registry import Paper
from assay.space import Integer, Real, Space, above, at_least, between, whole_number


@losses("cosface")
class CosFace(Loss):
    """Classifies by the cosine, the own class's made smaller by a margin.

    Eq. 4:  mean_i  cross-entropy over k (cos_c - m [c = y])

    Args:
        margin: taken off the own class's cosine (m).
        scale: sharpness of the softmax (k).
    """

    compares = "classes"
    paper = Paper(
        "CosFace: Large Margin Cosine Loss for Deep Face Recognition",
        2018,
        "arxiv.org/abs/1801.09414",
        equation="4",
    )
    departures = (PROXY_START,)

    def __init__(self, *, margin: float = 0.35, scale: float = 64.0) -> None:
        super().__init__()
        self.margin, self.scale = at_least(0, "margin", margin), above(0, "scale", scale)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        s_NC = cosines(z, y, self.weights)
        own_N1 = of_own_class(s_NC, y) - self.margin
        return cross_entropy(self.scale * with_own_class(s_NC, y, own_N1), y)


@losses("arcface")
class ArcFace(Loss):
    """Classifies by the cosine, the own class's angle made larger by a margin.

    Eq. 3:  mean_i  cross-entropy over k cos(theta_c + m [c = y])
    where theta + m is beyond 180 degrees, -2 - cos(theta + m) goes on falling.
    cos(theta + m) = cos(theta) cos(m) - sin(theta) sin(m), so no arc cosine is taken.

    Args:
        margin: added to the own class's angle, in degrees (m).
        scale: sharpness of the softmax (k).
    """

    compares = "classes"
    paper = Paper(
        "ArcFace: Additive Angular Margin Loss for Deep Face Recognition",
        2019,
        "arxiv.org/abs/1801.07698",
        equation="3",
    )
    departures = (
        PROXY_START,
        (
            "the continuous extension beyond 180 degrees; the form that the reality check"
            " benchmarked had none"
        ),
    )

    def __init__(self, *, margin: float = 28.6, scale: float = 64.0) -> None:
        super().__init__()
        self.margin, self.scale = between(0, 180, "margin", margin), above(0, "scale", scale)
        self.cos_m, self.sin_m = math.cos(math.radians(margin)), math.sin(math.radians(margin))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        s_NC = cosines(z, y, self.weights)
        own_N1 = of_own_class(s_NC, y)
        moved_N1 = own_N1 * self.cos_m - sine(own_N1) * self.sin_m
        moved_N1 = torch.where(own_N1 < -self.cos_m, -2 - moved_N1, moved_N1)
        return cross_entropy(self.scale * with_own_class(s_NC, y, moved_N1), y)


@losses("sphereface")
class SphereFace(Loss):
    """Classifies by the cosine, the own class's angle multiplied.

    Eq. 7:  mean_i  cross-entropy over k psi_c
            psi_y = (-1)^j cos(m theta_y) - 2j,  psi_c = cos(theta_c) for the other classes
    j = floor(m theta / 180 degrees), at most m - 1: the number of i in 1..m-1 with theta beyond
    180 i / m degrees.
    cos(m theta) is the Chebyshev polynomial T_m of cos(theta), so no arc cosine is taken.

    Args:
        margin: by which the own class's angle is multiplied (m).
        scale: sharpness of the softmax (k).
    """

    compares = "classes"
    paper = Paper(
        "SphereFace: Deep Hypersphere Embedding for Face Recognition",
        2017,
        "arxiv.org/abs/1704.08063",
        equation="7",
    )
    departures = (
        PROXY_START,
        "embeddings are normalised and scaled, and the margin is not annealed",
    )

    def __init__(self, *, margin: int = 4, scale: float = 30.0) -> None:
        super().__init__()
        self.margin, self.scale = whole_number(1, "margin", margin), above(0, "scale", scale)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        s_NC = cosines(z, y, self.weights)
        own_N1 = of_own_class(s_NC, y)
        turns_N1 = sum(
            (own_N1 < math.cos(math.pi * i / self.margin)).to(z.dtype)
            for i in range(1, self.margin)
        )
        sign_N1 = 1 - 2 * (turns_N1 % 2)
        psi_N1 = sign_N1 * chebyshev(self.margin, own_N1) - 2 * turns_N1
        return cross_entropy(self.scale * with_own_class(s_NC, y, psi_N1), y)


def chebyshev(degree: int, cosine: Tensor) -> Tensor:
    """Return cos(n theta) from x = cos(theta): T_n = 2 x T_(n-1) - T_(n-2)."""
    before, now = torch.ones_like(cosine), cosine
    for _ in range(degree - 1):
        before, now = now, 2 * cosine * now - before
    return now


methods.add(
    Method(
        "cosface",
        CosFace,
        batch="classification",
        space=Space(margin=Real(0, 1, natural="low"), scale=Real(0.01, 300), weights_lr=WEIGHTS_LR),
        about="a margin on the cosine to the own class's weight",
    ),
    Method(
        "arcface",
        ArcFace,
        batch="classification",
        space=Space(
            margin=Real(0, 90, natural="low"), scale=Real(0.01, 300), weights_lr=WEIGHTS_LR
        ),
        about="a margin on the angle to the own class's weight",
    ),
    Method(
        "sphereface",
        SphereFace,
        batch="classification",
        space=Space(margin=Integer(1, 6, natural="low"), scale=Real(1, 100), weights_lr=WEIGHTS_LR),
        about="the angle to the own class's weight, multiplied",
    ),
)
