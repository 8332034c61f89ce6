"""Live progress on stderr: a table or bars in a terminal, plain lines elsewhere."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import Progress as Bars
from rich.progress import TaskID
from rich.table import Table
from rich.text import Text

from assay.cli.show import duration, time_left, visible
from assay.progress import Progress
from assay.records.progress import Listener, StudyState, TimeLeft

LINE_EVERY = 10.0
"""Seconds between two lines of progress where stderr is not a terminal."""


FIRST_LINE_AFTER = 3.0
"""Seconds of silence after which a command says what it is doing. Most bad input is found before,
and is then answered in a single line.
"""


class Interruptible(Listener):
    """A context in which Ctrl-C raises `KeyboardInterrupt`, and no silence is long.

    `check` raises it again where a library has swallowed it.

    Args:
        command: name of the command.
        doing: what it does at first, which is announced if nothing else has been said by then.
    """

    def __init__(self, command: str = "", doing: str = "") -> None:
        self._interrupted = False
        self._ours = ExitStack()
        self._silence = threading.Timer(FIRST_LINE_AFTER, self.announce, [command, doing])
        self._silence.daemon = True
        self._quiet = not doing

    def __enter__(self) -> Self:
        if not self._quiet:
            self._silence.start()
            self._ours.callback(self._silence.cancel)
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            before = signal.signal(signal.SIGINT, self._interrupt)
            self._ours.callback(signal.signal, signal.SIGINT, before)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.close()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self._interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, *signalled: object) -> None:
        self._interrupted = True
        raise KeyboardInterrupt


class LineListener(Interruptible):
    """Prints a line for each event, and now and then a line on the whole.

    Args:
        verbose: whether keys of runs and the like are printed too.
        command: name of the command.
        doing: what it does at first.
    """

    def __init__(self, verbose: bool = False, command: str = "", doing: str = "") -> None:
        super().__init__(command, doing)
        self._verbose = verbose
        self._start = self._last = time.monotonic()

    def say(self, method: str, text: str) -> None:
        """Print the event."""
        self._print(f"{method}: {text}")

    def run_done(self, method: str, run: str, key: str) -> None:
        """Print that a run is done, with its key where that is wanted."""
        self.say(method, f"{run}: {_with_key(key)}" if self._verbose else f"{run} done")

    def detail(self, method: str, text: str) -> None:
        """Print what only an audit asks for, where that is wanted."""
        if self._verbose:
            self.say(method, text)

    def announce(self, method: str, text: str) -> None:
        """Print the announcement."""
        self.say(method, text)

    def tick(self, states: Sequence[StudyState], left: TimeLeft | None) -> None:
        """Print how far all studies are together, not too often."""
        self.check()
        self._print_sometimes(_overall(states, left))

    def progress(self, stage: str, done: int, total: int) -> None:
        """Print how far the stage is, not too often."""
        self._print_sometimes(f"{stage}: {done} of {total}")

    def _print_sometimes(self, text: str) -> None:
        if time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            self._print(text)

    def _print(self, text: str) -> None:
        self._silence.cancel()
        said = f"[{duration(time.monotonic() - self._start)}] {visible(text)}"
        print(said, file=sys.stderr, flush=True)


class TableListener(Interruptible):
    """Redraws a table of all studies in place; announcements are printed above it.

    Args:
        console: where it prints.
        verbose: whether keys of runs and the like are printed too.
        command: name of the command.
        doing: what it does at first.
    """

    def __init__(
        self, console: Console, verbose: bool = False, command: str = "", doing: str = ""
    ) -> None:
        super().__init__(command, doing)
        self._verbose = verbose
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._ours.callback(self._live.stop)
        return super().__enter__()

    def run_done(self, method: str, run: str, key: str) -> None:
        """Print that a run is done above the table, where keys are wanted."""
        self.detail(method, f"{run}: {_with_key(key)}")

    def detail(self, method: str, text: str) -> None:
        """Print what only an audit asks for above the table, where that is wanted."""
        if self._verbose:
            self.announce(method, text)

    def announce(self, method: str, text: str) -> None:
        """Print the announcement above the table, where it stays."""
        self._silence.cancel()
        said = visible(f"{method}: {text}")
        self._live.console.print(said, highlight=False, markup=False, soft_wrap=True)

    def tick(self, states: Sequence[StudyState], left: TimeLeft | None) -> None:
        """Redraw the table."""
        self.check()
        self._silence.cancel()
        table = Table(
            caption=_overall(states, left), caption_justify="left", box=None, pad_edge=False
        )
        for column in ("method", "stage", "trial", "best validation MAP@R", "runs"):
            table.add_column(column, justify="left" if column in ("method", "stage") else "right")
        for state in states:
            trial = f"{state.trial + 1} of {state.trials}" if state.stage == "search" else "-"
            best = "-" if state.best is None else f"{state.best:.4f}"
            cells = (state.method, state.stage, trial, best, f"{state.done}/{state.total}")
            table.add_row(*(Text(visible(cell)) for cell in cells))
        self._draw(table)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show how far the stage is in place of the table."""
        self._silence.cancel()
        self._draw(Text(visible(f"{stage}: {done} of {total}")))

    def _draw(self, what: Table | Text) -> None:
        """Show this in place; before the first call nothing is, so that a refusal is one line."""
        self._live.update(what)
        self._live.start()


def watch(
    verbose: bool = False, command: str = "", doing: str = ""
) -> TableListener | LineListener:
    """Return the listener of a bench that suits stderr."""
    console = Console(stderr=True)
    if console.is_terminal:
        return TableListener(console, verbose, command, doing)
    return LineListener(verbose, command, doing)


@contextmanager
def follow() -> Iterator[Progress]:
    """Yield a progress callback: one bar per stage on a terminal, occasional lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineListener().progress
        return
    stages: dict[str, TaskID] = {}
    with Bars(console=console, transient=True) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(escape(stage))
            bars.update(stages[stage], completed=done, total=total)

        yield show


def _with_key(key: str) -> str:
    return f"run {key[:12]} done"


def _overall(states: Sequence[StudyState], left: TimeLeft | None) -> str:
    """Return how far all studies are together, and the time left."""
    done, total = sum(state.done for state in states), sum(state.total for state in states)
    if done < total:
        return f"{done} of {total} runs done{time_left(left)}"
    scoring = any(state.stage != "done" for state in states)
    return f"{done} of {total} runs done{', scoring the test half' if scoring else ''}"
