"""Packs: the images of a half after the first step, memory-mapped. Shapes: N images, H x W pixels,
C channels.

`pixels.bin` holds the images one after the other, `index.npy` (N, 4) offset, height, width and
bytes of each, `pack.json` what they were made of, and hash or length of each file, by which a pack
that was spoilt later is found. A pack that is being written lies in `<folder>.partial` beside a log
of its finished chunks, from which a killed process is resumed.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from assay.data import images
from assay.data.dataset import Half, Labels, Pixels, Samples
from assay.errors import BadInput
from assay.files import in_turn, new_folder, read_json, sync_folder, write_atomically
from assay.hashing import canonical, digest, digest_file, plain, pretty
from assay.progress import Progress, silent
from assay.protocols import FirstStep, Form
from assay.workers import in_threads

Index = NDArray[np.int64]

CHUNK = 256
BUFFER = 2**26
"""Images, and about as many bytes, that are held in memory at a time."""

LARGE = ("pixels.bin", "x.npy")
"""Files of which the length alone is compared, not the hash: they may have 30 GB."""

JPEG_SHARE = 0.2
"""Bytes of a JPEG to those of its pixels: 0.14 to 0.20 measured on three photos at 256 pixels, less
above, more below.
"""


class Pack:
    """Images on disk, of which only those that are asked for are read. They cannot be
    written to.
    """

    def __init__(self, folder: Path) -> None:
        about = read_json(folder / "pack.json")
        self.folder, self.form, self.channels = folder, about["form"], int(about["channels"])
        self.index: Index = read_array(folder / "index.npy")
        self._bytes: Pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="r").view(
            np.ndarray
        )
        if len(self.index) != about["count"] or len(self._bytes) != self.index[:, 3].sum():
            raise spoilt(folder)
        self._even = bool((self.index[:, 1:3] == self.index[0, 1:3]).all())

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Labels | slice) -> Samples:
        """Images (n, H, W, C) where all of the pack have one shape, else a list of (H, W, C)."""
        if self._even and self.form == "pixels":
            height, width = self.shape_of(0)
            chosen: Pixels = self._bytes.reshape(-1, height, width, self.channels)[rows]
            return chosen
        found = self._each(self.image, np.arange(len(self))[rows].tolist())
        return np.stack(found) if self._even and found else found

    def __iter__(self) -> Iterator[Pixels]:
        return map(self.image, range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # the folder alone: a pickled memory map would be all the bytes
        return Pack, (self.folder,)

    def image(self, row: int) -> Pixels:
        """One image (H, W, C); of pixels a view into the map, nothing copied."""
        offset, height, width, length = self.index[row].tolist()
        content = self._bytes[offset : offset + length]
        if self.form == "pixels":
            return content.reshape(height, width, self.channels)
        with Image.open(BytesIO(content.tobytes()), formats=["JPEG"]) as encoded:
            return np.asarray(encoded).reshape(height, width, self.channels)

    def shape_of(self, row: int) -> tuple[int, int]:
        """Height and width of an image, without reading it."""
        height, width = self.index[row, 1:3].tolist()
        return height, width

    def _each(self, function: Callable[[Any], Pixels], values: list[Any]) -> list[Pixels]:
        return (
            [function(value) for value in values]
            if self.form == "pixels"
            else in_threads(function, values)
        )


def read_pack(folder: Path) -> Pack:
    """The pack at `folder`."""
    with reading(folder):
        return Pack(folder)


def read_array(path: Path) -> Any:
    """The array of a .npy file, and no other that NumPy might take its bytes for."""
    with path.open("rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def spoilt(folder: Path, error: Exception | None = None) -> BadInput:
    """What to say of a folder that is not as it was written, and of what came up in reading it."""
    because = f" ({type(error).__name__}: {' '.join(str(error).split())})" if error else ""
    return BadInput(
        f"{folder} is not the pack that was written there; remove the folder, and it is made"
        f" again{because}"
    )


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Whatever a spoilt folder raises while inside becomes `BadInput`."""
    try:
        yield
    except BadInput:
        raise
    except (
        Exception
    ) as error:  # numpy, JSON and the memory map have many words for bytes that they cannot read
        raise spoilt(folder, error) from error


