"""The back end milvus: over a file, and (slow) over a real server in a namespace of its own."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from assay.errors import BadInput
from assay.index import milvus_client as module
from assay.index.backends import Earlier, StoredVectors, backends, milvus
from assay.index.backends.milvus import Milvus
from assay.index.manifest import DamagedIndex
from assay.index.milvus_client import LITE_FILE, PLACE, RECORD, TOKEN, Connection, Home
from assay.progress import silent
from milvus_server import SERVER, guard, why_not_guarded
from milvus_tables import check_like_exact, masks, queries_near, stored

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

TESTS = Path(__file__).parent
SERVER_PLACE = "http://127.0.0.1:19530"
N, D = 11_600, 16


@pytest.fixture(scope="module", params=["cosine", "euclidean"])
def built(request, tmp_path_factory):
    """Return vectors, the folder of their structure, and the opened back end."""
    vectors = stored(N, D, request.param)
    folder = tmp_path_factory.mktemp(request.param)
    Milvus().build(folder, vectors, None, None, silent)
    opened = Milvus().open(folder, vectors)
    yield vectors, folder, opened
    opened.close()


@pytest.fixture
def rooms(monkeypatch):
    """Return the folder of temporary files, empty; its name is short, as sockets need it."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="a") as folder,
        monkeypatch.context() as patch,
    ):
        patch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_own_server(monkeypatch):
    """Unset what the user of this machine has said of a server."""
    for name in (TOKEN, PLACE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def called(monkeypatch):
    """Return the addresses that clients are made for, each with its token; no server answers."""
    found = []

    class Client:
        def __init__(self, place, token="", **_):
            found.append((place, token))
            raise module._library().MilvusException(message="nobody")

    monkeypatch.setattr(module._library(), "MilvusClient", Client)
    return found


def files_in(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def listening():
    """Return the TCP sockets of this process that listen, as the kernel lists them."""
    own = set()
    for one in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(one.readlink()))
        except OSError:
            continue
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if Path(table).exists():
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                    found.append(words[1])
    return found


def test_it_is_registered():
    assert backends["milvus"] is Milvus


def test_a_file_finds_what_exact_search_finds(built):
    vectors, _, opened = built
    check_like_exact(opened, vectors, queries_near(vectors, 120), None)
    check_like_exact(opened, vectors, vectors.read(np.arange(3)), None, k=1)


def test_a_file_finds_what_exact_search_finds_under_filters(built):
    vectors, _, opened = built
    for mask in masks(N):
        check_like_exact(opened, vectors, queries_near(vectors, 20), mask)


def test_a_filter_that_hides_the_nearest_rows_still_leaves_k(built):
    vectors, _, opened = built
    query = vectors.read(np.arange(1))
    far = np.linalg.norm(vectors.read(np.arange(N)) - query, axis=1)
    mask = far >= np.sort(far)[1_500]  # more are hidden than are asked for beyond k
    assert mask.sum() > module.FEW
    check_like_exact(opened, vectors, query, mask)


def test_more_rows_than_milvus_can_return_are_found(tmp_path):
    vectors = stored(module.MOST_FOUND + 100, 4, "cosine")
    Milvus().build(tmp_path, vectors, None, None, silent)
    opened = Milvus().open(tmp_path, vectors)
    check_like_exact(opened, vectors, queries_near(vectors, 1), None, k=module.MOST_FOUND + 50)
    check_like_exact(opened, vectors, queries_near(vectors, 1), None, k=module.MOST_FOUND)
    opened.close()


def test_added_and_removed_rows(tmp_path):
    vectors = stored(1_000, D, "cosine")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    part = StoredVectors(vectors.rows[:900], "cosine")
    Milvus().build(first, part, None, None, silent)
    alive = np.random.default_rng(3).random(1_000) < 0.7
    Milvus().build(second, vectors, alive, Earlier(first, 900), silent)
    older, newer = Milvus().open(first, part), Milvus().open(second, vectors)
    q = vectors.read(np.arange(0, 1_000, 5))
    check_like_exact(older, part, q, None)
    check_like_exact(newer, vectors, q, alive)
    assert set(newer.candidates(q, 1, None, None).ravel()) <= set(np.flatnonzero(alive))
    older.close(), newer.close()


def test_an_empty_index_is_built_and_opened(tmp_path):
    vectors = StoredVectors(np.empty((0, D), dtype=np.float32), "cosine")
    Milvus().build(tmp_path, vectors, None, None, silent)
    opened = Milvus().open(tmp_path, vectors)
    assert opened.candidates(np.ones((2, D), dtype=np.float32), 5, None, None).shape == (2, 0)
    opened.close()


def test_duplicates_in_half_precision_are_all_found(tmp_path):
    rows = np.repeat(stored(20, D, "cosine").rows.astype(np.float16), 5, axis=0)
    vectors = StoredVectors(rows, "cosine")
    Milvus("mine.db").build(tmp_path, vectors, None, None, silent)
    assert (tmp_path / "mine.db").is_dir()
    opened = Milvus("mine.db").open(tmp_path, vectors)
    found = opened.candidates(vectors.read(np.arange(0, 100, 5)), 5, None, None)
    assert (np.sort(found, axis=1) == np.arange(100).reshape(20, 5)).all()
    opened.close()


def test_nothing_listens_on_a_network_and_only_this_user_reaches_the_socket(built, rooms):
    vectors, folder, _ = built
    opened = Milvus().open(folder, vectors)
    assert listening() == []
    assert len([path for path in rooms.rglob("socket*") if path.is_socket()]) == 1
    assert all(room.stat().st_mode & 0o077 == 0 for room in rooms.iterdir())
    opened.close()


def test_the_check_of_sockets_sees_one_that_listens():
    with socket.create_server(("127.0.0.1", 0)):
        assert len(listening()) == 1


def test_readers_do_not_change_a_version_nor_keep_others_out(built):
    vectors, folder, opened = built
    before = files_in(folder)
    another = Milvus().open(folder, vectors)
    q = queries_near(vectors, 5)
    np.testing.assert_array_equal(
        another.candidates(q, 10, None, None), opened.candidates(q, 10, None, None)
    )
    another.close()
    check_like_exact(opened, vectors, q, None)
    assert files_in(folder) == before


def test_a_reader_goes_on_when_the_folder_is_removed(tmp_path):
    vectors = stored(300, D, "cosine")
    Milvus().build(tmp_path, vectors, None, None, silent)
    opened = Milvus().open(tmp_path, vectors)
    Milvus().discard(tmp_path, None)
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    check_like_exact(opened, vectors, queries_near(vectors, 5), None)
    opened.close()


def test_threads_that_search_at_once_find_the_same(built):
    vectors, _, opened = built
    q = queries_near(vectors, 10)
    alone = opened.candidates(q, 10, None, None)
    found = [None] * 4

    def search(number):
        found[number] = opened.candidates(q, 10, None, None)

    threads = [threading.Thread(target=search, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(np.array_equal(one, alone) for one in found)


def test_closing_removes_the_copy_and_may_happen_twice(tmp_path, rooms):
    vectors = stored(50, D, "cosine")
    Milvus().build(tmp_path, vectors, None, None, silent)
    assert not list(rooms.iterdir())
    opened = Milvus().open(tmp_path, vectors)
    assert list(rooms.rglob("*.parquet"))
    opened.close()
    opened.close()
    assert not list(rooms.iterdir())


def test_a_temporary_folder_with_a_long_name_is_refused(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(BadInput, match="set TMPDIR to a shorter folder"):
        Milvus().build(tmp_path, stored(10, D, "cosine"), None, None, silent)
    assert not list(long.iterdir())


def test_progress_ends_with_all_rows(tmp_path):
    seen = []
    vectors = stored(11_000, 2, "euclidean")
    Milvus().build(tmp_path, vectors, None, None, lambda *step: seen.append(step))
    assert [step[1:] for step in seen] == [(10_000, 11_000), (11_000, 11_000)]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("localhost", "is no place"),
        ("folder/a.db", "without folders"),
        ("/a.db", "without folders"),
        ("http://", "no valid host and port"),
        ("http://host:port", "no valid host and port"),
        ("http://root:secret@host:19530", "stay secret"),
        ("https://host:19530?token=secret", "stay secret"),
    ],
)
def test_a_place_that_is_none_is_refused_and_no_secret_repeated(place, words):
    with pytest.raises(BadInput, match=words) as refused:
        Milvus(place)
    assert "secret@" not in str(refused.value) and "=secret" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"links": 1}, {"links": 2.5}, {"construction": 10**6}])
