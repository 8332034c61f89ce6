"""Worker processes: which ones a pool hands out again, and one function over many values."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from assay.engines import LocalEngine
from assay.errors import BadInput
from assay.workers import ProcessEnded, TaskFailed, WorkerPool, in_processes, in_threads
from assay.workers.pool import ENOUGH, SHARE
from faults import does, wait_for
from tasks import Die, Importing, Where, die_at, die_once_at, fail_at, square, where

MANY = range(ENOUGH + 3 * SHARE + 5)


# --- the pool -------------------------------------------------------------------------------------


@pytest.fixture
def pool():
    with WorkerPool(keep=2, ignore=("PYTEST_CURRENT_TEST",)) as made:
        yield made


def pid_of(pool, task=None, variables=None):
    """The number of the process that the pool hands out for a task."""
    worker = pool.take(variables)
    try:
        return worker.run(task or Where())
    finally:
        pool.give_back(worker)


def test_an_idle_process_serves_the_next_caller(pool):
    first = pid_of(pool)
    assert pid_of(pool) == first
    with LocalEngine(1, pool=pool) as engine:
        assert engine.submit(Where()).result() == first
    assert pid_of(pool) == first


def test_a_process_with_another_environment_or_search_path_serves_nobody_else(
    pool, monkeypatch, tmp_path
):
    first, other = pid_of(pool), pid_of(pool, variables={"CUDA_VISIBLE_DEVICES": "3"})
    assert first != other
    assert pid_of(pool) == first
    with monkeypatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path))
        assert pid_of(pool) not in (first, other)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert pid_of(pool) not in (first, other)


def test_a_process_that_imported_files_of_the_user_serves_no_other_engine(pool):
    own = pid_of(pool, Importing(("mine.py",)))
    wait_for(lambda: not does(own))
    assert pid_of(pool, Importing(("mine.py",))) != own


def test_a_process_runs_tasks_of_one_set_of_imports_only(pool):
    with LocalEngine(1, pool=pool) as engine:
        sets = ((), ("a.py",), ("a.py",), ("b.py",), (), ())
        pids = [engine.submit(Importing(imports)).result() for imports in sets]
    assert pids[0] == pids[1] == pids[2]
    assert pids[4] == pids[5]
    assert len(set(pids)) == 3


def test_a_process_that_died_idle_is_replaced(pool):
    first = pid_of(pool)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not does(first))
    assert pid_of(pool) != first


def test_a_process_that_dies_says_how_and_is_not_kept(pool):
    with pytest.raises(ProcessEnded, match="exit code 7"):
        pid_of(pool, Die())
    assert pid_of(pool) == pid_of(pool)


def test_a_pool_keeps_so_many_idle_processes_and_ends_them_when_it_is_closed():
    pool = WorkerPool(keep=1)
    workers = [pool.take() for _ in range(2)]
    pids = [worker.run(Where()) for worker in workers]
    for worker in workers:
        pool.give_back(worker)
    assert [bool(does(pid)) for pid in pids] == [False, True]
    pool.close()
    assert not does(pids[1])


# --- many values ----------------------------------------------------------------------------------


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


@pytest.mark.parametrize("each", [in_processes, in_threads])
@pytest.mark.parametrize("count", [0, 1, SHARE, len(MANY)])
def test_results_come_in_the_order_of_the_values(two_cores, each, count):
    assert each(square, range(count)) == [number * number for number in range(count)]


def test_many_values_are_shared_among_other_processes(two_cores):
    pids = in_processes(where, MANY)
    assert os.getpid() not in pids
    assert len(set(pids)) == 2


def test_the_same_processes_do_the_next_work_too(two_cores, pool):
    first = set(in_processes(where, MANY, pool))
    assert first == set(in_processes(where, MANY, pool))


def test_relative_paths_start_from_where_the_caller_is_now(two_cores, tmp_path, monkeypatch):
    in_processes(square, MANY)
    monkeypatch.chdir(tmp_path)
    assert set(in_processes(Path.absolute, [Path("here")] * len(MANY))) == {tmp_path / "here"}


def test_callers_in_several_threads_share_the_cores(two_cores):
    with ThreadPoolExecutor(4) as threads:
        pids = [
            pid
            for found in threads.map(lambda _: in_processes(where, MANY), range(4))
            for pid in found
        ]
    assert len(set(pids)) <= os.cpu_count()


def test_few_values_stay_here(two_cores):
    assert set(in_processes(where, MANY[: ENOUGH - 1])) == {os.getpid()}


def test_one_core_needs_no_other_process(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert set(in_processes(where, MANY)) == {os.getpid()}


def test_arrays_come_back_as_they_were(two_cores):
    found = in_processes(np.arange, MANY)
    assert [array.tolist() for array in found] == [list(range(number)) for number in MANY]


def test_bad_input_comes_back_as_it_was_and_other_failures_with_their_traceback(two_cores):
    with pytest.raises(BadInput, match="on purpose"):
        in_processes(partial(fail_at, BadInput, 70), MANY)
    with pytest.raises(TaskFailed, match="ZeroDivisionError: on purpose"):
        in_processes(partial(fail_at, ZeroDivisionError, 70), MANY)
    assert in_processes(square, MANY)[-1] == MANY[-1] ** 2


def test_a_share_whose_process_dies_is_tried_again(two_cores, tmp_path: Path):
    found = in_processes(partial(die_once_at, str(tmp_path / "mark"), 70), MANY)
    assert found == list(MANY)
    assert (tmp_path / "mark").exists()


def test_a_value_that_kills_every_process_is_named_and_nothing_else_is_lost(two_cores):
    with pytest.raises(
        RuntimeError, match=r"a process died on 64 or one of the 15 after it \(exit code 7\)"
    ):
        in_processes(partial(die_at, 70), MANY)
    assert in_processes(square, MANY)[-1] == MANY[-1] ** 2
