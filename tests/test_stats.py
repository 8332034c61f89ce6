"""Intervals, differences, verdicts, planning and components: against scipy, against loops, and on
simulations.
"""

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.stats import (
    MOST,
    Difference,
    Interval,
    aa_difference,
    alpha_of_look,
    autocorrelation,
    class_error,
    compare,
    components,
    deviation,
    over_classes,
    planning,
    ranks,
    relative_gain,
    searches_to_see,
    spread,
    t_interval,
    verdict_of,
    with_limits,
)

few_examples = settings(max_examples=40, deadline=None)
fewer_examples = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**31)
METHODS = ("a", "b", "c", "d", "e")
FIRST_LOOK = 0.04

Scores = dict[str, list[float]]


def draw_values(seed: int, count: int | None = None) -> list[float]:
    draw = random.Random(seed)
    count = draw.randint(2, 12) if count is None else count
    return [draw.gauss(draw.uniform(-1, 1), 0.1) for _ in range(count)]


# --- The interval ---


@given(seed=seeds, confidence=st.sampled_from([0.8, 0.95, 0.99]))
@few_examples
def test_interval_is_that_of_scipy(seed: int, confidence: float) -> None:
    values = draw_values(seed)
    low, high = scipy_stats.t.interval(
        confidence, len(values) - 1, loc=np.mean(values), scale=scipy_stats.sem(values)
    )
    found = t_interval(values, confidence)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.n == len(values)


def test_interval_has_the_values_of_a_t_table() -> None:
    """t_{0.975, 9} = 2.262; values 1 .. 10: mean 5.5, standard deviation 3.0277, so +- 2.1659."""
    found = t_interval([float(value) for value in range(1, 11)])
    assert found.mean == 5.5
    assert found.half == pytest.approx(2.262157 * 3.027650 / math.sqrt(10), abs=1e-5)
    assert found.low == pytest.approx(5.5 - 2.16585, abs=1e-4)


def test_one_value_has_a_mean_and_no_interval() -> None:
    found = t_interval([0.4])
    assert (found.mean, found.low, found.high, found.half, found.n) == (0.4, None, None, None, 1)


def test_values_that_do_not_vary_have_an_interval_of_no_width() -> None:
    found = t_interval([0.1, 0.1, 0.1])
    assert found.half == pytest.approx(0, abs=1e-15)
    assert found.low is not None


def test_no_value_at_all_raises() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        t_interval([])


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for row in draw.normal(3.0, 2.0, size=(1000, 5)):
        found = t_interval(row.tolist())
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 3.0 <= found.high
    assert 930 <= covered <= 970


# --- Ranks ---


def test_ranks_are_means_over_reproductions_and_one_is_best() -> None:
    assert ranks({"a": [0.9, 0.8], "b": [0.5, 0.9], "c": [0.1, 0.1]}) == {
        "a": 1.5,
        "b": 1.5,
        "c": 3.0,
    }


def test_ties_share_their_mean_rank() -> None:
    assert ranks({"a": [0.5], "b": [0.5], "c": [0.9], "d": [0.1]}) == {
        "a": 2.5,
        "b": 2.5,
        "c": 1.0,
        "d": 4.0,
    }


def test_a_single_value_stands_for_every_reproduction_in_the_ranks() -> None:
    assert ranks({"a": [0.9, 0.1, 0.1], "baseline": [0.5]}) == pytest.approx(
        {"a": 5 / 3, "baseline": 4 / 3}
    )


# --- Differences ---


def ends(interval: Interval) -> list[float]:
    assert interval.low is not None
    assert interval.high is not None
    return [interval.low, interval.mean, interval.high]


def draw_bench(seed: int, methods: int = 5, most: int = 6, fewest: int = 3) -> Scores:
    """Methods with means, spreads and numbers of searches of their own, in shares."""
    draw = random.Random(seed)
    names = [chr(ord("a") + number) for number in range(methods)]
    spreads = {name: draw.choice([0.001, 0.005, 0.02]) for name in names}
    counts = {name: draw.randint(fewest, most) for name in names}
    middle = {name: draw.uniform(0.3, 0.35) for name in names}
    return {
        name: [draw.gauss(middle[name], spreads[name]) for _ in range(counts[name])]
        for name in names
    }


def all_pairs(units: Scores) -> list[tuple[str, str]]:
    return list(itertools.combinations(units, 2))


def by_pair(found: list[Difference]) -> dict[frozenset[str], Difference]:
    return {frozenset((one.first, one.second)): one for one in found}