def test_settings_out_of_bounds_are_refused(settings):
    with pytest.raises(BadInput, match="choose a whole number from"):
        Milvus(**settings)


def test_vectors_that_milvus_cannot_hold_are_refused(tmp_path):
    with pytest.raises(BadInput, match="use --backend bits"):
        Milvus().build(tmp_path, stored(10, 64, "hamming"), None, None, silent)
    with pytest.raises(BadInput, match="use --backend exact"):
        Milvus().build(tmp_path, stored(10, 1, "cosine"), None, None, silent)
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_altered_is_refused(tmp_path):
    vectors = stored(50, D, "cosine")
    Milvus().build(tmp_path, vectors, None, None, silent)
    with pytest.raises(BadInput, match="does not have the 50 rows"):
        Milvus().open(tmp_path, StoredVectors(vectors.rows[:40], "cosine"))
    (tmp_path / LITE_FILE).rename(tmp_path / "away")
    with pytest.raises(DamagedIndex, match="is missing; make the index again"):
        Milvus().open(tmp_path, vectors)
    (tmp_path / LITE_FILE).mkdir()
    with pytest.raises(BadInput, match="removed or altered"):
        Milvus().open(tmp_path, vectors)
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(BadInput, match=RECORD):
        Milvus().open(tmp_path, vectors)


