"""Values of a method's parameters: checks of arguments, and ranges of a search.

A check returns the value, or raises a `ValueError` that names the value and what is allowed. A
search space is a value object: it is declared before the search, hashed with the preregistration,
and never changed by the search.
"""

import math
import numbers
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from assay.errors import BadInput

Value = float | int | str
Parameters = Mapping[str, Value]
Natural = Literal["none", "low", "high", "both"]

EDGE = 0.01
"""A value within this share of its range (on the search scale) lies on the edge."""


# --- arguments ------------------------------------------------------------------------------------


def at_least(low: float, name: str, value: float) -> float:
    """Return a finite number that is not below `low`.

    >>> at_least(0, "margin", -0.5)
    Traceback (most recent call last):
    ...
    ValueError: margin is a number of at least 0, got -0.5
    """
    return _accept(
        _is_finite(value) and value >= low, f"{name} is a number of at least {low}", value
    )


def above(low: float, name: str, value: float) -> float:
    """Return a finite number above `low`."""
    return _accept(_is_finite(value) and value > low, f"{name} is a number above {low}", value)


def between(low: float, high: float, name: str, value: float) -> float:
    """Return a number from `low` to `high`, both ends included."""
    return _accept(
        _is_finite(value) and low <= value <= high,
        f"{name} is a number from {low} to {high}",
        value,
    )


def inside(low: float, high: float, name: str, value: float) -> float:
    """Return a number between `low` and `high`, both ends excluded."""
    return _accept(
        _is_finite(value) and low < value < high,
        f"{name} is a number above {low} and below {high}",
        value,
    )


def whole_number(least: int, name: str, value: int) -> int:
    """Return a whole number of at least `least`."""
    return int(
        _accept(
            _is_finite(value) and value == int(value) >= least,
            f"{name} is a whole number of at least {least}",
            value,
        )
    )


def one_of(options: tuple[str, ...], name: str, value: str) -> str:
    """Return one of a few words."""
    if value not in options:
        raise ValueError(f"{name} is one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def read_whole(text: str) -> int:
    """Return the whole number that a text is: digits, and a sign; raise `ValueError` for others.

    Python itself would also read `1_000`, spaces and digits of other scripts.

    >>> read_whole("-3")
    -3
    >>> read_whole("1_000")
    Traceback (most recent call last):
    ...
    ValueError: '1_000' is not a whole number
    """
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def read_number(text: str) -> float:
    """Return the finite number that a text is; raise `ValueError` for others.

    >>> read_number("5e-4")
    0.0005
    >>> read_number("1e400")
    Traceback (most recent call last):
    ...
    ValueError: '1e400' is not a finite number
    """
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
    if not plain or not math.isfinite(float(text)):
        raise ValueError(f"{text!r} is not a finite number")
    return float(text)


def _is_finite(value: object) -> bool:
    """Return whether the value is a number of Python or numpy, not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _accept(good: bool, rule: str, value: float) -> float:
    if not good:
        raise ValueError(f"{rule}, got {value!r}")
    return value


# --- ranges ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Real:
    """A real number in [low, high], searched on a linear or a logarithmic scale.

    `natural` says which ends are bounds of the parameter itself (a margin cannot be below 0). An
    optimum at such an end does not suggest a range that is too narrow.
    """

    low: float
    high: float
    log: bool = False
    natural: Natural = "none"

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))

    def at(self, share: float) -> float:
        """Return the value at `share` (0 to 1) of the range on the search scale.

        It has six significant digits: more mean nothing to a search, and rounding noise must not
        reach a run's key.

        >>> Real(0.01, 100, log=True).at(0.5)
        1.0
        """
        value = float(f"{_at(self.low, self.high, self.log, share):.6g}")
        return min(max(value, self.low), self.high)

    def takes(self, value: object) -> TypeGuard[float]:
        """Return whether the search scale has a place for the value, even outside the range."""
        return _is_number(value) and (value > 0 or not self.log)

    def share(self, value: float) -> float:
        """Return the position of `value` on the search scale: 0 at `low`, 1 at `high`."""
        return _share(self.low, self.high, self.log, value)

    def holds(self, value: Value) -> bool:
        """Return whether the value is in the range."""
        return self.takes(value) and self.low <= value <= self.high


@dataclass(frozen=True)
class Integer:
    """A whole number in [low, high], both ends included."""

    low: int
    high: int
    log: bool = False
    natural: Natural = "none"

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)

    def at(self, share: float) -> int:
        """Return the whole number nearest to `share` (0 to 1) of the range on the search scale."""
        return min(max(round(_at(self.low, self.high, self.log, share)), self.low), self.high)

    def takes(self, value: object) -> TypeGuard[float]:
        """Return whether the search scale has a place for the value, even outside the range."""
        return _is_number(value) and value == int(value) and (value > 0 or not self.log)

    def share(self, value: float) -> float:
        """Return the position of `value` on the search scale: 0 at `low`, 1 at `high`."""
        return _share(self.low, self.high, self.log, value)

    def holds(self, value: Value) -> bool:
        """Return whether the value is in the range."""
        return self.takes(value) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of a few values; a choice has no edges."""

    options: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(self.options)) < 2:
            raise ValueError(f"a choice needs two different options, got {self.options}")

    def takes(self, value: object) -> bool:
        """Return whether the value is one of the options."""
        return value in self.options

    def holds(self, value: Value) -> bool:
        """Return whether the value is one of the options."""
        return value in self.options

    def at(self, share: float) -> Value:
        """Return the option at `share` (0 to 1) of the list."""
        return self.options[min(int(share * len(self.options)), len(self.options) - 1)]


