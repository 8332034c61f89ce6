"""The form of a table, and how numbers are written in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.metric_names import in_percent
from assay.stats import Interval

Raw = Mapping[str, object]

FEW = 6
"""Names that a sentence lists; more are counted."""


@dataclass(frozen=True)
class Table:
    """A table for people (`columns`, `rows`) and the same for programs (`raw`, full precision).

    Args:
        name: for files.
        title: above it.
        note: below it.
        groups: a heading over several columns: text and how many; empty where there is none.
        columns: headings.
        rows: cells as text.
        best: cells (row, column) to set in bold.
        raw: one mapping per row of the CSV.
    """

    name: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    raw: Sequence[Raw]
    groups: Sequence[tuple[str, int]] = ()
    best: frozenset[tuple[int, int]] = frozenset()


def score(interval: Interval, metric: str) -> str:
    """Return mean and half-width: in percent, or unchanged where the metric is not a share."""
    return percent(interval) if in_percent(metric) else _with_half(interval, 1, ".3f")


def percent(interval: Interval) -> str:
    """Return mean and half-width in percent."""
    return _with_half(interval, 100, ".2f")


def gain(interval: Interval | None) -> str:
    """Return a relative gain in percent, with its sign."""
    return "" if interval is None else _with_half(interval, 100, ".1f", sign="+")


def points(value: float | None) -> str:
    """Return a share in percentage points; nothing where there is none."""
    return "" if value is None else f"{100 * value:.2f}"


def number_of(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> number_of(1, "search"), number_of(1200, "search"), number_of(3, "reproduction")
    ('1 search', '1,200 searches', '3 reproductions')
    """
    plural = (
        f"{what}es"
        if what.endswith("ch")
        else f"{what[:-1]}ies"
        if what.endswith("dy")
        else f"{what}s"
    )
    return f"{count:,} {what if count == 1 else plural}"


def in_points(share: float) -> str:
    """Return a declared difference in percentage points.

    >>> in_points(0.01), in_points(0.005)
    ('1 point', '0.5 points')
    """
    size = f"{100 * share:g}"
    return f"{size} point{'s' * (size != '1')}"


def ends(interval: Interval) -> str:
    """Return the ends of an interval in points.

    They have a second decimal where the first would hide the sign.

    >>> ends(Interval(0.02, 0.008, 0.034, 4)), ends(Interval(0.002, 0.0003, 0.0041, 4))
    ('0.8 to 3.4', '0.03 to 0.41')
    """
    if interval.low is None or interval.high is None:
        return ""
    low, high = 100 * interval.low, 100 * interval.high
    small = any(0 < abs(end) < 0.05 for end in (low, high))
    return f"{low:.2f} to {high:.2f}" if small else f"{low:.1f} to {high:.1f}"


def together(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> together(["a"]), together(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def named(methods: Sequence[str]) -> str:
    """Return the names of a few methods as a sentence lists them, or how many there are.

    >>> named(["a", "b"]), named(["method"] * 8)
    ('a and b', '8 methods')
    """
    return together(methods) if len(methods) <= FEW else f"{len(methods)} methods"


def p_value(p: float) -> str:
    """Return p as text, rounded to the digits worth reading."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def raw_interval(interval: Interval) -> dict[str, object]:
    """Return the columns that an interval has in a CSV."""
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "units": interval.n}


def _with_half(interval: Interval, unit: float, form: str, sign: str = "") -> str:
    mean = format(unit * interval.mean, sign + form)
    return mean if interval.half is None else f"{mean} ± {format(unit * interval.half, form)}"
