"""Length of training: which runs were still improving when they ended."""

from collections.abc import Sequence
from statistics import median

from assay.records.lines import Reproduction
from assay.records.study import StudyRecord
from assay.tables.comparison import Comparison
from assay.tables.table import Table, named

MOST_AT_THE_END = 0.1
"""Share of runs with their best epoch last above which a method is called not converged."""


def not_converged(record: StudyRecord) -> bool:
    """Return whether more than a tenth of the runs have their best epoch last."""
    runs = _trained(record)
    return bool(runs) and _at_the_end(runs) > MOST_AT_THE_END * len(runs)


def unconverged(comparison: Comparison, methods: Sequence[str]) -> list[str]:
    """Return the methods among these that are not converged."""
    return [method for method in methods if not_converged(comparison.record(method))]


def not_converged_clause(comparison: Comparison, methods: Sequence[str]) -> str:
    """Return the clause that a sentence about these methods adds on their training.

    It is empty where all runs stopped early.
    """
    found, never = unconverged(comparison, methods), _unmoved(comparison, methods)
    clause = f"; not converged: {named(found)}" if found else ""
    return clause + (f"; most runs of {named(never)} kept their initial weights" if never else "")


def _unmoved(comparison: Comparison, methods: Sequence[str]) -> list[str]:
    """Return the methods among these most of whose runs validate best before any training."""
    runs = {method: _trained(comparison.record(method)) for method in methods}
    return [method for method, own in runs.items() if _mostly_unmoved(own)]


def length(comparison: Comparison) -> Table | None:
    """Return the table of runs that ended at their last epoch; None where no run recorded it."""
    found = [(record, runs) for record in comparison.records if (runs := _trained(record))]
    if not found:
        return None
    raw = [
        {
            "method": record.method,
            "runs": len(runs),
            "best_epoch_last": _at_the_end(runs),
            "share": _at_the_end(runs) / len(runs),
            "best_epoch_first": _at_the_start(runs),
            "median_best_epoch": median(run.best_epoch for run in runs),
            "ended": _in_words(record, runs),
        }
        for record, runs in found
    ]
    return Table(
        name="length",
        title="Length of training",
        note=(
            "Reproduction runs whose best epoch by validation is the last that they trained:"
            f" training longer might have raised their scores. Above {MOST_AT_THE_END:.0%} of its"
            " runs a method is called not converged, and verdicts that rest on it say so: they may"
            " be about which method learns faster. The other methods stopped by themselves, when"
            " validation had not risen for as many epochs as the protocol waits; a longer wait"
            " might have found more. Runs that kept their initial weights validated best before"
            " any training."
        ),
        columns=[
            "method",
            "runs",
            "best epoch is the last",
            "share",
            "kept initial weights",
            "median best epoch",
            "in words",
        ],
        rows=[
            [
                str(row["method"]),
                str(row["runs"]),
                str(row["best_epoch_last"]),
                f"{row['share']:.0%}",
                str(row["best_epoch_first"]),
                f"{row['median_best_epoch']:g}",
                str(row["ended"]),
            ]
            for row in raw
        ],
        raw=raw,
    )


def _trained(record: StudyRecord) -> list[Reproduction]:
    """Return the reproduction runs that were trained and recorded the epoch at which they ended."""
    return [run for run in record.reproductions if run.last_epoch]


def _in_words(record: StudyRecord, runs: Sequence[Reproduction]) -> str:
    if not_converged(record):
        return "not converged"
    return "mostly not trained" if _mostly_unmoved(runs) else "stopped by itself"


def _mostly_unmoved(runs: Sequence[Reproduction]) -> bool:
    return 2 * _at_the_start(runs) > len(runs)


def _at_the_start(runs: Sequence[Reproduction]) -> int:
    return sum(run.best_epoch == 0 for run in runs)


def _at_the_end(runs: Sequence[Reproduction]) -> int:
    return sum(run.best_epoch == run.last_epoch for run in runs)
