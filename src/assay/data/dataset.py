"""A data set: samples with labels, and the halves that it is cut into. Shapes: N samples."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay.data.origin import FeaturesOrigin
from assay.data.relations import Relations
from assay.errors import BadInput
from assay.hashing import digest, digest_bytes
from assay.progress import Progress
from assay.protocols import FirstStep, Modality
from assay.records.source import class_hash
from assay.registry import Registry

Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
"""Indices of samples."""
Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Marks = NDArray[np.bool_]

NAMED = 20
"""Broken samples that a note names."""

Samples = Vectors | Pixels | list[Pixels]
"""Vectors (n, width), images (n, height, width, channels), or where they keep their shapes a list
of (H, W, channels).
"""


class Items(Protocol):
    """The samples themselves, read when they are needed."""

    inputs: int
    """Channels of an image, or width of a vector."""

    def arrays(self, indices: Labels, step: FirstStep) -> Samples:
        """Read these samples, images after the first step."""

    def digest(self, index: int) -> str:
        """Return the hash of a sample's content as it was given."""

    def problem(self, index: int) -> str | None:
        """Return why a sample cannot be used, with the remedy; None where it can be used."""


@runtime_checkable
class Shaped(Protocol):
    """Samples whose shapes are known without reading them."""

    def shapes(self, indices: Labels, step: FirstStep) -> Labels:
        """Return height and width of each image (n, 2) after the step."""


@runtime_checkable
class Selectable(Protocol):
    """Samples of which some can be left out."""

    def only(self, rows: Labels) -> "Items":
        """Return these samples alone, without reading any."""


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
        gallery: marks of the samples (N,) that queries are looked up in; None: all are.
        metadata: further columns by name, one word for each sample.
        pretrained_on: the data that the model behind ready-made features has seen, where the file
            says so.
        official: whether it is as its publishers give it out, so that nobody may change it: flaws
            are reported, not refused.
        origin: the trunk that made ready-made features, where the file says so.
        trained_on: marks of the samples (N,) that the model behind ready-made features was trained
            on, where the file says so.
        relations: pairs or triplets of samples, where some are given to train on.
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
    origin: FeaturesOrigin | None = None
    trained_on: Marks | None = None
    relations: Relations | None = None

    def __post_init__(self) -> None:
        for word in (self.name, *self.class_names, *self.ids, self.pretrained_on or ""):
            try:
                word.encode()
            except UnicodeEncodeError:
                raise BadInput(
                    f"{self.name}: the name {word!a} is not UTF-8; write it in UTF-8, or rename"
                    " the file or folder"
                ) from None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def first_test_class(self) -> int:
        """Number of the first class of the test half; also where no folds can be made."""
        return first_test_class(len(self.class_names), self.trainval)

    def fingerprint(self, indices: Labels, relations: Relations | None = None) -> str:
        """Hash everything about these samples that a run could depend on.

        `relations` are those to train on, by places among the indices.
        """
        rows = [
            [self.class_names[self.labels[i]], self.ids[i], self.items.digest(i)]
            for i in indices.tolist()
        ]
        marks = {"query": self.query, "gallery": self.gallery}
        roles: dict[str, Any] = {
            role: mark[indices].tolist() for role, mark in marks.items() if mark is not None
        }
        if relations is not None:
            roles[relations.kind] = relations.rows.tolist()
        # "look" was the name of the modality when seeds were first derived from this hash: another
        # word would change every published score.
        return digest({"look": self.modality, "samples": rows} | roles)


def contents_of(items: Items, indices: Labels) -> list[str]:
    """Return the hash of the content of these samples as 64 hex digits, whatever kind it is."""
    return [
        hash_ if _SHA256.fullmatch(hash_) else digest_bytes(hash_.encode())
        for hash_ in map(items.digest, indices.tolist())
    ]


_SHA256 = re.compile("[0-9a-f]{64}")


def renumber(y: Sequence[int] | Labels) -> Labels:
    """Return labels as 0 .. C-1 in the order of their values, as class weights need them."""
    numbers: Labels = np.unique(np.asarray(y), return_inverse=True)[1]
    return numbers


