"""N-pairs, in one direction and in both. Shapes: N batch, M references, A pairs."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, log_sum_exp
from assay.registry import Paper
from assay.space import Real, Space, at_least

PAPER = Paper(
    "Improved Deep Metric Learning with Multi-class N-pair Loss Objective",
    2016,
    "papers.nips.cc/paper/6200-improved-deep-metric-learning-with-multi-class-n-pair-loss-objective",
)


@losses("n_pairs")
class NPairs(Loss):
    """Picks each class's positive out of those of all classes, by a softmax over inner products.

    One pair (a_i, p_i) of each class, embeddings not normalised:
        mean_i  -log( e^(a_i . p_i) / sum_j e^(a_i . p_j) ),  plus r (mean |a|^2 + mean |p|^2)
    A class's pair is its first sample with a positive, and the first of these.

    Args:
        regularisation: weight of the squared lengths (r).
    """

    normalise = False
    compares = "pairs"
    paper = PAPER
    departures = (
        "the squared length of positives is regularised too, and its weight is a parameter",
    )

    def __init__(self, *, regularisation: float = 0.002) -> None:
        super().__init__()
        self.regularisation = at_least(0, "regularisation", regularisation)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        s_AA, counted_AA, length_A = one_pair_of_each_class(z, y, pairs, references)
        cost_A = log_sum_exp(s_AA, counted_AA) - s_AA.diagonal() + self.regularisation * length_A
        return cost_A.sum() / max(len(cost_A), 1)


@losses("n_pairs_symmetric")
class NPairsSymmetric(Loss):
    """N-pairs with the roles of anchors and positives exchanged as well, averaged.

    1/2 mean_i  -log( e^(a_i . p_i) / sum_j e^(a_i . p_j) )
                -log( e^(a_i . p_i) / sum_j e^(a_j . p_i) ),  plus r (mean |a|^2 + mean |p|^2)

    Args:
        regularisation: weight of the squared lengths (r).
    """

    normalise = False
    compares = "pairs"
    paper = PAPER
    departures = (*NPairs.departures, "both directions instead of one")

    def __init__(self, *, regularisation: float = 0.002) -> None:
        super().__init__()
        self.regularisation = at_least(0, "regularisation", regularisation)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        s_AA, counted_AA, length_A = one_pair_of_each_class(z, y, pairs, references)
        both_A = log_sum_exp(s_AA, counted_AA) + log_sum_exp(s_AA, counted_AA, dim=0)
        cost_A = both_A / 2 - s_AA.diagonal() + self.regularisation * length_A
        return cost_A.sum() / max(len(cost_A), 1)


def one_pair_of_each_class(
    z: Tensor, y: Tensor, pairs: Pairs, references: References
) -> tuple[Tensor, Tensor, Tensor]:
    """Return products of anchors and positives (A, A), which count, and |a|^2 + |p|^2 (A,)."""
    has_positive_N = pairs.positive.any(1)
    anchor_A = (has_positive_N & ~((y[:, None] == y).tril_(-1) & has_positive_N).any(1)).nonzero()[
        :, 0
    ]
    positive_A = (
        pairs.positive[anchor_A].to(torch.uint8).argmax(1) if len(references.z) else anchor_A
    )
    anchor_AD, positive_AD = z.index_select(0, anchor_A), references.z.index_select(0, positive_A)
    own_AA = torch.eye(len(anchor_A), dtype=torch.bool, device=y.device)
    counted_AA = pairs.negative[anchor_A][:, positive_A] | own_AA
    return (
        anchor_AD @ positive_AD.T,
        counted_AA,
        anchor_AD.square().sum(1) + positive_AD.square().sum(1),
    )


SPACE = Space(regularisation=Real(1e-5, 1e-1, log=True))

methods.add(
    Method(
        "n_pairs",
        NPairs,
        batch="pairs",
        space=SPACE,
        about="each class's positive against those of the other classes",
    ),
    Method(
        "n_pairs_symmetric",
        NPairsSymmetric,
        batch="pairs",
        space=SPACE,
        about="n-pairs in both directions",
    ),
    Method(
        "n_pairs_copies",
        NPairs,
        batch="pairs",
        sampler="copies",
        space=SPACE,
        own_departures=(
            "a pair is two augmented views of one image; on vectors, which are not augmented, its"
            " two embeddings are the same",
        ),
        about="n-pairs of augmented copies of one image; on vectors, copies are identical",
    ),
)
