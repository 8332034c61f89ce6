"""The page: the contents of each section, as plain values for its template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from assay.records.run import read_timing
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.report.figures import FORMS
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
    summary,
)
from assay.tables.across import in_words
from assay.tables.gains import trend_in_words
from assay.version import __version__

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

LONG = 24
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


def page_of(store: Store, parts: Sequence[Part]) -> str:
    """Return the whole page, a single file that loads nothing else."""
    environment = Environment(
        loader=PackageLoader("assay.report", "."), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template("page.html.j2")
    return template.render(
        version=__version__, shown=SHOWN, sections=[_said(store, part) for part in parts]
    )


def _said(store: Store, part: Part) -> dict[str, Any]:
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
            if table.name in FOLDED or (len(table.rows) > LONG and table.name not in OPEN)
        ],
        "words": WORDS,
        "forms": list(RENDERERS),
        "figure_forms": FORMS,
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
