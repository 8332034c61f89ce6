"""Commands on inputs that nobody would make on purpose, and what they must answer.

A case is a kind and a seed: its generator (`fuzz_data.py`, `fuzz_stores.py`) makes an input, valid
or damaged, and says what must be true if the input is accepted. No input may end in a traceback,
hang, be refused in more than one line or without its name, or be accepted and mean something else.
As a program, it prints its counts:

    python tests/fuzz.py --count 1000 --seed 0
    python tests/fuzz.py --kind table --seed 17        # one case again
"""

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import FrameType

import pytest

from assay.cli import main, progress
from assay.report import write
from official import shrink

PATIENCE = 10.0
"""Seconds of computing after which a command is taken to hang."""

WAITING = 4
"""How many times as long a command may take by the clock, on a machine that others use too."""

MEMORY = 6 << 30
"""Bytes that a command may ask for beyond those that this process has: a bomb must not go off."""

SHOWN = 300
"""Characters of a failure that are shown."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, None after a traceback or a hang; what it said."""

    code: int | None
    out: str
    err: str
    raised: str = ""
    hung: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Case:
    """An input and what its command must answer.

    Args:
        shown: what the input is, in words.
        words: the command.
        wrong: says of an accepted input what is wrong with that; empty where nothing is.
        names: one of these must stand in a refusal.
        valid: whether the input must be accepted.
        finds: whether exit code 1 means that the command found the damage.
        within: what is restored after the command.
    """

    shown: str
    words: Sequence[str]
    wrong: Callable[[Ended], str] = lambda ended: ""
    names: Sequence[str] = ()
    valid: bool = False
    finds: bool = False
    within: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Outcome:
    """What became of a case: the column it is counted in, and what is wrong with it."""

    kind: str
    seed: int
    shown: str
    column: str
    problem: str
    seconds: float

    def __str__(self) -> str:
        again = f"python tests/fuzz.py --kind {self.kind} --seed {self.seed}"
        return f"{self.column}: {self.shown}: {self.problem[-SHOWN:]}   ({again})"


COLUMNS = ("accepted", "refused", "found", "traceback", "hang", "unclear", "wrong")
"""What may become of a case; the last four are failures. `found` is exit code 1 of `verify`,
`unclear` a refusal of several lines, without the name of its input or with another exit code.
"""

FAILURES = COLUMNS[3:]


# --- Commands in this process ---------------------------------------------------------------------


class HangError(BaseException):
    """A command took too long; no `except Exception` may swallow this."""


@contextmanager
def limits(seconds: float) -> Iterator[None]:
    """Raise `HangError` after so many seconds, and `MemoryError` for a huge allocation."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise HangError

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    timers = {signal.ITIMER_PROF: seconds, signal.ITIMER_REAL: WAITING * seconds}
    before = {number: signal.signal(number, give_up) for number in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    for timer, longest in timers.items():
        signal.setitimer(timer, longest, 1.0)  # again after a second, where it was swallowed
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def call(words: Sequence[str], seconds: float = PATIENCE) -> Ended:
    """Run a command in this process."""
    out, err, before, began = StringIO(), StringIO(), sys.argv, time.monotonic()
    code, raised, hung = 0, "", False
    sys.argv = ["assay", *words]
    try:
        with limits(seconds), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except HangError:
        hung = True
    except BaseException as error:
        raised = _where(error)
    finally:
        sys.argv = before
    took = time.monotonic() - began
    return Ended(None if raised or hung else code, _text(out), _text(err), raised, hung, took)


def _where(error: BaseException) -> str:
    """Return an error and the last line of Assay's own that it passed."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "assay/" in one.filename]
    place = frames[-1] if frames else None
    at = f"{place.filename.rpartition('assay/')[2]}:{place.lineno}" if place else "outside"
    said = traceback.format_exception_only(error)[-1]
    return " ".join(f"{at}: {said[:200]}".split())


def _text(stream: StringIO) -> str:
    return stream.getvalue().encode(errors="backslashreplace").decode()


