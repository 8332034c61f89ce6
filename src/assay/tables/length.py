"""Length of training: which runs were still improving when they ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from assay.records.study import StudyRecord
from assay.tables.comparison import Comparison
from assay.tables.table import Table, named

MOST_AT_THE_END = 0.1
"""Share of runs with their best epoch last above which a method is called not converged."""


@dataclass(frozen=True)
class TrainingLength:
    """The reproduction runs of a method by their best epoch, which validation chose.

    Args:
        method: its name.
        runs: reproduction runs that were trained and recorded the epoch at which they ended.
        best_epoch_last: runs whose best epoch is the last that they trained.
        share: of these runs among all.
        best_epoch_first: runs that validate best before any training.
        median_best_epoch: over runs.
        ended: how most runs ended, in words.
    """

    method: str
    runs: int
    best_epoch_last: int
    share: float
    best_epoch_first: int
    median_best_epoch: float
    ended: str

    @property
    def not_converged(self) -> bool:
        """Whether more runs than may be have their best epoch last."""
        return self.best_epoch_last > MOST_AT_THE_END * self.runs


def length_of(record: StudyRecord) -> TrainingLength | None:
    """Return how long the runs of a study trained; None where no run recorded its last epoch."""
    runs = [run for run in record.reproductions if run.last_epoch]
    if not runs:
        return None
    last = sum(run.best_epoch == run.last_epoch for run in runs)
    first = sum(run.best_epoch == 0 for run in runs)
    ended = (
        "not converged"
        if last > MOST_AT_THE_END * len(runs)
        else "mostly not trained"
        if 2 * first > len(runs)
        else "stopped by itself"
    )
    middle = median(run.best_epoch for run in runs)
    return TrainingLength(record.method, len(runs), last, last / len(runs), first, middle, ended)


def not_converged(record: StudyRecord) -> bool:
    """Return whether more than a tenth of the runs have their best epoch last."""
    found = length_of(record)
    return found is not None and found.not_converged


def not_converged_clause(comparison: Comparison, methods: Sequence[str]) -> str:
    """Return the clause that a sentence about these methods adds on their training.

    It is empty where all runs stopped early.
    """
    lengths = [length_of(comparison.record(method)) for method in methods]
    found = [one.method for one in lengths if one and one.not_converged]
    never = [one.method for one in lengths if one and 2 * one.best_epoch_first > one.runs]
    clause = f"; not converged: {named(found)}" if found else ""
    return clause + (f"; most runs of {named(never)} kept their initial weights" if never else "")


def length(comparison: Comparison) -> Table | None:
    """Return the table of runs that ended at their last epoch; None where no run recorded it."""
    found = [one for record in comparison.records if (one := length_of(record))]
    if not found:
        return None
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
                one.method,
                str(one.runs),
                str(one.best_epoch_last),
                f"{one.share:.0%}",
                str(one.best_epoch_first),
                f"{one.median_best_epoch:g}",
                one.ended,
            ]
            for one in found
        ],
        raw=[vars(one) for one in found],
    )
