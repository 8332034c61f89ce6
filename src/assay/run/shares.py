"""Files that tell the driver of a bench which share of its iterations a task under way has done."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from assay.files import read_text
from assay.records.run import Run
from assay.records.store import Store

OnShare = Callable[[float], None]

SHARE_EVERY = 1.0
"""Seconds between two notes on how far a task is."""


class ShareFile:
    """The file that tells the driver of a bench which share of a task's iterations is done.

    Args:
        store: of the runs.
        runs: of the task.
        clock: seconds from any start.
    """

    def __init__(
        self, store: Store, runs: Sequence[Run], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._runs, self._clock = store.share(runs[0].key), len(runs), clock
        self._finished, self._next = 0, -math.inf

    def of_next(self, runs: int) -> OnShare:
        """Return what is to be called with the share of these runs, which are trained together."""
        before = self._finished

        def note(share: float) -> None:
            if self._clock() >= self._next:
                self._next = self._clock() + SHARE_EVERY
                with suppress(OSError):  # a training goes on where this cannot be written
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._path.write_text(f"{(before + runs * share) / self._runs:.6f}")

        return note

    def ended(self, runs: int) -> None:
        """Count runs whose training has ended; an attempt that failed does not count."""
        self._finished += runs


class SharesOfTasks:
    """Shares of iterations that the tasks under way have done, by the key of their first run.

    Args:
        store: of the runs.
        clock: seconds from any start.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._next, self._read = -math.inf, dict[str, float]()

    def now(self) -> Mapping[str, float]:
        """Return the shares; the files are read again about once a second."""
        if self._clock() >= self._next:
            self._next = self._clock() + SHARE_EVERY
            self._read = {}
            for path in self._store.shares():
                with suppress(OSError, ValueError):  # removed by now, or being written
                    self._read[path.stem] = float(read_text(path))
        return self._read
