"""A data set: samples with labels, and what tells one version of it from another. Shapes: N samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.canonical import digest
from assay.protocol import Look

Labels = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]


class Items(Protocol):
    """The samples themselves, read when they are needed."""

    inputs: int
    """Channels of an image, or width of a vector."""

    def arrays(self, indices: Labels, size: int) -> Pixels | Vectors:
        """Images (n, channels, size, size) or vectors (n, width) of these samples."""

    def digest(self, index: int) -> str:
        """Hash of a sample's content as it was given."""


@dataclass(frozen=True)
class Dataset:
    """Samples with labels.

    Args:
        name: how it was asked for, without the folders above it.
        look: drawings, photos or features: what `auto` settings go by.
        labels: class number of each sample (N,), into `class_names`.
        class_names: in class order, which decides halves and folds.
        ids: a name of each sample that does not depend on where the data lies.
        items: the samples themselves.
        notes: what was left out on loading, for people.
    """

    name: str
    look: Look
    labels: Labels
    class_names: tuple[str, ...]
    ids: Sequence[str]
    items: Items
    notes: tuple[str, ...] = field(default=())

    def fingerprint(self, indices: Labels) -> str:
        """Hash of everything about these samples that a run could depend on."""
        rows = [[self.class_names[self.labels[i]], self.ids[i], self.items.digest(i)] for i in indices.tolist()]
        return digest({"look": self.look, "samples": rows})
