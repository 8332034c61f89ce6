"""What values a part's arguments may have.

Each check returns the value, or raises a `ValueError` with it and what is allowed.
"""

import math
from numbers import Real
from typing import Literal

BatchKind = Literal["embedding", "classification", "pairs"]
"""Shapes of training batch: of methods that compare samples, that compare with class weights, that
want two of a class.
"""


def at_least(low: float, name: str, value: float) -> float:
    """A finite number not below `low`.

    >>> at_least(0, "margin", -0.5)
    Traceback (most recent call last):
    ...
    ValueError: margin is a number of at least 0, got -0.5
    """
    return _accept(
        _is_finite(value) and value >= low, f"{name} is a number of at least {low}", value
    )


def above(low: float, name: str, value: float) -> float:
    """A finite number above `low`."""
    return _accept(_is_finite(value) and value > low, f"{name} is a number above {low}", value)


def between(low: float, high: float, name: str, value: float) -> float:
    """A number from `low` to `high`, both ends included."""
    return _accept(
        _is_finite(value) and low <= value <= high,
        f"{name} is a number from {low} to {high}",
        value,
    )


def inside(low: float, high: float, name: str, value: float) -> float:
    """A number between `low` and `high`, without these ends."""
    return _accept(
        _is_finite(value) and low < value < high,
        f"{name} is a number above {low} and below {high}",
        value,
    )


def whole(least: int, name: str, value: int) -> int:
    """A whole number of at least `least`."""
    return int(
        _accept(
            _is_finite(value) and value == int(value) >= least,
            f"{name} is a whole number of at least {least}",
            value,
        )
    )


def one_of(options: tuple[str, ...], name: str, value: str) -> str:
    """One of a few words."""
    if value not in options:
        raise ValueError(f"{name} is one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _accept(good: bool, rule: str, value: float) -> float:
    if not good:
        raise ValueError(f"{rule}, got {value!r}")
    return value
