"""Checks of the report: its tables are, byte for byte, those of the studies, and the page shows
them.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from assay.errors import BadInput
from assay.files import read_json
from assay.records.store import Store
from assay.tables import RENDERERS, Table, render, sections, tables_of
from assay.verify.finding import Finding


def check_tables(store: Store) -> Iterator[Finding]:
    """Yield a finding for each table that the report wrote, and one for its page."""
    folder = store.root / "report"
    if not (folder / "tables").exists():
        return
    try:
        covered = list(read_json(folder / "studies.json"))
    except (OSError, ValueError, TypeError):
        yield Finding(
            "report",
            "studies.json, which says what its tables cover, is missing; write it again with `assay"
            " report`",
        )
        return
    newer = [key for key in store.studies() if key not in covered]
    if newer:
        yield Finding(
            f"the report does not cover {len(newer)} studies yet; `assay report` writes it again"
        )
    try:
        found = sections(store, covered)
    except BadInput as error:  # a declaration that was altered, which has a finding of its own
        yield Finding("report", f"its tables cannot be made again: {error}")
        return
    tables = {
        f"{section.slug}-{table.name}": table for section in found for table in tables_of(section)
    }
    expected = {
        f"{name}.{form}": render(table, form)
        for name, table in tables.items()
        for form in RENDERERS
    }
    for name in sorted({path.name for path in (folder / "tables").iterdir()} | set(expected)):
        yield Finding(f"table {name}", _problem(folder / "tables" / name, expected.get(name)))
    yield Finding("report/index.html", _page_problem(folder / "index.html", tables))


def _problem(path: Path, expected: str | None) -> str:
    if expected is None:
        return "no study here gives this table"
    if not path.exists():
        return "is missing; `assay report` writes it again"
    if path.read_bytes() != expected.encode():
        return "does not say what the studies say; find out why, then run `assay report` again"
    return ""


def _page_problem(page: Path, tables: dict[str, Table]) -> str:
    """Return which row of a table the page does not show; empty where it shows all rows."""
    if not page.exists():
        return "is missing; `assay report` writes it again"
    reader = _Rows()
    reader.feed(page.read_text(encoding="utf-8", errors="replace"))
    for name, table in tables.items():
        for row in table.rows:
            if tuple(map(_plain, row)) not in reader.rows:
                return (
                    f"its table {name} does not say what the studies say of {row[0]}; find out why,"
                    " then run `assay report` again"
                )
    return ""


def _plain(text: str) -> str:
    """Return the text with single spaces, as a browser shows it."""
    return " ".join(text.split())


class _Rows(HTMLParser):
    """The rows of all tables of a page, each by the texts of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[tuple[str, ...]] = set()
        self._cells: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a row or a cell."""
        if tag == "tr":
            self._cells = []
        if tag == "td":
            self._inside = True
            self._cells.append("")

    def handle_endtag(self, tag: str) -> None:
        """End a row or a cell."""
        if tag == "td":
            self._inside = False
        if tag == "tr":
            self.rows.add(tuple(map(_plain, self._cells)))

    def handle_data(self, data: str) -> None:
        """Collect the text of a cell."""
        if self._inside:
            self._cells[-1] += data