def is_as_written(folder: Path) -> bool:
    """Whether every file that was written to `folder` is there with its hash; of pixels and
    vectors, with its length.
    """
    try:
        about = read_json(folder / "pack.json")
        own = about.pop("digest")
        traces = {name: _trace(folder / name) for name in about["files"]}
        return bool(own == digest(about) and about["files"] == traces)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def remove_spoilt(folder: Path) -> None:
    """Make room at `folder` where something lies that is not as it was written; a process killed
    here is no harm.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    with in_turn(beside(folder, ".lock"), lambda: None):
        if is_as_written(folder):
            return
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)


def beside(folder: Path, ending: str) -> Path:
    """The file or folder of that ending next to `folder`."""
    return folder.with_name(folder.name + ending)


def made_by() -> str:
    """Hash of the code that makes a pack."""
    return digest([images.made_by(), digest_file(Path(__file__))])


def expected_bytes(half: Half, step: FirstStep, form: Form = "pixels") -> int:
    """Return how many bytes the pack of a half will have: exact for pixels, about right for
    jpeg.
    """
    pixels = half.bytes_after(step)
    return pixels if form == "pixels" else int(JPEG_SHARE * pixels)


def write_pack(
    folder: Path,
    half: Half,
    step: FirstStep,
    form: Form = "pixels",
    progress: Progress | None = None,
) -> None:
    """Place the pack of a half at `folder`, unless it is there; vectors as one array `x.npy`.

    A process that was killed is resumed where it was; one that packs the same at this moment is
    waited for.
    """
    if folder.exists():
        return
    if half.modality == "features":
        write_vectors(folder, half, half.arrays(step))
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    report = progress or silent

    def waiting() -> None:
        report("waiting for another process that packs these images", 0, len(half.y))

    with in_turn(beside(folder, ".lock"), waiting):
        if not folder.exists():
            _write_images(folder, half, step, form, report)


def write_vectors(folder: Path, half: Half, x: Samples) -> None:
    """Place vectors of the samples of a half at `folder`, with their labels and marks."""
    with new_folder(folder) as draft:
        np.save(draft / "x.npy", np.asarray(x, dtype=np.float32))
        _write_labels(draft, half)
        _describe(
            draft,
            {
                "fingerprint": half.fingerprint,
                "sealed": half.sealed,
                "count": len(half.y),
                "made_by": made_by(),
            },
        )


def _describe(folder: Path, about: dict[str, Any]) -> None:
    """Write `pack.json`, with the traces of all other files and the hash of itself."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".bin"))
    written = about | {"files": {path.name: _trace(path) for path in files}}
    write_atomically(folder / "pack.json", pretty(written | {"digest": digest(written)}))


def _trace(path: Path) -> int | str:
    """Length of a large file, hash of a small one."""
    return path.stat().st_size if path.name in LARGE else digest_file(path)


def _write_labels(folder: Path, half: Half) -> None:
    arrays = {"y": half.y, "query": half.query, "gallery": half.gallery}
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)


def _write_images(folder: Path, half: Half, step: FirstStep, form: Form, report: Progress) -> None:
    about = {
        "fingerprint": half.fingerprint,
        "sealed": half.sealed,
        "step": plain(step),
        "form": form,
        "channels": half.inputs,
        "count": len(half.y),
        "made_by": made_by(),
    }
    needed = expected_bytes(half, step, form)
    _check_space(folder, needed)
    try:
        partial = Partial(beside(folder, ".partial"), canonical(about))
        _fill(partial, half, step, form, report)
        partial.finish(folder, half, about)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_space(folder, needed) from None


def _check_space(folder: Path, needed: int) -> None:
    begun = beside(folder, ".partial") / "pack" / "pixels.bin"
    there = begun.stat().st_size if begun.exists() else 0
    if needed - there > shutil.disk_usage(folder.parent).free:
        raise _no_space(folder, needed)


def _no_space(folder: Path, needed: int) -> BadInput:
    free = shutil.disk_usage(folder.parent).free
    return BadInput(
        f"the images after the first step need {needed / 1e9:.2f} GB, but {folder.parent} has"
        f" {free / 1e9:.2f} GB left; free some space, set ASSAY_CACHE to a folder on another disk,"
        " or keep them as JPEG with --jpeg"
    )


