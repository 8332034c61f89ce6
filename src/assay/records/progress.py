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
from assay.records.store import Store

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
class PostedProgress(Document):
    """The content of `progress.json`.

    Args:
        at: wall clock in seconds.
        seconds_left: estimate of the driver; None before the first run has finished.
        workers: number of worker processes.
        studies: state of each study.
    """

    at: float
    seconds_left: float | None
    workers: int
    studies: tuple[StudyState, ...]


class Board:
    """The file of a store to which its driver posts its progress."""

    def __init__(self, store: Store) -> None:
        self._path, self._next = store.progress, 0.0

    def post(
        self,
        states: Sequence[StudyState],
        seconds_left: float | None,
        workers: int,
        last: bool = False,
    ) -> None:
        """Write the progress unless the last post is recent; the `last` one is always written."""
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + EVERY
        posted = PostedProgress(time.time(), seconds_left, workers, tuple(states))
        with suppress(OSError):  # a bench goes on where its progress cannot be written
            write_atomically(self._path, pretty(posted.to_json()))


def read_progress(store: Store) -> PostedProgress | None:
    """Return what the driver of a store posted last; None where there is nothing to read."""
    try:
        return PostedProgress.read(store.progress)
    except BadRecord:
        return None


class Listener:
    """Reports the progress of a bench; this class itself reports nothing."""

    def say(self, method: str, text: str) -> None:
        """Report an event of a method, in words."""

    def announce(self, method: str, text: str) -> None:
        """Report an announcement, which should stay on the screen."""

    def tick(self, states: Sequence[StudyState], seconds_left: float | None) -> None:
        """Report the state of every study; called at each finished task and about once a second."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report how far the samples are prepared, before the runs that need them."""
