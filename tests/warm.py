"""Worker processes that outlive their engine and serve the next one, so that tests need not wait
for imports again and again.
"""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.workers import Task, Worker
from assay.workers.process import search_path

MOST = 2
"""Processes that are kept while nobody uses them."""

OF_A_TEST = ("PYTEST_CURRENT_TEST",)
"""Variables that no worker looks at."""


@dataclass(frozen=True)
class Within:
    """A task that begins in the folder where the test is, as it would in a new process."""

    folder: Path
    task: Task

    def __call__(self) -> Any:
        os.chdir(self.folder)
        return self.task()


class WarmWorker:
    """In place of `Worker`: a process that an engine has left idle, where one has the same
    environment, else a new one.

    A process that was killed, died or imported the user's own files serves nobody else.
    """

    keep = True
    """Whether processes are kept at all."""

    _idle: list[tuple[object, Worker]] = []  # noqa: RUF012 (all share them)
    _lock = threading.Lock()

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = {**os.environ, **(environment or {})}
        self._kind = (
            search_path(),
            {name: value for name, value in variables.items() if name not in OF_A_TEST},
        )
        self._at_work = self._used_up = self._left = False
        self._worker = self._take() or Worker(environment)

    def run(self, task: Task, future: "Future[Any]") -> None:
        self._at_work = True
        self._used_up |= bool(getattr(getattr(task, "test", task), "imports", ()))
        if self._left:
            raise EOFError
        self._worker.run(Within(Path.cwd(), task), future)
        self._at_work = False

    def kill(self) -> None:
        self._left = True
        if self._at_work or not self.keep:
            self._used_up = True
            self._worker.kill()

    def end(self) -> int:
        if self._at_work or self._used_up or not self.keep:
            return self._worker.end()
        with self._lock:
            self._idle.append((self._kind, self._worker))
            too_many = [self._idle.pop(0)[1] for _ in self._idle[MOST:]]
        for worker in too_many:
            worker.end()
        return 0

    @classmethod
    def end_idle(cls) -> None:
        """End all that nobody uses."""
        with cls._lock:
            while cls._idle:
                cls._idle.pop()[1].end()

    def _take(self) -> Worker | None:
        with self._lock:
            found = next((one for one in self._idle if one[0] == self._kind), None)
            if found is not None:
                self._idle.remove(found)
        return found and found[1]
