"""Ranks over data sets: Friedman against scipy, Nemenyi against scipy and printed tables, and laws of both."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.stats import critical_difference, friedman, ties

few_examples = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)

Scores = dict[str, list[float]]


def draw_scores(seed: int) -> Scores:
    """Scores of 3 to 7 methods on 2 to 9 data sets, half of the time with ties."""
    draw = random.Random(seed)
    blocks, digits = draw.randint(2, 9), draw.choice([1, 6])
    return {name: [round(draw.random(), digits) for _ in range(blocks)] for name in "abcdefg"[: draw.randint(3, 7)]}


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
    """Of which it is known to be the F, ties or not: methods against what is left after data sets and methods."""
    scores = draw_scores(seed)
    ranked = scipy_stats.rankdata(-np.array(list(scores.values())).T, axis=1)
    blocks, k = ranked.shape
    between = blocks * np.square(ranked.mean(0) - ranked.mean()).sum() / (k - 1)
    left = np.square(ranked - ranked.mean(0)[None] - ranked.mean(1)[:, None] + ranked.mean()).sum() / ((k - 1) * (blocks - 1))
    found = friedman(scores)
    if left < 1e-9:
        assert math.isinf(found.f) or between < 1e-9
        return
    assert found.f == pytest.approx(between / left, rel=1e-9)
    assert found.p == pytest.approx(float(scipy_stats.f.sf(between / left, k - 1, (k - 1) * (blocks - 1))), abs=1e-12)


@given(seed=seeds)
@few_examples
def test_neither_order_of_methods_nor_unit_matters(seed: int) -> None:
    scores = draw_scores(seed)
    found = friedman(scores)
    turned = friedman(dict(reversed(scores.items())))
    scaled = friedman({name: [7 * value - 3 for value in values] for name, values in scores.items()})
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
    assert found.p == 0


def test_one_data_set_or_one_method_has_no_ranks_over_data_sets() -> None:
    with pytest.raises(ValueError, match="got 1 and 2"):
        friedman({"a": [0.5], "b": [0.6]})
    with pytest.raises(ValueError, match="got 3 and 1"):
        friedman({"a": [0.5, 0.6, 0.7]})


def test_equal_methods_are_called_different_one_time_in_twenty() -> None:
    draw = np.random.default_rng(0)
    p_values = [friedman(dict(zip("abcde", draw.random((5, 12)).tolist(), strict=True))).p for _ in range(2000)]
    assert 0.035 <= np.mean(np.array(p_values) <= 0.05) <= 0.065


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (8, 3.031), (10, 3.164)])
def test_the_critical_difference_has_the_printed_values(methods: int, q: float) -> None:
    """Table 5 (a) of Demsar 2006: q of the two-tailed Nemenyi test at 0.05."""
    assert critical_difference(methods, blocks=1) / math.sqrt(methods * (methods + 1) / 6) == pytest.approx(q, abs=1.1e-3)


@pytest.mark.parametrize(("methods", "alpha"), [(2, 0.05), (3, 0.1), (7, 0.01)])
def test_the_critical_difference_is_that_of_scipy_s_studentised_range(methods: int, alpha: float) -> None:
    q = float(scipy_stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    assert critical_difference(methods, 9, alpha) == pytest.approx(q * math.sqrt(methods * (methods + 1) / 54), abs=1e-6)


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
    close = {(a, b) for a in mean_ranks for b in mean_ranks if a < b and abs(mean_ranks[a] - mean_ranks[b]) <= reach}
    assert together == close
    assert not any(set(one) < set(other) for one in groups for other in groups)


def test_methods_all_apart_make_no_group() -> None:
    assert ties({"a": 1.0, "b": 2.0, "c": 3.0}, 0.5) == []
    assert ties({"c": 3.0, "a": 1.0, "b": 2.0}, 5.0) == [("a", "b", "c")]
