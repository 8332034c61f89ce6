"""What a bench tells while it runs; how it looks is the command line's business."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass
class State:
    """How far a study is.

    Args:
        method: whose study.
        stage: waiting, search, reproductions, test, done or failed.
        trial: number of the trial under way.
        trials: how many there will be.
        best: best mean validation MAP@R so far.
        done: runs finished.
        total: runs in all.
    """

    method: str
    trials: int
    total: int
    stage: str = "waiting"
    trial: int = 0
    best: float | None = None
    done: int = 0


class Listener(Protocol):
    """Hears of a bench's progress."""

    def say(self, method: str, text: str) -> None:
        """Something happened that is worth a line."""

    def tick(self, states: Sequence[State], seconds_left: float | None) -> None:
        """Where things stand; called at every finished task and about once a second."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Samples are being made ready, before the runs that need them."""


class Silent:
    """Listens without a word."""

    def say(self, method: str, text: str) -> None:
        """Nothing."""

    def tick(self, states: Sequence[State], seconds_left: float | None) -> None:
        """Nothing."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Nothing."""
