"""Angular, on unit vectors and raw. Shapes: N batch, M references, P positive pairs."""

import math

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import References, Triplets, log1p_sum_exp, masked_mean, similarities
from assay.registry import Paper
from assay.space import Real, Space, at_least, inside

PAPER = Paper("Deep Metric Learning with Angular Loss", 2017, "arxiv.org/abs/1708.01682")


@losses("angular")
class Angular(Loss):
    """Bounds the angle under which a negative sees an anchor and its positive.

    mean over (a, p) of log(1 + sum_n e^(4 t (a + p).n - 2 (1 + t) a.p)),  t = tan^2(alpha)
    n over all samples of other classes. Only on unit vectors does the exponent stand for the angle.

    Args:
        alpha: largest angle at the negative that costs little, in degrees.
    """

    compares = "triplets"
    paper = PAPER
    departures = ("embeddings are normalised, and negatives are all samples of other classes",)

    def __init__(self, *, alpha: float = 45.0) -> None:
        super().__init__()
        self.alpha = inside(0, 90, "alpha", alpha)
        self.squared_tangent = math.tan(math.radians(alpha)) ** 2

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        return masked_mean(
            angles(z, triplets, references, self.squared_tangent), triplets.negative.any(1)
        )


@losses("angular_raw")
class AngularRaw(Loss):
    """Angular on embeddings that are not normalised, with a weight on their squared length.

    mean over (a, p) of log(1 + sum_n e^(4 t (a + p).n - 2 (1 + t) a.p)) + r (|a|^2 + |p|^2)
    with t = tan^2(alpha)

    Args:
        alpha: largest angle at the negative that costs little, in degrees.
        regularisation: weight of the squared lengths (r).
    """

    normalise = False
    compares = "triplets"
    paper = PAPER
    departures = ("negatives are all samples of other classes",)

    def __init__(self, *, alpha: float = 45.0, regularisation: float = 0.0005) -> None:
        super().__init__()
        self.alpha = inside(0, 90, "alpha", alpha)
        self.squared_tangent = math.tan(math.radians(alpha)) ** 2
        self.regularisation = at_least(0, "regularisation", regularisation)

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        length_P = (
            z.square().sum(1)[triplets.anchor] + references.z.square().sum(1)[triplets.positive]
        )
        cost_P = (
            angles(z, triplets, references, self.squared_tangent) + self.regularisation * length_P
        )
        return masked_mean(cost_P, triplets.negative.any(1))


def angles(z: Tensor, triplets: Triplets, references: References, t: float) -> Tensor:
    """Return the term of each positive pair (P,), t = tan^2(alpha)."""
    s_NM = similarities(z, references.z)
    s_MM = s_NM if references.z is z else similarities(references.z, references.z)
    together_P1 = s_NM[triplets.anchor, triplets.positive][:, None]
    towards_PM = s_NM.index_select(0, triplets.anchor) + s_MM.index_select(0, triplets.positive)
    return log1p_sum_exp(4 * t * towards_PM - 2 * (1 + t) * together_P1, triplets.negative)


SPACE = Space(alpha=Real(20, 60))

methods.add(
    Method(
        "angular",
        Angular,
        batch="pairs",
        space=SPACE,
        about="the angle under which a negative sees a positive pair",
    ),
    Method(
        "angular_raw",
        AngularRaw,
        batch="pairs",
        space=SPACE,
        about="angular on embeddings that are not normalised",
    ),
)
