"""Engines: the laws that all of them obey, and what each has of its own."""

import errno
import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import assay
from assay.engines import InlineEngine, LocalEngine, TaskFailed, WorkerDied, choose_engine
from assay.errors import BadInput
from assay.files import cache_folder
from assay.records.store import Store
from assay.records.study import study_records
from faults import does, wait_for
from miniature import bench_on, make_folder, snapshot
from shared_pool import local
from tasks import (
    Circumstances,
    Count,
    Die,
    DieOnce,
    Fail,
    FillDisk,
    Interrupt,
    Sleep,
    Square,
    Variable,
    Where,
)

pytestmark = [
    # Ray's own: a file that is closed by the collector, a process that is not waited for
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ALL = ("inline", "local", "local with a pool", "ray")
every_engine = pytest.mark.parametrize("kind", ALL)
every_engine_with_processes = pytest.mark.parametrize("kind", ALL[1:])


@pytest.fixture(scope="module")
def ray_here():
    """A Ray of this machine, which every `RayEngine` of this module uses."""
    from assay.engines.ray import connect

    with ExitStack() as stack:
        connect(None, stack)
        yield


@pytest.fixture
def engine(kind, request):
    """An engine of this kind, not yet open."""
    if kind == "ray":
        request.getfixturevalue("ray_here")
        return choose_engine("ray")
    return {"inline": InlineEngine, "local": LocalEngine, "local with a pool": local}[kind]()


# --- every engine ---------------------------------------------------------------------------------


@every_engine
def test_every_task_runs_once_and_its_future_has_its_result(engine, tmp_path):
    with engine:
        futures = [engine.submit(Count(str(tmp_path), number)) for number in range(20)]
        assert [future.result() for future in futures] == list(range(20))
        assert engine.workers >= 1
    ran = sorted(int(path.name.partition("-")[0]) for path in tmp_path.iterdir())
    assert ran == list(range(20))


@every_engine
def test_errors_come_back_to_the_driver_and_the_engine_goes_on(engine):
    """Bad input and a full disk as they were, anything else with its traceback."""
    with engine:
        with pytest.raises(BadInput, match="on purpose"):
            engine.submit(Fail(BadInput)).result()
        with pytest.raises(OSError, match="no room") as full:
            engine.submit(FillDisk()).result()
        assert (full.value.errno, full.value.filename) == (errno.ENOSPC, "a file")
        with pytest.raises(TaskFailed, match=r"(?s)tasks.py.*ZeroDivisionError: on purpose"):
            engine.submit(Fail(ZeroDivisionError)).result()
        with pytest.raises(TaskFailed, match=r"(?s)tasks.py.*SystemExit: on purpose"):
            engine.submit(Fail(SystemExit)).result()
        assert engine.submit(Square(3)).result() == 9


@every_engine
def test_an_engine_can_be_opened_again(engine):
    for number in range(2):
        with engine:
            assert engine.submit(Square(number)).result() == number**2


@every_engine
def test_a_task_finds_the_folder_the_cache_and_the_modules_of_the_driver(
    engine, tmp_path, monkeypatch
):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        with engine:
            found = engine.submit(Circumstances()).result()
        assert found["folder"] == str(folder)
        assert found["cache"] == str(cache_folder())
        ours = [path or str(folder) for path in sys.path]
        theirs = [path or str(folder) for path in found["path"]]
        assert list(dict.fromkeys(filter(set(ours).__contains__, theirs))) == list(
            dict.fromkeys(ours)
        )


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """Miniature data, and the store that a bench on the inline engine makes of them."""
    root = tmp_path_factory.mktemp("inline")
    threads = torch.get_num_threads()
    bench_on(InlineEngine(), make_folder(root / "mini"), root / "store")
    assert torch.get_num_threads() == threads
    kept = [run for record in study_records(Store(root / "store")) for run in record.reproductions]
    assert any(run.best_epoch > 0 for run in kept), "every run kept its initial weights"
    return root / "mini", snapshot(root / "store")


@pytest.mark.parametrize("kind", ["local with a pool", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_bench_gives_the_same_bytes_as_on_the_inline_engine(engine, benched, tmp_path):
    folder, expected = benched
    bench_on(engine, folder, tmp_path / "store")
    assert snapshot(tmp_path / "store") == expected


# --- engines with processes -----------------------------------------------------------------------


@every_engine_with_processes
def test_tasks_run_in_other_processes_that_leave_ctrl_c_to_the_driver(engine):
    with engine:
        pids = {engine.submit(Where()).result() for _ in range(4)}
        assert engine.submit(Circumstances()).result()["interrupt"] == signal.SIG_IGN
    assert os.getpid() not in pids
    assert len(pids) <= engine.workers


@every_engine_with_processes
def test_a_task_whose_worker_dies_is_tried_again(engine, tmp_path):
    with engine:
        assert engine.submit(DieOnce(str(tmp_path / "mark"))).result() == "survived"


@every_engine_with_processes
def test_a_task_that_kills_every_worker_is_named_and_the_engine_goes_on(engine, capfd):
    with engine:
        with pytest.raises(WorkerDied, match=r"a worker process died 3 times \(.+\) on Die; if"):
            engine.submit(Die()).result()
        assert engine.submit(Square(3)).result() == 9
    assert capfd.readouterr().out == ""


@every_engine_with_processes
def test_a_task_that_cannot_be_sent_fails_instead_of_waiting_for_ever(engine):
    with engine:
        with pytest.raises(Exception, match="pickle"):
            engine.submit(lambda: 1).result(timeout=60)
        assert engine.submit(Square(3)).result() == 9


@every_engine_with_processes
def test_closing_ends_running_tasks_and_cancels_waiting_ones(engine, tmp_path):
    with engine:
        marks = [tmp_path / str(number) for number in range(engine.workers)]
        running = [engine.submit(Sleep(str(mark))) for mark in marks]
        waiting = [engine.submit(Square(2)) for _ in range(5 * engine.workers)]
        wait_for(lambda: all(mark.exists() for mark in marks))
    for future in running:
        with pytest.raises(WorkerDied, match="Sleep was running when the engine was closed"):
            future.result()
    assert waiting[-1].cancelled()
    pids = [int(mark.read_text()) for mark in marks]
    wait_for(lambda: not any("Sleep" in does(pid) or "program" in does(pid) for pid in pids))
    with engine:
        assert engine.submit(Square(3)).result() == 9


# --- inline ---------------------------------------------------------------------------------------


def test_an_inline_task_is_done_in_this_process_when_submit_returns():
    with InlineEngine() as engine:
        future = engine.submit(Where())
        assert future.done() and future.result() == os.getpid()


def test_a_debugger_finds_the_line_where_an_inline_task_failed():
    with InlineEngine() as engine, pytest.raises(TaskFailed) as failed:
        engine.submit(Fail(ZeroDivisionError)).result()
    assert traceback.extract_tb(failed.value.__traceback__)[-1].filename.endswith("tasks.py")


def test_ctrl_c_interrupts_an_inline_task():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with InlineEngine() as engine, pytest.raises(KeyboardInterrupt):
            engine.submit(Interrupt())
    finally:
        signal.signal(signal.SIGINT, before)


# --- local ----------------------------------------------------------------------------------------


def test_processes_end_with_the_engine_that_started_them():
    with LocalEngine(2) as engine:
        pids = {future.result() for future in [engine.submit(Where(0.1)) for _ in range(8)]}
    assert len(pids) == 2
    assert not any(does(pid) for pid in pids)


def test_each_worker_sees_one_gpu_alone_and_a_new_one_the_same():
    with LocalEngine(gpus=["3", "GPU-5"]) as engine:
        assert engine.workers == 2
        together = [engine.submit(Variable("CUDA_VISIBLE_DEVICES", pause=0.5)) for _ in range(2)]
        assert sorted(future.result() for future in together) == ["3", "GPU-5"]
    with LocalEngine(1, gpus=["3", "5"]) as engine:
        with pytest.raises(WorkerDied):
            engine.submit(Die()).result()
        assert engine.submit(Variable("CUDA_VISIBLE_DEVICES")).result() == "3"


def test_runs_on_gpus_take_one_each_of_those_that_are_visible(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert choose_engine("local", device="auto").workers == 3
    assert choose_engine("local", device="cpu").workers == LocalEngine().workers
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6")
    with choose_engine("local", 1, device="cuda") as engine:
        assert engine.submit(Variable("CUDA_VISIBLE_DEVICES")).result() == "4"


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from assay.engines import LocalEngine
from tasks import Sleep
with LocalEngine(1) as engine:
    engine.submit(Sleep({mark!r})).result()
"""


def test_workers_do_not_outlive_a_killed_driver(tmp_path):
    mark = tmp_path / "mark"
    script = DRIVER.format(tests=str(Path(__file__).parent), mark=str(mark))
    with subprocess.Popen([sys.executable, "-c", script]) as driver:
        pid = int(wait_for(lambda: mark.exists() and mark.read_text()))
        driver.kill()
    wait_for(lambda: not does(pid))


@pytest.mark.parametrize("when", ["idle", "busy", "answered"])
def test_a_worker_whose_driver_is_gone_ends_without_a_word(when):
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-P", "-m", "assay.workers.program", str(theirs.fileno())]
    tests = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        [*words, str(os.getpid())], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, env=tests
    ) as worker:
        theirs.close()
        with Connection(ours.detach()) as driver:
            driver.send(Where())
            driver.recv()
            if when != "idle":
                driver.send(Where(0.3 if when == "busy" else 0))
            if when == "answered":
                assert driver.poll(30)
        _, said = worker.communicate(timeout=30)
    assert (worker.returncode, said) == (0, b"")


def test_a_script_without_a_main_guard_can_use_the_engine(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\n"
        "from assay.engines import LocalEngine\n"
        "with LocalEngine(1) as engine:\n"
        "    print(engine.submit(partial(pow, 2, 5)).result())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "32\n"


def test_where_no_worker_can_be_started_the_task_fails(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr("assay.workers.pool.subprocess.Popen", refuse)
    with LocalEngine(1) as engine, pytest.raises(WorkerDied, match="no more processes"):
        engine.submit(Square(2)).result(timeout=60)


def test_files_in_the_working_folder_do_not_shadow_the_standard_library(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    with LocalEngine(1) as engine:
        assert engine.submit(Square(3)).result(timeout=60) == 9


# --- by name --------------------------------------------------------------------------------------


def test_an_engine_that_cannot_be_had_is_refused_with_the_remedy():
    for options, message in {
        ("warp",): "--engine warp: choose local, ray or inline",
        ("local", None, "anna:6379"): "--address anna:6379 .* add --engine ray",
        ("inline", 4): "in this process, not in 4 workers; leave --workers out",
    }.items():
        with pytest.raises(BadInput, match=message):
            choose_engine(*options)


def test_an_engine_handed_to_a_bench_has_its_own_workers(mini_features, tmp_path):
    for option in ({"workers": 2}, {"address": "auto"}):
        with pytest.raises(BadInput, match="the engine's own"):
            assay.bench(
                f"features:{mini_features}",
                ["triplet"],
                engine=InlineEngine(),
                out=tmp_path,
                **option,
            )
