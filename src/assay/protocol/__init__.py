"""A protocol: everything about a benchmark but the method, as one frozen and fingerprinted value."""

from assay.protocol.protocol import (
    FEWEST_CLASSES,
    PROSE,
    Augment,
    Batch,
    ByMethod,
    FirstStep,
    Form,
    Frozen,
    Kind,
    Look,
    Optimiser,
    OptimiserKind,
    Pooling,
    Protocol,
    Resize,
    Search,
    Similarity,
)
from assay.protocol.resolve import kind_of, resolve
from assay.protocol.settings import CUSTOM, customise

__all__ = [
    "CUSTOM",
    "FEWEST_CLASSES",
    "PROSE",
    "Augment",
    "Batch",
    "ByMethod",
    "FirstStep",
    "Form",
    "Frozen",
    "Kind",
    "Look",
    "Optimiser",
    "OptimiserKind",
    "Pooling",
    "Protocol",
    "Resize",
    "Search",
    "Similarity",
    "customise",
    "kind_of",
    "resolve",
]
