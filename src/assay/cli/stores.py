"""`assay status`, `report`, `verify` and `merge`: commands on run stores."""

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.options import (
    LARGEST_SEED,
    STORE,
    EngineName,
    EngineOption,
    ImportsOption,
    JsonOption,
    WorkersOption,
)
from assay.cli.show import duration, print_json, print_table, time_left, visible
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.engines import Engine
    from assay.records.merge import Contribution
    from assay.records.store import Store
    from assay.status import Status
    from assay.verify import Designs, Finding, Repeated

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


# --- verify ---------------------------------------------------------------------------------------


def verify(
    directory: StoreArgument = STORE,
    anchors: Annotated[
        list[str] | None,
        typer.Option(
            "--anchor",
            metavar="HASH",
            help="The hash of a bench, published when it was announced; once for each bench.",
        ),
    ] = None,
    rerun: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=LARGEST_SEED,
            help="Also compute K runs again, chosen at random, and compare.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LARGEST_SEED,
            help="Seed that chooses the runs of --rerun; a random one by default.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The data of the store: embed their test half again and compare; also for --rerun."
        ),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option("--complete", help="Exit with 1 also where something announced is missing."),
    ] = False,
    imports: ImportsOption = None,
    engine: EngineOption = EngineName.local,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Check a store from its runs: ledgers, searches, selections, test scores, tables.

    Exit code 1 if anything is wrong or could not be checked; what is incomplete is named. With
    --data, the test half is embedded again with the stored weights. With --rerun, some runs are
    trained again, and embed the test half again. Other bytes, as another processor or other
    versions may give, are reported and must lie within a tolerance.

    Example: assay verify assay-runs/demo --data glyphs --rerun 2
    """
    from assay.cli.progress import follow
    from assay.engines import choose_engine
    from assay.records.looks import LookIndex
    from assay.records.store import Store
    from assay.records.study import readable_records
    from assay.verify import Designs, device_of_runs, retest
    from assay.verify import verify as check

    for anchor in anchors or []:
        if not re.fullmatch("[0-9a-f]{64}", anchor):
            raise BadInput(
                f"--anchor {anchor}: give all 64 digits of the hash that the bench printed"
                " (announced: ...), the name of a file in its folder benches"
            )
    store, repeated, index = Store(directory), [], LookIndex()
    with ExitStack() as stack:
        if data or rerun:  # what cannot be computed again is refused before the other checks
            runner = choose_engine(engine.value, workers, device=device_of_runs(store))
            designs = stack.enter_context(Designs.in_empty_cache(data, imports or []))
            designs.check_data(readable_records(store))
        findings = _print_findings(check(store, anchors or [], index), json)
        if rerun:
            seed = secrets.randbelow(2**32) if seed is None else seed  # not known beforehand
            repeated = _rerun(store, rerun, seed, runner, designs, json)
        if data or rerun:
            with follow() as progress:
                only = None if data else [one.run for one in repeated]
                again = retest(store, runner, designs, only, progress)
                findings += _print_findings(_or_the_reason(again, findings), json)
    wrong = [finding for finding in findings if finding.problem]
    incomplete = [finding for finding in findings if finding.incomplete]
    unchecked = [finding for finding in findings if finding.unchecked]
    trusted = _trusted(store, data, findings, repeated)
    done = sum(not (finding.skipped or finding.unchecked) for finding in findings)
    if json:
        print_json(
            {
                "checks": done,
                "problems": wrong,
                "incomplete": incomplete,
                "unchecked": unchecked,
                "notes": [one for one in findings if one.note],
                "trusted": trusted,
                **({"rerun": {"seed": seed, "runs": repeated}} if rerun else {}),
            }
        )
    else:
        if trusted:
            print(visible(f"taken on trust: {'; '.join(trusted)}"))
        missing = f", {len(incomplete)} incomplete" if incomplete else ""
        failed = f", {len(unchecked)} not checked" if unchecked else ""
        print(f"{done} checks, {len(wrong)} wrong{missing}{failed}", flush=True)
    different = any(one.outcome == "DIFFERENT" for one in repeated)
    if wrong or unchecked or (complete and incomplete) or different:
        raise typer.Exit(1)


def _or_the_reason(again: Iterable["Finding"], before: Sequence["Finding"]) -> Iterator["Finding"]:
    """Yield findings, and why there are no more of them where the record is known to be wrong."""
    from assay.verify import Finding

    try:
        yield from again
    except BadInput as error:
        if not any(finding.problem for finding in before):
            raise
        yield Finding("what the data say", note=f"not looked at further: {error}", skipped=True)


def _trusted(
    store: "Store",
    data: str | None,
    findings: Sequence["Finding"],
    repeated: Sequence["Repeated"],
) -> list[str]:
    """Return in words what was not checked for want of --data and --rerun."""
    trusted = []
    skipped = [finding.what.rpartition(": ")[0] for finding in findings if finding.skipped]
    trusted += [finding.trusted for finding in findings if finding.trusted]
    if not data or skipped:
        whose = f" of {', '.join(dict.fromkeys(skipped))}" if data else ""
        trusted.append(
            f"that the stored test vectors and labels{whose} are those of the test half (--data"
            " DATA embeds it again)"
        )
    left = sum(1 for _ in store.root.glob("runs/*/*/result.json")) - len(repeated)
    if left:
        trusted.append(
            f"that the weights of {left} runs come from the training that is recorded (--rerun K"
            " trains K runs again)"
        )
    unproven = sum(one.outcome == "within tolerance" for one in repeated)
    if unproven:
        trusted.append(
            f"that {unproven} of {len(repeated)} runs computed again have other bytes because of"
            " another processor or other versions"
        )
    return trusted


def _print_findings(found: Iterable["Finding"], json: bool) -> list["Finding"]:
    """Print findings as they come, unless the result is JSON, and return them."""
    findings = []
    for finding in found:
        findings.append(finding)
        if not json:
            text = finding.problem or finding.note
            said = f"{finding.what}{': ' * bool(text)}{text}"
            print(f"{_mark(finding)} {visible(said)}", flush=True)
    return findings


def _mark(finding: "Finding") -> str:
    """Return the word with which the line of a finding begins."""
    if finding.problem:
        return "WRONG"
    if finding.unchecked:
        return "UNCHECKED"
    return "INCOMPLETE" if finding.incomplete else "skip " if finding.skipped else "ok   "


def _rerun(
    store: "Store",
    count: int,
    seed: int,
    engine: "Engine",
    designs: "Designs",
    json: bool,
) -> list["Repeated"]:
    from assay.cli.progress import follow
    from assay.verify import rerun

    if not json:
        print(f"runs computed again, chosen with --seed {seed}:", flush=True)
    found = []
    with follow() as progress:
        for repeated in rerun(store, count, seed, engine, designs, progress):
            found.append(repeated)
            if not json:
                because = f": {repeated.explanation}" if repeated.explanation else ""
                said = f"run {repeated.run[:12]} {repeated.what}{because}"
                print(f"{repeated.outcome:16} {visible(said)}", flush=True)
    return found


# --- merge ----------------------------------------------------------------------------------------


def merge(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Run stores; they are only read.")
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="STORE", help="The store that they are copied into, new or existing."),
    ],
    json: JsonOption = False,
) -> None:
    """Merge run stores of several labs or nodes into one; everything is checked first.

    After any interruption, run the same command again: it continues. The report is not copied:
    `assay report STORE` writes it.

    Example: assay merge berlin/assay-runs oslo/assay-runs --out both
    """
    from assay.cli.progress import watch
    from assay.records.merge import merge as unite

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
