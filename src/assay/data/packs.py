"""Packs: one half of a data set on disk, which is all that a task gets to see of the data.

A pack is a folder of the cache. `y.npy` holds the labels, `query.npy` and `gallery.npy` the marks
for the test where there are some, `pairs.npy` or `triplets.npy` those that are given to train on,
and `pack.json` what the pack was made of with the hash of each file, by which a pack that was
changed later is found. The samples are

- vectors: `x.npy` (N, width), memory-mapped, or
- images after the first step: `pixels.bin`, one image after the other, memory-mapped, and
  `index.npy` (N, 4) with offset, height, width and bytes of each.

A pack of images that is being written lies in `<folder>.partial` (partial_pack.py), from which a
killed process resumes.

`pack.json` is no secret: who edits a file of the pack can write fitting hashes. So every run
records the hash of the pack that it read (`View.content`), which `verify --data` compares with a
pack made of the data again. Shapes: N samples, H x W pixels, C channels.
"""

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from assay.data import partial_pack
from assay.data.content import digest_content
from assay.data.dataset import Half, Labels, Marks, Pixels, Samples, Vectors
from assay.data.images import decoder_hash
from assay.data.partial_pack import PartialPack
from assay.data.paths import writable_cache
from assay.data.relations import Relations, read_relations
from assay.errors import BadInput
from assay.files import (
    cache_folder,
    errors_naming,
    lock_in_turn,
    new_folder,
    read_json,
    write_atomically,
)
from assay.hashing import canonical, digest, digest_file, plain, pretty
from assay.npz import read_npy, write_npy
from assay.progress import Progress, silent
from assay.protocols import FirstStep, ImageForm
from assay.records.ledger import SealError
from assay.records.source import code_hash
from assay.workers import in_threads

CHUNK = 256
CHUNK_BYTES = 2**26
"""Images, and about as many bytes, that are held in memory at a time."""

LARGE_FILES = ("pixels.bin", "x.npy")
"""Files that may have 30 GB: a process hashes them once, unless they change (data/content.py)."""

JPEG_SHARE = 0.2
"""Bytes of a JPEG to those of its pixels: 0.14 to 0.20 measured on three photos at 256 pixels, less
above, more below.
"""


# --- What a task sees ---


class Images(Protocol):
    """Images that are read when they are asked for."""

    @property
    def channels(self) -> int:
        """Channels of each image."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Labels | slice) -> Samples: ...

    def __iter__(self) -> Iterator[Pixels]: ...


class PackedImages:
    """Images on disk, read-only; only those that are asked for are read."""

    def __init__(self, folder: Path) -> None:
        about = read_json(folder / "pack.json")
        self.folder, self.form, self.channels = folder, about["form"], int(about["channels"])
        self.index: NDArray[np.int64] = read_npy(folder / "index.npy")
        mapped = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="r")
        self._bytes: Pixels = mapped.view(np.ndarray)
        if len(self.index) != about["count"] or len(self._bytes) != self.index[:, 3].sum():
            raise _corrupt(folder)
        self._even = bool((self.index[:, 1:3] == self.index[0, 1:3]).all())

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Labels | slice) -> Samples:
        """Return images (n, H, W, C) where all of the pack have one shape, else a list of
        (H, W, C).
        """
        if self._even and self.form == "pixels":
            height, width = self.shape_of(0)
            chosen: Pixels = self._bytes.reshape(-1, height, width, self.channels)[rows]
            return chosen
        numbers = np.arange(len(self))[rows].tolist()
        found = (
            [self.image(row) for row in numbers]
            if self.form == "pixels"
            else in_threads(self.image, numbers)
        )
        return np.stack(found) if self._even and found else found

    def __iter__(self) -> Iterator[Pixels]:
        return map(self.image, range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # the folder alone: a pickled memory map would be all the bytes
        return PackedImages, (self.folder,)

    def image(self, row: int) -> Pixels:
        """Return one image (H, W, C); of pixels a view into the map, nothing copied."""
        offset, height, width, length = self.index[row].tolist()
        content = self._bytes[offset : offset + length]
        if self.form == "pixels":
            return content.reshape(height, width, self.channels)
        with Image.open(BytesIO(content.tobytes()), formats=["JPEG"]) as encoded:
            return np.asarray(encoded).reshape(height, width, self.channels)

    def shape_of(self, row: int) -> tuple[int, int]:
        """Return height and width of an image, without reading it."""
        height, width = self.index[row, 1:3].tolist()
        return height, width


@dataclass(frozen=True)
class SelectedImages:
    """Some rows of other images, none of them read yet."""

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
        query: marks of the samples that are looked up; None: all are.
        gallery: marks of the samples that queries are looked up in; None: all are.
        content: hash of all files of the pack; None where it is no pack, or only some rows of one.
        relations: pairs or triplets of all of the samples to train on; None where there are none.
    """

    x: Vectors | Pixels | Images
    y: Labels
    query: Marks | None = None
    gallery: Marks | None = None
    content: str | None = None
    relations: Relations | None = None

    def rows(self, indices: Labels) -> "View":
        """Return some samples without relations, images unread; labels keep their numbers."""
        x: Vectors | Pixels | Images
        if isinstance(self.x, np.ndarray):
            x = self.x[indices]  # in memory, so that every batch of it is one gather
        elif isinstance(self.x, SelectedImages):
            x = SelectedImages(self.x.base, self.x.indices[indices])
        else:
            x = SelectedImages(self.x, np.arange(len(self.x))[indices])
        query, gallery = (
            None if marks is None else marks[indices] for marks in (self.query, self.gallery)
        )
        return View(x, self.y[indices], query, gallery)

    @property
    def inputs(self) -> int:
        """Channels of an image, or width of a vector."""
        return int(self.x.shape[-1]) if isinstance(self.x, np.ndarray) else self.x.channels


