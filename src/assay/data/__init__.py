"""Data sets by name: `load("glyphs")`, `load("folder:birds")`; their halves, folds and views."""

from assay.data.dataset import Dataset
from assay.data.load import inspect, load, load_without_broken
from assay.data.sources import datasets

__all__ = ["Dataset", "datasets", "inspect", "load", "load_without_broken"]
