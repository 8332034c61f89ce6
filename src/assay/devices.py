"""How this process handles freed memory."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Numbers of glibc's `mallopt`."""


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocation instead of giving it back; for processes whose work
    is training or embedding.

    The large tensors of a network are otherwise returned to the system and fetched again at every
    layer of every batch, page by page, which can take as long as the computing. Only where the C
    library is glibc; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1)):
        mallopt(option, value)
