"""Labels of an opened test half, as a store keeps them: its scores can be checked without the data.

The arrays are `y` and, where the data give roles to samples, `query` and `gallery`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from assay.errors import failed_here
from assay.files import open_file
from assay.hashing import digest, digest_bytes
from assay.npz import read_npz


def labels_fingerprint(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash of labels and roles, which the opening of the seal records."""
    return digest({name: digest_bytes(array.tobytes()) for name, array in arrays.items()})


def read_test_labels(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays in a file of labels; None where there are none.

    Raises `OSError` where a folder or a pipe is in its place.
    """
    if not path.exists():
        return None
    open_file(path).close()
    try:
        arrays, _ = read_npz(path, ["y", "query", "gallery"])
    except ValueError as error:
        if failed_here(error):
            raise
        return None
    return arrays if "y" in arrays else None
