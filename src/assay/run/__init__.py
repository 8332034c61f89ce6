"""Measured runs, and the tasks on their models once the seal of a study is open."""

from assay.records.store import Keep
from assay.run.closed_form import single_model, single_vectors
from assay.run.shares import SharesOfTasks
from assay.run.testing import (
    CheckpointScoring,
    HalfLabels,
    Scoring,
    TestEmbedding,
    Unsealed,
    check_metrics,
    check_ranks,
    score_reproduction,
)
from assay.run.training import Training, compute, train_alone, train_on_all
from assay.run.validating import Validation

__all__ = [
    "CheckpointScoring",
    "HalfLabels",
    "Keep",
    "Scoring",
    "SharesOfTasks",
    "TestEmbedding",
    "Training",
    "Unsealed",
    "Validation",
    "check_metrics",
    "check_ranks",
    "compute",
    "score_reproduction",
    "single_model",
    "single_vectors",
    "train_alone",
    "train_on_all",
]
