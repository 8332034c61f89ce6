"""What an engine is."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, Self

Task = Callable[[], Any]
"""Something to call in a worker: small, picklable, and done for good once it has been done."""


class TaskFailed(RuntimeError):
    """An exception inside a worker, with its traceback as text."""


class Engine(Protocol):
    """Runs tasks in any order and any number at a time; what they give must not depend on either."""

    workers: int

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None:
        """Stop at once; tasks under way are lost, finished ones are in the store."""
