"""A model evaluated on data: what it may be scored on, looks at the test half, baselines."""

from assay.evaluation.baselines import Baseline, baselines
from assay.evaluation.files import Embeddings
from assay.evaluation.look import FinishedRun, Look, run_behind
from assay.evaluation.model import EvaluatedModel, Part

__all__ = [
    "Baseline",
    "Embeddings",
    "EvaluatedModel",
    "FinishedRun",
    "Look",
    "Part",
    "baselines",
    "run_behind",
]
