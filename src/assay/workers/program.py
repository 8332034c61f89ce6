"""The program of a worker process: receive tasks, run them, send back what they give; end when the driver does."""

import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

from assay.errors import BadInput
from assay.memory import keep_freed_memory
from assay.workers.process import TaskFailed


def main(handle: int) -> None:
    """Serve the driver at the other end of the socket."""
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    connection = Connection(handle)
    while True:
        try:
            packed = connection.recv_bytes()
        except EOFError:
            return
        try:
            answer = (True, ForkingPickler.loads(packed)())
        except BadInput as error:
            answer = (False, error)
        except Exception:
            answer = (False, TaskFailed(traceback.format_exc()))
        connection.send(answer)


def _follow(driver: int) -> None:
    """Die with the driver, even in the middle of a task."""
    while os.getppid() == driver:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
