"""Measured runs, and the tasks on their models once the seal of a study is open."""

from assay.records.store import Keep
from assay.run.baseline import single_model, single_vectors
from assay.run.environment import ABOVE, Environment, own_source
from assay.run.run import Run
from assay.run.testing import (
    CheckpointScoring,
    HalfLabels,
    Scoring,
    TestEmbedding,
    Unsealed,
    agree,
    check_metrics,
    score,
)
from assay.run.training import Training, compute, train_alone

__all__ = [
    "ABOVE",
    "CheckpointScoring",
    "Environment",
    "HalfLabels",
    "Keep",
    "Run",
    "Scoring",
    "TestEmbedding",
    "Training",
    "Unsealed",
    "agree",
    "check_metrics",
    "compute",
    "own_source",
    "score",
    "single_model",
    "single_vectors",
    "train_alone",
]
