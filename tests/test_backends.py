"""Back ends of an index: exact search is that of a loop in double precision, approximate search
never returns what it may not, and a match has one score whichever back end found it.
"""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.index import scan
from assay.index.approximate import write_structure
from assay.index.backends import Earlier, StoredVectors, backends, hnsw
from assay.index.backends.hnsw import Hnsw, _unreachable
from assay.index.backends.ivfpq import FEW, IvfPq
from assay.index.index import Index
from assay.index.manifest import DamagedIndex
from assay.index.recall import Quality, measure
from assay.index.scan import Scan, completed, nearest_by
from assay.index.scoring import prepare, score_candidates, score_pairs
from assay.progress import silent
from indexes import index_of
from loops import for_each

SIMILARITIES = ["cosine", "euclidean", "hamming"]
FLOATS = ["cosine", "euclidean"]
APPROXIMATE = ["hnsw", "ivfpq"]
LOCAL = ["exact", "hnsw", "ivfpq"]
every_similarity = for_each("similarity", SIMILARITIES)
ROWS = {"hnsw": 3_000, "ivfpq": FEW}
"""Rows that are enough for a back end not to search exactly."""

few_examples = settings(max_examples=15, deadline=None)


def numbers(count, dim=12, seed=0):
    """Return vectors with duplicates, and a zero vector where there are more than two."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(count, dim))
    z[draw.random(count) < 0.3] = z[:1]
    z[2:3] = 0
    return z.astype(np.float32)


def clustered(count, dim=16, seed=0, classes=400):
    """Return unit vectors around class centres."""
    centres = np.random.default_rng(9).normal(size=(classes, dim))
    draw = np.random.default_rng(seed)
    z = centres[draw.integers(0, classes, count)] + 0.5 * draw.normal(size=(count, dim))
    return prepare(z, "cosine")


def stored(z, similarity, dtype=np.float32):
    """Return vectors as an index stores them."""
    return StoredVectors(prepare(z, similarity, dtype), similarity)


def slow_score(query, row, similarity):
    """Return the score of one pair, one number at a time."""
    if similarity == "hamming":
        return -sum((a ^ b).bit_count() for a, b in zip(query.tolist(), row.tolist(), strict=True))
    pairs = list(zip(map(float, query), map(float, row), strict=True))
    if similarity == "cosine":
        return sum(a * b for a, b in pairs)
    return -(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def slow_search(vectors, queries, k, allowed=None):
    """Return the k nearest by score, ties by lower row, from a loop over all rows."""
    rows = [row for row in range(len(vectors)) if allowed is None or allowed[row]]
    found = []
    for query in queries:
        scored = [(-round(slow_score(query, vectors.read(np.array([row]))[0],
                                     vectors.similarity), 12), row) for row in rows]  # fmt: skip
        found.append([row for _, row in sorted(scored)[:k]])
    return np.array(found, dtype=np.int64).reshape(len(queries), min(k, len(rows)))


def opened(folder, name, vectors, alive=None, earlier=None, **given_settings):
    """Build a structure in a folder and open it."""
    folder.mkdir(exist_ok=True)
    backend = backends[name](**given_settings)
    backend.build(folder, vectors, alive, earlier, silent)
    return backend.open(folder, vectors)


def scored(backend, vectors, queries, k, allowed=None, effort=None):
    """Search as an index does, and return rows and scores."""
    k = min(k, len(vectors) if allowed is None else int(allowed.sum()))
    return nearest_by(backend, Scan(vectors), queries, k, allowed, effort)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Open back ends over vectors that are enough for their structures."""
    vectors = StoredVectors(clustered(12_000), "cosine")
    folder = tmp_path_factory.mktemp("structures")
    return vectors, {name: opened(folder / name, name, vectors) for name in LOCAL}


# --- Exact search ---


@every_similarity
@for_each("dtype", [np.float32, np.float16])
def test_exact_search_is_that_of_a_loop(similarity, dtype):
    z = numbers(60)
    vectors = stored(z, similarity, dtype)
    queries = prepare(np.concatenate([z[:4], numbers(2, seed=1)]), similarity)
    for k in (1, 3, 59, 60, 100):
        assert (Scan(vectors).nearest(queries, k, None) == slow_search(vectors, queries, k)).all()


@every_similarity
@given(seed=st.integers(0, 2**31), k=st.integers(1, 12), share=st.floats(0, 1))
@few_examples
def test_exact_search_under_a_filter_is_that_of_a_loop(similarity, seed, k, share):
    z = numbers(40, dim=9, seed=seed)
    vectors, queries = stored(z, similarity), prepare(z[:3], similarity)
    allowed = np.random.default_rng(seed).random(40) < share
    found = Scan(vectors).nearest(queries, k, allowed)
    assert (found == slow_search(vectors, queries, k, allowed)).all()


