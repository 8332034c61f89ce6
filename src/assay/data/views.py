"""Views: one half of a data set as arrays on disk, which is all that a task gets to see of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.dataset import Labels, Pixels, Vectors
from assay.data.splits import Half
from assay.files import new_folder
from assay.ledger import Receipt


@dataclass(frozen=True)
class View:
    """Samples `x`, memory-mapped, and labels `y` numbered from 0."""

    x: Pixels | Vectors
    y: Labels

    def rows(self, indices: Labels) -> "View":
        """Some of the samples; labels keep their numbers."""
        return View(self.x[indices], self.y[indices])

    @property
    def inputs(self) -> int:
        """Channels of an image, or width of a vector."""
        return int(self.x.shape[1])


def write_view(folder: Path, half: Half, size: int) -> None:
    """Place the view of a half at `folder`, unless it is there. A test half can be had only against a receipt."""
    if folder.exists():
        return
    with new_folder(folder) as draft:
        np.save(draft / "x.npy", half.arrays(size))
        np.save(draft / "y.npy", half.y)


def read_view(folder: Path) -> View:
    """The view at `folder`."""
    return View(np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy"))


def read_test(folder: Path, receipt: Receipt, trainval: str) -> View:
    """The view of the test half at `folder`, against the receipt of the study on `trainval` that asks for it."""
    receipt.check(trainval)
    return read_view(folder)


def renumber(y: Sequence[int] | Labels) -> Labels:
    """Labels as 0 .. C-1 in the order of their values, as class weights need them."""
    numbers: Labels = np.unique(np.asarray(y), return_inverse=True)[1]
    return numbers
