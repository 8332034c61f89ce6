"""Prototypical. Shapes: N batch, which is also the classes' width: a class stands in the column of
its first sample.
"""

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import log_sum_exp, masked_mean, squared_distances
from assay.registry import Paper
from assay.space import Real, Space, above


@losses("prototypical")
class Prototypical(Loss):
    """Picks a query's class by a softmax over its distances to the classes' means.

    Of a class's M samples, in the order of the batch, the first floor(M / 2) are its support S_c,
    the others are queries. Embeddings are not normalised.
        mu_c = mean of S_c
        mean over queries x of class y:  -log( e^(-k |x - mu_y|^2) / sum_c e^(-k |x - mu_c|^2) )
    A class with a single sample has neither support nor query.

    Args:
        scale: sharpness of the softmax (k).
    """

    normalise = False
    compares = "batch"
    paper = Paper("Prototypical Networks for Few-shot Learning", 2017, "arxiv.org/abs/1703.05175")
    departures = (
        "a scale on the squared distances, 1 in the paper",
        "the first half of a class's samples in the batch is its support, the rest are its queries",
    )

    def __init__(self, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = above(0, "scale", scale)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        # a common offset of raw embeddings would cost the digits of their differences
        z = z - z.detach().mean(0)
        same_NN = y[:, None] == y
        place_N, support_N = same_NN.tril(-1).sum(1), same_NN.sum(1) // 2
        is_support_N = place_N < support_N
        # without support, the column is not counted: its mean may be any finite vector
        share_NN = (same_NN & is_support_N) / support_N.clamp(min=1)[:, None].to(z.dtype)
        cost_NN = self.scale * squared_distances(z, share_NN @ z)
        is_class_N = (place_N == 0) & is_support_N
        cost_N = cost_NN.diagonal() + log_sum_exp(-cost_NN, is_class_N.expand_as(cost_NN))
        return masked_mean(cost_N, ~is_support_N & (support_N > 0))


methods.add(
    Method(
        "prototypical",
        Prototypical,
        batch="episodes",
        sampler="episodes",
        space=Space(scale=Real(0.01, 100, log=True)),
        about="a softmax over squared distances to the means of half of each class's samples",
    )
)