def first_test_class(classes: int, trainval: int | None) -> int:
    """Return the number of the first class of the test half.

    `trainval` is how many classes the official trainval half has; None where there is none.

    >>> first_test_class(9, None), first_test_class(9, 6)
    (4, 6)
    """
    return classes // 2 if trainval is None else trainval


def without_broken(dataset: Dataset) -> Dataset:
    """Return the data set as if the files that cannot be used were not there; notes name them.

    `BadInput` where the data set is as its publishers give it out, which nobody may change.
    """
    problems = [dataset.items.problem(row) for row in range(len(dataset))]
    broken = np.array([problem is not None for problem in problems], dtype=np.bool_)
    if not broken.any():
        return dataset
    first = next(filter(None, problems))
    if dataset.official or not isinstance(dataset.items, Selectable):
        raise BadInput(
            f"{dataset.name} is scored on exactly its published samples, so none can be skipped,"
            f" and {int(broken.sum()):,} cannot be used: {first}"
        )
    if broken.all():
        raise BadInput(f"none of the {len(dataset):,} samples of {dataset.name} is left: {first}")
    rows = np.flatnonzero(~broken)
    classes, labels = np.unique(dataset.labels[rows], return_inverse=True)
    trainval = dataset.trainval
    kept = replace(
        dataset,
        labels=labels.astype(np.int64),
        class_names=tuple(dataset.class_names[label] for label in classes.tolist()),
        ids=[dataset.ids[row] for row in rows.tolist()],
        items=dataset.items.only(rows),
        trainval=None if trainval is None else int((classes < trainval).sum()),
        query=None if dataset.query is None else dataset.query[rows],
        gallery=None if dataset.gallery is None else dataset.gallery[rows],
        metadata={
            column: [words[row] for row in rows.tolist()]
            for column, words in dataset.metadata.items()
        },
        relations=None if dataset.relations is None else dataset.relations.within(rows),
    )
    tested = dataset.labels >= [*classes.tolist(), len(dataset.class_names)][kept.first_test_class]
    of_trainval, of_test = (
        _note_on_broken([dataset.ids[row] for row in np.flatnonzero(rows_).tolist()], where)
        for rows_, where in ((broken & ~tested, ""), (broken & tested, " of the test half"))
    )
    before = relation_notes(dataset)
    notes = [note for note in dataset.notes if note not in before]
    return replace(
        kept,
        notes=(
            *notes,
            *of_trainval,
            *of_test,
            *_note_on_lost(dataset, kept),
            *relation_notes(kept),
        ),
        left_out=(*dataset.left_out, *of_trainval),
    )


def _note_on_lost(dataset: Dataset, kept: Dataset) -> list[str]:
    """Return a note that counts pairs or triplets with a broken sample."""
    given, left = dataset.relations, kept.relations
    if given is None or left is None or len(given) == len(left):
        return []
    return [f"{given.words(len(given) - len(left))} with broken images left out"]


def _note_on_broken(ids: Sequence[str], where: str) -> list[str]:
    """Return a note that counts and names broken samples; none where there are none."""
    more = f" and {len(ids) - NAMED:,} more" if len(ids) > NAMED else ""
    several = "image" if len(ids) == 1 else "images"
    return (
        [f"{len(ids):,} broken {several}{where} left out: {', '.join(ids[:NAMED])}{more}"]
        if ids
        else []
    )


def relation_notes(dataset: Dataset) -> list[str]:
    """Return notes on pairs or triplets that are not trained on, and on classes that they join."""
    given = dataset.relations
    if given is None:
        return []
    tested: Marks = dataset.labels >= dataset.first_test_class
    touching = int(tested[given.samples].any(axis=1).sum())
    in_trainval = given.positives[~tested[given.positives].any(axis=1)]
    one, other = dataset.labels[in_trainval].T
    mixed = int((one != other).sum())
    notes = []
    if touching:
        notes.append(
            f"{touching:,} of {given.words(len(given))} left out, with samples of the test half"
        )
    if mixed:
        notes.append(
            f"{mixed:,} of {len(in_trainval):,} positives in trainval join two classes; classes"
            " that are joined are in the same fold"
        )
    return notes


