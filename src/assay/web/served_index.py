"""The index that is served: a newer version takes its place while requests go on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from assay.errors import BadInput, reason_of
from assay.index import Index
from assay.index.manifest import MANIFEST
from assay.progress import Say
from assay.web.refusal import Refusal, without_path

T = TypeVar("T")

LONGEST_WAIT = 60.0
"""Seconds after which a version that could not be opened is tried again, at the latest."""


@dataclass(eq=False)
class _Held:
    """A version that is open, and how many use it."""

    index: Index
    users: int = 0
    retired: bool = False


class ServedIndex:
    """Holds the newest version of an index that could be opened.

    Args:
        open_index: opens the present version.
        say: called with what the log should say.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        open_index: Callable[[], Index],
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._say, self._clock = open_index, say, clock
        self._swap = threading.Lock()
        self._opening = threading.Lock()
        self._failures, self._not_before = 0, 0.0
        self._closed = False
        self.problem: str | None = None
        self._held = _Held(self._ready())

    @contextmanager
    def using(self) -> Iterator[Index]:
        """Yield the index; it stays open until the block is left, whatever takes its place."""
        with self._swap:
            held = self._held
            held.users += 1
        try:
            yield held.index
        finally:
            with self._swap:
                held.users -= 1
                last = held.retired and held.users == 0
            if last:
                held.index.close()

    def search(self, work: Callable[[Index], T]) -> T:
        """Return what `work` returns for the index.

        Where it fails and a newer version is in place, whose writer may have removed files of this
        one, the newer version is asked.
        """
        with self.using() as index:
            try:
                return work(index)
            except Refusal:
                raise
            except Exception:
                if index.is_current() or not self.refresh():
                    raise
        with self.using() as newer:
            return work(newer)

    def refresh(self) -> bool:
        """Put the newest version in place; return whether the one that is held is the newest.

        Where it cannot be opened the old version stays, `problem` says why, and it is tried again
        after a time that doubles. After `close` no version is put in place.
        """
        with self._opening:
            if self._closed:
                return False
            if self._held.index.is_current():
                self._settle()
                return True
            if self._clock() < self._not_before:
                return False
            try:
                after = _Held(self._ready())
            except Exception as error:  # libraries of back ends raise errors of any type
                self._fail(error)
                return False
            with self._swap:
                unwanted = after if self._closed else self._held
                if unwanted is not after:
                    self._held = after
            self._retire(unwanted)
            if unwanted is after:
                return False
            self._settle()
            self._say(f"version {after.index.manifest.version} of the index is in place")
            return True

    def close(self) -> None:
        """Close the index when its last user is done, and put no other in its place."""
        with self._swap:
            if self._closed:
                return
            self._closed = True
        self._retire(self._held)

    def _retire(self, held: _Held) -> None:
        """Close a version when its last user is done."""
        with self._swap:
            held.retired = True
            unused = held.users == 0
        if unused:
            held.index.close()

    def _ready(self) -> Index:
        """Open the index and search it once, so that its model is loaded and known to work."""
        index = self._open()
        try:
            if index.manifest.model.takes == "images":
                index.search(np.full((32, 32, 3), 127, dtype=np.uint8), 1)
        except BaseException:
            index.close()
            raise
        return index

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._not_before = self._clock() + min(LONGEST_WAIT, 2.0 ** (self._failures - 1))
        index = self._held.index
        root, served = index.root, f"version {index.manifest.version} is still served"
        if not isinstance(error, BadInput) or (root / MANIFEST).exists():
            problem = f"a newer version of the index cannot be opened: {reason_of(error)}"
        elif root.exists():
            problem = f"the folder of the index has no {MANIFEST} any more"
        else:
            problem = "the folder of the index is gone"
        shown = f"{without_path(problem, root)}; {served}"
        if shown != self.problem:
            self._say(f"{problem}; {served}")
        self.problem = shown

    def _settle(self) -> None:
        self._failures, self._not_before, self.problem = 0, 0.0, None
