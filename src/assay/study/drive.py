"""Studies side by side over one engine: each gets its answers as they come,
until all have ended.
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
    """Keep every study supplied with answers until all have ended.

    One thread decides, writes ledgers and studies; workers only place runs. A study's next step
    depends on nothing but its own answers, so the order in which tasks arrive changes nothing. A
    task that is done costs the same however many wait.
    """
    done: Done = queue.SimpleQueue()
    states = [study.state for study in studies]
    running = [_Progress(study, engine, done) for study in studies]
    clock = _Clock(studies)
    board.post(states, None, engine.workers, last=True)
    owners: dict[Future[Any], _Progress] = {}
    for progress in running:
        owners |= dict.fromkeys(progress.advance(), progress)
    while any(progress.waiting for progress in running):
        for future in _arrivals(done):
            progress = owners.pop(future)
            clock.finished += progress.settle(future)
            if progress.error is None and not progress.waiting:
                owners |= dict.fromkeys(progress.advance(), progress)
        listener.tick(states, clock.seconds_left())
        board.post(states, clock.seconds_left(), engine.workers)
    board.post(states, None, engine.workers, last=True)
    for progress in running:
        if progress.error is not None:
            raise progress.error


def _arrivals(done: Done) -> Iterator[Future[Any]]:
    """What has been done since the last time; waits for a second at most where there is nothing."""
    try:
        yield done.get(timeout=1)
        while True:
            yield done.get_nowait()
    except queue.Empty:
        return


class _Progress:
    """A study under way: its generator and the step it waits for."""

    def __init__(self, study: Study, engine: Engine, done: Done) -> None:
        self._study, self._steps, self._engine, self._done = study, study.steps(), engine, done
        self._step: dict[Future[Any], Task] | None = None
        self.waiting: set[Future[Any]] = set()
        self.error: BaseException | None = None

    def advance(self) -> set[Future[Any]]:
        """Hand over the answers of this step and submit the tasks of the next one that has any;
        what it then waits for.
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
        """Take note of a task that has ended; how many runs it has finished."""
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
        """End this study on its first error; the others go on, and the error is raised when they
        are through.
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
