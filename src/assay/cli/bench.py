"""`assay bench`: the main job."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.options import (
    STORE,
    Address,
    AllowLeaks,
    Data,
    Device,
    DeviceName,
    EngineName,
    EngineOption,
    Imports,
    Json,
    KeepWeights,
    KeptWeights,
    Methods,
    NewStudy,
    Out,
    PretrainedOn,
    ProtocolName,
    Settings,
    Weights,
    Workers,
    carrying_out,
    choose_protocol,
    split_names,
)
from assay.cli.show import duration, print_json, print_table, size

FEW = 3
"""Disagreements between single and concatenated models that are printed; the report has all."""
if TYPE_CHECKING:
    from assay.study import Plan

FULL_WIDTH = 126
"""Columns that the whole table of scores needs; a narrower terminal gets the scores of single
models only.
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(bench)


def bench(
    data: Data = "glyphs",
    methods: Methods = "contrastive,triplet,multi_similarity,normalized_softmax",
    protocol: ProtocolName = "quick",
    out: Out = STORE,
    imports: Imports = None,
    settings: Settings = None,
    weights: Weights = None,
    pretrained_on: PretrainedOn = None,
    jpeg: Annotated[
        bool,
        typer.Option(
            "--jpeg", help="Keep prepared images as JPEG of quality 95: a fifth of the disk."
        ),
    ] = False,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    workers: Workers = None,
    device: DeviceName = Device.auto,
    keep_weights: KeepWeights = KeptWeights.best,
    new_study: NewStudy = False,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="METHOD",
            help="Add a twin of a method, with seeds of its own: an A/A control.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="METHOD",
            help="Compare every method with this one only; by default above ten.",
        ),
    ] = None,
    allow_leaks: AllowLeaks = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say how many runs, how long and how much disk; do nothing."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Compare METHODS on DATA under one protocol, and write a report.

    After any interruption, run the same command again (without --new-study): it continues.

    Example: assay bench --data folder:birds --methods contrastive,triplet --set searches=8
    """
    changes = [*(settings or ()), *(["form=jpeg"] if jpeg else [])]
    chosen = choose_protocol(protocol, changes, weights, pretrained_on, imports)
    names = split_names(methods)
    if dry_run:
        from assay.engines import choose_engine
        from assay.study import plan_bench

        here = "local" if engine == EngineName.ray else engine.value  # a cluster's size is unknown
        _print_plan(
            plan_bench(
                data,
                names,
                chosen,
                imports=imports or (),
                workers=choose_engine(here, workers, device=device).workers,
                device=device,
                allow_leaks=allow_leaks,
                control=control,
                reference=reference,
            ),
            json,
        )
        return
    from assay.records.store import Store
    from assay.report import write_report
    from assay.study import run_bench

    with carrying_out(
        out, engine, address, workers, device, imports, keep_weights, allow_leaks
    ) as execution:
        benched = run_bench(
            data,
            names,
            chosen,
            out,
            execution,
            new_study=new_study,
            control=control,
            reference=reference,
        )
    print_result(out, benched.studies, write_report(Store(out)), json)


def _print_plan(planned: "Plan", json: bool) -> None:
    """Print what a bench would cost."""
    if json:
        print_json(planned)
        return
    rows = [
        [name, str(runs), "{} x {}".format(*planned.batch[name])]
        for name, runs in planned.runs.items()
    ]
    print_table(["method", "runs", "batch (classes x images)"], rows, right=(1,))
    print(f"a searched method: {planned.budget}")
    if planned.reference:
        print(f"every method is compared with {planned.reference} (--reference)")
    print(
        f"{planned.total} runs with {planned.workers} worker{'s' * (planned.workers != 1)}: "
        f"at most about {duration(planned.seconds)}, about {size(planned.bytes)} of disk"
    )


def print_result(out: Path, studies: tuple[str, ...], page: Path, json: bool) -> None:
    """Print the answer, scores and verdicts of the comparisons that hold these studies, and where
    the report is.
    """
    from assay.records.store import Store
    from assay.tables import comparisons

    ours = [one.view(studies) for one in comparisons(Store(out)) if _holds(one, studies)]
    if json:
        print_json(
            {
                "out": str(out),
                "report": str(page),
                "comparisons": [_result(comparison) for comparison in ours],
            }
        )
        return
    for comparison in ours:
        _print_comparison(comparison)
    print(f"report: {page}")


def _holds(comparison: Any, studies: tuple[str, ...]) -> bool:
    return any(record.key in studies for record in (*comparison.records, *comparison.unfinished))


def _print_comparison(comparison: Any) -> None:
    """Print the answer first, then the scores, then a line for each verdict."""
    from assay.tables import answer, control, covered, estimated, published_sentences, summary

    found = answer(comparison)
    print(found.sentence)
    for line in found.disagreements[:FEW]:
        print(f"{line}.")
    if len(found.disagreements) > FEW:
        print(
            f"{len(found.disagreements) - FEW} more disagreements between single and concatenated"
            " models: see the report."
        )
    for record in comparison.unfinished:
        print(
            f"{record.method}:"
            f" {'all trials of a search diverged' if record.failed else 'not finished'}"
        )
    if not comparison.records:
        return
    _print_scores(comparison)
    about = [estimated(comparison), covered(comparison)]
    for line in [
        *about,
        *summary(comparison),
        *control(comparison),
        *published_sentences(comparison),
    ]:
        print(line)


def _print_scores(comparison: Any) -> None:
    """Print the table of scores; in a narrow terminal those of single models only."""
    from assay.tables.table import FIRST, scores

    table = scores(comparison)
    wide = shutil.get_terminal_size((200, 24)).columns >= FULL_WIDTH
    begin = FIRST if wide else FIRST + (len(table.columns) - FIRST) // 2
    over = [
        heading.split()[0].lower()
        for heading, count in table.groups
        for _ in range(count)
        if heading
    ]
    headings = [
        f"{above} {column}" for above, column in zip(over, table.columns[FIRST:], strict=True)
    ][begin - FIRST :]
    title = (
        f"{comparison.data} under {comparison.protocol}: test half, percent, 95% intervals\ntrunk:"
        f" {comparison.trunk}"
    )
    rows = [[*row[:FIRST], *row[begin:]] for row in table.rows]
    columns = [*table.columns[:FIRST], *headings]
    print_table(columns, rows, title=title, right=range(1, len(columns)))


def _result(comparison: Any) -> dict[str, Any]:
    """Return what a program would want to know of a comparison."""
    from assay.tables import answer, control, covered, estimated, tables_of

    return {
        "data": comparison.data,
        "protocol": comparison.protocol,
        "answer": answer(comparison),
        "estimated": estimated(comparison) if comparison.records else None,
        "covered": covered(comparison) if comparison.records else None,
        "control": control(comparison) if comparison.records else [],
        "preregistrations": {
            record.method: record.preregistration for record in comparison.records
        },
        "unfinished": [record.method for record in comparison.unfinished],
        "problems": comparison.problems,
        **{table.name: table.raw for table in tables_of(comparison)},
    }
