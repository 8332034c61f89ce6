"""Search spaces as values: scales, edges, clashes."""

import math
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.hashing import digest
from assay.space import Choice, Edge, Integer, Natural, Range, Real, Space

SHARES = st.floats(0, 1)
LINEAR = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted)
POSITIVE = st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9)).map(sorted)
WHOLE = st.tuples(st.integers(-10_000, 10_000), st.integers(-10_000, 10_000)).map(sorted)


def is_wide(low: float, high: float) -> bool:
    """Whether six significant digits tell hundreds of values in the range apart."""
    return high - low > 1e-3 * max(abs(low), abs(high))


def test_a_linear_range_is_cut_evenly() -> None:
    assert [Real(-1, 3).at(share) for share in (0, 0.25, 0.5, 1)] == [-1, 0, 1, 3]


def test_a_logarithmic_range_is_cut_in_equal_factors() -> None:
    range_ = Real(1e-6, 1, log=True)
    assert [range_.at(step / 6) for step in range(7)] == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1]


@given(ends=LINEAR, share=SHARES)
def test_a_linear_value_lies_where_it_was_taken(ends: list[float], share: float) -> None:
    low, high = ends
    assume(low < high)
    range_ = Real(low, high)
    rounding = 5e-6 * max(abs(low), abs(high)) / (high - low)
    assert math.isclose(range_.share(range_.at(share)), share, rel_tol=0, abs_tol=rounding + 1e-9)


@given(ends=POSITIVE, share=SHARES)
def test_a_logarithmic_value_lies_where_it_was_taken(ends: list[float], share: float) -> None:
    low, high = ends
    assume(high > 1.001 * low)
    range_ = Real(low, high, log=True)
    rounding = 1e-5 / math.log(high / low)
    assert math.isclose(range_.share(range_.at(share)), share, rel_tol=0, abs_tol=rounding)


@given(ends=POSITIVE, share=SHARES, log=st.booleans())
def test_values_never_leave_their_range(ends: list[float], share: float, log: bool) -> None:
    low, high = ends
    assume(low < high)
    assert low <= Real(low, high, log).at(share) <= high


@given(ends=POSITIVE, shares=st.tuples(SHARES, SHARES), log=st.booleans())
def test_a_larger_share_is_never_a_smaller_value(
    ends: list[float], shares: tuple[float, float], log: bool
) -> None:
    low, high = ends
    assume(low < high)
    range_ = Real(low, high, log)
    assert range_.at(min(shares)) <= range_.at(max(shares))


@given(ends=WHOLE, data=st.data())
def test_every_whole_number_of_a_range_can_be_taken(ends: list[int], data: st.DataObject) -> None:
    low, high = ends
    assume(low < high)
    range_, value = Integer(low, high), data.draw(st.integers(low, high))
    assert range_.at(range_.share(value)) == value
    assert isinstance(range_.at(range_.share(value)), int)


@given(low=st.integers(1, 1000), width=st.integers(1, 10_000), data=st.data())
def test_every_whole_number_of_a_logarithmic_range_can_be_taken(
    low: int, width: int, data: st.DataObject
) -> None:
    range_, value = Integer(low, low + width, log=True), data.draw(st.integers(low, low + width))
    assert range_.at(range_.share(value)) == value


def test_whole_numbers_above_a_million_are_not_rounded_to_tens() -> None:
    range_ = Integer(0, 20_000_000)
    assert range_.at(range_.share(12_345_678)) == 12_345_678
    assert Integer(1_000_000, 1_000_010).at(0.5) == 1_000_005


def test_both_ends_of_whole_numbers_are_included() -> None:
    assert [Integer(1, 3).at(share) for share in (0, 0.5, 1)] == [1, 2, 3]


@pytest.mark.parametrize("value", [2.5, 0, 11, True, "2", math.nan, math.inf])
def test_a_value_that_no_search_gives_is_not_held(value: Any) -> None:
    assert not Integer(1, 10).holds(value) and Integer(1, 10).holds(2.0)
    assert Real(1, 10).holds(value) == (value == 2.5)


def test_rounding_noise_does_not_reach_a_value() -> None:
    assert Real(0, 1).at(0.1 + 0.2) == 0.3
    assert str(Real(0, 2).at(1 / 3)) == "0.666667"


@pytest.mark.parametrize(
    ("share", "option"), [(0, "a"), (0.33, "a"), (0.34, "b"), (0.67, "c"), (1, "c")]
)
def test_a_choice_gives_each_option_an_equal_part(share: float, option: str) -> None:
    assert Choice(("a", "b", "c")).at(share) == option


@given(low=st.floats(-100, 100), width=st.floats(1e-3, 100), share=SHARES)
@example(low=0.0, width=1.0, share=0.009)
@example(low=0.0, width=1.0, share=0.011)
def test_an_edge_is_within_a_hundredth_of_a_linear_range(
    low: float, width: float, share: float
) -> None:
    high = low + width
    assume(is_wide(low, high))
    assume(abs(share - 0.01) > 1e-6)
    assume(abs(share - 0.99) > 1e-6)
    end = {True: "low", False: None}[share < 0.01] or {True: "high", False: None}[share > 0.99]
    found = Space(p=Real(low, high)).edges({"p": low + share * width})
    assert [edge.end for edge in found.values()] == ([end] if end else [])


