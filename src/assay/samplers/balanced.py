"""Balanced batches: C classes x M images of each. Shapes: R classes drawn, M images of each."""

from collections.abc import Iterator

import numpy as np

from assay.samplers.sampler import Indices, fixed_pattern, samplers


@samplers("balanced")
@fixed_pattern
def balanced(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
    """Draw C different classes a batch, M images of each (Song et al. 2016,
    arxiv.org/abs/1511.06452; SPC-M in the revisiting study).

    All classes are drawn once before any is drawn again. A class with fewer than M images repeats
    them as evenly as possible. A whole round of classes is drawn at once, without a loop over
    samples.
    """
    classes, per_class = batch
    images, counts = np.argsort(y, kind="stable"), np.unique(y, return_counts=True)[1]
    if classes > len(counts):
        raise ValueError(
            f"a batch of {classes} classes cannot be drawn from {len(counts)}: use fewer classes"
            " a batch"
        )
    starts, draw = np.cumsum(counts) - counts, np.random.default_rng(seed)
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < classes:
            waiting = np.concatenate([waiting, _apart_from(waiting, draw.permutation(len(counts)))])
        ready = len(waiting) // classes * classes
        chosen_R, waiting = waiting[:ready], waiting[ready:]
        picked_RM = images[starts[chosen_R, None] + draw_places(counts[chosen_R], per_class, draw)]
        yield from picked_RM.reshape(-1, classes * per_class)


def _apart_from(waiting: Indices, shuffled: Indices) -> Indices:
    """Return the next round of classes, with those that still wait from the last round at its end.

    So no batch holds a class twice.
    """
    waits = np.zeros(len(shuffled), dtype=bool)
    waits[waiting] = True
    again = waits[shuffled]
    return np.concatenate([shuffled[~again], shuffled[again]])


def draw_places(counts_R: Indices, per_class: int, draw: np.random.Generator) -> Indices:
    """Return places (R, M) of images in classes of these sizes."""
    places_RM = np.empty((len(counts_R), per_class), dtype=np.int64)
    many = counts_R >= per_class
    places_RM[many] = _without_repeats(counts_R[many], per_class, draw)
    places_RM[~many] = _with_repeats(counts_R[~many], per_class, draw)
    return places_RM


def _without_repeats(counts_R: Indices, per_class: int, draw: np.random.Generator) -> Indices:
    """Return different places in each class.

    Each is drawn among the places that are left, by counting past those that are taken.
    """
    uniform_MR = draw.random((per_class, len(counts_R)))
    drawn_MR = np.empty((per_class, len(counts_R)), dtype=np.int64)
    for number in range(per_class):
        place_R = (uniform_MR[number] * (counts_R - number)).astype(np.int64)
        for taken_R in np.sort(drawn_MR[:number], axis=0):
            place_R += place_R >= taken_R
        drawn_MR[number] = place_R
    return drawn_MR.T


def _with_repeats(counts_R: Indices, per_class: int, draw: np.random.Generator) -> Indices:
    """Return all places in random order, then all again in another order, until enough."""
    number_W = np.arange(2 * per_class)
    round_RW, place_RW = np.divmod(number_W, counts_R[:, None])
    whole_R1 = -(-per_class // counts_R[:, None]) * counts_R[:, None]
    key_RW = np.where(number_W < whole_R1, round_RW + draw.random(round_RW.shape), np.inf)
    order_RM = np.argsort(key_RW, axis=1)[:, :per_class]
    return np.take_along_axis(place_RW, order_RM, axis=1)
