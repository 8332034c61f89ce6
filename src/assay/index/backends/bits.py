"""Packed bits by Hamming distance: the bits z > 0 of embeddings, eight to a byte."""

from dataclasses import dataclass
from typing import ClassVar

from assay.index.backends.backend import backends
from assay.index.backends.exact import Exact
from assay.protocols import Similarity


@backends("bits")
@dataclass(frozen=True)
class Bits(Exact):
    """Count the bits in which a query and every stored vector differ: exact, and small."""

    name: ClassVar[str] = "bits"
    similarities: ClassVar[tuple[Similarity, ...]] = ("hamming",)
