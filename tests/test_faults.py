"""Whatever happens to a bench: no finished run is lost, no table is wrong, a clear message, and the
same bytes at the end.
"""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

import assay as package
from assay.protocols import customise, protocols
from assay.records.ledger import read
from assay.records.store import Store
from faults import (
    ASSAY,
    SAVING,
    Victims,
    clock_backwards,
    descendants,
    does,
    end_well,
    everything,
    finished,
    mounted,
    space_of,
    start,
    wait_for,
    words,
)
from miniature import MINI, make_features, make_folder

INLINE = ("--engine", "inline")
METHODS = ("triplet", "pretrained")
TWO = ("triplet", "normalized_softmax")
LONG = (*MINI, "iterations=8", "epochs=6", "patience=6", "trials=3")
"""Runs of several validations, so that kills fall into the middle of them."""

SHORT = (*LONG, "trials=1", "reproductions=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def images(place):
    return f"folder:{make_folder(place / 'mini')}"


@pytest.fixture(scope="module")
def vectors(place):
    return f"features:{make_features(place / 'mini.npz')}"


@pytest.fixture(scope="module")
def benched(place, vectors):
    """An undisturbed bench on vectors."""
    small = customise(protocols["quick"], MINI)
    package.bench(vectors, METHODS, small, place / "benched", engine="inline")
    return place / "benched"


@pytest.fixture(scope="module")
def long_one(place, images):
    """An undisturbed bench on images, of long runs."""
    end_well(start(images, place / "long", TWO, LONG, program=SAVING))
    return place / "long"


@pytest.fixture(scope="module")
def short_one(place, images):
    """A shorter one."""
    end_well(start(images, place / "short", ("triplet",), SHORT, program=SAVING))
    return place / "short"


@pytest.fixture
def copy(benched, tmp_path):
    return shutil.copytree(benched, tmp_path / "store")


@pytest.fixture
def bench(assay, vectors):
    """The bench on vectors in this process: exit code, stdout, stderr."""

    def run(out, *more):
        return assay(*words(vectors, out, METHODS, MINI, *INLINE, *more))

    return run


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "disk") as made:
        yield made


def verified(store):
    return subprocess.run(
        [sys.executable, *ASSAY, "verify", str(store)], capture_output=True, text=True
    )


def lines_of(store):
    """Every ledger can be read; its lines without the clock."""
    return {
        path: [(line.kind, line.hash) for line in read(path)]
        for path in store.glob("studies/*/ledger.jsonl")
    }


def only_line(err):
    """The one line after whatever was said of the progress."""
    assert "Traceback" not in err
    return next(line for line in err.splitlines() if line.startswith("assay: "))


# --- kills ----------------------------------------------------------------------------------------


def check_kills(begin, store, log, expected, kills, **more):
    victims = Victims(begin, store, log, **more)
    try:
        victims.kill(kills)
        victims.end()
    finally:
        victims.stop()
    assert sum(victims.killed.values()) == kills
    assert all(victims.killed.values()), victims.killed
    assert everything(store) == expected
    assert not list(store.glob("partial/*/*"))
    assert verified(store).returncode == 0


@pytest.mark.slow
def test_a_killed_driver_and_a_killed_worker_change_no_byte_and_repeat_no_run(
    images, short_one, tmp_path
):
    def begin(errors):
        return start(images, tmp_path / "store", ("triplet",), SHORT, program=SAVING, errors=errors)

    check_kills(begin, tmp_path / "store", tmp_path / "log", everything(short_one), 2, seed=5)


@pytest.mark.slow
def test_twenty_killed_drivers_and_workers_change_no_byte_and_repeat_no_run(
    images, long_one, tmp_path
):
    def begin(errors):
        return start(images, tmp_path / "store", TWO, LONG, program=SAVING, errors=errors)

    check_kills(begin, tmp_path / "store", tmp_path / "log", everything(long_one), 20)


