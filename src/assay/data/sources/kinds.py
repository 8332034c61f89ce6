"""The registry of kinds of data sets: each is a function that loads one."""

from collections.abc import Callable
from pathlib import Path

from assay.data.dataset import Dataset
from assay.progress import Progress
from assay.registry import Registry

Loader = Callable[[Progress], Dataset] | Callable[[Path, Progress], Dataset]
"""Loads a data set and reports its progress: of a plain name, or of `kind:` from a path."""

datasets = Registry[Loader]("data set")
"""Loaders by name; `assay list datasets` shows the first paragraph of their docstrings."""
