"""The inline engine: every task in this process."""

from concurrent.futures import Future
from typing import Any, Self

from assay.workers import Task
from assay.workers.program import describe_failure


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
        except Exception as error:
            future.set_exception(describe_failure(error).with_traceback(error.__traceback__))
        return future
