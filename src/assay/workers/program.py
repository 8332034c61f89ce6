"""The program of a worker process: receive tasks, run them, send back their results.

It ends when its driver does.
"""

import errno
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from assay.devices import keep_freed_memory
from assay.errors import DISK_FULL, BadInput, in_one_line
from assay.workers.pool import TaskFailed

DISK_ERRORS = (*DISK_FULL, errno.EROFS)
"""Errors that are not a fault of the code: the message says what to do, no traceback is needed."""


def serve(handle: int, driver: int) -> None:
    """Run the tasks that the process `driver` sends over the socket `handle`."""
    prepare_process()
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    connection = Connection(handle)
    with suppress(EOFError, OSError):  # the driver has ended, whatever this process did then
        while True:
            connection.send(run_packed(connection.recv_bytes()))


def prepare_process() -> None:
    """Make this process a worker: keep freed memory, and leave Ctrl-C to the driver."""
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_packed(packed: bytes) -> tuple[bool, Any]:
    """Run a pickled task; return whether it succeeded, with its result or the error to raise."""
    try:
        return True, ForkingPickler.loads(packed)()
    except (Exception, SystemExit) as error:
        return False, describe_failure(error)


def describe_failure(error: Exception | SystemExit) -> Exception:
    """Return what the driver raises for an exception of a task.

    Bad input and a full disk are raised as they are; anything else with its traceback as text.
    """
    if isinstance(error, BadInput) or (isinstance(error, OSError) and error.errno in DISK_ERRORS):
        return error
    return TaskFailed("".join(traceback.format_exception(error)), in_one_line(error))


def _end_with(driver: int) -> None:
    """End this process when the driver has ended, even in the middle of a task."""
    while os.getppid() == driver:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
