"""What this process computes with: the device, torch's threads, and freed memory.

Torch is imported inside the functions that need it: the command line imports this module first.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from assay.errors import BadInput
from assay.files import read_text

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the GPUs that a process sees."""

MOST_WORKERS = 1_024
"""Worker processes of one bench; each takes some 200 MB before it has read any data."""

STATUS, CLEAR = "/proc/self/status", "/proc/self/clear_refs"
"""Files by which Linux tells the memory of a process, and begins to measure its peak anew."""

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Numbers of glibc's `mallopt`."""


def choose_device(device: str) -> str:
    """Return `cpu` or `cuda`; `auto` is the GPU where there is one."""
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise BadInput(f"--device {device}: choose auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch sees no GPU here; use --device cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process sees, as in `CUDA_VISIBLE_DEVICES`."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE_GPUS, "").split(",") if name.strip()]
    return (named or [str(number) for number in range(count)])[:count]


def seed_torch(seed: int) -> None:
    """Seed the generators of torch on the CPU and on the GPUs there are.

    `torch.manual_seed` also queues the seed, with the whole call stack, for every kind of device
    that is absent: slow, and kept for as long as the process lives.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with `count` torch threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class PeakMemory:
    """Measures the most memory that this process has at a time, from now on.

    On a GPU it is that of the tensors there. Where the system cannot begin anew, it is the most
    since the process began.
    """

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        if self._on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()
            return
        with suppress(OSError):
            Path(CLEAR).write_text("5")

    @property
    def bytes(self) -> int | None:
        """Most bytes so far; None where the system does not tell."""
        if self._on_gpu:
            import torch

            return int(torch.cuda.max_memory_allocated())
        with suppress(OSError):
            found = re.search(r"^VmHWM:\s+(\d+) kB$", read_text(Path(STATUS)), re.MULTILINE)
            if found:
                return 1024 * int(found[1])
        try:
            import resource
        except ImportError:  # Windows
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocation instead of returning it to the system.

    For processes that train or embed: the large tensors of a network are otherwise returned and
    fetched again at every layer of every batch, page by page, which can take as long as the
    computation. Does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1)):
        mallopt(option, value)
