"""What an engine is."""

from concurrent.futures import Future
from typing import Any, Protocol, Self

from assay.workers import Task


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
