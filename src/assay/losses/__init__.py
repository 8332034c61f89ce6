"""Losses by name: `losses["triplet"](margin=0.1)(z, y)`. Every module of this folder is imported
and registers its own.
"""

from assay.losses.loss import losses
from assay.registry import import_folder

import_folder(__name__, __path__)

__all__ = ["losses"]
