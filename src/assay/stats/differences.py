"""Differences between methods over independent searches, and the verdicts that they allow.

Shapes: M methods, P pairs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from assay.stats.intervals import ALPHA, Floats, Interval, deviation
from assay.stats.planning import alpha_of_look, searches_to_see
from assay.stats.shrinkage import WELCH_UP_TO, Counts, pair_errors, shrink

Verdict = Literal["better", "better, too little to matter", "equivalent", "undecided"]

DIGITS = 12
"""Decimals of a score that count: later ones depend on the order of a sum."""
CAUTION = 0.8
"""Confidence of the upper limit of the variance that planning starts from."""


@dataclass(frozen=True)
class Difference:
    """A comparison of the method with the higher mean with another method.

    Args:
        first: the method with the higher mean.
        second: the other method.
        interval: simultaneous interval of first - second; no ends where neither method was
            repeated. `n` is the smaller number of units of the two, fixed values left out.
        verdict: follows from the interval and `smallest` alone.
        error: standard error of the difference.
        freedom: degrees of freedom of the error; None where nothing varies.
        look: how often the question of this pair was looked at.
        comparisons: pairs that the interval allows for.
        smallest: the smallest difference that matters.
        needed: units per method with which the next look would find a difference of `smallest` 80%
            of the time, from the upper 80% limit of the variance; None where that is more than
            `MOST`, or no spread is known.
    """

    first: str
    second: str
    interval: Interval
    verdict: Verdict
    error: float | None
    freedom: float | None
    look: int
    comparisons: int
    smallest: float
    needed: int | None


def compare(
    units: Mapping[str, Sequence[float]],
    pairs: Sequence[tuple[str, str]],
    *,
    comparisons: int | None = None,
    smallest: float = 0.01,
    looks: Sequence[int] | None = None,
) -> list[Difference]:
    """Compare pairs of methods by independent units, one search with its training each.

    The interval is  difference +- t(nu, 1 - alpha_k / 2m) sqrt(V)  with V and nu of `pair_errors`:
    Welch's for up to three methods, variances shrunk towards their mean over the family from four
    on. Bonferroni's m makes all intervals hold at once.

    Args:
        units: values of every method of the declared family; a single value is a constant, as of a
            fixed baseline.
        pairs: names of the methods to compare.
        comparisons: number of pairs declared (m), at least those given here; None: those given
            here.
        smallest: the smallest difference that matters.
        looks: how often the question of each pair was looked at, this time included; None: once.

    >>> units = {"a": [0.52, 0.54, 0.53, 0.53], "b": [0.41, 0.42, 0.40, 0.41]}
    >>> found = compare(units, [("b", "a")])[0]
    >>> found.first, found.verdict, round(found.interval.mean, 3)
    ('a', 'better', 0.12)
    """
    m = len(pairs) if comparisons is None else comparisons
    looks = [1] * len(pairs) if looks is None else looks
    _check(units, pairs, m, smallest, looks)
    if not pairs:
        return []
    names = list(units)
    rounded = [[round(value, DIGITS) for value in values] for values in units.values()]
    counts_M = np.array([len(values) for values in rounded])
    means_M = [math.fsum(values) / len(values) for values in rounded]
    variances_M = np.array([deviation(values) ** 2 for values in rounded])
    first_P = np.array([names.index(first) for first, _ in pairs])
    second_P = np.array([names.index(second) for _, second in pairs])
    errors = pair_errors(variances_M, counts_M, first_P, second_P)
    found = []
    for number, (a, b) in enumerate(zip(first_P.tolist(), second_P.tolist(), strict=True)):
        high, low = (a, b) if means_M[a] >= means_M[b] else (b, a)
        k = looks[number]
        repeated = [count for count in (int(counts_M[a]), int(counts_M[b])) if count > 1]
        n, error, freedom = min(repeated, default=1), None, None
        if repeated:
            error = math.sqrt(errors.variance[number])
            freedom = float(errors.freedom[number]) if error else None
        interval = _interval(
            round(means_M[high] - means_M[low], DIGITS), error, freedom, alpha_of_look(k) / m, n
        )
        found.append(
            Difference(
                first=names[high],
                second=names[low],
                interval=interval,
                verdict=verdict_of(interval, smallest),
                error=error,
                freedom=freedom,
                look=k,
                comparisons=m,
                smallest=smallest,
                needed=_needed(
                    smallest, variances_M, counts_M, (a, b), freedom, m, alpha_of_look(k + 1)
                ),
            )
        )
    return found


def verdict_of(interval: Interval, smallest: float) -> Verdict:
    """Return the word that an interval of (higher - lower) allows.

    >>> verdict_of(Interval(0.004, 0.001, 0.007, 9), 0.01)
    'better, too little to matter'
    >>> verdict_of(Interval(0.02, -0.01, 0.05, 4), 0.01)
    'undecided'
    """
    if interval.low is None or interval.high is None:
        return "undecided"
    if interval.low > 0:
        return "better, too little to matter" if interval.high < smallest else "better"
    return "equivalent" if -smallest < interval.low and interval.high < smallest else "undecided"


def relative_gain(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Compute by what share of the second method's mean the first method's mean lies above it.

    None where the second method has a value of 0 or less.
    The units of two methods are independent, so the interval is that of a ratio of two means, by
    the delta method: r = a / b,  r - 1 +- t(nu) sqrt(V_a + r^2 V_b) / b,  nu by Welch and
    Satterthwaite for the two terms under the root. A single value is a constant.

    >>> relative_gain([0.6, 0.6, 0.6], [0.5])
    Interval(mean=0.2, low=0.2, high=0.2, n=3)
    """
    if min(second) <= 0:
        return None
    above, below = math.fsum(first) / len(first), math.fsum(second) / len(second)
    ratio = above / below
    gained = round(ratio - 1, DIGITS)
    terms = [
        (values, scale) for values, scale in ((first, 1.0), (second, ratio)) if len(values) > 1
    ]
    if not terms:
        return Interval(gained, None, None, 1)
    n = min(len(values) for values, _ in terms)
    shares = [(scale * deviation(values)) ** 2 / len(values) for values, scale in terms]
    if sum(shares) == 0:
        return Interval(gained, gained, gained, n)
    squares = sum(
        share**2 / (len(values) - 1) for share, (values, _) in zip(shares, terms, strict=True)
    )
    half = -special.stdtrit(sum(shares) ** 2 / squares, ALPHA / 2) * math.sqrt(sum(shares)) / below
    return Interval(gained, gained - float(half), gained + float(half), n)


