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

    It is reached where the recall less its standard error is as wanted. Where no effort reaches it,
    the recall is that of the largest.

    Recall@10 is over new queries: sampled rows, each moved in a random direction by its distance to
    its nearest row that is no near copy. Near copies, as images that were encoded again have them,
    are up to half as far away as the farthest of its 10 nearest rows. The row itself and its near
    copies do not count, since the query lies nearest to them, and they are easier to find than the
    neighbours of a new query. A row counts as found where its score reaches the exact tenth, so
    that rows at the same score are as good as each other.

    Measured against 600 held-out queries (stated, held out, at the effort where the latter is
    nearest to 0.95; 12,000 x 32 by ivfpq, 30,000 x 32 by hnsw with 8 links):

                               ivfpq           hnsw
        clusters               0.939, 0.946    0.866, 0.953
        with twins             0.951, 0.946    0.818, 0.939
        with 3 near copies     0.964, 0.933    0.874, 0.931
        random                 0.895, 0.885    0.949, 0.940
        random, with twins     0.923, 0.908    0.959, 0.952

    Moved by the distance to the nearest other row, with all rows counted, it was up to 0.03 too
    high with twins, and 0.06 with 3 near copies.

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
    moved, copies = _moved(scan, stored, alive, draw)
    k = min(K, len(rows))
    exact_SK = scan.nearest(moved, k, alive)
    least_S = score_pairs(vectors, moved, np.arange(len(moved)), exact_SK[:, -1])
    wanted_S = _others(exact_SK, np.ones(exact_SK.shape, dtype=np.bool_), copies)
    efforts: Sequence[int | None] = backend.efforts or (None,)
    for number, effort in enumerate(efforts):
        rows_SK, scores_SK = nearest_by(backend, scan, moved, k, alive, effort)
        found_S = _others(rows_SK, scores_SK >= least_S[:, None], copies)
        recall, error = _mean(np.minimum(found_S, wanted_S), wanted_S)
        progress(STAGE, number + 1, len(efforts) + 1)
        if recall - error >= wanted:
            break
    own_S = score_pairs(vectors, stored, np.arange(len(sample_S)), sample_S)
    itself_S = nearest_by(backend, scan, stored, k, alive, effort)[1][:, 0] >= own_S
    progress(STAGE, len(efforts) + 1, len(efforts) + 1)
    return Quality(recall, float(itself_S.mean()), len(sample_S), effort)


def _moved(
    scan: Scan, stored: NDArray[Any], alive: Mask | None, draw: np.random.Generator
) -> tuple[NDArray[Any], list[Rows]]:
    """Return rows that were moved in a random direction by the distance to their nearest row that
    is no near copy, and the near copies of each, itself among them.
    """
    vectors = scan.vectors
    near_SK: Rows = scan.nearest(stored, K + 1, alive)
    if vectors.similarity == "hamming":
        bits = np.unpackbits(stored, axis=1)
        other_SK = np.unpackbits(vectors.rows[near_SK], axis=2) != bits[:, None]
        away_SK = other_SK.sum(axis=2).astype(np.float64)
    else:
        gap_SKD = np.stack([vectors.read(near_S) for near_S in near_SK]) - stored[:, None]
        away_SK = np.sqrt(np.square(gap_SKD, dtype=np.float64).sum(axis=2))
    is_copy_SK = away_SK <= away_SK.max(axis=1, keepdims=True) / 2
    copies = [rows[are] for rows, are in zip(near_SK, is_copy_SK, strict=True)]
    least_S = np.where(is_copy_SK, np.inf, away_SK).min(axis=1)
    away_S = np.where(np.isfinite(least_S), least_S, 0)  # all are equal, or there is no other
    if vectors.similarity == "hamming":
        turned = draw.random(bits.shape).argsort(axis=1) < away_S[:, None]
        return np.packbits(bits ^ turned, axis=1), copies
    step_SD = draw.standard_normal(stored.shape)
    step_SD *= (away_S / np.linalg.norm(step_SD, axis=1))[:, None]
    return prepare(stored + step_SD, vectors.similarity), copies


def _others(rows_SK: Rows, chosen_SK: Mask, copies: Sequence[Rows]) -> Scores:
    """Return how many chosen rows of each query are no near copies of the row it comes from."""
    pairs = zip(rows_SK, chosen_SK, copies, strict=True)
    return np.array(
        [np.isin(rows[own], near, invert=True).sum() for rows, own, near in pairs], float
    )


def _mean(found_S: Scores, wanted_S: Scores) -> tuple[float, float]:
    """Return the mean share of wanted rows that were found, with its standard error.

    Queries of which no row is wanted do not count; without any, everything was found.
    """
    share_S = found_S[wanted_S > 0] / wanted_S[wanted_S > 0]
    if not len(share_S):
        return 1.0, 0.0
    return float(share_S.mean()), float(share_S.std() / np.sqrt(len(share_S)))
