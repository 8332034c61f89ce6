"""Halves and folds by class, and the seal on the test half."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from assay.data.copies import Flaws, find_flaws, first_of_test
from assay.data.dataset import Dataset, Labels, Marks, Samples
from assay.errors import BadInput
from assay.progress import Progress
from assay.protocols import FEWEST_CLASSES, FirstStep, Modality, Protocol
from assay.records.ledger import Receipt

if TYPE_CHECKING:
    from assay.protocols import Form


@dataclass(frozen=True)
class Half:
    """Some classes of a data set with all their samples; `y` numbers them from 0 in class order."""

    _dataset: Dataset = field(repr=False)
    _indices: Labels = field(repr=False)

    @property
    def modality(self) -> Modality:
        """What the samples are: drawings, photos or features."""
        return self._dataset.modality

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

    @property
    def query(self) -> Marks | None:
        """Marks of the samples that are looked up; None: all are."""
        return None if self._dataset.query is None else self._dataset.query[self._indices]

    @property
    def gallery(self) -> Marks | None:
        """Marks of the samples that they are looked up in; None: all are."""
        return None if self._dataset.gallery is None else self._dataset.gallery[self._indices]

    def some(self, rows: Labels, step: FirstStep) -> Samples:
        """Some of the samples, read now."""
        return self._dataset.items.arrays(self._indices[rows], step)

    def arrays(self, step: FirstStep) -> Samples:
        """The samples, read now."""
        return self.some(np.arange(len(self._indices)), step)


class TrainVal(Half):
    """The half on which everything is trained, tuned, stopped and selected."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of these samples, and of nothing in the other half; marks for the test are no part
        of it.
        """
        return replace(self._dataset, query=None, gallery=None).fingerprint(self._indices)

    @property
    def query(self) -> None:
        """Marks are for the test: in validation every sample is looked up."""

    @property
    def gallery(self) -> None:
        """Marks are for the test: in validation samples are looked up in all others."""


class SealedTest:
    """The other half, which answers to a receipt alone."""

    def __init__(self, half: Half, trainval: TrainVal) -> None:
        self.__half, self.__trainval = half, trainval

    def open(self, receipt: Receipt) -> Half:
        """The test half, once the study behind the receipt, of this data's trainval, has selected
        and reproduced.
        """
        receipt.check(self.__trainval.fingerprint)
        return self.__half

    @cached_property
    def flaws(self) -> Flaws:
        """What is wrong with the data, by hashes and small pictures of the samples of both halves.

        The seal holds: it is for people, before training, and for the record once the seal is open.
        What it says of the test half goes into no announcement, and nothing that trains or selects
        asks for it.
        """
        return find_flaws(self.__half._dataset)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was left out on loading that may depend on the test half; for people, and for the
        record of the opened seal.
        """
        dataset = self.__half._dataset
        return tuple(note for note in dataset.notes if note not in dataset.left_out)

    def pack(
        self, step: FirstStep, form: "Form" = "pixels", progress: Progress | None = None
    ) -> None:
        """Pack the test half into the cache, so that the study which gets to open it need not.

        The seal holds: nothing comes back, neither samples nor labels nor the place, and nothing
        that trains or selects looks for packs other than those of the halves in its hands.
        """
        from assay.data.views import place_view  # which stands on this module

        place_view(self.__half, step, form, progress)


@dataclass(frozen=True)
class Fold:
    """Rows of trainval to train on and to validate on; no class is in both."""

    train: Labels
    validation: Labels


def of(dataset: Dataset, protocol: Protocol) -> tuple[TrainVal, SealedTest]:
    """The classes of the official trainval half, or else the first half of all classes; and the
    others sealed.
    """
    _need_classes(dataset, protocol.folds)
    in_trainval = first_of_test(dataset)
    trainval = TrainVal(dataset, np.flatnonzero(dataset.labels < in_trainval))
    test = Half(dataset, np.flatnonzero(dataset.labels >= in_trainval))
    for number, fold in enumerate(folds(trainval, protocol.folds)):
        _need_a_pair(trainval.y[fold.validation], f"{dataset.name}: fold {number}")
    _need_something_to_find(test, f"{dataset.name}: the test half")
    return trainval, SealedTest(test, trainval)


def parts(dataset: Dataset, protocol: Protocol) -> list[str]:
    """Where each sample of the data set goes: `fold 0`, `fold 1`, ..., `test`."""
    trainval, _ = of(dataset, protocol)
    names = np.full(len(dataset.labels), "test", dtype=object)
    for number, fold in enumerate(folds(trainval, protocol.folds)):
        names[trainval._indices[fold.validation]] = f"fold {number}"
    return [str(name) for name in names]


def folds(trainval: TrainVal, count: int) -> list[Fold]:
    """`count` runs of classes in class order, as equal as can be; each class is validated exactly
    once.
    """
    return folds_of_labels(trainval.y, count)


def folds_of_labels(y: Labels, count: int) -> list[Fold]:
    """The folds of labels that number classes from 0."""
    runs = np.array_split(np.arange(int(y.max()) + 1), count)
    parts = [np.isin(y, run) for run in runs]
    return [Fold(np.flatnonzero(~part), np.flatnonzero(part)) for part in parts]


def _need_classes(dataset: Dataset, folds: int) -> None:
    """Both halves of a data set without an official split come from the same number of classes; an
    official one is as it is.
    """
    classes = len(dataset.class_names)
    fewest = max(FEWEST_CLASSES, 4 * folds)
    if dataset.trainval is None and classes < fewest:
        raise BadInput(
            f"{dataset.name} has {classes} class{'es' * (classes != 1)}; two halves with {folds}"
            f" folds need at least {fewest}"
        )
    if dataset.trainval is not None and dataset.trainval < fewest // 2:
        raise BadInput(
            f"{dataset.name} has {dataset.trainval} class{'es' * (dataset.trainval != 1)} in"
            f" trainval; {folds} folds need at least {fewest // 2}"
        )
    if dataset.trainval is not None and classes - dataset.trainval < 2:
        raise BadInput(
            f"{dataset.name} has {classes - dataset.trainval} classes in its test half; it needs at"
            " least 2"
        )


def _need_a_pair(y: Labels, where: str) -> None:
    if np.bincount(y).max() < 2:
        raise BadInput(
            f"{where} has no class with two samples, so there is nothing to find; add samples to"
            " its classes"
        )


def _need_something_to_find(test: Half, where: str) -> None:
    """Some query must have a gallery sample of its class other than itself."""
    if test.query is None and test.gallery is None:
        return _need_a_pair(test.y, where)
    everything = np.ones(len(test.y), dtype=np.bool_)
    query = everything if test.query is None else test.query
    gallery = everything if test.gallery is None else test.gallery
    relevant = np.bincount(test.y[gallery], minlength=int(test.y.max()) + 1)[test.y] - gallery
    if not (relevant[query] > 0).any():
        raise BadInput(
            f"{where} has {int(query.sum())} queries and {int(gallery.sum())} gallery samples, and"
            " no query has another sample of its class in the gallery, so there is nothing to"
            " find; mark samples of the same classes as both"
        )
    return None
