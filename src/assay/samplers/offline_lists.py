"""Lists of hard triplets and pairs, mined from all training samples.

Shapes: N samples, K classes, T triplets or pairs of a batch, P images of a pool, D dims.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.bank import Bank
from assay.pairs import squared_distances
from assay.registry import Paper
from assay.samplers.sampler import Indices, cites, lists_of, plans, samplers

POOL = 1024
"""Images among which the negatives of a batch of triplets are looked for."""

RATIO = 8
"""Random pairs for each that is kept."""


@samplers("offline_triplets")
@cites(
    Paper(
        "FaceNet: A Unified Embedding for Face Recognition and Clustering",
        2015,
        "arxiv.org/abs/1503.03832",
    )
)
@plans("fresh")
@lists_of(3)
def offline_triplets(
    bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
) -> Indices:
    """List semi-hard triplets: a batch of C x M images holds T = C M // 3 of them, at least one, as
    all anchors, then all positives, then all negatives.

    FaceNet's way to "generate triplets offline every n steps ... on a subset of the data" (Schroff
    et al. 2015, arxiv.org/abs/1503.03832):
        a = each image in turn, in random order
        p = another random image of its class; a itself where there is none
        n = of 1,024 random images, those of other classes: the nearest with d_an > d_ap,
            else the farthest
    For each batch the 1,024 are drawn anew; smaller training sets are searched whole. The hardest
    negatives are often wrong labels, or lead to a collapsed model early on: hence `d_an > d_ap`,
    and hence a random positive instead of the farthest. Where none of the 1,024 is of another
    class, n is a random image of another class.
    """
    size = max(1, batch[0] * batch[1] // 3)
    bank = _centred(bank)
    members = _Members.of(bank.y.numpy())
    anchors = _in_turns(len(members.y), count * size, draw).reshape(count, size)
    plan = np.empty((count, 3, size), dtype=np.int64)
    for triplets, anchor_T in zip(plan, anchors, strict=True):
        positive_T = members.draw_same(anchor_T, draw)
        pool_P = draw.choice(len(members.y), min(POOL, len(members.y)), replace=False)
        found_T = _semihard(bank, anchor_T, positive_T, pool_P)
        other_T = members.draw_other(anchor_T, draw)
        triplets[:] = anchor_T, positive_T, np.where(found_T >= 0, pool_P[found_T], other_T)
    return plan.reshape(count, 3 * size)


@samplers("offline_pairs")
@cites(Paper("Fracking Deep Convolutional Image Descriptors", 2014, "arxiv.org/abs/1412.6537"))
@plans("fresh")
@lists_of(2)
def offline_pairs(
    bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
) -> Indices:
    """List hard pairs: a batch of C x M images holds T = C M // 2 of them, at least one, as all
    first images, then all second ones; half of them are of one class.

    As Simo-Serra et al. (2014, arxiv.org/abs/1412.6537) mine, more random pairs are compared than
    are kept, here eight times as many for each batch. Of those of one class the farthest eighth is
    kept, of those of two classes the nearest eighth. So a wrong label is among the hardest only in
    the draws where its image comes up. An image without another of its class is paired with itself.
    """
    size = max(1, batch[0] * batch[1] // 2)
    bank = _centred(bank)
    same, other = size // 2, size - size // 2
    members = _Members.of(bank.y.numpy())
    plan = np.empty((count, 2, size), dtype=np.int64)
    for pairs in plan:
        first = draw.integers(len(members.y), size=RATIO * same)
        second = members.draw_same(first, draw)
        hard = np.argsort(-_squared(bank, first, second), kind="stable")[:same]
        pairs[:, :same] = first[hard], second[hard]
        first = draw.integers(len(members.y), size=RATIO * other)
        second = members.draw_other(first, draw)
        hard = np.argsort(_squared(bank, first, second), kind="stable")[:other]
        pairs[:, same:] = first[hard], second[hard]
    return plan.reshape(count, 2 * size)


def _centred(bank: Bank) -> Bank:
    """Return a bank around its mean: a common offset would cost the digits of distances."""
    return replace(bank, z=bank.z - bank.z.mean(0))


@dataclass(frozen=True)
class _Members:
    """The images of each class.

    Args:
        y: label of each image (N,).
        images: all images (N,), class by class.
        place: the place of each image among them (N,).
        counts: images of each class (K,).
        starts: place of the first image of each class (K,).
    """

    y: Indices
    images: Indices
    place: Indices
    counts: Indices
    starts: Indices

    @classmethod
    def of(cls, y: Indices) -> "_Members":
        images, counts = np.argsort(y, kind="stable"), np.bincount(y)
        if len(counts) < 2:
            raise ValueError("negatives are of another class, and there is only one; use more")
        return cls(y, images, np.argsort(images), counts, np.cumsum(counts) - counts)

    def draw_same(self, which_T: Indices, draw: np.random.Generator) -> Indices:
        """Return another image of each image's class, or the image itself where it is alone."""
        label_T = self.y[which_T]
        count_T, start_T = self.counts[label_T], self.starts[label_T]
        step_T = draw.integers(1, np.maximum(count_T, 2))
        return self.images[start_T + (self.place[which_T] - start_T + step_T) % count_T]

    def draw_other(self, which_T: Indices, draw: np.random.Generator) -> Indices:
        """Return an image that is not of each image's class."""
        label_T = self.y[which_T]
        end_T = self.starts[label_T] + self.counts[label_T]
        step_T = draw.integers(0, len(self.y) - self.counts[label_T])
        chosen_T: Indices = self.images[(end_T + step_T) % len(self.y)]
        return chosen_T


def _in_turns(samples: int, count: int, draw: np.random.Generator) -> Indices:
    """Return `count` images; all come once, in random order, before any comes again."""
    rounds = [draw.permutation(samples) for _ in range(-(-count // samples))]
    images: Indices = np.concatenate(rounds)[:count]
    return images


def _semihard(bank: Bank, anchor_T: Indices, positive_T: Indices, pool_P: Indices) -> Indices:
    """Return the place of each triplet's negative in the pool, -1 where it holds no negative."""
    anchor, pool = torch.from_numpy(anchor_T), torch.from_numpy(pool_P)
    d_TP = squared_distances(bank.z.index_select(0, anchor), bank.z.index_select(0, pool))
    d_ap_T1 = torch.from_numpy(_squared(bank, anchor_T, positive_T))[:, None]
    negative_TP = bank.y[anchor][:, None] != bank.y[pool]
    place_T = _smallest(d_TP, negative_TP & (d_TP > d_ap_T1))
    none_T = place_T < 0
    place_T[none_T] = _smallest(-d_TP[none_T], negative_TP[none_T])
    found_T: Indices = place_T.numpy()
    return found_T


def _smallest(x_TP: Tensor, mask_TP: Tensor) -> Tensor:
    """Return the column of the smallest number in the mask of each row, -1 where it is empty."""
    least_T, column_T = torch.where(mask_TP, x_TP, torch.inf).min(1)
    return torch.where(least_T < torch.inf, column_T, -1)


def _squared(bank: Bank, first: Indices, second: Indices) -> NDArray[np.float32]:
    """Return the squared distance of each pair."""
    first_TD = bank.z.index_select(0, torch.from_numpy(first))
    difference_TD = first_TD.sub_(bank.z.index_select(0, torch.from_numpy(second)))
    return difference_TD.square_().sum(1).numpy()
