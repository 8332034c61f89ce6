"""Image files as the samples of a data set: each is hashed and decoded once, remembered by its
place, size and times, and read when it is needed. Shapes: N files.
"""

import json
import os
import sqlite3
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from assay.data.dataset import Labels, Pixels, Vectors
from assay.data.images import (
    LONGEST,
    THUMB,
    decode_image,
    decoder_hash,
    first_step,
    is_too_long,
    shape_after,
    thumbnail,
)
from assay.errors import BadInput, reason_of
from assay.files import cache_folder, read_bytes
from assay.hashing import digest_bytes
from assay.progress import Progress, silent
from assay.protocols import FirstStep
from assay.workers import in_processes

AT_ONCE = 256
"""Files that are checked between two reports of progress."""

COMMIT = 3.0
"""Seconds of work at most that an interruption costs."""

SETTLED = 2.0
"""Seconds after which a file that is written to again has another time, on every file system."""


class ImageFiles:
    """Image files, each hashed and decoded once on construction, or known from an earlier one.

    A file that cannot be used raises nothing here: `problem` says why.

    Args:
        paths: of the files, all below `root`.
        root: the folder by which the results of the check are remembered.
        channels: 3, or 1 for grey.
        progress: is called while files are checked.
    """

    def __init__(
        self, paths: Sequence[Path], root: Path, channels: int = 3, progress: Progress = silent
    ) -> None:
        self.paths, self.inputs = list(paths), channels
        self._checked = check_files(self.paths, root, progress)
        self.sizes = np.array(
            [(checked.width, checked.height) for checked in self._checked], dtype=np.int64
        ).reshape(-1, 2)
        """Width and height of each image (N, 2), upright; 0 where it cannot be used."""

    def only(self, rows: Labels) -> Self:
        """Return these files alone."""
        some = copy(self)
        some.paths = [self.paths[row] for row in rows.tolist()]
        some._checked = [self._checked[row] for row in rows.tolist()]
        some.sizes = self.sizes[rows]
        return some

    def arrays(self, indices: Labels, step: FirstStep) -> Pixels | list[Pixels]:
        """Read images after the step: one array, or where they keep their shapes a list of
        them.
        """
        for index in indices.tolist():
            self._check(index, step)
        files = [(self.paths[index], self.digest(index)) for index in indices.tolist()]
        images = in_processes(partial(_read_image, step, self.inputs), files)
        if step.kind == "short":
            return images
        empty = np.empty((0, step.side, step.side, self.inputs), dtype=np.uint8)
        return np.stack(images) if images else empty

    def shapes(self, indices: Labels, step: FirstStep) -> Labels:
        """Return height and width of each image (n, 2) after the step, without reading it;
        `BadInput` names the first image that has none.
        """
        for index in indices.tolist():
            self._check(index, step)
        shapes = [
            shape_after(width, height, step) for width, height in self.sizes[indices].tolist()
        ]
        return np.array(shapes, dtype=np.int64).reshape(-1, 2)

    def traces(self) -> Vectors:
        """Return grey pictures of 16 x 16 pixels around their mean (N, 256); zeros where a file
        cannot be used.
        """
        small = b"".join(b64decode(one.thumbnail) or bytes(THUMB**2) for one in self._checked)
        traces = np.frombuffer(small, dtype=np.uint8).reshape(-1, THUMB**2).astype(np.float32)
        centred: Vectors = traces - traces.mean(axis=1, keepdims=True)
        return centred

    def digest(self, index: int) -> str:
        """Return the hash of the file's bytes."""
        return self._checked[index].digest

    def problem(self, index: int) -> str | None:
        """Return why a file cannot be used, with the remedy; None where it can be used."""
        reason = self._checked[index].reason
        return None if reason is None else f"{self.paths[index]} {reason}"

    def _check(self, index: int, step: FirstStep) -> None:
        if problem := self.problem(index):
            raise BadInput(problem)
        width, height = self.sizes[index].tolist()
        if is_too_long(width, height, step):
            raise BadInput(
                f"{self.paths[index]} is {width} x {height} pixels: with its short side scaled to"
                f" {step.side}, the long one would have {max(shape_after(width, height, step)):,},"
                f" above {LONGEST} x {step.side}; crop or remove it, or take the central squares"
                " with --set resize=square"
            )


def _read_image(step: FirstStep, channels: int, file: tuple[Path, str]) -> Pixels:
    """Read an image after the step, if it still has the hash of the check."""
    path, digest = file
    content = _read_bytes(path)
    if digest_bytes(content) != digest:
        raise BadInput(
            f"{path} has changed since it was first read; leave the data alone while it is in use"
        )
    return first_step(decode_image(content, path), step, channels)


def _read_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {reason_of(error)}; fix or remove it") from error


