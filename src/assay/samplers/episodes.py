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
    The first floor(M / 2) images of a class are its support, the others its queries. A class with
    fewer than M images repeats some, but no image is on both sides unless it is the only one.
    """
    chosen, per_class = batch
    classes, generator = Classes(y), np.random.default_rng(seed)
    classes.check(chosen)
    while True:
        chosen_R = generator.choice(len(classes), chosen, replace=False)
        images_RM = classes.draw(chosen_R, per_class, generator)
        for row in np.flatnonzero(classes.counts[chosen_R] < per_class):
            images_RM[row] = _two_sides(np.unique(images_RM[row]), per_class, generator)
        yield images_RM.ravel()


def _two_sides(images: Indices, per_class: int, generator: np.random.Generator) -> Indices:
    """Return M of a few different images, those of the first half in none of the second."""
    shuffled, half = generator.permutation(images), max(1, len(images) // 2)
    support, queries = shuffled[:half], shuffled[half:] if len(images) > 1 else shuffled
    return np.concatenate(
        [np.resize(support, per_class // 2), np.resize(queries, per_class - per_class // 2)]
    )
