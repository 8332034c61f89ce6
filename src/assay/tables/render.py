"""A table as Markdown, CSV or LaTeX."""

import csv
from collections.abc import Callable, Sequence
from io import StringIO

from assay.tables.form import Table


def render(table: Table, form: str) -> str:
    """Return the table as text in a format of `RENDERERS`."""
    return RENDERERS[form](table)


def markdown(table: Table) -> str:
    """Return a pipe table with title and note.

    A heading over several columns is repeated before each of them.
    """
    columns = headings(table)
    rows = [
        [_bold(cell, (i, j) in table.best) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    lines = [_pipes(columns), _pipes(["---"] * len(columns)), *(_pipes(row) for row in rows)]
    return f"## {table.title}\n\n" + "\n".join(lines) + f"\n\n{table.note}\n"


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
    head = [_latex_groups(table.groups)] if table.groups else []
    body = [
        " & ".join(_latex_cell(cell, (i, j) in table.best) for j, cell in enumerate(row)) + r" \\"
        for i, row in enumerate(table.rows)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(table.title)}. {_escape(table.note)}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}}}",
        r"\toprule",
        *head,
        " & ".join(_escape(column) for column in table.columns) + r" \\",
        r"\midrule",
        *body,
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


def _bold(cell: str, best: bool) -> str:
    return f"**{cell}**" if best else cell


def _latex_groups(groups: Sequence[tuple[str, int]]) -> str:
    return (
        " & ".join(
            rf"\multicolumn{{{count}}}{{c}}{{{_escape(text)}}}" if text else ""
            for text, count in groups
        )
        + r" \\"
    )


def _latex_cell(cell: str, best: bool) -> str:
    escaped = _escape(cell)
    return rf"\textbf{{{escaped}}}" if best else escaped


_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def _escape(text: str) -> str:
    return "".join(
        _LATEX.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text
    )
