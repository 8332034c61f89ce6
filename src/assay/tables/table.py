"""The tables of a comparison: scores, ranks, paired differences, chosen parameters, all trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.stats import Interval
from assay.study import StudyRecord
from assay.tables.comparison import METRICS, SETTINGS, Comparison, Setting
from assay.tables.verdicts import sentence

Raw = Mapping[str, object]


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
    raw: Sequence[Raw]
    groups: Sequence[tuple[str, int]] = ()
    best: frozenset[tuple[int, int]] = frozenset()


def tables_of(comparison: Comparison) -> list[Table]:
    """All tables, in the order of the report; only those of the search where there is no test score."""
    tested = [scores(comparison), ranking(comparison)] if comparison.records else []
    if len(comparison.records) > 1:
        tested += [differences(comparison, setting) for setting in reversed(SETTINGS)]
    return [*tested, parameters(comparison), trials(comparison)]


def scores(comparison: Comparison) -> Table:
    """P@1, RP and MAP@R with intervals, concatenated and separated, in percent."""
    cells = [(setting, metric) for setting in SETTINGS for metric in METRICS]
    best = {
        (comparison.methods.index(comparison.best(setting, metric)), column + 1) for column, (setting, metric) in enumerate(cells)
    }
    dim = int(comparison.announced["protocol"]["resolved"]["dim"])
    folds = int(comparison.announced["budget"]["folds"])
    headings = {"concatenated": f"Concatenated ({folds} x {dim})", "separated": f"Separated ({dim})"}
    return Table(
        name="scores",
        title="Scores on the test half",
        note=_scores_note(comparison),
        groups=[("", 1), *((headings[setting], len(METRICS)) for setting in SETTINGS)],
        columns=["method", *(METRICS[metric] for _, metric in cells)],
        rows=[[m, *(percent(comparison.interval(m, *cell)) for cell in cells)] for m in comparison.methods],
        best=frozenset(best),
        raw=[_raw_score(comparison, method, *cell) for method in comparison.methods for cell in cells],
    )


def ranking(comparison: Comparison) -> Table:
    """Mean rank over reproductions, 1 is best."""
    cells = [(setting, metric) for setting in SETTINGS for metric in METRICS]
    by_cell = [comparison.ranks(*cell) for cell in cells]
    raw = [
        {"method": method, "setting": setting, "metric": metric, "mean_rank": found[method]}
        for method in comparison.methods
        for (setting, metric), found in zip(cells, by_cell, strict=True)
    ]
    return Table(
        name="ranks",
        title="Mean ranks",
        note="Rank of each method among all, averaged over reproductions; 1 is best.",
        groups=[("", 1), *((setting.capitalize(), len(METRICS)) for setting in SETTINGS)],
        columns=["method", *(METRICS[metric] for _, metric in cells)],
        rows=[[method, *(f"{found[method]:.2f}" for found in by_cell)] for method in comparison.methods],
        raw=raw,
    )


def differences(comparison: Comparison, setting: Setting) -> Table:
    """Every pair of methods with its verdict."""
    found = comparison.differences(setting)
    return Table(
        name=f"differences-{setting}",
        title=f"Paired differences in MAP@R, {setting}",
        note=(
            "First minus second, in points of MAP@R, over paired reproductions (same seeds, folds and first trunk). "
            "p by a paired t test, adjusted for all pairs of this table by Holm's method; the interval is not adjusted. "
            "Effect: mean difference in standard deviations of the differences."
        ),
        columns=["first", "second", "difference", "95% interval", "p (Holm)", "effect", "verdict"],
        rows=[
            [
                d.first,
                d.second,
                f"{100 * d.interval.mean:+.2f}",
                "" if d.interval.low is None else f"{100 * d.interval.low:+.2f} to {100 * (d.interval.high or 0):+.2f}",
                "" if d.p is None else p_value(d.p),
                "" if d.effect is None else f"{d.effect:.1f}",
                sentence(d, len(found)),
            ]
            for d in found
        ],
        raw=[
            {
                "first": d.first,
                "second": d.second,
                "difference": d.interval.mean,
                "low": d.interval.low,
                "high": d.interval.high,
                "reproductions": d.interval.n,
                "p_holm": d.p,
                "effect": d.effect,
                "verdict": d.verdict,
            }
            for d in found
        ],
    )


def parameters(comparison: Comparison) -> Table:
    """What the search chose, with a flag where a value lies on the edge of its range."""
    rows = [row for record in ended(comparison) if record.selection for row in _parameter_rows(record)]
    return Table(
        name="parameters",
        title="Chosen parameters",
        note=(
            "Ranges were declared before the search and stayed as they were. A value within 1% of an end of its range, "
            "on the search scale, is flagged; a natural end is where the parameter's own domain ends."
        ),
        columns=["method", "parameter", "chosen", "default", "range", "scale", "edge"],
        rows=[[str(row[column]) for column in ("method", "parameter", "chosen", "default")] + _range_cells(row) for row in rows],
        raw=rows,
    )


def trials(comparison: Comparison) -> Table:
    """Every trial of every search."""
    raw = [
        {
            "method": record.method,
            "trial": trial["trial"],
            "status": trial["status"],
            "validation_map_at_r": trial["map_at_r"],
            "selected": record.selection is not None and record.selection["trial"] == trial["trial"],
            "parameters": "; ".join(f"{name}={value}" for name, value in trial["parameters"].items()),
        }
        for record in ended(comparison)
        for trial in record.trials
    ]
    return Table(
        name="trials",
        title="All trials",
        note="Trial 0 is the method's defaults. Validation MAP@R is the mean over folds; a trial with a diverged fold failed.",
        columns=["method", "trial", "parameters", "validation MAP@R", "selected"],
        rows=[
            [
                str(row["method"]),
                str(row["trial"]),
                str(row["parameters"]),
                "diverged" if row["validation_map_at_r"] is None else f"{100 * float(str(row['validation_map_at_r'])):.2f}",
                "selected" if row["selected"] else "",
            ]
            for row in raw
        ],
        raw=raw,
    )


def percent(interval: Interval) -> str:
    """Mean and half-width in percent."""
    mean = f"{100 * interval.mean:.2f}"
    return mean if interval.half is None else f"{mean} ± {100 * interval.half:.2f}"


def p_value(p: float) -> str:
    """p, as small as it is worth reading."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def ended(comparison: Comparison) -> Sequence[StudyRecord]:
    """Studies that will not change any more: those with test scores, and those whose trials all diverged."""
    return (*comparison.records, *(record for record in comparison.unfinished if record.failed))