def test_a_worker_whose_driver_died_before_it_began_does_no_work():
    """Else it would compute what the next driver's workers compute."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = [
            sys.executable,
            "-P",
            "-m",
            "assay.workers.program",
            str(theirs.fileno()),
            str(dead.pid),
        ]
        worker = subprocess.Popen(program, pass_fds=[theirs.fileno()])
        assert worker.wait(timeout=120) == 1


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of one node with one core, in a folder whose path is short enough for its
    sockets.
    """
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(
        dir="/tmp", prefix="ray-", ignore_cleanup_errors=True
    ) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster()
        made.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
        yield made
        made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_twenty_killed_drivers_workers_and_nodes_of_ray_change_no_byte_and_repeat_no_run(
    images, long_one, cluster, tmp_path
):
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80_000_000)]

    def begin(errors):
        ray = ("--engine", "ray", "--address", cluster.address)
        return start(images, tmp_path / "store", TWO, LONG, *ray, program=SAVING, errors=errors)

    def at_work(driver):
        return sorted(
            pid
            for pid in descendants(os.getpid())
            if does(pid) in ("ray::Training", "ray::TestEmbedding")
        )

    def lose_node():
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=1, object_store_memory=80_000_000))

    expected, others = everything(long_one), {"node": lose_node}
    check_kills(
        begin,
        tmp_path / "store",
        tmp_path / "log",
        expected,
        20,
        workers=at_work,
        others=others,
        seed=1,
    )


# --- disks ----------------------------------------------------------------------------------------


def check_full(code, err, place):
    assert code == 1
    said = only_line(err)
    assert str(place) in said
    assert "No space left on device" in said
    assert "make room" in said and "run the same command again" in said


def test_a_full_disk_loses_nothing_and_with_more_room_the_same_bytes_come_out(bench, benched, disk):
    store, expected = disk.path / "store", everything(benched)
    disk.resize(space_of(benched) // 4)
    code, _, err = bench(store)
    check_full(code, err, disk.path)
    kept, recorded = finished(store), lines_of(store)
    assert kept.keys() < finished(benched).keys()
    code, _, err = bench(store)
    check_full(code, err, disk.path)
    assert (finished(store), lines_of(store)) == (kept, recorded)
    disk.resize(64 * 2**20)
    assert bench(store)[0] == 0
    assert kept.items() <= finished(store).items()
    assert everything(store) == expected


@pytest.mark.slow
def test_a_disk_that_is_full_at_every_step_loses_nothing_at_any(bench, benched, disk):
    """From the first file to the last figure: it has a little more room each time."""
    store, needed, full = disk.path / "store", space_of(benched), 0
    kept = {}
    for size in range(needed // 20, 2 * needed, needed // 12):
        disk.resize(size)
        code, _, err = bench(store)
        if code == 0:
            break
        if (store / "format.json").exists():
            check_full(code, err, disk.path)
        full += 1
        lines_of(store)
        assert kept.items() <= finished(store).items()
        kept = finished(store)
    assert full > 5
    assert everything(store) == everything(benched)
    assert verified(store).returncode == 0


def test_a_cache_without_room_is_named_with_the_remedy(assay, images, disk, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(disk.path / "cache"))
    command = words(images, tmp_path / "store", ("untrained",), (*MINI, "size=64"), *INLINE)
    disk.resize(3 * 2**16)
    code, _, err = assay(*command)
    assert code == 2
    assert str(disk.path / "cache") in only_line(err)
    assert "set ASSAY_CACHE to a folder on another disk" in only_line(err)
    disk.resize(64 * 2**20)
    assert assay(*command)[0] == 0
    roomy = tmp_path / "roomy"
    assert assay(*words(images, roomy, ("untrained",), (*MINI, "size=64"), *INLINE))[0] == 0
    assert everything(tmp_path / "store") == everything(roomy)


def test_a_store_that_cannot_be_written_to_is_read_and_not_driven(
    assay, bench, benched, vectors, disk
):
    store = shutil.copytree(benched, disk.path / "store")
    disk.write_protect()
    code, out, err = bench(store)
    assert (code, out) == (2, "")
    assert err == f"assay: cannot write to {store}: Read-only file system; give another --out\n"
    code, out, _ = assay("status", store)
    assert (code, out.count("done")) == (0, 4)
    code, out, _ = assay("verify", store)
    assert (code, "0 wrong" in out) == (0, True)
    run = next(store.glob("models/*triplet*"))
    assert assay("evaluate", run, "--data", vectors)[0] == 0
    code, out, err = assay("evaluate", run, "--data", vectors, "--test")
    assert (code, out) == (2, "")
    assert f"cannot write to {store}" in err
    code, out, err = assay("report", store)
    assert (code, out) == (2, "")
    assert re.match(rf"assay: {re.escape(str(store))}/report/\S+: Read-only file system", err)


# --- spoilt files ---------------------------------------------------------------------------------


def cut(content):
    return content[: len(content) // 2]


def change_digit(content):
    """The last digit of the first fraction is another one."""
    end = re.search(rb"0\.\d+", content).end() - 1
    return content[:end] + str(9 - int(content[end : end + 1])).encode() + content[end + 1 :]


def change_hash(content):
    start = re.search(rb"[0-9a-f]{64}", content).start()
    return (
        content[:start]
        + (b"0" if content[start : start + 1] != b"0" else b"1")
        + content[start + 1 :]
    )


SPOILT = {
    "result.json is cut": ("result.json", cut),
    "result.json is empty": ("result.json", lambda content: b""),
    "result.json has another digit": ("result.json", change_digit),
    "result.json has another hash": ("result.json", change_hash),
    "result.json is a list": ("result.json", lambda content: b"[]"),
    "config.json is cut": ("config.json", cut),
    "config.json has another hash": ("config.json", change_hash),
    "history.jsonl is cut": ("history.jsonl", cut),
    "history.jsonl is empty": ("history.jsonl", lambda content: b""),
    "history.jsonl has other digits": (
        "history.jsonl",
        lambda content: content.replace(b"0.", b"1."),
    ),
}


QUICK = ("result.json is cut", "result.json has another digit", "history.jsonl has other digits")
slowly = pytest.mark.slow


def ledger_of_triplet(store):
    return next(
        path
        for path in store.glob("studies/*/ledger.jsonl")
        if '"name":"triplet"' in path.read_text()
    )


def a_run(store):
    """The folder of the last reproduction of triplet."""
    runs = [
        line.body["key"] for line in read(ledger_of_triplet(store)) if line.kind == "reproduction"
    ]
    return Store(store).run(runs[-1])


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=slowly) for name in SPOILT]
)
def test_a_spoilt_file_of_a_run_is_named_and_with_its_folder_removed_the_same_bytes_come_out(
    assay, bench, benched, copy, name
):
    file, spoil = SPOILT[name]
    run = a_run(copy)
    (run / file).write_bytes(spoil((run / file).read_bytes()))
    tables = {path: path.read_bytes() for path in copy.glob("report/**/*") if path.is_file()}
    code, out, err = bench(copy)
    assert (code, out) == (2, "")
    assert run.name in only_line(err)
    assert file in only_line(err)
    assert re.search(r"[Rr]emove .*folder .*run the same command again", only_line(err))
    assert {
        path: path.read_bytes() for path in copy.glob("report/**/*") if path.is_file()
    } == tables
    code, out, _ = assay("verify", copy)
    assert code == 1
    assert re.search(rf"WRONG .*run {run.name[:12]} .*{re.escape(file)}", out)
    shutil.rmtree(run)
    assert bench(copy)[0] == 0
    assert everything(copy) == everything(benched)


