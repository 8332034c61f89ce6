"""The engine for clusters: the same tasks in worker processes of Ray, on one machine or many.

Ray finds each task a node with the cores and GPUs it needs, runs one task at a time in a process,
and tries a task again where its process or the whole node dies. Only as many tasks are with Ray as
can start soon; the others wait here, not yet pickled.
"""

import logging
import os
import queue
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Self

from assay.engines.engine import ATTEMPTS, WorkerDied, explain_closing, explain_deaths
from assay.errors import BadInput, in_one_line
from assay.files import DRAFT, cache_folder
from assay.workers import Needs, Task, TaskFailed, needs_of
from assay.workers.pool import search_path
from assay.workers.program import prepare_process, run_packed

try:
    import ray
    from ray import ObjectRef, exceptions
    from ray._private import worker as ray_worker
except ImportError:
    raise BadInput("the engine ray needs the package ray: pip install 'ray>=2.52'") from None

AHEAD = 2
"""Tasks with Ray for each that can run, so that a process that is done finds the next one waiting.
"""

REFRESH = 5.0
"""Seconds after which the size of the cluster is read again."""

CONNECT = 30.0
"""Seconds in which the head of a running cluster answers."""

OBJECT_STORE = 80_000_000
"""Bytes that a local Ray keeps for large values, about the minimum: tasks return small ones."""

DEATHS = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
)


class RayEngine:
    """Runs tasks on a Ray cluster.

    Args:
        address: `host:port` of the cluster, or `auto` for the one that this machine belongs to;
            None starts Ray on this machine alone, with all its cores. Where the program is
            connected to Ray already, that connection is used and left open.
        workers: tasks at a time; None: as many as the cluster has room for.
        shared: folders that every node must see, the run store and the cache; the error for a node
            that does not see one names both.
    """

    def __init__(
        self, address: str | None = None, workers: int | None = None, *, shared: Sequence[Path] = ()
    ) -> None:
        self.workers = workers or 0
        self._address, self._limit, self._shared = address, workers, tuple(shared)
        self._possible: set[Needs] = set()
        self._waiting: deque[tuple[Task, Future[Any]]] = deque()
        self._running: dict[ObjectRef[Any], tuple[Task, Future[Any]]] = {}
        self._events: queue.SimpleQueue[ObjectRef[Any] | None] = queue.SimpleQueue()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._marks = stack.enter_context(_marked(self._shared))
            if not ray.is_initialized():
                connect(self._address, stack)
            self._possible.clear()
            self._check_room(Needs())
            self.workers = self._limit or _slots(Needs())
            self._stack = stack.pop_all()
        self._closing, self._refreshed = False, 0.0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the cluster; Ray ends the running tasks."""
        self._closing = True
        self._events.put(None)
        self._thread.join()
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        for reference, (task, future) in self._running.items():
            ray.cancel(reference, force=True)
            future.set_exception(WorkerDied(explain_closing(task)))
        self._running.clear()
        self._stack.close()

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task for the cluster."""
        future: Future[Any] = Future()
        self._waiting.append((task, future))
        self._events.put(None)
        return future

    def _serve(self) -> None:
        """Complete the futures of finished tasks and send waiting ones, until the engine is closed.

        Only this thread talks to Ray.
        """
        while not self._closing:
            try:
                done = self._events.get(timeout=REFRESH)
            except queue.Empty:
                done = None
            if done is not None:
                self._complete(done)
            while self._waiting and len(self._running) < self._room():
                self._send(*self._waiting.popleft())

    def _room(self) -> int:
        """Return how many tasks may be with Ray."""
        if self._limit is not None:
            return self._limit
        if time.monotonic() - self._refreshed > REFRESH:
            self._refreshed = time.monotonic()
            self.workers = _slots(Needs()) or self.workers  # no node left: wait for one as before
        return AHEAD * self.workers

    def _send(self, task: Task, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        needs = needs_of(task)
        try:
            self._check_room(needs)
            remote = RemoteTask.pack(task, self._marks)
        except Exception as error:  # no node can take it, or it cannot be pickled
            future.set_exception(error)
            return
        reference = _run_remote.options(
            num_cpus=needs.cpus, num_gpus=needs.gpus, name=type(task).__name__
        ).remote(remote)
        self._running[reference] = task, future
        reference.future().add_done_callback(lambda _: self._events.put(reference))

    def _complete(self, reference: "ObjectRef[Any]") -> None:
        if reference not in self._running:  # a task that was lost when the engine was closed before
            return
        task, future = self._running.pop(reference)
        try:
            done, value = ray.get(reference)
        except DEATHS as error:
            done, value = False, WorkerDied(explain_deaths(task, _first_line(error)))
        except Exception as error:  # such as a node on which Assay cannot be imported
            done, value = False, TaskFailed(str(error), in_one_line(error))
        if done:
            future.set_result(value)
        else:
            future.set_exception(value)

    def _check_room(self, needs: Needs) -> None:
        """Raise `BadInput` where no node has ever had what a task needs; a lost node may return."""
        if needs in self._possible:
            return
        if _slots(needs) == 0:
            nodes = [f"{node['NodeManagerHostname']}: {_in_words(_has(node))}" for node in _nodes()]
            remedy = "--device cpu" if needs.gpus else "a smaller --set threads"
            raise BadInput(
                f"no node of the Ray cluster has {_in_words(needs)} for a run"
                f" ({'; '.join(nodes) or 'no node is alive'}); join one that has, or give {remedy}"
            )
        self._possible.add(needs)


# --- a task in a process on another machine -------------------------------------------------------


@dataclass(frozen=True)
class RemoteTask:
    """A pickled task, to be run as a worker process of the driver's machine would run it.

    Args:
        packed: the task.
        source: hash of the code that the results of Assay's own tasks depend on; None for others.
        host: name of the driver's machine.
        folder: where relative paths start from.
        cache: the cache folder.
        path: where modules are looked for.
        marks: files that every machine with the driver's disks can see.
    """

    packed: bytes
    source: str | None
    host: str
    folder: str
    cache: str
    path: tuple[str, ...]
    marks: tuple[str, ...]

    @classmethod
    def pack(cls, task: Task, marks: Sequence[Path]) -> Self:
        """Return the task with the circumstances of this process; raise what pickling raises."""
        return cls(
            packed=bytes(ForkingPickler.dumps(task)),
            source=_own_source() if type(task).__module__.startswith("assay.") else None,
            host=socket.gethostname(),
            folder=str(Path.cwd()),
            cache=str(cache_folder().absolute()),
            path=tuple(search_path()),
            marks=tuple(map(str, marks)),
        )

    def run(self) -> tuple[bool, Any]:
        """Run the task here; return whether it succeeded, with its result or the error to raise."""
        _prepare_once()
        sys.path[:] = [*self.path, *(own for own in sys.path if own not in self.path)]
        os.environ["ASSAY_CACHE"] = self.cache
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        try:
            _check_node(self.host, self.marks, self.source)
        except BadInput as error:
            return False, error
        return run_packed(self.packed)


_run_remote = ray.remote(max_retries=ATTEMPTS - 1)(RemoteTask.run)
_prepare_once = lru_cache(maxsize=1)(prepare_process)


@lru_cache
def _check_node(driver: str, marks: Sequence[str], source: str | None) -> None:
    """Raise `BadInput` where this machine has other folders or another Assay than the driver's."""
    here = socket.gethostname()
    for mark in marks:
        if not Path(mark).exists():
            raise BadInput(
                f"{here} does not see the folder {Path(mark).parent} of {driver}, which drives the"
                " bench: give --out and set ASSAY_CACHE to folders on a disk that all nodes share"
                " under the same path (docs/cluster.md)"
            )
    if source is not None and source != _own_source():
        raise BadInput(
            f"{here} has another version of Assay than {driver}, which drives the bench: install"
            " the same one on all nodes, or one on a disk that they share"
        )


def _own_source() -> str:
    from assay.records.keys import own_source

    return own_source()


@contextmanager
def _marked(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """Keep a file in each folder, by which another machine can tell that it sees the same folder.

    The files are named as drafts are: those that a killed driver leaves in a store are removed when
    the store is driven again.
    """
    with ExitStack() as stack:
        files = []
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInput(
                    f"{folder} cannot be made ({error.strerror}); the nodes of a cluster need one"
                    " that all can write to"
                ) from None
            mark = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=folder.absolute(), prefix=DRAFT)
            )
            files.append(Path(mark.name))
        yield files


