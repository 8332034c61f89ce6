"""Samplers by name: which samples are in each training batch.

Every module of this folder is imported and registers its own; `sampler.py` says what a sampler is.
The protocol names its sampler: `assay bench --set sampler=NAME`. One of your own comes from a file,
`--import FILE` (docs/add_a_method.md, "A sampler of your own").
"""

from assay.registry import import_folder
from assay.samplers.sampler import fixed_pattern, plans, samplers

import_folder(__name__, __path__)

__all__ = ["fixed_pattern", "plans", "samplers"]
