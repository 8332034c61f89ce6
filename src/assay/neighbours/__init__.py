"""Exact nearest neighbours in bounded memory: cosine, dot product, Euclidean or Hamming."""

from assay.neighbours.search import nearest
from assay.neighbours.similarity import vector_similarities
from assay.neighbours.target_ranks import target_ranks
from assay.neighbours.vectors import Vectors

__all__ = ["Vectors", "nearest", "target_ranks", "vector_similarities"]
