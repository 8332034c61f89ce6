"""How far a bench is: reported to a listener in the same process, and posted in its store.

`assay status` in another window reads what was posted.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from assay.files import write_atomically
from assay.hashing import pretty
from assay.records.codec import BadRecord, Document, Record
from assay.records.run import CENTURY
from assay.records.store import Store

IMPLAUSIBLE_WORKERS = 1_000_000
"""Number of workers that no bench has; a file with more is damaged."""

EVERY = 2.0
"""Seconds between two posts."""

StudyStage = Literal["waiting", "search", "reproductions", "test", "done", "failed"]


@dataclass
class StudyState(Record):
    """How far a study is; its driver changes it as the study goes on.

    Args:
        study: key of the study.
        method: its method, with the value where it is part of a sweep.
        trials: number of trials of a search.
        total: number of runs in all.
        stage: what the study is doing.
        trial: number of the latest trial under way in each search.
        best: best mean validation MAP@R so far.
        done: number of finished runs.
        error: why it failed, if it did.
    """

    study: str
    method: str
    trials: int
    total: int
    stage: StudyStage = "waiting"
    trial: int = 0
    best: float | None = None
    done: int = 0
    error: str | None = None


@dataclass(frozen=True)
class TimeLeft:
    """The time that is left of a bench.

    Args:
        seconds: estimate, which never rises.
        longer: whether the work takes longer than was expected: `seconds` are then the least.
    """

    seconds: float
    longer: bool = False


@dataclass(frozen=True)
class PostedProgress(Document):
    """The content of `progress.json`.

    Args:
        at: wall clock in seconds.
        seconds_left: estimate of the driver; None before the first iterations are done.
        workers: number of worker processes.
        studies: state of each study.
        longer: whether the work takes longer than was expected.
    """

    at: float
    seconds_left: float | None
    workers: int
    studies: tuple[StudyState, ...]
    longer: bool = False


class Board:
    """The file of a store to which its driver posts its progress."""

    def __init__(self, store: Store) -> None:
        self.store, self._next = store, 0.0

    def post(
        self,
        states: Sequence[StudyState],
        left: TimeLeft | None,
        workers: int,
        last: bool = False,
    ) -> None:
        """Write the progress unless the last post is recent; the `last` one is always written."""
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + EVERY
        seconds, longer = (left.seconds, left.longer) if left else (None, False)
        posted = PostedProgress(time.time(), seconds, workers, tuple(states), longer)
        with suppress(OSError):  # a bench goes on where its progress cannot be written
            write_atomically(self.store.progress, pretty(posted.to_json()))


def read_progress(store: Store) -> PostedProgress | None:
    """Return what the driver of a store posted last; None where nothing sensible was.

    Nothing is decided by it, so a damaged file is as good as none.
    """
    try:
        posted = PostedProgress.read(store.progress)
    except BadRecord:
        return None
    sensible = (
        0 <= posted.at < CENTURY
        and 0 <= (posted.seconds_left or 0) < CENTURY
        and 0 < posted.workers < IMPLAUSIBLE_WORKERS
        and all(state.done >= 0 for state in posted.studies)
    )
    return posted if sensible else None


class Listener:
    """Reports the progress of a bench; this class itself reports nothing."""

    def say(self, method: str, text: str) -> None:
        """Report an event of a method, in words."""

    def run_done(self, method: str, run: str, key: str) -> None:
        """Report that a run of a method is done, in words; only an audit asks for its key."""
        self.say(method, f"{run} done")

    def detail(self, method: str, text: str) -> None:
        """Report what only an audit asks for, such as the hash of a preregistration."""

    def announce(self, method: str, text: str) -> None:
        """Report an announcement, which should stay on the screen."""

    def tick(self, states: Sequence[StudyState], left: TimeLeft | None) -> None:
        """Report the state of every study; called at each finished task and about once a second."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report how far the samples are prepared, before the runs that need them."""
