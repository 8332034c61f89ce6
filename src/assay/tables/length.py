"""Length of training: which runs were still improving when they ended."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from assay.study import StudyRecord
from assay.tables.comparison import Comparison
from assay.tables.form import Table

MOST_AT_THE_END = 0.1
"""Share of runs with their best epoch last above which a method is called not converged.

A converged run's validation only varies about its level. With ten validations or more its best one is the last in about
one run of ten.
"""


def not_converged(record: StudyRecord) -> bool:
    """Return whether more than a tenth of the runs have their best epoch last."""
    runs = _trained(record)
    return bool(runs) and _at_the_end(runs) > MOST_AT_THE_END * len(runs)


def unconverged(comparison: Comparison, methods: Sequence[str]) -> list[str]:
    """Return those of these methods that are not converged."""
    return [method for method in methods if not_converged(comparison.record(method))]


def not_converged_clause(comparison: Comparison, methods: Sequence[str]) -> str:
    """Return what a sentence about these methods has to add; nothing where all are converged."""
    found = unconverged(comparison, methods)
    return f"; not converged: {', '.join(found)}" if found else ""


def length(comparison: Comparison) -> Table | None:
    """How many runs ended at their last epoch; None where no run says so."""
    found = [(record, runs) for record in comparison.records if (runs := _trained(record))]
    if not found:
        return None
    raw = [
        {
            "method": record.method,
            "runs": len(runs),
            "best_epoch_last": _at_the_end(runs),
            "share": _at_the_end(runs) / len(runs),
            "median_best_epoch": median(run["best_epoch"] for run in runs),
            "converged": not not_converged(record),
        }
        for record, runs in found
    ]
    return Table(
        name="length",
        title="Length of training",
        note=(
            "Reproduction runs whose best epoch by validation is the last that they trained: training longer might have "
            f"raised their scores. Above {MOST_AT_THE_END:.0%} of its runs a method is called not converged, and verdicts "
            "that rest on it say so: they may be about which method learns faster."
        ),
        columns=["method", "runs", "best epoch is the last", "share", "median best epoch", "in words"],
        rows=[
            [
                str(row["method"]),
                str(row["runs"]),
                str(row["best_epoch_last"]),
                f"{row['share']:.0%}",
                f"{row['median_best_epoch']:g}",
                "converged" if row["converged"] else "not converged",
            ]
            for row in raw
        ],
        raw=raw,
    )


def _trained(record: StudyRecord) -> list[dict[str, Any]]:
    """Return the reproduction runs that were trained and say at which epoch they ended."""
    return [run for run in record.reproductions if run.get("last_epoch")]


def _at_the_end(runs: Sequence[dict[str, Any]]) -> int:
    return sum(run["best_epoch"] == run["last_epoch"] for run in runs)