@every_similarity
@for_each("count", [1, 40])
@for_each("share", [None, 0.01, 0.4, 0.9])
def test_blocks_and_merges_change_nothing(similarity, count, share):
    z = numbers(3000, dim=24)
    vectors, queries = stored(z, similarity), prepare(numbers(count, 24, seed=3), similarity)
    allowed = None if share is None else np.random.default_rng(0).random(3000) < share
    there = np.arange(3000) if allowed is None else np.flatnonzero(allowed)
    every = np.tile(there, (count, 1))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "LEAST_ROWS": 64,
            "MOST_ROWS": 64,
            "PRODUCTS": 64,
            "QUERIES": 7,
        }.items():
            patch.setattr(scan, name, value)
        for k in (1, 10, 200):
            found = Scan(vectors).nearest(queries, k, allowed)
            wanted = score_candidates(vectors, queries, every, min(k, len(there)))[0]
            assert (found == wanted).all()


@for_each("similarity", FLOATS)
def test_rows_closer_than_single_precision_can_tell_are_in_exact_order(similarity):
    draw = np.random.default_rng(0)
    z = draw.normal(size=(1, 64)) + 1e-7 * draw.normal(size=(3000, 64))
    vectors = stored(z, similarity)
    queries = prepare(z[:5], similarity)
    wanted = score_candidates(vectors, queries, np.tile(np.arange(3000), (5, 1)), 10)[0]
    assert (Scan(vectors).nearest(queries, 10, None) == wanted).all()


@every_similarity
def test_equal_rows_come_by_lower_row(similarity):
    vectors = stored(np.ones((2500, 8)), similarity)
    found = Scan(vectors).nearest(vectors.read(slice(0, 1)), 7, None)
    assert found.tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_a_zero_query_is_as_near_to_every_row():
    vectors = stored(numbers(50), "cosine")
    found = Scan(vectors).nearest(np.zeros((1, 12), dtype=np.float32), 5, None)
    rows, scores = score_candidates(vectors, np.zeros((1, 12), dtype=np.float32), found, 5)
    assert rows.tolist() == [[0, 1, 2, 3, 4]]
    assert scores.tolist() == [[0, 0, 0, 0, 0]]


@every_similarity
def test_nothing_is_found_where_nothing_is_stored_or_allowed(similarity):
    empty, vectors = stored(np.empty((0, 8)), similarity), stored(numbers(5, 8), similarity)
    queries = vectors.read(slice(0, 2))
    assert Scan(empty).nearest(queries, 3, None).shape == (2, 0)
    assert Scan(vectors).nearest(queries, 3, np.zeros(5, dtype=bool)).shape == (2, 0)
    assert Scan(vectors).nearest(queries[:0], 3, None).shape == (0, 3)


def test_every_number_of_16_bits_is_read_as_it_is():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].reshape(-1, 2)
    read = StoredVectors(finite, "euclidean").read(slice(0, len(finite)))
    assert (read.view(np.uint32) == finite.astype(np.float32).view(np.uint32)).all()


# --- Scores ---


@every_similarity
def test_scores_are_those_of_a_loop(similarity):
    z = numbers(20)
    vectors, queries = stored(z, similarity), prepare(z[:3], similarity)
    every = np.tile(np.arange(20), (3, 1))
    rows, scores = score_candidates(vectors, queries, every, 20)
    for query in range(3):
        slow = [
            slow_score(queries[query], vectors.read(np.array([row]))[0], similarity)
            for row in rows[query]
        ]
        assert scores[query] == pytest.approx(slow, abs=1e-12)


@every_similarity
@for_each("dim", [1, 7, 128, 129, 1000])
def test_the_score_of_a_pair_is_the_same_bits_whatever_else_is_scored(similarity, dim):
    draw = np.random.default_rng(dim)
    vectors = stored(draw.normal(size=(300, dim)), similarity)
    queries = prepare(draw.normal(size=(9, dim)), similarity)
    every = np.tile(np.arange(300), (9, 1))
    rows, scores = score_candidates(vectors, queries, every, 300)
    for query, place in ((0, 0), (4, 17), (8, 299)):
        alone = score_pairs(
            vectors, queries[query : query + 1], np.zeros(1, int), rows[query, [place]]
        )
        assert alone[0] == scores[query, place]
        few = score_candidates(vectors, queries[query:], rows[query:, place : place + 2], 1)
        assert few[1][0, 0] == scores[query, place]


def test_candidates_that_are_missing_are_filled_up_with_none():
    vectors = stored(np.eye(3), "euclidean")
    rows, scores = score_candidates(
        vectors, vectors.read(slice(0, 2)), np.array([[-1, 2, -1], [-1, -1, -1]]), 2
    )
    assert rows.tolist() == [[2, -1], [-1, -1]]
    assert scores.tolist() == [[-(2**0.5), -np.inf], [-np.inf, -np.inf]]


