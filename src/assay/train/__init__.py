"""Training: one loop, read in one sitting; what it keeps, and how it goes on after a kill."""

from assay.train.batches import draw_batches, iterations_of
from assay.train.judge import Checkpoint, Fit, Judge, Kept, Status, Told, nobody, summary
from assay.train.loop import fit, prepare, set_training, step
from assay.train.optimisers import make_optimisers, optimisers_of
from assay.train.savepoint import SAVE_AFTER, Savepoint, Shelf
from assay.train.state import State

__all__ = [
    "SAVE_AFTER",
    "Checkpoint",
    "Fit",
    "Judge",
    "Kept",
    "Savepoint",
    "Shelf",
    "State",
    "Status",
    "Told",
    "draw_batches",
    "fit",
    "iterations_of",
    "make_optimisers",
    "nobody",
    "optimisers_of",
    "prepare",
    "set_training",
    "step",
    "summary",
]
