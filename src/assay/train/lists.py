"""Batches of pairs or triplets that are listed with the data, instead of classes.

A batch holds all first samples, then all second ones, and of triplets all third ones: listed
miners (miners/listed.py) go by these places, so nothing else in it is compared. Its labels are made
up, so that only the two of a positive pair agree.

Shapes: L listed pairs or triplets of a batch.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from assay.data.dataset import Labels, Rows
from assay.data.packs import View
from assay.data.relations import Numbers, Relations
from assay.hashing import derive
from assay.protocols import Supervision
from assay.protocols.protocol import LISTED


class Drawn(NamedTuple):
    """A batch before any sample is read.

    Args:
        rows: indices into the training samples of the fold.
        labels: their labels.
    """

    rows: Rows
    labels: Labels


def listed_in(view: View, train: Numbers, supervision: Supervision) -> Relations | None:
    """Return the pairs or triplets of which all samples are trained on, by places among these rows.

    None where training is told none.
    """
    if supervision not in LISTED:
        return None
    assert view.relations is not None and view.relations.kind == supervision
    return view.relations.within(train)


def draw_lists(relations: Relations, size: int, seed: int, start: int = 0) -> Iterator[Drawn]:
    """Yield endless batches of `size` listed pairs or triplets, without the first `start`.

    All are drawn once before any is drawn again.
    """
    assert len(relations)
    for chosen in islice(_draw_numbers(len(relations), size, seed), start, None):
        yield lay_out(relations, chosen)


def _draw_numbers(count: int, size: int, seed: int) -> Iterator[Numbers]:
    draw, waiting = np.random.default_rng(derive(seed, "lists")), np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, draw.permutation(count)])
        yield waiting[:size]
        waiting = waiting[size:]


def lay_out(relations: Relations, chosen: Numbers) -> Drawn:
    """Return the batch of the chosen pairs or triplets.

    >>> pairs = Relations("pairs", np.array([[7, 8, 1], [7, 9, 0]]))
    >>> lay_out(pairs, np.array([0, 1]))
    Drawn(rows=array([7, 7, 8, 9]), labels=array([0, 1, 0, 3]))
    >>> triplets = Relations("triplets", np.array([[7, 8, 9], [4, 5, 6]]))
    >>> lay_out(triplets, np.array([0, 1]))
    Drawn(rows=array([7, 4, 8, 5, 9, 6]), labels=array([0, 1, 0, 1, 2, 3]))
    """
    own_L: Labels = np.arange(len(chosen))
    other_L = own_L + len(chosen)
    rows = relations.samples[chosen].T.ravel()
    if relations.kind == "triplets":
        return Drawn(rows, np.concatenate([own_L, own_L, other_L]))
    same_L = relations.rows[chosen, 2] == 1
    return Drawn(rows, np.concatenate([own_L, np.where(same_L, own_L, other_L)]))
