"""FastAP. Shapes: N batch, M references, B histogram nodes."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, masked_mean, similarities, soft_histograms
from assay.registry import Paper
from assay.space import Integer, Space, whole_number


@losses("fastap")
class FastAP(Loss):
    """Average precision, from histograms of each anchor's squared distances.

    1 - mean over anchors of 1/N+ sum_j h+_j H+_j / H_j
    h+ is the soft histogram of the anchor's positives over d^2 in [0, 4], h that of all its pairs;
    H+ and H are cumulative. N+ is the number of its positives; the mean is over anchors with one.

    Args:
        bins: steps of the histograms, which have one node more.
    """

    compares = "pairs"
    paper = Paper(
        "Deep Metric Learning to Rank",
        2019,
        "openaccess.thecvf.com/content_CVPR_2019/html/Cakir_Deep_Metric_Learning_to_Rank_CVPR_2019_paper.html",
    )
    departures = ("the mean is over anchors that have a positive",)

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__()
        self.bins = whole_number(2, "bins", bins)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        squared_NM = 2 - 2 * similarities(z, references.z)  # d^2 on unit vectors
        positive_NB, negative_NB = soft_histograms(squared_NM, pairs, 0, 4, self.bins)
        found_NB = positive_NB.cumsum(1)
        seen_NB = found_NB + negative_NB.cumsum(1)
        precision_NB = found_NB / torch.where(seen_NB > 0, seen_NB, 1)
        positives_N = pairs.positive.sum(1)
        average_precision_N = (positive_NB * precision_NB).sum(1) / positives_N.clamp(min=1)
        return masked_mean(1 - average_precision_N, positives_N > 0)


methods.add(
    Method(
        "fastap",
        FastAP,
        space=Space(bins=Integer(2, 256, natural="low")),
        about="average precision from histograms of distances",
    )
)