def _interval(
    difference: float, error: float | None, freedom: float | None, alpha: float, n: int
) -> Interval:
    # that nothing varied in a few units is no certainty
    if error is None or (freedom is None and difference):
        return Interval(difference, None, None, n)
    half = 0.0 if freedom is None else -float(special.stdtrit(freedom, alpha / 2)) * error
    assert math.isfinite(half)
    return Interval(difference, difference - half, difference + half, n)


def _needed(
    smallest: float,
    variances_M: Floats,
    counts_M: Counts,
    pair: tuple[int, int],
    freedom: float | None,
    comparisons: int,
    alpha: float,
) -> int | None:
    """Plan from the upper limit of the variance: V nu / chi2(nu, 20%)."""
    if freedom is None:
        return None
    family = [index for index, count in enumerate(counts_M) if count > 1]
    both = [index for index in pair if index in family]
    others = [index for index in family if index not in both]
    limit = freedom / (2 * float(special.gammaincinv(freedom / 2, 1 - CAUTION)))
    estimates_M = variances_M
    if len(family) > WELCH_UP_TO:
        estimates_M = shrink(variances_M, counts_M, variances_M[family].mean())
    return searches_to_see(
        smallest,
        deviations=[math.sqrt(limit * float(estimates_M[index])) for index in both],
        comparisons=comparisons,
        methods=len(family),
        alpha=alpha,
        others=math.sqrt(float(variances_M[others].mean())) if others else None,
    )


def _check(
    units: Mapping[str, Sequence[float]],
    pairs: Sequence[tuple[str, str]],
    comparisons: int,
    smallest: float,
    looks: Sequence[int],
) -> None:
    for name, values in units.items():
        if len(values) == 0:
            raise ValueError(f"{name} has no values: leave it out")
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"{name} has a value that is no number: {list(values)}")
    for pair in pairs:
        missing = [name for name in pair if name not in units]
        if missing or pair[0] == pair[1]:
            raise ValueError(
                f"a pair takes two different methods of {', '.join(units)}; got {pair[0]} and"
                f" {pair[1]}"
            )
    if comparisons < len(pairs):
        raise ValueError(f"{len(pairs)} pairs cannot be compared where {comparisons} were declared")
    if not smallest > 0:
        raise ValueError(f"the smallest difference that matters must be above 0, got {smallest}")
    if len(looks) != len(pairs) or any(look < 1 for look in looks):
        raise ValueError(
            f"each of {len(pairs)} pairs has a look, counted from 1; got {list(looks)}"
        )
