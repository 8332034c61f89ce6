"""Batches of neighbouring classes. Shapes: K classes, W neighbours of each, D dims, R classes
chosen, M images of each.
"""

from itertools import islice

import numpy as np
import torch

from assay.bank import Bank
from assay.neighbours import nearest
from assay.samplers.balanced import draw_places
from assay.samplers.sampler import Indices, fixed_pattern, plans, samplers

GROUP = 4
"""Classes that are drawn together: a seed and its nearest ones."""


@samplers("offline_hard")
@plans("fresh")
@fixed_pattern
def offline_hard(
    bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
) -> Indices:
    """Draw C different classes a batch, in groups of a class and its nearest; M images of each.

    Classes are compared by the cosines of their means over all training samples. A group is a seed
    and its 3 nearest classes that are not in the batch yet; the last group of a batch is smaller
    where C is no multiple of 4. Every class is a seed about equally often, unless a batch holds
    nearly all classes. A class with fewer than M images repeats them as evenly as possible.

    Such groups of neighbours are those of Ge et al. 2018 (arxiv.org/abs/1810.06951), here without
    their tree of classes. Earlier, Sohn 2016 ("Improved Deep Metric Learning with Multi-class
    N-pair Loss Objective": hard negative class mining) and Wang et al. 2017
    (arxiv.org/abs/1708.01682) put similar classes into one batch, out of a larger random draw, and
    Harwood et al. 2017 (arxiv.org/abs/1704.01285) looked for neighbours among all training images.
    """
    classes, per_class = batch
    y: Indices = bank.y.numpy()
    images, counts = np.argsort(y, kind="stable"), np.bincount(y)
    if classes > len(counts):
        raise ValueError(
            f"a batch of {classes} classes cannot be drawn from {len(counts)}: use fewer classes"
            " a batch"
        )
    starts: Indices = np.cumsum(counts) - counts
    sums_KD = np.add.reduceat(bank.z.numpy()[images], starts, axis=0)
    near_KW = _nearest_classes(torch.from_numpy(sums_KD), classes - 1, draw)
    waiting: list[int] = []
    drawn = [_draw_neighbours(near_KW, classes, waiting, draw) for _ in range(count)]
    chosen_R = np.array(drawn, dtype=np.int64).ravel()
    picked_RM = images[starts[chosen_R, None] + draw_places(counts[chosen_R], per_class, draw)]
    plan: Indices = picked_RM.reshape(count, classes * per_class)
    return plan


def _nearest_classes(sums_KD: torch.Tensor, width: int, draw: np.random.Generator) -> Indices:
    """Return the nearest classes of each; those that are equally near stand in random order."""
    order = draw.permutation(len(sums_KD))
    near_KW = np.empty((len(order), width), dtype=np.int64)
    if width:
        shuffled_KD = sums_KD[torch.from_numpy(order)]
        itself = torch.arange(len(order))
        near_KW[order] = order[nearest(shuffled_KD, shuffled_KD, width, itself).numpy()]
    return near_KW


def _draw_neighbours(
    near_KW: Indices, classes: int, waiting: list[int], draw: np.random.Generator
) -> list[int]:
    """Return the classes of a batch; its seeds are taken out of those that wait."""
    chosen: list[int] = []
    while len(chosen) < classes:
        seed = _next_seed(waiting, chosen, len(near_KW), draw)
        chosen.append(seed)
        free = (one for one in near_KW[seed].tolist() if one not in chosen)
        chosen += list(islice(free, min(GROUP - 1, classes - len(chosen))))
    return chosen


def _next_seed(
    waiting: list[int], chosen: list[int], classes: int, draw: np.random.Generator
) -> int:
    """Return the first class that waits and is not in the batch; all wait again after the last."""
    place = next((place for place, one in enumerate(waiting) if one not in chosen), None)
    if place is not None:
        return waiting.pop(place)
    waiting += draw.permutation(classes).tolist()
    return _next_seed(waiting, chosen, classes, draw)
