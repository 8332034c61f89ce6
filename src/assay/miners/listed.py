"""Triplets and pairs as they stand in the batch.

Shapes: N batch, M references, T triplets or pairs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.miners.miner import Miner, miners
from assay.miners.semihard import only
from assay.pairs import Pairs, References, Triplets, all_pairs
from assay.registry import Paper


@miners("listed_triplets")
class ListedTripletsMiner(Miner):
    """The triplets of a batch that holds all anchors, then all positives, then all negatives.

    Of N = 3 T samples the triplets (i, T + i, 2 T + i), i < T. One with which the labels do not
    agree is left out: its positive is of another class, or its negative is not.

    A batch of this form is drawn by samplers that list triplets, such as `offline_triplets`.
    """

    paper = Paper(
        "FaceNet: A Unified Embedding for Face Recognition and Clustering",
        2015,
        "arxiv.org/abs/1503.03832",
    )

    def mine(self, z: Tensor, y: Tensor, references: References) -> Triplets:
        anchor_T, (_, positive_T, negative_T) = _columns(3, y, references)
        pairs = all_pairs(y, references)
        agrees_T1 = pairs.positive[anchor_T].gather(1, positive_T[:, None])
        negative_TM = only(negative_T, pairs.negative[anchor_T])
        return Triplets(anchor_T, positive_T, negative_TM & agrees_T1)


@miners("listed_pairs")
class ListedPairsMiner(Miner):
    """The pairs of a batch that holds all first samples, then all second ones.

    Of N = 2 T samples the pairs (i, T + i), i < T: positive where labels agree, else negative.

    A batch of this form is drawn by samplers that list pairs, such as `offline_pairs`.
    """

    paper = Paper("Fracking Deep Convolutional Image Descriptors", 2014, "arxiv.org/abs/1412.6537")

    def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
        first_T, (_, second_T) = _columns(2, y, references)
        pairs = all_pairs(y, references)
        none_after = (0, 0, 0, len(y) - len(first_T))
        return Pairs(
            F.pad(only(second_T, pairs.positive[first_T]), none_after),
            F.pad(only(second_T, pairs.negative[first_T]), none_after),
        )


def _columns(parts: int, y: Tensor, references: References) -> tuple[Tensor, Tensor]:
    """Return the rows of the first samples (T,), and the columns of each part of the batch
    (parts, T).
    """
    if len(y) % parts:
        raise ValueError(
            f"{len(y)} samples are no list of {'pairs' if parts == 2 else 'triplets'}: their number"
            f" is no multiple of {parts}; use a sampler that lists them"
        )
    if references.own is None:
        raise ValueError(
            "listed pairs and triplets are of one batch, which is not among these references"
        )
    return torch.arange(len(y) // parts, device=y.device), references.own.view(parts, -1)
