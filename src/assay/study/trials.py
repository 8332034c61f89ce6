"""Trials of a search: the best so far, and those that are given up."""

from collections.abc import Sequence
from typing import Any

Trial = dict[str, Any]
"""A trial as the ledger has it."""


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The finished trial with the highest value, the earliest among equals; None where none has
    finished.
    """
    finished = [trial for trial in trials if trial["map_at_r"] is not None]
    return max(finished, key=lambda trial: float(trial["map_at_r"]), default=None)


def estimate(first: float, before: Sequence[Trial]) -> float:
    """What a trial that was given up would have come to: its first fold, scaled as the best trial's
    first fold is to its mean.
    """
    best = best_of(before)
    assert best is not None, "only a trial that is worse than another is given up"
    return float(first * best["map_at_r"] / best["runs"][0]["validation"]["map_at_r"])


def is_hopeless(first: dict[str, Any], trials: Sequence[Trial], share: float | None) -> bool:
    """Whether the result of a trial's first fold lies below that of the best trial so far by more
    than the share.
    """
    best = best_of(trials)
    if share is None or best is None or first["status"] == "diverged":
        return False
    return bool(
        first["validation"]["map_at_r"] < (1 - share) * best["runs"][0]["validation"]["map_at_r"]
    )
