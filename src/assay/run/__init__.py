"""Measured runs, and what is asked of their models once a study's seal is open."""

from assay.records.store import Keep
from assay.run.computing import compute, train_alone
from assay.run.environment import ABOVE, Environment, own_source
from assay.run.run import Run
from assay.run.testing import CheckpointScoring, Scoring, TestEmbedding, Unsealed
from assay.run.training import Training

__all__ = [
    "ABOVE",
    "CheckpointScoring",
    "Environment",
    "Keep",
    "Run",
    "Scoring",
    "TestEmbedding",
    "Training",
    "Unsealed",
    "compute",
    "own_source",
    "train_alone",
]
