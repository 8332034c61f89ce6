"""Ranks over data sets: Friedman against scipy, Nemenyi against scipy and printed tables, and laws
of both.
"""

import math
import random
from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.stats import critical_difference, friedman, ties
from assay.stats.ranks import SAMPLED, all_permutations, sample_permutations

few_examples = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)

Scores = dict[str, list[float]]


def draw_scores(seed: int) -> Scores:
    """Scores of 3 to 7 methods on 2 to 9 data sets, half of the time with ties."""
    draw = random.Random(seed)
    blocks, digits = draw.randint(2, 9), draw.choice([1, 6])
    return {
        name: [round(draw.random(), digits) for _ in range(blocks)]
        for name in "abcdefg"[: draw.randint(3, 7)]
    }


@given(seed=seeds)
@few_examples
def test_the_statistic_is_that_of_scipy(seed: int) -> None:
    scores = draw_scores(seed)
    if all(len(set(column)) == 1 for column in zip(*scores.values(), strict=True)):
        return
    statistic, p = scipy_stats.friedmanchisquare(*scores.values())
    found = friedman(scores)
    assert found.chi_square == pytest.approx(statistic, abs=1e-9)
    assert found.p_chi_square == pytest.approx(p, abs=1e-9)


@given(seed=seeds)
@few_examples
def test_iman_and_davenport_s_f_is_a_two_way_analysis_of_variance_of_the_ranks(seed: int) -> None:
    """Of which it is known to be the F, ties or not: methods against what is left after data sets
    and methods.
    """
    scores = draw_scores(seed)
    ranked = scipy_stats.rankdata(-np.array(list(scores.values())).T, axis=1)
    blocks, k = ranked.shape
    between = blocks * np.square(ranked.mean(0) - ranked.mean()).sum() / (k - 1)
    left = np.square(
        ranked - ranked.mean(0)[None] - ranked.mean(1)[:, None] + ranked.mean()
    ).sum() / ((k - 1) * (blocks - 1))
    found = friedman(scores)
    if left < 1e-9:
        assert math.isinf(found.f) or between < 1e-9
        return
    assert found.f == pytest.approx(between / left, rel=1e-9)
    assert found.p_f == pytest.approx(
        float(scipy_stats.f.sf(between / left, k - 1, (k - 1) * (blocks - 1))), abs=1e-12
    )


@given(seed=seeds)
@few_examples
def test_neither_order_of_methods_nor_unit_matters(seed: int) -> None:
    scores = draw_scores(seed)
    found = friedman(scores)
    turned = friedman(dict(reversed(scores.items())))
    scaled = friedman(
        {name: [7 * value - 3 for value in values] for name, values in scores.items()}
    )
    assert turned.ranks == pytest.approx(found.ranks)
    for other in (turned, scaled):
        assert (other.chi_square, other.p) == pytest.approx((found.chi_square, found.p), abs=1e-9)


@given(seed=seeds)
@few_examples
def test_order_of_data_sets_does_not_matter(seed: int) -> None:
    scores = draw_scores(seed)
    turned = friedman({name: values[::-1] for name, values in scores.items()})
    assert turned.chi_square == pytest.approx(friedman(scores).chi_square, abs=1e-9)


def test_ranks_are_means_over_data_sets_and_one_is_best() -> None:
    found = friedman({"a": [0.9, 0.8, 0.3], "b": [0.5, 0.8, 0.9], "c": [0.1, 0.1, 0.1]})
    assert found.ranks == pytest.approx({"a": (1 + 1.5 + 2) / 3, "b": (2 + 1.5 + 1) / 3, "c": 3.0})
    assert sum(found.ranks.values()) == pytest.approx(6)


def test_methods_that_tie_everywhere_do_not_differ() -> None:
    found = friedman({"a": [0.5, 0.6], "b": [0.5, 0.6], "c": [0.5, 0.6]})
    assert (found.chi_square, found.f, found.p) == (0.0, 0.0, 1.0)
    assert set(found.ranks.values()) == {2.0}


def test_data_sets_that_all_agree_leave_no_doubt() -> None:
    found = friedman({"a": [0.9] * 5, "b": [0.5] * 5, "c": [0.1] * 5})
    assert math.isinf(found.f)
    assert found.p_f == 0
    assert (found.p, found.p_from) == (pytest.approx(6 / 6**5), "exact")


