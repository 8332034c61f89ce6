"""Tasks for the tests of engines, in a module that workers can import."""

import errno
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from assay.workers import Needs


@dataclass(frozen=True)
class Square:
    number: int

    def __call__(self):
        return self.number**2


@dataclass(frozen=True)
class Count:
    """Leaves a file for each time that it runs."""

    folder: str
    number: int

    def __call__(self):
        (Path(self.folder) / f"{self.number}-{time.time_ns()}").touch()
        return self.number


@dataclass(frozen=True)
class Where:
    """Returns the number of its process, after a pause in which another may take the next task."""

    pause: float = 0.0

    def __call__(self):
        time.sleep(self.pause)
        return os.getpid()


@dataclass(frozen=True)
class Importing:
    """Returns the number of its process, which it says has imported the user's own files."""

    imports: tuple[str, ...]

    @property
    def needs(self):
        return Needs(imports=self.imports)

    def __call__(self):
        return os.getpid()


@dataclass(frozen=True)
class Variable:
    """Returns a variable of its process's environment, after a pause in which another process may
    take the next task.
    """

    name: str
    pause: float = 0.0

    def __call__(self):
        time.sleep(self.pause)
        return os.environ.get(self.name)


@dataclass(frozen=True)
class Fail:
    kind: type[BaseException]

    def __call__(self):
        raise self.kind("on purpose")


@dataclass(frozen=True)
class FillDisk:
    def __call__(self):
        raise OSError(errno.ENOSPC, "no room", "a file")


@dataclass(frozen=True)
class Interrupt:
    def __call__(self):
        signal.raise_signal(signal.SIGINT)


@dataclass(frozen=True)
class DieOnce:
    """Kills its process the first time."""

    mark: str

    def __call__(self):
        if not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"


@dataclass(frozen=True)
class Die:
    def __call__(self):
        os._exit(7)


@dataclass(frozen=True)
class Sleep:
    """Writes the number of its process into a file and sleeps for minutes."""

    mark: str

    def __call__(self):
        Path(f"{self.mark}.part").write_text(str(os.getpid()))
        os.replace(f"{self.mark}.part", self.mark)
        time.sleep(600)


@dataclass(frozen=True)
class Circumstances:
    """Returns what there is to know of the process it runs in."""

    def __call__(self):
        return {
            "folder": str(Path.cwd()),
            "cache": os.environ["ASSAY_CACHE"],
            "interrupt": signal.getsignal(signal.SIGINT),
            "path": sys.path,
        }


@dataclass(frozen=True)
class Resources:
    """Returns what Ray has given it."""

    cpus: float

    @property
    def needs(self):
        return Needs(self.cpus)

    def __call__(self):
        import ray

        return ray.get_runtime_context().get_assigned_resources()


@dataclass(frozen=True)
class Wide(Square):
    """A task that says what it needs."""

    cpus: float = 2
    gpus: float = 0

    @property
    def needs(self):
        return Needs(self.cpus, self.gpus)


def square(number: int) -> int:
    return number * number


def where(number: int) -> int:
    time.sleep(0.002)  # long enough for another process to take its share
    return os.getpid()


def fail_at(kind: type[Exception], bad: int, number: int) -> int:
    if number == bad:
        raise kind("on purpose")
    return number


def die_at(bad: int, number: int) -> int:
    if number == bad:
        os._exit(7)
    return number


def die_once_at(mark: str, bad: int, number: int) -> int:
    if number == bad and not Path(mark).exists():
        Path(mark).touch()
        os._exit(7)
    return number
