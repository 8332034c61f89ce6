"""The engine for clusters: the same tasks in the worker processes of Ray, on this machine or on
many.

Ray finds each task a node with the cores and GPUs it asks for, one task to a process at a time, and
tries it again where the process or the whole node dies. Only as many tasks are with Ray as it can
soon begin; the rest wait here, unpacked.
"""

import logging
import os
import queue
import secrets
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from assay.engines.engine import ATTEMPTS, Demanding, WorkerDied, obituary
from assay.engines.parcel import Parcel, deliver, marked
from assay.errors import BadInput
from assay.workers import Task, TaskFailed

try:
    import ray
    from ray import ObjectRef
    from ray._private import worker as ray_worker
    from ray.exceptions import (
        LocalRayletDiedError,
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RayError,
        WorkerCrashedError,
    )
except ImportError:
    raise BadInput("the engine ray needs the package ray: pip install 'assay-dml[ray]'") from None

AHEAD = 2
"""Tasks with Ray for each that can run: a process that is done finds the next one waiting."""

LOOK_AGAIN = 5.0
"""Seconds after which the cluster may have another size."""

KNOCK = 30.0
"""Seconds in which the head of a cluster answers if it is there."""

OBJECT_STORE = 80_000_000
"""Bytes that a local Ray keeps for large values, about its least: tasks give small ones, the rest
goes through the run store.
"""

DEATHS = (
    WorkerCrashedError,
    NodeDiedError,
    LocalRayletDiedError,
    OutOfMemoryError,
    ObjectLostError,
)


class RayEngine:
    """Tasks on a Ray cluster.

    Args:
        address: `host:port` of the cluster, or `auto` for the one that this machine belongs to;
            None starts Ray on this machine alone, with all its cores. Where the program is
            connected to Ray already, that connection is used and left open.
        workers: tasks at a time; None: as many as the cluster has room for.
        cpus_per_task: cores for a task that does not say itself what it needs (`Demanding`).
        gpus_per_task: likewise.
        shared: folders that every node must see, the run store and the cache; a node that does not
            is named with the folder.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        *,
        cpus_per_task: float = 1,
        gpus_per_task: float = 0,
        shared: Sequence[Path] = (),
    ) -> None:
        self.workers = workers or 0
        self._address, self._limit, self._shared = address, workers, tuple(shared)
        self._needs = Needs(cpus_per_task, gpus_per_task)
        self._possible: set[Needs] = set()
        self._waiting: deque[tuple[Task, Future[Any]]] = deque()
        self._under_way: dict[ObjectRef[Any], tuple[Task, Future[Any]]] = {}
        self._events: queue.SimpleQueue[ObjectRef[Any] | None] = queue.SimpleQueue()
        self._closing = False
        self._looked = 0.0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._parcel = Parcel.empty(stack.enter_context(marked(self._shared)))
            if not ray.is_initialized():
                _start(self._address, stack)
            self._check_room(self._needs)
            self.workers = self._limit or _slots(self._needs)
            self._stack = stack.pop_all()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the cluster; Ray ends the tasks under way."""
        self._closing = True
        self._events.put(None)
        self._thread.join()
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        for reference, (task, future) in self._under_way.items():
            ray.cancel(reference, force=True)
            future.set_exception(
                WorkerDied(f"{type(task).__name__} was under way when the engine was left")
            )
        self._under_way.clear()
        self._stack.close()

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task for the cluster."""
        future: Future[Any] = Future()
        self._waiting.append((task, future))
        self._events.put(None)
        return future

    def _serve(self) -> None:
        """The life of the one thread that talks to Ray: settle what is done, send what there is
        room for.
        """
        while not self._closing:
            try:
                done = self._events.get(timeout=LOOK_AGAIN)
            except queue.Empty:
                done = None
            if done is not None:
                self._settle(done)
            while self._waiting and len(self._under_way) < self._room():
                self._send(*self._waiting.popleft())

    def _room(self) -> int:
        """Tasks that may be with Ray."""
        if self._limit is not None:
            return self._limit
        if time.monotonic() - self._looked > LOOK_AGAIN:
            self._looked = time.monotonic()
            self.workers = (
                _slots(self._needs) or self.workers
            )  # no node left: wait for one as before
        return AHEAD * self.workers

    def _send(self, task: Task, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        needs = Needs(task.cpus, task.gpus) if isinstance(task, Demanding) else self._needs
        try:
            self._check_room(needs)
            parcel = self._parcel.holding(task)
        except (
            Exception
        ) as error:  # what no node can take or cannot be packed must not leave the future waiting
            future.set_exception(error)
            return
        reference = _deliver.options(
            num_cpus=needs.CPU, num_gpus=needs.GPU, name=type(task).__name__
        ).remote(parcel)
        self._under_way[reference] = task, future
        reference.future().add_done_callback(lambda _: self._events.put(reference))

    def _settle(self, reference: "ObjectRef[Any]") -> None:
        task, future = self._under_way.pop(reference)
        try:
            done, value = ray.get(reference)
        except DEATHS as error:
            done, value = False, WorkerDied(obituary(task, _first_line(error)))
        except Exception as error:  # such as a node on which Assay cannot be imported
            done, value = False, TaskFailed(str(error))
        if done:
            future.set_result(value)
        else:
            future.set_exception(value)

    def _check_room(self, needs: "Needs") -> None:
        """Raise `BadInput` where no node could ever run a task; one that was there and is lost may
        come back.
        """
        if needs in self._possible:
            return
        if _slots(needs) == 0:
            there = (
                "; ".join(f"{node['NodeManagerHostname']}: {Needs.of(node)}" for node in _nodes())
                or "no node is alive"
            )
            remedy = "--device cpu" if needs.GPU else "a smaller --set threads"
            raise BadInput(
                f"no node of the Ray cluster has {needs} for a run ({there}); join one that has, or"
                f" give {remedy}"
            )
        self._possible.add(needs)


class Needs(NamedTuple):
    """What a task takes of a node, under Ray's names; or what a node has."""

    CPU: float
    GPU: float

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        """All that a node has."""
        return cls(*(node["Resources"].get(kind, 0) for kind in cls._fields))

    def fit_into(self, there: "Needs") -> int:
        """How often they can be met at a time; one who needs nothing takes a place all the same."""
        return min(
            (int(amount / own) for own, amount in zip(self, there, strict=True) if own), default=1
        )

    def __str__(self) -> str:
        return f"{self.CPU:g} CPU" + f", {self.GPU:g} GPU" * bool(self.GPU)


