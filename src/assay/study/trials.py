"""Trials of a search: the best so far, and those that are given up."""

from collections.abc import Sequence

from assay.records.lines import RunEntry, Trial
from assay.records.run import RunResult


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the highest value, the earliest among equals; None if none."""
    finished = [trial for trial in trials if trial.map_at_r is not None]
    return max(finished, key=lambda trial: trial.map_at_r or 0.0, default=None)


def estimate(first: float, before: Sequence[Trial]) -> float:
    """Return what a trial that was given up would have come to.

    It is the MAP@R of its first fold, scaled as the best trial's mean is to its first fold.
    """
    best = best_of(before)
    assert best is not None, "only a trial that is worse than another is given up"
    assert best.map_at_r is not None
    return first * best.map_at_r / best.runs[0].validation["map_at_r"]


def is_hopeless(first: RunResult | RunEntry, trials: Sequence[Trial], share: float | None) -> bool:
    """Return whether a trial's first fold lies below the best trial's by more than the share."""
    best = best_of(trials)
    if share is None or best is None or first.status == "diverged":
        return False
    return first.validation["map_at_r"] < (1 - share) * best.runs[0].validation["map_at_r"]
