"""The engine for clusters, on a Ray of this machine: the same bytes as the local engine's, whatever
dies.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from assay.engines import Demanding, WorkerDied
from assay.engines import ray as engines_ray
from assay.engines.parcel import Parcel
from assay.engines.ray import AHEAD, RayEngine
from assay.errors import BadInput
from assay.files import cache_folder
from assay.run import own_source
from assay.workers import TaskFailed
from miniature import make_folder, snapshot
from on_ray import bench
from tasks import Asked, Die, DieOnce, Fail, Sleep, Square, Where, Wide

pytestmark = [
    # Ray's own: a file that is closed by the collector, a process that is not waited for
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def engine():
    """An engine on a Ray of this machine, whose connection the benches of these tests use too;
    nothing of it stays.
    """
    with RayEngine() as started:
        begun = set(ray_processes())
        yield started
    wait_for(lambda: not begun & set(ray_processes()))


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """Miniature data, and what the local engine makes of them."""
    root = tmp_path_factory.mktemp("local")
    folder = make_folder(root / "mini")
    bench(folder, root / "store", engine="local")
    return folder, snapshot(root / "store")


def ray_processes():
    """What of Ray runs on this machine: the number of each process and what it is doing."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z" and (words.startswith("ray::") or "/site-packages/ray/" in words):
            found[int(path.parent.name)] = words.strip()
    return found


