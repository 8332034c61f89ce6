"""A pack of images while it is written, chunk by chunk, so that a killed process can resume it.

Its folder holds `pack/pixels.bin`, `index.bin`, and `log`: what the pack is of, and then a line for
each chunk that is safely on disk, with the rows and bytes so far and the hash of both files so far.
A beginning that was altered since is begun anew.
"""

import json
import os
import shutil
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from assay.data.content import ContentHash, pieces
from assay.data.dataset import Pixels
from assay.errors import BadInput
from assay.files import sync_folder
from assay.hashing import canonical
from assay.npz import write_npy
from assay.protocols import ImageForm
from assay.workers import in_threads


class PartialPack:
    """A pack that is not complete.

    Args:
        folder: where it lies until it is complete.
        about: what the pack is of, in one line; the beginning of any other pack is removed.
    """

    def __init__(self, folder: Path, about: str) -> None:
        self.folder, self.pack, self.rows, self.size = folder, folder / "pack", 0, 0
        self._pixels, self._index = ContentHash(), ContentHash()
        self._resume(about)

    @property
    def content(self) -> str:
        """Hash of `pixels.bin` as it was written."""
        return self._pixels.digest

    def append(self, chunk: list[Any], form: ImageForm) -> None:
        """Add a chunk of images; it counts once its line of the log is on disk."""
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
        for content in contents:
            self._pixels.add(content)
        self._index.add(index.data)
        self.rows, self.size = self.rows + len(chunk), self.size + sum(sizes)
        line = canonical([self.rows, self.size, self.content, self._index.digest])
        self._add("log", f"{line}\n".encode())

    def save_index(self) -> None:
        """Write `index.npy` of all images; raise `BadInput` where another process altered it."""
        index = np.fromfile(self.folder / "index.bin", dtype=np.int64).reshape(-1, 4)
        written = ContentHash()
        written.add(index.data)
        if written.digest != self._index.digest:
            raise BadInput(
                f"{self.folder / 'index.bin'} was altered while the pack was written; run the same"
                " command again, and it is begun anew"
            )
        write_npy(self.pack / "index.npy", index)

    def finish(self, final: Path) -> None:
        """Let the pack appear at `final` at once, with whatever else was written into it."""
        for path in self.pack.glob("*.npy"):
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        self.pack.rename(final)
        sync_folder(final.parent)
        shutil.rmtree(self.folder)

    def _resume(self, about: str) -> None:
        """Go back to the last complete chunk; the beginning of another pack is removed."""
        log, index, pixels = (
            self.folder / name for name in ("log", "index.bin", "pack/pixels.bin")
        )
        lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
        same = bool(lines) and lines[0] == f"{about}\n".encode()
        if not (same and index.exists() and pixels.exists()):
            self._begin(about)
            return
        complete = list(takewhile(self._holds, lines[1:]))
        if complete:
            self.rows, self.size, *hashes = json.loads(complete[-1])
            for piece in pieces(pixels, 0, self.size):
                self._pixels.add(piece)
            for piece in pieces(index, 0, 32 * self.rows):
                self._index.add(piece)
            if hashes != [self.content, self._index.digest]:
                self._begin(about)
                return
        os.truncate(log, sum(map(len, [lines[0], *complete])))
        os.truncate(index, 32 * self.rows)
        os.truncate(pixels, self.size)

    def _begin(self, about: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.rows, self.size = 0, 0
        self._pixels, self._index = ContentHash(), ContentHash()
        self.pack.mkdir(parents=True)
        for name in ("pack/pixels.bin", "index.bin"):
            self._add(name)
        self._add("log", f"{about}\n".encode())
        sync_folder(self.pack)
        sync_folder(self.folder)

    def _holds(self, line: bytes) -> bool:
        """Return whether a line of the log is complete, and all bytes that it names are there."""
        try:
            rows, size, _, _ = json.loads(line)
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
