"""A worker process and the line to it."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Task = Callable[[], Any]
"""Something to call in a worker: small and picklable."""


class TaskFailed(RuntimeError):
    """An exception inside a worker, with its traceback as text."""


def search_path() -> list[str]:
    """Where this process looks for modules, the working folder by its name."""
    return [path or str(Path.cwd()) for path in sys.path]


class Worker:
    """A process that runs the tasks sent to it.

    It is started as a program of its own, not forked and not by importing the caller's main module
    again, so that Assay works from any script or notebook.

    Args:
        environment: variables that it has besides those of this process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as on_failure:
            on_failure.callback(ours.close)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "assay.workers.program",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(search_path()),
                    **(environment or {}),
                },
            )
            self._connection = Connection(ours.detach())
            on_failure.pop_all()

    def run(self, task: Task, future: Future[Any]) -> None:
        """Do the task and settle the future; raises `EOFError` or `OSError` where the
        process dies.
        """
        try:
            self._connection.send(task)
            done, value = self._connection.recv()
        except (EOFError, OSError):
            raise
        except (
            Exception
        ) as error:  # what cannot be packed or unpacked must not leave the future waiting
            done, value = False, error
        if done:
            future.set_result(value)
        else:
            future.set_exception(value)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def end(self) -> int:
        """Close the line, on which the process ends; its exit code."""
        self._connection.close()
        self.kill()
        return self._process.wait()