def naive_variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def naive_errors(units: Scores, first: str, second: str) -> tuple[float, float]:
    """V and nu, one method at a time: the formulas of docs/statistics.md."""
    family = {name: values for name, values in units.items() if len(values) > 1}
    both = [family[name] for name in (first, second) if name in family]
    mean = sum(naive_variance(values) for values in family.values()) / len(family)
    own = len(family) <= 3 or min(len(values) for values in both) == 2
    variance = squares = 0.0
    for values in both:
        n, s2 = len(values), naive_variance(values)
        v = s2 if own else (mean + (n - 1) * s2) / n
        variance += v / n
        squares += (v / n) ** 2 / (n - 1 if own else n)
    if min(len(values) for values in both) == 2:
        return variance, 1.0
    nu = variance**2 / squares
    return variance, nu if own else min(nu, sum(len(values) - 1 for values in family.values()))


@given(
    seed=seeds,
    methods=st.integers(2, 7),
    fewest=st.sampled_from([1, 2, 3]),
    declared=st.integers(21, 40),
)
@fewer_examples
def test_every_interval_is_that_of_its_formula(
    seed: int, methods: int, fewest: int, declared: int
) -> None:
    units = draw_bench(seed, methods, fewest=fewest)
    draw = random.Random(seed)
    looks = {frozenset(pair): draw.randint(1, 3) for pair in all_pairs(units)}
    for found in compare(units, all_pairs(units), comparisons=declared, looks=list(looks.values())):
        first, second = units[found.first], units[found.second]
        difference = sum(first) / len(first) - sum(second) / len(second)
        assert found.interval.mean == pytest.approx(difference, abs=1e-11)
        assert difference >= 0
        if len(first) == len(second) == 1:
            assert (found.interval.low, found.error, found.freedom, found.needed) == (
                None,
                None,
                None,
                None,
            )
            assert found.verdict == "undecided"
            continue
        variance, nu = naive_errors(units, found.first, found.second)
        look = looks[frozenset((found.first, found.second))]
        alpha = [0.04, 0.005, 0.0025][look - 1]
        half = float(scipy_stats.t.isf(alpha / 2 / declared, nu)) * math.sqrt(variance)
        assert ends(found.interval) == pytest.approx(
            [difference - half, difference, difference + half], rel=1e-6
        )
        assert (found.error, found.freedom) == pytest.approx((math.sqrt(variance), nu), rel=1e-6)
        assert (found.look, found.comparisons) == (look, declared)
        assert found.interval.n == min(len(values) for values in (first, second) if len(values) > 1)


@given(seed=seeds)
@fewer_examples
def test_a_single_pair_is_compared_as_scipy_does(seed: int) -> None:
    units = draw_bench(seed, methods=2)
    found = compare(units, [("a", "b")])[0]
    test = scipy_stats.ttest_ind(units[found.first], units[found.second], equal_var=False)
    low, high = test.confidence_interval(1 - FIRST_LOOK)
    assert [found.interval.low, found.interval.high] == pytest.approx([low, high], rel=1e-6)
    assert found.freedom == pytest.approx(test.df, rel=1e-6)
    assert ("better" in found.verdict) == (test.pvalue < FIRST_LOOK)


def test_a_fixed_value_is_compared_as_a_constant() -> None:
    values = [0.61, 0.63, 0.62, 0.6, 0.64]
    found = compare({"baseline": [0.4], "a": values}, [("baseline", "a")])[0]
    low, high = scipy_stats.ttest_1samp(values, 0.4).confidence_interval(1 - FIRST_LOOK)
    assert (found.first, found.verdict, found.freedom) == ("a", "better", 4)
    assert ends(found.interval) == pytest.approx([low - 0.4, 0.22, high - 0.4])


def test_shrinking_draws_a_quiet_method_up_and_a_noisy_one_down() -> None:
    quiet, noisy = [0.5, 0.501, 0.499, 0.5], [0.4, 0.6, 0.45, 0.55]
    units = {
        "a": quiet,
        "b": [0.3 + value for value in quiet],
        "c": noisy,
        "d": [0.3 + value for value in noisy],
    }
    found = by_pair(compare(units, all_pairs(units)))
    alone = by_pair(compare({name: units[name] for name in "ab"}, [("a", "b")]))
    assert (found[frozenset("ab")].error or 0) > (alone[frozenset("ab")].error or 0)
    assert (found[frozenset("cd")].error or 0) < math.sqrt(2 * deviation(noisy) ** 2 / 4)


