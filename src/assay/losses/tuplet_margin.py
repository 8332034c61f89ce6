"""Tuplet margin. Shapes: N batch, M references."""

import math

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, log1p_exp, log_sum_exp, masked_mean, similarities, sine
from assay.registry import Paper
from assay.space import Real, Space, above, between


@losses("tuplet_margin")
class TupletMargin(Loss):
    """Picks each positive, its angle made smaller by a slack, out of the anchor's negatives.

    mean over (a, p) of log(1 + sum_n e^(k (cos_an - cos(theta_ap - m))))
    cos(theta - m) = cos(theta) cos(m) + sin(theta) sin(m), so no arc cosine is taken.

    Args:
        scale: sharpness (k).
        margin: taken off the positive's angle, in degrees (m).
    """

    compares = "pairs"
    paper = Paper(
        "Deep Metric Learning with Tuplet Margin Loss",
        2019,
        "openaccess.thecvf.com/content_ICCV_2019/html/Yu_Deep_Metric_Learning_With_Tuplet_Margin_Loss_ICCV_2019_paper.html",
    )
    departures = ("all positive pairs and all negatives of a batch; no intra-pair variance term",)

    def __init__(self, *, scale: float = 64.0, margin: float = 5.73) -> None:
        super().__init__()
        self.scale, self.margin = above(0, "scale", scale), between(0, 180, "margin", margin)
        self.cos_m, self.sin_m = math.cos(math.radians(margin)), math.sin(math.radians(margin))

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        s_NM = similarities(z, references.z)
        slackened_NM = s_NM * self.cos_m + sine(s_NM) * self.sin_m
        others_N1 = log_sum_exp(self.scale * s_NM, pairs.negative)[:, None]
        return masked_mean(log1p_exp(others_N1 - self.scale * slackened_NM), pairs.positive)


methods.add(
    Method(
        "tuplet_margin",
        TupletMargin,
        space=Space(scale=Real(1, 200), margin=Real(0, 30, natural="low")),
        about="each positive, with some slack in its angle, against the anchor's negatives",
    )
)
