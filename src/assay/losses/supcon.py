"""Supervised contrastive. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, log_sum_exp, masked_mean, similarities
from assay.registry import Paper
from assay.space import Real, Space, above


@losses("supcon")
class SupCon(Loss):
    """Picks each positive out of all other samples, by a softmax over cosines.

    Eq. 2:  mean over anchors, then over their positives, of
            -log( e^(s_ap / T) / sum_{j != a} e^(s_aj / T) )

    Args:
        temperature: sharpness of the softmax (T).
    """

    compares = "pairs"
    paper = Paper("Supervised Contrastive Learning", 2020, "arxiv.org/abs/2004.11362", equation="2")
    departures = ("one view of each image; the mean is over anchors that have a positive",)

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = above(0, "temperature", temperature)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        s_NM = similarities(z, references.z) / self.temperature
        everyone_N = log_sum_exp(s_NM, pairs.positive | pairs.negative)
        positives_N = pairs.positive.sum(1)
        own_N = torch.where(pairs.positive, s_NM, 0).sum(1) / positives_N.clamp(min=1)
        return masked_mean(everyone_N - own_N, positives_N > 0)


methods.add(
    Method(
        "supcon",
        SupCon,
        space=Space(temperature=Real(1e-3, 10, log=True)),
        about="a softmax of each positive against all other samples",
    )
)
