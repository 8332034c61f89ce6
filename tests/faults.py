"""Benches that things happen to, as programs of their own: killed at random moments, on full disks,
under a wrong clock.

As a program, `python faults.py WORDS` is `assay WORDS`, but that every validation leaves a state to
go on from after a kill.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from miniature import snapshot
from options import set_options

ASSAY = ("-m", "assay")
SAVING = (__file__,)
"""The programs that a bench can be started with."""

RESULTS = "runs/*/[0-9a-f]*/result.json"
"""Of runs that stand in a store, not of drafts."""


def words(
    data: str, out: Path, methods: Sequence[str], settings: Sequence[str], *more: str
) -> list[str]:
    """Return the words of a bench's command, which prints the keys of its runs."""
    named = ["bench", "--data", data, "--out", str(out), "--methods", ",".join(methods)]
    named += ["--verbose", *more]
    return named + set_options(settings)


def start(
    data: str,
    out: Path,
    methods: Sequence[str],
    settings: Sequence[str],
    *more: str,
    program: Sequence[str] = ASSAY,
    errors: Any = subprocess.PIPE,
    env: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a bench as a process of its own."""
    command = [sys.executable, *program, *words(data, out, methods, settings, *more)]
    return subprocess.Popen(
        command, stderr=errors, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )


def end_well(process: subprocess.Popen[str]) -> str:
    """Wait for the process, which must succeed; return what it printed on stderr."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return errors


def everything(store: Path) -> dict[str, object]:
    """All that must be the same bytes whatever happens: studies, ledgers without the clock, runs,
    tables and models.
    """
    models = [path for path in sorted(store.glob("models/*/*")) if path.is_file()]
    return snapshot(store) | {
        path.relative_to(store).as_posix(): path.read_bytes() for path in models
    }


def finished(store: Path) -> dict[str, bytes]:
    """The clock of every finished run, by the first digits of its key: a run that is computed again
    has another.
    """
    return {
        path.parent.name[:12]: (path.parent / "timing.json").read_bytes()
        for path in store.glob(RESULTS)
    }


def computed(errors: str) -> list[str]:
    """Return the runs that a bench reported as done, by the first digits of their keys."""
    return re.findall(r"run ([0-9a-f]{12}) done", errors)


def wait_for(condition: Callable[[], Any], seconds: float = 180.0) -> Any:
    """Wait until the condition is true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return value


# --- Killing ---


def does(pid: int) -> str:
    """Return the command line of a process, empty if the process has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state == "Z" else words


def descendants(pid: int) -> set[int]:
    """Return the numbers of the processes below a process."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").glob("*/children")
            for child in task.read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {*children, *(below for child in children for below in descendants(child))}


def workers_of(driver: subprocess.Popen[str]) -> list[int]:
    """Return the worker processes of a driver on the local engine."""
    return sorted(pid for pid in descendants(driver.pid) if "assay.workers.program" in does(pid))


class Victims:
    """Runs a bench to its end although its processes are killed, and looks after each kill whether
    anything was lost.

    Args:
        begin: starts the bench, its stderr going to the file that it is given; whenever the driver
            has died, again.
        store: of the bench.
        log: the file for stderr.
        workers: finds the worker processes of a driver.
        others: further ways to harm the bench, by name.
        seed: of what is killed when.
    """

    def __init__(
        self,
        begin: Callable[[Any], subprocess.Popen[str]],
        store: Path,
        log: Path,
        workers: Callable[[subprocess.Popen[str]], list[int]] = workers_of,
        others: dict[str, Callable[[], None]] | None = None,
        seed: int = 0,
    ) -> None:
        self.store, self.log, self.killed = (
            store,
            log,
            dict.fromkeys(("driver", "worker", *(others or {})), 0),
        )
        self._begin, self._workers, self._others, self._draw = (
            begin,
            workers,
            others or {},
            random.Random(seed),
        )
        self._before: dict[str, bytes] = {}
        self._log = log.open("w")
        self._driver = self._begin(self._log)

    def kill(self, count: int) -> None:
        """Kill so many processes, each a random one at a random moment."""
        for _ in range(count):
            self._wait()
            kind = self._draw.choice(list(self.killed))
            while kind == "worker" and not self._kill_worker():
                self._wait()
            if kind == "driver":
                self._driver.kill()
                self._driver.communicate()
                self._driver = self._begin(self._log)
            elif kind != "worker":
                self._others[kind]()
            self.killed[kind] += 1
            self._look()

    def end(self) -> None:
        """Let the bench come to its end; no run may then have been computed twice, or lost."""
        while self._driver.communicate() and self._driver.returncode:
            self._begin_again()
        self._log.close()
        self._look()
        done = computed(self.log.read_text())
        assert sorted(set(done)) == sorted(done), "a finished run was computed again"

    def stop(self) -> None:
        """End what still runs."""
        with self._driver:
            self._driver.kill()
        self._log.close()

    def _wait(self) -> None:
        """Until some more validations and runs are on the disk, and a moment longer."""
        before, enough = self._traces(), self._draw.randint(0, 2)
        deadline = time.monotonic() + 900
        while len(self._traces() - before) < enough or not self.store.exists():
            assert time.monotonic() < deadline, self.log.read_text()
            if self._driver.poll() is not None:
                self._driver.communicate()
                assert self._driver.returncode, f"the bench was over after {self.killed}"
                self._begin_again()
            time.sleep(0.005)
        time.sleep(self._draw.uniform(0, 0.1))

    def _begin_again(self) -> None:
        """Start the bench again after a task whose worker was killed three times."""
        said = self.log.read_text().splitlines()[-1]
        assert "a worker process died 3 times" in said and "run the same command again" in said, (
            said
        )
        self._driver = self._begin(self._log)

    def _kill_worker(self) -> bool:
        there = self._workers(self._driver)
        for pid in self._draw.sample(there, min(1, len(there))):
            os.kill(pid, signal.SIGKILL)
        return bool(there)

    def _traces(self) -> set[tuple[str, int]]:
        found = set()
        for path in (*self.store.glob(RESULTS), *self.store.glob("partial/*/*/state.safetensors")):
            try:
                found.add((str(path), path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue
        return found

    def _look(self) -> None:
        now = finished(self.store)
        assert self._before.items() <= now.items(), "a finished run was lost or computed again"
        self._before = now


# --- Disks ---


@dataclass(frozen=True)
class Disk:
    """A file system of its own in memory, at a path."""

    path: Path

    def resize(self, size: int) -> None:
        """Give it so many bytes, full pages."""
        self._remount("rw", f"size={-(-size // 4096) * 4096}")

    def write_protect(self) -> None:
        """Make it read-only, for root too."""
        self._remount("ro")

    def _remount(self, *options: str) -> None:
        subprocess.run(["mount", "-o", ",".join(("remount", *options)), str(self.path)], check=True)


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """Mount a disk at the path; skip the test where mounting is not permitted."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def space_of(store: Path) -> int:
    """Return the bytes that the files and folders of a store take on a disk of pages."""
    return sum(
        -(-path.stat().st_size // 4096) * 4096 for path in store.rglob("*") if path.is_file()
    )


# --- Clocks ---

BACKWARDS = """
import datetime
import time

real, began = time.time, time.time()


def back():
    return began - {late} - 10 * (real() - began)


class Back(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(back(), tz)


time.time, datetime.datetime = back, Back
"""


def clock_backwards(folder: Path, late: int = 7200) -> dict[str, str]:
    """The environment of processes whose clock is late by so many seconds and runs backwards, ten
    times as fast as time.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BACKWARDS.format(late=late))
    path = [str(folder), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])]
    return {"PYTHONPATH": os.pathsep.join(path)}


if __name__ == "__main__":
    import assay.study.study
    from assay.cli import main
    from assay.run import Training

    assay.study.study.Training = partial(Training, save_after=0)  # type: ignore[misc, assignment]
    main()
