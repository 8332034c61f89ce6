"""Samplers by name: which samples are in each training batch.

Every module of this folder is imported and registers its own; `sampler.py` says what a sampler is.
"""

from assay.registry import import_folder
from assay.samplers.sampler import fixed_pattern, samplers

import_folder(__name__, __path__)

__all__ = ["fixed_pattern", "samplers"]