def descendants(pid):
    """The processes that a process has begun, and those that these have."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return {*children, *(below for child in children for below in descendants(child))}


def wait_for(condition, seconds=180.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return value


# --- tasks ----------------------------------------------------------------------------------------


def test_tasks_give_what_they_give_in_other_processes(engine):
    assert [future.result() for future in [engine.submit(Square(n)) for n in range(20)]] == [
        n * n for n in range(20)
    ]
    assert engine.submit(Where()).result() in ray_processes()


def test_bad_input_comes_back_as_it_was_and_other_failures_with_their_traceback(engine):
    with pytest.raises(BadInput, match="on purpose"):
        engine.submit(Fail(BadInput)).result()
    with pytest.raises(TaskFailed, match="ZeroDivisionError: on purpose"):
        engine.submit(Fail(ZeroDivisionError)).result()


def test_a_task_whose_worker_dies_is_tried_again(engine, tmp_path):
    assert engine.submit(DieOnce(str(tmp_path / "mark"))).result() == "survived"


def test_a_task_that_kills_every_worker_is_given_up_and_the_engine_goes_on(engine, capfd):
    with pytest.raises(WorkerDied, match=r"died 3 times .* on Die; .*run the same command again"):
        engine.submit(Die()).result()
    assert engine.submit(Square(3)).result() == 9
    assert capfd.readouterr().out == ""


def test_a_task_that_cannot_be_sent_fails_instead_of_waiting_for_ever(engine):
    with pytest.raises(Exception, match="pickle"):
        engine.submit(lambda: 1).result(timeout=60)
    assert engine.submit(Square(3)).result() == 9


def test_workers_are_as_local_ones_are(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RayEngine() as there:
        asked = there.submit(Asked()).result()
    assert asked["folder"] == str(tmp_path)
    assert asked["cache"] == str(cache_folder())
    assert asked["interrupt"] == signal.SIG_IGN
    assert asked["path"][: len(sys.path)] == [path or str(tmp_path) for path in sys.path]


def test_a_task_that_says_what_it_needs_gets_it(engine, monkeypatch):
    assert isinstance(Wide(1), Demanding) and not isinstance(Square(1), Demanding)
    sent, options = [], engines_ray._deliver.options
    monkeypatch.setattr(
        engines_ray._deliver, "options", lambda **given: sent.append(given) or options(**given)
    )
    assert [engine.submit(task).result() for task in (Wide(3), Square(3))] == [9, 9]
    assert [(given["num_cpus"], given["num_gpus"]) for given in sent] == [(2, 0), (1, 0)]


def test_only_so_many_tasks_are_with_ray_as_it_can_soon_begin(engine):
    with RayEngine() as there:
        futures = [there.submit(Square(n)) for n in range(300)]
        most = 0
        while not all(future.done() for future in futures):
            most = max(most, len(there._under_way))
            time.sleep(0.001)
        assert there.workers == len(os.sched_getaffinity(0))
    assert 0 < most <= AHEAD * there.workers


def test_leaving_an_engine_ends_its_tasks_and_leaves_a_connection_that_was_there_alone(
    engine, tmp_path
):
    with RayEngine(workers=1) as there:
        under_way = there.submit(Sleep(str(tmp_path / "mark")))
        waiting = there.submit(Square(2))
        pid = int(
            wait_for(lambda: (tmp_path / "mark").exists() and (tmp_path / "mark").read_text())
        )
    assert waiting.cancelled()
    with pytest.raises(WorkerDied, match="was under way when the engine was left"):
        under_way.result()
    wait_for(lambda: "Sleep" not in ray_processes().get(pid, ""))
    assert ray.is_initialized()
    assert engine.submit(Square(3)).result() == 9


def test_a_node_that_does_not_see_a_folder_is_named_with_it(engine, tmp_path):
    with RayEngine(shared=[tmp_path / "store"]) as there:
        assert there.submit(Square(3)).result() == 9
        there._parcel = replace(there._parcel, marks=("/not/shared/.draft-x",))
        with pytest.raises(
            BadInput,
            match=rf"{os.uname().nodename} does not see the folder /not/shared of .*ASSAY_CACHE",
        ):
            there.submit(Square(3)).result()
    assert list((tmp_path / "store").iterdir()) == []


def test_a_node_with_another_version_of_assay_is_named(engine, monkeypatch):
    holding = Parcel.holding
    monkeypatch.setattr(
        Parcel, "holding", lambda parcel, task: replace(holding(parcel, task), source=own_source())
    )
    assert engine.submit(Square(3)).result() == 9
    monkeypatch.setattr(
        Parcel, "holding", lambda parcel, task: replace(holding(parcel, task), source="other")
    )
    with pytest.raises(
        BadInput,
        match=f"{os.uname().nodename} has another version of Assay than .* install the same one",
    ):
        engine.submit(Square(3)).result()


def test_a_process_of_the_cluster_holds_no_torch_before_a_task_needs_it():
    program = "import sys, assay.engines.parcel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_cluster_without_what_a_run_needs_is_refused(engine):
    with pytest.raises(
        BadInput, match=r"no node of the Ray cluster has 1 CPU, 3 GPU for a run \(.*: \d+ CPU\)"
    ):
        RayEngine(gpus_per_task=3).__enter__()


def test_a_task_that_no_node_can_take_is_refused_and_the_others_go_on(engine):
    with pytest.raises(
        BadInput,
        match=r"no node of the Ray cluster has 1 CPU, 3 GPU for a run .* give --device cpu",
    ):
        engine.submit(Wide(3, cpus=1, gpus=3)).result()
    with pytest.raises(
        BadInput,
        match=r"has 99 CPU for a run \(.*\); join one that has, or give a smaller --set threads",
    ):
        engine.submit(Wide(3, cpus=99)).result()
    assert engine.submit(Wide(3, cpus=0)).result() == 9
    assert engine.submit(Wide(3, cpus=1)).result() == 9


def test_a_node_that_is_lost_for_a_while_is_waited_for(engine, monkeypatch):
    assert engine.submit(Wide(3, cpus=1)).result() == 9
    monkeypatch.setattr(engines_ray, "_nodes", list)
    assert engine.submit(Wide(3, cpus=1)).result() == 9


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1", "ray://127.0.0.1:1"]
)
def test_an_address_at_which_nobody_listens_is_refused_at_once(address):
    with pytest.raises(
        BadInput, match=rf"--address {address}: no Ray cluster answers there .*`ray start --head`"
    ):
        engines_ray._join(address)


# --- benches --------------------------------------------------------------------------------------


def test_a_bench_gives_the_same_bytes_as_on_the_local_engine(engine, benched, tmp_path):
    folder, expected = benched
    bench(folder, tmp_path / "store")
    assert snapshot(tmp_path / "store") == expected


def test_a_killed_worker_changes_no_byte(engine, benched, tmp_path):
    folder, expected = benched
    killed = []

    def kill():
        killed.append(
            wait_for(
                lambda: next(
                    (pid for pid, does in ray_processes().items() if does == "ray::Training"), None
                )
            )
        )
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    bench(folder, tmp_path / "store")
    killer.join()
    assert killed
    assert snapshot(tmp_path / "store") == expected


@pytest.fixture
def short_folder(monkeypatch):
    """For the files of Ray: a path that is short enough for its sockets."""
    with tempfile.TemporaryDirectory(
        dir="/tmp", prefix="ray-", ignore_cleanup_errors=True
    ) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield folder


def start(folder, store, *address):
    command = [
        sys.executable,
        str(Path(__file__).parent / "on_ray.py"),
        str(folder),
        str(store),
        *address,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_two_runs(store, driver):
    wait_for(
        lambda: len(list(store.glob("runs/*/*/result.json"))) >= 2 or driver.poll() is not None
    )
    assert driver.poll() is None, driver.stderr.read()


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_of_its_ray_behind_and_the_next_one_ends_with_the_same_bytes(
    benched, short_folder, tmp_path
):
    folder, expected = benched
    with start(folder, tmp_path / "store") as driver:
        wait_for_two_runs(tmp_path / "store", driver)
        begun = descendants(driver.pid)
        driver.kill()
    assert begun & set(ray_processes())
    wait_for(lambda: not begun & set(ray_processes()))
    assert snapshot(tmp_path / "store") != expected
    with start(folder, tmp_path / "store") as driver:
        _, errors = driver.communicate()
    assert driver.returncode == 0, errors
    assert snapshot(tmp_path / "store") == expected


@pytest.fixture
def cluster(engine, short_folder):
    """A cluster of one node with one core, beside the Ray that the other tests use and with its
    token.
    """
    made = Cluster()
    made.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
    yield made
    made.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_under_a_bench_changes_no_byte(cluster, benched, tmp_path):
    folder, expected = benched
    doomed = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    with start(folder, tmp_path / "store", cluster.address) as driver:
        wait_for_two_runs(tmp_path / "store", driver)
        cluster.remove_node(doomed, allow_graceful=False)
        _, errors = driver.communicate()
    assert driver.returncode == 0, errors
    assert snapshot(tmp_path / "store") == expected