# --- Laws of a comparison ---


@given(seed=seeds, methods=st.sampled_from([2, 3, 4, 6]))
@fewer_examples
def test_order_of_methods_pairs_and_searches_does_not_matter(seed: int, methods: int) -> None:
    units = draw_bench(seed, methods)
    turned = {name: units[name][::-1] for name in reversed(units)}
    found = by_pair(compare(units, all_pairs(units)))
    other = by_pair(compare(turned, [(b, a) for a, b in reversed(all_pairs(units))]))
    assert set(found) == set(other)
    for pair, one in found.items():
        assert (other[pair].first, other[pair].verdict, other[pair].needed) == (
            one.first,
            one.verdict,
            one.needed,
        )
        assert ends(other[pair].interval) == pytest.approx(ends(one.interval), abs=1e-11)


@given(seed=seeds, methods=st.sampled_from([2, 4, 6]))
@fewer_examples
def test_unit_and_zero_of_the_scores_do_not_matter(seed: int, methods: int) -> None:
    units = draw_bench(seed, methods)
    changed = {name: [100 * value + 7 for value in values] for name, values in units.items()}
    found = compare(units, all_pairs(units), smallest=0.01)
    other = compare(changed, all_pairs(units), smallest=1.0)
    for before, after in zip(found, other, strict=True):
        assert (after.first, after.verdict) == (before.first, before.verdict)
        assert ends(after.interval) == pytest.approx(
            [100 * value for value in ends(before.interval)], abs=1e-6
        )
        assert after.needed == pytest.approx(before.needed, abs=1)


@given(seed=seeds, methods=st.sampled_from([2, 3, 4]))
@fewer_examples
def test_a_fixed_method_beside_changes_nothing_and_names_do_not_matter(
    seed: int, methods: int
) -> None:
    units = draw_bench(seed, methods)
    renamed = {f"method {name}": values for name, values in units.items()} | {"fixed": [0.9]}
    found = compare(units, all_pairs(units))
    other = compare(renamed, [(f"method {a}", f"method {b}") for a, b in all_pairs(units)])
    assert [one.interval for one in found] == [one.interval for one in other]
    assert [f"method {one.first}" for one in found] == [one.first for one in other]


@given(seed=seeds, methods=st.sampled_from([2, 4]))
@fewer_examples
def test_more_comparisons_or_looks_never_narrow_an_interval(seed: int, methods: int) -> None:
    units = draw_bench(seed, methods)
    pairs = all_pairs(units)[:1]
    widths = [
        compare(units, pairs, comparisons=m)[0].interval.half or 0 for m in (1, 2, 6, 55, 500)
    ]
    by_look = [compare(units, pairs, looks=[look])[0].interval.half or 0 for look in (1, 2, 3, 4)]
    assert widths == sorted(set(widths))
    assert by_look == sorted(set(by_look))


def test_a_shorter_view_keeps_the_intervals_of_the_family() -> None:
    units = draw_bench(3, 5)
    whole = by_pair(compare(units, all_pairs(units)))
    part = compare(units, [("b", "d")], comparisons=10)[0]
    assert part == whole[frozenset("bd")]


@pytest.mark.parametrize("methods", [2, 4])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_twin_with_the_same_scores_is_never_better(methods: int, count: int) -> None:
    units = draw_bench(4, methods, most=count, fewest=count)
    units["b"] = units["a"][::-1]
    found = by_pair(compare(units, all_pairs(units)))[frozenset("ab")]
    assert found.interval.mean == 0
    assert found.verdict in ("equivalent", "undecided")


# --- Words ---


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.02, "better"),
        (0.011, 0.02, "better"),
        (0.001, 0.009, "better, too little to matter"),
        (0.001, 0.01, "better"),
        (-0.009, 0.009, "equivalent"),
        (0.0, 0.009, "equivalent"),
        (0.0, 0.0, "equivalent"),
        (-0.01, 0.009, "undecided"),
        (-0.001, 0.01, "undecided"),
        (-0.05, 0.2, "undecided"),
    ],
)
def test_the_ends_of_the_interval_decide_the_word(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Interval((low + high) / 2, low, high, 4), smallest=0.01) == verdict


@pytest.mark.parametrize(("low", "high"), [(0.02, None), (None, 0.001), (None, None)])
def test_an_interval_without_both_ends_decides_nothing(
    low: float | None, high: float | None
) -> None:
    assert verdict_of(Interval(0.02, low, high, 4), smallest=0.01) == "undecided"


