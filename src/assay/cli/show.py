"""Printing of results: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.hashing import plain

WIDEST = 400


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
