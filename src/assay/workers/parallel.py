"""One function over many values, on all cores."""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from assay.workers.pool import ProcessEnded, WorkerPool

Item = TypeVar("Item")
Result = TypeVar("Result")

ENOUGH = 64
"""Values from which on processes are worth their start."""

SHARE = 16
"""Values that a process gets at a time."""

POOL = WorkerPool()
"""Processes that stay for the next call, until this one ends."""

atexit.register(POOL.close)

_cores = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Held while a process works, so that callers in several threads share the cores."""


def in_threads(function: Callable[[Item], Result], values: Sequence[Item]) -> list[Result]:
    """Return the function of each value, in order, computed in threads.

    For work that does not hold the interpreter's lock.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(function, values))


def in_processes(
    function: Callable[[Item], Result], values: Sequence[Item], pool: WorkerPool = POOL
) -> list[Result]:
    """Return the function of each value, in order, computed in processes if there are many values.

    Function and values are picklable.
    """
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or len(values) < ENOUGH:
        return [function(value) for value in values]
    shares = [values[start : start + SHARE] for start in range(0, len(values), SHARE)]
    with ThreadPoolExecutor(cores) as threads:
        done = threads.map(partial(_run_share, pool, function), shares)
        return [result for results in done for result in results]


def _run_share(
    pool: WorkerPool, function: Callable[[Item], Result], values: Sequence[Item]
) -> list[Result]:
    """Compute the values in a process of the pool, again in another where the first one dies."""
    died = None
    with _cores:
        for _ in range(2):
            worker = pool.take()
            try:
                results: list[Result] = worker.run(partial(_apply, function, values))
                return results
            except ProcessEnded as ended:
                died = ended
            finally:
                pool.give_back(worker)
    raise RuntimeError(
        f"a process died on {values[0]} or one of the {len(values) - 1} after it ({died}); if"
        " memory ran out, close other programs, else remove what it cannot read"
    ) from died


def _apply(function: Callable[[Item], Result], values: Sequence[Item]) -> list[Result]:
    return [function(value) for value in values]
