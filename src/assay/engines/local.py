"""The local engine: worker processes on this machine.

A process that dies (out of memory, say) is replaced and its task tried again.
"""

import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

from assay.devices import VISIBLE_GPUS, visible_gpus
from assay.engines.engine import ATTEMPTS, WorkerDied, explain_closing, explain_deaths
from assay.workers import ProcessEnded, Task, WorkerPool, needs_of
from assay.workers.pool import Worker


class LocalEngine:
    """Runs tasks in processes of this machine, one task at a time in each.

    Args:
        workers: number of processes; None: one for each GPU where GPUs are given, else one for each
            core.
        gpus: names of GPUs as in `CUDA_VISIBLE_DEVICES`. Each process sees one of them alone, in
            turn.
        pool: where processes are taken from and idle ones returned to when the engine is closed;
            None: processes end with the engine.
    """

    def __init__(
        self,
        workers: int | None = None,
        gpus: Sequence[str] = (),
        pool: WorkerPool | None = None,
    ) -> None:
        self.workers = workers or len(gpus) or len(os.sched_getaffinity(0))
        self._gpus, self._pool = tuple(gpus), pool or WorkerPool(keep=0)
        self._tasks: queue.SimpleQueue[tuple[Task, Future[Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: set[Worker] = set()
        self._closing = False
        self._lock = threading.Lock()

    @classmethod
    def for_device(
        cls, device: str, workers: int | None = None, pool: WorkerPool | None = None
    ) -> Self:
        """Return the engine for runs on `cpu` or `cuda`; on `cuda`, one run at a time per GPU."""
        return cls(workers, visible_gpus() if device == "cuda" else (), pool)

    def __enter__(self) -> Self:
        self._closing = False
        self._threads = []
        for number in range(self.workers):
            own = {VISIBLE_GPUS: self._gpus[number % len(self._gpus)]} if self._gpus else {}
            self._threads.append(threading.Thread(target=self._serve, args=(own,), daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill the processes that are running a task, and return or end the others."""
        with self._lock:
            self._closing = True
            for worker in self._running:
                worker.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, task: Task) -> Future[Any]:
        """Queue the task for the next free process."""
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def _serve(self, variables: dict[str, str]) -> None:
        """Give tasks to one process after the other, until the engine is closed."""
        worker: Worker | None = None
        while (item := self._tasks.get()) is not None:
            task, future = item
            if self._closing:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    worker = self._prepare(worker, task, variables)
                    future.set_result(self._run(worker, task))
                    break
                except ProcessEnded as ended:
                    worker = None
                    if self._closing:
                        future.set_exception(WorkerDied(explain_closing(task)))
                        break
                    if attempt == ATTEMPTS:
                        future.set_exception(WorkerDied(explain_deaths(task, str(ended))))
                except Exception as error:
                    future.set_exception(error)
                    break
        if worker is not None:
            self._pool.give_back(worker)

    def _prepare(self, worker: Worker | None, task: Task, variables: dict[str, str]) -> Worker:
        """Return a process for the task: the last one, unless it has imported other files."""
        if worker is not None and worker.imports not in ((), needs_of(task).imports):
            self._pool.give_back(worker)
            worker = None
        return worker or self._pool.take(variables)

    def _run(self, worker: Worker, task: Task) -> Any:
        with self._lock:
            if self._closing:
                worker.end()
                raise ProcessEnded("the engine was closed")
            self._running.add(worker)
        try:
            return worker.run(task)
        finally:
            with self._lock:
                self._running.discard(worker)
