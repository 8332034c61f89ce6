"""The folder `report/`: the page index.html, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from assay.errors import BadInput
from assay.files import write_atomically
from assay.hashing import pretty
from assay.records.run import read_timing
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.report.figures import (
    FIGURE_FORMS,
    critical_difference_diagram,
    draw,
    intervals,
    over_the_years,
    price_of_peeking,
    sweep_figure,
    where_from,
)
from assay.report.notices import departures_of, given_notices, notices_of, notices_of_sweep
from assay.tables import (
    RENDERERS,
    Across,
    Comparison,
    Section,
    Sweep,
    Table,
    answer,
    control,
    covered,
    estimated,
    published_sentences,
    render,
    sections,
    summary,
    tables_of,
)
from assay.tables.across import in_words
from assay.tables.gains import trend_in_words
from assay.tables.studies import has_ended
from assay.version import __version__

OURS = ("intervals", "trend", "sources", "peeking", "ranks", "sweep-*")
"""Suffixes of figure names, after the name of their section."""

FOLDED = (
    "spread",
    "gains-map_at_r",
    "differences-concatenated",
    "needed-separated",
    "needed-concatenated",
    "classes-separated",
    "classes-concatenated",
    "mean-ranks-concatenated",
    "trials",
)
"""Tables that the page shows only on a click."""

MANY_ROWS = 24
"""Rows above which other tables are shown on a click too, but for those that a section is about."""
OPEN = ("scores", "published", "sweep")

SHOWN = 3
"""Disagreements between single and concatenated models that stand beside the answer; all stand with
their section.
"""

WORDS = ("differences", "needed", "parameters", "trials", "published", "sources", "classes")
"""Prefixes of the names of tables whose cells are words."""

BESIDE = {
    "gains-precision_at_1": "trend",
    "gains-recall_at_1": "trend",
    "sources": "sources",
    "peeking": "peeking",
}
"""The figure that stands above a table; others stand at the head of their section."""


@dataclass(frozen=True)
class Part:
    """A section with its tables, and its figures as the contents of files."""

    section: Section
    tables: list[Table]
    figures: dict[str, bytes]


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
    covered_studies = {record.key for section in found for record in _ended_studies(section)}
    write_atomically(folder / "studies.json", pretty(sorted(covered_studies)))
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
        for form in FIGURE_FORMS
    }


def _ended_studies(section: Section) -> list[StudyRecord]:
    """Return the studies of a section that have ended, on which its tables and the page depend."""
    if isinstance(section, Across):
        return []
    replaced = () if isinstance(section, Sweep) else section.replaced
    return [
        record for record in (*section.records, *section.unfinished, *replaced) if has_ended(record)
    ]


# --- the page -------------------------------------------------------------------------------------


def page_of(store: Store, parts: Sequence[Part]) -> str:
    """Return the whole page, a single file that loads nothing else."""
    environment = Environment(
        loader=PackageLoader("assay.report", "."), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template("page.html.j2")
    return template.render(
        version=__version__, shown=SHOWN, sections=[_section_values(store, part) for part in parts]
    )


def _section_values(store: Store, part: Part) -> dict[str, Any]:
    """Return everything that the page shows of a section."""
    section, tables = part.section, part.tables
    inline = {
        file.removesuffix(".svg"): Markup(drawn[drawn.index(b"<svg") :].decode())
        for file, drawn in part.figures.items()
        if file.endswith(".svg")
    }
    beside = {
        table.name: BESIDE[table.name] for table in tables if BESIDE.get(table.name) in inline
    }
    shared = {
        "slug": section.slug,
        "tables": tables,
        "folded": [
            table.name
            for table in tables
            if table.name in FOLDED or (len(table.rows) > MANY_ROWS and table.name not in OPEN)
        ],
        "words": WORDS,
        "forms": list(RENDERERS),
        "figure_forms": FIGURE_FORMS,
        "figures": inline,
        "beside": beside,
        "head": [name for name in inline if name not in beside.values()],
    }
    if isinstance(section, Across):
        return shared | {
            "kind": "across",
            "section": section,
            "lines": in_words(section),
            "notices": given_notices(section),
        }
    if isinstance(section, Sweep):
        return shared | {"kind": "sweep", "section": section, "notices": notices_of_sweep(section)}
    return shared | _compared(store, section)


def _compared(store: Store, comparison: Comparison) -> dict[str, Any]:
    several = len(comparison.records) > 1
    found = answer(comparison)
    return {
        "kind": "comparison",
        "section": comparison,
        "announced": comparison.announced,
        "seal": comparison.records[0].seal if comparison.records else None,
        "answer": found.sentence,
        "disagreements": found.disagreements,
        "verdicts": summary(comparison) if several else [],
        "control": control(comparison),
        "covered": covered(comparison) if comparison.records else "",
        "estimated": estimated(comparison) if comparison.records else "",
        "trend": trend_in_words(comparison) if several else [],
        "published": published_sentences(comparison),
        "costs": [_cost(store, record) for record in (*comparison.records, *comparison.unfinished)],
        "departures": departures_of(comparison),
        "notices": notices_of(comparison),
    }


def _cost(store: Store, record: StudyRecord) -> dict[str, Any]:
    """Return runs and seconds of a study.

    Wall-clock times are kept apart from results and appear here only.
    """
    entries = list(record.run_entries())
    timings = [read_timing(store.run(entry.key)) for entry in entries]
    seconds = [timing.seconds for timing in timings if timing is not None]
    return {
        "method": record.method,
        "searches": record.searches if record.searched else 0,
        "trials": len(record.trials),
        "reproductions": len(record.reproductions),
        "runs": len(entries),
        "seconds": sum(seconds),
        "each": sum(seconds) / len(seconds) if seconds else 0.0,
    }
