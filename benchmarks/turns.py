"""Times of several works that take turns, shared by benchmarks."""

import time
from collections.abc import Callable


def best_of(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least seconds of each, the works taking turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
