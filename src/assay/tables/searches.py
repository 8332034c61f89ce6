"""The tables of the search: chosen parameters, all trials."""

from collections.abc import Mapping
from typing import Any

from assay.records.study import StudyRecord
from assay.space import Edge
from assay.tables.comparison import Comparison, ended
from assay.tables.table import Table


def parameters(comparison: Comparison) -> Table:
    """Return the table of parameters that each search chose, or that were given.

    A flag marks a value at the edge of its range.
    """
    rows = [
        row for record in ended(comparison) if not record.failed for row in _parameter_rows(record)
    ]
    searched = (
        "Ranges were declared before the search and stayed as they were. A value within 1% of an"
        " end of its range, on the search scale, is flagged; a natural end is where the parameter's"
        " own domain ends."
    )
    columns = ("method", "search", "parameter", "chosen", "default")
    return Table(
        name="parameters",
        title="Given parameters" if comparison.given_by else "Chosen parameters",
        note=(
            f"Nothing was searched: parameters {comparison.given_by}."
            if comparison.given_by
            else searched + handed_on(comparison)
        ),
        columns=[*columns, "range", "scale", "edge"],
        rows=[[str(row[column]) for column in columns] + _range_cells(row) for row in rows],
        raw=rows,
    )


def handed_on(comparison: Comparison) -> str:
    """Return which search's model is kept in `models/`, where there are several."""
    found = [
        f"{record.method} {selection.search}"
        for record in comparison.records
        if record.searches > 1 and (selection := record.selection) is not None
    ]
    if not found:
        return ""
    return (
        " models/, sweeps and final training take the search that validates best (number of the"
        f" search: {', '.join(found)}); its score is not the one estimated, which is that of a"
        " search as it comes."
    )


def trials(comparison: Comparison) -> Table:
    """Return the table of every trial of every search."""
    estimated = any(
        trial.status == "pruned" for record in ended(comparison) for trial in record.trials
    )
    raw = [
        {
            "method": record.method,
            "search": trial.search,
            "trial": trial.trial,
            "status": trial.status,
            "validation_map_at_r": trial.map_at_r,
            **({"estimate": trial.estimate} if estimated else {}),
            "selected": any(
                (selection.search, selection.trial) == (trial.search, trial.trial)
                for selection in record.selections
            ),
            "parameters": "; ".join(f"{name}={value}" for name, value in trial.parameters.items()),
        }
        for record in ended(comparison)
        for trial in record.trials
    ]
    pruned = (
        " A trial that was given up after its first fold has only the estimate that was given to"
        " the search; it is never selected, and counts in the budget."
    )
    return Table(
        name="trials",
        title="All trials",
        note=(
            "Trial 0 of each search is the method's defaults. Validation MAP@R is the mean over the"
            " folds of a trial; a trial with a diverged fold failed." + pruned * estimated
        ),
        columns=["method", "search", "trial", "parameters", "validation MAP@R", "selected"],
        rows=[
            [
                str(row["method"]),
                str(row["search"]),
                str(row["trial"]),
                str(row["parameters"]),
                _validation(row),
                "selected" if row["selected"] else "",
            ]
            for row in raw
        ],
        raw=raw,
    )


def _validation(row: Mapping[str, Any]) -> str:
    if row["status"] == "pruned":
        return f"given up after its first fold (estimate {100 * row['estimate']:.2f})"
    return (
        "diverged"
        if row["validation_map_at_r"] is None
        else f"{100 * row['validation_map_at_r']:.2f}"
    )


def _parameter_rows(record: StudyRecord) -> list[dict[str, Any]]:
    space: Mapping[str, Mapping[str, Any]] = record.announced.space.describe()
    return [
        {
            "method": record.method,
            "search": selection.search,
            "parameter": name,
            "chosen": value,
            "default": record.announced.method.defaults.get(name, ""),
            "low": space.get(name, {}).get("low"),
            "high": space.get(name, {}).get("high"),
            "options": space.get(name, {}).get("options"),
            "log": space.get(name, {}).get("log"),
            "edge": _edge_text(selection.edges.get(name)),
        }
        for selection in record.selections
        for name, value in (selection.parameters or {}).items()
    ]


def _edge_text(edge: Edge | None) -> str:
    if edge is None:
        return ""
    return f"at the {edge.end} end, natural" if edge.natural else f"at the {edge.end} end"


def _range_cells(row: Mapping[str, Any]) -> list[str]:
    if row["options"] is not None:
        return [" | ".join(map(str, row["options"])), "choice", ""]
    if row["low"] is None:
        return ["", "", ""]
    return [f"{row['low']:g} to {row['high']:g}", "log" if row["log"] else "linear", row["edge"]]
