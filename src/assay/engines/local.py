"""The local engine: worker processes on this machine.

A worker that dies (out of memory, say) is replaced and its task tried again.
"""

import os
import queue
import threading
from concurrent.futures import Future
from typing import Any, Self

from assay.engines.engine import ATTEMPTS, WorkerDied, obituary
from assay.workers import Task, Worker


class LocalEngine:
    """`workers` processes, each running one task at a time."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self._tasks: queue.SimpleQueue[tuple[Task, Future[Any]] | None] = queue.SimpleQueue()
        self._processes: set[Worker] = set()
        self._closing = False
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(self.workers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers, whatever they are doing."""
        self._closing = True
        for process in list(self._processes):
            process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task for the next free worker."""
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def _serve(self) -> None:
        """One thread's life: give tasks to its worker process, a new one where the last has died."""
        worker: Worker | None = None
        while (item := self._tasks.get()) is not None:
            task, future = item
            if self._closing:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    worker = worker or self._start()
                    worker.run(task, future)
                    break
                except (EOFError, OSError) as error:
                    ended, worker = self._bury(worker) if worker else str(error), None
                    if attempt == ATTEMPTS or self._closing:
                        future.set_exception(WorkerDied(obituary(task, ended)))
                        break
        if worker is not None:
            self._bury(worker)

    def _start(self) -> Worker:
        worker = Worker()
        self._processes.add(worker)
        if self._closing:  # the list of those to kill was drawn up before this one was on it
            worker.kill()
        return worker

    def _bury(self, worker: Worker) -> str:
        """End the process and say how it ended."""
        self._processes.discard(worker)
        code = worker.end()
        return f"signal {-code}" if code < 0 else f"exit code {code}"
