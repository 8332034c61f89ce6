"""Clusters of embeddings, and how well they agree with the classes."""

from assay.clusters.agreement import ami, nmi, nmi_geometric, pairwise_f1
from assay.clusters.kmeans import Clustering, kmeans

__all__ = ["Clustering", "ami", "kmeans", "nmi", "nmi_geometric", "pairwise_f1"]
