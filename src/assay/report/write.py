"""Writes `report/`: index.html, tables and figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from assay.canonical import pretty
from assay.errors import BadInput
from assay.files import read_json, write_atomically
from assay.report.figures import FORMS, draw, intervals
from assay.store import Store
from assay.study import StudyRecord
from assay.tables import RENDERERS, Comparison, comparisons, ended, render, summary, tables_of
from assay.version import __version__

FOLDED = ("ranks", "differences-concatenated", "trials")
"""Tables that the page shows only on a click."""


def write_report(store: Store) -> Path:
    """Make the report of everything in the store; its page."""
    found = comparisons(store)
    if not found:
        raise BadInput(f"{store.root} holds no study yet; `assay bench --out {store.root}` makes some")
    folder = store.root / "report"
    written = {path for comparison in found for path in _write_parts(folder, comparison)}
    page = folder / "index.html"
    write_atomically(page, _page(store, found))
    covered = [record.key for comparison in found for record in ended(comparison)]
    write_atomically(folder / "studies.json", pretty(sorted(covered)))
    for old in [*folder.glob("tables/*"), *folder.glob("figures/*-intervals.*")]:
        if old not in written and old.is_file():
            old.unlink()
    return page


def _write_parts(folder: Path, comparison: Comparison) -> list[Path]:
    """Write tables and figures; their paths."""
    content: dict[Path, str | bytes] = {
        folder / "tables" / f"{comparison.slug}-{table.name}.{form}": render(table, form)
        for table in tables_of(comparison)
        for form in RENDERERS
    }
    if comparison.records:
        figure = intervals(comparison)
        content |= {folder / "figures" / f"{comparison.slug}-intervals.{form}": draw(figure, form) for form in FORMS}
    for path, text in content.items():
        write_atomically(path, text)
    return list(content)


def _page(store: Store, found: Sequence[Comparison]) -> str:
    environment = Environment(loader=PackageLoader("assay.report", "."), autoescape=True, undefined=StrictUndefined)
    template = environment.get_template("page.html.j2")
    return template.render(version=__version__, sections=[_section(store, comparison) for comparison in found])


def _section(store: Store, comparison: Comparison) -> dict[str, Any]:
    """All that the page says of one comparison."""
    several = len(comparison.records) > 1
    return {
        "comparison": comparison,
        "announced": comparison.announced,
        "seal": comparison.records[0].seal if comparison.records else None,
        "verdicts": summary(comparison.differences("separated")) if several else [],
        "figure": Markup(_inline_svg(comparison)) if comparison.records else None,
        "tables": tables_of(comparison),
        "folded": FOLDED,
        "forms": list(RENDERERS),
        "costs": [_cost(store, record) for record in (*comparison.records, *comparison.unfinished)],
        "departures": _departures(comparison),
        "notices": _notices(comparison),
    }


def _inline_svg(comparison: Comparison) -> str:
    text = draw(intervals(comparison), "svg").decode()
    return text[text.index("<svg") :]


def _cost(store: Store, record: StudyRecord) -> dict[str, Any]:
    """Runs and seconds of a study; wall-clock times are kept apart from results and appear here only."""
    entries = [run for trial in record.trials for run in trial["runs"]] + record.reproductions
    timings = [store.run(entry["key"]) / "timing.json" for entry in entries]
    seconds = [float(read_json(path)["seconds"]) for path in timings if path.exists()]
    return {
        "method": record.method,
        "trials": len(record.trials),
        "reproductions": len(record.reproductions),
        "runs": len(entries),
        "seconds": sum(seconds),
        "each": sum(seconds) / len(seconds) if seconds else 0.0,
    }


def _departures(comparison: Comparison) -> list[tuple[str, str]]:
    protocol = [(comparison.protocol, text) for text in comparison.announced["protocol"]["resolved"]["departures"]]
    records = (*comparison.records, *comparison.unfinished)
    return protocol + [(record.method, text) for record in records for text in record.announced["method"]["departures"]]


def _notices(comparison: Comparison) -> list[str]:
    """What a careful reader must be told beside the scores."""
    notices = [*_contamination(comparison), *(_unfinished_notice(record) for record in comparison.unfinished)]
    for record in comparison.records:
        notices += _notices_of(record)
    return notices


def _contamination(comparison: Comparison) -> list[str]:
    """What the trunk has seen before, some of which may be in the test half."""
    if comparison.pretrained_on is None:
        return []
    return [
        f"The trunk was pretrained on {comparison.pretrained_on}. Classes or images of the test half that are in there have been "
        "seen before: scores say how methods compare on this trunk, not how well unseen things are told apart."
    ]


def _unfinished_notice(record: StudyRecord) -> str:
    if record.failed:
        return f"{record.method}: all {len(record.trials)} trials diverged, so nothing was selected and there is no test score."
    return f"{record.method}: not finished; run the same bench again to continue it."


def _notices_of(record: StudyRecord) -> list[str]:
    notices = []
    if record.announced["method"]["batch_shrunk"]:
        classes, images = record.announced["method"]["batch"]
        notices.append(
            f"{record.method}: a fold trains on fewer classes than the protocol's batch holds, so batches were "
            f"{classes} classes x {images} images."
        )
    failed = sum(trial["status"] == "failed" for trial in record.trials)
    if failed:
        notices.append(f"{record.method}: {failed} of {len(record.trials)} trials diverged; they count in the budget.")
    diverged = sum(run["status"] == "diverged" for run in record.reproductions)
    if diverged:
        notices.append(
            f"{record.method}: {diverged} of {len(record.reproductions)} reproduction runs diverged; the best "
            "checkpoint before that was scored."
        )
    edges = record.selection["edges"] if record.selection else {}
    notices += [
        f"{record.method}: the chosen {name} lies at the {edge['end']} end of its range ({edge['bound']:g}); "
        "a wider range might do better."
        for name, edge in edges.items()
        if not edge["natural"]
    ]
    return notices
