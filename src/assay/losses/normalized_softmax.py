"""Normalised softmax. Shapes: N batch, C classes, D dims."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.losses.loss import losses
from assay.method import WEIGHTS_LR, Loss, Method, methods
from assay.pairs import Pairs, References, Triplets
from assay.registry import Paper
from assay.space import Real, Space

NO_LABEL = -1 << 62
"""Nobody's label: torch's own choice, -100, would be left out without a word instead of being refused."""


@losses("normalized_softmax")
class NormalizedSoftmax(Loss):
    """Classifies by the cosine to one unit weight per class.

    Eq. 3:  mean_i  -log( e^(s_iy / T) / sum_c e^(s_ic / T) ),  s_ic = z_i . w_c / |w_c|

    Args:
        temperature: sharpness of the softmax (T).
    """

    paper = Paper("NormFace: L2 Hypersphere Embedding for Face Verification", 2017, "arxiv.org/abs/1704.06369", equation="3")
    departures = ("weights start from N(0, 1/D) as for every method with weights",)

    weights: nn.Parameter

    def __init__(self, *, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = temperature

    def setup(self, dim: int, classes: int) -> None:
        """One weight per class, of unit expected norm."""
        self.weights = nn.Parameter(torch.randn(classes, dim) / dim**0.5)

    def forward(
        self, z: Tensor, y: Tensor, mined: Pairs | Triplets | None = None, references: References | None = None
    ) -> Tensor:
        """The equation above; there is nothing to mine in a comparison with class weights."""
        s_NC = z @ F.normalize(self.weights, dim=1).to(z.dtype).T
        return F.cross_entropy(s_NC / self.temperature, y, ignore_index=NO_LABEL)


methods.add(
    Method(
        "normalized_softmax",
        NormalizedSoftmax,
        batch="classification",
        space=Space(temperature=Real(0.01, 100, log=True), weights_lr=WEIGHTS_LR),
        about="cross-entropy over cosines to one weight per class",
    )
)
