"""Batches of neighbouring classes. Shapes: K classes, W neighbours of each, D dims, R classes
chosen, M images of each.
"""

from itertools import islice

import numpy as np
import torch

from assay.bank import Bank
from assay.neighbours import nearest
from assay.registry import Paper
from assay.samplers.classes import Classes
from assay.samplers.sampler import Indices, cites, fixed_pattern, plans, samplers

GROUP = 4
"""Classes that are drawn together: a seed and its nearest ones."""


@samplers("offline_hard")
@cites(
    Paper("Deep Metric Learning with Hierarchical Triplet Loss", 2018, "arxiv.org/abs/1810.06951")
)
@plans("fresh")
@fixed_pattern
def offline_hard(
    bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
) -> Indices:
    """Draw C different classes a batch, in groups of a class and its nearest; M images of each.

    Classes are compared by the cosines of their means over all training samples. A group is a seed
    and its 3 nearest classes that are not in the batch yet; the last group of a batch is smaller
    where C is no multiple of 4. Over a plan every class is a seed about equally often, unless a
    batch holds nearly all classes; as a neighbour a class comes as often as it is near others, so
    that within a pass some classes come several times and some not at all. A class with fewer than
    M images repeats them as evenly as possible.

    Such groups of neighbours are those of Ge et al. 2018 (arxiv.org/abs/1810.06951), here without
    their tree of classes. Earlier, Sohn 2016 ("Improved Deep Metric Learning with Multi-class
    N-pair Loss Objective": hard negative class mining) and Wang et al. 2017
    (arxiv.org/abs/1708.01682) put similar classes into one batch, out of a larger random draw, and
    Harwood et al. 2017 (arxiv.org/abs/1704.01285) looked for neighbours among all training images.
    """
    wanted, per_class = batch
    classes = Classes(bank.y.numpy())
    classes.check(wanted)
    numbered = torch.unique(bank.y, return_inverse=True)[1]
    sums_KD = torch.zeros(len(classes), bank.z.shape[1]).index_add_(0, numbered, bank.z)
    near_KW = _nearest_classes(sums_KD, wanted - 1, draw)
    waiting: list[int] = []
    drawn = [_draw_neighbours(near_KW, wanted, waiting, draw) for _ in range(count)]
    chosen_R = np.array(drawn, dtype=np.int64).ravel()
    return classes.draw(chosen_R, per_class, draw).reshape(count, wanted * per_class)


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
