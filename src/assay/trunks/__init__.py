"""Trunks by name. Every module of this folder is imported and registers its own."""

from assay.registry import import_folder
from assay.trunks.lookup import build, find
from assay.trunks.start import trunk_facts, with_weights
from assay.trunks.trunk import Trunk, trunks

import_folder(__name__, __path__)

__all__ = ["Trunk", "build", "find", "trunk_facts", "trunks", "with_weights"]
