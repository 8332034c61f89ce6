"""`evaluate`: from embeddings and labels to scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.clusters import kmeans
from assay.metric_names import DEFAULT_METRICS
from assay.metrics.labels import AnyLabels, number_classes
from assay.metrics.metric import Chosen, choose_metrics
from assay.metrics.ranking import FAR_ENOUGH, Ranking
from assay.metrics.scores import Queries, Scores
from assay.metrics.verification import Verification, verification
from assay.neighbours import Vectors, vector_similarities
from assay.neighbours.bits import pack_both
from assay.neighbours.search import as_mask, check_comparable, full_precision
from assay.neighbours.similarity import WhichCount
from assay.neighbours.vectors import unit_rows
from assay.progress import Progress, silent

AnyArray = ArrayLike | Tensor


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
        similarity: cosine, dot, euclidean, or hamming, of the bits z > 0; embeddings of uint8 are
            bits that are packed already (`numpy.packbits`).
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


# --- Inputs, checked, and the sources of metrics ---


@dataclass(frozen=True)
class Inputs:
    """Vectors, labels and roles of an evaluation, checked, with classes numbered.

    Args:
        vectors: all rows that were given.
        class_names: labels by class number.
        y: class number of each row.
        query_rows: rows that are looked up.
        gallery_rows: rows that they are looked up in; None if the gallery is another array.
        other: the gallery that is another array, with its class numbers; else None.
        similarity: how vectors are compared.
        counts: which references count, by row.
        seed: seed of k-means.
        progress: called with a stage's name, the steps done and their total.
    """

    vectors: Vectors
    class_names: list[Any]
    y: Tensor
    query_rows: Tensor
    gallery_rows: Tensor | None
    other: tuple[Vectors, Tensor] | None
    similarity: str
    counts: WhichCount | None
    seed: int
    progress: Progress

    @classmethod
    def of(
        cls,
        z: AnyArray,
        y: AnyLabels,
        queries: AnyArray | None,
        gallery: AnyArray | tuple[AnyArray, AnyLabels] | None,
        similarity: str,
        counts: WhichCount | None,
        seed: int,
        progress: Progress,
    ) -> "Inputs":
        """Return the inputs; labels of queries and gallery are numbered together."""
        vectors = Vectors(z)
        if not len(vectors):
            raise ValueError("there is no embedding: there is nothing to evaluate")
        vector_similarities[similarity]  # raises on an unknown name before any work
        apart = _pair(gallery) if isinstance(gallery, tuple) else None
        other = Vectors(apart[0], vectors.device) if apart else None
        classes = number_classes(y, apart[1]) if apart else number_classes(y)
        numbers = [torch.from_numpy(part).to(vectors.device) for part in classes.numbers]
        _same_length(vectors, len(numbers[0]), "embeddings")
        if other is not None:
            if not len(other):
                raise ValueError("the gallery is empty: there is nothing to look queries up in")
            _same_length(other, len(numbers[1]), "embeddings of the gallery")
        return cls(
            vectors=vectors,
            class_names=classes.names,
            y=numbers[0],
            query_rows=_rows(queries, vectors, "queries"),
            gallery_rows=None if apart else _rows(gallery, vectors, "gallery"),  # type: ignore[arg-type]
            other=None if other is None else (other, numbers[1]),
            similarity=similarity,
            counts=counts,
            seed=seed,
            progress=progress,
        )

    @property
    def query_y(self) -> Tensor:
        """Class number of each query."""
        return self.y[self.query_rows]

    @cached_property
    def ranking(self) -> Ranking:
        """Queries and gallery with the rule of what counts, ready to be ranked."""
        searched, apart = self._compared()
        queries = _part(searched, self.query_rows)
        if self.other is not None:
            gallery, gallery_y = apart, self.other[1]
            own = torch.full_like(self.query_rows, -1)
        else:
            assert self.gallery_rows is not None
            gallery, gallery_y = _part(searched, self.gallery_rows), self.y[self.gallery_rows]
            place = torch.full((len(self.y),), -1, device=self.y.device)
            place[self.gallery_rows] = torch.arange(len(gallery), device=self.y.device)
            own = place[self.query_rows]
        return Ranking(
            queries,
            gallery,
            self.query_y,
            gallery_y,
            own,
            self._counts(),
            self.similarity,
            self.progress,
        )

    def check(self, chosen: Sequence[Chosen]) -> None:
        """Raise a `ValueError` for metrics that cannot be computed, before any long work."""
        self._check_vectors()
        for metric in chosen:
            if metric.source in ("clusters", "vectors") and self.other is not None:
                raise ValueError(
                    f"{metric.label} is a metric of one set of vectors; give queries and gallery as"
                    " rows of one array to score it"
                )
            if not metric.per_query and self.similarity == "hamming":
                raise ValueError(
                    f"{metric.label} is not a metric of bits, which hamming compares; leave it out,"
                    " or leave out similarity= to score it on vectors"
                )
            by_cosine = self.counts is None and self.similarity == "cosine"
            if metric.source == "pairs" and not by_cosine:
                raise ValueError(
                    f"{metric.label} compares all pairs by cosine; leave out counts= and"
                    " similarity= to score it"
                )
            if metric.source == "ranks" and (metric.ranks or 0) > self.ranking.most:
                raise ValueError(
                    f"{metric.label} looks at {metric.ranks} references, but a query has"
                    f" {self.ranking.most} to choose from; ask for a smaller k"
                )
        if any(metric.per_query for metric in chosen) and int(self.ranking.total.max()) <= 0:
            what = f"{len(self.query_rows)} queries have no sample of their class to find"
            raise ValueError(f"all {what}: no two samples share a label, or none that counts")

    def _check_vectors(self) -> None:
        if self.gallery_rows is not None:
            if len(self.gallery_rows) == 1 and bool(
                (self.query_rows == self.gallery_rows[0]).all()
            ):
                raise ValueError(
                    "there is one sample, and nothing to look it up in; give at least two"
                )
            self.one_set[0].check_finite("embeddings")
        else:
            _part(self.vectors, self.query_rows).check_finite("embeddings")
        if self.other is not None:
            self.other[0].check_finite("gallery")

    def sources(self, metric: Chosen) -> tuple[Any, ...]:
        """Return what a metric of the whole embedding is computed from."""
        if metric.source == "clusters":
            return self.one_set[1].cpu().numpy(), self.clusters
        return self.one_set if metric.source == "vectors" else (self.pairs,)

    @cached_property
    def one_set(self) -> tuple[Vectors, Tensor]:
        """All samples that are queries or in the gallery, with their class numbers."""
        assert self.gallery_rows is not None
        rows = torch.unique(torch.cat([self.query_rows, self.gallery_rows]))
        return _part(self.vectors, rows), self.y[rows]

    @cached_property
    def clusters(self) -> NDArray[np.int64]:
        """Cluster of each sample; there are as many clusters as classes among these samples."""
        vectors, y = self.one_set
        z = torch.cat(
            [
                unit_rows(block) if self.similarity == "cosine" else block
                for _, block in vectors.blocks(torch.float32)
            ]
        )
        found = kmeans(z, len(torch.unique(y)), seed=self.seed, progress=self.progress)
        return np.asarray(found.labels.cpu().numpy())

    @cached_property
    def pairs(self) -> Verification:
        """Histograms of all pairs of samples, or of all queries with the gallery."""
        ranking = self.ranking
        if ranking.gallery is ranking.queries:
            return verification(ranking.queries, ranking.query_y, progress=self.progress)
        return verification(
            ranking.queries,
            ranking.query_y,
            ranking.gallery,
            ranking.gallery_y,
            own=ranking.own,
            progress=self.progress,
        )

    def _compared(self) -> tuple[Vectors, Vectors]:
        """Return the rows, and those of the gallery, as the similarity compares them."""
        gallery = self.vectors if self.other is None else self.other[0]
        if self.similarity != "hamming":
            return self.vectors, gallery
        check_comparable(self.vectors, gallery, self.similarity)
        return pack_both(self.vectors, gallery)

    def _counts(self) -> WhichCount | None:
        counts, query_rows, gallery_rows = self.counts, self.query_rows, self.gallery_rows
        if counts is None:
            return None

        def count(query: Tensor, reference: Tensor) -> Tensor:
            rows = reference if gallery_rows is None else gallery_rows[reference]
            return counts(query_rows[query], rows)

        return as_mask(count)


def _part(vectors: Vectors, rows: Tensor) -> Vectors:
    """Return these rows; all rows in order are the vectors themselves.

    Queries and gallery then share one object, which halves the search.
    """
    everything = len(rows) == len(vectors) and bool(
        (rows == torch.arange(len(rows), device=rows.device)).all()
    )
    return vectors if everything else Vectors(vectors, chosen=rows)


def _rows(which: AnyArray | None, vectors: Vectors, what: str) -> Tensor:
    """Return row numbers, from a mask or from indices."""
    if which is None:
        return torch.arange(len(vectors), device=vectors.device)
    try:
        given = which.detach().cpu().numpy() if isinstance(which, Tensor) else np.array(which)
    except ValueError:
        raise ValueError(
            f"{what} are row numbers or a mask of shape (N,); a gallery of its own is a tuple"
            " (z, y)"
        ) from None
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iub"):
        raise ValueError(
            f"{what} are row numbers or a mask of shape (N,), got {given.dtype} of shape"
            f" {given.shape}"
        )
    if given.dtype.kind == "b":
        if len(given) != len(vectors):
            raise ValueError(
                f"{len(vectors)} embeddings but a mask of {len(given)} entries for {what}; each"
                " needs one"
            )
        given = np.flatnonzero(given)
    if not len(given):
        raise ValueError(f"there is no row in {what}: there is nothing to evaluate")
    outside = given[(given < 0) | (given >= len(vectors))]
    if len(outside):
        raise ValueError(f"{what} hold row {outside[0]}; there are rows 0 to {len(vectors) - 1}")
    if len(np.unique(given)) < len(given):
        raise ValueError(f"{what} name a row twice; name each once")
    return torch.from_numpy(given.astype(np.int64)).to(vectors.device)


def _pair(gallery: tuple[Any, ...]) -> tuple[AnyArray, AnyLabels]:
    if len(gallery) != 2 or np.ndim(gallery[0]) != 2:
        raise ValueError(
            "a gallery of its own is a pair (z, y) of vectors and their labels; one among the rows"
            " is an array of rows"
        )
    return gallery[0], gallery[1]


def _same_length(vectors: Vectors, count: int, what: str) -> None:
    if len(vectors) != count:
        raise ValueError(f"{len(vectors)} {what} but {count} labels; each embedding needs one")
