"""Greedy coreset (GC): batches that are spread out. Shapes: N points, D dims, C picks, M images of
a class.
"""

import numpy as np
from numpy.typing import NDArray

from assay.bank import Bank
from assay.samplers.classes import Classes
from assay.samplers.revisiting import REVISITING
from assay.samplers.sampler import Indices, cites, plans, samplers

POOL = 512
"""Images that the points of a batch are chosen from, or as many as it has points, if more."""


@samplers("coreset")
@cites(REVISITING)
@plans("kept")
def coreset(bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator) -> Indices:
    """Plan C points a batch that are far from each other, with M - 1 more images of the class of
    each.

    From a pool of 512 random images the points are picked farthest first: each is the one whose
    squared distance to the nearest point picked before is largest; the first is random. Several
    points may be of one class. The other images of a class are random, and as far as it has them
    neither the point nor twice the same; in the study's code they may be. Two points of one
    class may still bring the same image.

    Rows of the bank that a step has replaced are of augmented images and training mode, the others
    of neither. Where batch normalisation learns or outputs are dropped, the two kinds lie apart,
    and images that were not drawn yet may not be drawn for long; the study freezes it.
    """
    points, per_class = batch
    z_ND, y = bank.z.numpy(), bank.y.numpy()
    classes, of_N = Classes(y), np.unique(y, return_inverse=True)[1]
    size = min(len(y), max(POOL, points))
    planned = np.empty((count, points, per_class), dtype=np.int64)
    for slots_CM in planned:
        pool = draw.choice(len(y), size, replace=False)
        picks_C = pool[farthest_first(z_ND[pool], points)]
        slots_CM[:] = classes.draw(of_N[picks_C], per_class, draw)
        _put_first(slots_CM, picks_C)
    return planned.reshape(count, -1)


def farthest_first(z_ND: NDArray[np.float32], count: int) -> Indices:
    """Return the places of `count` points, each the farthest from those before it.

    The first is the first point of all, and so is the first of those equally far. With fewer points
    than wanted they come again in the same order.

    >>> line = np.array([[0.0], [1.0], [4.0], [10.0]])
    >>> farthest_first(line, 6).tolist()
    [0, 3, 2, 1, 0, 3]
    """
    order = np.zeros(min(count, len(z_ND)), dtype=np.int64)
    nearest_N = np.full(len(z_ND), np.inf)
    for number in range(1, len(order)):
        difference_ND = z_ND - z_ND[order[number - 1]]
        np.minimum(nearest_N, np.einsum("nd,nd->n", difference_ND, difference_ND), out=nearest_N)
        nearest_N[order[number - 1]] = -1  # also where others lie at the same place
        order[number] = nearest_N.argmax()
    return np.resize(order, count)


def _put_first(slots_CM: Indices, picks_C: Indices) -> None:
    """Put each pick first in its slot: in exchange if the slot holds it, else in place of one."""
    each_C, at_C = np.arange(len(picks_C)), (slots_CM == picks_C[:, None]).argmax(axis=1)
    slots_CM[each_C, at_C] = slots_CM[:, 0]
    slots_CM[:, 0] = picks_C