@pytest.mark.parametrize(
    ("value", "end"),
    [
        (1e-6, "low"),
        (1.14e-6, "low"),
        (1.16e-6, None),
        (0.01, None),
        (0.86, None),
        (0.88, "high"),
        (1.0, "high"),
    ],
)
def test_an_edge_of_a_logarithmic_range_is_measured_on_the_search_scale(
    value: float, end: str | None
) -> None:
    """A hundredth of six decades is a factor of 1.148; on a linear scale 0.01 would be an edge."""
    found = Space(lr=Real(1e-6, 1, log=True)).edges({"lr": value})
    assert [edge.end for edge in found.values()] == ([end] if end else [])


@pytest.mark.parametrize(("value", "end"), [(1, "low"), (2, None), (3, None), (4, "high")])
def test_only_the_ends_of_a_few_whole_numbers_are_edges(value: int, end: str | None) -> None:
    found = Space(k=Integer(1, 4)).edges({"k": value})
    assert [edge.end for edge in found.values()] == ([end] if end else [])


@pytest.mark.parametrize(
    ("value", "end"), [(0, "low"), (9, "low"), (11, None), (989, None), (991, "high")]
)
def test_many_whole_numbers_have_edges_of_a_hundredth(value: int, end: str | None) -> None:
    found = Space(k=Integer(0, 1000)).edges({"k": value})
    assert [edge.end for edge in found.values()] == ([end] if end else [])


@pytest.mark.parametrize("natural", ["none", "low", "high", "both"])
def test_an_edge_says_whether_the_end_is_natural(natural: Natural) -> None:
    space = Space(margin=Real(0, 2, natural=natural), k=Integer(1, 10, natural=natural))
    assert space.edges({"margin": 0.0, "k": 10}) == {
        "margin": Edge("low", 0, natural in ("low", "both")),
        "k": Edge("high", 10, natural in ("high", "both")),
    }


def test_a_value_in_the_middle_and_a_choice_have_no_edge() -> None:
    space = Space(margin=Real(0, 2), kind=Choice(("a", "b")))
    assert space.edges({"margin": 1.0, "kind": "a"}) == {}


def test_two_spaces_join() -> None:
    joined = Space(b=Real(0, 1)) | Space(a=Integer(1, 2))
    assert dict(joined) == {"a": Integer(1, 2), "b": Real(0, 1)}
    assert joined == Space(a=Integer(1, 2)) | Space(b=Real(0, 1))


def test_a_name_in_both_spaces_raises() -> None:
    with pytest.raises(BadInput, match="'margin' is in both"):
        Space(margin=Real(0, 1)) | Space(margin=Real(0, 1))


def test_the_order_of_names_makes_no_difference() -> None:
    one, other = Space(a=Real(0, 1), b=Choice((1, 2))), Space(b=Choice((1, 2)), a=Real(0, 1))
    assert one == other
    assert hash(one) == hash(other)
    assert list(one) == list(other) == ["a", "b"]
    assert digest(one.describe()) == digest(other.describe())


@pytest.mark.parametrize(
    "other",
    [
        Space(),
        Space(b=Real(0, 1)),
        Space(a=Real(0, 2)),
        Space(a=Real(-1, 1)),
        Space(a=Real(0, 1, natural="low")),
        Space(a=Integer(0, 1)),
        Space(a=Choice((0, 1))),
        Space(a=Real(0, 1), b=Real(0, 1)),
    ],
)
def test_spaces_that_differ_are_told_apart(other: Space) -> None:
    assert Space(a=Real(0, 1)) != other
    assert digest(Space(a=Real(0, 1)).describe()) != digest(other.describe())


def test_the_scale_is_part_of_a_space() -> None:
    assert Space(a=Real(1, 2)) != Space(a=Real(1, 2, log=True))
    assert digest(Space(a=Real(1, 2)).describe()) != digest(
        Space(a=Real(1, 2, log=True)).describe()
    )


def test_equal_spaces_have_equal_digests() -> None:
    one, other = Space(a=Real(0, 1)), Space(a=Real(0.0, 1.0))
    assert one == other
    assert digest(one.describe()) == digest(other.describe())


def test_a_space_is_no_other_mapping() -> None:
    assert Space(a=Real(0, 1)) != {"a": Real(0, 1)}


def test_ranges_cannot_be_changed_after_they_are_declared() -> None:
    range_: Any = Real(0, 1)
    space: Any = Space(a=range_)
    with pytest.raises(AttributeError):
        range_.high = 10
    with pytest.raises(TypeError):
        space["a"] = Real(0, 10)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (math.nan, 1), (0, math.nan)])
@pytest.mark.parametrize("kind", [Real, Integer])
def test_a_range_that_runs_nowhere_is_refused(kind: Any, low: float, high: float) -> None:
    with pytest.raises(ValueError, match="low < high"):
        kind(low, high)


@pytest.mark.parametrize("kind", [Real, Integer])
@pytest.mark.parametrize("low", [0, -1])
def test_a_logarithmic_range_from_zero_or_below_is_refused(kind: Any, low: int) -> None:
    with pytest.raises(ValueError, match="low > 0"):
        kind(low, 10, log=True)


@pytest.mark.parametrize(("low", "high"), [(0, math.inf), (-math.inf, 0), (-math.inf, math.inf)])
def test_a_range_without_an_end_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="inf"):
        Real(low, high)


@pytest.mark.parametrize("options", [(), ("a",), ("a", "a"), (1, 1.0)])
def test_a_choice_of_one_is_refused(options: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="two different options"):
        Choice(options)


@pytest.mark.parametrize("range_", [Real(0, 1), Integer(0, 3, log=False), Choice(("a", 2, 0.5))])
def test_what_a_space_describes_tells_kind_and_ends(range_: Range) -> None:
    described = Space(p=range_).describe()["p"]
    assert described["kind"] == type(range_).__name__
    assert {name: value for name, value in described.items() if name != "kind"} == vars(range_)
