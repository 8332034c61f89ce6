"""Intervals, corrections and verdicts: against scipy, against loops, and on simulated benches whose truth is known."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.stats import (
    Difference,
    Interval,
    autocorrelation,
    deviation,
    holm,
    paired_differences,
    power,
    ranks,
    relative_gain,
    reproductions_needed,
    reproductions_to_see,
    spread,
    t_interval,
)

few_examples = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
METHODS = ("a", "b", "c", "d", "e")

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
    low, high = scipy_stats.t.interval(confidence, len(values) - 1, loc=np.mean(values), scale=scipy_stats.sem(values))
    found = t_interval(values, confidence)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.n == len(values)


def test_interval_has_the_values_of_a_t_table() -> None:
    """t_{0.975, 9} = 2.262; ten values 1 .. 10: mean 5.5, standard deviation 3.0277, so +- 2.1659."""
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


# --- Holm's correction ---


def naive_holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which are rejected: from the smallest up, each against alpha over the number still standing; stop at the first miss."""
    rejected = [False] * len(p_values)
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        if p_values[index] > alpha / (len(p_values) - step):
            break
        rejected[index] = True
    return rejected


@given(seed=seeds, alpha=st.sampled_from([0.01, 0.05, 0.2]))
@few_examples
def test_holm_rejects_what_the_step_down_procedure_rejects(seed: int, alpha: float) -> None:
    draw = random.Random(seed)
    p_values = [draw.random() ** draw.choice([1, 4]) for _ in range(draw.randint(1, 12))]
    if draw.random() < 0.5:
        p_values += p_values[:2]
    assert [p <= alpha for p in holm(p_values)] == naive_holm(p_values, alpha)


def test_holm_gives_the_textbook_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_never_exceeds_one_nor_falls_below_the_value_itself() -> None:
    p_values = [0.9, 0.5, 0.7, 0.001]
    adjusted = holm(p_values)
    assert max(adjusted) == 1
    assert all(after >= before for before, after in zip(p_values, adjusted, strict=True))


def test_holm_leaves_a_single_comparison_alone() -> None:
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


# --- Ranks ---


def test_ranks_are_means_over_reproductions_and_one_is_best() -> None:
    assert ranks({"a": [0.9, 0.8], "b": [0.5, 0.9], "c": [0.1, 0.1]}) == {"a": 1.5, "b": 1.5, "c": 3.0}


def test_ties_share_their_mean_rank() -> None:
    assert ranks({"a": [0.5], "b": [0.5], "c": [0.9], "d": [0.1]}) == {"a": 2.5, "b": 2.5, "c": 1.0, "d": 4.0}


def test_a_single_value_stands_for_every_reproduction_in_the_ranks() -> None:
    assert ranks({"a": [0.9, 0.1, 0.1], "baseline": [0.5]}) == pytest.approx({"a": 5 / 3, "baseline": 4 / 3})


# --- Paired differences ---


def find(differences: list[Difference], first: str, second: str) -> Difference:
    return next(item for item in differences if (item.first, item.second) == (first, second))


def ends(interval: Interval) -> list[float]:
    assert interval.low is not None
    assert interval.high is not None
    return [interval.low, interval.mean, interval.high]


@given(seed=seeds)
@few_examples
def test_every_pair_is_tested_as_scipy_tests_it_with_holm_over_all(seed: int) -> None:
    scores = {name: draw_values(seed + offset, 6) for offset, name in enumerate(METHODS[:4])}
    found = paired_differences(scores)
    pairs = [(a, b) for i, a in enumerate(METHODS[:4]) for b in METHODS[i + 1 : 4]]
    assert [(item.first, item.second) for item in found] == pairs
    raw = [float(scipy_stats.ttest_rel(scores[a], scores[b]).pvalue) for a, b in pairs]
    assert [item.p for item in found] == pytest.approx(holm(raw), rel=1e-6)
    for item, (a, b) in zip(found, pairs, strict=True):
        differences = np.subtract(scores[a], scores[b])
        assert ends(item.interval) == pytest.approx(ends(t_interval(differences.tolist())), abs=1e-9)
        assert item.effect == pytest.approx(differences.mean() / differences.std(ddof=1), rel=1e-6)


