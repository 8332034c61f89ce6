"""A loop over cases runs all of them, and says which failed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loops import for_each


def test_every_case_runs_and_each_that_fails_is_named():
    seen = []

    @for_each("left, right", [(1, 1), (2, 3), (4, 4), pytest.param(5, 6, id="odd")])
    @for_each("sign", [1, -1])
    def law(left, right, sign):
        seen.append((left, right, sign))
        assert sign * left == sign * right

    with pytest.raises(AssertionError, match=r"2 of 4 cases failed: left=2, right=3; left=5"):
        law()
    assert seen == [(a, b, s) for a, b in ((1, 1), (2, 3), (4, 4), (5, 6)) for s in (1, -1)]


def test_a_case_that_should_raise_and_does_not_is_named():
    def refuse_two(value):
        if value == 2:
            raise ValueError("two")

    @for_each("value", [1, 2])
    def law(value):
        with pytest.raises(ValueError, match="two"):
            refuse_two(value)

    with pytest.raises(AssertionError, match="1 of 2 cases failed: value=1"):
        law()


def test_what_hypothesis_finds_is_named_by_its_case():
    @for_each("sign", [1, -1])
    @given(value=st.integers(0, 9))
    @settings(database=None)
    def law(sign, value):
        assert sign * value >= 0

    with pytest.raises(AssertionError, match="1 of 2 cases failed: sign=-1"):
        law()


def test_fixtures_are_those_that_are_left_and_each_case_draws_as_if_alone():
    drawn = []

    @for_each("name", ["a", "b"])
    def law(name, tmp_path):
        drawn.append((name, tmp_path, torch.rand(()).item()))

    law(tmp_path="here")
    (_, _, first), (_, _, second) = drawn
    assert first == second
    assert [case[:2] for case in drawn] == [("a", "here"), ("b", "here")]
