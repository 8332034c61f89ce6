"""What is asked of the test half, and how reproductions are scored on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.dataset import Half, Labels, Marks
from assay.data.packs import View
from assay.embedding import as_compared
from assay.errors import BadInput
from assay.hashing import digest, digest_bytes, without_infinities
from assay.metric_names import DEFAULT_METRICS
from assay.metrics import Scores, evaluate
from assay.metrics.metric import choose_metrics
from assay.protocols import Protocol, Similarity
from assay.train import summary

Sums = NDArray[np.float64]


@dataclass(frozen=True)
class HalfLabels:
    """What is asked of the test half, and what is right: labels, and where the data say so who is
    looked up in whom.
    """

    y: Labels
    query: Marks | None = None
    gallery: Marks | None = None

    @classmethod
    def of(cls, half: View | Half) -> "HalfLabels":
        """Those of the test half, opened."""
        return cls(half.y, half.query, half.gallery)

    def marks(self) -> dict[str, Labels | Marks]:
        """The arrays that there are, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all of it."""
        return digest({name: digest_bytes(array.tobytes()) for name, array in self.marks().items()})

    def evaluate(
        self, z: Tensor, metrics: Sequence[str] = DEFAULT_METRICS, similarity: Similarity = "cosine"
    ) -> Scores:
        """Scores of embeddings of the samples, looked up as their roles say."""
        rows = [
            None if mark is None else np.flatnonzero(mark) for mark in (self.query, self.gallery)
        ]
        return evaluate(z, self.y, metrics, queries=rows[0], gallery=rows[1], similarity=similarity)

    def score(
        self, z: Tensor, metrics: Sequence[str] = DEFAULT_METRICS, similarity: Similarity = "cosine"
    ) -> dict[str, float]:
        """Means of the scores, and how many queries they are over; MAP@R is always among them.

        A metric that looks at more references than there are has no value: NaN.
        """
        return self.scored(z, metrics, similarity)[0]

    def scored(
        self, z: Tensor, metrics: Sequence[str], similarity: Similarity = "cosine"
    ) -> tuple[dict[str, float], Sums]:
        """The means; and of each class the number of queries that count and the sum of their MAP@R,
        as two rows.
        """
        chosen = choose_metrics((*metrics, "map_at_r"))
        reached = [
            one.label
            for one in chosen
            if one.metric.source != "ranks" or (one.ranks or 1) <= self.references
        ]
        scores = self.evaluate(z, reached, similarity)
        found = scores.per_query("map_at_r")
        asked, classes = self.y if self.query is None else self.y[self.query], int(self.y.max()) + 1
        values = np.isfinite(found).astype(np.float64), np.nan_to_num(found)
        by_class = np.stack([np.bincount(asked, own, classes).astype(np.float64) for own in values])
        return {**{one.label: math.nan for one in chosen}, **summary(scores)}, by_class

    @property
    def references(self) -> int:
        """How many references each query has to choose from at least."""
        everyone = np.ones(len(self.y), dtype=bool)
        query, gallery = (everyone if mark is None else mark for mark in (self.query, self.gallery))
        return int(gallery.sum()) - int((query & gallery).any())


def score(
    vectors: Sequence[np.ndarray[Any, Any]],
    answers: HalfLabels,
    dim: int,
    metrics: Sequence[str] = DEFAULT_METRICS,
    similarity: Similarity = "cosine",
) -> tuple[dict[str, Any], dict[str, Sums]]:
    """Scores as JSON holds them: `concatenated`, of all folds' vectors side by side; `folds`, each
    fold's own; `separated`, the mean of those.

    Concatenated vectors are normalised again where the similarity is cosine. For Euclidean distance
    they stay as they are: the squared distance of two samples is then the sum of those that the
    folds see. One vector that is a single model's in full, such as that of `as_is`, is scored once:
    all three are the same.

    Beside them the sums of MAP@R over the queries of each class, `separated` and `concatenated`,
    and how many `queries` they are over.
    """
    tensors = [torch.from_numpy(part) for part in vectors]
    joined = torch.cat(tensors, dim=1)
    single = [
        answers.scored(single_vectors(part, dim, similarity), metrics, similarity)
        for part in tensors
    ]
    alone = len(tensors) == 1 and (dim == 0 or dim >= joined.shape[1])
    concatenated, sums = (
        single[0] if alone else answers.scored(as_compared(joined, similarity), metrics, similarity)
    )
    scores = [found for found, _ in single]
    separated_sums = np.mean([found for _, found in single], axis=0)
    found = {"concatenated": concatenated, "separated": mean_scores(scores), "folds": scores}
    by_class = {"queries": sums[0], "separated": separated_sums[1], "concatenated": sums[1]}
    return dict(without_infinities(found)), by_class


def single_vectors(z: Tensor, dim: int, similarity: Similarity = "cosine") -> Tensor:
    """Return the vectors of a single model: the first `dim` numbers, or all where it is 0, as they
    are compared.

    Those of a model are `dim` numbers wide, but for a fixed baseline's: its one run stands for the
    models of all folds and has folds x dim principal components, which are nested.
    """
    return as_compared(z[:, : dim or None], similarity)


def agree(again: Any, said: Any, tolerance: float = 1e-9) -> bool:
    """Whether scores that were computed again are those that were said, each of which has its
    counterpart.

    >>> agree({"nmi": 0.5, "folds": ["inf"]}, {"nmi": 0.5, "folds": ["inf"]}), agree({"nmi": 0.5}, {"nmi": 0.6})
    (True, False)
    """
    if isinstance(said, Mapping):
        return isinstance(again, Mapping) and all(
            name in again and agree(again[name], said[name], tolerance) for name in said
        )
    if isinstance(said, list):
        return (
            isinstance(again, list)
            and len(again) == len(said)
            and all(map(partial(agree, tolerance=tolerance), again, said))
        )
    if isinstance(said, str) or isinstance(again, str):
        return bool(again == said)
    return bool(abs(again - said) <= tolerance)


def mean_scores(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each entry over folds; counts stay whole where they agree."""
    means = {name: sum(part[name] for part in scores) / len(scores) for name in scores[0]}
    return {
        name: int(value) if name in ("queries", "skipped") and value == int(value) else value
        for name, value in means.items()
    }


def check_metrics(protocol: Protocol) -> None:
    """Raise `BadInput` where the protocol names a metric that does not exist, or that its
    similarity does not have.
    """
    for field in ("metrics", "training_metrics"):
        names: tuple[str, ...] = getattr(protocol, field)
        try:
            chosen = choose_metrics((*names, "map_at_r"))
        except ValueError as error:
            raise BadInput(f"--set {field}={','.join(names)}: {error}") from None
        by_cosine = [one.label for one in chosen if one.metric.source == "pairs"]
        if by_cosine and protocol.similarity != "cosine":
            raise BadInput(
                f"--set {field}={','.join(names)}: {by_cosine[0]} compares pairs by the cosine, and"
                f" similarity is {protocol.similarity}; leave it out"
            )