def test_an_address_where_nothing_listens_is_named_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BadInput, match=rf"no Milvus answers at http://127.0.0.1:{port}"):
        Milvus(f"http://127.0.0.1:{port}").build(
            tmp_path, stored(10, D, "cosine"), None, None, silent
        )


def test_a_server_that_never_answers_is_left_in_good_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        address = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        with pytest.raises(BadInput, match=f"no Milvus answers at {address}"):
            Milvus(address).build(tmp_path, stored(10, D, "cosine"), None, None, silent)


def test_a_server_that_stops_answering_while_it_drops_is_reported_as_bad_input(
    tmp_path, monkeypatch
):
    class Silent:
        def drop_collection(self, name, timeout):
            raise module._library().MilvusException(message="deadline exceeded")

    home = Home(SERVER_PLACE, "assay_0123456789abcdef", 3)
    home.write(tmp_path)
    monkeypatch.setenv(PLACE, SERVER_PLACE)
    hung = Connection(Silent(), home, ExitStack())
    monkeypatch.setattr(milvus, "connect", lambda home, folder: hung)
    with pytest.raises(BadInput, match="failed at dropping a collection: deadline exceeded"):
        Milvus().discard(tmp_path, None)


# --- an index of a stranger -----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "mine.db", "http://127.0.0.1:19531"])
def test_a_record_that_names_another_place_than_the_settings_is_refused_unconnected(
    place, tmp_path, called
):
    vectors = stored(50, D, "cosine")
    Home("http://stranger.example:19530", "assay_0123456789abcdef", 50).write(tmp_path)
    with pytest.raises(DamagedIndex, match="names another place than the settings"):
        Milvus(place).open(tmp_path, vectors)
    Home("", "assay_0123456789abcdef", 50).write(tmp_path)
    with pytest.raises(DamagedIndex, match=RECORD):
        Milvus(place).open(tmp_path, vectors)
    assert not called


@pytest.mark.parametrize("place", ["../a.db", "/etc", "http://user:word@host:1"])
def test_a_record_of_a_place_that_is_none_is_damage(place, tmp_path):
    Home(place, "assay_0123456789abcdef", 50).write(tmp_path)
    for action in (
        lambda: Milvus().open(tmp_path, stored(50, D, "cosine")),
        lambda: Milvus().discard(tmp_path, None),
    ):
        with pytest.raises(DamagedIndex, match="cannot be used"):
            action()


def test_only_a_server_is_remote():
    assert not Milvus().is_remote and not Milvus("a.db").is_remote
    assert Milvus(SERVER_PLACE).is_remote
    assert not any(backends[name]().is_remote for name in ("exact", "bits", "hnsw", "ivfpq"))


