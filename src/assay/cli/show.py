"""Printing: tables for people, JSON for programs, and the results of a bench or a sweep."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.hashing import plain

if TYPE_CHECKING:
    from assay.records.progress import TimeLeft
    from assay.study import Plan
    from assay.tables import Comparison

WIDEST = 400

DISAGREEMENTS = 3
"""Disagreements between single and concatenated models that are printed; the report has all."""

FULL_WIDTH = 126
"""Columns that the whole table of scores needs; a narrower terminal gets the scores of single
models only.
"""


def visible(text: str) -> str:
    r"""Return a text on one line that is safe to print: names in a store and those of files may
    hold line breaks and commands to the terminal.

    >>> visible("birds\x1b[2K\nok    birds: runs")
    'birds\\x1b[2K\\nok    birds: runs'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    right: Sequence[int] = (),
) -> None:
    """Print a table on stdout, as wide as it needs to be; columns in `right` are numbers."""
    if title:
        print(title)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=WIDEST, highlight=False, markup=False).print(table, crop=False)


def note(text: str) -> None:
    """Print a note for the reader of the results, on stderr."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return seconds as people write them.

    >>> duration(4), duration(200), duration(9000)
    ('4 s', '3 min 20 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def time_left(left: "TimeLeft | None") -> str:
    """Return the time left as it ends a line; empty where it is not known.

    >>> from assay.records.progress import TimeLeft
    >>> time_left(TimeLeft(200)), time_left(TimeLeft(4, longer=True))
    (', about 3 min 20 s left', ', longer than expected, at least 4 s left')
    """
    if left is None:
        return ""
    longer = "longer than expected, at least" if left.longer else "about"
    return f", {longer} {duration(left.seconds)} left"


def size(bytes_: int) -> str:
    """Return bytes as people write them.

    >>> size(2_500_000)
    '2.5 MB'
    """
    amount = float(bytes_)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


# --- the cost and the results of a bench ----------------------------------------------------------


def print_plan(planned: "Plan", json: bool) -> None:
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
    """Print answer, scores and verdicts of the comparisons with these studies, and the report."""
    from assay.records.store import Store
    from assay.tables import comparisons

    ours = [
        one.view(studies)
        for one in comparisons(Store(out))
        if any(record.key in studies for record in (*one.records, *one.unfinished))
    ]
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


def _print_comparison(comparison: "Comparison") -> None:
    """Print the answer first, then the scores, then a line for each verdict."""
    from assay.tables import answer, control, covered, estimated, published_sentences, summary

    found = answer(comparison)
    print(visible(found.sentence))
    for line in found.disagreements[:DISAGREEMENTS]:
        print(visible(f"{line}."))
    if len(found.disagreements) > DISAGREEMENTS:
        print(
            f"{len(found.disagreements) - DISAGREEMENTS} more disagreements between single and"
            " concatenated models: see the report."
        )
    for record in comparison.unfinished:
        print(
            f"{visible(record.method)}:"
            f" {'all trials of a search diverged' if record.failed else 'not finished'}"
        )
    if not comparison.records:
        return
    _print_scores(comparison)
    for line in [
        estimated(comparison),
        covered(comparison),
        *summary(comparison),
        *control(comparison),
        *published_sentences(comparison),
    ]:
        print(visible(line))


def _print_scores(comparison: "Comparison") -> None:
    """Print the table of scores; a narrow terminal gets the scores of single models only."""
    from assay.tables.scores import FIRST, scores

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
        f"{visible(comparison.data)} under {visible(comparison.protocol)}: test half, percent, 95%"
        f" intervals\ntrunk: {visible(comparison.trunk)}"
    )
    rows = [[*map(visible, (*row[:FIRST], *row[begin:]))] for row in table.rows]
    columns = [*table.columns[:FIRST], *headings]
    print_table(columns, rows, title=title, right=range(1, len(columns)))


def _result(comparison: "Comparison") -> dict[str, Any]:
    """Return a comparison for programs."""
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


def print_sweep(out: Path, studies: tuple[str, ...], page: Path, json: bool) -> None:
    """Print the tables of the sweep that these studies are, and where the report is."""
    from assay.records.store import Store
    from assay.tables import headings, sweep_table, sweeps

    tables = [sweep_table(one) for one in sweeps(Store(out), keys=studies) if one.records]
    if json:
        print_json(
            {
                "out": str(out),
                "report": str(page),
                "sweeps": [{table.name: table.raw} for table in tables],
            }
        )
        return
    for table in tables:
        print_table(
            headings(table), table.rows, title=table.title, right=range(1, len(table.columns))
        )
    print(f"report: {page}")
