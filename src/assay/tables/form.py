"""What a table is, and how numbers are written in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.stats import Interval
from assay.tables.columns import in_percent

Raw = Mapping[str, object]


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
    """Mean and half-width: in percent, or as it is where the metric is no share."""
    return percent(interval) if in_percent(metric) else _with_half(interval, 1, ".3f")


def percent(interval: Interval) -> str:
    """Mean and half-width in percent."""
    return _with_half(interval, 100, ".2f")


def gain(interval: Interval | None) -> str:
    """A relative gain in percent, with its sign."""
    return "" if interval is None else _with_half(interval, 100, ".1f", sign="+")


def points(value: float | None) -> str:
    """A share in points of a percentage; nothing where there is none."""
    return "" if value is None else f"{100 * value:.2f}"


def p_value(p: float) -> str:
    """p, as small as it is worth reading."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def raw_interval(interval: Interval) -> dict[str, object]:
    """The columns that an interval has in a CSV."""
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "reproductions": interval.n}


def _with_half(interval: Interval, unit: float, form: str, sign: str = "") -> str:
    mean = format(unit * interval.mean, sign + form)
    return mean if interval.half is None else f"{mean} ± {format(unit * interval.half, form)}"
