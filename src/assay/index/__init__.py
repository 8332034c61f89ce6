"""An image index: from a folder of images and a model to a search, its back ends, calibration and
export.
"""

import importlib
from typing import TYPE_CHECKING, Any

from assay.index.backends import backends
from assay.index.builder import (
    Wanted,
    Written,
    move_root,
    remove,
    update,
)
from assay.index.calibration import Calibration, Gallery
from assay.index.catalog import Entry
from assay.index.checking import problems_of
from assay.index.encoder import Encoder
from assay.index.index import Index
from assay.index.manifest import Manifest, is_index, read_manifest
from assay.index.matches import Found, Match
from assay.index.merging import merge
from assay.index.metadata import parse_where
from assay.index.queries import names_of
from assay.index.settings import parse_settings
from assay.index.votes import Vote

if TYPE_CHECKING:
    from assay.index.sheet import Asked, draw_sheet
    from assay.index.winner import Winner, find_winner

__all__ = [
    "Asked",
    "Calibration",
    "Encoder",
    "Entry",
    "Found",
    "Gallery",
    "Index",
    "Manifest",
    "Match",
    "Vote",
    "Wanted",
    "Winner",
    "Written",
    "backends",
    "draw_sheet",
    "find_winner",
    "is_index",
    "merge",
    "move_root",
    "names_of",
    "parse_settings",
    "parse_where",
    "problems_of",
    "read_manifest",
    "remove",
    "update",
]

_LATER = {
    "Asked": "assay.index.sheet",
    "Winner": "assay.index.winner",
    "draw_sheet": "assay.index.sheet",
    "find_winner": "assay.index.winner",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch, and what a search does not need, only when it is used."""
    if name not in _LATER:
        raise AttributeError(f"module 'assay.index' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