# --- Judging --------------------------------------------------------------------------------------


def judge(case: Case, ended: Ended) -> tuple[str, str]:
    """Return the column that a case is counted in, and what is wrong with it."""
    if ended.raised:
        return "traceback", ended.raised
    if ended.hung:
        return "hang", f"after {ended.seconds:.0f} s"
    if ended.code == 0:
        problem = case.wrong(ended)
        return ("wrong", problem) if problem else ("accepted", "")
    if ended.code == 1 and case.finds:
        return "found", ""
    message = ended.err.strip()
    if case.valid:
        return "wrong", f"a valid input was refused: {message}"
    if ended.code != 2:
        return "unclear", f"exit code {ended.code}: {message}"
    return _judge_refusal(case, message)


def _judge_refusal(case: Case, message: str) -> tuple[str, str]:
    """Return whether a refusal is one line with the name of the input in it."""
    if message.startswith("Usage:"):
        return "refused", ""
    lines = message[message.find("assay: ") :].splitlines()
    if len(lines) != 1 or not lines[0].startswith("assay: "):
        return "unclear", f"{len(lines)} lines: {message!r}"
    if case.names and not any(name in lines[0] for name in case.names):
        return "unclear", f"without the name {case.names[0]}: {message}"
    return "refused", ""


Kind = Callable[[random.Random], Case]
"""A generator: makes an input from what it draws."""


def try_case(name: str, kind: Kind, seed: int, seconds: float = PATIENCE) -> Outcome:
    """Make the case of this seed, run its command and judge how it ended."""
    case = kind(random.Random(f"{name} {seed}"))
    with case.within():
        ended = call(case.words, seconds)
    column, problem = judge(case, ended)
    return Outcome(name, seed, case.shown, column, problem, ended.seconds)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the counts of each kind, as lines."""
    counts = {kind: Counter(one.column for one in outcomes if one.kind == kind)
              for kind in dict.fromkeys(one.kind for one in outcomes)}  # fmt: skip
    yield "".join(f"{title:>10}" for title in ("kind", "inputs", *COLUMNS, "slowest"))
    for kind, count in counts.items():
        slowest = max(one.seconds for one in outcomes if one.kind == kind)
        cells = (kind, count.total(), *(count[column] for column in COLUMNS), f"{slowest:.1f} s")
        yield "".join(f"{cell:>10}" for cell in cells)
    every = Counter(one.column for one in outcomes)
    cells = ("all", every.total(), *(every[column] for column in COLUMNS), "")
    yield "".join(f"{cell:>10}" for cell in cells)


@contextmanager
def prepared(folder: Path) -> Iterator[dict[str, Kind]]:
    """Give the generators, which write their inputs below a folder, and keep the cache in it."""
    from fuzz_stores import Inputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(folder / "cache"))
        patch.setattr(progress, "LINE_EVERY", float("inf"))
        patch.setattr(write, "draw", lambda figure, form: b"<svg></svg>")  # takes longest
        shrink(patch, "sop")
        yield Inputs(folder).kinds


def fuzz(kinds: dict[str, Kind], count: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcomes of so many cases, the kinds in turn."""
    names = list(kinds)
    for number in range(count):
        name = names[number % len(names)]
        yield try_case(name, kinds[name], seed + number // len(names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run commands on inputs made at random.")
    parser.add_argument("--count", type=int, help="number of inputs; one where a kind is given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", help="only this kind of input")
    given = parser.parse_args()
    place, tried = Path(tempfile.mkdtemp(prefix="assay-fuzz-")).resolve(), []
    try:
        with prepared(place) as every_kind:
            if given.kind:
                every_kind = {given.kind: every_kind[given.kind]}
            for outcome in fuzz(every_kind, given.count or (1 if given.kind else 1000), given.seed):
                tried.append(outcome)
                if outcome.column in FAILURES or given.count is None:
                    print(outcome, flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print("\n".join(table(tried)))
    sys.exit(any(outcome.column in FAILURES for outcome in tried))
