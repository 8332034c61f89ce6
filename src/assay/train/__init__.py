"""Training: one loop, read in one sitting; what it keeps, and how it goes on after a kill."""

from assay.train.batches import draw_batches, iterations_of
from assay.train.loop import fit, prepare, set_training, step
from assay.train.optimisers import make_optimisers, optimisers_of
from assay.train.savepoint import SAVE_AFTER, CheckpointFolder, Savepoint
from assay.train.state import State
from assay.train.validation import (
    Checkpoint,
    Fit,
    Kept,
    OnEpoch,
    Status,
    Validator,
    silent,
    summary,
)

__all__ = [
    "SAVE_AFTER",
    "Checkpoint",
    "CheckpointFolder",
    "Fit",
    "Kept",
    "OnEpoch",
    "Savepoint",
    "State",
    "Status",
    "Validator",
    "draw_batches",
    "fit",
    "iterations_of",
    "make_optimisers",
    "optimisers_of",
    "prepare",
    "set_training",
    "silent",
    "step",
    "summary",
]
