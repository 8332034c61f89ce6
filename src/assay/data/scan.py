"""What is known of image files: each is hashed and decoded once, and remembered by its place, size
and times.
"""

import json
import os
import sqlite3
import time
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from assay.data.images import decode, decoder_hash, thumbnail
from assay.errors import BadInput
from assay.files import cache_folder
from assay.hashing import digest_bytes
from assay.progress import Progress, silent
from assay.workers import in_processes

CHUNK = 256
COMMIT = 3.0
"""Seconds of work at most that an interruption costs."""

SETTLED = 2.0
"""Seconds after which a file that is written to again has another time, on every file system."""

watching: ContextVar[Progress | None] = ContextVar("watching", default=None)
"""Who is told of the progress where the loader of a data set does not say."""


@contextmanager
def reporting(callback: Progress) -> Iterator[None]:
    """Tell `callback` of the progress of every scan inside."""
    token = watching.set(callback)
    try:
        yield
    finally:
        watching.reset(token)


class Seen(NamedTuple):
    """A file: the hash of its bytes, its size upright in pixels, why it cannot be used, as what
    follows its name, and a small picture of it, in base64; empty where it cannot be used.
    """

    digest: str
    width: int
    height: int
    reason: str | None
    thumbnail: str = ""


class Stamp(NamedTuple):
    """What changes when a file does. The time of a change (ctime) cannot be set back, as that of a
    write can.
    """

    size: int
    written: int
    changed: int
    made_by: str


def scan(paths: Sequence[Path], root: Path, progress: Progress | None = None) -> list[Seen]:
    """What is known of each file below `root`, those that have not been seen before looked
    at now.
    """
    report = progress or watching.get() or silent
    memory = Memory(root)
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
        for start in range(0, len(new), CHUNK):
            report("checking images", len(found), len(paths))
            rows, begun = new[start : start + CHUNK], time.time_ns()
            looks = in_processes(_look, [paths[row] for row in rows])
            for row, (seen, lasts) in zip(rows, looks, strict=True):
                found[row], stamp = seen, stamps[row]
                if stamp is not None and lasts and _is_settled(stamp, begun):
                    memory.add(names[row], stamp, seen)
    if new:
        report("checking images", len(paths), len(paths))
    return [found[row] for row in range(len(paths))]


def read(path: Path) -> bytes:
    """The file's bytes, or `BadInput`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; mend or remove it") from error


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, decoder_hash())


def _is_settled(stamp: Stamp, now: int) -> bool:
    return all(abs(now - moment) > SETTLED * 1e9 for moment in (stamp.written, stamp.changed))


def _look(path: Path) -> tuple[Seen, bool]:
    """What the file is, and whether that lasts: an error with a cause (no permission, no memory) is
    not the file's own.
    """
    hash_ = ""
    try:
        content = read(path)
        hash_ = digest_bytes(content)
        image = decode(content, path)
        return Seen(hash_, *image.size, None, b64encode(thumbnail(image)).decode()), True
    except BadInput as error:
        return Seen(hash_, 0, 0, str(error).removeprefix(f"{path} ")), error.__cause__ is None


class Memory:
    """What was seen below a folder, in a file of the cache: without it, or where it is spoilt,
    files are looked at again.
    """

    def __init__(self, root: Path) -> None:
        self._name = digest_bytes(os.fsencode(root.resolve()))[:32]
        self._unsaved: list[tuple[bytes, str, int]] = []
        self._saved = time.monotonic()

    def read(self) -> dict[bytes, tuple[Stamp, Seen]]:
        """All that is remembered, by the file's path below the folder."""
        rows: list[tuple[bytes, str, int]] = []
        with self._forgiving(), closing(self._open()) as database:
            rows = database.execute("SELECT path, entry, checksum FROM seen_2").fetchall()
        return {
            path: _unpack(entry)
            for path, entry, checksum in rows
            if zlib.crc32(path + entry.encode()) == checksum
        }

    def add(self, name: bytes, stamp: Stamp, seen: Seen) -> None:
        """Remember this file too, within a few seconds."""
        entry = json.dumps([stamp, seen])
        self._unsaved.append((name, entry, zlib.crc32(name + entry.encode())))
        if time.monotonic() - self._saved > COMMIT:
            self.close()

    def close(self) -> None:
        """Save what is not saved yet."""
        if self._unsaved:
            with self._forgiving(), closing(self._open()) as database, database:
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
    def _forgiving(self) -> Iterator[None]:
        """Nothing that befalls the cache is an error; a file that is no database is removed, a
        locked one is not.
        """
        try:
            yield
        except (OSError, RuntimeError, sqlite3.OperationalError):
            pass
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self._file.unlink()


def _unpack(entry: str) -> tuple[Stamp, Seen]:
    stamp, seen = json.loads(entry)
    return Stamp(*stamp), Seen(*seen)
