"""The folder `report/`: the page index.html, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from assay.errors import BadInput
from assay.files import remove_drafts_in, sync_folder, write_atomically
from assay.hashing import digest, digest_bytes, pretty
from assay.records.benches import absent_studies
from assay.records.reported import REPORTED, Extent, Reported
from assay.records.run import read_timing
from assay.records.source import source_hash
from assay.records.store import Store
from assay.records.study import study_records
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
from assay.report.notices import (
    changes_of,
    departures_of,
    given_notices,
    notices_of,
    notices_of_sweep,
)
from assay.tables import (
    RENDERERS,
    Across,
    Comparison,
    Section,
    Sweep,
    Table,
    answer,
    control,
    costs,
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
from assay.version import __version__

PAGE = "index.html"
COST = "cost"
"""Name of the folder with the tables of costs, beside those that are the same bytes everywhere."""
TEMPLATE = "page.html.j2"

DRAWN_BY = ("matplotlib", "numpy")
"""Libraries on whose versions the bytes of figures depend."""

LAID_OUT_BY = ("jinja2", "markupsafe")
"""Libraries on whose versions the bytes of the page depend, figures aside."""

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
    """A section with its tables and its figures as the contents of files; of a comparison the table
    of costs too, which has other bytes on every machine.
    """

    section: Section
    tables: list[Table]
    figures: dict[str, bytes]
    cost: Table | None


def write_report(store: Store) -> Path:
    """Write the report of everything in the store, and return the path of its page.

    The file that says what the report was made of goes first and comes last, so that a report whose
    writing was interrupted is known by its absence.
    """
    times, peaks = clocks_of(store)
    made_of = Reported(Extent.of(store), times, versions(), peaks)
    files = render_report(store, made_of)
    if not files:
        raise BadInput(
            f"{store.root} holds no study yet; `assay bench --out {store.root}` makes some"
        )
    folder = store.root / "report"
    folder.mkdir(exist_ok=True)
    (folder / REPORTED).unlink(missing_ok=True)
    sync_folder(folder)
    for place in (folder, folder / "tables", folder / COST, folder / "figures"):
        remove_drafts_in(place)
    for name, content in files.items():
        write_atomically(folder / name, content)
    for old in own_files(folder):
        if old.relative_to(folder).as_posix() not in files:
            old.unlink()
    write_atomically(folder / REPORTED, pretty(made_of.to_json()))
    return folder / PAGE


def render_report(store: Store, made_of: Reported) -> dict[str, str | bytes]:
    """Return the contents of all files of a report by their paths below its folder.

    Nothing but the store and what the report was made of has a part in them. Empty where no study
    had been begun.
    """
    found = sections(store, made_of.extent)
    if not found:
        return {}
    parts = [
        Part(section, tables_of(section), _drawn(section), _costs(section, made_of))
        for section in found
    ]
    files: dict[str, str | bytes] = {}
    for part in parts:
        slug = part.section.slug
        for table in part.tables:
            files |= {
                f"tables/{slug}-{table.name}.{form}": render(table, form) for form in RENDERERS
            }
        if part.cost is not None:
            files |= {f"{COST}/{slug}.{form}": render(part.cost, form) for form in RENDERERS}
        files |= {f"figures/{slug}-{file}": drawn for file, drawn in part.figures.items()}
    return {**files, PAGE: page_of(store, parts, made_of)}


def own_files(folder: Path) -> list[Path]:
    """Return the files in the folder of a report that bear names of a report's files; hidden ones
    do not.
    """
    found = [
        *folder.glob("tables/*"),
        *folder.glob(f"{COST}/*"),
        *(path for name in OURS for path in folder.glob(f"figures/*-{name}.*")),
    ]
    return [path for path in found if not path.name.startswith(".") and not path.is_dir()]


def versions() -> dict[str, str]:
    """Return the versions of all that the bytes of a report depend on."""
    libraries = {name: version(name) for name in (*LAID_OUT_BY, *DRAWN_BY)}
    template = resources.files("assay.report").joinpath(TEMPLATE).read_bytes()
    source = digest([source_hash(["assay.report.write"]), digest_bytes(template)])
    return {"assay": __version__, "source": source, **libraries}


def clocks_of(store: Store) -> tuple[dict[str, tuple[int, float]], dict[str, int]]:
    """Return how many runs of each study are known to have taken how many seconds, and the most
    memory that one of them took, where that is known.

    What machines report is kept apart from results. The page shows it, and nothing shows that it is
    true.
    """
    times, peaks = dict[str, tuple[int, float]](), dict[str, int]()
    for record in study_records(store):
        found = [read_timing(store.run(entry.key)) for entry in record.run_entries()]
        timings = [timing for timing in found if timing is not None]
        times[record.key] = len(timings), sum(timing.seconds for timing in timings)
        memory = [timing.peak_memory for timing in timings if timing.peak_memory is not None]
        peaks |= {record.key: max(memory)} if memory else {}
    return times, peaks


def _costs(section: Section, made_of: Reported) -> Table | None:
    """Return the table of costs of a comparison."""
    if not isinstance(section, Comparison):
        return None
    return costs(section, made_of.times, made_of.peaks)


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


def _drawn(section: Section) -> dict[str, bytes]:
    """Return the section's figures as the contents of files."""
    drawn = {}
    for name, figure in figures_of(section).items():
        for form in FIGURE_FORMS:
            drawn[f"{name}.{form}"] = draw(figure, form)
            figure.set_layout_engine("none")  # the first form has laid it out for all
    return drawn


# --- the page -------------------------------------------------------------------------------------


def page_of(store: Store, parts: Sequence[Part], made_of: Reported) -> str:
    """Return the whole page, a single file that loads nothing else."""
    environment = Environment(
        loader=PackageLoader("assay.report", "."), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template(TEMPLATE)
    absent = [
        f"{', '.join(names)}: announced with bench {bench.hash[:12]} and absent from this store."
        for bench, names in absent_studies(store, made_of.extent)
    ]
    return template.render(
        cost=COST,
        version=__version__,
        shown=SHOWN,
        absent=absent,
        sections=[_section_values(part) for part in parts],
    )


def _section_values(part: Part) -> dict[str, Any]:
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
    return shared | _compared(section, part.cost)


def _compared(comparison: Comparison, cost: Table | None) -> dict[str, Any]:
    several = len(comparison.records) > 1
    found = answer(comparison)
    return {
        "kind": "comparison",
        "section": comparison,
        "cost": cost,
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
        "changes": changes_of(comparison),
        "departures": departures_of(comparison),
        "notices": notices_of(comparison),
    }