def _scores_note(comparison: Comparison) -> str:
    test = comparison.records[0].tests[0]["separated"]
    counts = sorted({len(record.tests) for record in comparison.records})
    repeated = " or ".join(str(count) for count in counts)
    return (
        f"Mean and 95% t-interval over {repeated} reproduction{'s' * (counts != [1])}, in percent; the selected trial is not "
        f"among them. {test['queries']:g} queries, {test['skipped']:g} skipped (no other sample of their class)."
    )


def _raw_score(comparison: Comparison, method: str, setting: Setting, metric: str) -> Raw:
    interval = comparison.interval(method, setting, metric)
    return {
        "method": method,
        "setting": setting,
        "metric": metric,
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "reproductions": interval.n,
    }


def _parameter_rows(record: StudyRecord) -> list[dict[str, Any]]:
    chosen = record.selection["parameters"] if record.selection else None
    return [
        {
            "method": record.method,
            "parameter": name,
            "chosen": value,
            "default": record.announced["method"]["defaults"][name],
            "low": record.announced["space"][name].get("low"),
            "high": record.announced["space"][name].get("high"),
            "options": record.announced["space"][name].get("options"),
            "log": record.announced["space"][name].get("log"),
            "edge": _edge_text(record, name),
        }
        for name, value in (chosen or {}).items()
    ]


def _edge_text(record: StudyRecord, name: str) -> str:
    edge = record.selection["edges"].get(name) if record.selection else None
    if edge is None:
        return ""
    return f"at the {edge['end']} end, natural" if edge["natural"] else f"at the {edge['end']} end"


def _range_cells(row: Mapping[str, Any]) -> list[str]:
    if row["options"] is not None:
        return [" | ".join(map(str, row["options"])), "choice", ""]
    return [f"{row['low']:g} to {row['high']:g}", "log" if row["log"] else "linear", row["edge"]]
