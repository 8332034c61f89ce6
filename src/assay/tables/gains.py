"""The trend over the years: gains over the old baselines, as papers claimed and as measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.metric_names import heading
from assay.published import DATA, claimed_gains, measured_gains
from assay.published.results import OLD_BASELINES, Baseline, Gain
from assay.stats import Interval
from assay.tables.comparison import Comparison
from assay.tables.studies import year_of
from assay.tables.table import Table, gain, percent

WEAK: dict[Baseline, str] = {"contrastive": "contrastive_sampled", "triplet": "triplet_sampled"}
"""The baselines as much of the literature ran them: a few random pairs or triplets of a batch."""

Origin = Literal["claimed by papers", "measured by the reality check", "measured here"]


@dataclass(frozen=True)
class YearPoint:
    """A method's gain over a baseline in the year of its paper."""

    method: str
    year: int
    gain: Interval


def gains(comparison: Comparison) -> list[Table]:
    """Return each method against the full and the weak baselines, a table for each metric.

    There is no table where no baseline was benched.
    """
    beside = [
        name for old in OLD_BASELINES for name in (old, WEAK[old]) if name in comparison.methods
    ]
    left_out = {*beside, *comparison.family.twins}
    others = sorted(
        (name for name in comparison.methods if name not in left_out),
        key=lambda m: (year_of(comparison.record(m)) or math.inf, m),
    )
    if not beside or not others:
        return []
    metrics = dict.fromkeys([comparison.first_place, "map_at_r"])
    return [_gains_in(comparison, metric, beside, [*beside, *others]) for metric in metrics]


def _gains_in(comparison: Comparison, metric: str, beside: list[str], methods: list[str]) -> Table:
    found = {
        (m, baseline): (
            None if m == baseline else comparison.gain(m, baseline, "separated", metric)
        )
        for m in methods
        for baseline in beside
    }
    claimed = {
        (m, baseline): claim(comparison, m, baseline)
        for m in methods
        for baseline in OLD_BASELINES
        if metric != "map_at_r"
    }
    papers = [
        baseline
        for baseline in OLD_BASELINES
        if any(claimed.get((method, baseline)) is not None for method in methods)
    ]
    return Table(
        name=f"gains-{metric}",
        title=(
            f"Gain in {heading(metric)} over the old baselines,"
            f" measured{' and claimed' if papers else ''}"
        ),
        note=_note(comparison, bool(papers)),
        groups=[
            ("", 3),
            *([("Claimed gain, over", len(papers))] if papers else []),
            ("Measured gain, percent, over", len(beside)),
        ],
        columns=["method", "year", heading(metric), *papers, *beside],
        rows=[
            [
                method,
                _year_text(comparison, method),
                percent(comparison.interval(method, "separated", metric)),
                *(
                    "" if (share := claimed[method, baseline]) is None else f"{100 * share:+.0f}"
                    for baseline in papers
                ),
                *(gain(found[method, baseline]) for baseline in beside),
            ]
            for method in methods
        ],
        raw=[
            {
                "method": method,
                "year": _year_text(comparison, method),
                "baseline": baseline,
                "gain": interval.mean if interval else None,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "claimed": next(
                    (claimed[method, full] for full in papers if full == baseline), None
                ),
            }
            for (method, baseline), interval in found.items()
        ],
    )


def trend(comparison: Comparison, baseline: Baseline, metric: str) -> dict[Origin, list[YearPoint]]:
    """Return the gains over a baseline by year, for the methods that have a year.

    There are none where the baseline was not benched.
    """
    if baseline not in comparison.methods:
        return {}
    years = {
        record.method: year
        for record in comparison.records
        if (year := year_of(record)) is not None
    }
    beside = {*OLD_BASELINES, *WEAK.values(), *comparison.family.twins}
    later = {method: year for method, year in years.items() if method not in beside}
    measured = [
        YearPoint(method, year, found)
        for method, year in later.items()
        if (found := comparison.gain(method, baseline, "separated", metric)) is not None
    ]
    of_theirs = measured_gains("map_at_r" if metric == "map_at_r" else "precision_at_1", later)
    claims = [] if metric == "map_at_r" else claimed_gains()
    series: dict[Origin, list[YearPoint]] = {
        "claimed by papers": _points(comparison, claims, baseline, later),
        "measured by the reality check": _points(comparison, of_theirs, baseline, later),
        "measured here": sorted(measured, key=lambda point: (point.year, point.method)),
    }
    return {origin: points for origin, points in series.items() if points} if measured else {}