def test_pairing_removes_what_reproductions_have_in_common() -> None:
    """Spread of 0.1 over reproductions, a difference of 0.01 that is there in each."""
    draw = np.random.default_rng(0)
    common = draw.normal(0.5, 0.1, size=10)
    scores = {"a": (common + 0.01 + draw.normal(0, 0.001, 10)).tolist(), "b": common.tolist()}
    assert paired_differences(scores)[0].verdict == "better"
    assert paired_differences({"b": scores["b"], "a": scores["a"]})[0].verdict == "worse"


def test_a_deterministic_baseline_is_compared_as_a_constant() -> None:
    values = [0.61, 0.63, 0.62, 0.6, 0.64]
    found = paired_differences({"a": values, "baseline": [0.4]})[0]
    assert found.interval.mean == pytest.approx(0.22)
    assert found.p == pytest.approx(float(scipy_stats.ttest_1samp(values, 0.4).pvalue))
    assert found.verdict == "better"


def test_two_deterministic_baselines_are_too_few_to_tell() -> None:
    found = paired_differences({"one": [0.4], "other": [0.6]})[0]
    assert (found.p, found.effect, found.verdict) == (None, None, "too few to tell")
    assert found.interval.mean == pytest.approx(-0.2)


def test_a_pair_of_baselines_does_not_cost_the_others_any_power() -> None:
    scores: Scores = {"a": draw_values(1, 8), "one": [0.4]}
    alone = find(paired_differences(scores), "a", "one").p
    with_another = find(paired_differences({**scores, "other": [0.4]}), "a", "one").p
    assert alone is not None
    assert with_another == pytest.approx(min(1.0, 2 * alone))


def test_a_single_reproduction_is_too_few_to_tell() -> None:
    found = paired_differences({"a": [0.9], "b": [0.1], "c": [0.5]})
    assert {item.verdict for item in found} == {"too few to tell"}
    assert {item.p for item in found} == {None}


@pytest.mark.parametrize(("step", "count"), [(0.5, 10), (0.1, 3), (0.3, 10)])
def test_a_difference_that_never_varies_is_certain_and_has_no_effect_size(step: float, count: int) -> None:
    """Also where the mean of equal numbers is not that number in floating point, as with three times 0.1."""
    found = paired_differences({"a": [step] * count, "b": [0.0] * count})[0]
    assert found.verdict == "better"
    assert found.p == pytest.approx(0, abs=1e-12)
    assert found.effect is None


def test_a_difference_that_varies_by_rounding_alone_is_certain_and_has_no_effect_size() -> None:
    lower = [0.41, 0.53, 0.62, 0.77]
    higher = [value + 0.1 for value in lower]
    assert len({a - b for a, b in zip(higher, lower, strict=True)}) > 1
    found = paired_differences({"a": higher, "b": lower})[0]
    assert found.verdict == "better"
    assert found.effect is None


@pytest.mark.parametrize("count", [3, 10])
def test_equal_scores_are_never_called_different(count: int) -> None:
    values = draw_values(4, count)
    found = paired_differences({"a": values, "b": list(values)})[0]
    assert found.p == 1
    assert found.effect is None
    assert found.verdict == ("no difference found" if count == 10 else "too few to tell")


def test_rounding_alone_is_never_called_a_difference() -> None:
    """The same scores, summed over folds in another order: they differ in the last bit and always to the same side."""
    folds = [0.1, 0.2, 0.3]
    forwards, backwards = sum(folds), sum(reversed(folds))
    assert forwards != backwards
    found = paired_differences({"a": [forwards] * 10, "b": [backwards] * 10})[0]
    assert found.verdict == "no difference found"


def test_unequal_numbers_of_reproductions_raise_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="got 3 and 4"):
        paired_differences({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0, 4.0]})


def test_interval_of_a_difference_has_the_confidence_that_the_verdict_was_asked_for() -> None:
    scores: Scores = {"a": draw_values(5, 8), "b": draw_values(6, 8)}
    differences = np.subtract(scores["a"], scores["b"]).tolist()
    found = paired_differences(scores, alpha=0.01)[0].interval
    assert ends(found) == pytest.approx(ends(t_interval(differences, confidence=0.99)), abs=1e-9)


# --- Verdicts on simulated benches ---


def bench(draw: np.random.Generator, means: Sequence[float], reproductions: int) -> Scores:
    """Scores of five methods: what a reproduction has in common, and noise of each, so that differences have deviation 1."""
    common = draw.normal(0, 3, size=reproductions)
    noise = draw.normal(0, math.sqrt(0.5), size=(len(METHODS), reproductions))
    table = common + noise + np.array(means)[:, None]
    return dict(zip(METHODS, table.tolist(), strict=True))


