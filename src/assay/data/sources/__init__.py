"""Kinds of data sets, one file for each: what `kind:path` reads, and how it is checked.

Importing this package imports every module of the folder, and each registers its own.
"""

from assay.data.dataset import datasets
from assay.registry import import_folder

import_folder(__name__, __path__)

__all__ = ["datasets"]
