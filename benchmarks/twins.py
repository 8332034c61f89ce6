"""Whether verdicts keep their promises where the truth is known: on twins of one method, simulated
and real.

python benchmarks/twins.py [--benches 2000] [--only
false,equivalent,looks,coverage,classes,landscapes,power,planning] python benchmarks/twins.py --pool
FILE.json|STORE [--benches 2000]

Simulated benches: methods with equal true means, spreads (standard deviations over searches, in
points) by scenario, and a fixed yardstick with the same mean. A bench counts as false if any of its
pairs is called better. Seeds are fixed. Every row takes the path of `assay.stats.compare`; its
first benches are given to `compare` itself, which must say the same.

A pool is {method: [test scores of independent searches]}, or a store with a bench of many searches.
It is resampled into benches: two disjoint sets of searches of one method are twins, beside other
methods of the pool.

Recorded landscapes are those of benchmarks/search.py: a search is a number of trials there, and its
test score is the value of the best one plus the noise of a training seed.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special

from assay.hashing import derive
from assay.records.store import Store
from assay.records.study import study_records
from assay.stats import (
    aa_difference,
    alpha_of_look,
    compare,
    deviation,
    over_classes,
    searches_to_see,
    t_interval,
)
from assay.stats.shrinkage import pair_errors

Floats = NDArray[np.float64]
Draw = np.random.Generator
SIZES = (2, 4, 10, 30)
SEARCHES = 4
TRIALS = 6
CHECKED = 2
"""Benches of each row that `compare` judges as well."""


# --- A bench, and many at once ---


@dataclass(frozen=True)
class Family:
    """Pairs of searched methods, and of each with a fixed yardstick, whose index is the last."""

    methods: int
    first: NDArray[np.int_]
    second: NDArray[np.int_]

    @property
    def comparisons(self) -> int:
        """Pairs that are declared."""
        return len(self.first)


def family(methods: int, yardstick: bool = True) -> Family:
    """All pairs of up to ten methods; above that each with the first method; and each with the
    yardstick.
    """
    pairs = (
        list(combinations(range(methods), 2))
        if methods <= 10
        else [(0, other) for other in range(1, methods)]
    )
    pairs += [(method, methods) for method in range(methods)] if yardstick else []
    first, second = np.array(pairs).T
    return Family(methods, first, second)


def intervals(
    units_BMS: Floats, of: Family, alpha: float = alpha_of_look(1)
) -> tuple[Floats, Floats]:
    """Differences and half-widths of the simultaneous intervals, for each bench and pair; the
    yardstick has the value 0.
    """
    benches, _, searches = units_BMS.shape
    means = np.concatenate([units_BMS.mean(2), np.zeros((benches, 1))], axis=1)
    variances = np.concatenate([units_BMS.var(2, ddof=1), np.zeros((benches, 1))], axis=1)
    counts = np.array([searches] * of.methods + [1])
    errors = pair_errors(variances, counts, of.first, of.second)
    freedom: Floats = np.nan_to_num(errors.freedom, nan=1.0)
    quantiles = np.asarray(-special.stdtrit(freedom, alpha / 2 / of.comparisons), dtype=np.float64)
    return means[:, of.first] - means[:, of.second], quantiles * np.sqrt(errors.variance)


def check_with_compare(units_BMS: Floats, of: Family, smallest: float) -> None:
    """Let `compare` validator the first benches, and insist that it says the same."""
    differences, halves = intervals(units_BMS[:CHECKED], of)
    for number, bench in enumerate(units_BMS[:CHECKED]):
        units = {str(method): values for method, values in enumerate([*bench.tolist(), [0.0]])}
        some = range(0, of.comparisons, -(-of.comparisons // 12))
        pairs = [(str(of.first[pair]), str(of.second[pair])) for pair in some]
        judged = compare(units, pairs, comparisons=of.comparisons, smallest=smallest)
        for pair, found in zip(some, judged, strict=True):
            low = abs(differences[number, pair]) - halves[number, pair]
            high = abs(differences[number, pair]) + halves[number, pair]
            assert found.interval.low is not None
            assert found.interval.high is not None
            assert np.allclose([found.interval.low, found.interval.high], [low, high], atol=1e-9)
            assert ("better" in found.verdict) == bool(low > 0)
            assert (found.verdict in ("equivalent", "better, too little to matter")) == bool(
                -smallest < low and high < smallest
            )


# --- Scenarios: units of methods with a true mean of 0, in points ---

Scenario = Callable[[Draw, int, int, int], Floats]
MEASURED = (1.70, 0.64, 0.48, 0.53)
"""Search and seed of normalized_softmax, contrastive, multi_similarity and triplet: Omniglot, 5
trials, 1 reproduction.
"""


def normal(spreads: Callable[[int], Floats]) -> Scenario:
    return lambda draw, benches, methods, searches: (
        draw.normal(size=(benches, methods, searches)) * spreads(methods)[:, None]
    )


def skewed(draw: Draw, benches: int, methods: int, searches: int) -> Floats:
    """Most searches end near the best, a few far below: an exponential tail of 1 point, and seeds
    of 0.3.
    """
    return (
        1
        - draw.exponential(size=(benches, methods, searches))
        + 0.3 * draw.normal(size=(benches, methods, searches))
    )


def on_landscapes(draw: Draw, benches: int, methods: int, searches: int) -> Floats:
    """Methods are recorded landscapes in turn."""
    found = np.empty((benches, methods, searches))
    for method in range(methods):
        experiment = EXPERIMENTS[method % len(EXPERIMENTS)]
        found[:, method] = search_many(draw, experiment, benches * searches).reshape(
            benches, searches
        ) - truth(experiment)
    return found


def _noisy(methods: int, count: int) -> Floats:
    return np.where(np.arange(methods) < count, 3.0, 0.6)


SCENARIOS: dict[str, Scenario] = {
    "equal spreads": normal(lambda methods: np.full(methods, 0.6)),
    "one noisy, five times": normal(lambda methods: _noisy(methods, 1)),
    "half noisy, five times": normal(lambda methods: _noisy(methods, methods // 2)),
    "spreads as measured": normal(lambda methods: np.resize(MEASURED, methods)),
    "skewed luck": skewed,
    "recorded landscapes": on_landscapes,
}

EXPERIMENTS = (
    "cars_ntxent",
    "cars_triplet",
    "cub_fastap_large_batch",
    "cub_ntxent",
    "cub_ntxent_large_batch",
    "cub_triplet",
    "cub_triplet_large_batch",
    "sop_ntxent",
    "sop_triplet",
)
SEED_NOISE = 0.3
"""Standard deviation over training seeds, in points."""


@cache
def line(experiment: str) -> tuple[Floats, Floats, float]:
    """Shares of the range and recorded values in points, and where the defaults lie."""
    from search import (
        RECORDED,
        recorded,
        records,
    )  # needs torch and optuna, which other parts do not

    _, range_ = RECORDED[experiment]
    first = recorded(experiment).defaults(0)
    (default,) = first.values()
    points = records()[experiment]
    shares = np.array([range_.share(point) for point in points])
    return (
        shares,
        100 * np.array(list(points.values())),
        float(np.clip(range_.share(float(default)), 0, 1)),
    )


def search_many(
    draw: Draw, experiment: str, searches: int, quasi_random: bool = True, trials: int = TRIALS
) -> Floats:
    """Test scores of independent searches: the defaults, then points of the range; the best is
    trained once more.
    """
    shares, values, default = line(experiment)
    if quasi_random:
        tried = (_van_der_corput(trials - 1) + draw.random((searches, 1))) % 1
    else:
        tried = draw.random((searches, trials - 1))
    tried = np.concatenate([np.full((searches, 1), default), tried], axis=1)
    best: Floats = np.interp(tried, shares, values).max(axis=1)
    return best + SEED_NOISE * draw.normal(size=searches)


@cache
def truth(experiment: str, quasi_random: bool = True) -> float:
    """The expected test score of such a search."""
    return float(
        search_many(
            generator("truth", experiment, quasi_random), experiment, 400_000, quasi_random
        ).mean()
    )


def _van_der_corput(count: int) -> Floats:
    """The sequence of Halton's in base two."""
    return np.array(
        [sum((number >> bit & 1) / 2 ** (bit + 1) for bit in range(16)) for number in range(count)]
    )


