"""Miners by name: `miners["multi_similarity"]()(z, y)`. Every module of this folder is imported and
registers its own.
"""

from assay.miners.miner import miners
from assay.registry import import_folder

import_folder(__name__, __path__)

__all__ = ["miners"]