def test_prepared_vectors_have_unit_length_whatever_their_scale():
    z = np.array([[3e-300, 4e-300], [3e300, 4e300], [3.0, 4.0], [0.0, 0.0]])
    assert prepare(z, "cosine").tolist() == np.float32([[0.6, 0.8]] * 3 + [[0, 0]]).tolist()
    assert prepare(z[2:], "cosine", np.float16).dtype == np.float16


@for_each("similarity, bad", [("cosine", np.nan), ("euclidean", np.inf), ("euclidean", 1e16)])
def test_numbers_that_cannot_be_compared_are_refused_with_their_row(similarity, bad):
    with pytest.raises(BadInput, match="vector 1 holds numbers that cannot be compared"):
        prepare(np.array([[1.0, 2.0], [bad, 0.0]]), similarity)


# --- All back ends ---


@for_each("name", [*LOCAL, "bits"])
@for_each("count", [0, 1, 5])
def test_few_rows_are_all_found(name, count, tmp_path):
    similarity = "hamming" if name == "bits" else "cosine"
    vectors = stored(numbers(count), similarity)
    backend = opened(tmp_path / f"{name}{count}", name, vectors)
    rows, scores = scored(backend, vectors, prepare(numbers(2), similarity), 10)
    assert rows.shape == scores.shape == (2, count)
    assert sorted(rows[0]) == list(range(count))


@pytest.mark.parametrize("name", LOCAL)
@for_each("allowed_rows", [1, 9, 100, 3000, 11_999])
def test_a_filter_leaves_k_matches_and_no_other_rows(name, allowed_rows, large):
    vectors, by_name = large
    allowed = np.zeros(len(vectors), dtype=bool)
    allowed[np.random.default_rng(1).choice(len(vectors), allowed_rows, replace=False)] = True
    queries = clustered(20, seed=1)
    for k in (1, 10, 50):
        for effort in by_name[name].efforts[:2] or (None,):
            rows, _ = scored(by_name[name], vectors, queries, k, allowed, effort)
            assert ((rows >= 0).sum(axis=1) == min(k, allowed_rows)).all()
            assert allowed[rows[rows >= 0]].all()
            assert all(len(set(own[own >= 0])) == (own >= 0).sum() for own in rows)


def test_queries_whose_lists_hold_too_few_allowed_rows_are_searched_exactly(large):
    vectors, by_name = large
    query = clustered(1, seed=1)
    near = by_name["ivfpq"].candidates(query, 10, None, 4)
    allowed = np.ones(len(vectors), dtype=bool)
    allowed[near[near >= 0]] = False
    assert (by_name["ivfpq"].candidates(query, 10, allowed, 1) >= 0).sum() < 10
    found = scored(by_name["ivfpq"], vectors, query, 10, allowed, 1)[0]
    assert (found == scored(by_name["exact"], vectors, query, 10, allowed)[0]).all()


def test_only_queries_with_too_few_candidates_are_searched_exactly():
    vectors = stored(clustered(30), "cosine")
    queries = vectors.read(slice(0, 3))
    found = np.array([[9, 8, 7], [5, -1, -1], [-1, -1, -1]])
    exact = Scan(vectors).nearest(queries, 2, None)
    assert completed(found, queries, 2, Scan(vectors), None).tolist() == [
        [9, 8, 7],
        [*exact[1], -1],
        [*exact[2], -1],
    ]
    enough = completed(found[:, :0], queries, 2, Scan(vectors), None)
    assert (enough == exact).all()


@pytest.mark.parametrize("name", LOCAL)
def test_portions_of_queries_change_nothing_and_bound_what_is_held(name, large, monkeypatch):
    vectors, by_name = large
    queries, seen = clustered(60, seed=1), []
    effort = by_name[name].efforts[1] if by_name[name].efforts else None
    whole = scored(by_name[name], vectors, queries, 10, None, effort)
    monkeypatch.setattr(scan, "PLACES", 70)
    kind = type(by_name[name])
    plain = kind.candidates

    def watched(self, some, k, allowed, effort):
        seen.append(len(some))
        return plain(self, some, k, allowed, effort)

    monkeypatch.setattr(kind, "candidates", watched)
    parts = scored(by_name[name], vectors, queries, 10, None, effort)
    assert max(seen) == 7 and sum(seen) == 60
    assert (parts[0] == whole[0]).all() and (parts[1] == whole[1]).all()