_deliver = ray.remote(max_retries=ATTEMPTS - 1)(deliver)


def _start(address: str | None, stack: ExitStack) -> None:
    """Connect to the cluster at the address, or to a Ray of our own; what is undone on leaving goes
    onto the stack.
    """
    if address is None:
        start_here(len(os.sched_getaffinity(0)), stack)
    else:
        _settle()
        _join(address)
        stack.callback(ray.shutdown)


def start_here(cores: int, stack: ExitStack) -> None:
    """Connect to a Ray of our own, which takes this machine for one of so many cores and ends when
    the stack is closed.
    """
    _settle()
    os.environ.setdefault(
        "RAY_AUTH_TOKEN", secrets.token_hex(32)
    )  # else Ray leaves one in the home folder
    folder = stack.enter_context(_short_folder())
    ray.init(
        address="local",
        num_cpus=cores,
        object_store_memory=OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    stack.callback(ray.shutdown)


def _settle() -> None:
    """Have Ray send nothing to its makers, say only what went wrong, and that on stderr."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = (
        "0"  # how Ray will behave; without it, it warns of that
    )
    os.environ.setdefault("RAY_task_oom_retries", str(ATTEMPTS - 1))
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray_worker.print_to_stdstream = _on_stderr


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    """Where Ray keeps its sockets, whose paths may not be long, as those in a job's own TMPDIR
    often are.
    """
    return tempfile.TemporaryDirectory(
        dir=os.environ.get("RAY_TMPDIR", "/tmp"), prefix="assay-ray-", ignore_cleanup_errors=True
    )


def _join(address: str) -> None:
    try:
        if address != "auto":
            _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RayError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"--address {address}: no Ray cluster answers there"
            f" ({_first_line(error.__cause__ or error)}); start one with `ray start --head` and"
            " give the host:port that it prints, or `auto` on one of its nodes"
        ) from error


def _knock(address: str) -> None:
    """Raise `OSError` or `ValueError` where nobody listens: Ray itself would try for more than a
    minute.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=KNOCK).close()


_print_to_stdstream = ray_worker.print_to_stdstream


def _on_stderr(data: Any, ignore_prefix: bool) -> Any:
    """What Ray says of dead workers, on stderr: stdout is for results."""
    return _print_to_stdstream({**data, "is_err": True}, ignore_prefix)


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _slots(needs: Needs) -> int:
    """Tasks with these needs that all nodes together can run at a time."""
    return sum(needs.fit_into(Needs.of(node)) for node in _nodes())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
