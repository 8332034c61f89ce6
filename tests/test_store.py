"""The run store: whose folder it is, who drives it, and runs that are placed once."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.errors import BadInput
from assay.files import DRAFT
from assay.records.codec import FORMAT
from assay.records.store import Store, place_file

KEY = "ab" + "0" * 62
DRIVER = """
import sys
from pathlib import Path
from assay.records.store import Store
with Store(Path(sys.argv[1])).driving():
    print("driving", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@contextmanager
def other_driver(store: Store) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that drives the store."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"
        yield process
        if process.returncode is None:
            process.communicate()


def place(store: Store, content: str) -> None:
    with store.new_run(KEY) as folder:
        (folder / "result.json").write_text(json.dumps({"score": content}))


def score(store: Store) -> object:
    return json.loads((store.run(KEY) / "result.json").read_text())["score"]


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_store_is_made_and_opened_again(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    Store.create(root)
    before = names_below(root)
    assert Store(root).root == Store.create(root).root == root
    assert names_below(root) == before == ["format.json"]


def test_an_empty_folder_becomes_a_store(tmp_path: Path) -> None:
    Store.create(tmp_path)
    assert Store(tmp_path).studies() == []


@pytest.mark.parametrize("found", [FORMAT + 1, 0, None, "1"])
def test_another_format_is_refused_with_both_numbers(store: Store, found: object) -> None:
    (store.root / "format.json").write_text(json.dumps({"format": found}))
    for open_ in (Store, Store.create):
        said = "no format number" if found is None else f"format {found}"
        with pytest.raises(BadInput, match=f"{said}; this version of Assay reads format {FORMAT}"):
            open_(store.root)


@pytest.mark.parametrize("content", ["", "not json", "[]", "3", "\x00"])
def test_a_format_that_cannot_be_read_is_refused(store: Store, content: str) -> None:
    (store.root / "format.json").write_text(content)
    with pytest.raises(BadInput, match="store"):
        Store(store.root)


def test_a_folder_that_is_no_store_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path, tmp_path / "missing", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match="is not a run store"):
            Store(root)
    assert names_below(tmp_path) == ["file"]


@pytest.mark.parametrize("stranger", ["thesis.tex", ".hidden"])
def test_a_folder_that_holds_other_things_is_refused_and_left_alone(
    tmp_path: Path, stranger: str
) -> None:
    (tmp_path / stranger).write_text("precious")
    with pytest.raises(
        BadInput, match=f"is not a run store: it contains other files \\({stranger}"
    ):
        Store.create(tmp_path)
    assert names_below(tmp_path) == [stranger]


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (
        tmp_path / "file",
        tmp_path / "file" / "below",
        tmp_path / "file" / "deep" / "below",
    ):
        with pytest.raises(BadInput, match=r"cannot write to .*; give another --out"):
            Store.create(root)


def test_a_place_where_nobody_can_write_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot write to /proc/store"):
        Store.create(Path("/proc/store"))


def test_a_store_on_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="No space left on device"):
        Store.create(tmp_path / "store")


