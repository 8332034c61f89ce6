"""Lifted structure, as published and generalised. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, distances, log_sum_exp, masked_mean
from assay.registry import Paper
from assay.space import Real, Space, at_least


@losses("lifted")
class Lifted(Loss):
    """Pulls each positive pair together against all negatives of both its ends.

    Eq. 4:  1/(2|U|) sum over the unordered positive pairs U of
            [ log( sum_k e^(m - d_ik) + sum_l e^(m - d_jl) ) + d_ij ]+^2
    k over the negatives of i, l over those of j.

    Args:
        margin: distance that a negative should have (m).
    """

    compares = "pairs"
    paper = Paper(
        "Deep Metric Learning via Lifted Structured Feature Embedding",
        2016,
        "arxiv.org/abs/1511.06452",
        equation="4",
    )
    departures = ("embeddings are normalised, as in the reality check's library",)

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        # over ordered pairs; the negatives of a reference are the samples that it is a negative of
        d_NM = distances(z, references.z)
        near_N1 = log_sum_exp(self.margin - d_NM, pairs.negative)[:, None]
        near_M = log_sum_exp(self.margin - d_NM, pairs.negative, dim=0)
        hinge_NM = torch.relu(torch.logaddexp(near_N1, near_M) + d_NM)
        return masked_mean(hinge_NM.square(), pairs.positive) / 2


@losses("lifted_generalized")
class LiftedGeneralized(Loss):
    """Pulls all of an anchor's positives together against all of its negatives.

    mean over anchors of [ lse_p d_ap + lse_n (m - d_an) ]+
    The mean is over anchors that have both kinds of pair.

    Args:
        margin: distance that a negative should have (m).
    """

    compares = "pairs"
    paper = Paper(
        "In Defense of the Triplet Loss for Person Re-Identification",
        2017,
        "arxiv.org/abs/1703.07737",
    )
    departures = ("embeddings are normalised, so that nothing need be said about their length",)

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        d_NM = distances(z, references.z)
        hinge_N = torch.relu(
            log_sum_exp(d_NM, pairs.positive) + log_sum_exp(self.margin - d_NM, pairs.negative)
        )
        return masked_mean(hinge_N, pairs.positive.any(1) & pairs.negative.any(1))


SPACE = Space(margin=Real(0, 2, natural="low"))

methods.add(
    Method(
        "lifted",
        Lifted,
        space=SPACE,
        about="each positive pair against all negatives of both its ends",
    ),
    Method(
        "lifted_generalized",
        LiftedGeneralized,
        space=SPACE,
        about="all of an anchor's positives against all its negatives",
    ),
)
