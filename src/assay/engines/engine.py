"""What an engine is."""

from concurrent.futures import Future
from typing import Any, Protocol, Self, runtime_checkable

from assay.workers import Task

ATTEMPTS = 3
"""How often a task is tried whose worker dies under it."""


class WorkerDied(RuntimeError):
    """A task whose worker process ended under it, again and again."""


class Engine(Protocol):
    """Runs tasks in any order and any number at a time; what they give must not depend on either.

    A task that has been done is done for good: doing it again changes nothing.
    """

    workers: int

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None:
        """Stop at once; tasks under way are lost, finished ones are in the store."""


@runtime_checkable
class Demanding(Protocol):
    """A task that says what it needs of the machine it runs on."""

    @property
    def cpus(self) -> float:
        """Cores that it keeps busy."""

    @property
    def gpus(self) -> float:
        """GPUs that it needs to itself."""


def obituary(task: Task, ended: str) -> str:
    """What is said of a task whose workers died."""
    return (
        f"a worker process died {ATTEMPTS} times ({ended}) on {type(task).__name__}; if memory ran"
        " out, use fewer --workers. Finished runs are kept: run the same command again to continue"
    )