def test_making_a_store_goes_on_after_a_kill_in_the_middle_of_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from assay.records.store import Store\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Store.create(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    store = Store.create(tmp_path / "store")
    assert store.studies() == []


def test_a_second_driver_is_told_who_the_first_is(store: Store) -> None:
    with other_driver(store) as first:
        with (
            pytest.raises(BadInput, match=f"process {first.pid} on {socket.gethostname()}"),
            store.driving(),
        ):
            pytest.fail("two processes drive one store")
        assert first.poll() is None


def test_the_second_driver_may_begin_when_the_first_has_ended(store: Store) -> None:
    with other_driver(store):
        pass
    with store.driving():
        assert json.loads((store.root / "driver.json").read_text())["pid"] == os.getpid()
    assert not (store.root / "driver.json").exists()


def test_a_killed_driver_leaves_the_store_free(store: Store) -> None:
    with other_driver(store) as first:
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert (store.root / "driver.json").exists()
    with store.driving():
        assert json.loads((store.root / "driver.json").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null"])
def test_a_spoilt_note_of_a_dead_driver_is_in_nobodys_way(store: Store, content: str) -> None:
    (store.root / "driver.json").write_text(content)
    with store.driving():
        assert json.loads((store.root / "driver.json").read_text())["pid"] == os.getpid()


def test_a_share_that_its_task_removes_first_is_in_nobodys_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a killed driver may end while the next driver begins."""
    gone = store.share("a" * 64)
    monkeypatch.setattr(store, "shares", lambda: [gone])
    with store.driving():
        assert not gone.exists()


def test_the_driver_is_known_while_it_drives(store: Store) -> None:
    assert store.driver() is None
    with other_driver(store) as first:
        assert store.driver() == f"process {first.pid} on {socket.gethostname()}"
    assert store.driver() is None


def test_a_killed_driver_drives_no_more(store: Store) -> None:
    with other_driver(store) as first:
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert store.driver() is None


def test_asking_for_the_driver_takes_no_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever asks at the wrong moment keeps a driver from beginning."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("a lock was taken"))
    assert store.driver() is None
    assert not (store.root / "driver.lock").exists()


def test_a_driver_is_known_to_itself(store: Store) -> None:
    with store.driving():
        assert store.driver() == f"process {os.getpid()} on {socket.gethostname()}"
    assert store.driver() is None


def test_a_driver_on_another_host_is_taken_at_its_word(store: Store) -> None:
    """Whether a process there is alive cannot be known from here."""
    (store.root / "driver.json").write_text(json.dumps({"pid": 1 << 22, "host": "elsewhere"}))
    assert store.driver() == f"process {1 << 22} on elsewhere"


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[]", "null", '{"pid": 1}', '{"pid": "x", "host": "HERE"}']
)
def test_a_spoilt_note_names_no_driver(store: Store, content: str) -> None:
    (store.root / "driver.json").write_text(content.replace("HERE", socket.gethostname()))
    assert store.driver() is None


def test_a_driver_that_fails_leaves_the_store_free(store: Store) -> None:
    with pytest.raises(RuntimeError, match="inside"), store.driving():
        raise RuntimeError("inside")
    with store.driving():
        assert (store.root / "driver.json").exists()


def test_reading_needs_no_driver(store: Store) -> None:
    with other_driver(store):
        assert Store(store.root).studies() == []


def test_a_driver_clears_what_the_dead_left_behind(store: Store) -> None:
    place(store, "kept")
    (store.run(KEY).parent / f"{DRAFT}dead").mkdir()
    (store.run(KEY).parent / f"{DRAFT}dead" / "model.safetensors").touch()
    with store.driving():
        assert names_below(store.root / "runs") == ["ab", f"ab/{KEY}", f"ab/{KEY}/result.json"]


def test_a_run_is_there_when_its_folder_is_whole(store: Store) -> None:
    assert not store.has_run(KEY)
    with store.new_run(KEY) as folder:
        (folder / "result.json").write_text('{"score": "first"}')
        assert not store.has_run(KEY)
    assert store.has_run(KEY)
    assert score(store) == "first"
    assert store.run(KEY) == store.root / "runs" / "ab" / KEY


def test_a_run_that_fails_is_not_there(store: Store) -> None:
    def fail() -> None:
        with store.new_run(KEY) as folder:
            (folder / "result.json").write_text("{}")
            raise RuntimeError("worker failed")

    with pytest.raises(RuntimeError, match="worker failed"):
        fail()
    assert not store.has_run(KEY)
    assert not store.run(KEY).exists()


def test_a_run_is_placed_once_and_never_replaced(store: Store) -> None:
    place(store, "first")
    place(store, "second")
    assert score(store) == "first"
    assert names_below(store.root / "runs") == ["ab", f"ab/{KEY}", f"ab/{KEY}/result.json"]


def test_a_folder_without_a_result_is_no_run_and_gives_way(store: Store) -> None:
    """A run whose result somebody removed, to have it done again."""
    store.run(KEY).mkdir(parents=True)
    (store.run(KEY) / "model.safetensors").write_text("old")
    (store.run(KEY) / "test").mkdir()
    (store.run(KEY) / "test" / "old.npy").touch()
    assert not store.has_run(KEY)
    place(store, "new")
    assert score(store) == "new"
    assert names_below(store.run(KEY)) == ["result.json"]


def test_a_finished_run_is_not_cleared(store: Store) -> None:
    place(store, "first")
    place_file(store.test_vectors(KEY, "fingerprint"), b"vectors")
    place(store, "second")
    assert score(store) == "first"
    assert store.test_vectors(KEY, "fingerprint").read_bytes() == b"vectors"


def test_a_file_is_added_to_a_run_once(store: Store) -> None:
    place(store, "first")
    path = store.test_vectors(KEY, "fingerprint")
    place_file(path, b"first")
    place_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert path == store.run(KEY) / "test" / "fingerprint.npy"
    assert score(store) == "first"


def test_studies_are_those_with_a_ledger_in_the_order_of_keys(store: Store) -> None:
    for key in ("b", "a", "not begun"):
        store.study(key).mkdir(parents=True)
    for key in ("b", "a"):
        (store.study(key) / "ledger.jsonl").touch()
    assert store.studies() == ["a", "b"]


def test_every_thing_has_a_place_of_its_own(store: Store) -> None:
    places = [
        store.run(KEY),
        store.study(KEY),
        store.answers(KEY),
        store.model(KEY),
        store.test_vectors(KEY, KEY),
    ]
    assert len(set(places)) == len(places)
    assert all(place.is_relative_to(store.root) for place in places)


def place_run(store: Store, worker: str) -> None:
    with store.new_run("ab" * 32) as folder:
        for name in ("config.json", "result.json"):
            (folder / name).write_text(worker)


def test_of_workers_that_place_the_same_run_one_does_and_none_fails(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    for _ in range(20):
        with ThreadPoolExecutor(8) as workers:
            list(workers.map(lambda worker: place_run(store, str(worker)), range(8)))
        (folder,) = (tmp_path / "store" / "runs" / "ab").iterdir()
        assert len({path.read_text() for path in folder.iterdir()}) == 1
        shutil.rmtree(folder)


def test_a_run_that_another_worker_places_meanwhile_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store")
    remove = shutil.rmtree

    def too_late(path: Path, **options: bool) -> None:
        monkeypatch.undo()
        place_run(store, "the other")
        remove(path, **options)

    monkeypatch.setattr("assay.records.store.shutil.rmtree", too_late)
    with store.new_run("ab" * 32) as folder:
        (folder / "result.json").write_text("ours")
        if shutil.rmtree is too_late:
            monkeypatch.undo()
            place_run(store, "the other")
        assert store.has_run("ab" * 32)
    assert (store.run("ab" * 32) / "result.json").read_text() == "the other"
