"""Halves and folds by class, and the seal on the test half."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from assay.data.dataset import Dataset, Labels, Pixels, Vectors
from assay.errors import BadInput
from assay.ledger import Receipt
from assay.protocol import FEWEST_CLASSES, Look, Protocol


@dataclass(frozen=True)
class Half:
    """Some classes of a data set with all their samples; `y` numbers them from 0 in class order."""

    _dataset: Dataset = field(repr=False)
    _indices: Labels = field(repr=False)

    @property
    def look(self) -> Look:
        """What the data looks like."""
        return self._dataset.look

    @property
    def inputs(self) -> int:
        """Channels of an image, or width of a vector."""
        return self._dataset.items.inputs

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

    def arrays(self, size: int) -> Pixels | Vectors:
        """The samples, read now."""
        return self._dataset.items.arrays(self._indices, size)

    def some(self, rows: Labels, size: int) -> Pixels | Vectors:
        """Some of the samples, read now."""
        return self._dataset.items.arrays(self._indices[rows], size)


class TrainVal(Half):
    """The half on which everything is trained, tuned, stopped and selected."""


class SealedTest:
    """The other half, which answers to a receipt alone."""

    def __init__(self, half: Half, trainval: TrainVal) -> None:
        self.__half, self.__trainval = half, trainval

    def open(self, receipt: Receipt) -> Half:
        """The test half, once the study behind the receipt, of this data's trainval, has selected and reproduced."""
        receipt.check(self.__trainval.fingerprint)
        return self.__half


@dataclass(frozen=True)
class Fold:
    """Rows of trainval to train on and to validate on; no class is in both."""

    train: Labels
    validation: Labels


def of(dataset: Dataset, protocol: Protocol) -> tuple[TrainVal, SealedTest]:
    """The first half of the classes, and the second one sealed."""
    classes = len(dataset.class_names)
    fewest = max(FEWEST_CLASSES, 4 * protocol.folds)
    if classes < fewest:
        raise BadInput(
            f"{dataset.name} has {classes} class{'es' * (classes != 1)}; "
            f"two halves with {protocol.folds} folds need at least {fewest}"
        )
    trainval = TrainVal(dataset, np.flatnonzero(dataset.labels < classes // 2))
    test = Half(dataset, np.flatnonzero(dataset.labels >= classes // 2))
    for number, fold in enumerate(folds(trainval, protocol.folds)):
        _need_a_pair(trainval.y[fold.validation], f"{dataset.name}: fold {number}")
    _need_a_pair(test.y, f"{dataset.name}: the test half")
    return trainval, SealedTest(test, trainval)


def parts(dataset: Dataset, protocol: Protocol) -> list[str]:
    """Where each sample of the data set goes: `fold 0`, `fold 1`, ..., `test`."""
    trainval, _ = of(dataset, protocol)
    names = np.full(len(dataset.labels), "test", dtype=object)
    for number, fold in enumerate(folds(trainval, protocol.folds)):
        names[trainval._indices[fold.validation]] = f"fold {number}"
    return [str(name) for name in names]


def folds(trainval: TrainVal, count: int) -> list[Fold]:
    """`count` runs of classes in class order, as equal as can be; each class is validated exactly once."""
    return folds_of_labels(trainval.y, count)


def folds_of_labels(y: Labels, count: int) -> list[Fold]:
    """The folds of labels that number classes from 0."""
    runs = np.array_split(np.arange(int(y.max()) + 1), count)
    parts = [np.isin(y, run) for run in runs]
    return [Fold(np.flatnonzero(~part), np.flatnonzero(part)) for part in parts]


def _need_a_pair(y: Labels, where: str) -> None:
    if np.bincount(y).max() < 2:
        raise BadInput(f"{where} has no class with two samples, so there is nothing to find; add samples to its classes")
