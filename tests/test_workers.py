"""One function of many values in several processes: order, errors, and processes that die."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from assay.errors import BadInput
from assay.workers import TaskFailed, in_processes, in_threads
from assay.workers.pool import FEW, SHARE
from tasks import die_at, die_once_at, fail_at, square, where

MANY = range(FEW + 3 * SHARE + 5)


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


def test_the_same_processes_do_the_next_work_too(two_cores):
    assert set(in_processes(where, MANY)) & set(in_processes(where, MANY))


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
    assert set(in_processes(where, MANY[: FEW - 1])) == {os.getpid()}


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
