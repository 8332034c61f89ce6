"""Views: one half of a data set as arrays on disk, which is all that a task gets to see of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from assay.data.dataset import Half, Labels, Marks, Pixels, Samples, Vectors
from assay.data.pack import (
    beside,
    is_as_written,
    made_by,
    read_array,
    read_pack,
    reading,
    remove_spoilt,
    spoilt,
    write_pack,
    write_vectors,
)
from assay.data.paths import writable_cache
from assay.files import cache_folder, in_turn, read_json
from assay.progress import Progress
from assay.protocols import FirstStep, Form
from assay.records.ledger import SealError


class Images(Protocol):
    """Images that are read when they are asked for: a `Pack`, or some rows of one."""

    @property
    def channels(self) -> int:
        """Channels of each image."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Labels | slice) -> Samples: ...

    def __iter__(self) -> Iterator[Pixels]: ...


@dataclass(frozen=True)
class Rows:
    """Some of the images of another collection, none of them read."""

    base: Images
    indices: Labels

    @property
    def channels(self) -> int:
        """Channels of each image."""
        return self.base.channels

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: Labels | slice) -> Samples:
        return self.base[self.indices[rows]]

    def __iter__(self) -> Iterator[Pixels]:
        return (
            image for row in range(len(self)) for image in self.base[self.indices[row : row + 1]]
        )


@dataclass(frozen=True)
class View:
    """Samples `x` and labels `y` numbered from 0.

    Args:
        x: vectors (N, width), or images: in memory (N, H, W, C), or read when they are asked for.
        y: label of each (N,).
        query: marks of those that are looked up; None: all are.
        gallery: marks of those that they are looked up in; None: all are.
    """

    x: Vectors | Pixels | Images
    y: Labels
    query: Marks | None = None
    gallery: Marks | None = None

    def rows(self, indices: Labels) -> "View":
        """Some of the samples, images of them unread; labels keep their numbers."""
        query, gallery = (
            None if marks is None else marks[indices] for marks in (self.query, self.gallery)
        )
        return View(_some(self.x, indices), self.y[indices], query, gallery)

    @property
    def inputs(self) -> int:
        """Channels of an image, or width of a vector."""
        return int(self.x.shape[-1]) if isinstance(self.x, np.ndarray) else self.x.channels


def _some(x: Vectors | Pixels | Images, indices: Labels) -> Vectors | Pixels | Images:
    if isinstance(x, np.ndarray):
        chosen: Vectors | Pixels = x[indices]  # in memory, so that every batch of it is one gather
        return chosen
    if isinstance(x, Rows):
        return Rows(x.base, x.indices[indices])
    return Rows(x, np.arange(len(x))[indices])


def write_view(
    folder: Path,
    half: Half,
    step: FirstStep,
    form: Form = "pixels",
    progress: Progress | None = None,
) -> None:
    """Place the view of a half at `folder`, unless it is there. A test half can be had only against
    a receipt.
    """
    write_pack(folder, half, step, form, progress)


def place_view(
    half: Half, step: FirstStep, form: Form = "pixels", progress: Progress | None = None
) -> Path:
    """The folder in the cache with the view of a half, made unless it is there as it was written.

    Its name is all that its bytes depend on, so any store may use it. Labels, index and marks are
    compared by their hashes, pixels and vectors by their length alone: they may be 30 GB, and this
    is asked at every start.
    """
    name = f"{half.fingerprint}-{step.kind}-{step.side}-{form}-{made_by()[:16]}"
    folder = cache_folder() / "packs" / name
    if not is_as_written(folder):
        writable_cache()
        remove_spoilt(folder)
        write_view(folder, half, step, form, progress)
    return folder


def place_vectors(half: Half, name: str, make: Callable[[], Vectors]) -> Path:
    """The folder in the cache with vectors of a half's samples as its view, made unless one of that
    name is there as written.

    What that means is said at `place_view`. One process makes them, and others that want the same
    wait for it.
    """
    folder = cache_folder() / "features" / name
    if not is_as_written(folder):
        writable_cache()
        remove_spoilt(folder)
        folder.parent.mkdir(exist_ok=True)
        with in_turn(beside(folder, ".lock"), lambda: None):
            if not folder.exists():
                write_vectors(folder, half, make())
    return folder


def read_view(folder: Path) -> View:
    """Read the view at `folder`, which is not of a test half: for that see `seal.read_test`.

    `BadInput` where the folder is not as it was written, as far as `place_view` looks.
    """
    view = read_any(folder)
    with reading(folder):
        sealed = read_json(folder / "pack.json")["sealed"]
    if sealed:
        raise SealError(f"{folder} holds a test half, which opens to the receipt of a study alone")
    return view


def read_any(folder: Path) -> View:
    """Read the view at `folder`, of whichever half: for `read_view` and the seal alone."""
    with reading(folder):
        vectors = (folder / "x.npy").exists()
        x = np.lib.format.open_memmap(folder / "x.npy", mode="r") if vectors else read_pack(folder)
        view = View(
            x,
            read_array(folder / "y.npy"),
            _marks(folder / "query.npy"),
            _marks(folder / "gallery.npy"),
        )
        whole = len(view.x) == len(view.y) and is_as_written(folder)
    if not whole:
        raise spoilt(folder)
    return view


def _marks(path: Path) -> Marks | None:
    if not path.exists():
        return None
    marks: Marks = read_array(path)
    return marks


def renumber(y: Sequence[int] | Labels) -> Labels:
    """Labels as 0 .. C-1 in the order of their values, as class weights need them."""
    numbers: Labels = np.unique(np.asarray(y), return_inverse=True)[1]
    return numbers
