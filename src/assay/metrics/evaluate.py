"""`evaluate`: from embeddings and labels to scores."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.metrics.metric import metrics as registry
from assay.neighbours import nearest

ALL = ("precision_at_1", "r_precision", "map_at_r")


class Scores(Mapping[str, float]):
    """Means by metric, over the queries whose class has another sample; `per_query` lines up with the labels."""

    def __init__(self, per_query: Mapping[str, NDArray[np.float64]]) -> None:
        self._per_query = dict(per_query)
        values = next(iter(self._per_query.values()))
        self.skipped = int(np.isnan(values).sum())
        self.queries = len(values) - self.skipped

    def per_query(self, name: str) -> NDArray[np.float64]:
        """The metric of each query, NaN where its class has no other sample."""
        return self._per_query[name]

    def __getitem__(self, name: str) -> float:
        return float(np.nanmean(self._per_query[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._per_query)

    def __len__(self) -> int:
        return len(self._per_query)

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {value:.4f}" for name, value in self.items())
        return f"Scores({means}; {self.queries} queries, {self.skipped} skipped)"


def evaluate(z: ArrayLike | Tensor, y: ArrayLike | Tensor, metrics: Sequence[str] = ALL) -> Scores:
    """Score embeddings as a search: each sample is looked up among all others, by cosine similarity.

    Args:
        z: embeddings (N, D), any norm.
        y: labels (N,) of any integer or string type.
        metrics: names of `assay list metrics`.

    >>> evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], ["cat", "cat", "dog", "dog"])
    Scores(precision_at_1 1.0000, r_precision 1.0000, map_at_r 1.0000; 4 queries, 0 skipped)

    """
    if not metrics:
        raise ValueError(f"name at least one metric of {', '.join(registry)}")
    chosen = {name: registry[name] for name in metrics}
    vectors, labels = _vectors(z), _labels(y)
    if len(vectors) != len(labels):
        raise ValueError(f"{len(vectors)} embeddings but {len(labels)} labels; each embedding needs one")
    total = torch.bincount(labels)[labels] - 1
    if int(total.max()) == 0:
        raise ValueError(f"no two of the {len(labels)} samples share a label: there is nothing to find")
    found = nearest(vectors, vectors, k=int(total.max()), exclude=torch.arange(len(labels), device=vectors.device))
    relevant = labels[found] == labels[:, None]
    return Scores({name: metric(relevant, total).cpu().numpy() for name, metric in chosen.items()})


def _vectors(z: ArrayLike | Tensor) -> Tensor:
    vectors = z.detach() if isinstance(z, Tensor) else torch.as_tensor(np.asarray(z))
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"embeddings have shape (N, D) with N at least 2, got {tuple(vectors.shape)}")
    bad = (~torch.isfinite(vectors).all(1)).nonzero()
    if len(bad):
        raise ValueError(f"embedding {int(bad[0])} has a value that is NaN or infinite ({len(bad)} such rows)")
    return vectors


def _labels(y: ArrayLike | Tensor) -> Tensor:
    """Labels as class numbers, by equality in their own type: ids above 2^24 must not merge."""
    if isinstance(y, list | tuple):
        numbers: dict[object, int] = {}
        return torch.tensor([numbers.setdefault(label, len(numbers)) for label in y])
    values = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"labels have shape (N,), got {values.shape}")
    return torch.from_numpy(np.unique(values, return_inverse=True)[1])