def unseal_again(store):
    """Take the study of triplet back to before its seal was opened."""
    ledger = ledger_of_triplet(store)
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text(
        "".join(line for line in lines if not re.search('"kind":"(seal|test)"', line))
    )
    for run in [line.body["key"] for line in read(ledger) if line.kind == "reproduction"]:
        shutil.rmtree(Store(store).run(run) / "test", ignore_errors=True)
    for model in store.glob("models/*triplet*"):
        shutil.rmtree(model)


def flip_bit(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "spoil",
    [flip_bit, *(pytest.param(spoil, marks=slowly) for spoil in (cut, lambda content: b""))],
)
def test_spoilt_weights_are_named_and_never_scored(assay, bench, benched, copy, spoil):
    run = a_run(copy)
    weights = run / "model.safetensors"
    weights.write_bytes(spoil(weights.read_bytes()))
    assert bench(copy)[0] == 0
    code, out, _ = assay("verify", copy)
    assert code == 1
    assert re.search(rf"WRONG .*run {run.name[:12]} .*model.safetensors was altered", out)
    unseal_again(copy)
    code, out, err = bench(copy)
    assert (code, out) == (2, "")
    assert str(weights) in only_line(err)
    assert "remove the folder" in only_line(err)
    shutil.rmtree(run)
    assert bench(copy)[0] == 0
    assert everything(copy) == everything(benched)


