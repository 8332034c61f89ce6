"""Pairs and triplets of samples that are given with a data set, instead of classes to train on.

Shapes: N samples, R relations, C classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from assay.npz import read_npy

Numbers = NDArray[np.int64]

RelationKind = Literal["pairs", "triplets"]

KINDS: tuple[RelationKind, ...] = get_args(RelationKind)


@dataclass(frozen=True, eq=False)
class Relations:
    """Pairs or triplets of samples.

    Args:
        kind: pairs or triplets.
        rows: of a pair (a, b, same), where `same` is 1 if the two belong together and 0 if they do
            not; of a triplet (a, p, n), where a belongs with p rather than with n: (R, 3). All but
            `same` are numbers of samples.
    """

    kind: RelationKind
    rows: Numbers

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def samples(self) -> Numbers:
        """Numbers of the samples: (R, 2) of pairs, (R, 3) of triplets."""
        return self.rows[:, :2] if self.kind == "pairs" else self.rows

    @property
    def positives(self) -> Numbers:
        """Pairs of samples that belong together: (P, 2)."""
        if self.kind == "triplets":
            return self.rows[:, :2]
        return self.rows[self.rows[:, 2] == 1, :2]

    def within(self, indices: Numbers) -> "Relations":
        """Return those of which all samples are among the indices, with their places there.

        >>> given = Relations("triplets", np.array([[0, 1, 5], [6, 5, 7]]))
        >>> given.within(np.array([5, 6, 7])).rows
        array([[1, 0, 2]])
        """
        places = np.full(max(self.samples.max(initial=-1), indices.max(initial=-1)) + 1, -1)
        places[indices] = np.arange(len(indices))
        placed = places[self.samples]
        kept = (placed >= 0).all(axis=1)
        rows = self.rows[kept].copy()
        rows[:, : placed.shape[1]] = placed[kept]
        return Relations(self.kind, rows)

    def ordered(self) -> "Relations":
        """Return the same relations in the order of their numbers."""
        return Relations(self.kind, self.rows[np.lexsort(self.rows.T[::-1])])

    def words(self, count: int) -> str:
        """Return a number of such relations in words.

        >>> Relations("pairs", np.empty((0, 3), dtype=np.int64)).words(1)
        '1 pair'
        """
        return f"{count:,} {self.kind.removesuffix('s') if count == 1 else self.kind}"


def read_relations(pack: Path) -> Relations | None:
    """Return the relations in the folder of a pack; None where it has none."""
    found = [kind for kind in KINDS if (pack / f"{kind}.npy").exists()]
    return Relations(found[0], read_npy(pack / f"{found[0]}.npy")) if found else None


def group_classes(y: Numbers, relations: Relations | None) -> Numbers:
    """Return a number for each class (C,), the same for classes that positives join.

    Groups are numbered from 0 in the order of their first classes. Without relations each class is
    a group.

    >>> joined = Relations("pairs", np.array([[0, 3, 1], [3, 2, 1], [0, 1, 0]]))
    >>> group_classes(np.array([0, 1, 2, 3]), joined)
    array([0, 1, 0, 0])
    """
    first = np.arange(int(y.max()) + 1)
    if relations is not None:
        for one, other in np.unique(y[relations.positives], axis=0).tolist():
            low, high = sorted((first[one], first[other]))
            if low != high:
                first[first == high] = low
    groups: Numbers = np.unique(first, return_inverse=True)[1]
    return groups