# --- Checking each file once ---


class CheckedFile(NamedTuple):
    """Result of checking a file: the hash of its bytes, its size upright in pixels, why it cannot
    be used (in words that follow its name), and a small picture of it in base64, empty where the
    file cannot be used.
    """

    digest: str
    width: int
    height: int
    reason: str | None
    thumbnail: str = ""


class Stamp(NamedTuple):
    """Size and times of a file, which change when the file does, and the hash of the decoder. The
    time of a change (ctime) cannot be set back, as that of a write can.
    """

    size: int
    written: int
    changed: int
    decoder: str


def check_files(
    paths: Sequence[Path], root: Path, progress: Progress = silent
) -> list[CheckedFile]:
    """Check each file below `root`, or remember its result from an earlier check."""
    memory = CheckedFilesMemory(root)
    names = [os.fsencode(path.relative_to(root)) for path in paths]
    stamps = [_stamp(path) for path in paths]
    known = memory.read()
    found = {
        row: known[name][1]
        for row, name in enumerate(names)
        if name in known and known[name][0] == stamps[row]
    }
    new = [row for row in range(len(paths)) if row not in found]
    with closing(memory):
        for start in range(0, len(new), AT_ONCE):
            progress("checking images", len(found), len(paths))
            rows, begun = new[start : start + AT_ONCE], time.time_ns()
            results = in_processes(_check_file, [paths[row] for row in rows])
            for row, (checked, lasts) in zip(rows, results, strict=True):
                found[row], stamp = checked, stamps[row]
                if stamp is not None and lasts and _is_settled(stamp, begun):
                    memory.add(names[row], stamp, checked)
    if new:
        progress("checking images", len(paths), len(paths))
    return [found[row] for row in range(len(paths))]


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, decoder_hash())


def _is_settled(stamp: Stamp, now: int) -> bool:
    return all(abs(now - moment) > SETTLED * 1e9 for moment in (stamp.written, stamp.changed))


def _check_file(path: Path) -> tuple[CheckedFile, bool]:
    """Return the result for a file, and whether to remember it: an error with a cause (no
    permission, no memory) is not the file's own.
    """
    hash_ = ""
    try:
        content = _read_bytes(path)
        hash_ = digest_bytes(content)
        image = decode_image(content, path)
        small = b64encode(thumbnail(image)).decode()
        return CheckedFile(hash_, *image.size, None, small), True
    except BadInput as error:
        return CheckedFile(hash_, 0, 0, str(error).removeprefix(f"{path} ")), not error.__cause__


class CheckedFilesMemory:
    """Results of earlier checks below a folder, in a database of the cache. Where it is missing or
    corrupt, files are checked again.
    """

    def __init__(self, root: Path) -> None:
        self._name = digest_bytes(os.fsencode(root.resolve()))[:32]
        self._unsaved: list[tuple[bytes, str, int]] = []
        self._saved = time.monotonic()

    def read(self) -> dict[bytes, tuple[Stamp, CheckedFile]]:
        """Read all results, by the file's path below the folder."""
        rows: list[tuple[bytes, str, int]] = []
        with self._ignoring_failures(), closing(self._open()) as database:
            rows = database.execute("SELECT path, entry, checksum FROM seen_2").fetchall()
        found = {}
        for path, entry, checksum in rows:
            if zlib.crc32(path + entry.encode()) == checksum:
                stamp, checked = json.loads(entry)
                found[path] = Stamp(*stamp), CheckedFile(*checked)
        return found

    def add(self, name: bytes, stamp: Stamp, checked: CheckedFile) -> None:
        """Remember this file too, within a few seconds."""
        entry = json.dumps([stamp, checked])
        self._unsaved.append((name, entry, zlib.crc32(name + entry.encode())))
        if time.monotonic() - self._saved > COMMIT:
            self.close()

    def close(self) -> None:
        """Save what is not saved yet."""
        if self._unsaved:
            with self._ignoring_failures(), closing(self._open()) as database, database:
                database.executemany(
                    "INSERT OR REPLACE INTO seen_2 VALUES (?, ?, ?)", self._unsaved
                )
        self._unsaved, self._saved = [], time.monotonic()

    @property
    def _file(self) -> Path:
        return cache_folder() / "scans" / f"{self._name}.sqlite"

    def _open(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._file, timeout=20)
        try:
            database.execute(
                "CREATE TABLE IF NOT EXISTS seen_2 (path BLOB PRIMARY KEY, entry TEXT, checksum"
                " INTEGER)"
            )
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def _ignoring_failures(self) -> Iterator[None]:
        """Ignore failures of the cache; delete a corrupt database, keep a locked one."""
        try:
            yield
        except (OSError, RuntimeError, sqlite3.OperationalError):
            pass
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self._file.unlink()
