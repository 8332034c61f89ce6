"""Hashes of large files: segments side by side, and once for each state of a file."""

import hashlib
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from assay.data.image_files import SETTLED
from assay.files import regular
from assay.hashing import digest
from assay.workers import in_threads

SEGMENT = 2**26
"""Bytes of a segment. The hash of a file is that of the SHA-256s of its segments, so that all cores
can work on one file.
"""

PIECE = 2**20
"""Bytes that are read at a time."""


class ContentHash:
    """The hash of content that arrives piece by piece, such as that of a file being written."""

    def __init__(self) -> None:
        self._segments: list[str] = []
        self._open, self._filled = hashlib.sha256(), 0

    def add(self, content: Any) -> None:
        """Add bytes, or anything that has a buffer."""
        rest = memoryview(content).cast("B")
        while len(rest):
            part, rest = rest[: SEGMENT - self._filled], rest[SEGMENT - self._filled :]
            self._open.update(part)
            self._filled += len(part)
            if self._filled == SEGMENT:
                self._segments.append(self._open.hexdigest())
                self._open, self._filled = hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """Hash of all that was added so far."""
        return digest([*self._segments, *([self._open.hexdigest()] if self._filled else [])])


def digest_content(path: Path) -> str:
    """Return the hash of a file's content, as `ContentHash` gives it.

    This process reads the file again only where its place on the disk, its size or one of its times
    has changed since. The time of a change (ctime) cannot be set back, as that of a write can.
    """
    stat = regular(path).stat()
    stamp = _Stamp(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    age = time.time_ns() - max(stamp.written, stamp.changed)
    # a file that was written a moment ago may be written to again at what counts as the same time
    return _digest_once(path, stamp) if age > SETTLED * 1e9 else _digest(path, stamp)


class _Stamp(NamedTuple):
    device: int
    inode: int
    size: int
    written: int
    changed: int


def _digest(path: Path, stamp: _Stamp) -> str:
    return digest(in_threads(lambda start: _segment(path, start), range(0, stamp.size, SEGMENT)))


_digest_once = lru_cache(maxsize=256)(_digest)


def _segment(path: Path, start: int) -> str:
    hashed = hashlib.sha256()
    for piece in pieces(path, start, start + SEGMENT):
        hashed.update(piece)
    return hashed.hexdigest()


def pieces(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `stop`, or to its end."""
    with path.open("rb", buffering=0) as stream:
        while start < stop and (
            piece := os.pread(stream.fileno(), min(PIECE, stop - start), start)
        ):
            start += len(piece)
            yield piece