# --- Reading ---


def read_pack(folder: Path) -> View:
    """Read a pack of trainval. A packed test half is refused: `seal.read_test` reads it.

    `BadInput` where a file of the folder is not as it was written.
    """
    view = read_any(folder)
    if read_json(folder / "pack.json")["sealed"]:
        raise SealError(
            f"{folder} holds a test half, which is read only with the receipt of a study"
        )
    return view


def read_any(folder: Path) -> View:
    """Read the pack of either half. For `read_pack` and the seal only."""
    try:
        vectors = (folder / "x.npy").exists()
        query, gallery = (
            read_npy(path) if (path := folder / f"{role}.npy").exists() else None
            for role in ("query", "gallery")
        )
        view = View(
            read_npy(folder / "x.npy", mapped=True) if vectors else PackedImages(folder),
            read_npy(folder / "y.npy"),
            query,
            gallery,
            content_of(folder),
            read_relations(folder),
        )
    except BadInput:
        raise
    except Exception as error:  # numpy, JSON and memory maps raise many kinds of errors
        raise _corrupt(folder, error) from error
    if view.content is None or len(view.x) != len(view.y):
        raise _corrupt(folder)
    return view


def _corrupt(folder: Path, error: Exception | None = None) -> BadInput:
    because = f" ({type(error).__name__}: {' '.join(str(error).split())})" if error else ""
    return BadInput(
        f"{folder} is not the pack that was written there; remove the folder, and it is made"
        f" again{because}"
    )


def content_of(folder: Path) -> str | None:
    """Return the hash of all files of a pack; None where one is missing or has another hash than
    `pack.json` says.
    """
    try:
        about = read_json(folder / "pack.json")
        own = about.pop("digest")
        hashes = {name: _hash(folder / name) for name in about["files"]}
        intact = own == digest(about) and about["files"] == hashes
        return digest(hashes) if intact else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _hash(path: Path) -> str:
    return digest_content(path) if path.name in LARGE_FILES else digest_file(path)


# --- Writing ---


def place_pack(
    half: Half,
    step: FirstStep,
    form: ImageForm = "pixels",
    progress: Progress = silent,
) -> Path:
    """Return the folder of a half's pack in the cache; write the pack unless it is there, intact.

    The folder's name is all that its bytes depend on, so any store may use it. All its files are
    compared by their hashes.
    """
    name = f"{half.fingerprint}-{step.kind}-{step.side}-{form}-{_packing_hash(half)[:16]}"
    folder = cache_folder() / "packs" / name
    if content_of(folder) is None:
        writable_cache()
        _remove_corrupt(folder)
        write_pack(folder, half, step, form, progress)
    return folder


def place_vectors(
    half: Half, name: str, make: Callable[[], Vectors], progress: Progress = silent
) -> Path:
    """Return the folder of a pack of vectors, one for each sample of a half, under a name in the
    cache; write the pack unless it is there, intact.

    One process computes them with `make`; others that want the same wait for it.
    """
    folder = cache_folder() / "features" / name
    if content_of(folder) is None:
        writable_cache()
        _remove_corrupt(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)

        def waiting() -> None:
            progress("waiting for another process that computes these features", 0, len(half.y))

        with lock_in_turn(_beside(folder, ".lock"), waiting):
            if not folder.exists():
                write_vectors(folder, half, make())
    return folder


