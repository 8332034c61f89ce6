"""Shared maths of losses and miners: which samples are compared, how far apart they are, sums over
masks.
"""

from assay.pairs.distances import (
    as_compared,
    distances,
    similarities,
    sine,
    squared_distances,
    unit,
    without_autocast,
)
from assay.pairs.masks import (
    Mined,
    Pairs,
    References,
    Triplets,
    all_pairs,
    as_pairs,
    as_triplets,
    check_batch,
    check_mined,
    pair_counts,
)
from assay.pairs.sums import (
    log1p_exp,
    log1p_sum_exp,
    log_sum_exp,
    masked_mean,
    soft_histograms,
    triplet_hinges,
)

__all__ = [
    "Mined",
    "Pairs",
    "References",
    "Triplets",
    "all_pairs",
    "as_compared",
    "as_pairs",
    "as_triplets",
    "check_batch",
    "check_mined",
    "distances",
    "log1p_exp",
    "log1p_sum_exp",
    "log_sum_exp",
    "masked_mean",
    "pair_counts",
    "similarities",
    "sine",
    "soft_histograms",
    "squared_distances",
    "triplet_hinges",
    "unit",
    "without_autocast",
]
