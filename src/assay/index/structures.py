"""The files of faiss, checked before faiss reads them.

faiss trusts what it reads: a file may name another file, which it would map and write to, and
numbers of rows beyond the end crash the process. So a file is walked through first, as faiss 1.11
to 1.15 writes it, to its last byte: nothing else may be in it.

Shapes: M vectors of the structure, L lists, U links.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.files import open_file, regular
from assay.index.manifest import DamagedIndex

BYTE = 256
"""Centres of a byte of a code."""

FLAT = {0: b"IxFI", 1: b"IxF2"}
"""Names of plain vectors by faiss's number of the similarity."""

HALF = 4
"""faiss's number of numbers of 16 bits."""


class _OtherBytes(Exception):
    """Bytes that a build of Assay does not write."""


class _Walk:
    """The bytes of a file, taken in their order."""

    def __init__(self, path: Path, width: int, metric: int) -> None:
        self._bytes = np.memmap(regular(path), np.uint8, "r")
        self._place = 0
        self.width, self.metric = width, metric

    def array(self, kind: str, count: int) -> NDArray[Any]:
        """Return the next numbers of a type."""
        end = self._place + count * np.dtype(kind).itemsize
        need(count >= 0 and end <= len(self._bytes))
        part = self._bytes[self._place : end]
        self._place = end
        return part.view(kind)

    def number(self, kind: str) -> int:
        """Return the next number of a type."""
        return int(self.array(kind, 1)[0])

    def counted(self, kind: str) -> NDArray[Any]:
        """Return the next numbers of a type, whose count stands before them."""
        return self.array(kind, self.number("<u8"))

    def name(self) -> bytes:
        """Return the next name, of four letters."""
        return self.array("u1", 4).tobytes()

    def head(self, name: bytes) -> int:
        """Take the head of a structure of this name; return how many vectors it has."""
        need(self.name() == name and self.number("<i4") == self.width)
        total = self.number("<i8")
        self.array("<i8", 2)
        need(total >= 0 and self.number("u1") == 1 and self.number("<i4") == self.metric)
        return total

    def flat(self) -> int:
        """Take plain vectors; return how many there are."""
        total = self.head(FLAT[self.metric])
        need(len(self.counted("<f4")) == total * self.width)
        return total

    def half(self) -> int:
        """Take vectors of 16 bits; return how many there are."""
        total = self.head(b"IxSQ")
        need(self.number("<i4") == HALF)
        self.array("<i4", 2)
        need(self.number("<u8") == self.width and self.number("<u8") == 2 * self.width)
        need(not len(self.counted("<f4")))
        need(len(self.counted("u1")) == 2 * total * self.width)
        return total

    def end(self) -> None:
        """Check that nothing follows."""
        need(self._place == len(self._bytes))


def need(holds: bool) -> None:
    """Raise an error, which the caller explains, unless something holds."""
    if not holds:
        raise _OtherBytes


def check_graph(path: Path, width: int, metric: int, nodes: int, *, half: bool) -> None:
    """Raise `DamagedIndex` unless a file holds a graph of so many vectors, as `hnsw` writes it.

    Args:
        path: the file.
        width: numbers of a vector.
        metric: faiss's number of the similarity.
        nodes: vectors that the graph should have.
        half: whether they are numbers of 16 bits.
    """
    try:
        walk = _Walk(path, width, metric)
        need(walk.head(b"IHNs" if half else b"IHNf") == nodes)
        _check_links(walk, nodes)
        need((walk.half() if half else walk.flat()) == nodes)
        walk.end()
    except (_OtherBytes, OSError, ValueError) as error:
        raise DamagedIndex(f"{path} is no graph of {nodes:,} such vectors{_why(error)}") from None


