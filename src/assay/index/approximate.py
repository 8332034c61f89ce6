"""What approximate back ends share: settings, and for those by faiss its files and filters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput, reason_of
from assay.files import regular
from assay.index.manifest import DamagedIndex
from assay.index.vectors import Mask, Rows, StoredVectors
from assay.npz import read_npy

PORTION = 1 << 14
"""Rows that are added between two reports of progress."""

NEAREST = 10
"""Matches that an effort is meant for; for more of them the effort rises in proportion."""


def library() -> Any:
    """Return faiss; raise `BadInput` where it is not installed."""
    try:
        import faiss
    except ImportError:
        raise BadInput(
            "this back end needs faiss: pip install 'assay-dml[index]', or use --backend exact"
        ) from None
    return faiss


@contextmanager
def one_thread() -> Iterator[None]:
    """Let faiss use one thread inside: with more, the structure would depend on their timing."""
    faiss = library()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def read_structure(path: Path, kind: type, *, mapped: bool) -> Any:
    """Return the structure in a file, memory-mapped or, to be extended, in memory.

    `assay.index.structures` has checked the file. Raise `DamagedIndex` where it holds another kind.
    """
    faiss = library()
    try:
        found = faiss.read_index(str(regular(path)), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except (OSError, RuntimeError) as error:
        raise DamagedIndex(f"{path} cannot be read by faiss: it was altered") from error
    if type(found) is not kind:
        raise DamagedIndex(f"{path} holds a {type(found).__name__}: it was altered")
    return found


def read_rows(path: Path, rows: int, shape: tuple[int, ...] = (-1,)) -> Rows:
    """Return the numbers of rows in a file; raise `DamagedIndex` where it is missing or damaged.

    Args:
        path: the file.
        rows: rows of the index.
        shape: the shape of the array, -1 for any length.
    """
    try:
        found = read_npy(path)
    except ValueError as error:
        said = "is missing" if not path.exists() else f"cannot be read: {error}"
        raise DamagedIndex(f"{path} {said}") from None
    fits = found.shape[1:] == shape[1:] and found.ndim == len(shape)
    if found.dtype != np.int64 or not fits or not ((found >= 0) & (found < rows)).all():
        raise DamagedIndex(f"{path} is no list of rows: it was altered")
    return found


def padded(lists: Sequence[Rows]) -> Rows:
    """Return lists of rows as an array (Q, C), the ends of the shorter ones filled with -1.

    >>> padded([np.array([4, 7]), np.array([5])])
    array([[ 4,  7],
           [ 5, -1]])
    """
    found = np.full((len(lists), max(map(len, lists), default=0)), -1, dtype=np.int64)
    for line, rows in zip(found, lists, strict=True):
        line[: len(rows)] = rows
    return found


def write_structure(structure: Any, path: Path) -> None:
    """Write a structure to a file; raise `OSError`, which names the file, where that fails."""
    try:
        library().write_index(structure, str(path))
    except RuntimeError as error:
        raise OSError(f"{path} cannot be written: {reason_of(error)}") from None


def search_in(structure: Any, queries: NDArray[Any], k: int, parameters: Any) -> Rows:
    """Return the rows (Q, K) that a structure of faiss finds.

    `faiss.contrib.torch_utils`, which other libraries import, puts a `search` that takes no
    parameters in the place of faiss's own.
    """
    own = getattr(structure, "search_numpy", structure.search)
    found: Rows = own(queries, k, params=parameters)[1]
    return found


def selector(allowed: Mask) -> Any:
    """Return a filter of rows for a search by faiss."""
    return library().IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


def metric_of(vectors: StoredVectors) -> int:
    """Return faiss's number of the similarity."""
    faiss = library()
    found = faiss.METRIC_INNER_PRODUCT if vectors.similarity == "cosine" else faiss.METRIC_L2
    return int(found)


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise `BadInput` unless a setting is a whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{name}={value!r}: choose a whole number from {least:,} to {most:,}")
