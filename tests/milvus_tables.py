"""Vectors for the tests of the back end milvus, and the check against exact search."""

import json

import numpy as np

from assay.index.backends import StoredVectors
from assay.index.milvus_client import RECORD
from assay.index.scan import Scan, completed
from assay.index.scoring import prepare, score_candidates


def clusters(count, dim, seed=0):
    """Return vectors in clusters of about 50."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 50), dim))
    of = rng.integers(0, len(centres), count)
    return (centres[of] + 0.5 * rng.standard_normal((count, dim))).astype(np.float32)


def stored(count, dim, similarity):
    """Return vectors as an index stores them."""
    return StoredVectors(prepare(clusters(count, dim), similarity), similarity)


def queries_near(vectors, count, seed=1):
    """Return queries close to stored vectors, prepared as they are."""
    rng = np.random.default_rng(seed)
    rows = vectors.read(rng.integers(0, len(vectors), count))
    if vectors.similarity == "hamming":
        return rows ^ (1 << rng.integers(0, 8, rows.shape)).astype(np.uint8)
    noise = 0.05 * rng.standard_normal(rows.shape).astype(np.float32)
    return prepare(rows + noise, vectors.similarity)


def masks(count, seed=2):
    """Return filters: most rows, half of them, a region, few, one, none."""
    rng = np.random.default_rng(seed)
    for share in (0.99, 0.6, 0.02):
        yield rng.random(count) < share
    yield np.arange(count) < 0.7 * count
    yield np.arange(count) == 17
    yield np.zeros(count, dtype=bool)


def check_like_exact(opened, vectors, queries, allowed, k=10):
    """Check that a search finds the matches of exact search, ties at the end aside."""
    k = min(k, len(vectors) if allowed is None else int(allowed.sum()))
    found = opened.candidates(queries, k, allowed, opened.efforts[-1])
    found = completed(found, queries, k, Scan(vectors), allowed)
    truth = Scan(vectors).nearest(queries, k, allowed)
    if allowed is not None:
        assert allowed[found[found >= 0]].all(), "a row that is not allowed came back"
    for row in found:
        row = row[row >= 0]
        assert len(set(row.tolist())) == len(row), "a row came back twice"
    rows, scores = score_candidates(vectors, queries, found, k)
    true_rows, true_scores = score_candidates(vectors, queries, truth, k)
    np.testing.assert_array_equal(scores, true_scores)
    for row, true_row, score in zip(rows, true_rows, scores, strict=True):
        sure = score > score[-1] if len(score) else score  # the last may tie with rows beyond k
        assert row[sure.astype(bool)].tolist() == true_row[sure.astype(bool)].tolist()


def collection_of(folder):
    """Return the name of the collection of a structure."""
    return json.loads((folder / RECORD).read_text())["collection"]
