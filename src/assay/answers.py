"""What is asked of the test half, and how reproductions are scored on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.canonical import digest, digest_bytes
from assay.data.dataset import Labels, Marks
from assay.data.splits import Half
from assay.data.views import View
from assay.metrics import Scores, evaluate
from assay.metrics.evaluate import DEFAULT
from assay.train import summary


@dataclass(frozen=True)
class Answers:
    """What is asked of the test half, and what is right: labels, and where the data say so who is looked up in whom."""

    y: Labels
    query: Marks | None = None
    gallery: Marks | None = None

    @classmethod
    def of(cls, half: View | Half) -> "Answers":
        """Those of the test half, opened."""
        return cls(half.y, half.query, half.gallery)

    def marks(self) -> dict[str, Labels | Marks]:
        """The arrays that there are, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all of it."""
        return digest({name: digest_bytes(array.tobytes()) for name, array in self.marks().items()})

    def evaluate(self, z: Tensor, metrics: Sequence[str] = DEFAULT) -> Scores:
        """Scores of embeddings of the samples, looked up as their roles say."""
        rows = [None if mark is None else np.flatnonzero(mark) for mark in (self.query, self.gallery)]
        return evaluate(z, self.y, metrics, queries=rows[0], gallery=rows[1])

    def score(self, z: Tensor) -> dict[str, float]:
        """Means of the scores, and how many queries they are over."""
        return summary(self.evaluate(z))


def score(vectors: list[np.ndarray[Any, Any]], answers: Answers, dim: int) -> dict[str, dict[str, float]]:
    """Concatenated: all folds' vectors side by side, normalised again. Separated: the mean of the folds' own scores.

    A deterministic baseline has one vector of folds x dim principal components, whose first `dim` are what a single
    model would have.
    """
    tensors = [torch.from_numpy(part) for part in vectors]
    joined = F.normalize(torch.cat(tensors, dim=1), dim=1)
    single = [answers.score(F.normalize(part[:, :dim], dim=1)) for part in tensors]
    return {"concatenated": answers.score(joined), "separated": mean_scores(single)}


def mean_scores(scores: list[dict[str, float]]) -> dict[str, float]:
    """Mean of each entry over folds; counts stay whole where they agree."""
    means = {name: sum(part[name] for part in scores) / len(scores) for name in scores[0]}
    return {
        name: int(value) if name in ("queries", "skipped") and value == int(value) else value for name, value in means.items()
    }
