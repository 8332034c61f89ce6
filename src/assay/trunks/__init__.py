"""Trunks by name, and the weights that they start from.

Importing this package imports every module of the folder, and each registers its own.
"""

from assay.registry import import_folder
from assay.trunks.trunk import Trunk, build, find, trunks
from assay.trunks.weights import trunk_facts, with_weights

import_folder(__name__, __path__)

__all__ = ["Trunk", "build", "find", "trunk_facts", "trunks", "with_weights"]
