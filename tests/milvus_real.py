"""Tests of the back end milvus against a real server, run by `test_milvus.py` in a namespace.

Not collected by themselves: they need a server, and nothing but a loopback around them.
"""

import signal
import time

import numpy as np
import pytest

from assay.errors import BadInput
from assay.index import milvus_client as module
from assay.index.backends import Earlier, StoredVectors
from assay.index.backends.milvus import Milvus
from assay.index.milvus_client import PLACE, RECORD
from assay.index.scoring import prepare
from assay.progress import silent
from milvus_server import ADDRESS, MilvusServer
from milvus_tables import check_like_exact, clusters, collection_of, masks, queries_near, stored

N, D, ADDED = 20_000, 64, 1_000


@pytest.fixture(scope="module", autouse=True)
def named():
    """Name the server as the user's own, so that collections may be dropped and a token sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACE, ADDRESS)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = MilvusServer(tmp_path_factory.mktemp("milvus"))
    yield running
    running.kill()


@pytest.fixture(scope="module", params=["cosine", "euclidean", "hamming"])
def built(request, server, tmp_path_factory):
    """Return vectors, a folder and the opened back end, of all but the rows that are added."""
    vectors = stored(N, D, request.param)
    folder = tmp_path_factory.mktemp(request.param)
    part = StoredVectors(vectors.rows[: N - ADDED], vectors.similarity)
    backend = Milvus(ADDRESS)
    backend.build(folder, part, None, None, silent)
    opened = backend.open(folder, part)
    yield vectors, part, folder, opened
    opened.close()


def collections(place=ADDRESS):
    client = module._library().MilvusClient(place, dedicated=True)
    try:
        return set(client.list_collections())
    finally:
        client.close()


def test_a_server_finds_what_exact_search_finds(built):
    _, part, _, opened = built
    check_like_exact(opened, part, queries_near(part, 200), None)


def test_a_server_finds_what_exact_search_finds_under_filters(built):
    _, part, _, opened = built
    for mask in masks(len(part)):
        check_like_exact(opened, part, queries_near(part, 50), mask)


def test_added_rows_are_found_and_an_older_version_does_not_see_them(built, tmp_path):
    vectors, part, folder, older = built
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, vectors, None, Earlier(folder, len(part)), silent)
    assert collection_of(tmp_path) == collection_of(folder)
    newer = backend.open(tmp_path, vectors)
    try:
        q = vectors.read(np.arange(N - 100, N))  # some of the rows that were added
        check_like_exact(newer, vectors, q, None)
        check_like_exact(older, part, q, None)
    finally:
        newer.close()
    backend.discard(folder, tmp_path)
    assert collection_of(folder) in collections(), "the present version has the same collection"


def test_rows_that_a_killed_append_left_lead_to_a_collection_of_its_own(server, tmp_path):
    vectors = stored(3_000, D, "cosine")
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()
    part = StoredVectors(vectors.rows[:2_000], "cosine")
    more = StoredVectors(np.ascontiguousarray(vectors.rows[:2_500][::-1]), "cosine")
    backend = Milvus(ADDRESS)
    backend.build(first, part, None, None, silent)
    backend.build(
        second, more, None, Earlier(first, 2_000), silent
    )  # as if it had never been in place
    backend.build(third, vectors, None, Earlier(first, 2_000), silent)
    assert collection_of(second) == collection_of(first) != collection_of(third)
    opened = backend.open(third, vectors)
    check_like_exact(opened, vectors, queries_near(vectors, 50), None)
    opened.close()
    for folder in (first, third):
        backend.discard(folder, None)


def test_removed_rows_are_never_found(server, tmp_path):
    vectors = stored(N, D, "cosine")
    alive = np.random.default_rng(5).random(N) < 0.8
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, vectors, alive, None, silent)
    opened = backend.open(tmp_path, vectors)
    q = vectors.read(np.flatnonzero(~alive)[:100])  # the removed rows themselves
    check_like_exact(opened, vectors, q, alive)
    opened.close()
    backend.discard(tmp_path, None)


def test_a_reader_goes_on_when_its_collection_was_replaced(server, tmp_path):
    vectors = stored(2_000, D, "cosine")
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, vectors, None, None, silent)
    opened = backend.open(tmp_path, vectors)
    backend.discard(tmp_path, None)
    assert collection_of(tmp_path) not in collections()
    check_like_exact(opened, vectors, queries_near(vectors, 20), None)
    opened.close()
    with pytest.raises(BadInput, match="removed or altered; make the index again"):
        backend.open(tmp_path, vectors)
    backend.discard(tmp_path, None)  # once more does no harm


def test_a_record_that_was_altered_drops_no_other_collection(server, tmp_path):
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, stored(10, D, "cosine"), None, None, silent)
    record = tmp_path / RECORD
    record.write_text(record.read_text().replace("assay_", "users_"))
    before = collections()
    with pytest.raises(BadInput, match="was altered"):
        backend.discard(tmp_path, None)
    assert collections() == before


def test_an_empty_index_is_built_opened_and_extended(server, tmp_path):
    vectors = stored(50, D, "cosine")
    none = StoredVectors(vectors.rows[:0], "cosine")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    backend = Milvus(ADDRESS)
    backend.build(first, none, None, None, silent)
    opened = backend.open(first, none)
    assert opened.candidates(vectors.rows[:3], 5, None, None).shape == (3, 0)
    opened.close()
    backend.build(second, vectors, None, Earlier(first, 0), silent)
    opened = backend.open(second, vectors)
    check_like_exact(opened, vectors, vectors.rows[:10], None)
    opened.close()
    backend.discard(second, None)


def test_a_build_that_fails_leaves_no_collection(server, tmp_path):
    before = collections()

    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Milvus(ADDRESS).build(tmp_path, stored(100, D, "cosine"), None, None, interrupt)
    assert collections() == before


def test_a_server_that_is_too_old_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OLDEST_SERVER", (99, 0))
    with pytest.raises(BadInput, match=r"is v2\.3\.5.*needs 99\.0 or newer: update the server"):
        Milvus(ADDRESS).build(tmp_path, stored(10, D, "cosine"), None, None, silent)


def test_no_token_is_written_into_the_index(server, tmp_path, monkeypatch):
    monkeypatch.setenv(module.TOKEN, "root:secret-word")
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, stored(100, D, "cosine"), None, None, silent)
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]
    assert "secret-word" not in (tmp_path / RECORD).read_text()
    backend.discard(tmp_path, None)


def test_vectors_of_many_numbers_are_inserted_in_portions(server, tmp_path):
    vectors = StoredVectors(prepare(clusters(6_000, 2_048), "cosine"), "cosine")  # 49 MB
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, vectors, None, None, silent)
    opened = backend.open(tmp_path, vectors)
    check_like_exact(opened, vectors, queries_near(vectors, 10), None)
    opened.close()
    backend.discard(tmp_path, None)


def test_a_server_that_is_killed_or_hangs_is_named_in_good_time(server, tmp_path):
    vectors = stored(2_000, D, "cosine")
    backend = Milvus(ADDRESS)
    backend.build(tmp_path, vectors, None, None, silent)
    opened = backend.open(tmp_path, vectors)
    most = module.CALL_SECONDS + module.CONNECT_SECONDS + 10

    def refused(kind, action, words):
        start = time.monotonic()
        with pytest.raises(kind, match=words):
            action()
        assert time.monotonic() - start < most

    def search():
        opened.candidates(vectors.rows[:2], 5, None, None)

    server.send(signal.SIGSTOP)
    refused(RuntimeError, search, f"Milvus at {ADDRESS} failed at searching")
    refused(BadInput, lambda: backend.open(tmp_path, vectors), f"no Milvus answers at {ADDRESS}")
    server.kill()
    refused(RuntimeError, search, f"Milvus at {ADDRESS} failed at searching")
    refused(BadInput, lambda: backend.open(tmp_path, vectors), "start it, correct the address")
    refused(BadInput, lambda: backend.discard(tmp_path, None), f"no Milvus answers at {ADDRESS}")
    opened.close()
