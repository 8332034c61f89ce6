"""`assay verify`: a store checked from its runs."""

import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.index import check_index
from assay.cli.options import (
    INDEX,
    LARGEST_SEED,
    STORE,
    EngineName,
    EngineOption,
    ImportsOption,
    JsonOption,
    WorkersOption,
)
from assay.cli.show import print_json, visible
from assay.cli.stores import StoreArgument
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.engines import Engine
    from assay.records.store import Store
    from assay.verify import Designs, Finding, Repeated


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
            help="The data of the store: embed them again with the stored weights, and announce"
            " the benches again, and compare; also for --rerun."
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
    --data, what follows from the data is computed again: announcements, packs, problems of the test
    half, baselines, and with the stored weights the validation and test scores. With --rerun, some
    runs are trained again, and embed the test half again. Other bytes, as another processor or
    other versions may give, are reported and must lie within a tolerance. Of an index, every file
    is compared with the hash that it was written with.

    Example: assay verify assay-runs/demo --data glyphs --rerun 2
    """
    from assay.cli.progress import follow
    from assay.engines import choose_engine
    from assay.records.looks import LookIndex
    from assay.records.store import Store
    from assay.records.study import readable_records
    from assay.verify import Designs, device_of_runs, retest
    from assay.verify import verify as check

    if (directory / INDEX).exists():
        if anchors or rerun or data:
            raise BadInput(
                f"{directory} is an index, whose files are checked; --anchor, --rerun and --data"
                " are for run stores"
            )
        check_index(directory, json)
        return
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
            if rerun:
                designs.check_methods(readable_records(store))
        findings = _print_findings(check(store, anchors or [], index), json)
        if rerun:
            seed = secrets.randbelow(2**32) if seed is None else seed  # not known beforehand
            repeated = _rerun(store, rerun, seed, runner, designs, json)
        if data or rerun:
            with follow() as progress:
                only = None if data else [one.run for one in repeated]
                again = retest(store, runner, designs, only, progress)
                findings += _print_findings(again, json)
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


def _trusted(
    store: "Store",
    data: str | None,
    findings: Sequence["Finding"],
    repeated: Sequence["Repeated"],
) -> list[str]:
    """Return in words what the checks took on trust, and what --data and --rerun would check."""
    trusted = list(dict.fromkeys(finding.trusted for finding in findings if finding.trusted))
    if not data:
        trusted.append(
            "that the stored test vectors and labels are those of the test half (--data DATA embeds"
            " it again)"
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
