"""Worker processes: tasks for engines, and one function over many values for reading images."""

from assay.workers.pool import (
    Needs,
    ProcessEnded,
    Task,
    TaskFailed,
    WorkerPool,
    in_processes,
    in_threads,
    needs_of,
)

__all__ = [
    "Needs",
    "ProcessEnded",
    "Task",
    "TaskFailed",
    "WorkerPool",
    "in_processes",
    "in_threads",
    "needs_of",
]
