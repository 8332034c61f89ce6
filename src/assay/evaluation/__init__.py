"""A model evaluated on data: the parts it may be scored on, looks at the test half, baselines."""

from assay.evaluation.baselines import Baseline, baselines
from assay.evaluation.files import Embeddings
from assay.evaluation.look import Look, record_beside_model
from assay.evaluation.model import EmbeddedPart, EvaluatedModel

__all__ = [
    "Baseline",
    "EmbeddedPart",
    "Embeddings",
    "EvaluatedModel",
    "Look",
    "baselines",
    "record_beside_model",
]
