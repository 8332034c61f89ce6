"""Room for requests: a bounded number of uploads in memory, and of works that run or wait."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request

from assay.web.refusal import Refusal

T = TypeVar("T")

LATER = "try again in a moment"

FORM_BYTES = 100_000
"""Bytes of a form beside its image."""


class Admission:
    """Threads that do the work of requests, and a bounded number of works that wait for them.

    Args:
        name: name of the work, for the threads.
        workers: works that run at once.
        waiting: works that may wait.
    """

    def __init__(self, name: str, workers: int, waiting: int) -> None:
        self.most = workers + waiting
        self.workers = workers
        self.taken = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"assay-{name}")

    @property
    def waiting(self) -> int:
        """Number of works that wait for a thread."""
        return max(0, self.taken - self.workers)

    @property
    def is_full(self) -> bool:
        """Whether a further work would be refused."""
        return self.taken >= self.most

    def check_room(self) -> None:
        """Raise `Refusal` where there is no room for a further work."""
        if self.is_full:
            raise Refusal(503, "the service is busy: its queue is full", LATER, "queue_full")

    async def run(self, work: Callable[[], T], seconds: float) -> T:
        """Return what `work` returns, computed in a thread.

        Raises `Refusal` where there is no room, or where it takes longer than `seconds`. Work that
        waits is then given up; work that runs keeps its place until it ends, as threads cannot be
        stopped.
        """
        with self._lock:
            self.check_room()
            future = self._pool.submit(work)
            self.taken += 1
        future.add_done_callback(self._release)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Refusal(
                503, f"the request took longer than {seconds:.3g} s", LATER, "timeout"
            ) from None

    def close(self) -> None:
        """Take no further work, and give up those that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, future: Future[Any]) -> None:
        with self._lock:
            self.taken -= 1


class Uploads:
    """Bodies of requests in memory: each of bounded size, and all of them together.

    Args:
        most_each: bytes of the largest body.
        most_together: bytes of all bodies that are held at once.
    """

    def __init__(self, most_each: int, most_together: int) -> None:
        self.most_each = most_each + FORM_BYTES
        self.most_together = max(most_together, self.most_each)
        self.held = 0

    @asynccontextmanager
    async def reading(self, request: Request, seconds: float) -> AsyncIterator[Sequence[bytes]]:
        """Yield the body of a request in parts, which are held until the block is left.

        Raises `Refusal` for a body that is too large, as its header says or as it turns out, one
        that comes too slowly, and one that there is no memory for.
        """
        said = request.headers.get("content-length", "0")
        if said.isdecimal() and int(said[:20]) > self.most_each:
            raise self._too_large()
        parts: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._read(request, parts)
            except TimeoutError:
                raise Refusal(
                    408,
                    f"the upload took longer than {seconds:.3g} s",
                    "send a smaller image, or try again over a faster connection",
                    "slow_upload",
                ) from None
            yield parts
        finally:
            self.held -= sum(map(len, parts))

    async def _read(self, request: Request, parts: list[bytes]) -> None:
        own = 0
        async for part in request.stream():
            parts.append(part)
            own += len(part)
            self.held += len(part)
            if own > self.most_each:
                raise self._too_large()
            if self.held > self.most_together:
                raise Refusal(
                    503, "the service is busy: too many uploads at once", LATER, "uploads"
                )

    def _too_large(self) -> Refusal:
        most = (self.most_each - FORM_BYTES) / 1e6
        return Refusal(
            413, f"the upload has more than {most:.3g} MB", "send a smaller image", "too_large"
        )