def generator(*names: object) -> Draw:
    return np.random.default_rng(derive(*map(str, names)))


# --- What is counted ---


def false_better(
    scenario: str, methods: int, searches: int, yardstick: bool, benches: int
) -> float:
    """Share of benches of equal methods with at least one pair called better."""
    of = family(methods, yardstick)
    units = SCENARIOS[scenario](
        generator("false", scenario, methods, searches, yardstick), benches, methods, searches
    )
    check_with_compare(units, of, smallest=1.0)
    differences, halves = intervals(units, of)
    return float((np.abs(differences) > halves).any(axis=1).mean())


def false_equivalent(
    scenario: str, methods: int, smallest: float, benches: int, searches: int = SEARCHES
) -> float:
    """Share of benches with a pair said to differ by less than `smallest` where each truly differs
    by just that.
    """
    of = family(methods)
    units = SCENARIOS[scenario](
        generator("equivalent", scenario, methods, smallest), benches, methods, searches
    )
    apart = np.arange(methods + 1) % 2 * smallest  # every second method is higher by that
    units = units + apart[:methods, None] - apart[methods]
    check_with_compare(units, of, smallest)
    differences, halves = intervals(units, of)
    truly = apart[of.first] != apart[of.second]
    return float(((np.abs(differences) + halves < smallest) & truly).any(axis=1).mean())