# --- ledgers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [-1, *(pytest.param(left, marks=slowly) for left in (1, 40))])
def test_a_last_line_that_was_torn_is_written_again(assay, bench, benched, copy, left):
    """So many bytes of it are there; -1: all but the end of the line."""
    path = ledger_of_triplet(copy)
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, last[:left]]))
    code, out, _ = assay("status", copy)
    assert (code, "scoring the test half" in out) == (0, True)
    assert bench(copy)[0] == 0
    assert everything(copy) == everything(benched)


@pytest.mark.parametrize("spoil", [lambda line: line[:60] + b"\n", change_digit, change_hash])
def test_a_spoilt_line_in_the_middle_is_refused_with_its_number(assay, bench, copy, spoil):
    path = ledger_of_triplet(copy)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = spoil(lines[2])
    path.write_bytes(b"".join(lines))
    code, out, err = bench(copy)
    assert (code, out) == (2, "")
    assert f"{path}: line 3 " in only_line(err)
    assert path.read_bytes() == b"".join(lines)
    code, out, _ = assay("verify", copy)
    assert code == 1
    assert f"{path}: line 3 " in out


# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_clock_that_runs_backwards_changes_no_byte(vectors, benched, tmp_path):
    store, late = tmp_path / "store", clock_backwards(tmp_path / "clock")

    def run(*command):
        done = subprocess.run(
            [sys.executable, *ASSAY, *map(str, command)],
            capture_output=True,
            text=True,
            env={**os.environ, **late},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with start(vectors, store, METHODS, MINI, "--workers", "1") as first:
        wait_for(lambda: finished(store) or first.poll() is not None)
        first.kill()
    stopped = run("status", store)
    assert "not running" in stopped
    assert not re.search(r"-\d", stopped.partition("method")[0])
    errors = end_well(start(vectors, store, METHODS, MINI, "--workers", "1", env=late))
    assert not re.search(r"\[-|-\d+ s", errors)
    assert everything(store) == everything(benched)
    assert all(json.loads(clock)["seconds"] >= 0 for clock in finished(store).values())
    times = [line.at for line in read(ledger_of_triplet(store))]
    assert times != sorted(times), "the clock did not run backwards"
    assert "done" in run("status", store)
    assert "0 wrong" in run("verify", store)


# --- two drivers ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_driver_is_told_of_the_first_which_goes_on_unharmed(
    assay, images, short_one, tmp_path
):
    store = tmp_path / "store"
    first = start(images, store, ("triplet",), SHORT, program=SAVING)
    wait_for(lambda: list(store.glob("studies/*/ledger.jsonl")) or first.poll() is not None)
    for _ in range(2):
        code, out, err = assay(*words(images, store, ("triplet",), SHORT))
        assert (code, out) == (2, "")
        assert (
            f"is writing to {store} (process {first.pid} on {socket.gethostname()}); wait for it"
            in only_line(err)
        )
    assert first.poll() is None
    end_well(first)
    assert everything(store) == everything(short_one)


@pytest.mark.slow
def test_what_a_dead_driver_left_blocks_nobody(assay, bench, vectors, benched, tmp_path):
    store = tmp_path / "store"
    with start(vectors, store, METHODS, MINI, "--workers", "1") as first:
        wait_for(lambda: list(store.glob("studies/*/ledger.jsonl")) or first.poll() is not None)
        first.send_signal(signal.SIGKILL)
    assert (store / "driver.lock").exists() and (store / "driver.json").exists()
    assert "not running" in assay("status", store)[1]
    (store / "driver.json").write_text(
        json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
    )
    assert bench(store)[0] == 0
    assert everything(store) == everything(benched)


@pytest.mark.slow
def test_two_benches_that_pack_the_same_images_at_once_both_succeed(images, tmp_path):
    cache = {"ASSAY_CACHE": str(tmp_path / "cache")}
    short = (*MINI, "trials=1", "reproductions=1")
    both = [
        start(images, tmp_path / name, ("triplet",), short, "--workers", "1", env=cache)
        for name in ("one", "other")
    ]
    for process in both:
        end_well(process)
    assert everything(tmp_path / "one") == everything(tmp_path / "other")
    assert len(list((tmp_path / "cache" / "packs").glob("*/pack.json"))) == 2
    assert not list((tmp_path / "cache" / "packs").glob("*.lock"))
