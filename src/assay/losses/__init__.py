"""Losses and methods by name: `losses["triplet"](margin=0.1)(z, y)`.

Importing this package imports every module of the folder, and each registers its own.
"""

from assay.losses.loss import losses, methods
from assay.registry import import_folder

import_folder(__name__, __path__)

__all__ = ["losses", "methods"]
