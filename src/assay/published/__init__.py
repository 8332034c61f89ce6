"""Published results as data: best parameters, scores, and claims over baselines."""

from assay.published.claims import Gain, claimed_gains, measured_gains
from assay.published.names import DATA, REALITY_CHECK
from assay.published.studies import Elsewhere, Reported, best_parameters, elsewhere, reported

__all__ = [
    "DATA",
    "REALITY_CHECK",
    "Elsewhere",
    "Gain",
    "Reported",
    "best_parameters",
    "claimed_gains",
    "elsewhere",
    "measured_gains",
    "reported",
]
