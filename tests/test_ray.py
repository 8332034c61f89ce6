"""What the engine for clusters has of its own, on a Ray of this machine: connections, nodes, needs
of tasks, and benches whose workers, drivers and nodes die.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

import faults
from assay.engines import ray as engines_ray
from assay.engines.ray import AHEAD, RayEngine, RemoteTask, connect
from assay.errors import BadInput
from assay.records.keys import own_source
from faults import descendants, does, wait_for
from miniature import BENCHED, MINI, bench_on, make_folder, snapshot
from shared_pool import local
from tasks import Resources, Square, Where, Wide

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
    bench_on(local(), make_folder(root / "mini"), root / "store")
    return root / "mini", snapshot(root / "store")


def ray_processes():
    """The processes of Ray on this machine, with what each is doing."""
    running = {int(path.name): does(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    return {
        pid: words
        for pid, words in running.items()
        if words.startswith("ray::") or "/site-packages/ray/" in words
    }


# --- the cluster ----------------------------------------------------------------------------------


def test_tasks_run_in_processes_of_ray(engine):
    assert engine.submit(Where()).result() in ray_processes()


def test_a_task_that_says_what_it_needs_gets_it(engine):
    assert engine.submit(Resources(cpus=2)).result() == {"CPU": 2}
    assert engine.submit(Resources(cpus=1)).result() == {"CPU": 1}


def test_only_so_many_tasks_are_with_ray_as_it_can_soon_begin(engine):
    with RayEngine() as there:
        futures = [there.submit(Square(n)) for n in range(300)]
        most = 0
        while not all(future.done() for future in futures):
            most = max(most, len(there._running))
            time.sleep(0.001)
        assert there.workers == len(os.sched_getaffinity(0))
    assert 0 < most <= AHEAD * there.workers


def test_closing_an_engine_leaves_a_connection_that_was_there_open(engine):
    with RayEngine(workers=1) as there:
        assert there.submit(Square(3)).result() == 9
    assert ray.is_initialized()
    assert engine.submit(Square(3)).result() == 9


def run_there(task):
    return ray.get(engines_ray._run_remote.remote(task))


def test_a_node_that_does_not_see_a_folder_is_named_with_it(engine, tmp_path):
    with RayEngine(shared=[tmp_path / "store"]) as there:
        assert there.submit(Square(3)).result() == 9
        assert len(list((tmp_path / "store").iterdir())) == 1
    assert list((tmp_path / "store").iterdir()) == []
    done, error = run_there(RemoteTask.pack(Square(3), [Path("/not/shared/.draft-x")]))
    assert not done
    node = os.uname().nodename
    with pytest.raises(
        BadInput, match=rf"{node} does not see the folder /not/shared of .*ASSAY_CACHE"
    ):
        raise error


def test_a_node_with_another_version_of_assay_is_named(engine):
    task = RemoteTask.pack(Square(3), [])
    assert run_there(replace(task, source=own_source())) == (True, 9)
    done, error = run_there(replace(task, source="other"))
    assert not done
    node = os.uname().nodename
    with pytest.raises(
        BadInput, match=f"{node} has another version of Assay than .* install the same one"
    ):
        raise error


def test_a_process_of_the_cluster_holds_no_torch_before_a_task_needs_it():
    program = "import sys, assay.engines.ray; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


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
        connect(address, ExitStack())


# --- benches --------------------------------------------------------------------------------------


@pytest.mark.slow
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
    bench_on(RayEngine(), folder, tmp_path / "store")
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
    more = ("--engine", "ray", "--device", "cpu", *address)
    return faults.start(f"folder:{folder}", store, BENCHED, MINI, *more)


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
    with start(folder, tmp_path / "store", "--address", cluster.address) as driver:
        wait_for_two_runs(tmp_path / "store", driver)
        cluster.remove_node(doomed, allow_graceful=False)
        _, errors = driver.communicate()
    assert driver.returncode == 0, errors
    assert snapshot(tmp_path / "store") == expected
