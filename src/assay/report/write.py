"""The folder `report/`: index.html, tables and figures."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from assay.errors import BadInput
from assay.files import write_atomically
from assay.hashing import pretty
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.report.diagrams import critical_difference_diagram, sweep_figure
from assay.report.figures import (
    FORMS,
    draw,
    intervals,
    over_the_years,
    price_of_peeking,
    where_from,
)
from assay.report.page import Part, page_of
from assay.tables import RENDERERS, Across, Section, Sweep, render, sections, tables_of
from assay.tables.studies import has_ended

OURS = ("intervals", "trend", "sources", "peeking", "ranks", "sweep-*")
"""Suffixes of figure names, after the name of their section."""


def write_report(store: Store) -> Path:
    """Write the report of everything in the store, and return the path of its page."""
    found = sections(store)
    if not found:
        raise BadInput(
            f"{store.root} holds no study yet; `assay bench --out {store.root}` makes some"
        )
    folder = store.root / "report"
    parts = [Part(section, tables_of(section), _drawn(section)) for section in found]
    written = {path for part in parts for path in _write_part(folder, part)}
    page = folder / "index.html"
    write_atomically(page, page_of(store, parts))
    write_atomically(folder / "studies.json", pretty(sorted(set(_covered(found)))))
    for old in [
        *folder.glob("tables/*"),
        *(path for name in OURS for path in folder.glob(f"figures/*-{name}.*")),
    ]:
        if old not in written and old.is_file():
            old.unlink()
    return page


def figures_of(section: Section) -> dict[str, Figure]:
    """Return the figures of a section by name."""
    if isinstance(section, Across):
        return {"ranks": critical_difference_diagram(section)}
    if isinstance(section, Sweep):
        return (
            {f"sweep-{metric}": sweep_figure(section, metric) for metric in section.metrics}
            if section.records
            else {}
        )
    if not section.records:
        return {}
    drawn = {
        "intervals": intervals(section),
        "sources": where_from(section),
        "trend": over_the_years(section),
        "peeking": price_of_peeking(section),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _write_part(folder: Path, part: Part) -> list[Path]:
    """Write tables and figures, and return their paths."""
    slug = part.section.slug
    content: dict[Path, str | bytes] = {
        folder / "tables" / f"{slug}-{table.name}.{form}": render(table, form)
        for table in part.tables
        for form in RENDERERS
    }
    content |= {
        folder / "figures" / f"{slug}-{file}": drawn for file, drawn in part.figures.items()
    }
    for path, text in content.items():
        write_atomically(path, text)
    return list(content)


def _drawn(section: Section) -> dict[str, bytes]:
    """Return the section's figures as the contents of files."""
    return {
        f"{name}.{form}": draw(figure, form)
        for name, figure in figures_of(section).items()
        for form in FORMS
    }


def _covered(found: Iterable[Section]) -> list[str]:
    """Return the keys of the studies that have ended, on which tables and page depend."""
    return [record.key for section in found for record in _studies(section) if has_ended(record)]


def _studies(section: Section) -> tuple[StudyRecord, ...]:
    if isinstance(section, Across):
        return ()
    if isinstance(section, Sweep):
        return (*section.records, *section.unfinished)
    return (*section.records, *section.unfinished, *section.replaced)
