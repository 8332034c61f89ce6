"""Angular together with N-pairs. Shapes: N batch, M references, A pairs, P positive pairs."""

import math

from torch import Tensor

from assay.losses import angular, n_pairs
from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Mined, References, as_pairs, as_triplets, log_sum_exp, masked_mean
from assay.space import Real, Space, at_least, inside


@losses("angular_n_pairs")
class AngularNPairs(Loss):
    """N-pairs plus angular: the sum with which the angular paper has its best results.

    L = mean_i  -log( e^(a_i . p_i) / sum_j e^(a_i . p_j) )
        + w mean over (a, p) of log(1 + sum_n e^(4 t (a + p).n - 2 (1 + t) a.p))
        + r (mean |a_i|^2 + mean |p_i|^2),  t = tan^2(alpha)
    (a_i, p_i) is the pair of a class in N-pairs; (a, p) are all positive pairs, and n all samples
    of other classes. Embeddings are not normalised.

    Args:
        alpha: largest angle at the negative that costs little, in degrees.
        weight: weight of the angular part (w).
        regularisation: weight of the squared lengths (r).
    """

    normalise = False
    compares = "either"
    paper = angular.PAPER
    departures = (
        *angular.AngularRaw.departures,
        "embeddings are regularised as in N-pairs, positives too, and the weight is a parameter",
    )

    def __init__(
        self, *, alpha: float = 45.0, weight: float = 2.0, regularisation: float = 0.002
    ) -> None:
        super().__init__()
        self.alpha = inside(0, 90, "alpha", alpha)
        self.squared_tangent = math.tan(math.radians(alpha)) ** 2
        self.weight = at_least(0, "weight", weight)
        self.regularisation = at_least(0, "regularisation", regularisation)

    def forward(self, z: Tensor, y: Tensor, mined: Mined, references: References) -> Tensor:
        s_AA, counted_AA, length_A = n_pairs.one_pair_of_each_class(
            z, y, as_pairs(mined, len(y)), references
        )
        cost_A = log_sum_exp(s_AA, counted_AA) - s_AA.diagonal() + self.regularisation * length_A
        triplets = as_triplets(mined)
        cost_P = angular.angles(z, triplets, references, self.squared_tangent)
        of_angles = masked_mean(cost_P, triplets.negative.any(1))
        return cost_A.sum() / max(len(cost_A), 1) + self.weight * of_angles


methods.add(
    Method(
        "angular_n_pairs",
        AngularNPairs,
        batch="pairs",
        space=Space(
            alpha=angular.SPACE["alpha"],
            weight=Real(0.1, 10, log=True),
            regularisation=n_pairs.SPACE["regularisation"],
        ),
        about="n-pairs plus the angle under which a negative sees a positive pair",
    )
)