def enumerated_p(scores: Scores) -> float:
    """The share of all ways to order the ranks of each data set that have at least this statistic,
    one way at a time.
    """
    columns = [list(column) for column in zip(*scores.values(), strict=True)]
    rows = [
        [1 + sum(b > a for b in column) + (sum(b == a for b in column) - 1) / 2 for a in column]
        for column in columns
    ]

    def unequal(rows: Sequence[Sequence[float]]) -> float:
        total = 0.0
        for j in range(len(rows[0])):
            rank_sum = 0.0
            for row in rows:
                rank_sum += row[j]
            total += rank_sum * rank_sum
        return total

    observed, all_ways, as_unequal = unequal(rows), 0, 0
    for way in product(*(list(permutations(row)) for row in rows)):
        all_ways += 1
        as_unequal += unequal(way) >= observed
    return as_unequal / all_ways


@pytest.mark.parametrize(
    ("methods", "blocks"),
    [(2, 2), (2, 7), (3, 2), (3, 3), (3, 4), (3, 5), (4, 2), (4, 3), (5, 2), (6, 2)],
)
@pytest.mark.parametrize("digits", [1, 6])
def test_the_exact_p_is_that_of_all_permutations_written_out(
    methods: int, blocks: int, digits: int
) -> None:
    draw = random.Random(methods * 100 + blocks)
    for _ in range(1 if methods == 6 else 3):
        scores = {
            name: [round(draw.random(), digits) for _ in range(blocks)]
            for name in "abcdef"[:methods]
        }
        found = friedman(scores)
        assert (found.p, found.p_from) == (pytest.approx(enumerated_p(scores), abs=1e-12), "exact")


PRINTED = {
    (3, 3): {6.0: 0.028, 4.667: 0.194, 2.667: 0.361, 2.0: 0.528, 0.667: 0.944},
    (3, 4): {8.0: 0.0046, 6.5: 0.042, 6.0: 0.069, 4.5: 0.125, 3.5: 0.273, 2.0: 0.431},
    (3, 5): {10.0: 0.00077, 8.4: 0.0085, 7.6: 0.024, 6.4: 0.039, 5.2: 0.093, 4.8: 0.124},
    (4, 2): {6.0: 0.042, 5.4: 0.167, 4.8: 0.208},
    (4, 3): {9.0: 0.0017, 8.2: 0.017, 7.4: 0.033, 7.0: 0.054},
}
"""Tail probabilities of Friedman's statistic, from the tables of Friedman (1937) as textbooks
reprint them.
"""


@pytest.mark.parametrize(("methods", "blocks"), list(PRINTED))
def test_the_exact_p_has_the_values_of_the_printed_tables(methods: int, blocks: int) -> None:
    found = {}
    for way in product(*(list(permutations(range(methods))) for _ in range(blocks - 1))):
        scores = dict(zip("abcd", map(list, zip(range(methods), *way, strict=True)), strict=False))
        test = friedman(scores)
        found[round(test.chi_square, 3)] = test.p
    assert all(
        found[statistic] == pytest.approx(p, rel=0.02, abs=6e-4)
        for statistic, p in PRINTED[methods, blocks].items()
    )


def test_where_there_are_too_many_permutations_some_are_sampled_and_agree_with_the_exact_p() -> (
    None
):
    draw = np.random.default_rng(4)
    for methods, blocks in ((3, 6), (4, 4), (5, 3)):
        ranked = draw.random((blocks, methods)).argsort(1).argsort(1) + 1.0
        observed = int(np.square((2 * ranked).sum(0)).sum())
        rows = tuple(tuple(sorted(row)) for row in (2 * ranked).astype(int).tolist())
        values, ways = all_permutations(rows) or pytest.fail("these are few enough to go through")
        assert ways.sum() == math.factorial(methods) ** (blocks - 1)
        exact, sampled = (
            ways[values >= observed].sum() / ways.sum(),
            (sample_permutations(rows) >= observed).mean(),
        )
        assert abs(sampled - exact) < 4 * math.sqrt(exact * (1 - exact) / SAMPLED) + 1 / SAMPLED
    many = friedman({f"m{number}": draw.random(3).tolist() for number in range(14)})
    assert many.p_from == "permutations"
    assert many.p == pytest.approx(many.p_f, abs=0.02)