def _fill(partial: "Partial", half: Half, step: FirstStep, form: Form, report: Progress) -> None:
    total = len(half.y)
    chunk = max(1, min(CHUNK, BUFFER // (step.side**2 * half.inputs)))
    report("packing images", partial.rows, total)
    while partial.rows < total:
        rows = np.arange(partial.rows, min(partial.rows + chunk, total))
        partial.append(list(half.some(rows, step)), form)
        report("packing images", partial.rows, total)


class Partial:
    """A pack that is not whole yet: `pack/pixels.bin`, `index.bin`, and `log`, what it is of and
    how far it safely is.
    """

    def __init__(self, folder: Path, about: str) -> None:
        self.folder, self.rows, self.size = folder, 0, 0
        self._resume(about)

    def append(self, chunk: list[Any], form: Form) -> None:
        """Add a chunk of images; it counts once the line of it in the log is on disk."""
        contents = (
            [np.ascontiguousarray(image).data for image in chunk]
            if form == "pixels"
            else in_threads(_encode, chunk)
        )
        sizes = [memoryview(content).nbytes for content in contents]
        offsets = self.size + np.cumsum([0, *sizes[:-1]])
        index = np.array(
            [[o, *i.shape[:2], s] for o, i, s in zip(offsets, chunk, sizes, strict=True)],
            dtype=np.int64,
        )
        self._add("pack/pixels.bin", *contents)
        self._add("index.bin", index.data)
        self.rows, self.size = self.rows + len(chunk), self.size + sum(sizes)
        self._add("log", f"[{self.rows},{self.size}]\n".encode())

    def finish(self, final: Path, half: Half, about: dict[str, Any]) -> None:
        """Write what else belongs to the pack, and let it appear at `final` at once."""
        pack = self.folder / "pack"
        np.save(
            pack / "index.npy",
            np.fromfile(self.folder / "index.bin", dtype=np.int64).reshape(-1, 4),
        )
        _write_labels(pack, half)
        for path in pack.glob("*.npy"):
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        _describe(pack, about)
        pack.rename(final)
        sync_folder(final.parent)
        shutil.rmtree(self.folder)

    def _resume(self, about: str) -> None:
        """Go back to the last chunk that is whole; what was begun of anything else is
        thrown away.
        """
        log, index, pixels = (
            self.folder / name for name in ("log", "index.bin", "pack/pixels.bin")
        )
        lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
        if (
            not lines
            or lines[0] != f"{about}\n".encode()
            or not (index.exists() and pixels.exists())
        ):
            self._begin(about)
            return
        whole = list(takewhile(self._holds, lines[1:]))
        self.rows, self.size = json.loads(whole[-1]) if whole else (0, 0)
        os.truncate(log, sum(map(len, [lines[0], *whole])))
        os.truncate(index, 32 * self.rows)
        os.truncate(pixels, self.size)

    def _begin(self, about: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "pack").mkdir(parents=True)
        for name in ("pack/pixels.bin", "index.bin"):
            self._add(name)
        self._add("log", f"{about}\n".encode())
        sync_folder(self.folder / "pack")
        sync_folder(self.folder)

    def _holds(self, line: bytes) -> bool:
        """Whether a line of the log is whole, and as many bytes are there as it says."""
        try:
            rows, size = json.loads(line)
            index, pixels = (self.folder / name for name in ("index.bin", "pack/pixels.bin"))
            return (
                line.endswith(b"\n")
                and index.stat().st_size >= 32 * rows
                and pixels.stat().st_size >= size
            )
        except (ValueError, TypeError):
            return False

    def _add(self, name: str, *contents: Any) -> None:
        with (self.folder / name).open("ab") as stream:
            for content in contents:
                stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())


def _encode(image: Pixels) -> bytes:
    encoded = BytesIO()
    grey = image.shape[2] == 1
    Image.fromarray(image[..., 0] if grey else image).save(
        encoded, "JPEG", quality=95, subsampling=0
    )
    return encoded.getvalue()