Range = Real | Integer | Choice


@dataclass(frozen=True)
class Edge:
    """An end of a range on which a chosen value lies.

    `natural` is true where that end is a bound of the parameter itself.
    """

    end: Literal["low", "high"]
    bound: float
    natural: bool


class Space(Mapping[str, Range]):
    """Named ranges.

    >>> space = Space(margin=Real(0, 2, natural="low"))
    >>> space.edges({"margin": 0.01})
    {'margin': Edge(end='low', bound=0.0, natural=True)}
    """

    def __init__(self, /, **ranges: Range) -> None:
        self._ranges = dict(sorted(ranges.items()))

    def __getitem__(self, name: str) -> Range:
        return self._ranges[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges.items()))

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={range_}' for name, range_ in self.items())})"

    def __or__(self, other: "Space") -> "Space":
        """Return both spaces together; a name in both raises."""
        clash = sorted(set(self) & set(other))
        if clash:
            raise BadInput(
                f"the parameter {clash[0]!r} is in both search spaces; rename one of them"
            )
        return Space(**self._ranges, **other._ranges)

    def describe(self) -> dict[str, dict[str, object]]:
        """Return the space as plain data, for the preregistration and for reports."""
        return {
            name: {"kind": type(range_).__name__, **vars(range_)} for name, range_ in self.items()
        }

    def edges(self, parameters: Parameters) -> dict[str, Edge]:
        """Return those of `parameters` that lie within 1% of an end on the search scale."""
        found = {name: _edge(self[name], parameters[name]) for name in self}
        return {name: edge for name, edge in found.items() if edge is not None}


def read_space(described: Mapping[str, Mapping[str, Any]]) -> Space:
    """Return the space that `Space.describe` wrote.

    >>> read_space(Space(margin=Real(0, 2)).describe())
    Space(margin=Real(low=0.0, high=2.0, log=False, natural='none'))
    """
    kinds = {kind.__name__: kind for kind in (Real, Integer, Choice)}
    ranges = {}
    for name, said in described.items():
        arguments: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in said.items()
            if key != "kind"
        }
        ranges[name] = kinds[said["kind"]](**arguments)
    return Space(**ranges)


def describe_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return in words how two described spaces differ.

    >>> describe_change(Space(margin=Real(0, 2)).describe(), Space(margin=Real(0, 3)).describe())
    'margin was searched in 0.0 to 2.0 and would now be searched in 0.0 to 3.0'
    """
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return "; ".join(
        f"{name} was {_searched(before.get(name))} and would now be {_searched(after.get(name))}"
        for name in changed
    )


def in_words(range_: Range) -> str:
    """Return how a range is searched, in words.

    >>> in_words(Real(0, 2))
    'searched in 0.0 to 2.0'
    """
    return _searched(vars(range_))


def _searched(said: Mapping[str, Any] | None) -> str:
    if said is None:
        return "not searched"
    if "options" in said:
        return f"one of {', '.join(map(str, said['options']))}"
    scale = " on a logarithmic scale" if said["log"] else ""
    return f"searched in {said['low']} to {said['high']}{scale}"


def _edge(range_: Range, value: Value) -> Edge | None:
    if isinstance(range_, Choice):
        return None
    share = range_.share(float(value))
    if share <= EDGE:
        return Edge("low", range_.low, range_.natural in ("low", "both"))
    if share >= 1 - EDGE:
        return Edge("high", range_.high, range_.natural in ("high", "both"))
    return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _at(low: float, high: float, log: bool, share: float) -> float:
    if log:
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return low + share * (high - low)


def _share(low: float, high: float, log: bool, value: float) -> float:
    if log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _check_range(low: float, high: float, log: bool) -> None:
    if not (low < high and math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"a range needs finite low < high, got [{low}, {high}]")
    if log and low <= 0:
        raise ValueError(f"a logarithmic range needs low > 0, got [{low}, {high}]")
