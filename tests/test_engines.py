"""The local engine: tasks in processes of their own, retried when one dies, ended with the driver."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.engines import LocalEngine, WorkerDied
from assay.errors import BadInput
from assay.records.store import Store
from assay.study.bench import Execution, driving
from assay.workers import TaskFailed
from tasks import Die, DieOnce, Fail, Sleep, Square, Variable, Where

pytestmark = pytest.mark.usefixtures("new_workers")


def is_alive(pid):
    """Whether the process runs; a zombie that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_tasks_give_what_they_give_in_other_processes():
    with LocalEngine(2) as engine:
        assert [future.result() for future in [engine.submit(Square(n)) for n in range(20)]] == [
            n * n for n in range(20)
        ]
        pids = {engine.submit(Where()).result() for _ in range(4)}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert not any(is_alive(pid) for pid in pids)


def test_bad_input_comes_back_as_it_was_and_other_failures_with_their_traceback():
    with LocalEngine(1) as engine:
        with pytest.raises(BadInput, match="on purpose"):
            engine.submit(Fail(BadInput)).result()
        with pytest.raises(TaskFailed, match="ZeroDivisionError: on purpose"):
            engine.submit(Fail(ZeroDivisionError)).result()
        assert engine.submit(Square(3)).result() == 9


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
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert LocalEngine.for_device("cuda").workers == 3
    assert LocalEngine.for_device("cpu").workers == LocalEngine().workers
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6")
    with LocalEngine.for_device("cuda", 1) as engine:
        assert engine.submit(Variable("CUDA_VISIBLE_DEVICES")).result() == "4"


def test_a_bench_takes_every_gpu_where_there_are_some(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    with driving(tmp_path / "auto", Execution(device="auto")) as (_, engine):
        assert engine.workers == 5
    with driving(tmp_path / "cpu", Execution(device="cpu")) as (_, engine):
        assert engine.workers == LocalEngine().workers


def test_a_task_whose_worker_dies_is_tried_again(tmp_path):
    with LocalEngine(1) as engine:
        assert engine.submit(DieOnce(str(tmp_path / "mark"))).result() == "survived"


def test_a_task_that_kills_every_worker_is_given_up_and_the_engine_goes_on():
    with LocalEngine(1) as engine:
        with pytest.raises(WorkerDied, match=r"3 times \(exit code 7\) on Die"):
            engine.submit(Die()).result()
        assert engine.submit(Square(3)).result() == 9


def test_leaving_ends_workers_in_the_middle_of_a_task(tmp_path):
    with LocalEngine(1) as engine:
        engine.submit(Sleep(str(tmp_path / "mark")))
        waiting = engine.submit(Square(2))
        wait_for(lambda: (tmp_path / "mark").exists() and (tmp_path / "mark").read_text())
        pid = int((tmp_path / "mark").read_text())
        assert is_alive(pid)
    assert not is_alive(pid)
    assert waiting.cancelled()


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from assay.engines import LocalEngine
from tasks import Sleep
with LocalEngine(1) as engine:
    engine.submit(Sleep({mark!r})).result()
"""


def test_workers_do_not_outlive_a_killed_driver(tmp_path):
    script = DRIVER.format(tests=str(Path(__file__).parent), mark=str(tmp_path / "mark"))
    with subprocess.Popen([sys.executable, "-c", script]) as driver:
        wait_for(lambda: (tmp_path / "mark").exists() and (tmp_path / "mark").read_text())
        pid = int((tmp_path / "mark").read_text())
        driver.kill()
    wait_for(lambda: not is_alive(pid))


def test_a_task_that_cannot_be_sent_fails_instead_of_waiting_for_ever():
    with LocalEngine(1) as engine:
        with pytest.raises(Exception, match="pickle"):
            engine.submit(lambda: 1).result(timeout=60)
        assert engine.submit(Square(3)).result() == 9


def test_a_script_without_a_main_guard_can_use_the_engine(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom assay.engines import LocalEngine\nfrom operator import methodcaller\nfrom"
        " functools import partial\nwith LocalEngine(1) as engine:\n   "
        " print(engine.submit(partial(pow, 2, 5)).result())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "32\n"


def test_where_no_worker_can_be_started_the_task_fails(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr("assay.workers.process.subprocess.Popen", refuse)
    with LocalEngine(1) as engine, pytest.raises(WorkerDied, match="no more processes"):
        engine.submit(Square(2)).result(timeout=60)


def test_files_in_the_working_folder_do_not_shadow_the_standard_library(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    with LocalEngine(1) as engine:
        assert engine.submit(Square(3)).result(timeout=60) == 9


def place(store, worker):
    with store.new_run("ab" * 32) as folder:
        for name in ("config.json", "result.json"):
            (folder / name).write_text(worker)


def test_of_workers_that_place_the_same_run_one_does_and_none_fails(tmp_path):
    store = Store.create(tmp_path / "store")
    for _ in range(20):
        with ThreadPoolExecutor(8) as workers:
            list(workers.map(lambda worker: place(store, str(worker)), range(8)))
        (folder,) = (tmp_path / "store" / "runs" / "ab").iterdir()
        assert len({path.read_text() for path in folder.iterdir()}) == 1
        shutil.rmtree(folder)


def test_a_run_that_another_worker_places_meanwhile_is_never_removed(tmp_path, monkeypatch):
    store = Store.create(tmp_path / "store")
    remove = shutil.rmtree

    def too_late(path, **options):
        monkeypatch.undo()
        place(store, "the other")
        remove(path, **options)

    monkeypatch.setattr("assay.records.store.shutil.rmtree", too_late)
    with store.new_run("ab" * 32) as folder:
        (folder / "result.json").write_text("ours")
        if shutil.rmtree is too_late:
            monkeypatch.undo()
            place(store, "the other")
        assert store.has_run("ab" * 32)
    assert (store.run("ab" * 32) / "result.json").read_text() == "the other"
