"""The price of peeking: what choosing on the test half would have added to a score. Not a result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.stats import Interval, t_interval
from assay.study import StudyRecord
from assay.tables.comparison import Comparison
from assay.tables.form import Table, percent


@dataclass(frozen=True)
class Price:
    """What a method's MAP@R (single models) would have gained.

    Args:
        method: its name.
        honest: its score, everything chosen on validation folds.
        epoch: gain had each model's epoch been chosen on the test half; over reproductions.
        parameters: gain had the trial been chosen on the test half; over folds; None where nothing was searched.
    """

    method: str
    honest: Interval
    epoch: Interval
    parameters: Interval | None

    @property
    def both(self) -> float:
        """The two gains, if they add."""
        return self.epoch.mean + (self.parameters.mean if self.parameters else 0.0)


def prices(comparison: Comparison) -> list[Price]:
    """Of every method whose checkpoints were kept and scored after the seal was opened, if there was more than one."""
    return [price(record) for record in comparison.records if record.peek is not None and _had_a_choice(record.peek)]


def price(record: StudyRecord) -> Price:
    """From the test scores of what was not chosen."""
    assert record.peek is not None
    return Price(
        method=record.method,
        honest=t_interval(record.units("separated", "map_at_r")),
        epoch=t_interval(_gains_by_epoch(record.peek["epochs"], record.searches)),
        parameters=_gain_by_parameters(record, record.peek["trials"]),
    )


def peeking(comparison: Comparison) -> Table | None:
    """The prices as a table; None where no checkpoints were kept."""
    found = prices(comparison)
    if not found:
        return None
    return Table(
        name="peeking",
        title="The price of peeking: what choosing on the test half would have added",
        note=(
            "Not a result. The honest score chooses epoch and parameters on validation folds; the gains say how much would have "
            "been added to it had they been chosen by MAP@R on the test half itself, as much of the literature does. Epoch: the "
            "best checkpoint instead of the chosen one, mean over folds, 95% t-interval over searches or, of one search, over "
            "reproductions. Parameters: the trial with the best mean on test instead of the one that its search selected, "
            "95% t-interval over searches or, of one search, over folds. Both: the two added up. "
            "Single models, points of MAP@R; computed after the seal was opened, and nothing was chosen by it."
        ),
        columns=["method", "honest MAP@R", "epoch", "parameters", "both", "score then"],
        rows=[
            [
                one.method,
                percent(one.honest),
                "+" + percent(one.epoch),
                "" if one.parameters is None else "+" + percent(one.parameters),
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


def _had_a_choice(peek: Mapping[str, Any]) -> bool:
    return any(len(entry["test"]) > 1 for entry in peek["epochs"])


def _gains_by_epoch(entries: Sequence[Mapping[str, Any]], searches: int) -> list[float]:
    """Return the mean over folds of the best checkpoint's score minus the chosen one's, for each search or reproduction."""
    by_unit: dict[int, list[float]] = {}
    for entry in entries:
        gained = max(entry["test"].values()) - entry["test"][str(entry["chosen"])]
        unit = entry.get("search", 0) if searches > 1 else entry["reproduction"]
        by_unit.setdefault(unit, []).append(gained)
    return [sum(gained) / len(gained) for gained in by_unit.values()]


def _gain_by_parameters(record: StudyRecord, trials: Sequence[Mapping[str, Any]]) -> Interval | None:
    """Return what the trial that is best on test adds to the selected one: over searches, or fold by fold of the only one."""
    found = [
        gained
        for selection in record.selections
        if (gained := _gains_of_search([t for t in trials if t.get("search", 0) == selection["search"]], selection["trial"]))
    ]
    if not found:
        return None
    return t_interval(found[0] if record.searches == 1 else [sum(gained) / len(gained) for gained in found])


def _gains_of_search(trials: Sequence[Mapping[str, Any]], chosen: int | None) -> list[float] | None:
    """Return the best trial's score on test minus the selected one's, fold by fold; trials that finished are among them."""
    selected = next((trial["test"] for trial in trials if trial["trial"] == chosen), None)
    if selected is None:
        return None
    finished = [trial["test"] for trial in trials if trial["validation"] is not None and len(trial["test"]) == len(selected)]
    best = max([selected, *finished], key=sum)
    return [ours - honest for ours, honest in zip(best, selected, strict=True)]


def _raw(name: str, interval: Interval | None) -> dict[str, object]:
    ends = (None, None, None) if interval is None else (interval.mean, interval.low, interval.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
