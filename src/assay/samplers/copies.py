"""Copies: C classes x one image of each, M times."""

from collections.abc import Iterator

import numpy as np

from assay.registry import Paper
from assay.samplers.classes import Classes, draw_rounds
from assay.samplers.sampler import Indices, cites, fixed_pattern, samplers

PAPER = Paper(
    "Unsupervised Embedding Learning via Invariant and Spreading Instance Feature",
    2019,
    "arxiv.org/abs/1904.03436",
)


@samplers("copies")
@cites(PAPER)
@fixed_pattern
def copies(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """Draw C different classes a batch and one image of each, M times: augmentation makes them
    different views.

    All classes are drawn once before any is drawn again, as in `balanced`. On vectors, which are
    not augmented, the M views are the same. The paper draws images, not classes.
    """
    chosen, times = batch
    classes, generator = Classes(y), np.random.default_rng(seed)
    classes.check(chosen)
    for round_of in draw_rounds(len(classes), chosen, generator):
        picked_R1 = classes.draw(round_of.ravel(), 1, generator)
        yield from picked_R1.repeat(times, axis=1).reshape(len(round_of), -1)
