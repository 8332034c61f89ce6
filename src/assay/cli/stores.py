"""`assay status`, `report` and `verify`: what a run store holds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.show import print_json, print_table

Dir = Annotated[Path, typer.Argument(metavar="[DIR]", help="A run store.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
HERE = Path("assay-runs")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(status)
    app.command()(report)
    app.command()(verify)


def status(directory: Dir = HERE, json: Json = False) -> None:
    """How far each study is: trials, reproductions, test.

    Example: assay status assay-runs/demo
    """
    from assay.store import Store
    from assay.study import study_records

    store = Store(directory)
    rows = [_status_row(record) for record in study_records(store)]
    if json:
        print_json({"driver": store.driver(), "studies": rows})
        return
    driver = store.driver()
    print(f"running: {driver}" if driver else "not running")
    print_table(list(rows[0]) if rows else ["no study yet"], [[str(value) for value in row.values()] for row in rows])


def report(directory: Dir = HERE) -> None:
    """Write the report again, from the store alone.

    Example: assay report assay-runs/demo
    """
    from assay.report import write_report
    from assay.store import Store

    print(f"report: {write_report(Store(directory))}")


def verify(
    directory: Dir = HERE,
    anchor: Annotated[str | None, typer.Option(metavar="HASH", help="A preregistration hash announced beforehand.")] = None,
    json: Json = False,
) -> None:
    """Recompute what the store says from its runs: ledgers, selections, test scores, tables. Exit code 1 if anything is wrong.

    Example: assay verify assay-runs/demo
    """
    from assay.store import Store
    from assay.verify import verify as check

    findings = []
    for finding in check(Store(directory), anchor):
        findings.append(finding)
        if not json:
            mark = "WRONG" if finding.problem else "ok   "
            print(f"{mark} {finding.what}{': ' * bool(finding.problem)}{finding.problem}", flush=True)
    wrong = [finding for finding in findings if finding.problem]
    if json:
        print_json({"checks": len(findings), "problems": wrong})
    else:
        print(f"{len(findings)} checks, {len(wrong)} wrong")
    if wrong:
        raise typer.Exit(1)


def _status_row(record: Any) -> dict[str, Any]:
    budget = record.announced["budget"]
    best = max((trial["map_at_r"] for trial in record.trials if trial["map_at_r"] is not None), default=None)
    return {
        "method": record.method,
        "data": record.announced["data"]["name"],
        "protocol": record.announced["protocol"]["name"],
        "trials": f"{len(record.trials)}/{budget['trials']}",
        "best validation MAP@R": "" if best is None else f"{best:.4f}",
        "reproduction runs": f"{len(record.reproductions)}/{budget['reproduction_runs']}",
        "state": _state(record),
    }


def _state(record: Any) -> str:
    if record.complete:
        looks = len(record.looks)
        return f"done, {looks} look{'s' * (looks != 1)} at test" if looks else "done"
    if record.failed:
        return "failed: all trials diverged"
    if record.seal:
        return "scoring the test half"
    return "reproducing" if record.selection else "searching"
