"""Assay: deep metric learning, put to a fair test."""

import importlib
from typing import TYPE_CHECKING, Any

from assay.version import __version__

if TYPE_CHECKING:
    from assay.embedding import load
    from assay.metrics import Scores, evaluate
    from assay.report import bench

__all__ = ["Scores", "__version__", "bench", "evaluate", "load"]

_HOMES = {
    "Scores": "assay.metrics",
    "evaluate": "assay.metrics",
    "bench": "assay.report",
    "load": "assay.embedding",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
