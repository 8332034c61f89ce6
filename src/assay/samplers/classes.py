"""The images of each class, and draws that samplers share. Shapes: R classes drawn, M images of
each.
"""

from collections.abc import Iterator

import numpy as np

from assay.samplers.sampler import Indices


class Classes:
    """The images of each class. Classes are numbered from 0 in the order of their labels.

    Args:
        y: label of each image.
    """

    counts: Indices
    """Images of each class."""

    def __init__(self, y: Indices) -> None:
        self._images, self.counts = (
            np.argsort(y, kind="stable"),
            np.unique(y, return_counts=True)[1],
        )
        self._starts = np.cumsum(self.counts) - self.counts

    def __len__(self) -> int:
        return len(self.counts)

    def check(self, wanted: int) -> None:
        """Raise a `ValueError` if there are fewer classes than a batch wants."""
        if wanted > len(self):
            raise ValueError(
                f"a batch of {wanted} classes cannot be drawn from {len(self)}: use fewer classes"
                " a batch"
            )

    def draw(self, chosen_R: Indices, per_class: int, generator: np.random.Generator) -> Indices:
        """Return images (R, M) of classes, different ones where a class has enough.

        A class with fewer than M images repeats them as evenly as possible.
        """
        places_RM = _draw_places(self.counts[chosen_R], per_class, generator)
        images_RM: Indices = self._images[self._starts[chosen_R, None] + places_RM]
        return images_RM


def draw_rounds(things: int, at_a_time: int, generator: np.random.Generator) -> Iterator[Indices]:
    """Yield endlessly the numbers below `things` in random order, in tables of `at_a_time` columns.

    All are drawn once before any is drawn again, and no row of a table holds one twice, as long as
    there are enough.
    """
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < at_a_time:
            waiting = np.concatenate([waiting, _apart_from(waiting, generator.permutation(things))])
        ready = len(waiting) // at_a_time * at_a_time
        drawn, waiting = waiting[:ready], waiting[ready:]
        yield drawn.reshape(-1, at_a_time)


def _apart_from(waiting: Indices, shuffled: Indices) -> Indices:
    """Return the next round, with those that still wait from the last round at its end.

    So no batch holds a class twice.
    """
    waits = np.zeros(len(shuffled), dtype=bool)
    waits[waiting] = True
    again = waits[shuffled]
    return np.concatenate([shuffled[~again], shuffled[again]])


def _draw_places(counts_R: Indices, per_class: int, generator: np.random.Generator) -> Indices:
    """Return places (R, M) of images in classes of these sizes."""
    places_RM = np.empty((len(counts_R), per_class), dtype=np.int64)
    many = counts_R >= per_class
    places_RM[many] = _without_repeats(counts_R[many], per_class, generator)
    places_RM[~many] = _with_repeats(counts_R[~many], per_class, generator)
    return places_RM


def _without_repeats(counts_R: Indices, per_class: int, generator: np.random.Generator) -> Indices:
    """Return different places in each class.

    Each is drawn among the places that are left, by counting past those that are taken.
    """
    uniform_MR = generator.random((per_class, len(counts_R)))
    drawn_MR = np.empty((per_class, len(counts_R)), dtype=np.int64)
    for number in range(per_class):
        place_R = (uniform_MR[number] * (counts_R - number)).astype(np.int64)
        for taken_R in np.sort(drawn_MR[:number], axis=0):
            place_R += place_R >= taken_R
        drawn_MR[number] = place_R
    return drawn_MR.T


def _with_repeats(counts_R: Indices, per_class: int, generator: np.random.Generator) -> Indices:
    """Return all places in random order, then all again in another order, until enough."""
    number_W = np.arange(2 * per_class)
    round_RW, place_RW = np.divmod(number_W, counts_R[:, None])
    whole_R1 = -(-per_class // counts_R[:, None]) * counts_R[:, None]
    key_RW = np.where(number_W < whole_R1, round_RW + generator.random(round_RW.shape), np.inf)
    order_RM = np.argsort(key_RW, axis=1)[:, :per_class]
    return np.take_along_axis(place_RW, order_RM, axis=1)
