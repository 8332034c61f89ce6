"""Training: one loop for one or many models, and the state from which it resumes after a kill."""

from assay.train.batches import (
    Batches,
    check_plan,
    draw_batches,
    iterations_of,
    plan_batches,
    sampler_of,
    times_embedded,
)
from assay.train.lists import Drawn, draw_lists, listed_in
from assay.train.loop import Stepper, fit
from assay.train.one_network import OneNetwork, ReadBatch, set_training, step
from assay.train.optimisers import groups_of, make_optimiser, optimiser_of
from assay.train.resume import SAVE_AFTER, CheckpointFolder, ResumeFile, SavedState
from assay.train.stack import CannotBeTraced, HeadStack, can_stack, floats_of, stack_key
from assay.train.trainee import (
    OnEpoch,
    OnValidation,
    Trainee,
    ignore_epoch,
    training_labels,
)
from assay.train.validation import (
    NOTHING_FOUND,
    Fit,
    Validator,
    is_out_of_patience,
    mean_scores,
    with_counts,
)

__all__ = [
    "NOTHING_FOUND",
    "SAVE_AFTER",
    "Batches",
    "CannotBeTraced",
    "CheckpointFolder",
    "Drawn",
    "Fit",
    "HeadStack",
    "OnEpoch",
    "OnValidation",
    "OneNetwork",
    "ReadBatch",
    "ResumeFile",
    "SavedState",
    "Stepper",
    "Trainee",
    "Validator",
    "can_stack",
    "check_plan",
    "draw_batches",
    "draw_lists",
    "fit",
    "floats_of",
    "groups_of",
    "ignore_epoch",
    "is_out_of_patience",
    "iterations_of",
    "listed_in",
    "make_optimiser",
    "mean_scores",
    "optimiser_of",
    "plan_batches",
    "sampler_of",
    "set_training",
    "stack_key",
    "step",
    "times_embedded",
    "training_labels",
    "with_counts",
]
