"""Histogram. Shapes: N batch, M references, B histogram nodes."""

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, similarities, soft_histograms
from assay.registry import Paper
from assay.space import Integer, Space, whole_number


@losses("histogram")
class Histogram(Loss):
    """The probability that a random negative pair is more similar than a random positive pair.

    sum_r h-_r sum_{q <= r} h+_q
    h+ and h- are the soft histograms of positive and negative similarities on [-1, 1], of sum 1.

    Args:
        bins: steps of the histograms, which have one node more.
    """

    compares = "pairs"
    paper = Paper("Learning Deep Embeddings with Histogram Loss", 2016, "arxiv.org/abs/1611.00822")

    def __init__(self, *, bins: int = 100) -> None:
        super().__init__()
        self.bins = whole_number(2, "bins", bins)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        positive_NB, negative_NB = soft_histograms(
            similarities(z, references.z), pairs, -1, 1, self.bins
        )
        positive_B = positive_NB.sum(0) / pairs.positive.sum().clamp(min=1)
        negative_B = negative_NB.sum(0) / pairs.negative.sum().clamp(min=1)
        return (negative_B * positive_B.cumsum(0)).sum()


methods.add(
    Method(
        "histogram",
        Histogram,
        space=Space(bins=Integer(10, 200)),
        about="the overlap of the similarities of positive and negative pairs",
    )
)
