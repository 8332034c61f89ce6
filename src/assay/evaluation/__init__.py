"""Evaluation of models and embeddings on data: scores, looks at the test half, baselines."""

from assay.evaluation.baselines import TrunkBaseline, baselines
from assay.evaluation.embeddings import Embeddings, embed, looked_at, looker_of
from assay.evaluation.evaluate import Evaluation, evaluate_file, evaluate_model, metrics_of_queries
from assay.evaluation.evaluated_model import EmbeddedPart, EvaluatedModel
from assay.evaluation.look import looking

__all__ = [
    "EmbeddedPart",
    "Embeddings",
    "EvaluatedModel",
    "Evaluation",
    "TrunkBaseline",
    "baselines",
    "embed",
    "evaluate_file",
    "evaluate_model",
    "looked_at",
    "looker_of",
    "looking",
    "metrics_of_queries",
]
