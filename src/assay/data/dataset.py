"""A data set: samples with labels, and what tells one version of it from another. Shapes: N
samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.hashing import digest
from assay.protocols import FirstStep, Modality

Labels = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Marks = NDArray[np.bool_]

Samples = Vectors | Pixels | list[Pixels]
"""Vectors (n, width), images (n, height, width, channels), or where they keep their shapes a list
of (H, W, channels).
"""


class Items(Protocol):
    """The samples themselves, read when they are needed."""

    inputs: int
    """Channels of an image, or width of a vector."""

    def arrays(self, indices: Labels, step: FirstStep) -> Samples:
        """These samples, images after the first step."""

    def digest(self, index: int) -> str:
        """Hash of a sample's content as it was given."""

    def problem(self, index: int) -> str | None:
        """Why a sample cannot be used, with the remedy; None where it can."""


@dataclass(frozen=True)
class Dataset:
    """Samples with labels.

    Args:
        name: how it was asked for, without the folders above it.
        modality: drawings, photos or features: what `auto` settings go by.
        labels: class number of each sample (N,), into `class_names`.
        class_names: in class order, which decides halves and folds; those of an official trainval
            half come first.
        ids: a name of each sample that does not depend on where the data lies.
        items: the samples themselves.
        notes: what was left out on loading, for people.
        left_out: those of the notes that do not depend on the test half, and may be announced
            before it is opened.
        trainval: how many classes the official trainval half has; None: halves are made of the
            class order.
        query: marks of the samples (N,) that are looked up at the test; None: all are.
        gallery: marks of the samples (N,) that they are looked up in; None: all are.
        metadata: further columns by name, one word for each sample.
        pretrained_on: the data that the model behind ready-made features has seen, where the file
            says so.
        official: whether it is as its publishers give it out, so that nobody may change it: flaws
            are reported, not refused.
    """

    name: str
    modality: Modality
    labels: Labels
    class_names: tuple[str, ...]
    ids: Sequence[str]
    items: Items
    notes: tuple[str, ...] = field(default=())
    left_out: tuple[str, ...] = field(default=())
    trainval: int | None = None
    query: Marks | None = None
    gallery: Marks | None = None
    metadata: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pretrained_on: str | None = None
    official: bool = False

    def fingerprint(self, indices: Labels) -> str:
        """Hash of everything about these samples that a run could depend on."""
        rows = [
            [self.class_names[self.labels[i]], self.ids[i], self.items.digest(i)]
            for i in indices.tolist()
        ]
        # "look" was the name of the modality when seeds were first derived from this hash: another
        # word would change every published score.
        return digest({"look": self.modality, "samples": rows} | self._roles(indices))

    def _roles(self, indices: Labels) -> dict[str, Any]:
        """Which of the samples are looked up, and in which, where the data set says so."""
        marks = {"query": self.query, "gallery": self.gallery}
        return {role: mark[indices].tolist() for role, mark in marks.items() if mark is not None}
