"""Files of plain arrays, .npz and .npy. Nothing in them is unpickled, and no array is made before
its header agrees with the size of the file and with the memory of the machine.
"""

import math
import os
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from assay.errors import reason_of
from assay.files import memory, open_file

RATIO, SMALL = 100, 100_000_000
"""How many times larger than its compressed form an array may be, unless it is small."""

Array = NDArray[Any]

_MAGIC = np.lib.format.MAGIC_PREFIX
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

_parsing = threading.Lock()
"""Held while NumPy parses a header: Python 3.11.7 fails where a second thread parses a literal at
the same time and the garbage collector runs."""


def read_npz(path: Path, names: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    """Return those of the named arrays that an .npz has, and the names of all it has.

    Raises `ValueError` with what is wrong, without the name of the file.
    """
    try:
        with open_file(path) as stream:
            if stream.read(len(_MAGIC)) == _MAGIC:
                raise ValueError("it is an .npy, which holds one array without a name")
            with zipfile.ZipFile(stream) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                wanted = {name: members[name] for name in names if name in members}
                _check_memory(sum(info.file_size for info in wanted.values()))
                for name, info in wanted.items():
                    if info.file_size > max(RATIO * info.compress_size, SMALL):
                        raise ValueError(
                            f"{name} unpacks to {info.file_size:,} bytes, over {RATIO} times its"
                            " size in the file; if that is right, save it uncompressed"
                        )
                found = {}
                for name, info in wanted.items():
                    with archive.open(info) as member:
                        found[name] = _read(member, info.file_size, name)
    except Exception as error:  # a damaged archive can fail anywhere in zip, zlib or numpy
        raise ValueError(reason_of(error)) from None
    return found, list(members)


def write_npy(path: Path, array: Array) -> None:
    """Write an .npy as `np.save` does, which would drop the number of an error of a full disk."""
    with path.open("wb") as stream:
        plain = cast(IO[bytes], _Writer(stream))
        np.lib.format.write_array(plain, array, allow_pickle=False)


class _Writer:
    """A file that numpy does not know as one, and so writes to by way of Python."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.write = stream.write


def read_npy(path: Path, *, mapped: bool = False) -> Array:
    """Return the array of an .npy, memory-mapped where that is asked for.

    Raises `ValueError` with what is wrong, without the name of the file.
    """
    try:
        with open_file(path) as stream:
            if stream.read(4) == b"PK\x03\x04":
                raise ValueError("it is an archive; call it .npz")
            stream.seek(0)
            size = os.fstat(stream.fileno()).st_size
            if mapped:
                with _parsing:
                    _check_header(stream, size, "it")
                    return np.lib.format.open_memmap(path, mode="r")
            _check_memory(size)
            return _read(stream, size, "it")
    except Exception as error:  # a corrupt file can fail anywhere in numpy
        raise ValueError(reason_of(error)) from None


def _read(stream: IO[bytes], size: int, name: str) -> Array:
    """Return the array in a stream of `size` bytes."""
    start = stream.tell()
    with _parsing:
        _check_header(stream, size, name)
        stream.seek(start)
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _check_header(stream: IO[bytes], size: int, name: str) -> None:
    """Raise `ValueError` unless the header of an array promises the bytes that follow."""
    try:
        header = _HEADERS[np.lib.format.read_magic(stream)]
    except (ValueError, KeyError):
        raise ValueError(f"{name} is no plain array") from None
    shape, _, dtype = header(stream)
    if dtype.hasobject:
        raise ValueError(
            f"{name} holds Python objects; save labels as text or integers, such as y.astype(str)"
        )
    promised, left = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if promised != left or min(shape, default=0) < 0:
        raise ValueError(f"{name} has {left:,} bytes but claims {promised:,}, of shape {shape}")


def _check_memory(needed: int) -> None:
    if needed > memory() // 2:
        raise ValueError(
            f"its arrays have {needed:,} bytes, more than half of the {memory():,} of this"
            " machine's memory"
        )
