"""Worker processes, the pool that keeps idle ones, and one function over many values."""

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Task = Callable[[], Any]
"""A function to call in a worker: small, picklable, without arguments.

An attribute `needs` of type `Needs` says what it needs of the process that runs it.
"""


@dataclass(frozen=True)
class Needs:
    """What a task needs of the process that runs it.

    Args:
        cpus: cores that it keeps busy.
        gpus: GPUs that it needs to itself.
        imports: the user's own files or modules that it imports (`--import`).
    """

    cpus: float = 1
    gpus: float = 0
    imports: tuple[str, ...] = ()


def needs_of(task: Task) -> Needs:
    """Return what the task says that it needs, or one core."""
    needs: Needs = getattr(task, "needs", Needs())
    return needs


class TaskFailed(RuntimeError):
    """An exception inside a worker.

    Args:
        traceback: its traceback as text, which is the text of this error.
        summary: the exception in one line.
    """

    def __init__(self, traceback: str, summary: str) -> None:
        super().__init__(traceback, summary)
        self.summary = summary

    def __str__(self) -> str:
        return str(self.args[0])


class ProcessEnded(RuntimeError):
    """A worker process that could not start or ended during a task; the text says how."""


def search_path() -> list[str]:
    """Return where this process looks for modules, the working folder by its name."""
    return [path or str(Path.cwd()) for path in sys.path]


class Worker:
    """A process that runs the tasks sent to it, one at a time.

    It is started as a program of its own, not forked and not by importing the caller's main module
    again, so that Assay works from any script or notebook.

    Args:
        environment: all its environment variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.imports: tuple[str, ...] = ()
        self.killed = False
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-P", "-m", "assay.workers.program"]
        with theirs, ExitStack() as on_failure:
            on_failure.callback(ours.close)
            self._process = subprocess.Popen(
                [*program, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
            self._connection = Connection(ours.detach())
            on_failure.pop_all()

    def run(self, task: Task) -> Any:
        """Return what the task returns and raise what it raises, or `ProcessEnded`."""
        self.imports = needs_of(task).imports or self.imports
        try:
            self._connection.send(task)
            done, value = self._connection.recv()
        except (EOFError, OSError):
            code = self.end()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise ProcessEnded(how) from None
        if not done:
            raise value
        return value

    def kill(self) -> None:
        """Kill the process, from any thread; `run` then raises `ProcessEnded`."""
        self.killed = True
        self._process.kill()

    def end(self) -> int:
        """Close the connection, end the process and return its exit code."""
        self._connection.close()
        self.kill()
        return self._process.wait()


class WorkerPool:
    """Worker processes that outlive the engine that started them, for the next one.

    An idle process is handed out again only where it would be the same as a new one: with the same
    environment variables and the same module search path. A process that has imported the user's
    own files is never handed out again, since it may hold an older version of them or register
    other parts under the same names. Engines in several threads may share a pool.

    Args:
        keep: idle processes that are kept at most; None: one for each core.
        ignore: environment variables that may differ, since no task reads them.
    """

    def __init__(self, keep: int | None = None, ignore: Collection[str] = ()) -> None:
        self._keep = len(os.sched_getaffinity(0)) if keep is None else keep
        self._ignore = frozenset(ignore)
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def take(self, variables: Mapping[str, str] | None = None) -> Worker:
        """Return an idle process that can serve, or a new one; raise `ProcessEnded` if none starts.

        It has the environment of this process with these variables, and the same working folder.
        """
        path = os.pathsep.join(search_path())
        environment = {**os.environ, "PYTHONPATH": path, **(variables or {})}
        while worker := self._take_idle(environment):
            try:
                worker.run(partial(os.chdir, Path.cwd()))
                return worker
            except (ProcessEnded, TaskFailed):  # it died while it was idle
                worker.end()
        try:
            return Worker(environment)
        except OSError as error:
            raise ProcessEnded(str(error)) from error

    def give_back(self, worker: Worker) -> None:
        """Keep an idle process for the next caller, or end it where it may not serve again."""
        surplus = [worker]
        if not (worker.imports or worker.killed):
            with self._lock:
                self._idle.append(worker)
                surplus = [self._idle.pop(0) for _ in self._idle[self._keep :]]
        for process in surplus:
            process.end()

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().end()

    def _take_idle(self, environment: Mapping[str, str]) -> Worker | None:
        """Return the process used last among those with this environment."""
        wanted = self._compared(environment)
        with self._lock:
            for number in reversed(range(len(self._idle))):
                if self._compared(self._idle[number].environment) == wanted:
                    return self._idle.pop(number)
        return None

    def _compared(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name not in self._ignore}


# --- one function over many values ---

ENOUGH = 80
"""Values from which on processes are worth their start; photos of 512 pixels come 85 at a time."""

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
