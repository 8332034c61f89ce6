"""Structures that find the nearest of stored vectors, one file each."""

from assay.index.backends.backend import Backend, Earlier, Mask, Rows, StoredVectors, backends
from assay.registry import import_folder

import_folder(__name__, __path__)

__all__ = ["Backend", "Earlier", "Mask", "Rows", "StoredVectors", "backends"]
