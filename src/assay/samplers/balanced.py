"""Balanced batches: C classes x M images of each."""

from collections.abc import Iterator

import numpy as np

from assay.samplers.sampler import Indices, samplers


@samplers("balanced")
def balanced(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """C different classes a batch, M images of each (Song et al. 2016, arxiv.org/abs/1511.06452; SPC-M in the revisiting study).

    All classes are drawn once before any comes again. A class with fewer than M images repeats them, as evenly as can be.
    """
    classes, per_class = batch
    images = [np.flatnonzero(y == label) for label in np.unique(y)]
    if classes > len(images):
        raise ValueError(f"a batch of {classes} classes needs as many, got {len(images)}")
    draw = np.random.default_rng(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < classes:
            waiting += _apart_from(waiting, draw.permutation(len(images)).tolist())
        chosen, waiting = waiting[:classes], waiting[classes:]
        yield np.concatenate([_draw_images(images[number], per_class, draw) for number in chosen])


def _apart_from(waiting: list[int], shuffled: list[int]) -> list[int]:
    """The next round of classes, those still waiting from the last one at its end, so that no batch holds one twice."""
    return sorted(shuffled, key=set(waiting).__contains__)


def _draw_images(images: Indices, count: int, draw: np.random.Generator) -> Indices:
    rounds = -(-count // len(images))
    return np.concatenate([draw.permutation(images) for _ in range(rounds)])[:count]
