"""The test half in tests: a receipt, other test halves for the same trainval, and a record of who
reads the test half when.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assay.data.dataset import Dataset
from assay.data.seal import SealedTest
from assay.data.sources import datasets
from assay.hashing import digest
from assay.records.ledger import Ledger, Line, Receipt, read
from assay.run import testing as unsealed
from entries import announcement, budget, reproduction, selection


def receipt(folder: Path, trainval: str) -> Receipt:
    """Return the receipt of a complete study on `trainval`."""
    ledger = Ledger(folder / trainval / "ledger.jsonl")
    ledger.record(announcement(trainval=trainval, own_budget=budget(folds=1)))
    ledger.record(selection())
    ledger.record(reproduction())
    return ledger.receipt()


# --- Other test halves: of a folder ---


def swap_test_labels(folder: Path) -> None:
    """Move one image of every class of the test half to the next class."""
    classes = sorted(folder.iterdir())[len(list(folder.iterdir())) // 2 :]
    for number, child in enumerate(classes[:-1]):
        (child / "0.png").rename(classes[(number + 1) % (len(classes) - 1)] / "swapped.png")


def replace_test_images(folder: Path) -> None:
    """Replace every image of the test half by noise."""
    draw = np.random.default_rng(1)
    for child in sorted(folder.iterdir())[len(list(folder.iterdir())) // 2 :]:
        for path in child.iterdir():
            Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)


# --- Other test halves: of any data set ---


def rows_of_test(dataset: Dataset) -> np.ndarray:
    """Return the rows of the test half."""
    first = len(dataset.class_names) // 2 if dataset.trainval is None else dataset.trainval
    return np.flatnonzero(dataset.labels >= first)


def permute_labels(dataset: Dataset) -> Dataset:
    """Return the same data with other labels of the test half."""
    rows, labels = rows_of_test(dataset), dataset.labels.copy()
    labels[rows] = np.random.default_rng(0).permutation(labels[rows])
    return replace(dataset, labels=labels)


def replace_samples(dataset: Dataset) -> Dataset:
    """Return the same data with noise as samples of the test half."""
    return replace(dataset, items=Noisy(dataset.items, frozenset(rows_of_test(dataset).tolist())))


@dataclass
class Noisy:
    """Samples, some of which are noise of the same shapes."""

    items: Any
    rows: frozenset[int]

    @property
    def inputs(self) -> int:
        return int(self.items.inputs)

    def arrays(self, indices: Any, step: Any) -> Any:
        samples = self.items.arrays(indices, step)
        made = [
            self._noise(index, one) if index in self.rows else one
            for index, one in zip(indices.tolist(), samples, strict=True)
        ]
        return np.stack(made) if isinstance(samples, np.ndarray) else made

    def digest(self, index: int) -> str:
        own = str(self.items.digest(index))
        return digest(["noise", own]) if index in self.rows else own

    def problem(self, index: int) -> str | None:
        return self.items.problem(index)  # type: ignore[no-any-return]

    def _noise(self, index: int, like: Any) -> Any:
        draw = np.random.default_rng(index)
        return (
            draw.integers(0, 255, like.shape)
            if like.dtype == np.uint8
            else draw.normal(size=like.shape)
        ).astype(like.dtype)


CHANGES = {"permuted": permute_labels, "replaced": replace_samples}
EVERY_CHANGE = "other"


def offer_changed(patch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Register `permuted-KIND:`, `replaced-KIND:` and, with both changes, `other-KIND:`, the kind
    with another test half; and `unchanged-KIND:`, handed out by the same class.
    """
    both = {EVERY_CHANGE: lambda dataset: permute_labels(replace_samples(dataset))}
    every = {**CHANGES, **both, "unchanged": lambda dataset: dataset}
    for kind in kinds:
        for name, change in every.items():
            patch.setitem(
                datasets._parts, f"{name}-{kind}:", _changing(datasets[f"{kind}:"], change)
            )


def _changing(load: Any, change: Callable[[Dataset], Dataset]) -> Callable[[Path, Any], Dataset]:
    def wrapped(path: Path, progress: Any) -> Dataset:
        dataset = load(path, progress)
        return change(replace(dataset, items=Noisy(dataset.items, frozenset())))

    return wrapped


# --- Who looks at it when ---


@dataclass(frozen=True)
class Opening:
    """A reading of the test half: the call by which it was read, and the lines of the ledger at
    that time.
    """

    door: str
    lines: list[Line]


class Spy:
    """Records every opening of the seal and every reading of test samples in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str) -> None:
        self.openings: list[Opening] = []
        self._opened: Path | None = None
        load = datasets[f"{kind}:"]
        patch.setitem(
            datasets._parts, f"{kind}:", lambda path, progress: self._watched(load(path, progress))
        )
        opened, asked = SealedTest.open, unsealed.read_test
        patch.setattr(
            SealedTest,
            "open",
            lambda sealed, receipt: self._saw("open", receipt) or opened(sealed, receipt),
        )
        patch.setattr(
            unsealed,
            "read_test",
            lambda folder, receipt, *data: (
                self._saw("view", receipt) or asked(folder, receipt, *data)
            ),
        )

    def _saw(self, door: str, receipt: Receipt) -> None:
        self._opened = Path(receipt.ledger)
        self.openings.append(Opening(door, read(self._opened)))

    def _watched(self, dataset: Dataset) -> Dataset:
        return replace(
            dataset,
            items=_Watched(dataset.items, frozenset(rows_of_test(dataset).tolist()), self._read),
        )

    def _read(self) -> None:
        """Record a reading of samples, by the study that was the last to open the test half."""
        self.openings.append(Opening("samples", read(self._opened) if self._opened else []))


@dataclass
class _Watched(Noisy):
    """Samples that report when some of them are read."""

    report: Callable[[], None]

    def arrays(self, indices: Any, step: Any) -> Any:
        if self.rows.intersection(indices.tolist()):
            self.report()
        return self.items.arrays(indices, step)

    def digest(self, index: int) -> str:
        return str(self.items.digest(index))
