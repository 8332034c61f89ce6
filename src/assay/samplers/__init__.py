"""Samplers by name: endless batches of indices. Every module of this folder is imported and
registers its own.
"""

from assay.registry import import_folder
from assay.samplers.sampler import fixed_pattern, samplers

import_folder(__name__, __path__)

__all__ = ["fixed_pattern", "samplers"]
