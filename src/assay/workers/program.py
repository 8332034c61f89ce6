"""The program of a worker process: receive tasks, run them, send back what they give; end when the
driver does.
"""

import errno
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from assay.devices import keep_freed_memory
from assay.errors import BadInput
from assay.workers.process import TaskFailed

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that are no slip of the code: where it happened is of no interest, the message says what
to do.
"""


def main(handle: int, driver: int) -> None:
    """Serve the driver, the process of that number, at the other end of the socket."""
    settle_in()
    threading.Thread(target=_follow, args=(driver,), daemon=True).start()
    connection = Connection(handle)
    while True:
        try:
            packed = connection.recv_bytes()
        except EOFError:
            return
        connection.send(answer(packed))


def settle_in() -> None:
    """Make this process one that does other processes' work."""
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle


def answer(packed: bytes) -> tuple[bool, Any]:
    """Do the packed task: whether it succeeded, and what it gave or the error to raise in the
    driver.
    """
    try:
        return True, ForkingPickler.loads(packed)()
    except BadInput as error:
        return False, error
    except OSError as error:
        return False, error if error.errno in OF_THE_DISK else TaskFailed(traceback.format_exc())
    except Exception:
        return False, TaskFailed(traceback.format_exc())


def _follow(driver: int) -> None:
    """Die with the driver, even in the middle of a task, and where it died before this process had
    begun.
    """
    while os.getppid() == driver:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