def test_the_looks_share_five_percent() -> None:
    spent = [alpha_of_look(look) for look in range(1, 60)]
    assert spent[:4] == [0.04, 0.005, 0.0025, 0.00125]
    assert sum(spent) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="from 1, got 0"):
        alpha_of_look(0)


@pytest.mark.parametrize("look", [50, 2000, 10**30])
def test_a_look_of_any_number_has_a_level_to_compute_with(look: int) -> None:
    """A forged announcement may hold any number."""
    assert 0 < alpha_of_look(look) <= 0.01 / 2**49
    units = {"a": [0.52, 0.54, 0.53, 0.53], "b": [0.41, 0.42, 0.40, 0.41]}
    (found,) = compare(units, [("a", "b")], looks=[look])
    assert found.verdict == "undecided"


# --- Degenerate input ---


def test_values_that_never_vary_settle_nothing_but_that_they_are_the_same() -> None:
    """Scores of a few queries are whole numbers of hits: three equal ones do not say that a fourth
    will be.
    """
    found = compare({"a": [0.5] * 3, "b": [0.1] * 3, "c": [0.5] * 3}, [("b", "a"), ("a", "c")])
    assert [one.verdict for one in found] == ["undecided", "equivalent"]
    assert found[0].interval == Interval(0.4, None, None, 3)
    assert [(one.error, one.freedom, one.needed) for one in found] == [(0.0, None, None)] * 2


def test_one_unit_each_gives_a_difference_and_no_more() -> None:
    found = compare({"one": [0.4], "other": [0.6]}, [("one", "other")])[0]
    assert found.first == "other"
    assert found.interval == Interval(0.2, None, None, 1)
    assert (found.verdict, found.error, found.freedom, found.needed) == (
        "undecided",
        None,
        None,
        None,
    )


def test_rounding_alone_is_never_called_a_difference() -> None:
    """The same scores, summed over folds in another order: they differ in the last bit and always
    to the same side.
    """
    folds = [0.1, 0.2, 0.3]
    forwards, backwards = sum(folds), sum(reversed(folds))
    assert forwards != backwards
    found = compare({"a": [forwards] * 10, "b": [backwards] * 10}, [("a", "b")])[0]
    assert (found.verdict, ends(found.interval)) == ("equivalent", [0, 0, 0])


