"""The tables of the search: chosen parameters, all trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.records.lines import Trial
from assay.records.study import StudyRecord
from assay.space import Edge
from assay.tables.comparison import Comparison, ended
from assay.tables.table import Table


@dataclass(frozen=True)
class ChosenParameter:
    """A parameter that a search chose or that was given, with its declared range."""

    method: str
    search: int
    parameter: str
    chosen: object
    default: object
    low: float | None
    high: float | None
    options: Sequence[object] | None
    log: bool | None
    edge: str


def parameters(comparison: Comparison) -> Table:
    """Return the table of parameters that each search chose, or that were given.

    A flag marks a value at the edge of its range.
    """
    found = [one for record in ended(comparison) if not record.failed for one in _chosen_by(record)]
    searched = (
        "Ranges were declared before the search and stayed as they were. A value within 1% of an"
        " end of its range, on the search scale, is flagged; a natural end is where the parameter's"
        " own domain ends."
    )
    return Table(
        name="parameters",
        title="Given parameters" if comparison.given_by else "Chosen parameters",
        note=(
            f"Nothing was searched: parameters {comparison.given_by}."
            if comparison.given_by
            else searched + handed_on(comparison)
        ),
        columns=[
            "method",
            "search",
            "parameter",
            "chosen",
            "default",
            "range",
            "scale",
            "edge",
        ],
        rows=[
            [
                one.method,
                str(one.search),
                one.parameter,
                str(one.chosen),
                str(one.default),
                *_range_cells(one),
            ]
            for one in found
        ],
        raw=[vars(one) for one in found],
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
    found = [(record.method, trial) for record in ended(comparison) for trial in record.trials]
    estimated = any(trial.status == "pruned" for _, trial in found)
    selected = {
        (record.method, selection.search, selection.trial)
        for record in ended(comparison)
        for selection in record.selections
    }
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
                method,
                str(trial.search),
                str(trial.trial),
                _parameters_text(trial),
                _validation(trial),
                "selected" if (method, trial.search, trial.trial) in selected else "",
            ]
            for method, trial in found
        ],
        raw=[
            {
                "method": method,
                "search": trial.search,
                "trial": trial.trial,
                "status": trial.status,
                "validation_map_at_r": trial.map_at_r,
                **({"estimate": trial.estimate} if estimated else {}),
                "selected": (method, trial.search, trial.trial) in selected,
                "parameters": _parameters_text(trial),
            }
            for method, trial in found
        ],
    )


def _parameters_text(trial: Trial) -> str:
    return "; ".join(f"{name}={value}" for name, value in trial.parameters.items())


def _validation(trial: Trial) -> str:
    if trial.status == "pruned":
        assert trial.estimate is not None
        return f"given up after its first fold (estimate {100 * trial.estimate:.2f})"
    return "diverged" if trial.map_at_r is None else f"{100 * trial.map_at_r:.2f}"


def _chosen_by(record: StudyRecord) -> list[ChosenParameter]:
    """Return the parameters that each search of a study chose."""
    space: Mapping[str, Mapping[str, Any]] = record.announced.space.describe()
    return [
        ChosenParameter(
            method=record.method,
            search=selection.search,
            parameter=name,
            chosen=value,
            default=record.announced.method.defaults.get(name, ""),
            low=space.get(name, {}).get("low"),
            high=space.get(name, {}).get("high"),
            options=space.get(name, {}).get("options"),
            log=space.get(name, {}).get("log"),
            edge=_edge_text(selection.edges.get(name)),
        )
        for selection in record.selections
        for name, value in (selection.parameters or {}).items()
    ]


def _edge_text(edge: Edge | None) -> str:
    if edge is None:
        return ""
    return f"at the {edge.end} end, natural" if edge.natural else f"at the {edge.end} end"


def _range_cells(one: ChosenParameter) -> list[str]:
    if one.options is not None:
        return [" | ".join(map(str, one.options)), "choice", ""]
    if one.low is None:
        return ["", "", ""]
    return [f"{one.low:g} to {one.high:g}", "log" if one.log else "linear", one.edge]
