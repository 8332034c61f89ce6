"""SPC-R: a random image of a random class, again and again. Shapes: B batch."""

from collections.abc import Iterator

import numpy as np

from assay.samplers.classes import Classes
from assay.samplers.revisiting import REVISITING
from assay.samplers.sampler import Indices, cites, samplers


@samplers("spc_r")
@cites(REVISITING)
def spc_r(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """Draw a random class and a random image of it, C x M - 1 times; the last image is of a class
    already present.

    So each batch has a positive pair. The last image is another one than that whose class it
    shares, where the class has two.
    """
    size = batch[0] * batch[1]
    classes, generator = Classes(y), np.random.default_rng(seed)
    while True:
        chosen_B = generator.integers(len(classes), size=size)
        shared = int(generator.integers(max(size - 1, 1)))
        chosen_B[-1] = chosen_B[shared]
        pair_12 = classes.draw(chosen_B[[shared]], 2, generator)
        picked_B = classes.draw(chosen_B, 1, generator)[:, 0]
        picked_B[[shared, -1]] = pair_12[0]
        yield picked_B
