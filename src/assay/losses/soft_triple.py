"""SoftTriple. Shapes: N batch, C classes, K centres of a class, D dims."""

import torch
from torch import Tensor

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, make_weights, methods
from assay.losses.proxies import PROXY_START, check_fit, cross_entropy, of_own_class, with_own_class
from assay.pairs import unit
from assay.registry import Paper
from assay.space import Real, Space, above, at_least, whole_number


@losses("soft_triple")
class SoftTriple(Loss):
    """Classifies by the similarity to a class's centres, the nearer of which count for more.

    S_ic = sum_k softmax over the class's centres of (s_ick / g) s_ick:
        mean_i  cross-entropy over l (S_ic - m [c = y])
        plus r / (C K (K - 1)) sum over unordered pairs of a class's centres
            of sqrt(2 + 1e-5 - 2 w.w')

    Args:
        centres: of each class (K).
        scale: sharpness of the softmax over classes (l).
        gamma: softness of the choice among a class's centres (g).
        margin: taken off the own class's similarity (m).
        regularisation: weight of the term that merges centres (r).
    """

    compares = "classes"
    paper = Paper(
        "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling",
        2019,
        "arxiv.org/abs/1909.05235",
    )
    departures = (PROXY_START,)

    def __init__(
        self,
        *,
        centres: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        regularisation: float = 0.2,
    ) -> None:
        super().__init__()
        self.centres = whole_number(1, "centres", centres)
        self.scale, self.gamma = above(0, "scale", scale), above(0, "gamma", gamma)
        self.margin, self.regularisation = (
            at_least(0, "margin", margin),
            at_least(0, "regularisation", regularisation),
        )

    def setup(self, dim: int, classes: int) -> None:
        """Make K centres per class."""
        self.weights = make_weights(classes, self.centres, dim)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        check_fit(z, y, self.weights)
        unit_CKD = unit(self.weights.flatten(0, 1).to(z.dtype)).view_as(self.weights)
        s_NCK = (z @ unit_CKD.flatten(0, 1).T).view(len(z), len(self.weights), self.centres)
        similarity_NC = ((s_NCK / self.gamma).softmax(2) * s_NCK).sum(2)
        own_N1 = of_own_class(similarity_NC, y) - self.margin
        return cross_entropy(
            self.scale * with_own_class(similarity_NC, y, own_N1), y
        ) + self._spread(unit_CKD)

    def _spread(self, unit_CKD: Tensor) -> Tensor | float:
        """Return the term that merges the centres of a class."""
        classes, centres, _ = unit_CKD.shape
        if centres == 1:
            return 0.0
        apart_CKK = (2 + 1e-5 - 2 * unit_CKD @ unit_CKD.mT).sqrt()
        other_KK = ~torch.eye(centres, dtype=torch.bool, device=unit_CKD.device)
        total: Tensor = (apart_CKK * other_KK).sum() / 2
        return self.regularisation * total / (classes * centres * (centres - 1))


methods.add(
    Method(
        "soft_triple",
        SoftTriple,
        batch="classification",
        space=Space(
            scale=Real(0.01, 200),
            gamma=Real(0.01, 100),
            regularisation=Real(0, 1, natural="low"),
            margin=Real(0, 1, natural="low"),
            weights_lr=WEIGHTS_LR,
        ),
        about="cross-entropy over several centres per class",
    )
)