# --- the cluster ----------------------------------------------------------------------------------


def connect(address: str | None, stack: ExitStack, cores: int | None = None) -> None:
    """Connect to the cluster at the address until the stack is closed.

    Without an address, Ray starts on this machine as a cluster of so many cores, or of all.
    """
    _quieten()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        _join(address, quiet)
    else:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else in the home folder
        # Ray's sockets need short paths, which a job's own TMPDIR often is not
        place = os.environ.get("RAY_TMPDIR", "/tmp")
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(dir=place, prefix="assay-ray-", ignore_cleanup_errors=True)
        )
        ray.init(
            address="local",
            num_cpus=cores or len(os.sched_getaffinity(0)),
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            _temp_dir=folder,
            **quiet,
        )
    stack.callback(ray.shutdown)


def _join(address: str, quiet: Mapping[str, Any]) -> None:
    try:
        if address != "auto":  # Ray itself would try for more than a minute
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT).close()
        ray.init(address=address, **quiet)
    except (OSError, exceptions.RayError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"--address {address}: no Ray cluster answers there"
            f" ({_first_line(error.__cause__ or error)}); start one with `ray start --head` and"
            " give the host:port that it prints, or `auto` on one of its nodes"
        ) from error


def _quieten() -> None:
    """Have Ray send no statistics and print errors only, on stderr."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # as future versions; else Ray warns
    os.environ.setdefault("RAY_task_oom_retries", str(ATTEMPTS - 1))
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray_worker.print_to_stdstream = _print_to_stderr


_print_to_stdstream = ray_worker.print_to_stdstream


def _print_to_stderr(data: Any, ignore_prefix: bool) -> Any:
    """Print Ray's messages about dead workers on stderr: stdout is for results."""
    return _print_to_stdstream({**data, "is_err": True}, ignore_prefix)


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _has(node: Mapping[str, Any]) -> Needs:
    """Return all that a node offers."""
    return Needs(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))


def _slots(needs: Needs) -> int:
    """Return how many tasks with these needs all nodes together can run at a time."""
    slots = 0
    for has in map(_has, _nodes()):
        wanted = [(has.cpus, needs.cpus), (has.gpus, needs.gpus)]
        slots += min((int(there / own) for there, own in wanted if own), default=1)
    return slots


def _in_words(needs: Needs) -> str:
    return f"{needs.cpus:g} CPU" + f", {needs.gpus:g} GPU" * bool(needs.gpus)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
