"""Processes that run tasks: one at a time for engines, many values of one function for reading
images.
"""

from assay.workers.pool import in_processes, in_threads
from assay.workers.process import Task, TaskFailed, Worker

__all__ = ["Task", "TaskFailed", "Worker", "in_processes", "in_threads"]
