"""Episodes: C classes x M images of each, every batch by itself."""

from collections.abc import Iterator

import numpy as np

from assay.registry import Paper
from assay.samplers.classes import Classes
from assay.samplers.sampler import Indices, cites, fixed_pattern, samplers

PAPER = Paper("Prototypical Networks for Few-shot Learning", 2017, "arxiv.org/abs/1703.05175")


@samplers("episodes")
@cites(PAPER)
@fixed_pattern
def episodes(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """Draw C different classes a batch uniformly at random, M images of each.

    A batch does not depend on those before it, so a class may come twice before another comes once.
    A class with fewer than M images repeats them as evenly as possible.
    """
    chosen, per_class = batch
    classes, generator = Classes(y), np.random.default_rng(seed)
    classes.check(chosen)
    while True:
        chosen_R = generator.choice(len(classes), chosen, replace=False)
        yield classes.draw(chosen_R, per_class, generator).ravel()
