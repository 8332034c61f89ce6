"""The files of an index, opened: vectors, which of them are alive, and the calibration."""

from pathlib import Path

import numpy as np

from assay.index.backends import Mask, StoredVectors
from assay.index.calibration import Calibration
from assay.index.manifest import ALIVE, VECTORS, DamagedIndex, Manifest
from assay.npz import read_npy


def open_vectors(folder: Path, manifest: Manifest) -> StoredVectors:
    """Return the stored vectors of a version, memory-mapped."""
    path = folder / VECTORS
    try:
        rows = read_npy(path, mapped=manifest.rows > 0)
    except ValueError as error:
        raise DamagedIndex(f"{path} cannot be read: {error}") from None
    if rows.shape != (manifest.rows, manifest.width) or rows.dtype != manifest.dtype:
        raise DamagedIndex(
            f"{path} is {rows.dtype} of shape {rows.shape}, not {manifest.dtype} of shape"
            f" ({manifest.rows}, {manifest.width}): the index was altered"
        )
    return StoredVectors(rows, manifest.similarity)


def open_alive(folder: Path, manifest: Manifest) -> Mask | None:
    """Return which rows of a version may be found; None: all."""
    if manifest.count == manifest.rows:
        return None
    path = folder / ALIVE
    try:
        alive = read_npy(path, mapped=False)
    except ValueError as error:
        raise DamagedIndex(f"{path} cannot be read: {error}") from None
    if alive.dtype != np.bool_ or alive.shape != (manifest.rows,):
        raise DamagedIndex(f"{path} is not a mask of {manifest.rows} rows")
    alive.flags.writeable = False
    return alive


def open_calibration(path: Path, manifest: Manifest) -> Calibration | None:
    """Return a calibration; None where there is none, or it is of another model or of vectors that
    are stored otherwise.
    """
    if not path.exists():
        return None
    found = Calibration.read(path)
    own = (manifest.model.print, manifest.similarity, manifest.precision)
    return found if (found.of.model, found.of.similarity, found.of.stored) == own else None
