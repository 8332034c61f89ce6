"""Studies side by side over one engine: each gets the results of its tasks as they come, until
all have ended.
"""

import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from assay.engines import Engine, Task
from assay.records.progress import Board, Listener
from assay.run import Training
from assay.study.study import Study

Done = queue.SimpleQueue[Future[Any]]


def drive(studies: Sequence[Study], engine: Engine, listener: Listener, board: Board) -> None:
    """Give every study the results of its tasks until all have ended.

    One thread decides, writes ledgers and studies; workers only place runs. A study's next step
    depends on nothing but its own results, so the order in which tasks end changes nothing. A
    task that has ended costs the same however many wait.
    """
    done: Done = queue.SimpleQueue()
    states = [study.state for study in studies]
    running = [_RunningStudy(study, engine, done) for study in studies]
    clock = _Clock(studies)
    board.post(states, None, engine.workers, last=True)
    owners: dict[Future[Any], _RunningStudy] = {}
    for study in running:
        owners |= dict.fromkeys(study.advance(), study)
    while any(study.waiting for study in running):
        for future in _arrivals(done):
            study = owners.pop(future)
            clock.finished += study.settle(future)
            if study.error is None and not study.waiting:
                owners |= dict.fromkeys(study.advance(), study)
        listener.tick(states, clock.seconds_left())
        board.post(states, clock.seconds_left(), engine.workers)
    board.post(states, None, engine.workers, last=True)
    for study in running:
        if study.error is not None:
            raise study.error


def _arrivals(done: Done) -> Iterator[Future[Any]]:
    """Yield tasks that ended since the last call; wait up to one second for the first."""
    try:
        yield done.get(timeout=1)
        while True:
            yield done.get_nowait()
    except queue.Empty:
        return


class _RunningStudy:
    """A study under way: its generator and the step it waits for."""

    def __init__(self, study: Study, engine: Engine, done: Done) -> None:
        self._study, self._steps, self._engine, self._done = study, study.steps(), engine, done
        self._step: dict[Future[Any], Task] | None = None
        self.waiting: set[Future[Any]] = set()
        self.error: BaseException | None = None

    def advance(self) -> set[Future[Any]]:
        """Send the results of this step, submit the next step's tasks, and return their futures.

        Steps without tasks are passed over.
        """
        try:
            while not self.waiting:
                begun = self._step is not None
                tasks = (
                    self._steps.send([future.result() for future in self._step or ()])
                    if begun
                    else next(self._steps)
                )
                self._step = {self._engine.submit(task): task for task in tasks}
                self.waiting = set(self._step)
        except StopIteration:
            return set()
        except Exception as error:
            self._give_up(error)
            return set()
        for future in self.waiting:
            future.add_done_callback(self._done.put)
        return self.waiting

    def settle(self, future: Future[Any]) -> int:
        """Record that a task has ended, and return how many runs it has finished."""
        if self.error is not None:
            return 0
        self.waiting.discard(future)
        if future.exception() is not None:
            self._give_up(future.exception())
            return 0
        task = (self._step or {})[future]
        if not isinstance(task, Training):
            return 0
        for run in task.runs:
            self._study.say(f"run {run.key[:12]} done")
        self._study.state.done += len(task.runs)
        return len(task.runs)

    def _give_up(self, error: BaseException | None) -> None:
        """End this study on its first error.

        The others go on, and the error is raised when they have ended.
        """
        self.error = error
        for future in self.waiting:
            future.cancel()
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        self._study.announce(f"failed ({reason}); the other methods go on")
        self._study.state.stage, self._study.state.error = "failed", str(error)
        self.waiting = set()


class _Clock:
    """Time left, from the pace of this session."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self._studies, self._start = studies, time.monotonic()
        self.finished = 0

    def seconds_left(self) -> float | None:
        if not self.finished:
            return None
        left = sum(
            study.state.total - study.state.done
            for study in self._studies
            if study.state.stage != "failed"
        )
        return left * (time.monotonic() - self._start) / self.finished
