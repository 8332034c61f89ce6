"""The price of peeking: how much choosing on the test half would have added to a score.

The price is not a result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from assay.records.lines import PeekedRun, PeekedTrial
from assay.records.study import StudyRecord
from assay.stats import Interval, bootstrap_bound, t_interval
from assay.stats.intervals import FEWEST_FOR_BOUND
from assay.tables.comparison import Comparison
from assay.tables.table import Table, percent


@dataclass(frozen=True)
class Price:
    """The gain in MAP@R (single models) from choosing on the test half.

    Args:
        method: its name.
        honest: its score, everything chosen on validation folds.
        epoch: gain had each model's epoch been chosen on the test half; over searches, over
            reproductions where there is one.
        parameters: gain had the trial been chosen on the test half; over searches; None where
            nothing was searched.

    No gain is negative, so each has a lower bound and no upper one.
    """

    method: str
    honest: Interval
    epoch: Interval
    parameters: Interval | None

    @property
    def both(self) -> float:
        """The sum of the two gains."""
        return self.epoch.mean + (self.parameters.mean if self.parameters else 0.0)


def prices(comparison: Comparison) -> list[Price]:
    """Return the price of every method whose checkpoints were kept and scored on the test half.

    Methods that had nothing to choose from are left out.
    """
    return [
        price(record)
        for record in comparison.records
        if record.peek is not None and any(len(run.test) > 1 for run in record.peek.epochs)
    ]


def price(record: StudyRecord) -> Price:
    """Compute the price of a method from the test scores of checkpoints and trials not chosen."""
    assert record.peek is not None
    return Price(
        method=record.method,
        honest=t_interval(record.units("separated", "map_at_r")),
        epoch=bootstrap_bound(_gains_by_epoch(record.searches, record.peek.epochs)),
        parameters=_gain_by_parameters(record, record.peek.trials),
    )


def peeking(comparison: Comparison) -> Table | None:
    """Return the table of prices; None where no checkpoints were kept."""
    found = prices(comparison)
    if not found:
        return None
    return Table(
        name="peeking",
        title="The price of peeking: what choosing on the test half would have added",
        note=(
            "Not a result. The honest score chooses epoch and parameters on validation folds; the"
            " gains say how much would have been added to it had they been chosen by MAP@R on the"
            " test half itself, as much of the literature does. Epoch: the best checkpoint instead"
            " of the chosen one, mean over folds. Parameters: the trial of the same search with"
            " the best mean on test instead of the selected one, mean over folds. Both: the two"
            " added up. The best on test is never worse than the chosen one, so no gain is"
            " negative, and an interval around it would be wrong: in brackets stands a lower"
            " bound, which the expected gain exceeds with 95% confidence, from a bootstrap over"
            " searches; for the epoch over reproductions where there is one search. Fewer than"
            f" {FEWEST_FOR_BOUND} of them have none. Single models, points of MAP@R; computed after"
            " the seal was opened, and nothing was chosen by it."
        ),
        columns=["method", "honest MAP@R", "epoch", "parameters", "both", "score then"],
        rows=[
            [
                one.method,
                percent(one.honest),
                _gain(one.epoch),
                "" if one.parameters is None else _gain(one.parameters),
                f"+{100 * one.both:.2f}",
                f"{100 * (one.honest.mean + one.both):.2f}",
            ]
            for one in found
        ],
        raw=[
            {
                "method": one.method,
                "honest": one.honest.mean,
                **_raw("epoch", one.epoch),
                **_raw("parameters", one.parameters),
                "both": one.both,
            }
            for one in found
        ],
    )


def _gains_by_epoch(searches: int, entries: Sequence[PeekedRun]) -> list[float]:
    """Return the mean gain of the best checkpoint over the chosen one.

    For each search, or for each reproduction of a single search.
    """
    by_unit: dict[int, list[float]] = {}
    for entry in entries:
        gained = max(entry.test.values()) - entry.test[entry.chosen]
        unit = entry.search if searches > 1 else entry.reproduction
        by_unit.setdefault(unit, []).append(gained)
    return [sum(gained) / len(gained) for gained in by_unit.values()]


def _gain_by_parameters(record: StudyRecord, trials: Sequence[PeekedTrial]) -> Interval | None:
    """Return the gain of the best trial on test over the selected trial, over searches.

    None where no trial was selected.
    """
    gains = [
        _gain_of_search(selection.trial, [trial for trial in trials if trial.search == search])
        for search, selection in enumerate(record.selections)
        if selection.trial is not None
    ]
    known = [gain for gain in gains if gain is not None]
    return bootstrap_bound(known) if known else None


def _gain_of_search(chosen: int, trials: Sequence[PeekedTrial]) -> float | None:
    """Return the mean over folds of the best trial on test minus the mean of the chosen trial.

    Only finished trials count.
    """
    selected = next((trial.test for trial in trials if trial.trial == chosen), None)
    if selected is None:
        return None
    finished = [
        trial.test
        for trial in trials
        if trial.validation is not None and len(trial.test) == len(selected)
    ]
    return float(max(map(sum, [selected, *finished])) - sum(selected)) / len(selected)


def _gain(interval: Interval) -> str:
    """Return a gain with its lower bound, in points."""
    bound = "" if interval.low is None else f" (at least {100 * interval.low:.2f})"
    return f"+{100 * interval.mean:.2f}{bound}"


def _raw(name: str, interval: Interval | None) -> dict[str, object]:
    ends = (None, None, None) if interval is None else (interval.mean, interval.low, interval.n)
    return dict(zip((name, f"{name}_at_least", f"{name}_units"), ends, strict=True))
