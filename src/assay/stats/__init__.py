"""Intervals, differences between methods, planning, components of spread, and ranks.

The unit is a search with its selection and reproductions, a reproduction where nothing is
searched, or a data set.
"""

from assay.stats.components import (
    Component,
    Components,
    aa_difference,
    autocorrelation,
    class_error,
    components,
    over_classes,
    with_limits,
)
from assay.stats.differences import Difference, Verdict, compare, relative_gain, verdict_of
from assay.stats.intervals import (
    ALPHA,
    Interval,
    bootstrap,
    bootstrap_bound,
    deviation,
    spread,
    t_interval,
)
from assay.stats.planning import MOST, POWER, alpha_of_look, searches_to_see
from assay.stats.ranks import Friedman, critical_difference, friedman, ranks, ties

__all__ = [
    "ALPHA",
    "MOST",
    "POWER",
    "Component",
    "Components",
    "Difference",
    "Friedman",
    "Interval",
    "Verdict",
    "aa_difference",
    "alpha_of_look",
    "autocorrelation",
    "bootstrap",
    "bootstrap_bound",
    "class_error",
    "compare",
    "components",
    "critical_difference",
    "deviation",
    "friedman",
    "over_classes",
    "ranks",
    "relative_gain",
    "searches_to_see",
    "spread",
    "t_interval",
    "ties",
    "verdict_of",
    "with_limits",
]
