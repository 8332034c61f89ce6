"""Data sets by name: `load("glyphs")`, `load("folder:birds")`; their halves, folds and views."""

from assay.data.dataset import Dataset
from assay.data.load import datasets, inspect, load

__all__ = ["Dataset", "datasets", "inspect", "load"]
