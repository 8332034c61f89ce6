"""Miners by name: `miners["multi_similarity"]()(z, y)`.

Importing this package imports every module of the folder, and each registers its own.
"""

from assay.miners.miner import Miner, miners
from assay.registry import import_folder

import_folder(__name__, __path__)

__all__ = ["Miner", "miners"]
