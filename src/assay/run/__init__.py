"""Measured runs, and what is asked of their models once a study's seal is open."""

from assay.run.computing import compute, train_alone
from assay.run.environment import ABOVE, Environment, own_source
from assay.run.one import Run
from assay.run.training import Training
from assay.run.unsealed import CheckpointScoring, Scoring, TestEmbedding, Unsealed
from assay.store import Keep

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