@pytest.mark.parametrize(
    ("named", "place", "words"),
    [
        (None, SERVER_PLACE, f"set {PLACE}={SERVER_PLACE} .* else unset {TOKEN}"),
        ("http://127.0.0.1:1", SERVER_PLACE, f"sent only to the address in {PLACE}"),
        ("http://far.example:1", "http://far.example:1", "in the clear; use an https://"),
        ("http://127.0.0.1.far.example:1", "http://127.0.0.1.far.example:1", "in the clear"),
        ("http://10.0.0.1:1", "http://10.0.0.1:1", "in the clear"),
    ],
)
def test_the_token_is_not_sent_where_the_user_does_not_want_it(
    named, place, words, tmp_path, called, monkeypatch
):
    monkeypatch.setenv(TOKEN, "secret-word")
    if named is not None:
        monkeypatch.setenv(PLACE, named)
    Home(place, "assay_0123456789abcdef", 50).write(tmp_path)
    vectors = stored(50, D, "cosine")
    (tmp_path / "new").mkdir()
    for action in (
        lambda: Milvus(place).open(tmp_path, vectors),
        lambda: Milvus(place).build(tmp_path / "new", vectors, None, None, silent),
    ):
        with pytest.raises(BadInput, match=words) as refused:
            action()
        assert "secret-word" not in str(refused.value)
    assert not called


@pytest.mark.parametrize(
    "place",
    [SERVER_PLACE, "http://localhost:1", "http://[::1]:1", "https://far.example:1", "HTTPS://A:1"],
)
def test_the_token_is_sent_to_the_address_that_the_user_names(place, tmp_path, called, monkeypatch):
    monkeypatch.setenv(TOKEN, "secret-word")
    monkeypatch.setenv(PLACE, place)
    Home(place, "assay_0123456789abcdef", 50).write(tmp_path)
    with pytest.raises(BadInput, match="no Milvus answers"):
        Milvus(place).open(tmp_path, stored(50, D, "cosine"))
    assert called == [(place, "secret-word")]


def test_without_a_token_the_address_of_the_settings_is_enough(tmp_path, called):
    Home("http://far.example:1", "assay_0123456789abcdef", 50).write(tmp_path)
    with pytest.raises(BadInput, match="no Milvus answers"):
        Milvus("http://far.example:1").open(tmp_path, stored(50, D, "cosine"))
    assert called == [("http://far.example:1", "")]


def test_a_collection_is_only_dropped_from_the_present_server_or_one_that_the_user_names(
    tmp_path, called, monkeypatch
):
    folder, kept = tmp_path / "old", tmp_path / "kept"
    folder.mkdir(), kept.mkdir()
    Home(SERVER_PLACE, "assay_0123456789abcdef", 50).write(folder)
    for present in (None, kept):
        with pytest.raises(BadInput, match=f"remove it by hand, or set {PLACE}={SERVER_PLACE}"):
            Milvus().discard(folder, present)
    Home("http://127.0.0.1:1", "assay_0123456789abcdef", 50).write(kept)
    with pytest.raises(BadInput, match="remove it by hand"):
        Milvus().discard(folder, kept)
    Home(SERVER_PLACE, "assay_0123456789abcdef", 60).write(kept)
    Milvus().discard(folder, kept)  # the present version has the same collection
    assert not called
    Home(SERVER_PLACE, "assay_fedcba9876543210", 60).write(kept)
    with pytest.raises(BadInput, match="no Milvus answers"):
        Milvus().discard(folder, kept)
    monkeypatch.setenv(PLACE, SERVER_PLACE)
    with pytest.raises(BadInput, match="no Milvus answers"):
        Milvus().discard(folder, None)
    assert called == [(SERVER_PLACE, "")] * 2


def test_a_missing_library_is_named_with_its_remedy(monkeypatch, tmp_path):
    vectors = stored(10, D, "cosine")
    for package in ("pymilvus", "milvus_lite.adapter.grpc.server"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(BadInput, match=r"pip install 'assay-dml\[milvus\]'"):
                Milvus().build(tmp_path, vectors, None, None, silent)


@pytest.mark.slow
def test_a_real_server_passes_its_tests():
    if SERVER not in os.environ:
        pytest.skip(f"needs a Milvus server: make test-servers sets {SERVER}")
    why = why_not_guarded()
    assert not why, f"a Milvus server is only run guarded: {why}"
    inner = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", ""]
    found = subprocess.run(
        guard([*inner, str(TESTS / "milvus_real.py")]),
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=1_800,
    )
    assert found.returncode == 0, found.stdout[-8_000:] + found.stderr[-2_000:]
    assert " passed" in found.stdout and "skipped" not in found.stdout