def _check_links(walk: _Walk, nodes: int) -> None:
    shares, ends = walk.counted("<f8"), walk.counted("<i4").astype(np.int64)
    need(len(ends) == len(shares) + 1 and ends[0] == 0 and bool((np.diff(ends) > 0).all()))
    level_M, start_M = walk.counted("<i4"), walk.counted("<u8")
    need(len(level_M) == nodes and bool(((level_M > 0) & (level_M < len(ends))).all()))
    need(np.array_equal(start_M, np.concatenate([[0], ends[level_M].cumsum()]).astype(np.uint64)))
    link_U = walk.counted("<i4")
    need(len(link_U) == start_M[-1] and _are_within(link_U, -1, nodes))
    first, highest = walk.number("<i4"), walk.number("<i4")
    walk.array("<i4", 3)
    if not nodes:
        need(first == highest == -1)
        return
    need(highest == level_M.max() - 1 and 0 <= first < nodes and level_M[first] == highest + 1)
    for level in range(1, highest + 1):
        start = start_M[:-1][level_M > level].astype(np.int64)
        to = link_U[start[:, None] + np.arange(ends[level], ends[level + 1])]
        need(bool((level_M[to[to >= 0]] > level).all()))


def check_lists(path: Path, width: int, metric: int, rows: int) -> None:
    """Raise `DamagedIndex` unless a file holds lists of rows, each once, as `ivfpq` writes it.

    Args:
        path: the file.
        width: numbers of a vector.
        metric: faiss's number of the similarity.
        rows: rows of the index, of which there may be fewer in the lists.
    """
    try:
        walk = _Walk(path, width, metric)
        total = walk.head(b"IwPQ")
        lists = walk.number("<u8")
        walk.array("<u8", 1)
        need(0 < lists == walk.flat())
        need(walk.array("u1", 9).tobytes() == bytes(9))  # no map of rows to lists
        need(walk.number("u1") == 1)
        codes = walk.number("<u8")
        need(walk.number("<u8") == width and 0 < codes == walk.number("<u8"))
        need(width % codes == 0 and walk.number("<u8") == 8)
        need(len(walk.counted("<f4")) == BYTE * width)
        need(walk.name() == b"ilar" and walk.number("<u8") == lists)
        need(walk.number("<u8") == codes)
        size_L = _sizes(walk, lists)
        need(sum(size_L) == total <= rows)
        seen = np.zeros(rows, dtype=np.bool_)
        for size in size_L:
            walk.array("u1", size * codes)
            own = walk.array("<i8", size)
            need(_are_within(own, 0, rows))
            seen[own] = True
        need(int(seen.sum()) == total)
        walk.end()
    except (_OtherBytes, OSError, ValueError) as error:
        raise DamagedIndex(f"{path} holds no lists of {rows:,} such rows{_why(error)}") from None


def _sizes(walk: _Walk, lists: int) -> list[int]:
    """Return the sizes of the lists, which are written all, or those that are not empty."""
    kind = walk.name()
    sizes: list[int] = walk.counted("<u8").tolist()
    if kind == b"full":
        need(len(sizes) == lists)
        return sizes
    need(kind == b"sprs" and len(sizes) % 2 == 0)
    places = sizes[::2]
    need(all(0 <= one < two for one, two in zip(places, [*places[1:], lists], strict=True)))
    return sizes[1::2]


def check_empty(path: Path, width: int) -> None:
    """Raise `DamagedIndex` unless a file holds no vector, as `ivfpq` writes it for few rows."""
    try:
        walk = _Walk(path, width, 1)
        need(walk.flat() == 0)
        walk.end()
    except (_OtherBytes, OSError, ValueError) as error:
        raise DamagedIndex(f"{path} holds no lists{_why(error)}") from None


def is_flat(path: Path) -> bool:
    """Return whether a file begins as plain vectors do, not as lists."""
    try:
        with open_file(path) as stream:
            return stream.read(4) in FLAT.values()
    except OSError:
        return False


def _are_within(numbers: NDArray[Any], least: int, end: int) -> bool:
    return not len(numbers) or bool(numbers.min() >= least and numbers.max() < end)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f": it cannot be read ({error.strerror or error})"
    return ": it was altered"
