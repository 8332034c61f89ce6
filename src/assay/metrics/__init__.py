"""Metrics of retrieval, clustering, geometry and verification; `evaluate` computes them."""

from assay.metrics.evaluate import evaluate
from assay.metrics.metric import metrics
from assay.metrics.retrieval import (
    map_at_k,
    map_at_r,
    mrr,
    precision_at_1,
    r_precision,
    recall_at_k,
)
from assay.metrics.scores import Scores
from assay.registry import import_folder

__all__ = [
    "Scores",
    "evaluate",
    "map_at_k",
    "map_at_r",
    "metrics",
    "mrr",
    "precision_at_1",
    "r_precision",
    "recall_at_k",
]

import_folder(__name__, __path__)