@pytest.mark.parametrize("name", LOCAL)
def test_nothing_is_found_where_no_row_is_allowed(name, large):
    vectors, by_name = large
    none = np.zeros(len(vectors), dtype=bool)
    assert (by_name[name].candidates(clustered(2), 5, none, None) == -1).all()


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_selective_filter_is_searched_exactly(name, large):
    vectors, by_name = large
    allowed = np.random.default_rng(2).random(len(vectors)) < 0.005
    queries = clustered(20, seed=1)
    found = scored(by_name[name], vectors, queries, 10, allowed, by_name[name].efforts[0])
    exact = scored(by_name["exact"], vectors, queries, 10, allowed)
    assert (found[0] == exact[0]).all()


@pytest.mark.parametrize("name", APPROXIMATE)
def test_recall_is_high_and_rises_with_effort(name, large):
    vectors, by_name = large
    queries = clustered(100, seed=1)
    exact = scored(by_name["exact"], vectors, queries, 10)[1][:, 9:]
    recall = [
        (scored(by_name[name], vectors, queries, 10, None, effort)[1] >= exact).mean()
        for effort in by_name[name].efforts
    ]
    assert recall[-1] > 0.95
    assert recall[0] < recall[-1]


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_match_has_the_same_score_bits_as_by_exact_search(name, large):
    vectors, by_name = large
    queries = clustered(30, seed=1)
    every = {
        (query, row): score
        for query, (rows, scores) in enumerate(
            zip(*scored(by_name["exact"], vectors, queries, 50), strict=True)
        )
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
    }
    rows, scores = scored(by_name[name], vectors, queries, 10, None, by_name[name].efforts[1])
    both = [
        (scores[query, place], every[query, row])
        for (query, place), row in np.ndenumerate(rows)
        if (query, row) in every
    ]
    assert len(both) > 100
    assert all(ours == exact for ours, exact in both)


