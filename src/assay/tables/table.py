"""A table: how its numbers are written, and the table as Markdown, CSV or LaTeX."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from assay.metric_names import in_percent
from assay.stats import Interval

FEW = 6
"""Names that a sentence lists; more are counted."""


@dataclass(frozen=True)
class Table:
    """A table for people (`columns`, `rows`) and the same for programs (`raw`, full precision).

    Args:
        name: for files.
        title: above it.
        note: below it.
        groups: a heading over several columns: text and how many; empty where there is none.
        columns: headings.
        rows: cells as text.
        best: cells (row, column) to set in bold.
        raw: one mapping per row of the CSV.
    """

    name: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    raw: Sequence[Mapping[str, object]]
    groups: Sequence[tuple[str, int]] = ()
    best: frozenset[tuple[int, int]] = frozenset()


def score(interval: Interval, metric: str) -> str:
    """Return mean and half-width: in percent, or unchanged where the metric is not a share."""
    return percent(interval) if in_percent(metric) else _with_half(interval, 1, ".3f")


def percent(interval: Interval) -> str:
    """Return mean and half-width in percent."""
    return _with_half(interval, 100, ".2f")


def gain(interval: Interval | None) -> str:
    """Return a relative gain in percent, with its sign."""
    return "" if interval is None else _with_half(interval, 100, ".1f", sign="+")


def points(value: float | None) -> str:
    """Return a share in percentage points; nothing where there is none."""
    return "" if value is None else f"{100 * value:.2f}"


def number_of(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> number_of(1, "search"), number_of(1200, "search"), number_of(3, "reproduction")
    ('1 search', '1,200 searches', '3 reproductions')
    """
    plural = (
        f"{what}es"
        if what.endswith("ch")
        else f"{what[:-1]}ies"
        if what.endswith("dy")
        else f"{what}s"
    )
    return f"{count:,} {what if count == 1 else plural}"


def in_points(share: float) -> str:
    """Return a declared difference in percentage points.

    >>> in_points(0.01), in_points(0.005)
    ('1 point', '0.5 points')
    """
    size = f"{100 * share:g}"
    return f"{size} point{'s' * (size != '1')}"


def ends(interval: Interval) -> str:
    """Return the ends of an interval in points.

    They have a second decimal where the first would hide the sign.

    >>> ends(Interval(0.02, 0.008, 0.034, 4)), ends(Interval(0.002, 0.0003, 0.0041, 4))
    ('0.8 to 3.4', '0.03 to 0.41')
    """
    if interval.low is None or interval.high is None:
        return ""
    low, high = 100 * interval.low, 100 * interval.high
    small = any(0 < abs(end) < 0.05 for end in (low, high))
    return f"{low:.2f} to {high:.2f}" if small else f"{low:.1f} to {high:.1f}"


def together(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> together(["a"]), together(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def named(methods: Sequence[str]) -> str:
    """Return the names of a few methods as a sentence lists them, or how many there are.

    >>> named(["a", "b"]), named(["method"] * 8)
    ('a and b', '8 methods')
    """
    return together(methods) if len(methods) <= FEW else f"{len(methods)} methods"


def p_value(p: float) -> str:
    """Return p as text, rounded to the digits worth reading."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def raw_interval(interval: Interval) -> dict[str, object]:
    """Return the columns that an interval has in a CSV."""
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "units": interval.n}


def _with_half(interval: Interval, unit: float, form: str, sign: str = "") -> str:
    mean = format(unit * interval.mean, sign + form)
    return mean if interval.half is None else f"{mean} ± {format(unit * interval.half, form)}"


# --- a table as text ------------------------------------------------------------------------------


def render(table: Table, form: str) -> str:
    """Return the table as text in a format of `RENDERERS`."""
    return RENDERERS[form](table)


def markdown(table: Table) -> str:
    """Return a pipe table with title and note.

    A heading over several columns is repeated before each of them.
    """
    columns = headings(table)
    rows = [
        [
            f"**{_unformatted(cell)}**" if (i, j) in table.best else _unformatted(cell)
            for j, cell in enumerate(row)
        ]
        for i, row in enumerate(table.rows)
    ]
    lines = [_pipes(columns), _pipes(["---"] * len(columns)), *(_pipes(row) for row in rows)]
    return f"## {_unformatted(table.title)}\n\n" + "\n".join(lines) + f"\n\n{table.note}\n"


def comma_separated(table: Table) -> str:
    """Return the raw values at full precision, one row each."""
    if not table.raw:
        return ""
    text = StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table.raw[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.raw)
    return text.getvalue()


def latex(table: Table) -> str:
    """Return a booktabs table."""
    over = [
        rf"\multicolumn{{{count}}}{{c}}{{{_escape(text)}}}" if text else ""
        for text, count in table.groups
    ]
    rows = [
        [
            rf"\textbf{{{_escape(cell)}}}" if (i, j) in table.best else _escape(cell)
            for j, cell in enumerate(row)
        ]
        for i, row in enumerate(table.rows)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(table.title)}. {_escape(table.note)}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}}}",
        r"\toprule",
        *([" & ".join(over) + r" \\"] if over else []),
        " & ".join(_escape(column) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


RENDERERS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
}


def headings(table: Table) -> list[str]:
    """Return the headings of the columns in one line.

    A heading over several columns is repeated before each of them.
    """
    if not table.groups:
        return list(table.columns)
    over = [heading for heading, count in table.groups for _ in range(count)]
    return [f"{above} {column}".strip() for above, column in zip(over, table.columns, strict=True)]


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_FORMATTING = re.compile(
    r"[\\`*$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|<(?=[A-Za-z/!?])|\[(?=.*\]\()"
)
"""Characters that Markdown would read: code, emphasis, formulas, tags, links."""


def _unformatted(text: str) -> str:
    r"""Return text that Markdown shows as it is.

    >>> print(_unformatted("multi_similarity < 0.1"), _unformatted("_a*b* <b>"))
    multi_similarity < 0.1 \_a\*b\* \<b>
    """
    return _FORMATTING.sub(lambda found: f"\\{found[0]}", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
}


def _escape(text: str) -> str:
    r"""Return text that LaTeX shows as it is; a cell that begins with [ is no option of `\\`."""
    escaped = "".join(
        _LATEX.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text
    )
    return f"{{[}}{escaped[1:]}" if escaped.startswith("[") else escaped
