"""Evaluation of models and embeddings on data: scores, looks at the test half, baselines."""

from assay.evaluation.baselines import TrunkBaseline, baselines
from assay.evaluation.embeddings import Embeddings, embed
from assay.evaluation.evaluate import Evaluation, evaluate_file, evaluate_model
from assay.evaluation.look import Look
from assay.evaluation.model import EmbeddedPart, EvaluatedModel

__all__ = [
    "EmbeddedPart",
    "Embeddings",
    "EvaluatedModel",
    "Evaluation",
    "Look",
    "TrunkBaseline",
    "baselines",
    "embed",
    "evaluate_file",
    "evaluate_model",
]