def test_a_sampled_p_is_the_same_every_time_and_never_0() -> None:
    agree = {f"m{number}": [float(number)] * 4 for number in range(14)}
    first, second = friedman(agree), friedman(dict(reversed(agree.items())))
    assert first.p == second.p == 1 / (1 + SAMPLED)


def test_above_a_number_of_data_sets_p_comes_from_the_f_distribution() -> None:
    draw = np.random.default_rng(0)
    few, many = (
        friedman(dict(zip("abc", draw.random((3, blocks)).tolist(), strict=True)))
        for blocks in (20, 21)
    )
    assert (few.p_from, many.p_from, many.p) == ("exact", "F", many.p_f)
    assert few.p == pytest.approx(few.p_f, abs=0.02)


def test_the_exact_p_keeps_its_level_where_the_f_distribution_does_not() -> None:
    """Three methods on three data sets that do not differ, all 216 outcomes: F says 0.05 in 7 of 36
    of them.
    """
    tests = [
        friedman(dict(zip("abc", map(list, zip((0, 1, 2), *way, strict=True)), strict=True)))
        for way in product(permutations(range(3)), repeat=2)
    ]
    assert sum(test.p <= 0.05 for test in tests) == 1
    assert sum(test.p_f <= 0.05 for test in tests) == 7


def test_one_data_set_or_one_method_has_no_ranks_over_data_sets() -> None:
    with pytest.raises(ValueError, match="got 1 and 2"):
        friedman({"a": [0.5], "b": [0.6]})
    with pytest.raises(ValueError, match="got 3 and 1"):
        friedman({"a": [0.5, 0.6, 0.7]})


def test_equal_methods_are_called_different_one_time_in_twenty() -> None:
    draw = np.random.default_rng(0)
    p_values = [
        friedman(dict(zip("abcde", draw.random((5, 12)).tolist(), strict=True))).p
        for _ in range(2000)
    ]
    assert 0.035 <= np.mean(np.array(p_values) <= 0.05) <= 0.065


@pytest.mark.parametrize(
    ("methods", "q"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (8, 3.031), (10, 3.164)],
)
def test_the_critical_difference_has_the_printed_values(methods: int, q: float) -> None:
    """Table 5 (a) of Demsar 2006: q of the two-tailed Nemenyi test at 0.05."""
    assert critical_difference(methods, blocks=1) / math.sqrt(
        methods * (methods + 1) / 6
    ) == pytest.approx(q, abs=1.1e-3)


@pytest.mark.parametrize(("methods", "alpha"), [(2, 0.05), (3, 0.1), (7, 0.01)])
def test_the_critical_difference_is_that_of_scipy_s_studentised_range(
    methods: int, alpha: float
) -> None:
    q = float(scipy_stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    assert critical_difference(methods, 9, alpha) == pytest.approx(
        q * math.sqrt(methods * (methods + 1) / 54), abs=1e-6
    )


def test_more_data_sets_tell_finer_and_more_methods_coarser() -> None:
    by_blocks = [critical_difference(5, blocks) for blocks in (2, 5, 20, 100)]
    by_methods = [critical_difference(methods, 5) for methods in (2, 5, 10, 14)]
    assert by_blocks == sorted(by_blocks, reverse=True)
    assert by_methods == sorted(by_methods)


@given(seed=seeds)
@few_examples
def test_groups_hold_all_pairs_that_are_close_and_none_that_is_not(seed: int) -> None:
    draw = random.Random(seed)
    mean_ranks = {name: round(draw.uniform(1, 7), draw.choice([1, 4])) for name in "abcdefg"}
    reach = draw.uniform(0, 5)
    groups = ties(mean_ranks, reach)
    together = {(a, b) for group in groups for a in group for b in group if a < b}
    close = {
        (a, b)
        for a in mean_ranks
        for b in mean_ranks
        if a < b and abs(mean_ranks[a] - mean_ranks[b]) <= reach
    }
    assert together == close
    assert not any(set(one) < set(other) for one in groups for other in groups)


def test_methods_all_apart_make_no_group() -> None:
    assert ties({"a": 1.0, "b": 2.0, "c": 3.0}, 0.5) == []
    assert ties({"c": 3.0, "a": 1.0, "b": 2.0}, 5.0) == [("a", "b", "c")]
