"""Metrics of retrieval, per query, and `evaluate`, which applies them to embeddings."""

from assay.metrics.evaluate import Scores, evaluate
from assay.metrics.metric import metrics
from assay.metrics.retrieval import map_at_r, precision_at_1, r_precision

__all__ = ["Scores", "evaluate", "map_at_r", "metrics", "precision_at_1", "r_precision"]
