"""Halves and folds by class: trainval, the sealed test half, and the folds of trainval."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from assay.data.dataset import Dataset, Half, Labels, Rows
from assay.data.relations import Relations, group_classes
from assay.data.seal import PartSummary, SealedTest, summarise
from assay.errors import BadInput
from assay.protocols import FEWEST_CLASSES, Protocol


class TrainVal(Half):
    """The half on which everything is trained, tuned, stopped and selected."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of these samples and of nothing in the other half; query and gallery marks, which
        are for the test, are no part of it.
        """
        dataset = replace(self._dataset, query=None, gallery=None)
        return dataset.fingerprint(self._indices, self.relations)

    @property
    def query(self) -> None:
        """None: in validation every sample is looked up."""

    @property
    def gallery(self) -> None:
        """None: in validation samples are looked up in all others."""

    @cached_property
    def relations(self) -> Relations | None:
        """Pairs or triplets of samples of this half alone, by their rows in it."""
        given = self._dataset.relations
        own = None if given is None else given.within(self._indices)
        return own if own is not None and len(own) else None


@dataclass(frozen=True)
class Fold:
    """Rows of trainval to train on and to validate on; no class is in both."""

    train: Rows
    validation: Rows


def of(dataset: Dataset, protocol: Protocol) -> tuple[TrainVal, SealedTest]:
    """Split a data set into trainval and the sealed test half.

    Trainval has the classes of the official trainval half, or else the first half of all classes.
    """
    _check_classes(dataset, protocol.folds)
    trainval = TrainVal(dataset, np.flatnonzero(dataset.labels < dataset.first_test_class))
    _check_groups(dataset.name, trainval, protocol.folds)
    for number, fold in enumerate(folds(trainval, protocol.folds)):
        if np.bincount(trainval.y[fold.validation]).max() < 2:
            raise BadInput(
                f"{dataset.name}: fold {number} has no class with two samples, so there is nothing"
                " to find; add samples to its classes"
            )
    return trainval, SealedTest(dataset, trainval)


def parts(dataset: Dataset, protocol: Protocol) -> list[str]:
    """Return the part of each sample of the data set: `fold 0`, `fold 1`, ..., `test`."""
    trainval, _ = of(dataset, protocol)
    names = np.full(len(dataset), "test", dtype=object)
    for number, fold in enumerate(folds(trainval, protocol.folds)):
        names[trainval.places[fold.validation]] = f"fold {number}"
    return [str(name) for name in names]


def listing(dataset: Dataset, protocol: Protocol) -> dict[str, list[object]]:
    """Return name, class and part of each sample as columns, and query and gallery as 1 or 0 where
    the data set has such marks.
    """
    names = [dataset.class_names[label] for label in dataset.labels.tolist()]
    columns: dict[str, list[object]] = {
        "sample": list(dataset.ids),
        "class": list(names),
        "part": list(parts(dataset, protocol)),
    }
    for role, marks in (("query", dataset.query), ("gallery", dataset.gallery)):
        if marks is not None:
            columns[role] = marks.astype(int).tolist()
    return columns


@dataclass(frozen=True)
class Splitting:
    """How a protocol splits a data set, for people.

    Args:
        protocol: its name.
        official_halves: whether trainval and test are the publishers' own.
        fingerprints: of `trainval` and `test`; None where the data set cannot be split.
        parts: the folds and the test half.
        no_splits: why the data set cannot be split; None where it can be.
    """

    protocol: str
    official_halves: bool
    fingerprints: dict[str, str] | None
    parts: tuple[PartSummary, ...]
    no_splits: str | None


def describe_splits(dataset: Dataset, protocol: Protocol) -> Splitting:
    """Count what is in each fold and in the test half, or say why there are none."""
    official = dataset.trainval is not None
    try:
        trainval, test = of(dataset, protocol)
    except BadInput as error:
        return Splitting(protocol.name, official, None, (), str(error))
    parts = [
        summarise(f"fold {number}", trainval.y[fold.validation], trainval.class_names)
        for number, fold in enumerate(folds(trainval, protocol.folds))
    ]
    fingerprints = {"trainval": trainval.fingerprint, "test": test.fingerprint}
    return Splitting(protocol.name, official, fingerprints, (*parts, test.summary), None)


def folds(trainval: TrainVal, count: int) -> list[Fold]:
    """Return `count` folds of consecutive classes, as equal as can be; each class is validated
    exactly once.

    Classes that positive pairs join count as one.
    """
    return folds_of_labels(trainval.y, count, trainval.relations)


def folds_of_labels(y: Labels, count: int, relations: Relations | None = None) -> list[Fold]:
    """Return the folds of labels that number classes from 0."""
    groups = group_classes(y, relations)
    runs = np.array_split(np.arange(int(groups.max()) + 1), count)
    parts = [np.isin(groups[y], run) for run in runs]
    return [Fold(np.flatnonzero(~part), np.flatnonzero(part)) for part in parts]


def _check_classes(dataset: Dataset, folds: int) -> None:
    """Raise `BadInput` where a half has too few classes for its folds; of an official split each
    half is counted by itself.
    """
    classes = len(dataset.class_names)
    fewest = max(FEWEST_CLASSES, 4 * folds)
    remedy = "add classes or lower --set folds" if fewest > FEWEST_CLASSES else "add classes"
    if dataset.trainval is None and classes < fewest:
        raise BadInput(
            f"{dataset.name} has {classes} class{'es' * (classes != 1)}; two halves with {folds}"
            f" folds need at least {fewest}; {remedy}"
        )
    if dataset.trainval is not None and dataset.trainval < fewest // 2:
        raise BadInput(
            f"{dataset.name} has {dataset.trainval} class{'es' * (dataset.trainval != 1)} in"
            f" trainval; {folds} folds need at least {fewest // 2}; {remedy}"
        )
    if dataset.trainval is not None and classes - dataset.trainval < 2:
        raise BadInput(
            f"{dataset.name} has {classes - dataset.trainval} classes in its test half; it needs at"
            " least 2; add classes"
        )


def _check_groups(name: str, trainval: TrainVal, folds: int) -> None:
    """Raise `BadInput` where positives join so many classes that a fold would have a single one."""
    groups = int(group_classes(trainval.y, trainval.relations).max()) + 1
    if groups < 2 * folds:
        raise BadInput(
            f"{name}: positives join the {len(trainval.class_names)} classes of trainval to"
            f" {groups} groups, each of which is in one fold; {folds} folds need at least"
            f" {2 * folds}. Correct positives that are of two classes, or lower --set folds"
        )
