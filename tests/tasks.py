"""Tasks for the tests of engines, in a module that workers can import."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Square:
    number: int

    def __call__(self):
        return self.number**2


@dataclass(frozen=True)
class Where:
    def __call__(self):
        return os.getpid()


@dataclass(frozen=True)
class Variable:
    """Tells a variable of its process's environment, after a pause in which another process may
    take the next task.
    """

    name: str
    pause: float = 0.0

    def __call__(self):
        time.sleep(self.pause)
        return os.environ.get(self.name)


@dataclass(frozen=True)
class Fail:
    kind: type[Exception]

    def __call__(self):
        raise self.kind("on purpose")


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
    mark: str

    def __call__(self):
        Path(self.mark).write_text(str(os.getpid()))
        time.sleep(600)


@dataclass(frozen=True)
class Asked:
    """Tells of the process it runs in."""

    def __call__(self):
        return {
            "folder": str(Path.cwd()),
            "cache": os.environ["ASSAY_CACHE"],
            "interrupt": signal.getsignal(signal.SIGINT),
            "path": sys.path,
        }


@dataclass(frozen=True)
class Wide(Square):
    """A task that says what it needs."""

    cpus: float = 2
    gpus: float = 0


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
