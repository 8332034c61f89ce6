"""Random batches: images whatever their class."""

from collections.abc import Iterator

import numpy as np

from assay.samplers.classes import draw_rounds
from assay.samplers.revisiting import REVISITING
from assay.samplers.sampler import Indices, cites, samplers


@samplers("random")
@cites(REVISITING)
def random(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """Draw C x M different images a batch, uniformly at random, whatever their class.

    All images are drawn once before any is drawn again. A batch larger than the training set
    repeats images as evenly as possible.
    """
    size, generator = batch[0] * batch[1], np.random.default_rng(seed)
    for round_of in draw_rounds(len(y), size, generator):
        yield from round_of
