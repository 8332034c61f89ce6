"""Balanced batches: C classes x M images of each."""

from collections.abc import Iterator

import numpy as np

from assay.registry import Paper
from assay.samplers.classes import Classes, draw_rounds
from assay.samplers.sampler import Indices, cites, fixed_pattern, samplers

PAPER = Paper(
    "Deep Metric Learning via Lifted Structured Feature Embedding", 2016, "arxiv.org/abs/1511.06452"
)


@samplers("balanced")
@cites(PAPER)
@fixed_pattern
def balanced(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """Draw C different classes a batch, M images of each (SPC-M in the revisiting study).

    All classes are drawn once before any is drawn again. A class with fewer than M images repeats
    them as evenly as possible. A whole round of classes is drawn at once, without a loop over
    samples.
    """
    chosen, per_class = batch
    classes, generator = Classes(y), np.random.default_rng(seed)
    classes.check(chosen)
    for round_of in draw_rounds(len(classes), chosen, generator):
        picked_RM = classes.draw(round_of.ravel(), per_class, generator)
        yield from picked_RM.reshape(len(round_of), -1)
