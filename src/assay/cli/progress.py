"""Live progress on stderr: a table or a bar where someone watches,
plain lines where nobody does.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from assay.cli.show import duration
from assay.study.progress import State

LINE_EVERY = 10.0
"""Seconds between lines on how far things are, where nobody watches."""


class Interruptible:
    """While inside, Ctrl-C raises `KeyboardInterrupt`; where a library under way has swallowed
    that, `check` raises it again.
    """

    def __init__(self) -> None:
        self._interrupted = False
        self._ours = ExitStack()

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # no other may say what signals do
            self._ours.callback(
                signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, self._interrupt)
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.close()

    def check(self) -> None:
        """Go on only where nobody has pressed Ctrl-C."""
        if self._interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, *signalled: object) -> None:
        self._interrupted = True
        raise KeyboardInterrupt


class Lines(Interruptible):
    """One line per event, and one now and then on the whole."""

    def __init__(self) -> None:
        super().__init__()
        self._start = self._last = time.monotonic()

    def say(self, method: str, text: str) -> None:
        """The event."""
        self._print(f"{method}: {text}")

    def tick(self, states: Sequence[State], seconds_left: float | None) -> None:
        """How far all studies are together, not too often."""
        self.check()
        if time.monotonic() - self._last < LINE_EVERY:
            return
        self._last = time.monotonic()
        self._print(_overall(states, seconds_left))

    def preparing(self, what: str, done: int, total: int) -> None:
        """How far it is, not too often."""
        if time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            self._print(f"{what}: {done} of {total}")

    def _print(self, text: str) -> None:
        print(f"[{duration(time.monotonic() - self._start)}] {text}", file=sys.stderr, flush=True)


class Panel(Interruptible):
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._ours.enter_context(self._live)
        return super().__enter__()

    def say(self, method: str, text: str) -> None:
        """Preregistrations are worth keeping on the screen; the table says the rest."""
        if text.startswith("preregistration"):
            self._live.console.print(
                f"{method}: {text}", highlight=False, markup=False, soft_wrap=True
            )

    def tick(self, states: Sequence[State], seconds_left: float | None) -> None:
        """Redraw."""
        self.check()
        table = Table(
            caption=_overall(states, seconds_left), caption_justify="left", box=None, pad_edge=False
        )
        for column in ("method", "stage", "trial", "best validation MAP@R", "runs"):
            table.add_column(column, justify="left" if column in ("method", "stage") else "right")
        for state in states:
            trial = f"{state.trial + 1} of {state.trials}" if state.stage == "search" else "-"
            best = "-" if state.best is None else f"{state.best:.4f}"
            cells = (state.method, state.stage, trial, best, f"{state.done}/{state.total}")
            table.add_row(*(Text(cell) for cell in cells))
        self._live.update(table)

    def preparing(self, what: str, done: int, total: int) -> None:
        """A line in the place of the table."""
        self._live.update(Text(f"{what}: {done} of {total}"))


def watch() -> Panel | Lines:
    """The listener that suits stderr."""
    console = Console(stderr=True)
    return Panel(console) if console.is_terminal else Lines()


@contextmanager
def follow() -> Iterator[Callable[[str, int, int], None]]:
    """What long work tells how far it is, by stage: a bar for each stage that goes when all is
    done, or lines now and then.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _stage_lines()
        return
    stages: dict[str, TaskID] = {}
    with Progress(console=console, transient=True) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(escape(stage))
            bars.update(stages[stage], completed=done, total=total)

        yield show


def _stage_lines() -> Callable[[str, int, int], None]:
    """A line on the stage under way, not too often."""
    start = last = time.monotonic()

    def say(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_EVERY:
            last = now
            print(
                f"[{duration(now - start)}] {stage}: {done} of {total}", file=sys.stderr, flush=True
            )

    return say


def _overall(states: Sequence[State], seconds_left: float | None) -> str:
    done, total = sum(state.done for state in states), sum(state.total for state in states)
    left = "" if seconds_left is None or done == total else f", about {duration(seconds_left)} left"
    stages = (
        ""
        if done < total
        else ", scoring the test half"
        if any(state.stage != "done" for state in states)
        else ""
    )
    return f"{done} of {total} runs done{left}{stages}"
