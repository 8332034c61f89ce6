"""A protocol: everything about a benchmark but the method,
as one frozen and fingerprinted value.
"""

from assay.protocol.describe import describe_augment
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
    Length,
    Look,
    Optimiser,
    OptimiserKind,
    Pooling,
    Protocol,
    Resize,
    Schedule,
    Search,
    Similarity,
)
from assay.protocol.resolve import kind_of, resolve, resolve_training
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
    "Length",
    "Look",
    "Optimiser",
    "OptimiserKind",
    "Pooling",
    "Protocol",
    "Resize",
    "Schedule",
    "Search",
    "Similarity",
    "customise",
    "describe_augment",
    "kind_of",
    "resolve",
    "resolve_training",
]