def claim(comparison: Comparison, method: str, baseline: Baseline) -> float | None:
    """Return the gain in P@1 that a paper claimed for the method.

    On this data set if the paper reports it, else the mean over the paper's data sets.
    """
    found = [
        one.gain
        for one in _on_data(comparison, claimed_gains())
        if (one.method, one.baseline) == (method, baseline)
    ]
    return math.fsum(found) / len(found) if found else None


def trend_in_words(comparison: Comparison) -> list[str]:
    """Return the claimed and the measured gains over each baseline, a line each."""
    return [
        line
        for in_words in (_in_words, _weak_in_words)
        for baseline in OLD_BASELINES
        for line in in_words(comparison, baseline)
    ]


def _in_words(comparison: Comparison, baseline: Baseline) -> list[str]:
    metric = comparison.first_place
    series = trend(comparison, baseline, metric)
    if not series:
        return []
    measured = [point.gain for point in series["measured here"]]
    ends = [end for gain in measured for end in (gain.low, gain.high) if end is not None]
    reach = (
        f"; 95% intervals reach from {100 * min(ends):+.1f}% to {100 * max(ends):+.1f}%"
        if ends
        else ""
    )
    means = _range([gain.mean for gain in measured])
    said = (
        f"Over {baseline}, later methods were measured at {means} in {heading(metric)} here (single"
        f" models{reach})"
    )
    claims = series.get("claimed by papers")
    if not claims:
        return [said]
    names = ", ".join(dict.fromkeys(point.method for point in claims))
    return [f"{said}; papers claimed {_range([point.gain.mean for point in claims])} for {names}"]


def _weak_in_words(comparison: Comparison, baseline: Baseline) -> list[str]:
    weak = WEAK[baseline]
    if not {baseline, weak} <= set(comparison.methods):
        return []
    found = comparison.gain(weak, baseline, "separated", "map_at_r")
    if found is None:
        return []
    side = "below" if found.mean < 0 else "above"
    return [
        f"{weak}, the baseline as much of the literature ran it, lies {100 * abs(found.mean):.1f}%"
        f" {side} {baseline} in MAP@R: a gain over it says that much less"
    ]


def _range(shares: Sequence[float]) -> str:
    low, high = f"{100 * min(shares):+.1f}%", f"{100 * max(shares):+.1f}%"
    return low if low == high else f"{low} to {high}"


def _year_text(comparison: Comparison, method: str) -> str:
    year = year_of(comparison.record(method))
    return "" if year is None else str(year)


def _note(comparison: Comparison, claimed: bool) -> str:
    text = (
        "Gain: by how many percent of the baseline's score a method lies above it, single models,"
        " with 95% intervals that are not paired (Welch, delta method). contrastive_sampled and"
        " triplet_sampled are the weak baselines of the literature: a few random pairs or triplets"
        " of each batch."
    )
    where = (
        "on this data set"
        if comparison.data in DATA
        else "on CUB-200, Cars196 and Online Products, averaged"
    )
    return text + claimed * f" Claimed: by the method's own paper over its own baseline, {where}."


def _points(
    comparison: Comparison, found: Sequence[Gain], baseline: Baseline, years: dict[str, int]
) -> list[YearPoint]:
    """Return a point for each method: its mean over data sets, or its value on this data set."""
    by_method: dict[tuple[str, int], list[float]] = {}
    for one in _on_data(comparison, found):
        if one.baseline == baseline and one.method in years:
            by_method.setdefault((one.method, one.year), []).append(one.gain)
    return [
        YearPoint(method, year, Interval(math.fsum(values) / len(values), None, None, len(values)))
        for (method, year), values in sorted(
            by_method.items(), key=lambda item: (item[0][1], item[0][0])
        )
    ]


def _on_data(comparison: Comparison, found: Sequence[Gain]) -> list[Gain]:
    return [one for one in found if comparison.data not in DATA or one.data == comparison.data]
