"""Batches that are like a pool: the one of several candidates that is nearest to it. Shapes: P
pool, T candidates, B batch, D dims.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from assay.bank import Bank
from assay.devices import torch_threads
from assay.samplers.classes import Classes
from assay.samplers.sampler import Indices

POOL, CANDIDATES = 512, 10
"""Images of a pool, and batches that are compared with it."""

Distances = Callable[[Tensor, Tensor], Tensor]
"""From the embeddings (P, D) of a pool, in double precision, and places (T, B) in it of candidates:
the distance (T,) of each candidate to the pool.
"""


def plan_nearest(
    bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator, measure: Distances
) -> Indices:
    """Return `count` batches, each the candidate that is nearest to its pool: the first of those
    equally near.
    """
    classes = Classes(bank.y.numpy())
    classes.check(batch[0])
    planned = np.empty((count, batch[0] * batch[1]), dtype=np.int64)
    with torch_threads(1):  # threads would wait for each other longer than matrices this small take
        for rows_B in planned:
            pool_P, candidates_TB = draw_candidates(classes, batch, draw)
            z_PD = bank.z[torch.from_numpy(pool_P)].double()
            distance_T = measure(z_PD, torch.from_numpy(candidates_TB)).numpy()
            rows_B[:] = pool_P[candidates_TB[distance_T.argmin()]]
    return planned


def draw_candidates(
    classes: Classes, batch: tuple[int, int], draw: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return the images (P,) of a pool, and places (T, B) in it of candidates.

    The pool is 512 / M random classes, drawn with replacement, and M images of each draw. Where
    these are fewer different classes than a batch has, others are added. A candidate is C different
    classes of the pool, each with the images of one of its draws.
    """
    chosen, per_class = batch
    drawn = draw.integers(len(classes), size=max(POOL // per_class, 1))
    missing = chosen - len(np.unique(drawn))
    if missing > 0:
        others = np.setdiff1d(np.arange(len(classes)), drawn)
        drawn = np.concatenate([drawn, draw.choice(others, missing, replace=False)])
    draws_TC = np.stack([_draw_different(drawn, chosen, draw) for _ in range(CANDIDATES)])
    places_TCM = draws_TC[:, :, None] * per_class + np.arange(per_class)
    return classes.draw(drawn, per_class, draw).ravel(), places_TCM.reshape(CANDIDATES, -1)


def _draw_different(drawn: Indices, count: int, draw: np.random.Generator) -> Indices:
    """Return places of `count` different classes among those drawn."""
    order = draw.permutation(len(drawn))
    one_of_each = order[np.unique(drawn[order], return_index=True)[1]]
    return draw.choice(one_of_each, count, replace=False)
