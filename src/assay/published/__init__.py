"""Published results as data: best parameters, scores, and claims over baselines."""

from assay.published.results import (
    BEST_FOR,
    DATA,
    REALITY_CHECK,
    Elsewhere,
    Gain,
    InItsPaper,
    Reported,
    best_parameters,
    claimed_gains,
    elsewhere,
    in_its_paper,
    measured_gains,
    reported,
)

__all__ = [
    "BEST_FOR",
    "DATA",
    "REALITY_CHECK",
    "Elsewhere",
    "Gain",
    "InItsPaper",
    "Reported",
    "best_parameters",
    "claimed_gains",
    "elsewhere",
    "in_its_paper",
    "measured_gains",
    "reported",
]