@pytest.mark.parametrize("name", LOCAL)
def test_two_threads_may_search_at_once(name, large):
    vectors, by_name = large
    queries = clustered(60, seed=1)
    effort = by_name[name].efforts[1] if by_name[name].efforts else None
    alone = scored(by_name[name], vectors, queries, 10, None, effort)[0]
    found = {}

    def search(number):
        found[number] = [
            scored(by_name[name], vectors, queries[row : row + 1], 10, None, effort)[0]
            for row in range(60)
        ]

    threads = [threading.Thread(target=search, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((np.concatenate(found[number]) == alone).all() for number in range(2))


@for_each("similarity", FLOATS)
@for_each("dtype", [np.float32, np.float16])
@for_each("name", APPROXIMATE)
def test_recall_holds_by_every_similarity_and_precision(similarity, dtype, name, tmp_path):
    vectors = stored(
        clustered(ROWS[name], dim=8) * (1 if similarity == "cosine" else 3), similarity, dtype
    )
    backend = opened(tmp_path / f"{name}-{similarity}-{np.dtype(dtype)}", name, vectors)
    quality = measure(backend, vectors, None, queries=100)
    assert quality.recall_at_10 > 0.9
    assert quality.finds_itself > 0.98


@for_each("name", APPROXIMATE)
def test_rows_that_are_added_are_found_as_if_built_at_once(name, tmp_path):
    count = ROWS[name]
    z = clustered(count + 600)
    first, both = StoredVectors(z[:count], "cosine"), StoredVectors(z, "cosine")
    opened(tmp_path / f"{name}1", name, first).close()
    earlier = Earlier(tmp_path / f"{name}1", count)
    grown = opened(tmp_path / f"{name}2", name, both, earlier=earlier)
    at_once = opened(tmp_path / f"{name}3", name, both)
    effort = grown.efforts[3]
    own = [
        scored(grown, both, z[row : row + 1], 1, None, effort)[0][0, 0]
        for row in range(count, count + 200)
    ]
    assert np.mean(np.array(own) == np.arange(count, count + 200)) > 0.98
    at_most = 0.02 + measure(at_once, both, None, queries=200, wanted=0.9).recall_at_10
    assert measure(grown, both, None, queries=200, wanted=0.9).recall_at_10 > at_most - 0.05


@for_each("name", APPROXIMATE)
def test_the_same_rows_make_the_same_files(name, tmp_path):
    vectors = StoredVectors(clustered(ROWS[name]), "cosine")
    for number in range(2):
        opened(tmp_path / f"{name}{number}", name, vectors).close()
    files = [sorted((tmp_path / f"{name}{number}").iterdir()) for number in range(2)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


# --- The graph ---


def test_copies_of_a_row_are_found_with_it_and_do_not_hide_the_others(tmp_path):
    z = clustered(6000)
    z[1000:4000] = z[7]
    vectors = StoredVectors(z, "cosine")
    graph = opened(tmp_path / "graph", "hnsw", vectors)
    rows, _ = scored(graph, vectors, z[7:8], 5, None, 16)
    assert rows.tolist() == [[7, 1000, 1001, 1002, 1003]]
    allowed = np.ones(6000, dtype=bool)
    allowed[[7, 1000]] = False
    assert scored(graph, vectors, z[7:8], 3, allowed, 16)[0].tolist() == [[1001, 1002, 1003]]
    assert measure(graph, vectors, None).finds_itself > 0.98


def test_copies_that_are_added_later_belong_to_the_first(tmp_path):
    z = np.concatenate([clustered(5000), clustered(5000)[:50]])
    first, both = StoredVectors(z[:5000], "cosine"), StoredVectors(z, "cosine")
    opened(tmp_path / "first", "hnsw", first).close()
    grown = opened(tmp_path / "both", "hnsw", both, earlier=Earlier(tmp_path / "first", 5000))
    rows, _ = scored(grown, both, z[:50], 2, None, 64)
    assert (rows == np.stack([np.arange(50), np.arange(5000, 5050)], axis=1)).mean() > 0.98


def test_rows_that_no_walk_reaches_are_compared_too(tmp_path):
    import faiss

    vectors = StoredVectors(clustered(5000), "cosine")
    opened(tmp_path / "graph", "hnsw", vectors).close()
    path = tmp_path / "graph" / "graph.faiss"
    graph = faiss.read_index(str(path))
    links = faiss.vector_to_array(graph.hnsw.neighbors)
    levels = faiss.vector_to_array(graph.hnsw.levels)
    lost = np.flatnonzero(levels == 1)[:40]
    links[np.isin(links, lost)] = -1
    faiss.copy_array_to_vector(links, graph.hnsw.neighbors)
    assert set(lost) <= set(_unreachable(graph))
    write_structure(graph, path)
    np.save(tmp_path / "graph" / "unreachable.npy", _unreachable(graph))
    found = Hnsw().open(tmp_path / "graph", vectors)
    rows, _ = scored(found, vectors, vectors.rows[lost], 1, None, 16)
    assert rows[:, 0].tolist() == lost.tolist()
    hidden = np.ones(5000, dtype=bool)
    hidden[lost] = False
    assert not np.isin(scored(found, vectors, vectors.rows[lost], 1, hidden, 16)[0], lost).any()


def test_copies_of_rows_that_no_walk_reaches_are_found_too(tmp_path, monkeypatch):
    z = clustered(5000)
    z[4990:] = z[7]
    vectors = StoredVectors(z, "cosine")
    monkeypatch.setattr(hnsw, "_unreachable", lambda graph: np.array([7]))
    graph = opened(tmp_path / "graph", "hnsw", vectors)
    assert np.load(tmp_path / "graph" / "unreachable.npy").tolist() == [7, *range(4990, 5000)]
    found = graph.candidates(z[7:8], 20, None, 16)[0]
    assert {7, *range(4990, 5000)} <= set(found.tolist())
    assert len(set(found[found >= 0])) == (found >= 0).sum()


def test_candidates_stay_few_where_every_row_has_many_copies(tmp_path):
    z = np.repeat(clustered(2500), 4, axis=0)
    vectors = StoredVectors(z, "cosine")
    graph = opened(tmp_path / "graph", "hnsw", vectors)
    assert graph.candidates(z[:3], 200, None, 1).shape[1] <= 3 * 200
    exact = Scan(vectors).nearest(z[:3], 200, None)
    found = scored(graph, vectors, z[:3], 200, None, 1)[0]
    assert (
        np.mean([len(np.intersect1d(a, b)) / 200 for a, b in zip(found, exact, strict=True)]) > 0.9
    )


# --- Recall ---


def test_exact_search_has_full_recall_by_every_similarity():
    for similarity in SIMILARITIES:
        vectors = stored(numbers(300, dim=32), similarity)
        found = measure(backends["exact"]().open(Path(), vectors), vectors, None, queries=50)
        assert found == Quality(1.0, 1.0, 50, None)


def test_recall_takes_the_least_effort_that_is_enough(large):
    vectors, by_name = large
    hnsw = by_name["hnsw"]
    assert measure(hnsw, vectors, None, wanted=0.0, queries=50).effort == hnsw.efforts[0]
    reached = measure(hnsw, vectors, None, wanted=0.95, queries=50)
    assert reached.recall_at_10 >= 0.95
    assert measure(hnsw, vectors, None, wanted=2.0, queries=50).effort == hnsw.efforts[-1]


def test_recall_of_a_back_end_that_finds_other_rows_is_zero():
    class Wrong(type(backends["exact"]())):
        def candidates(self, queries, k, allowed, effort):
            return super().candidates(-queries, k, allowed, effort)

    vectors = stored(clustered(100), "cosine")
    found = measure(Wrong().open(Path(), vectors), vectors, None, queries=20)
    assert (found.recall_at_10, found.finds_itself) == (0, 0)


def test_recall_is_that_of_a_search_which_is_exact_where_too_few_rows_are_found():
    class Blind(type(backends["exact"]())):
        def candidates(self, queries, k, allowed, effort):
            return np.full((len(queries), k - 1), -1)

    vectors = stored(clustered(100), "cosine")
    found = measure(Blind().open(Path(), vectors), vectors, None, queries=20)
    assert found == Quality(1.0, 1.0, 20, None)


def test_recall_is_over_rows_that_are_alive(large):
    vectors, by_name = large
    alive = np.zeros(len(vectors), dtype=bool)
    alive[:4] = True
    assert measure(by_name["hnsw"], vectors, alive).queries == 4
    assert measure(by_name["hnsw"], vectors, ~alive & False).queries == 0


def test_recall_is_not_stated_too_high_where_images_have_near_copies(tmp_path):
    draw = np.random.default_rng(0)
    z = draw.normal(size=(12_000, 16))
    z[6_000:] = z[:6_000] + 1e-3 * draw.normal(size=(6_000, 16))
    vectors = stored(z, "cosine")
    backend = opened(tmp_path / "lists", "ivfpq", vectors)
    new = prepare(draw.normal(size=(500, 16)), "cosine")
    exact = scored(backends["exact"]().open(Path(), vectors), vectors, new, 10)[1][:, 9:]
    for wanted in (0.5, 0.7, 0.9):
        said = measure(backend, vectors, None, wanted=wanted)
        true = (scored(backend, vectors, new, 10, None, said.effort)[1] >= exact).mean()
        assert said.recall_at_10 >= wanted
        assert abs(said.recall_at_10 - true) < 0.04


def test_recall_where_all_rows_are_near_copies_is_full(tmp_path):
    z = np.ones((40, 16)) + 1e-4 * np.random.default_rng(0).normal(size=(40, 16))
    for rows in (np.ones((40, 16)), z, z[:1], z[:2]):
        vectors = stored(rows, "euclidean")
        found = measure(backends["exact"]().open(Path(), vectors), vectors, None)
        assert (found.recall_at_10, found.finds_itself) == (1, 1)


def test_the_wanted_recall_is_reached_by_more_than_the_luck_of_the_sample():
    class Chance(type(backends["exact"]())):
        efforts = (1, 2)

        def candidates(self, queries, k, allowed, effort):
            found = super().candidates(queries, k, allowed, effort)
            found[:: 2 if effort == 1 else len(found), :] = 0
            return found

    vectors = stored(clustered(300), "cosine")
    opened_one = Chance().open(Path(), vectors)
    share = measure(opened_one, vectors, None, wanted=0, queries=100)
    assert share.effort == 1 and 0.4 < share.recall_at_10 < 0.6
    just = measure(opened_one, vectors, None, wanted=share.recall_at_10, queries=100)
    assert just.effort == 2


# --- What is refused ---


@for_each("name", ["nodes.npy", "copies.npy", "unreachable.npy"])
@for_each("damage", ["remove", "cut", "empty"])
def test_damaged_lists_of_nodes_are_refused_with_their_file(name, damage, tmp_path):
    vectors = StoredVectors(clustered(300), "cosine")
    folder = tmp_path / f"{name}-{damage}"
    opened(folder, "hnsw", vectors).close()
    harm(folder / name, damage)
    with pytest.raises(BadInput, match=name):
        Hnsw().open(folder, vectors)


@for_each("name, file", [("hnsw", "graph.faiss"), ("ivfpq", "lists.faiss")])
@for_each("damage", ["remove", "empty"])
def test_a_structure_that_is_missing_or_empty_is_refused_with_its_file(
    name, file, damage, tmp_path
):
    vectors = StoredVectors(clustered(300), "cosine")
    folder = tmp_path / f"{name}-{damage}"
    opened(folder, name, vectors).close()
    harm(folder / file, damage)
    with pytest.raises(BadInput, match=file):
        backends[name]().open(folder, vectors)


@for_each("name, file", [("hnsw", "graph.faiss"), ("ivfpq", "lists.faiss")])
def test_a_structure_that_was_cut_short_is_refused_before_faiss_reads_it(name, file, tmp_path):
    """faiss would crash the process."""
    index_of(tmp_path / name, clustered(300), backend=name).close()
    (path,) = (tmp_path / name).rglob(file)
    harm(path, "cut")
    with pytest.raises(BadInput, match=file):
        Index.open(tmp_path / name)
    with pytest.raises(BadInput, match=file):  # a writer would extend it
        index_of(tmp_path / name, clustered(310), backend=name)


def harm(path, damage):
    """Remove a file, cut off its end or empty it."""
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -20])


@for_each("name", APPROXIMATE)
def test_a_structure_of_other_vectors_is_refused(name, tmp_path):
    vectors = StoredVectors(clustered(300), "cosine")
    opened(tmp_path / name, name, vectors).close()
    for other in (clustered(300, dim=8), clustered(250)):
        if name == "ivfpq" and other.shape[1] == 16:
            continue  # it has no rows of its own
        with pytest.raises(DamagedIndex, match="--rebuild"):
            backends[name]().open(tmp_path / name, StoredVectors(other, "cosine"))


# --- An index of a stranger ---


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Return vectors and the folder of their lists."""
    vectors, folder = StoredVectors(clustered(FEW), "cosine"), tmp_path_factory.mktemp("lists")
    opened(folder / "own", "ivfpq", vectors, lists=16).close()
    return vectors, folder / "own"


def refused(name, folder, vectors):
    """Check that a reader and a writer refuse a structure."""
    with pytest.raises(DamagedIndex, match=r"\.(faiss|npy).*--rebuild"):
        backends[name]().open(folder, vectors)
    more = StoredVectors(np.concatenate([vectors.rows, vectors.rows[:5]]), vectors.similarity)
    (folder / "next").mkdir(exist_ok=True)
    earlier = Earlier(folder, len(vectors))
    with pytest.raises(DamagedIndex, match=r"\.(faiss|npy).*--rebuild"):
        backends[name]().build(folder / "next", more, None, earlier, silent)


def test_lists_that_name_another_file_are_refused_and_the_file_is_left_alone(lists, tmp_path):
    import faiss

    vectors, folder = lists
    found = faiss.read_index(str(folder / "lists.faiss"))
    victim = tmp_path / "victim"
    outside = faiss.OnDiskInvertedLists(found.nlist, found.code_size, str(victim))
    for number in range(found.nlist):
        size = found.invlists.list_size(number)
        own = found.invlists.get_ids(number), found.invlists.get_codes(number)
        outside.add_entries(number, size, *own)
    found.replace_invlists(outside, False)
    faiss.write_index(found, str(tmp_path / "lists.faiss"))
    assert str(victim).encode() in (tmp_path / "lists.faiss").read_bytes()
    content = b"S" * victim.stat().st_size
    victim.write_bytes(content)
    refused("ivfpq", tmp_path, vectors)
    assert victim.read_bytes() == content


def test_a_structure_of_a_kind_that_is_not_built_is_refused(lists, tmp_path):
    import faiss

    vectors, folder = lists
    plain = faiss.IndexFlatIP(16)
    plain.add(vectors.rows)
    scalar = faiss.IndexIVFScalarQuantizer(plain, 16, 4, faiss.ScalarQuantizer.QT_8bit)
    scalar.train(vectors.rows)
    around = faiss.IndexIDMap(faiss.IndexFlatIP(16))
    around.add_with_ids(vectors.rows, np.arange(FEW))
    mapped = faiss.read_index(str(folder / "lists.faiss"))
    mapped.make_direct_map()
    for number, other in enumerate((plain, scalar, around, mapped)):
        for name, file in (("ivfpq", "lists.faiss"), ("hnsw", "graph.faiss")):
            place = tmp_path / f"{name}{number}"
            place.mkdir()
            if name == "hnsw":
                np.save(place / "nodes.npy", np.arange(FEW))
                np.save(place / "unreachable.npy", np.arange(0))
                np.save(place / "copies.npy", np.zeros((0, 2), dtype=np.int64))
            faiss.write_index(other, str(place / file))
            refused(name, place, vectors)


def test_lists_of_other_rows_are_refused(lists, tmp_path):
    import faiss

    vectors, folder = lists
    for row in (-1, FEW, 2**40, 7):
        found = faiss.read_index(str(folder / "lists.faiss"))
        ids = faiss.rev_swig_ptr(found.invlists.get_ids(3), found.invlists.list_size(3))
        ids[:2] = row  # 7 comes twice
        (tmp_path / str(row)).mkdir()
        faiss.write_index(found, str(tmp_path / str(row) / "lists.faiss"))
        refused("ivfpq", tmp_path / str(row), vectors)


@for_each("what", ["links", "levels", "offsets", "entry_point", "max_level", "shares", "upper"])
def test_a_graph_with_links_to_nowhere_is_refused(what, tmp_path):
    """faiss would read elsewhere in memory, or crash."""
    import faiss

    vectors = StoredVectors(clustered(2_000), "cosine")
    folder = tmp_path / what
    opened(folder, "hnsw", vectors, links=4).close()
    graph = faiss.read_index(str(folder / "graph.faiss"))
    inner = graph.hnsw
    if what in ("entry_point", "max_level"):
        setattr(inner, what, 2_000 if what == "entry_point" else 9)
    else:
        name = {"links": "neighbors", "upper": "neighbors", "shares": "assign_probas"}.get(
            what, what
        )
        numbers = faiss.vector_to_array(getattr(inner, name))
        levels = faiss.vector_to_array(inner.levels)
        if what == "upper":  # a link of an upper layer to a node that is not in it
            starts = faiss.vector_to_array(inner.offsets)[:-1][levels > 1]
            numbers[starts.astype(int) + inner.nb_neighbors(0)] = np.flatnonzero(levels == 1)[0]
        elif what == "links":
            numbers[numbers >= 0] = 2**30
        else:
            numbers = numbers[:-1] if what == "shares" else numbers + numbers.dtype.type(1)
        faiss.copy_array_to_vector(np.ascontiguousarray(numbers), getattr(inner, name))
    faiss.write_index(graph, str(folder / "graph.faiss"))
    refused("hnsw", folder, vectors)


@for_each("name, file", [("hnsw", "graph.faiss"), ("ivfpq", "lists.faiss")])
def test_bytes_that_are_no_structure_are_refused_or_harm_nobody(name, file, lists, tmp_path):
    vectors, folder = lists
    if name == "hnsw":
        vectors, folder = StoredVectors(clustered(400), "cosine"), tmp_path / "graph"
        opened(folder, name, vectors).close()
    whole = (folder / file).read_bytes()
    draw = np.random.default_rng(0)
    place = tmp_path / f"{name}-harmed"
    place.mkdir()
    for path in folder.glob("*.npy"):
        (place / path.name).write_bytes(path.read_bytes())
    texts = [b"", whole[:4], whole[:40], whole[:-1], whole + b"\0", draw.bytes(5_000)]
    texts += [whole[:4] + draw.bytes(9_000), b"ilod" * 3_000]
    for text in texts:
        (place / file).write_bytes(text)
        refused(name, place, vectors)
    for _ in range(60):  # one byte of the first 200, where all sizes are
        text = bytearray(whole)
        text[draw.integers(200)] ^= 1 << draw.integers(8)
        (place / file).write_bytes(text)
        try:
            found = backends[name]().open(place, vectors)
        except DamagedIndex:
            continue
        rows = scored(found, vectors, vectors.rows[:3], 5)[0]
        assert ((rows >= 0) & (rows < len(vectors))).all()


def test_lists_of_nodes_that_do_not_belong_together_are_refused(tmp_path):
    vectors = StoredVectors(np.repeat(clustered(150), 2, axis=0), "cosine")
    for number, (name, other) in enumerate([
        ("copies", [[300, 1]]), ("copies", [[299, 1]]), ("copies", [[5, 1], [4, 3]]),
        ("copies", [1, 2]), ("nodes", [*range(149), 0]), ("nodes", [[1]]),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        opened(folder, "hnsw", vectors).close()
        np.save(folder / f"{name}.npy", np.array(other))
        with pytest.raises(DamagedIndex, match=name):
            Hnsw().open(folder, vectors)


@for_each("name, setting, value", [
    ("hnsw", "links", 3), ("hnsw", "links", 2.5), ("hnsw", "links", True),
    ("hnsw", "construction", 0), ("ivfpq", "lists", -1), ("ivfpq", "codes", "8"),
])  # fmt: skip
def test_settings_out_of_bounds_are_refused(name, setting, value):
    with pytest.raises(BadInput, match=f"{setting}=.*whole number from"):
        backends[name](**{setting: value})


def test_codes_that_do_not_divide_the_dimensions_are_refused(tmp_path):
    with pytest.raises(BadInput, match="codes=5: vectors of 16 numbers"):
        opened(tmp_path / "lists", "ivfpq", StoredVectors(clustered(FEW), "cosine"), codes=5)


def test_too_few_rows_for_lists_are_reported_and_searched_exactly(tmp_path):
    vectors, said = StoredVectors(clustered(500), "cosine"), []
    IvfPq().build(tmp_path, vectors, None, None, lambda stage, done, total: said.append(stage))
    assert said == [f"fewer than {FEW:,} rows: nothing to build, search is exact"]
    found = scored(IvfPq().open(tmp_path, vectors), vectors, vectors.rows[:9], 5, None, 1)[0]
    assert (found == Scan(vectors).nearest(vectors.rows[:9], 5, None)).all()


def test_a_missing_faiss_is_reported_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(BadInput, match=r"assay-dml\[index\]"):
        opened(tmp_path / "graph", "hnsw", StoredVectors(clustered(300), "cosine"))


def test_a_library_that_exchanges_the_search_of_faiss_changes_nothing():
    """pytorch-metric-learning imports `faiss.contrib.torch_utils`, which does so for good."""
    code = """
import faiss.contrib.torch_utils, numpy as np
from assay.index import Index
z = np.random.default_rng(0).normal(size=(10000, 8)).astype(np.float32)
for name in ("hnsw", "ivfpq"):
    with Index.build("as_is", z, backend=name) as index:
        print(index.search(z[7]).matches[0].id, index.search(z[7], where={}).matches[0].id)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "7 7\n7 7\n", done.stderr
