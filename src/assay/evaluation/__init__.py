"""Evaluation of models and embeddings on data: scores, looks at the test half, baselines."""

from assay.evaluation.baselines import TrunkBaseline, baselines
from assay.evaluation.embeddings import Embeddings, embed
from assay.evaluation.evaluate import Evaluation, evaluate_file, evaluate_model
from assay.evaluation.evaluated_model import EmbeddedPart, EvaluatedModel
from assay.evaluation.look import OpenLook

__all__ = [
    "EmbeddedPart",
    "Embeddings",
    "EvaluatedModel",
    "Evaluation",
    "OpenLook",
    "TrunkBaseline",
    "baselines",
    "embed",
    "evaluate_file",
    "evaluate_model",
]
