"""`evaluate`: from embeddings and labels to scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.metric_names import DEFAULT_METRICS
from assay.metrics.inputs import AnyArray, Inputs
from assay.metrics.labels import AnyLabels
from assay.metrics.metric import Chosen, choose_metrics
from assay.metrics.ranking import FAR_ENOUGH, Ranking
from assay.metrics.scores import Queries, Scores
from assay.neighbours.search import full_precision
from assay.neighbours.similarity import WhichCount
from assay.progress import Progress, silent


def evaluate(
    z: AnyArray,
    y: AnyLabels,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    *,
    queries: AnyArray | None = None,
    gallery: AnyArray | tuple[AnyArray, AnyLabels] | None = None,
    similarity: str = "cosine",
    counts: WhichCount | None = None,
    ids: Sequence[Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Scores:
    """Score embeddings as a search: each sample is looked up among all others.

    Neighbours are exact, and memory is bounded whatever the number of samples.

    Args:
        z: embeddings (N, D): array, memory-mapped file or tensor.
        y: labels (N,), anything hashable.
        metrics: names of `assay list metrics`; `recall_at_k` stands for k = 1, 2, 4, 8, 16, 32,
            `recall_at_10` for one.
        queries: which rows of `z` are looked up (indices or a mask); all if None.
        gallery: which rows of `z` they are looked up in (indices or a mask), or another array with
            its labels, as a tuple (z, y). A query in the gallery does not find itself.
        similarity: cosine, dot, euclidean, or hamming (of bits packed into uint8).
        counts: which references count for which queries, as for `assay.neighbours.nearest`, by row
            of `z` (and by row of the gallery, if that is another array). References that do not
            count are neither found nor missed.
        ids: a name of each row of `z`, for `Scores.ids`; its row number if None.
        seed: seed of k-means.
        progress: called with a stage's name, the steps done and their total.

    >>> z = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
    >>> evaluate(z, ["cat", "cat", "dog", "dog"], ["map_at_r"])
    Scores: 4 queries of 2 classes; cosine
      map_at_r  1.0000
    """
    chosen = choose_metrics(metrics)
    inputs = Inputs.of(z, y, queries, gallery, similarity, counts, seed, progress or silent)
    names = range(len(inputs.vectors)) if ids is None else list(ids)
    if len(names) != len(inputs.vectors):
        raise ValueError(
            f"{len(inputs.vectors)} embeddings but {len(names)} ids; each embedding needs one"
        )
    inputs.check(chosen)
    asked = Queries(
        [names[row] for row in inputs.query_rows.tolist()],
        inputs.query_y.cpu().numpy(),
        inputs.class_names,
    )
    with torch.no_grad(), full_precision(inputs.vectors.device):
        values = _per_query(inputs.ranking, [metric for metric in chosen if metric.per_query])
        scores = {
            metric.label: (
                values[metric.label] if metric.per_query else float(metric(*inputs.sources(metric)))
            )
            for metric in chosen
        }
        scored = (inputs.ranking.total > 0).cpu().numpy()
    return Scores(asked, scores, scored, similarity)


def _per_query(ranking: Ranking, chosen: Sequence[Chosen]) -> dict[str, NDArray[np.float64]]:
    """Return each metric for each query, NaN where there is nothing to find.

    All metrics share the same ranked lists.
    """
    total, first = ranking.total, torch.zeros_like(ranking.total)
    scores = {
        metric.label: torch.full(total.shape, torch.nan, dtype=torch.float64, device=total.device)
        for metric in chosen
    }
    ranked = [metric for metric in chosen if metric.source == "ranks"]
    for rows, hits in ranking.lists(_lengths(ranking, chosen)) if chosen else ():
        first[rows] = torch.where(hits.any(1), hits.byte().argmax(1) + 1, 0)
        for metric in ranked:
            scores[metric.label][rows] = metric(hits, total[rows])
    for metric in chosen:
        if metric.source == "first hit":
            ranks = ranking.count_to_first_hits(first)
            scores[metric.label] = metric(ranks).masked_fill(total == 0, torch.nan)
    return {label: values.cpu().numpy() for label, values in scores.items()}


def _lengths(ranking: Ranking, chosen: Sequence[Chosen]) -> torch.Tensor:
    """Return how long the list of each query must be (Q,)."""
    lengths = torch.ones_like(ranking.total)
    for metric in chosen:
        fixed = min(FAR_ENOUGH, ranking.most) if metric.source == "first hit" else metric.ranks
        lengths = torch.maximum(
            lengths, ranking.total if fixed is None else torch.full_like(lengths, fixed)
        )
    return lengths
