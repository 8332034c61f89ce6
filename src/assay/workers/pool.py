"""One function of many values, on all cores."""

import atexit
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from assay.workers.process import Worker

T = TypeVar("T")
R = TypeVar("R")

FEW = 64
"""Values for which starting processes takes longer than the work."""

SHARE = 16
"""Values that a process gets at a time."""

_idle: "queue.LifoQueue[Worker]" = queue.LifoQueue()
_cores = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Held by whoever has a process at work: callers in several threads share the cores."""


def in_threads(function: Callable[[T], R], values: Sequence[T]) -> list[R]:
    """The function of each value, in order, in threads: for work that leaves the interpreter's lock
    alone.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, values))


def in_processes(function: Callable[[T], R], values: Sequence[T]) -> list[R]:
    """The function of each value, in order, in processes where there are enough of them; function
    and values are picklable.

    Processes stay for the next call and end with this one.
    """
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or len(values) < FEW:
        return [function(value) for value in values]
    here = Path.cwd()
    shares = [
        _Share(function, values[start : start + SHARE], here)
        for start in range(0, len(values), SHARE)
    ]
    with ThreadPoolExecutor(cores) as threads:
        return [result for results in threads.map(_run, shares) for result in results]


@dataclass(frozen=True)
class _Share:
    """Some of the values, and the folder that relative paths among them start from: a process may
    be older than that.
    """

    function: Callable[[Any], Any]
    values: Sequence[Any]
    folder: Path

    def __call__(self) -> list[Any]:
        os.chdir(self.folder)
        return [self.function(value) for value in self.values]


def _run(share: _Share) -> list[Any]:
    """In a process that is free, in a new one where it dies under the share the first time."""
    with _cores:
        try:
            return _attempt(share)
        except _Died:
            pass
        try:
            return _attempt(share)
        except _Died as died:
            raise RuntimeError(
                f"a process died on {share.values[0]} or one of the {len(share.values) - 1} after"
                f" it (exit code {died}); if memory ran out, close other programs, else remove what"
                " it cannot read"
            ) from died


class _Died(Exception):
    """A process ended under a share; holds its exit code."""


def _attempt(share: _Share) -> list[Any]:
    worker = _take()
    future: Future[list[Any]] = Future()
    try:
        worker.run(share, future)
    except (EOFError, OSError):
        raise _Died(worker.end()) from None
    _idle.put(worker)
    return future.result()


def _take() -> Worker:
    try:
        return _idle.get_nowait()
    except queue.Empty:
        return Worker()


@atexit.register
def _end_all() -> None:
    while not _idle.empty():
        _idle.get_nowait().end()
