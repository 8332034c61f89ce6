"""Normalised softmax. Shapes: N batch, C classes, D dims."""

from torch import Tensor

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import PROXY_START, cosines, cross_entropy
from assay.registry import Paper
from assay.space import Real, Space, above


@losses("normalized_softmax")
class NormalizedSoftmax(Loss):
    """Classifies by the cosine to one unit weight per class.

    Eq. 3:  mean_i  -log( e^(s_iy / T) / sum_c e^(s_ic / T) ),  s_ic = z_i . w_c / |w_c|

    Args:
        temperature: sharpness of the softmax (T).
    """

    compares = "classes"
    paper = Paper(
        "NormFace: L2 Hypersphere Embedding for Face Verification",
        2017,
        "arxiv.org/abs/1704.06369",
        equation="3",
    )
    departures = (PROXY_START,)

    def __init__(self, *, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = above(0, "temperature", temperature)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(cosines(z, y, self.weights) / self.temperature, y)


methods.add(
    Method(
        "normalized_softmax",
        NormalizedSoftmax,
        batch="classification",
        space=Space(temperature=Real(0.01, 100, log=True), weights_lr=WEIGHTS_LR),
        about="cross-entropy over cosines to one weight per class",
    )
)
