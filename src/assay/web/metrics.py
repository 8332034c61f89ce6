"""Counts of requests and their times, in the text format of Prometheus."""

import os
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from assay.files import read_text

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the classes of times, in seconds."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts since the service started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._rejected: Counter[str] = Counter()
        self.in_flight = 0

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        with self._lock:
            self._requests[route, method, status] += 1
            times = self._times.setdefault(route, [0] * (len(BOUNDS) + 1))
            times[bisect_left(BOUNDS, seconds)] += 1
            self._sums[route] += seconds

    def reject(self, reason: str) -> None:
        """Count a request that was refused."""
        with self._lock:
            self._rejected[reason] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return all counts, and gauges by name with their meaning and value."""
        with self._lock:
            requests, times = dict(self._requests), {k: [*v] for k, v in self._times.items()}
            sums, rejected = dict(self._sums), dict(self._rejected)
        lines = _head("assay_requests_total", "counter", "Requests that were answered.")
        for (route, method, status), count in sorted(requests.items()):
            labels = _labels(route=route, method=method, status=str(status))
            lines.append(f"assay_requests_total{labels} {count}")
        name = "assay_request_seconds"
        lines += _head(name, "histogram", "Time from the head of a request to its response.")
        for route, counts in sorted(times.items()):
            total = 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f"{name}_bucket{_labels(route=route, le=bound)} {total}")
            lines.append(f"{name}_sum{_labels(route=route)} {sums[route]:.6f}")
            lines.append(f"{name}_count{_labels(route=route)} {total}")
        lines += _head("assay_rejected_total", "counter", "Requests that were refused, by reason.")
        lines += [
            f"assay_rejected_total{_labels(reason=reason)} {count}"
            for reason, count in sorted(rejected.items())
        ]
        own = {
            "assay_requests_in_flight": ("Requests that are being answered.", self.in_flight),
            "process_resident_memory_bytes": ("Memory of the process.", resident_bytes()),
            "process_cpu_seconds_total": ("CPU time of the process.", time.process_time()),
        }
        for gauge, (meaning, value) in {**gauges, **own}.items():
            kind = "counter" if gauge.endswith("_total") else "gauge"
            lines += [*_head(gauge, kind, meaning), f"{gauge} {value:.15g}"]
        return "\n".join(lines) + "\n"


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds; 0 where the system does not say."""
    try:
        pages = int(read_text(Path("/proc/self/statm")).split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _labels(**labels: str) -> str:
    r"""Return labels as the format has them.

    >>> _labels(route="/", le="+Inf")
    '{route="/",le="+Inf"}'
    """
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