def test_two_searches_have_one_degree_of_freedom_whatever_the_family() -> None:
    for methods in (2, 6):
        units = draw_bench(5, methods) | {"a": [0.3, 0.31]}
        found = by_pair(compare(units, all_pairs(units)))
        assert found[frozenset("ab")].freedom == 1
    assert (found[frozenset("bc")].freedom or 0) > 1


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"a": [0.1, math.nan], "b": [0.1]}, "a has a value that is no number"),
        ({"a": [0.1, math.inf], "b": [0.1]}, "a has a value that is no number"),
        ({"a": [0.1], "b": []}, "b has no values"),
        ({"a": [0.1], "c": [0.1]}, "got a and b"),
    ],
)
def test_units_that_cannot_be_compared_raise(units: Scores, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(units, [("a", "b")])


def test_declarations_that_cannot_be_raise() -> None:
    units: Scores = {"a": [0.1, 0.2], "b": [0.1, 0.3], "c": [0.1]}
    with pytest.raises(ValueError, match=r"2 pairs .* 1 were declared"):
        compare(units, [("a", "b"), ("a", "c")], comparisons=1)
    with pytest.raises(ValueError, match="above 0, got 0"):
        compare(units, [("a", "b")], smallest=0)
    with pytest.raises(ValueError, match=r"counted from 1; got \[0\]"):
        compare(units, [("a", "b")], looks=[0])
    with pytest.raises(ValueError, match=r"each of 1 pairs has a look"):
        compare(units, [("a", "b")], looks=[1, 1])
    with pytest.raises(ValueError, match="got a and a"):
        compare(units, [("a", "a")])
    assert compare(units, []) == []


# --- Planning ---


def loop_power(
    n: int, difference: float, deviations: Sequence[float], comparisons: int, methods: int
) -> float:
    """How often a simulated bench calls the first method better; `compare`'s formulas in loops, raw
    scores.
    """
    draw, found, times = np.random.default_rng(6), 0, 400
    others = math.sqrt(sum(value**2 for value in deviations) / len(deviations))
    for _ in range(times):
        spreads = [*deviations, *[others] * (methods - len(deviations))]
        units = {
            str(number): draw.normal(0, value, n).tolist() for number, value in enumerate(spreads)
        }
        units["0"] = [value + difference for value in units["0"]]
        variance, nu = naive_errors(units, "0", "1")
        seen = float(np.mean(units["0"]) - np.mean(units["1"]))
        found += seen > float(scipy_stats.t.isf(FIRST_LOOK / 2 / comparisons, nu)) * math.sqrt(
            variance
        )
    return found / times


@pytest.mark.parametrize(
    ("n", "difference", "deviations", "comparisons", "methods"),
    [(5, 1.0, (0.5, 0.5), 1, 2), (4, 2.0, (0.5, 1.0), 6, 4), (3, 1.5, (0.3, 0.3), 15, 6)],
)
def test_power_is_how_often_a_simulated_bench_finds_the_difference(
    n: int, difference: float, deviations: tuple[float, float], comparisons: int, methods: int
) -> None:
    others = math.sqrt((deviations[0] ** 2 + deviations[1] ** 2) / 2)
    expected = planning.power(n, difference, deviations, comparisons, methods, FIRST_LOOK, others)
    assert loop_power(n, difference, deviations, comparisons, methods) == pytest.approx(
        expected, abs=0.075
    )  # 3 errors of 400


@pytest.mark.parametrize("searches", [3, 5, 12])
def test_power_against_a_fixed_value_is_that_of_the_noncentral_t(searches: int) -> None:
    critical = scipy_stats.t.isf(FIRST_LOOK / 2 / 3, searches - 1)
    for difference in (0.5, 1.0, 2.0, 4.0):
        expected = float(
            scipy_stats.nct.sf(critical, searches - 1, difference * math.sqrt(searches))
        )
        found = planning.power(searches, difference, (1.0,), 3, 1, FIRST_LOOK, 1.0)
        assert found == pytest.approx(expected, abs=0.004)


@pytest.mark.parametrize(("comparisons", "methods"), [(1, 2), (6, 3), (10, 4), (55, 10), (59, 30)])
def test_the_advised_number_never_rises_with_the_difference(comparisons: int, methods: int) -> None:
    """Up to a hundred deviations, far beyond where scipy's noncentral t has no value."""
    differences = np.geomspace(0.05, 100, 40).tolist()
    for deviations in ((1.0, 0.2), (1.0,)):
        advised = [
            searches_to_see(value, deviations, comparisons, methods) for value in differences
        ]
        numbers = [MOST + 1 if number is None else number for number in advised]
        assert numbers == sorted(numbers, reverse=True)
        assert numbers[0] > 1000
        assert numbers[-1] <= 3


def test_more_noise_and_more_pairs_need_more_searches() -> None:
    by_noise = [
        searches_to_see(0.01, (value, value), 10, 4) or MOST for value in (0.005, 0.01, 0.02, 0.05)
    ]
    by_pairs = [searches_to_see(0.01, (0.01, 0.01), pairs, 4) or MOST for pairs in (1, 3, 10, 91)]
    for counts in (by_noise, by_pairs):
        assert counts == sorted(set(counts))


@pytest.mark.parametrize(("comparisons", "methods"), [(1, 2), (10, 4)])
def test_unit_and_order_of_the_two_do_not_matter_to_what_they_need(
    comparisons: int, methods: int
) -> None:
    found = searches_to_see(0.01, (0.013, 0.004), comparisons, methods)
    assert searches_to_see(1.0, (1.3, 0.4), comparisons, methods) == found
    assert searches_to_see(0.01, (0.004, 0.013), comparisons, methods) == pytest.approx(
        found, abs=1
    )


def test_what_nobody_would_run_is_not_numbered() -> None:
    assert searches_to_see(0.0, (0.01, 0.01), 1) is None
    assert searches_to_see(1e-6, (0.01, 0.01), 1) is None


def test_without_any_spread_two_searches_do() -> None:
    assert searches_to_see(0.1, (0.0, 0.0), 10, 4) == 2
    assert searches_to_see(0.9, (1e-9, 1e-9), 10, 4) == 2
    assert searches_to_see(0.1, (0.0, 0.0), 10, 4, others=0.02) == pytest.approx(3, abs=1)


def test_plans_that_cannot_be_raise() -> None:
    with pytest.raises(ValueError, match="finite values"):
        searches_to_see(math.nan, (1.0, 1.0), 1)
    with pytest.raises(ValueError, match="finite values"):
        searches_to_see(1.0, (1.0, -1.0), 1)
    with pytest.raises(ValueError, match="got 3 deviations"):
        searches_to_see(1.0, (1.0, 1.0, 1.0), 1, 4)


def test_a_difference_advises_from_the_upper_limit_of_its_variance_at_the_next_look() -> None:
    units = {"a": [0.50, 0.52, 0.51, 0.53], "b": [0.40, 0.41, 0.42, 0.41]}
    found = compare(units, [("a", "b")], comparisons=3, smallest=0.02)[0]
    assert found.freedom is not None
    limit = math.sqrt(found.freedom / scipy_stats.chi2.ppf(0.2, found.freedom))
    deviations = [limit * deviation(values) for values in units.values()]
    assert found.needed == searches_to_see(0.02, deviations, 3, 2, alpha_of_look(2))
    farther = {**units, "a": [0.1 + value for value in units["a"]]}
    assert (
        compare(farther, [("a", "b")], comparisons=3, smallest=0.02)[0].needed == found.needed
    )  # not from what was seen


def test_up_to_three_methods_the_advice_has_each_methods_own_variance() -> None:
    units = {"a": [0.5, 0.52, 0.51, 0.53], "b": [0.4, 0.45, 0.5, 0.41], "c": [0.1, 0.2, 0.3, 0.4]}
    found = compare(units, [("a", "b")], comparisons=3, smallest=0.02)[0]
    assert found.freedom is not None
    limit = math.sqrt(found.freedom / scipy_stats.chi2.ppf(0.2, found.freedom))
    own = [limit * deviation(units[name]) for name in "ab"]
    assert found.needed == searches_to_see(
        0.02, own, 3, 3, alpha_of_look(2), others=deviation(units["c"])
    )


# --- Components ---


def test_components_of_a_small_table_by_hand() -> None:
    """Execution 1, 3, 5: s^2 = 4; within: (2 + 2 + 2) / 3 = 2; search^2 = 4 - 2 / 2 = 3."""
    found = components([[0.0, 2.0], [2.0, 4.0], [4.0, 6.0]])
    assert found.seed is not None
    assert found.search is not None
    assert found.together is not None
    assert [
        one.deviation**2 for one in (found.seed, found.search, found.together)
    ] == pytest.approx([2, 3, 4])
    assert [one.freedom for one in (found.seed, found.search, found.together)] == [3, 2, 2]


def test_limits_of_a_deviation_are_those_of_chi_square() -> None:
    """An estimate from three searches is known within factors of 0.52 and 6.3."""
    found = with_limits(2.0, 2)
    assert (found.low / 2, found.high / 2) == pytest.approx((0.5207, 6.2847), abs=1e-3)


def test_one_reproduction_leaves_search_and_seed_together_and_one_search_the_seed() -> None:
    together = components([[0.1], [0.4], [0.2]])
    assert (together.seed, together.search) == (None, None)
    assert together.together == with_limits(deviation([0.1, 0.4, 0.2]), 2)
    alone = components([[0.1, 0.4, 0.2]])
    assert alone.seed == with_limits(deviation([0.1, 0.4, 0.2]), 2)
    assert (alone.search, alone.together) == (None, None)


def test_without_a_spread_of_seeds_the_search_has_the_limits_of_chi_square() -> None:
    found = components([[0.1, 0.1], [0.4, 0.4], [0.2, 0.2]])
    assert found.search is not None
    assert found.together is not None
    assert (found.search.low, found.search.high) == pytest.approx(
        (found.together.low, found.together.high)
    )


def test_a_search_that_adds_nothing_has_a_spread_of_zero() -> None:
    found = components([[0.0, 2.0], [0.1, 1.9], [0.0, 2.0]])
    assert found.search is not None
    assert (found.search.deviation, found.search.low) == (0, 0)


@pytest.mark.parametrize("rows", [[], [[]], [[0.1], []], [[0.1, math.nan]]])
def test_components_of_nothing_raise(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="score"):
        components(rows)


def test_limits_of_components_hold_the_truth() -> None:
    draw = np.random.default_rng(7)
    inside = np.zeros(3)
    for _ in range(400):
        rows = draw.normal(0, 2.0, (5, 1)) + draw.normal(0, 1.0, (5, 3))
        found = components(rows.tolist())
        for number, (one, true) in enumerate(
            [(found.seed, 1.0), (found.search, 2.0), (found.together, math.sqrt(4 + 1 / 3))],
        ):
            assert one is not None
            inside[number] += one.low <= true <= one.high
    assert (inside / 400 >= 0.92).all()


def test_two_searches_of_one_method_differ_by_the_root_of_two_spreads() -> None:
    draw = np.random.default_rng(8)
    apart = draw.normal(0, 0.3, 100_000) - draw.normal(0, 0.3, 100_000)
    assert aa_difference([0.3, 0.3]) == pytest.approx(apart.std(), rel=0.02)
    with pytest.raises(ValueError, match="at least one"):
        aa_difference([])


# --- Test classes ---


def naive_over_classes(
    a: Sequence[float], b: Sequence[float], counts: Sequence[float]
) -> list[float]:
    used = [index for index, count in enumerate(counts) if count]

    def ratio(classes: list[int]) -> float:
        return sum(a[index] - b[index] for index in classes) / sum(
            counts[index] for index in classes
        )

    mean = ratio(used)
    squares = sum((ratio([index for index in used if index != left]) - mean) ** 2 for left in used)
    error = math.sqrt(squares * (len(used) - 1) / len(used))
    half = float(scipy_stats.t.ppf(0.975, len(used) - 1)) * error
    return [mean - half, mean, mean + half]


@given(seed=seeds)
@few_examples
def test_the_interval_over_classes_is_that_of_its_formula(seed: int) -> None:
    draw = np.random.default_rng(seed)
    classes = int(draw.integers(2, 12))
    counts = draw.integers(0, 9, classes).astype(float)
    counts[:2] = 3.0
    a, b = (counts * draw.random(classes) for _ in range(2))
    found = over_classes(a, b, counts)
    assert ends(found) == pytest.approx(naive_over_classes(a.tolist(), b.tolist(), counts.tolist()))
    assert found.n == int((counts > 0).sum())
    error = class_error(a, b, counts)
    assert error is not None
    assert error.deviation * scipy_stats.t.ppf(0.975, found.n - 1) == pytest.approx(found.half)
    assert ends(over_classes(b, a, counts)) == pytest.approx(
        [-value for value in ends(found)[::-1]]
    )


def test_classes_of_equal_size_give_the_interval_of_their_means() -> None:
    a, b = np.array([0.9, 0.2, 0.5, 0.7]), np.array([0.8, 0.3, 0.1, 0.6])
    assert ends(over_classes(6 * a, 6 * b, np.full(4, 6.0))) == pytest.approx(
        ends(t_interval((a - b).tolist()))
    )


def test_one_class_has_no_interval_and_none_raises() -> None:
    assert over_classes(np.array([2.0]), np.array([1.0]), np.array([4.0])) == Interval(
        0.25, None, None, 1
    )
    assert class_error(np.array([2.0]), np.array([1.0]), np.array([4.0])) is None
    with pytest.raises(ValueError, match="no class"):
        over_classes(np.zeros(3), np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="3, 2 and 3"):
        over_classes(np.zeros(3), np.zeros(2), np.ones(3))
    with pytest.raises(ValueError, match="no number"):
        over_classes(np.array([math.nan, 1.0]), np.zeros(2), np.ones(2))


# --- Spread and relative gain ---


@given(seed=seeds)
@few_examples
def test_spread_is_the_pooled_deviation_within_groups(seed: int) -> None:
    draw = random.Random(seed)
    groups = [
        [draw.gauss(mean, 0.1) for _ in range(draw.randint(1, 6))] for mean in (0.1, 0.5, 3.0)
    ] + [[0.0, 0.1]]
    squares = sum(
        (value - math.fsum(group) / len(group)) ** 2 for group in groups for value in group
    )
    assert spread(groups) == pytest.approx(
        math.sqrt(squares / sum(len(group) - 1 for group in groups))
    )
    shifted = [[value + number for value in group] for number, group in enumerate(groups)]
    assert spread(shifted) == pytest.approx(spread(groups))


def test_spread_of_one_group_is_its_deviation_and_of_single_values_nothing() -> None:
    assert spread([[0.1, 0.4, 0.2]]) == pytest.approx(deviation([0.1, 0.4, 0.2]))
    assert spread([[0.1], [0.4]]) is None
    assert spread([]) is None


def fieller(
    first: Sequence[float], second: Sequence[float], quantile: float
) -> tuple[float, float]:
    """All ratios r at which a - r b may be 0, by trying them out."""
    a, b = (float(np.mean(values)) for values in (first, second))
    tried = a / b + np.linspace(-0.5, 0.5, 200_001)
    variance = naive_variance(first) / len(first) + tried**2 * naive_variance(second) / len(second)
    held = tried[np.abs(a - tried * b) <= quantile * np.sqrt(variance)]
    return float(held[0]) - 1, float(held[-1]) - 1


def test_a_relative_gain_is_that_of_two_means_and_near_fiellers_interval() -> None:
    draw = np.random.default_rng(9)
    first, second = draw.normal(0.55, 0.01, 5).tolist(), draw.normal(0.5, 0.008, 4).tolist()
    found = relative_gain(first, second)
    assert found is not None
    ratio = float(np.mean(first) / np.mean(second))
    terms = naive_variance(first) / 5, ratio**2 * naive_variance(second) / 4
    nu = sum(terms) ** 2 / (terms[0] ** 2 / 4 + terms[1] ** 2 / 3)
    quantile = float(scipy_stats.t.ppf(0.975, nu))
    half = quantile * math.sqrt(sum(terms)) / float(np.mean(second))
    assert ends(found) == pytest.approx([ratio - 1 - half, ratio - 1, ratio - 1 + half])
    assert ends(found)[::2] == pytest.approx(fieller(first, second, quantile), abs=0.1 * half)
    assert found.n == 4


def test_a_relative_gain_covers_the_truth() -> None:
    draw = np.random.default_rng(10)
    covered = 0
    for _ in range(1000):
        found = relative_gain(
            draw.normal(0.55, 0.02, 4).tolist(), draw.normal(0.5, 0.01, 4).tolist()
        )
        assert found is not None
        low, _, high = ends(found)
        covered += low <= 0.1 <= high
    assert 930 <= covered <= 980


def test_a_relative_gain_over_a_constant_or_over_nothing() -> None:
    over_one = relative_gain([0.5, 0.6], [0.4])
    assert over_one is not None
    assert ends(over_one) == pytest.approx(ends(t_interval([0.25, 0.5])))
    assert relative_gain([0.5], [0.4]) == Interval(0.25, None, None, 1)
    assert relative_gain([0.5, 0.6], [0.0, 0.4]) is None


# --- Autocorrelation ---


def naive_autocorrelation(values: Sequence[float], lag: int) -> float:
    mean = math.fsum(values) / len(values)
    products = [(values[t] - mean) * (values[t + lag] - mean) for t in range(len(values) - lag)]
    return math.fsum(products) / math.fsum((value - mean) ** 2 for value in values)


@given(seed=seeds, lag=st.integers(1, 4))
@few_examples
def test_autocorrelation_matches_its_equation(seed: int, lag: int) -> None:
    values = draw_values(seed, count=random.Random(seed).randint(6, 30))
    assert autocorrelation(values, lag) == pytest.approx(
        naive_autocorrelation(values, lag), abs=1e-12
    )
    assert -1 <= autocorrelation(values, lag) <= 1


@given(seed=seeds)
@few_examples
def test_unit_and_direction_of_a_curve_do_not_matter_to_its_autocorrelation(seed: int) -> None:
    values = draw_values(seed, count=10)
    expected = autocorrelation(values)
    assert autocorrelation([100 * value + 3 for value in values]) == pytest.approx(
        expected, abs=1e-9
    )
    assert autocorrelation([-value for value in values]) == pytest.approx(expected, abs=1e-12)
    assert autocorrelation(values[::-1]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("strength", [-0.6, 0.0, 0.8])
def test_autocorrelation_finds_what_a_curve_keeps_of_its_last_value(strength: float) -> None:
    noise = np.random.default_rng(0).normal(size=20_000)
    values = [0.0]
    for step in noise:
        values.append(strength * values[-1] + step)
    assert autocorrelation(values) == pytest.approx(strength, abs=0.03)
    assert autocorrelation(values, lag=2) == pytest.approx(strength**2, abs=0.03)


@pytest.mark.parametrize(
    ("values", "lag"), [([], 1), ([0.5], 1), ([0.5, 0.6], 1), ([0.5, 0.6, 0.7], 2)]
)
def test_curves_too_short_have_no_autocorrelation(values: list[float], lag: int) -> None:
    assert math.isnan(autocorrelation(values, lag))


@pytest.mark.parametrize("value", [0.0, 0.1, 0.7])
def test_a_curve_that_never_changes_has_no_autocorrelation(value: float) -> None:
    assert math.isnan(autocorrelation([value] * 7))


def test_a_lag_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        autocorrelation([1.0, 2.0, 3.0], lag=0)
