"""Assay: deep metric learning, put to a fair test.

docs/architecture.md shows the way of a bench through the packages, and where to look for what.
"""

import importlib
from typing import TYPE_CHECKING, Any

from assay.moved import MOVED, point_to_new_names
from assay.version import __version__

if TYPE_CHECKING:
    from assay.data.survey import survey
    from assay.embedder import load
    from assay.evaluation import embed, evaluate_model
    from assay.index import Index
    from assay.metrics import Scores, evaluate
    from assay.report import bench

__all__ = [
    "Index",
    "Scores",
    "__version__",
    "bench",
    "embed",
    "evaluate",
    "evaluate_model",
    "load",
    "survey",
]

_HOMES = {
    "Index": "assay.index",
    "Scores": "assay.metrics",
    "bench": "assay.report",
    "embed": "assay.evaluation",
    "evaluate": "assay.metrics",
    "evaluate_model": "assay.evaluation",
    "load": "assay.embedder",
    "survey": "assay.data.survey",
}

point_to_new_names()


def __getattr__(name: str) -> Any:
    """Import names that need torch only when they are used."""
    if name not in _HOMES:
        moved = f"; it was moved to {MOVED[name]}" if name in MOVED else ""
        raise AttributeError(f"module 'assay' has no attribute {name!r}{moved}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
