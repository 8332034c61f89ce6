"""Contrastive and triplet with signal-to-noise ratios.

Shapes: N batch, M references, P positive pairs, D dims.
"""

import torch
from torch import Tensor

from assay.losses.contrastive import contrast
from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, Triplets, squared_distances, triplet_hinges
from assay.registry import Paper
from assay.space import Real, Space, at_least

PAPER = Paper(
    "Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning",
    2019,
    "arxiv.org/abs/1904.02616",
)


@losses("snr_contrastive")
class SNRContrastive(Loss):
    """Contrastive, where a distance is how much noise the other sample adds to the anchor's signal.

    d_ij = var(z_i - z_j) / var(z_i), variances over dimensions:
        mean of [d - pos]+ over its non-zero terms in P
        + mean of [neg - d]+ over its non-zero terms in Q
        + r mean_i |sum of the dimensions of z_i|

    Args:
        pos_margin: ratio below which a positive pair costs nothing.
        neg_margin: ratio above which a negative pair costs nothing.
        regularisation: weight of the zero-mean term (r).
    """

    compares = "pairs"
    paper = PAPER
    departures = (
        (
            "embeddings are normalised, and each mean is over non-zero terms, as in the form that"
            " the reality check benchmarked"
        ),
    )

    def __init__(
        self, *, pos_margin: float = 0.0, neg_margin: float = 0.9, regularisation: float = 0.1
    ) -> None:
        super().__init__()
        self.pos_margin = at_least(0, "pos_margin", pos_margin)
        self.neg_margin = at_least(0, "neg_margin", neg_margin)
        self.regularisation = at_least(0, "regularisation", regularisation)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        ratio_NM, heard_N1 = noise_to_signal(z, references.z)
        heard = Pairs(pairs.positive & heard_N1, pairs.negative & heard_N1)
        balance = z.sum(1).abs().sum() / max(len(z), 1)
        return (
            contrast(ratio_NM, heard, self.pos_margin, self.neg_margin)
            + self.regularisation * balance
        )


@losses("snr_triplet")
class SNRTriplet(Loss):
    """Wants a negative to add more noise to the anchor's signal than the positive, by a margin.

    d_ij = var(z_i - z_j) / var(z_i), variances over dimensions:
        mean over its non-zero terms of [d_ap - d_an + m]+
        + r mean over the triplets of |sum of the dimensions of z_a|

    Args:
        margin: by how much a negative's ratio must be larger (m).
        regularisation: weight of the zero-mean term (r).
    """

    compares = "triplets"
    paper = PAPER
    departures = (
        (
            "embeddings are normalised, and the mean is over non-zero terms, as in the form of Roth"
            " et al. (2020, arxiv.org/abs/2002.08473)"
        ),
    )

    def __init__(self, *, margin: float = 0.2, regularisation: float = 0.005) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)
        self.regularisation = at_least(0, "regularisation", regularisation)

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        anchor_P, negative_PM = triplets.anchor, triplets.negative
        ratio_NM, heard_N1 = noise_to_signal(z, references.z)
        heard = Triplets(anchor_P, triplets.positive, negative_PM & heard_N1[anchor_P])
        total, active = triplet_hinges(ratio_NM, heard, self.margin)
        count_P = negative_PM.sum(1)
        balance = (count_P * z.sum(1).abs()[anchor_P]).sum() / count_P.sum().clamp(min=1)
        return total / active.clamp(min=1) + self.regularisation * balance


def noise_to_signal(z: Tensor, references_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Return var(z_i - z_j) / var(z_i) (N, M), and which samples have a signal (N, 1).

    A vector of equal entries has no signal beyond rounding and is to be compared with nothing.
    """
    centred_ND, centred_MD = (rows - rows.mean(1, keepdim=True) for rows in (z, references_MD))
    signal_N1 = centred_ND.square().sum(1, keepdim=True)
    heard_N1 = signal_N1 > 8 * torch.finfo(z.dtype).eps * z.square().sum(1, keepdim=True)
    ratio_NM = squared_distances(centred_ND, centred_MD) / torch.where(heard_N1, signal_N1, 1)
    return ratio_NM, heard_N1


methods.add(
    Method(
        "snr_contrastive",
        SNRContrastive,
        space=Space(
            pos_margin=Real(0, 2, natural="low"),
            neg_margin=Real(0, 2, natural="low"),
            regularisation=Real(0, 1, natural="low"),
        ),
        about="contrastive on signal-to-noise ratios instead of distances",
    )
)