def _remove_corrupt(folder: Path) -> None:
    """Remove what lies at `folder` unless another process has made it intact by now. A process may
    be killed here without harm.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    with lock_in_turn(_beside(folder, ".lock"), lambda: None):
        if content_of(folder) is not None:
            return
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(folder.name + ending)


def _packing_hash(half: Half) -> str:
    """Return the hash of the code that hands out the samples and makes a pack of them."""
    packing = code_hash(partial_pack.__file__), code_hash(__file__)
    return digest([half.reader, decoder_hash(), *packing])


def expected_bytes(half: Half, step: FirstStep, form: ImageForm = "pixels") -> int:
    """Return how many bytes the pack of a half will have: exact for pixels, about right for
    jpeg.
    """
    pixels = half.bytes_after(step)
    return pixels if form == "pixels" else int(JPEG_SHARE * pixels)


def write_pack(
    folder: Path,
    half: Half,
    step: FirstStep,
    form: ImageForm = "pixels",
    progress: Progress = silent,
) -> None:
    """Write the pack of a half to `folder`, unless it is there.

    A process that was killed is resumed where it was; a process that packs the same half at this
    moment is waited for.
    """
    if folder.exists():
        return
    if half.modality == "features":
        write_vectors(folder, half, half.arrays(step))
        return
    folder.parent.mkdir(parents=True, exist_ok=True)

    def waiting() -> None:
        progress("waiting for another process that packs these images", 0, len(half.y))

    with lock_in_turn(_beside(folder, ".lock"), waiting):
        if not folder.exists():
            with errors_naming(folder):
                _write_images(folder, half, step, form, progress)


def write_vectors(folder: Path, half: Half, x: Samples) -> None:
    """Write a pack of vectors, one for each sample of a half, to `folder`."""
    with new_folder(folder) as draft:
        write_npy(draft / "x.npy", np.asarray(x, dtype=np.float32))
        _write_labels(draft, half)
        _describe(draft, _about(half))


def _about(half: Half) -> dict[str, Any]:
    """Return what `pack.json` says of every pack of a half."""
    return {
        "fingerprint": half.fingerprint,
        "sealed": half.is_test,
        "count": len(half.y),
        "made_by": _packing_hash(half),
    }


def _describe(folder: Path, about: dict[str, Any], known: Mapping[str, str] = {}) -> None:
    """Write `pack.json`, with the hashes of all other files and of itself.

    `known` are hashes of files that were computed when they were written.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".bin"))
    written = about | {"files": {path.name: known.get(path.name) or _hash(path) for path in files}}
    write_atomically(folder / "pack.json", pretty(written | {"digest": digest(written)}))


def _write_labels(folder: Path, half: Half) -> None:
    arrays = {"y": half.y, "query": half.query, "gallery": half.gallery}
    if half.relations is not None:
        arrays[half.relations.kind] = half.relations.rows
    for name, array in arrays.items():
        if array is not None:
            write_npy(folder / f"{name}.npy", array)


def _write_images(
    folder: Path, half: Half, step: FirstStep, form: ImageForm, progress: Progress
) -> None:
    about = _about(half) | {"step": plain(step), "form": form, "channels": half.inputs}
    needed, total = expected_bytes(half, step, form), len(half.y)
    begun = _beside(folder, ".partial") / "pack" / "pixels.bin"
    there = begun.stat().st_size if begun.exists() else 0
    if needed - there > shutil.disk_usage(folder.parent).free:
        raise _no_space(folder, needed)
    chunk = max(1, min(CHUNK, CHUNK_BYTES // (step.side**2 * half.inputs)))
    try:
        partial = PartialPack(_beside(folder, ".partial"), canonical(about))
        progress("packing images", partial.rows, total)
        while partial.rows < total:
            rows = np.arange(partial.rows, min(partial.rows + chunk, total))
            partial.append(list(half.some(rows, step)), form)
            progress("packing images", partial.rows, total)
        partial.save_index()
        _write_labels(partial.pack, half)
        _describe(partial.pack, about, {"pixels.bin": partial.content})
        partial.finish(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_space(folder, needed) from None


def _no_space(folder: Path, needed: int) -> BadInput:
    free = shutil.disk_usage(folder.parent).free
    return BadInput(
        f"the images after the first step need {needed / 1e9:.2f} GB, but {folder.parent} has"
        f" {free / 1e9:.2f} GB left; free some space, set ASSAY_CACHE to a folder on another disk,"
        " or keep them as JPEG with --jpeg"
    )