def false_over_looks(
    scenario: str,
    methods: int,
    alphas: Sequence[float],
    benches: int,
    at: Sequence[int] = (3, 6, 12),
) -> float:
    """Share of benches of equal methods with a pair called better at any look."""
    of = family(methods)
    units = SCENARIOS[scenario](generator("looks", scenario, methods), benches, methods, max(at))
    wrong = np.zeros(benches, dtype=bool)
    for searches, alpha in zip(at, alphas, strict=True):
        differences, halves = intervals(units[:, :, :searches], of, alpha)
        wrong |= (np.abs(differences) > halves).any(axis=1)
    return float(wrong.mean())


def covered(units_BS: Floats, true: float) -> float:
    """Share of studies whose own 95% interval holds the truth."""
    found = [t_interval(row) for row in units_BS.tolist()]
    return float(
        np.mean(
            [
                one.low <= true <= one.high
                for one in found
                if one.low is not None and one.high is not None
            ]
        )
    )


def covered_over_classes(classes: int, benches: int, single: bool) -> float:
    """Share of intervals over redrawn classes that hold the truth; both methods find the same
    classes hard.
    """
    draw = generator("classes", classes, single)
    true_sums, true_counts = _draw_classes(
        generator("truth of classes", single), (400_000,), single
    )
    true = float(true_sums.sum() / true_counts.sum())
    sums, counts = _draw_classes(draw, (benches, classes), single)
    found = [over_classes(s, np.zeros(classes), n) for s, n in zip(sums, counts, strict=True)]
    return float(
        np.mean(
            [
                one.low <= true <= one.high
                for one in found
                if one.low is not None and one.high is not None
            ]
        )
    )


def _draw_classes(draw: Draw, shape: tuple[int, ...], single: bool) -> tuple[Floats, Floats]:
    """Sums over the queries of each class, of a method's score or of the difference of two, and
    numbers of queries.
    """
    counts = np.asarray(5.0 + draw.geometric(0.05, size=shape), dtype=np.float64)
    ease = draw.normal(size=shape) - 0.3 * np.log(counts / 20)
    first, second = (
        special.expit(ease + shift + 0.4 * draw.normal(size=shape)) for shift in (0.1, 0.0)
    )
    noise = 0.3 * np.sqrt(counts) * draw.normal(size=shape)
    return (counts * first if single else counts * (first - second)) + noise, counts


def found_in_80_percent(units_BMS: Floats, of: Family, pair: int) -> float:
    """The true difference that 80% of benches call better: half-width minus luck, at its 80%
    quantile.
    """
    differences, halves = intervals(units_BMS, of)
    return float(np.quantile(halves[:, pair] - differences[:, pair], 0.8))


