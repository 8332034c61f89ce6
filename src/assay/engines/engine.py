"""What an engine is, the simplest one, and the choice of an engine by its name."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from assay.devices import MOST_WORKERS, choose_device
from assay.errors import BadInput
from assay.workers import Task
from assay.workers.program import describe_failure

EngineKind = Literal["local", "ray", "inline"]

ATTEMPTS = 3
"""How often a task is tried if its worker process dies."""


class WorkerDied(RuntimeError):
    """A task whose worker process died at every attempt, or when the engine was closed."""


class Engine(Protocol):
    """Runs tasks in any order and any number at a time; their results must depend on neither.

    An engine is opened by `with`, and may be opened again after it is closed. It may run a task
    more than once, after a process has died: a task that is done must change nothing when it runs
    again.

    Attributes:
        workers: tasks that run at a time, known once the engine is open.
    """

    workers: int

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task; the future holds its result, or `BadInput`, `TaskFailed`, `WorkerDied`
        or the `OSError` of a full disk.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None:
        """Stop at once: running tasks are lost, waiting ones cancelled."""


class InlineEngine:
    """Runs each task in this process, before `submit` returns.

    For a debugger, a profiler, and benches that are shorter than the start of a process. The
    traceback of a failed task is that of the exception inside it, so that a post-mortem debugger
    stops where the task failed. Ctrl-C interrupts the task itself.
    """

    workers = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: no task is waiting or running."""

    def submit(self, task: Task) -> Future[Any]:
        """Run the task now."""
        future: Future[Any] = Future()
        try:
            future.set_result(task())
        except (Exception, SystemExit) as error:
            future.set_exception(describe_failure(error).with_traceback(error.__traceback__))
        return future


def choose_engine(
    kind: str,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    shared: Sequence[Path] = (),
) -> Engine:
    """Return the engine of this name; nothing starts before it is opened.

    Args:
        kind: local, ray or inline.
        workers: tasks at a time; None: one for each GPU that runs are for, else one for each core.
        address: of a running Ray cluster; None: Ray starts one on this machine.
        device: what runs compute on: auto, cpu or cuda.
        shared: folders that every node of a cluster must see.
    """
    if address is not None and kind != "ray":
        raise BadInput(f"--address {address} is that of a Ray cluster; add --engine ray")
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise BadInput(
            f"--workers {workers}: give a number from 1 to {MOST_WORKERS}, or leave it out for one"
            " for each core or GPU"
        )
    if kind == "local":
        from assay.engines.local import LocalEngine

        return LocalEngine.for_device(choose_device(device), workers)
    if kind == "inline":
        if workers not in (None, 1):
            raise BadInput(
                f"--engine inline runs every task in this process, not in {workers} workers; leave"
                " --workers out"
            )
        return InlineEngine()
    if kind == "ray":
        from assay.engines.ray import RayEngine

        return RayEngine(address, workers, shared=shared)
    raise BadInput(f"--engine {kind}: choose local, ray or inline")


# --- messages of engines with worker processes ---


def explain_deaths(task: Task, how: str) -> str:
    """Return the message for a task whose worker process died at every attempt."""
    return (
        f"a worker process died {ATTEMPTS} times ({how}) on {type(task).__name__}; if memory ran"
        " out, use fewer --workers. Finished runs are kept: run the same command again to continue"
    )


def explain_closing(task: Task) -> str:
    """Return the message for a task that was lost because the engine was closed."""
    return f"{type(task).__name__} was running when the engine was closed"
