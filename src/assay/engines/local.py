"""The local engine: worker processes on this machine.

A worker that dies (out of memory, say) is replaced and its task tried again.
"""

import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

from assay.engines.engine import ATTEMPTS, WorkerDied, obituary
from assay.workers import Task, Worker

SEEN = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the GPUs that a process sees."""


class LocalEngine:
    """Processes of this machine, each running one task at a time.

    Args:
        workers: processes; None: one for each GPU where GPUs are given, else one for each core.
        gpus: names of GPUs as in `CUDA_VISIBLE_DEVICES`. Each process sees one of them alone, in
            turn.
    """

    def __init__(self, workers: int | None = None, gpus: Sequence[str] = ()) -> None:
        self.workers = workers or len(gpus) or len(os.sched_getaffinity(0))
        self._tasks: queue.SimpleQueue[tuple[Task, Future[Any]] | None] = queue.SimpleQueue()
        self._processes: set[Worker] = set()
        self._closing = False
        seen = [{SEEN: gpus[number % len(gpus)]} if gpus else {} for number in range(self.workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(one,), daemon=True) for one in seen
        ]

    @classmethod
    def for_device(cls, device: str, workers: int | None = None) -> Self:
        """The engine for runs on this kind of device: where that is `cuda`, one run at a time to
        each GPU.
        """
        return cls(workers, _visible_gpus() if device == "cuda" else ())

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

    def _serve(self, environment: dict[str, str]) -> None:
        """One thread's life: give tasks to its worker process,
        a new one where the last has died.
        """
        worker: Worker | None = None
        while (item := self._tasks.get()) is not None:
            task, future = item
            if self._closing:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    worker = worker or self._start(environment)
                    worker.run(task, future)
                    break
                except (EOFError, OSError) as error:
                    ended, worker = self._bury(worker) if worker else str(error), None
                    if attempt == ATTEMPTS or self._closing:
                        future.set_exception(WorkerDied(obituary(task, ended)))
                        break
        if worker is not None:
            self._bury(worker)

    def _start(self, environment: dict[str, str]) -> Worker:
        worker = Worker(environment)
        self._processes.add(worker)
        if self._closing:  # the list of those to kill was drawn up before this one was on it
            worker.kill()
        return worker

    def _bury(self, worker: Worker) -> str:
        """End the process and say how it ended."""
        self._processes.discard(worker)
        code = worker.end()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _visible_gpus() -> list[str]:
    """Names of the GPUs that this process sees."""
    import torch  # only where it is needed: a cluster's processes hold this module too

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(SEEN, "").split(",") if name.strip()]
    return (named or [str(number) for number in range(count)])[:count]
