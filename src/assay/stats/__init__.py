"""Intervals, paired differences and ranks. A reproduction is the unit, or a data set; folds are averaged before."""

from assay.stats.bounds import bootstrap_bound
from assay.stats.curves import autocorrelation
from assay.stats.differences import (
    FEWEST,
    POWER,
    Difference,
    Verdict,
    holm,
    paired_differences,
    power,
    relative_gain,
    reproductions_needed,
    reproductions_to_see,
    subtract,
)
from assay.stats.intervals import ALPHA, Interval, bootstrap, deviation, spread, t_interval
from assay.stats.ranks import Friedman, critical_difference, friedman, ranks, ties

__all__ = [
    "ALPHA",
    "FEWEST",
    "POWER",
    "Difference",
    "Friedman",
    "Interval",
    "Verdict",
    "autocorrelation",
    "bootstrap",
    "bootstrap_bound",
    "critical_difference",
    "deviation",
    "friedman",
    "holm",
    "paired_differences",
    "power",
    "ranks",
    "relative_gain",
    "reproductions_needed",
    "reproductions_to_see",
    "spread",
    "subtract",
    "t_interval",
    "ties",
]