def simulated_power(
    n: int, difference: float, spreads: Floats, fixed: bool, comparisons: int, benches: int
) -> float:
    """Share of benches in which the first method is called better than the second, or than a fixed
    value.
    """
    methods, found, done = len(spreads), 0, 0
    draw = generator("planning", n, difference, *spreads, fixed, comparisons)
    while done < benches:
        part = min(benches - done, max(1, 4_000_000 // (methods * n)))
        units = draw.normal(size=(part, methods, n)) * spreads[:, None]
        second = methods if fixed else 1
        variances = np.concatenate([units.var(2, ddof=1), np.zeros((part, 1))], axis=1)
        errors = pair_errors(
            variances, np.array([n] * methods + [1]), np.array([0]), np.array([second])
        )
        seen = difference + units[:, 0].mean(1) - (0.0 if fixed else units[:, 1].mean(1))
        half = -special.stdtrit(errors.freedom[:, 0], alpha_of_look(1) / 2 / comparisons) * np.sqrt(
            errors.variance[:, 0]
        )
        found += int((seen > half).sum())
        done += part
    return found / benches


# --- Tables ---


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n| {' | '.join('---' for _ in columns)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def share(value: float) -> str:
    return f"{value:.1%}"


def show_false(benches: int) -> None:
    for searches in (SEARCHES, 3, 8, 2):
        for yardstick in (True, False):
            table(
                f'False "better" among equal methods, {searches} searches,'
                f" {'with' if yardstick else 'without'} yardstick",
                ["scenario", *(f"{methods} methods" for methods in SIZES)],
                (
                    [
                        name,
                        *(
                            share(false_better(name, methods, searches, yardstick, benches))
                            for methods in SIZES
                        ),
                    ]
                    for name in SCENARIOS
                ),
            )


def show_equivalent(benches: int) -> None:
    for smallest in (3.0, 100.0):
        table(
            f'False "equivalent" at a true difference of the declared {smallest:g} points,'
            f" {SEARCHES} searches",
            ["scenario", *(f"{methods} methods" for methods in SIZES)],
            (
                [name, *(share(false_equivalent(name, m, smallest, benches)) for m in SIZES)]
                for name in SCENARIOS
            ),
        )


def show_looks(benches: int) -> None:
    spending = [alpha_of_look(look) for look in (1, 2, 3)]
    table(
        'False "better" at any of three looks, after 3, 6 and 12 searches',
        [
            "scenario",
            *(
                f"{methods} methods, {how}"
                for methods in SIZES[:3]
                for how in ("naive", "spending")
            ),
        ],
        (
            [
                name,
                *(
                    share(false_over_looks(name, m, alphas, benches))
                    for m in SIZES[:3]
                    for alphas in ([0.05] * 3, spending)
                ),
            ]
            for name in SCENARIOS
        ),
    )


def show_coverage(benches: int) -> None:
    table(
        "Coverage of the interval of one method, Gaussian searches",
        ["searches", "coverage"],
        (
            [
                str(searches),
                share(
                    covered(generator("coverage", searches).normal(size=(benches, searches)), 0.0)
                ),
            ]
            for searches in (2, 3, 4, 8)
        ),
    )


def show_classes(benches: int) -> None:
    table(
        "Coverage of the interval over test classes",
        ["classes", "difference of two methods", "score of one"],
        (
            [
                str(classes),
                *(
                    share(covered_over_classes(classes, benches, single))
                    for single in (False, True)
                ),
            ]
            for classes in (10, 16, 50, 200)
        ),
    )


def show_landscapes(benches: int) -> None:
    def row(experiment: str, quasi_random: bool) -> list[str]:
        draw = generator("landscapes", experiment, quasi_random)
        units = search_many(draw, experiment, benches * SEARCHES, quasi_random).reshape(
            benches, SEARCHES
        )
        middle = units - truth(experiment, quasi_random)
        kind = "quasi-random" if quasi_random else "random"
        skew = float((middle**3).mean() / (middle**2).mean() ** 1.5)
        values = [
            f"{units.mean():.2f}",
            f"{units.std():.2f}",
            f"{skew:+.1f}",
            share(covered(units, truth(experiment, quasi_random))),
        ]
        return [experiment, kind, *values]

    table(
        f"Coverage of the interval of one method on recorded landscapes, {SEARCHES} searches of"
        f" {TRIALS} trials",
        ["landscape", "trials", "mean", "spread", "skewness", "coverage"],
        (row(experiment, kind) for experiment in EXPERIMENTS for kind in (True, False)),
    )


def show_power(benches: int) -> None:
    rows = []
    for methods in (4, 10):
        of = family(methods)
        pairs = list(zip(of.first.tolist(), of.second.tolist(), strict=True))
        for name, wanted in (
            ("quiet pair", (2, 3)),
            ("noisy pair", (0, 1)),
            ("quiet and fixed", (2, methods)),
        ):
            row = [str(methods), name]
            for searches in (3, 4, 8, 16):
                units = SCENARIOS["spreads as measured"](
                    generator("power", methods, searches), 10 * benches, methods, searches
                )
                row.append(f"{found_in_80_percent(units, of, pairs.index(wanted)):.2f}")
            rows.append(row)
    names = "quiet 0.48 and 0.53, noisy 1.70 and 0.64"
    table(
        f"Difference found 80% of the time, in points; spreads as measured ({names})",
        ["methods", "pair", *(f"{searches} searches" for searches in (3, 4, 8, 16))],
        rows,
    )


FAMILIES = ((2, 1), (3, 6), (4, 10), (10, 55), (30, 59))
"""Methods and the pairs that are declared for them."""
PLANS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (1.0, (0.45, 0.45)),
    (1.0, (0.6, 0.6)),
    (1.0, (1.0, 1.0)),
    (1.0, (0.3, 1.5)),
    (2.0, (1.7, 0.5)),
    (5.0, (1.0, 1.0)),
    (0.5, (0.6, 0.6)),
    (1.0, (0.6,)),
    (3.0, (1.7,)),
)
"""Differences, and the spreads of two methods or of one against a fixed value, in points."""


@dataclass(frozen=True)
class Planned:
    """An advised number of searches, and how often so many, and one less, find the difference."""

    searches: int
    power: float
    one_less: float


def plan(
    difference: float, deviations: Sequence[float], methods: int, comparisons: int, benches: int
) -> Planned:
    """Advise and simulate; the other methods of the family spread as these do on the mean."""
    advised = searches_to_see(difference, deviations, comparisons, methods)
    assert advised is not None
    others = math.sqrt(sum(value**2 for value in deviations) / len(deviations))
    spreads = np.array([*deviations, *[others] * (methods - len(deviations))])
    fixed = len(deviations) == 1
    power, one_less = (
        simulated_power(n, difference, spreads, fixed, comparisons, benches) if n > 1 else 0.0
        for n in (advised, advised - 1)
    )
    return Planned(advised, power, one_less)


def show_planning(benches: int) -> None:
    columns = [
        "difference",
        "spreads",
        *(f"{methods} methods, {m} pairs" for methods, m in FAMILIES),
    ]
    rows = []
    for difference, deviations in PLANS:
        cells = [plan(difference, deviations, methods, m, 10 * benches) for methods, m in FAMILIES]
        against = " and fixed" if len(deviations) == 1 else ""
        name = " and ".join(f"{value:g}" for value in deviations) + against
        rows.append(
            [
                f"{difference:g}",
                name,
                *(f"{c.searches}: {c.power:.1%}, {c.one_less:.1%}" for c in cells),
            ]
        )
    table(
        "Searches advised for 80%, with the simulated power of so many and of one less",
        columns,
        rows,
    )
    rows = []
    for spread in (0.45, 0.6, 1.0):
        rows.append(
            [
                f"{spread:g}",
                *(_equivalence(spread, methods, m, benches) for methods, m in FAMILIES[:4]),
            ]
        )
    table(
        'Searches for "equivalent" within 1 point 80% of the time, of methods truly equal',
        ["spread", *columns[2:6]],
        rows,
    )


def _equivalence(spread: float, methods: int, comparisons: int, benches: int) -> str:
    """The fewest searches with which at least 80% of pairs of equal methods are called equivalent
    within a point.
    """
    for n in range(2, 200):
        units = (
            generator("equivalence", spread, methods, n).normal(size=(benches, methods, n)) * spread
        )
        errors = pair_errors(
            units.var(2, ddof=1), np.array([n] * methods), np.array([0]), np.array([1])
        )
        half = -special.stdtrit(errors.freedom[:, 0], alpha_of_look(1) / 2 / comparisons) * np.sqrt(
            errors.variance[:, 0]
        )
        if np.mean(np.abs(units[:, 0].mean(1) - units[:, 1].mean(1)) + half < 1.0) >= 0.8:
            return str(n)
    return "200 or more"


# --- Real searches ---


def read_pool(path: Path) -> dict[str, list[float]]:
    """Return the test MAP@R of each search of each searched method, single models."""
    if path.is_file():
        return dict(json.loads(path.read_text()))
    found = [record for record in study_records(Store(path)) if record.searched and record.complete]
    return {record.method: record.units("separated", "map_at_r") for record in found}


def show_pool(pool: Mapping[str, Sequence[float]], benches: int, searches: int = SEARCHES) -> None:
    """Twins, spread, coverage and power of a pool of real searches; scores are shares, and shown in
    points.
    """
    scores = {method: 100 * np.array(values, dtype=float) for method, values in pool.items()}
    for method, values in scores.items():
        if len(values) < 2 * searches:
            raise SystemExit(
                f"{method}: twins of {searches} searches need {2 * searches} of them, got"
                f" {len(values)}"
            )
    table(
        f"Real twins: {searches} searches each, {benches} resampled benches",
        [
            "method",
            "searches",
            "mean",
            "spread",
            "two searches differ by",
            "twins beside others",
            "four twins",
            "coverage",
        ],
        (_of_pool(scores, method, benches, searches) for method in scores),
    )
    rates = [_twins(scores, method, benches, searches) for method in scores]
    print(
        f'\nTwins called "better" beside two other methods: {np.mean(rates):.1%} on the mean,'
        f" {max(rates):.1%} at most."
    )
    alike = aa_difference([deviation(values.tolist()) for values in scores.values()])
    print(f"Two independent searches of one method differ by about {alike:.2f} points.")
    table(
        f"Difference found 80% of the time, in points, {searches} searches",
        ["pair", "4 methods", "10 methods"],
        (
            [
                f"{a}, {b}",
                *(
                    f"{_found_in_pool(scores, (a, b), methods, benches, searches):.2f}"
                    for methods in (4, 10)
                ),
            ]
            for a, b in combinations(scores, 2)
        ),
    )


def _of_pool(scores: Mapping[str, Floats], method: str, benches: int, searches: int) -> list[str]:
    values = scores[method]
    drawn = generator("coverage of pool", method).choice(values, size=(benches, searches))
    spread = deviation(values.tolist())
    four = (
        share(_four_twins(values, method, benches, searches)) if len(values) >= 4 * searches else ""
    )
    rate = share(_twins(scores, method, benches, searches))
    coverage = share(covered(drawn, float(values.mean())))
    return [
        method,
        str(len(values)),
        f"{values.mean():.2f}",
        f"{spread:.2f}",
        f"{math.sqrt(2) * spread:.2f}",
        rate,
        four,
        coverage,
    ]


def _twins(scores: Mapping[str, Floats], method: str, benches: int, searches: int) -> float:
    """Share of benches of four methods, twins first, in which one twin is called better than the
    other.
    """
    draw = generator("twins", method)
    others = [name for name in scores if name != method] or [method]
    units = np.empty((benches, 4, searches))
    for number in range(benches):
        units[number, :2] = draw.permutation(scores[method])[: 2 * searches].reshape(2, searches)
        beside = draw.choice(others, size=2, replace=len(others) < 2)
        units[number, 2:] = [
            draw.choice(scores[name], size=searches, replace=False) for name in beside
        ]
    differences, halves = intervals(units, family(4))
    return float((np.abs(differences[:, 0]) > halves[:, 0]).mean())


def _four_twins(values: Floats, method: str, benches: int, searches: int) -> float:
    """Share of benches of four twins in which any is called better than another."""
    draw = generator("four twins", method)
    units = np.stack(
        [draw.permutation(values)[: 4 * searches].reshape(4, searches) for _ in range(benches)]
    )
    differences, halves = intervals(units, family(4, yardstick=False))
    return float((np.abs(differences) > halves).any(axis=1).mean())


def _found_in_pool(
    scores: Mapping[str, Floats], pair: tuple[str, str], methods: int, benches: int, searches: int
) -> float:
    """As `found_in_80_percent`, with searches drawn from the pool around their means."""
    draw = generator("power of pool", *pair, methods)
    others = [name for name in scores if name not in pair] or list(pair)
    names = [*pair, *np.resize(others, methods - 2)]
    centred = {name: values - values.mean() for name, values in scores.items()}
    units = np.stack(
        [draw.choice(centred[name], size=(10 * benches, searches)) for name in names], axis=1
    )
    return found_in_80_percent(units, family(methods), pair=0)


SHOWN: dict[str, Callable[[int], None]] = {
    "false": show_false,
    "equivalent": show_equivalent,
    "looks": show_looks,
    "coverage": show_coverage,
    "classes": show_classes,
    "landscapes": show_landscapes,
    "power": show_power,
    "planning": show_planning,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benches", type=int, default=2000, help="benches of each row")
    parser.add_argument(
        "--only", default=",".join(SHOWN), help=f"parts, separated by commas: {', '.join(SHOWN)}"
    )
    parser.add_argument(
        "--pool", type=Path, help="JSON file {method: [test scores of searches]}, or a store"
    )
    asked = parser.parse_args()
    if asked.pool:
        show_pool(read_pool(asked.pool), asked.benches)
        return
    unknown = [part for part in asked.only.split(",") if part not in SHOWN]
    if unknown:
        parser.error(
            f"--only {asked.only}: no part is called {unknown[0]}; there are {', '.join(SHOWN)}"
        )
    start = time.perf_counter()
    for part in asked.only.split(","):
        SHOWN[part](asked.benches)
    print(f"\n{time.perf_counter() - start:.0f} seconds, {asked.benches} benches a row")


if __name__ == "__main__":
    main()
