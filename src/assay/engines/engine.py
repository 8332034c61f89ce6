"""What every engine offers."""

from concurrent.futures import Future
from typing import Any, Protocol, Self

from assay.workers import Task

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


def explain_deaths(task: Task, how: str) -> str:
    """Return the message for a task whose worker process died at every attempt."""
    return (
        f"a worker process died {ATTEMPTS} times ({how}) on {type(task).__name__}; if memory ran"
        " out, use fewer --workers. Finished runs are kept: run the same command again to continue"
    )


def explain_closing(task: Task) -> str:
    """Return the message for a task that was lost because the engine was closed."""
    return f"{type(task).__name__} was running when the engine was closed"