def test_a_difference_of_two_standard_deviations_is_found() -> None:
    """10 reproductions, 10 pairs: at least 95 of 100 times, and never with the wrong sign."""
    draw = np.random.default_rng(1)
    verdicts = [find(paired_differences(bench(draw, (2, 0, 1, 1, 1), 10)), "a", "b").verdict for _ in range(1000)]
    assert verdicts.count("better") >= 950
    assert verdicts.count("worse") == 0


def test_equal_methods_are_rarely_called_different() -> None:
    """2,000 benches, 10 pairs each: 5% would be 100; 131 is what chance exceeds once in a thousand."""
    draw = np.random.default_rng(2)
    false = 0
    for _ in range(2000):
        verdicts = {item.verdict for item in paired_differences(bench(draw, (0, 0, 0, 0, 0), 10))}
        assert "too few to tell" not in verdicts
        false += bool(verdicts & {"better", "worse"})
    assert 1 <= false <= 131


def test_three_reproductions_are_too_few_to_say_that_nothing_was_found() -> None:
    draw = np.random.default_rng(3)
    verdicts = {item.verdict for _ in range(100) for item in paired_differences(bench(draw, (1, 0, 0, 0, 0), 3))}
    assert "too few to tell" in verdicts
    assert "no difference found" not in verdicts


# --- Power ---


@pytest.mark.parametrize(("n", "comparisons"), [(4, 1), (6, 10), (10, 10)])
def test_power_is_how_often_a_simulated_test_sees_the_difference(n: int, comparisons: int) -> None:
    draw = np.random.default_rng(4)
    seen = scipy_stats.ttest_1samp(draw.normal(2, 1, size=(20_000, n)), 0, axis=1).pvalue <= 0.05 / comparisons
    assert power(n, comparisons) == pytest.approx(np.mean(seen), abs=0.015)


def test_power_grows_with_reproductions_and_falls_with_comparisons() -> None:
    by_n = [power(n, 10) for n in range(1, 15)]
    by_comparisons = [power(6, comparisons) for comparisons in (1, 3, 10, 50)]
    assert by_n == sorted(by_n)
    assert by_comparisons == sorted(by_comparisons, reverse=True)
    assert by_n[0] == 0


@pytest.mark.parametrize("comparisons", [1, 3, 10])
def test_the_reproductions_needed_are_the_fewest_that_suffice(comparisons: int) -> None:
    needed = reproductions_needed(comparisons)
    assert power(needed, comparisons) >= 0.8 > power(needed - 1, comparisons)


def test_two_reproductions_settle_nothing_however_far_apart() -> None:
    scores = {"high": [0.9, 0.9000001], "low": [0.1, 0.1]}
    assert [difference.verdict for difference in paired_differences(scores)] == ["too few to tell"]


@pytest.mark.parametrize(("difference", "comparisons"), [(0.01, 1), (0.02, 10), (0.005, 3)])
def test_as_many_reproductions_as_are_needed_see_the_difference_four_times_in_five(difference: float, comparisons: int) -> None:
    """With two fewer it is seen less often; simulated paired differences, no formula of power."""
    needed = reproductions_to_see(difference, 0.01, comparisons)
    assert needed is not None
    draw = np.random.default_rng(5)

    def seen(n: int) -> float:
        values = draw.normal(difference, 0.01, size=(20_000, n))
        return float(np.mean(scipy_stats.ttest_1samp(values, 0, axis=1).pvalue <= 0.05 / comparisons))

    assert seen(needed) >= 0.79
    assert needed <= 4 or seen(needed - 2) < 0.8


def test_smaller_differences_more_noise_and_more_pairs_need_more_reproductions() -> None:
    by_difference = [reproductions_to_see(x, 0.01, 10) for x in (0.04, 0.02, 0.01, 0.005, 0.001)]
    by_noise = [reproductions_to_see(0.01, x, 10) for x in (0.001, 0.005, 0.01, 0.05)]
    by_pairs = [reproductions_to_see(0.01, 0.01, x) for x in (1, 3, 10, 91)]
    for counts in (by_difference, by_noise, by_pairs):
        known = [count for count in counts if count is not None]
        assert known == sorted(set(known)) and len(known) == len(counts)