Loader = Callable[[Progress], Dataset] | Callable[[Path, Progress], Dataset]
"""Loads a data set and reports its progress: of a plain name, or of `kind:` from a path."""

datasets = Registry[Loader]("data set")
"""Loaders by name; `assay list datasets` shows the first paragraph of their docstrings."""


def references_of(count: int, query: Marks | None, gallery: Marks | None) -> int:
    """Return how many of `count` samples each query has to choose from at least.

    >>> references_of(10, None, None)
    9
    """
    everyone = np.ones(count, dtype=np.bool_)
    asked, searched = (everyone if mark is None else mark for mark in (query, gallery))
    return int(searched.sum()) - int((asked & searched).any())


@dataclass(frozen=True)
class Half:
    """Some classes of a data set with all their samples; `y` numbers the classes from 0.

    `TrainVal` (splits.py) and `OpenedTest` (seal.py) are the two kinds of halves.
    """

    _dataset: Dataset = field(repr=False)
    _indices: Labels = field(repr=False)

    is_test: ClassVar[bool] = False
    """Whether this is a test half; the pack of one is marked as sealed."""

    @property
    def modality(self) -> Modality:
        """What the samples are: drawings, photos or features."""
        return self._dataset.modality

    @property
    def reader(self) -> str:
        """Hash of the code that hands out the samples."""
        return class_hash(type(self._dataset.items))

    @property
    def inputs(self) -> int:
        """Channels of an image, or width of a vector."""
        return self._dataset.items.inputs

    @property
    def origin(self) -> FeaturesOrigin | None:
        """The trunk that made the vectors, where they are features of a known one."""
        return self._dataset.origin

    @property
    def places(self) -> Labels:
        """Place of each sample in the data set, which rows of files of embeddings follow."""
        return self._indices

    @cached_property
    def fingerprint(self) -> str:
        """Hash of these samples, and of nothing in the other half."""
        return self._dataset.fingerprint(self._indices)

    @cached_property
    def y(self) -> Labels:
        """Labels, from 0."""
        labels: Labels = self._dataset.labels[self._indices]
        numbered: Labels = labels - labels.min()
        return numbered

    @property
    def ids(self) -> list[str]:
        """Names of the samples."""
        return [self._dataset.ids[index] for index in self._indices.tolist()]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in class order."""
        first = int(self._dataset.labels[self._indices].min())
        return self._dataset.class_names[first : first + int(self.y.max()) + 1]

    @property
    def query(self) -> Marks | None:
        """Marks of the samples that are looked up; None: all are."""
        return None if self._dataset.query is None else self._dataset.query[self._indices]

    @property
    def gallery(self) -> Marks | None:
        """Marks of the samples that queries are looked up in; None: all are."""
        return None if self._dataset.gallery is None else self._dataset.gallery[self._indices]

    @property
    def relations(self) -> Relations | None:
        """Pairs or triplets to train on; None where there are none."""
        return None

    def contents(self, rows: Labels | None = None) -> list[str]:
        """Return the hash of the content of some of the samples, of all where no rows are given."""
        chosen = self._indices if rows is None else self._indices[rows]
        return contents_of(self._dataset.items, chosen)

    def some(self, rows: Labels, step: FirstStep) -> Samples:
        """Read some of the samples now."""
        return self._dataset.items.arrays(self._indices[rows], step)

    def arrays(self, step: FirstStep) -> Samples:
        """Read all samples now."""
        return self.some(np.arange(len(self._indices)), step)

    def bytes_after(self, step: FirstStep) -> int:
        """Return how many bytes the samples have after the first step, from their shapes."""
        items = self._dataset.items
        if isinstance(items, Shaped):
            return int(items.shapes(self._indices, step).prod(axis=1).sum()) * self.inputs
        one = self.some(np.arange(1), step)[0]  # samples in memory all have one shape
        return len(self._indices) * one.nbytes
