"""How well a search by a back end finds what exact search finds, measured after each build.

A search is that of `nearest_by`: exact for queries for which a back end finds too few rows.

Shapes: S sampled rows, K matches, D dims, B bytes of packed bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.index.scan import Scan, nearest_by
from assay.index.scoring import Scores, prepare, score_pairs
from assay.index.vectors import Mask, Rows, StoredVectors
from assay.progress import Progress, silent
from assay.records.codec import Record

if TYPE_CHECKING:
    from assay.index.backends import Backend

WANTED = 0.95
"""Recall that is good enough, so that a search need not try harder."""

QUERIES, K = 1000, 10

STAGE = "measuring recall"


@dataclass(frozen=True)
class Quality(Record):
    """The recall of a back end, as measured when it was built.

    Args:
        recall_at_10: share of the 10 exact nearest rows that it finds.
        finds_itself: share of the stored rows that it finds first, or at the same score as the
            first, when they are the query.
        queries: stored rows that were searched for.
        effort: how hard a search tries, of the back end's `efforts`; None: it has no choice.
    """

    recall_at_10: float
    finds_itself: float
    queries: int
    effort: int | None


def measure(
    backend: "Backend",
    vectors: StoredVectors,
    alive: Mask | None,
    *,
    wanted: float = WANTED,
    queries: int = QUERIES,
    seed: int = 0,
    progress: Progress = silent,
) -> Quality:
    """Return the recall of an opened back end at the least effort that reaches the wanted recall.

    Where no effort reaches it, the recall is that of the largest.

    Recall@10 is over new queries: sampled rows, each moved in a random direction by its distance to
    its nearest other row. A stored row itself is easier to find, and so are its neighbours: a graph
    has links to it and from it. Compared with queries that were held out (30,000 x 128, links 16,
    efforts 16 to 256): on clustered vectors the recall of moved rows was right within 0.005, that
    of rows as they are was up to 0.03 too high; on random vectors it was too high by 0.05 to 0.14,
    that of rows as they are by 0.06 to 0.38. A row counts as found where its score reaches the
    exact tenth, so that rows at the same score are as good as each other.

    `finds_itself` is over the sampled rows as they are.

    Args:
        backend: the back end.
        vectors: the stored vectors.
        alive: which rows may be found; None: all.
        wanted: the recall that is good enough.
        queries: most rows that are sampled.
        seed: of the sample and the directions.
        progress: called with the stage, the searches done and their total.
    """
    rows = np.arange(len(vectors)) if alive is None else np.flatnonzero(alive)
    if not len(rows):
        return Quality(1.0, 1.0, 0, backend.efforts[0] if backend.efforts else None)
    draw = np.random.default_rng(seed)
    sample_S = np.sort(draw.choice(rows, min(queries, len(rows)), replace=False))
    scan = Scan(vectors)
    stored = vectors.read(sample_S)
    moved = _moved(scan, stored, alive, draw)
    k = min(K, len(rows))
    exact = scan.nearest(moved, k, alive)[:, -1]
    least_S = score_pairs(vectors, moved, np.arange(len(moved)), exact)
    efforts: Sequence[int | None] = backend.efforts or (None,)
    for number, effort in enumerate(efforts):
        scores_SK = nearest_by(backend, scan, moved, k, alive, effort)[1]
        recall = float((scores_SK >= least_S[:, None]).mean())
        progress(STAGE, number + 1, len(efforts) + 1)
        if recall >= wanted:
            break
    own_S = score_pairs(vectors, stored, np.arange(len(sample_S)), sample_S)
    itself_S = nearest_by(backend, scan, stored, k, alive, effort)[1][:, 0] >= own_S
    progress(STAGE, len(efforts) + 1, len(efforts) + 1)
    return Quality(recall, float(itself_S.mean()), len(sample_S), effort)


def _moved(
    scan: Scan, stored: NDArray[Any], alive: Mask | None, draw: np.random.Generator
) -> NDArray[Any]:
    """Return rows that were moved in a random direction by the distance to their nearest other."""
    vectors = scan.vectors
    near_SK: Rows = scan.nearest(stored, K + 1, alive)
    if vectors.similarity == "hamming":
        bits = np.unpackbits(stored, axis=1)
        other_SK = np.unpackbits(vectors.rows[near_SK], axis=2) != bits[:, None]
        away_S = _nearest_apart(other_SK.sum(axis=2).astype(np.float64))
        turned = draw.random(bits.shape).argsort(axis=1) < away_S[:, None]
        return np.packbits(bits ^ turned, axis=1)
    gap_SKD = np.stack([vectors.read(near_S) for near_S in near_SK]) - stored[:, None]
    away_S = _nearest_apart(np.sqrt(np.square(gap_SKD, dtype=np.float64).sum(axis=2)))
    step_SD = draw.standard_normal(stored.shape)
    step_SD *= (away_S / np.linalg.norm(step_SD, axis=1))[:, None]
    return prepare(stored + step_SD, vectors.similarity)


def _nearest_apart(away_SK: Scores) -> Scores:
    """Return the least distance (S,) that is not 0, or 0 where all are."""
    least_S = np.where(away_SK > 0, away_SK, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least_S), least_S, 0)
