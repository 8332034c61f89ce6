"""Exact k nearest neighbours in bounded memory, by cosine, dot product, Euclidean or Hamming
distance.
"""

from assay.neighbours.ranks import ranks
from assay.neighbours.search import nearest
from assay.neighbours.similarity import comparisons
from assay.neighbours.vectors import Vectors

__all__ = ["Vectors", "comparisons", "nearest", "ranks"]
