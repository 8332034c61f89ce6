"""What a bench tells while it runs; how it looks is the command line's business."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from assay.files import write_atomically
from assay.hashing import pretty
from assay.records.store import Store

EVERY = 2.0
"""Seconds between two notes on the board."""


@dataclass
class State:
    """How far a study is.

    Args:
        study: key of the study.
        method: its method, with the value where it is part of a sweep.
        stage: waiting, search, reproductions, test, done or failed.
        trial: number of the latest trial under way in each search.
        trials: how many a search has.
        best: best mean validation MAP@R so far.
        done: runs finished.
        total: runs in all.
        error: why it failed, if it did.
    """

    study: str
    method: str
    trials: int
    total: int
    stage: str = "waiting"
    trial: int = 0
    best: float | None = None
    done: int = 0
    error: str | None = None


class Board:
    """The file of a store on which its driver says how far it is, for `assay status` in another
    window.
    """

    def __init__(self, store: Store) -> None:
        self._path, self._next = store.progress, 0.0

    def post(
        self, states: Sequence[State], seconds_left: float | None, workers: int, last: bool = False
    ) -> None:
        """Write where things stand, not too often; the last word is always written."""
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + EVERY
        said = {
            "at": time.time(),
            "seconds_left": seconds_left,
            "workers": workers,
            "studies": states,
        }
        with suppress(OSError):  # a board that cannot be written is no reason to stop
            write_atomically(self._path, pretty(said))


class Listener:
    """Reports the progress of a bench; this class itself reports nothing."""

    def say(self, method: str, text: str) -> None:
        """Report an event of a method, in words."""

    def announce(self, method: str, text: str) -> None:
        """Report an announcement, which should stay on the screen."""

    def tick(self, states: Sequence[State], seconds_left: float | None) -> None:
        """Report the state of every study; called at each finished task and about once a second."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report how far the samples are prepared, before the runs that need them."""