def test_unit_and_sign_of_a_difference_do_not_matter_to_what_it_needs() -> None:
    assert reproductions_to_see(0.01, 0.013, 10) == reproductions_to_see(-1.0, 1.3, 10)


def test_what_nobody_would_run_is_not_numbered() -> None:
    assert reproductions_to_see(0.0, 0.01, 1) is None
    assert reproductions_to_see(1e-6, 0.01, 1) is None
    assert reproductions_to_see(0.0, 0.0, 1) is None


def test_what_is_plain_to_see_still_takes_three_reproductions() -> None:
    assert reproductions_to_see(0.1, 0.0, 10) == 3
    assert reproductions_to_see(0.9, 1e-9, 10) == 3


def test_the_reproductions_needed_are_those_that_see_two_standard_deviations() -> None:
    assert [reproductions_needed(pairs) for pairs in (1, 10, 91)] == [
        reproductions_to_see(2.0, 1.0, pairs) for pairs in (1, 10, 91)
    ]


def test_a_difference_knows_its_deviation_and_how_many_pairs_were_tested() -> None:
    scores: Scores = {"a": draw_values(7, 6), "b": draw_values(8, 6), "one": [0.4], "other": [0.5]}
    found = find(paired_differences(scores), "a", "b")
    assert found.deviation == pytest.approx(np.subtract(scores["a"], scores["b"]).std(ddof=1))
    assert found.comparisons == 5
    assert find(paired_differences(scores), "one", "other").deviation is None


# --- Spread and relative gain ---


@given(seed=seeds)
@few_examples
def test_spread_is_the_pooled_deviation_within_groups(seed: int) -> None:
    draw = random.Random(seed)
    groups = [[draw.gauss(mean, 0.1) for _ in range(draw.randint(1, 6))] for mean in (0.1, 0.5, 3.0)] + [[0.0, 0.1]]
    squares = sum((value - math.fsum(group) / len(group)) ** 2 for group in groups for value in group)
    assert spread(groups) == pytest.approx(math.sqrt(squares / sum(len(group) - 1 for group in groups)))
    shifted = [[value + number for value in group] for number, group in enumerate(groups)]
    assert spread(shifted) == pytest.approx(spread(groups))


def test_spread_of_one_group_is_its_deviation_and_of_single_values_nothing() -> None:
    assert spread([[0.1, 0.4, 0.2]]) == pytest.approx(deviation([0.1, 0.4, 0.2]))
    assert spread([[0.1], [0.4]]) is None
    assert spread([]) is None


def test_a_relative_gain_is_paired_and_has_the_interval_of_its_ratios() -> None:
    first, second = [0.5, 0.6, 0.66], [0.4, 0.5, 0.6]
    found = relative_gain(first, second)
    assert found is not None
    assert ends(found) == pytest.approx(ends(t_interval([0.25, 0.2, 0.1])))


def test_a_relative_gain_over_a_constant_or_over_nothing() -> None:
    over_one = relative_gain([0.5, 0.6], [0.4])
    assert over_one is not None
    assert over_one.mean == pytest.approx(0.375)
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
    assert autocorrelation(values, lag) == pytest.approx(naive_autocorrelation(values, lag), abs=1e-12)
    assert -1 <= autocorrelation(values, lag) <= 1


@given(seed=seeds)
@few_examples
def test_unit_and_direction_of_a_curve_do_not_matter_to_its_autocorrelation(seed: int) -> None:
    values = draw_values(seed, count=10)
    expected = autocorrelation(values)
    assert autocorrelation([100 * value + 3 for value in values]) == pytest.approx(expected, abs=1e-9)
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


@pytest.mark.parametrize(("values", "lag"), [([], 1), ([0.5], 1), ([0.5, 0.6], 1), ([0.5, 0.6, 0.7], 2)])
def test_curves_too_short_have_no_autocorrelation(values: list[float], lag: int) -> None:
    assert math.isnan(autocorrelation(values, lag))


@pytest.mark.parametrize("value", [0.0, 0.1, 0.7])
def test_a_curve_that_never_changes_has_no_autocorrelation(value: float) -> None:
    assert math.isnan(autocorrelation([value] * 7))


def test_a_lag_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        autocorrelation([1.0, 2.0, 3.0], lag=0)
