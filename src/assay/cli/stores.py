"""`assay status`, `report` and `merge`: commands on run stores."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.index import merge_indexes
from assay.cli.options import INDEX, STORE, JsonOption
from assay.cli.show import duration, print_json, print_table, time_left, visible

if TYPE_CHECKING:
    from assay.records.merge import Contribution
    from assay.records.store import Store
    from assay.status import Status

StoreArgument = Annotated[Path, typer.Argument(metavar="[DIR]", help="A run store.")]

WATCH_EVERY = 2.0
"""Seconds between two updates of `--watch`."""

QUIET = 10.0
"""Seconds after which a driver that has written nothing is reported as silent."""

COLUMNS = (
    "method",
    "data",
    "protocol",
    "trials",
    "best validation MAP@R",
    "reproduction runs",
    "runs",
    "state",
)
NUMBERS = range(3, 7)


# --- status ---------------------------------------------------------------------------------------


def status(
    directory: StoreArgument = STORE,
    json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print every change until the bench has ended.")
    ] = False,
) -> None:
    """Show how far each study is, what has failed, and the time left; of a dead bench too.

    Example: assay status assay-runs/demo --watch
    """
    from assay.records.store import Store
    from assay.status import status_of

    store = Store(directory)
    if watch:
        _watch(store, json)
        return
    found = status_of(store)
    if json:
        print_json(found)
        return
    print("\n".join(map(visible, _heading(found))))
    print_table(COLUMNS if found.studies else ["no study yet"], _rows(found), right=NUMBERS)


def _watch(store: "Store", json: bool) -> None:
    """Print the status until no process drives the store: a table that is redrawn, or lines."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if console.is_terminal and not json:
        _redraw(store, console)
        return
    from assay.hashing import canonical

    last = None
    for found in _statuses(store):
        now = (found.driver, found.studies)
        if now != last:
            print(canonical(found) if json else visible(_sentence(found)), flush=True)
        last = now


def _redraw(store: "Store", console: Any) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    with Live(console=console, auto_refresh=False) as live:
        for found in _statuses(store):
            table = Table(box=None, pad_edge=False)
            for number, column in enumerate(COLUMNS):
                table.add_column(column, justify="right" if number in NUMBERS else "left")
            for row in _rows(found):
                table.add_row(*map(Text, row))
            heading = "\n".join(map(visible, _heading(found)))
            live.update(Group(Text(heading), table), refresh=True)


def _statuses(store: "Store") -> Iterator["Status"]:
    """Yield the status every two seconds, for the last time when the driver has ended."""
    from assay.status import status_of

    while True:
        found = status_of(store)
        yield found
        if found.driver is None:
            return
        time.sleep(WATCH_EVERY)


def _heading(found: "Status") -> Iterator[str]:
    """Yield who drives the store, how far all studies are together, and the time left."""
    open_ones = [study for study in found.studies if not study.ended]
    silent = "" if found.silent is None else duration(found.silent)
    if found.driver:
        quiet = (
            f", silent for {silent}" if found.silent is not None and found.silent > QUIET else ""
        )
        yield f"running: {found.driver}{quiet}"
    else:
        yield "not running" + (
            f"; its driver last reported {silent} ago" if open_ones and silent else ""
        )
    if found.studies:
        half = f", {len(found.under_way)} half done" if found.under_way else ""
        yield f"{found.done} of {found.total} runs done{half}{_left(found)}"
    if open_ones and not found.driver:
        yield "to continue, run the same command again"


def _left(found: "Status") -> str:
    """Return the time left, and the number of workers that it is for."""
    from assay.records.progress import TimeLeft

    if found.seconds_left is None or all(study.ended for study in found.studies):
        return ""
    if found.driver:
        return time_left(TimeLeft(found.seconds_left, found.longer))
    workers = (
        "" if found.workers is None else f" with {found.workers} worker{'s' * (found.workers != 1)}"
    )
    seconds = found.seconds_left
    left = f"about {duration(seconds)}" if seconds >= 1 else "less than a second"
    return f", {left}{workers} once it is started again"


def _rows(found: "Status") -> list[list[str]]:
    """Return a row for each study; a point of a sweep is indented under its base."""
    shown = {study.study for study in found.studies}
    return [
        [
            "  " * (study.base in shown) + visible(study.method),
            visible(study.data),
            visible(study.protocol),
            f"{study.trials}/{study.trials_announced}",
            "" if study.best is None else f"{study.best:.4f}",
            f"{study.reproduction_runs}/{study.reproduction_runs_announced}",
            f"{study.done}/{study.total}",
            visible(study.state),
        ]
        for study in found.studies
    ]


def _sentence(found: "Status") -> str:
    """Return the status on one line, for logs."""
    who = "" if found.driver else "not running: "
    studies = "; ".join(f"{study.method} {study.state}" for study in found.studies)
    return (
        f"{who}{found.done} of {found.total} runs done{_left(found)}: {studies or 'no study yet'}"
    )


# --- report ---------------------------------------------------------------------------------------


def report(directory: StoreArgument = STORE) -> None:
    """Write the report again, from the store alone.

    Example: assay report assay-runs/demo
    """
    from assay.records.store import Store
    from assay.report import write_report

    print(f"report: {write_report(Store(directory))}")


# --- merge ----------------------------------------------------------------------------------------


def merge(
    stores: Annotated[
        list[Path],
        typer.Argument(metavar="STORE...", help="Run stores, or indexes; they are only read."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="STORE",
            help="The store that they are copied into, new or existing; of indexes a new one.",
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Merge run stores of several labs or nodes into one; everything is checked first.

    After any interruption, run the same command again: it continues. The report is not copied:
    `assay report STORE` writes it. Indexes of one model are merged too; nothing is embedded again.

    Example: assay merge berlin/assay-runs oslo/assay-runs --out both
    """
    from assay.cli.progress import watch
    from assay.records.merge import merge as unite

    if any((store / INDEX).exists() for store in stores):
        merge_indexes(stores, out, json)
        return
    with watch() as listener:
        merged = unite(stores, out, listener.progress)
    if json:
        print_json(
            {
                "out": str(merged.out),
                "runs": merged.runs,
                "studies": merged.studies,
                "came": [*map(_contribution, merged.contributions)],
            }
        )
        return
    rows = [[str(value) for value in _contribution(came).values()] for came in merged.contributions]
    print_table(["from", "runs", "studies", "models"], rows, right=(1, 2, 3))
    print(
        f"{out} now holds {merged.runs} runs and {merged.studies} studies; `assay report {out}`"
        " writes its report"
    )


def _contribution(came: "Contribution") -> dict[str, str | int]:
    return {
        "from": str(came.store),
        "runs": came.runs,
        "studies": came.studies,
        "models": came.models,
    }
