"""Smooth-AP. Shapes: N batch, M references, P positive pairs."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, masked_mean, similarities
from assay.registry import Paper
from assay.space import Real, Space, above


@losses("smooth_ap")
class SmoothAP(Loss):
    """Average precision, with a sigmoid in the place of each comparison of similarities.

    1 - mean over anchors a of
        1/|P_a| sum_p (1 + sum_{j in P_a, j != p} g_jp) / (1 + sum_{j != a, p} g_jp)
    with g_jp = sigmoid((s_aj - s_ap) / T), over anchors that have a positive.

    Args:
        temperature: softness of a comparison (T).
    """

    compares = "pairs"
    paper = Paper(
        "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval",
        2020,
        "arxiv.org/abs/2007.12163",
    )
    departures = ("the mean is over anchors that have a positive",)

    def __init__(self, *, temperature: float = 0.01) -> None:
        super().__init__()
        self.temperature = above(0, "temperature", temperature)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        s_NM = similarities(z, references.z) / self.temperature
        anchor_P, positive_P = pairs.positive.nonzero(as_tuple=True)
        above_PM = torch.sigmoid(s_NM[anchor_P] - s_NM[anchor_P, positive_P][:, None])
        # the sum over positives holds p itself, as sigmoid(0) = 0.5
        found_P = 0.5 + (above_PM * pairs.positive[anchor_P]).sum(1)
        seen_P = found_P + (above_PM * pairs.negative[anchor_P]).sum(1)
        positives_N = pairs.positive.sum(1)
        average_precision_N = torch.zeros_like(z[:, 0]).index_add(
            0, anchor_P, found_P / seen_P
        ) / positives_N.clamp(min=1)
        return masked_mean(1 - average_precision_N, positives_N > 0)


methods.add(
    Method(
        "smooth_ap",
        SmoothAP,
        space=Space(temperature=Real(1e-3, 1, log=True)),
        about="average precision with soft comparisons",
    )
)
