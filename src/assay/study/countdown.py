"""The time that is left of a bench: by iterations, and it never rises."""

import time
from collections.abc import Callable

from assay.records.progress import TimeLeft

LONGER = 1.5
"""Estimate over the time that is shown above which the work takes longer than expected."""


class Countdown:
    """Estimates the time left from the pace of this session.

    A new estimate is shown only where it is below the last one. An estimate that rises does not
    change the time that is shown: once it is far above it, the work takes longer than expected.

    Args:
        clock: seconds from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._shown: float | None = None

    def left(self, done: float, remaining: float) -> TimeLeft | None:
        """Return the time left, None before anything is done.

        Args:
            done: iterations of this session so far, those of unfinished runs among them.
            remaining: iterations that are left.
        """
        if done <= 0:
            return None
        estimate = max(0.0, remaining) * (self._clock() - self._start) / done
        self._shown = estimate if self._shown is None else min(estimate, self._shown)
        return TimeLeft(self._shown, estimate > LONGER * self._shown + 1)
