"""What is accepted at each threshold, with its limits. Shapes: C classes, K thresholds."""

from dataclasses import dataclass

import numpy as np

from assay.index.calibration.limits import (
    FEWEST_PAIRS,
    Floats,
    effective_number,
    limits_of_rate,
    limits_of_ratio,
    limits_of_share,
    variance_over_classes,
    variance_over_pairs,
)
from assay.index.calibration.pairs import AcceptedPairs
from assay.records.codec import Record

ENDS = "_low", "", "_high"

TINY = 1e-5
"""Rounding of limits, which are written with 6 digits."""


@dataclass(frozen=True)
class Curve(Record):
    """What is accepted at each threshold, with 95% limits over classes.

    Args:
        scores: the thresholds, rising; the first accepts everything.
        found: share of pairs of one class.
        found_low: its lower limit.
        found_high: its upper limit.
        false: share of pairs of two classes.
        false_low: its lower limit.
        false_high: its upper limit.
        ratio_low: lower limit of false / found.
        ratio_high: its upper limit, infinite where `found` may be 0.
        classes: classes with an accepted pair.
        confusions: pairs of classes with an accepted pair.
        one_more: what one more independent false match would add to `false`.
    """

    scores: tuple[float, ...]
    found: tuple[float, ...]
    found_low: tuple[float, ...]
    found_high: tuple[float, ...]
    false: tuple[float, ...]
    false_low: tuple[float, ...]
    false_high: tuple[float, ...]
    ratio_low: tuple[float, ...]
    ratio_high: tuple[float, ...]
    classes: tuple[int, ...]
    confusions: tuple[int, ...]
    one_more: float

    def is_plausible(self) -> bool:
        """Return whether the numbers could be those of a curve."""
        columns = {name: one for name, one in vars(self).items() if isinstance(one, tuple)}
        if not self.scores or {*map(len, columns.values())} != {len(self.scores)}:
            return False
        of = {name: np.array(one, dtype=np.float64) for name, one in columns.items()}
        shares = [of[f"{name}{end}"] for name in ("found", "false") for end in ENDS]
        falling = [of[name] for name in ("found", "false", "classes", "confusions")]
        return (
            bool(np.isfinite(of["scores"]).all() and (np.diff(of["scores"]) > 0).all())
            and 0 < self.one_more <= 1
            and all(((one >= 0) & (one <= 1)).all() for one in shares)
            and all((one >= 0).all() and (np.diff(one) <= 1e-12).all() for one in falling)
            and all(_in_order(*shares[start : start + 3]) for start in (0, 3))
            and bool((of["ratio_low"] >= 0).all())
            and _in_order(of["ratio_low"], of["ratio_low"], of["ratio_high"])
        )


def _in_order(low: Floats, value: Floats, high: Floats) -> bool:
    """Return whether limits lie around values, but for rounding; never where one is NaN."""
    return bool(((low <= value * (1 + TINY)) & (value <= high * (1 + TINY))).all())


def curve_of(pairs: AcceptedPairs) -> Curve:
    """Return the shares of accepted pairs with their limits over classes."""
    classes = len(pairs.others_CK)
    found_K = pairs.own_CK.mean(axis=0)
    false_K = pairs.others_CK.sum(axis=0) / (classes * (classes - 1))
    found = (found_K, *limits_of_share(found_K, _number_found(pairs, found_K), len(pairs.own_CK)))
    largest_K = _largest(pairs)
    variance_K = variance_over_pairs(pairs.others_CK, pairs.squares_K)
    false = (false_K, *limits_of_rate(false_K, variance_K, largest_K, classes))
    ratio = limits_of_ratio(false, found)
    found_low, found_high, false_low, false_high, ratio_low, ratio_high = (
        tuple(float(f"{one:.6g}") for one in column) for column in (*found[1:], *false[1:], *ratio)
    )
    return Curve(
        scores=tuple(pairs.thresholds_K.tolist()),
        found=tuple(found_K.tolist()),
        found_low=found_low,
        found_high=found_high,
        false=tuple(false_K.tolist()),
        false_low=false_low,
        false_high=false_high,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        classes=tuple(np.count_nonzero(pairs.own_CK, axis=0).tolist()),
        confusions=tuple(pairs.touched_K.tolist()),
        one_more=float(largest_K[-1]),
    )


def _number_found(pairs: AcceptedPairs, found_K: Floats) -> Floats:
    variance_K = variance_over_classes(pairs.own_CK)
    number_K = effective_number(found_K, variance_K, len(pairs.own_CK))
    return np.minimum(number_K, pairs.pairs[0])


def _largest(pairs: AcceptedPairs) -> Floats:
    """Return what the two classes that are most alike add to the rate of false matches.

    Where fewer than 20 pairs of classes are confused, it is that of the last threshold where so
    many are: the largest of a few says little of those that were not seen.
    """
    classes = len(pairs.others_CK)
    largest_K = pairs.largest_K / (classes * (classes - 1) / 2)
    fewest = min(FEWEST_PAIRS, int(pairs.touched_K.max()))
    last = int(np.flatnonzero(pairs.touched_K >= fewest)[-1])
    largest_K[last:] = largest_K[last]
    return largest_K
