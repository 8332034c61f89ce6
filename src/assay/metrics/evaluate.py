"""`evaluate`: from embeddings and labels to scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.metrics.inputs import Rows, Task
from assay.metrics.labels import AnyLabels
from assay.metrics.metric import Chosen, choose
from assay.metrics.ranking import FAR_ENOUGH, Ranking
from assay.metrics.scores import Asked, Scores
from assay.neighbours.search import full_precision
from assay.neighbours.similarity import Counts
from assay.progress import Progress, silent

DEFAULT = ("precision_at_1", "r_precision", "map_at_r")


def evaluate(
    z: Rows,
    y: AnyLabels,
    metrics: str | Sequence[str] = DEFAULT,
    *,
    queries: Rows | None = None,
    gallery: Rows | tuple[Rows, AnyLabels] | None = None,
    similarity: str = "cosine",
    counts: Counts | None = None,
    ids: Sequence[Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Scores:
    """Score embeddings as a search: each sample is looked up among all others, exactly, in bounded
    memory.

    Args:
        z: embeddings (N, D): array, memory-mapped file or tensor.
        y: labels (N,), anything hashable.
        metrics: names of `assay list metrics`; `recall_at_k` stands for k = 1, 2, 4, 8, 16, 32,
            `recall_at_10` for one.
        queries: which rows of `z` are looked up (indices or a mask); all if None.
        gallery: which rows of `z` they are looked up in (indices or a mask), or another array with
            its labels, as a tuple (z, y). A query that is in the gallery does not find itself.
        similarity: cosine, dot, euclidean, or hamming (of bits packed into uint8).
        counts: which references count for which queries, as for `assay.neighbours.nearest`, by row
            of `z` (and by row of the other array, where the gallery is one). References that do not
            count are neither found nor missed.
        ids: a name of each row of `z`, for `Scores.ids`; its row number if None.
        seed: of k-means.
        progress: called with a stage's name, the steps done and their total.

    >>> evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], ["cat", "cat", "dog", "dog"], ["map_at_r"])
    Scores: 4 queries of 2 classes; cosine
      map_at_r  1.0000
    """
    chosen = choose(metrics)
    task = Task.of(z, y, queries, gallery, similarity, counts, seed, progress or silent)
    names = range(len(task.vectors)) if ids is None else list(ids)
    if len(names) != len(task.vectors):
        raise ValueError(
            f"{len(task.vectors)} embeddings but {len(names)} ids; each embedding needs one"
        )
    task.check(chosen)
    with torch.no_grad(), full_precision(task.vectors.device):
        return _score(task, chosen, names)


def _score(task: Task, chosen: Sequence[Chosen], names: Sequence[Any]) -> Scores:
    asked = Asked(
        [names[row] for row in task.query_rows.tolist()],
        task.query_y.cpu().numpy(),
        task.class_names,
    )
    values = _per_query(task.ranking, [one for one in chosen if one.metric.per_query])
    scores = {
        one.label: values[one.label] if one.label in values else float(one(*task.sources(one)))
        for one in chosen
    }
    return Scores(asked, scores, (task.ranking.total > 0).cpu().numpy(), task.similarity)


def _per_query(ranking: Ranking, chosen: Sequence[Chosen]) -> dict[str, NDArray[np.float64]]:
    """Each metric of each query, NaN where there is nothing to find; lists are made once for all of
    them.
    """
    total, first = ranking.total, torch.zeros_like(ranking.total)
    scores = {
        one.label: torch.full(total.shape, torch.nan, dtype=torch.float64, device=total.device)
        for one in chosen
    }
    ranked = [one for one in chosen if one.metric.source == "ranks"]
    for rows, hits in ranking.lists(_lengths(ranking, chosen)) if chosen else ():
        first[rows] = torch.where(hits.any(1), hits.byte().argmax(1) + 1, 0)
        for one in ranked:
            scores[one.label][rows] = one(hits, total[rows])
    for one in chosen:
        if one.metric.source == "first hit":
            scores[one.label] = one(ranking.count_to_first_hits(first)).masked_fill(
                total == 0, torch.nan
            )
    return {label: values.cpu().numpy() for label, values in scores.items()}


def _lengths(ranking: Ranking, chosen: Sequence[Chosen]) -> torch.Tensor:
    """How long the list of each query must be (Q,)."""
    lengths = torch.ones_like(ranking.total)
    for one in chosen:
        fixed = min(FAR_ENOUGH, ranking.most) if one.metric.source == "first hit" else one.ranks
        lengths = torch.maximum(
            lengths, ranking.total if fixed is None else torch.full_like(lengths, fixed)
        )
    return lengths
