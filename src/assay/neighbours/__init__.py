"""Exact k nearest neighbours in bounded memory, by cosine, dot product, Euclidean or Hamming
distance.
"""

from assay.neighbours.comparison import comparisons
from assay.neighbours.ranks import ranks
from assay.neighbours.scan import nearest
from assay.neighbours.vectors import Vectors

__all__ = ["Vectors", "comparisons", "nearest", "ranks"]
