"""The samples that a loss compares. Shapes: N batch, M references, P positive pairs.

Triplets are not enumerated: they are positive pairs (P) with a mask of negatives for each (P, M).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class References:
    """The samples that a batch is compared with: the batch itself, or a memory of past batches.

    Args:
        z: embeddings (M, D).
        y: labels (M,).
        own: each sample's own column among the references (N,), which is never its positive; None
            if the references do not hold the batch.
    """

    z: Tensor
    y: Tensor
    own: Tensor | None

    @classmethod
    def of_batch(cls, z: Tensor, y: Tensor) -> "References":
        """Return the batch itself as references."""
        return cls(z, y, torch.arange(len(y), device=y.device))


@dataclass(frozen=True)
class Pairs:
    """Pairs (sample, reference) to pull together and to push apart, as masks (N, M)."""

    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Triplets:
    """Positive pairs, and for each the references to push away.

    No pair stands in two rows. A row without a negative (`~negative.any(1)`) is no triplet and has
    no effect; its positive may be any column.

    Args:
        anchor: row of each pair's sample (P,).
        positive: column of each pair's reference (P,).
        negative: mask (P, M) of the negatives compared with the pair.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor


Mined = Pairs | Triplets


def check_batch(z: Tensor, y: Tensor) -> None:
    """Raise a `ValueError` unless these are embeddings (N, D) with integer labels (N,)."""
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise ValueError(
            f"z is of shape (N, D) and y of shape (N,), got {tuple(z.shape)} and {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels are integers, got {y.dtype}; use y.long()")


def check_mined(mined: Mined, count: int, references: int) -> None:
    """Raise a `ValueError` unless this was mined from this batch and these references."""
    if not isinstance(mined, Pairs | Triplets):
        raise ValueError(f"what a miner chooses is Pairs or Triplets, got {type(mined).__name__}")
    rows = count if isinstance(mined, Pairs) else len(mined.anchor)
    if mined.negative.shape != (rows, references):
        raise ValueError(
            f"mined from other samples: masks of shape {tuple(mined.negative.shape)} instead of"
            f" ({rows}, {references})"
        )


def all_pairs(y: Tensor, references: References) -> Pairs:
    """Return every pair: positive where labels agree, negative where they differ.

    A sample is not its own positive.
    """
    same_NM = y[:, None] == references.y
    positive_NM = same_NM
    if references.own is not None:
        positive_NM = same_NM.scatter(1, references.own[:, None], False)
    return Pairs(positive_NM, ~same_NM)


def as_pairs(mined: Mined, count: int) -> Pairs:
    """Return the pairs, each once, among the pairs or triplets mined for `count` samples."""
    if isinstance(mined, Pairs):
        return mined
    positive_NM, negative_NM = pair_counts(mined, count)
    return Pairs(positive_NM > 0, negative_NM > 0)


def as_triplets(mined: Mined) -> Triplets:
    """Return triplets; pairs become each positive pair with every negative of its anchor."""
    if isinstance(mined, Triplets):
        return mined
    anchor_P, positive_P = mined.positive.nonzero(as_tuple=True)
    return Triplets(anchor_P, positive_P, mined.negative[anchor_P])


def pair_counts(mined: Mined, count: int) -> tuple[Tensor, Tensor]:
    """Return in how many triplets each pair is the positive and the negative pair: two (N, M)."""
    if isinstance(mined, Pairs):
        positives_N1 = mined.positive.sum(1, keepdim=True)
        negatives_N1 = mined.negative.sum(1, keepdim=True)
        return mined.positive * negatives_N1, mined.negative * positives_N1
    nothing_NM = mined.anchor.new_zeros(count, mined.negative.shape[1])
    negatives_P = mined.negative.sum(1)
    return (
        nothing_NM.index_put((mined.anchor, mined.positive), negatives_P, accumulate=True),
        nothing_NM.index_add(0, mined.anchor, mined.negative.to(nothing_NM.dtype)),
    )
