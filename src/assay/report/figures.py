"""Figures of a report, as SVG and PNG; the same studies give the same bytes."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from assay.metric_names import heading, in_percent
from assay.published.results import OLD_BASELINES
from assay.records.lines import Setting
from assay.stats import Friedman, Interval, ties
from assay.tables import Across, Comparison, Sweep
from assay.tables.comparison import SETTINGS
from assay.tables.gains import Origin, YearPoint, trend
from assay.tables.peeking import prices
from assay.tables.sources import SOURCES, sources_of

Form = Literal["svg", "png"]
FIGURE_FORMS: tuple[Form, ...] = ("svg", "png")
COLOURS = {"concatenated": "#1f5fa8", "separated": "#c2571a"}
SERIES = ("#1f5fa8", "#c2571a", "#2f8f5b", "#8a4fa3", "#b8860b", "#4a4a4a", "#d6478a", "#1c9aa8")
INK, FAINT = "#222222", "#dddddd"
FARTHEST = 4
"""Multiple of the largest deviation at which the axis of sources ends: limits from few searches
reach far beyond.
"""

ORIGINS: dict[Origin, tuple[str, str]] = {
    "claimed by papers": ("^", "#c2571a"),
    "measured by the reality check": ("s", "#8c96a3"),
    "measured here": ("o", "#1f5fa8"),
}
"""Marker and colour of each origin of a gain."""

MARKERS = "osD^vP*X"
STEP = 0.34
"""Height of a line of names in a diagram of ranks."""


LITERAL: dict[Any, Any] = {"text.parse_math": False}
"""Settings under which figures are made: a method may be called `a$b$`, which is no formula."""


def draw(figure: Figure, form: Form) -> bytes:
    """Return the contents of the figure's file, without a date or a random name."""
    own: dict[Any, Any] = {"svg.hashsalt": "assay", "font.family": "DejaVu Sans", "font.size": 9}
    content = BytesIO()
    with rc_context({**LITERAL, **own}):
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(content, format=form, dpi=160, metadata=metadata)
    return content.getvalue()


# --- of a comparison ------------------------------------------------------------------------------


@rc_context(LITERAL)
def intervals(comparison: Comparison) -> Figure:
    """Draw MAP@R of every method with its 95% interval, the best on top."""
    methods = sorted(
        comparison.methods, key=lambda name: comparison.interval(name, "separated", "map_at_r").mean
    )
    figure = Figure(figsize=(7.2, 1.3 + 0.42 * len(methods)), layout="constrained")
    axes = figure.add_subplot()
    for setting, shift in zip(SETTINGS, (0.13, -0.13), strict=True):
        found = [comparison.interval(method, setting, "map_at_r") for method in methods]
        axes.errorbar(
            [100 * interval.mean for interval in found],
            [row + shift for row in range(len(methods))],
            xerr=[100 * (interval.half or 0) for interval in found],
            fmt="o",
            markersize=4.5,
            capsize=3,
            color=COLOURS[setting],
            label=setting,
        )
    units = "searches" if comparison.replicated else "reproductions"
    axes.set_xlabel(f"test MAP@R, percent, with 95% intervals over {units}")
    _list_methods(axes, methods)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


@rc_context(LITERAL)
def over_the_years(comparison: Comparison) -> Figure | None:
    """Draw the relative gain over contrastive and over triplet by year, claimed and measured.

    Return None where neither baseline was benched.
    """
    metrics = list(dict.fromkeys([comparison.first_place, "map_at_r"]))
    baselines = [baseline for baseline in OLD_BASELINES if trend(comparison, baseline, "map_at_r")]
    if not baselines:
        return None
    figure = Figure(figsize=(4.6 * len(baselines) + 0.6, 3.1 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), len(baselines), squeeze=False)
    for row, metric in enumerate(metrics):
        for column, baseline in enumerate(baselines):
            series = trend(comparison, baseline, metric)
            _draw_trend(
                panels[row][column], series, f"gain in {heading(metric)} over {baseline}, %"
            )
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
    )
    return figure


@rc_context(LITERAL)
def where_from(comparison: Comparison) -> Figure | None:
    """Draw standard deviations by source, each with its 95% limits, a row for each method.

    Return None where no source is known.
    """
    found = sources_of(comparison)[::-1]
    names = [name for name in SOURCES if any(one.by_name[name] for one in found)]
    if not names:
        return None
    figure = Figure(figsize=(7.2, 1.5 + 0.62 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        there = [(row, one.by_name[name]) for row, one in enumerate(found)]
        known = [(row, spread) for row, spread in there if spread is not None]
        axes.errorbar(
            [100 * spread.deviation for _, spread in known],
            [row + 0.66 * ((len(names) - 0.5 - number) / len(names) - 0.5) for row, _ in known],
            xerr=[
                [100 * (spread.deviation - spread.low) for _, spread in known],
                [100 * (spread.high - spread.deviation) for _, spread in known],
            ],
            fmt="o",
            markersize=4,
            capsize=2.5,
            color=SERIES[SOURCES.index(name)],
            label=name,
        )
    spreads = [spread for one in found for spread in one.by_name.values() if spread is not None]
    reach = min(
        1.05 * max(spread.high for spread in spreads),
        FARTHEST * max(spread.deviation for spread in spreads),
    )
    axes.set_xlim(0, 100 * reach or 1)
    axes.set_xlabel("standard deviation of test MAP@R if drawn again, points, with 95% limits")
    _list_methods(axes, [one.method for one in found])
    figure.legend(loc="outside upper center", ncols=len(names), frameon=False)
    return figure


@rc_context(LITERAL)
def price_of_peeking(comparison: Comparison) -> Figure | None:
    """Draw the gain from choosing epoch or parameters on the test half.

    Return None where no checkpoints were kept.
    """
    found = sorted(prices(comparison), key=lambda price: price.both)
    if not found:
        return None
    figure = Figure(figsize=(7.2, 1.5 + 0.42 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    kinds: dict[str, list[Interval | None]] = {
        "epoch chosen on test": [price.epoch for price in found],
        "parameters chosen on test": [price.parameters for price in found],
    }
    for (label, gains), shift, colour in zip(
        kinds.items(), (0.13, -0.13), SERIES[2:4], strict=True
    ):
        rows = [row for row, gain in enumerate(gains) if gain is not None]
        there = [gain for gain in gains if gain is not None]
        bounds = [gain.mean if gain.low is None else gain.low for gain in there]
        below = [100 * (gain.mean - low) for gain, low in zip(there, bounds, strict=True)]
        axes.errorbar(
            [100 * gain.mean for gain in there],
            [row + shift for row in rows],
            xerr=[below, [0.0] * len(there)],
            fmt="D",
            markersize=4,
            capsize=3,
            color=colour,
            label=label,
        )
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("what peeking would have added, points of test MAP@R (not a result)")
    _list_methods(axes, [price.method for price in found])
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _list_methods(axes: Axes, methods: Sequence[str]) -> None:
    """Write the methods down the side, with a faint grid behind."""
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, colors=INK)


def _draw_trend(axes: Axes, series: dict[Origin, list[YearPoint]], label: str) -> None:
    for origin, points in series.items():
        marker, colour = ORIGINS[origin]
        axes.errorbar(
            _spread_out([point.year for point in points]),
            [100 * point.gain.mean for point in points],
            yerr=[100 * (point.gain.half or 0) for point in points],
            fmt=marker,
            markersize=5,
            capsize=2.5,
            linewidth=1,
            color=colour,
            label=origin,
        )
    years = [point.year for points in series.values() for point in points]
    axes.set_xlim(min(years) - 0.8, max(years) + 0.8)
    axes.set_xticks(range(min(years), max(years) + 1))
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_ylabel(label)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _spread_out(years: Sequence[int]) -> list[float]:
    """Return the years as positions, methods of the same year side by side."""
    places = []
    for number, year in enumerate(years):
        same = [index for index, other in enumerate(years) if other == year]
        places.append(year + 0.5 * ((same.index(number) + 0.5) / len(same) - 0.5))
    return places


# --- of several data sets, and of a sweep ---------------------------------------------------------


@rc_context(LITERAL)
def critical_difference_diagram(found: Across, setting: Setting = "separated") -> Figure:
    """Draw mean ranks on a line, the best on the left (Demsar 2006).

    A bar joins methods that do not differ by the critical difference.
    """
    test = found.test(setting)
    groups = ties(test.ranks, test.critical_difference)
    order = sorted(test.ranks, key=lambda method: (test.ranks[method], method))
    half = (len(order) + 1) // 2
    depth = STEP * (half + 0.4) + 0.16 * len(groups)
    figure = Figure(figsize=(7.6, 1.25 + depth), layout="constrained")
    axes = figure.add_subplot()
    _draw_scale(axes, len(order), test)
    for level, group in enumerate(groups):
        ends = test.ranks[group[0]] - 0.04, test.ranks[group[-1]] + 0.04
        axes.plot(ends, [-0.2 - 0.16 * level] * 2, color=INK, linewidth=3.2, solid_capstyle="butt")
    start = -0.2 - 0.16 * len(groups)
    _draw_names(axes, order[:half], test.ranks, start, 1 - 0.12 * len(order), "right")
    _draw_names(axes, order[half:][::-1], test.ranks, start, len(order) + 0.12 * len(order), "left")
    axes.set_xlim(1 - 0.42 * len(order), len(order) + 0.42 * len(order))
    axes.set_ylim(start - STEP * (half + 0.3), 0.95)
    axes.axis("off")
    return figure


@rc_context(LITERAL)
def sweep_figure(sweep: Sweep, metric: str) -> Figure:
    """Draw a metric over the values of a field, single and concatenated models side by side.

    Each method has a line with 95% intervals.
    """
    figure = Figure(figsize=(9.2, 3.5), layout="constrained")
    panels = figure.subplots(1, 2, squeeze=False)[0]
    lines: dict[str, Any] = {}
    for axes, setting in zip(panels, SETTINGS, strict=True):
        for number, method in enumerate(sweep.methods):
            lines[method] = _draw_line(axes, sweep, method, setting, metric, number)
        _draw_values(axes, sweep)
        unit = ", percent" if in_percent(metric) else ""
        axes.set_ylabel(f"test {heading(metric)}{unit}")
        axes.set_title(setting, fontsize=9)
    figure.legend(
        list(lines.values()),
        list(lines),  # as labels of the lines, names that begin with _ would be left out
        loc="outside lower center",
        ncols=min(4, len(lines)),
        frameon=False,
    )
    return figure


def _draw_scale(axes: Axes, count: int, test: Friedman) -> None:
    axes.plot([1, count], [0, 0], color=INK, linewidth=1)
    for rank in range(1, count + 1):
        axes.plot([rank, rank], [0, 0.09], color=INK, linewidth=1)
        axes.text(rank, 0.14, str(rank), ha="center", va="bottom", fontsize=8, color=INK)
    reach = min(test.critical_difference, count - 1)
    axes.plot([1, 1 + reach], [0.6, 0.6], color=SERIES[1], linewidth=1.6, marker="|", markersize=7)
    beyond = " (longer than the scale)" if test.critical_difference > count - 1 else ""
    label = f"critical difference {test.critical_difference:.2f}{beyond}"
    axes.text(1 + reach / 2, 0.68, label, ha="center", va="bottom", fontsize=8, color=SERIES[1])


def _draw_names(
    axes: Axes,
    methods: Sequence[str],
    ranks: Mapping[str, float],
    start: float,
    side: float,
    align: str,
) -> None:
    """Draw a line from each rank down and out to its name."""
    for row, method in enumerate(methods):
        height = start - STEP * (row + 0.8)
        axes.plot(
            [ranks[method], ranks[method], side],
            [0, height, height],
            color="#7a8594",
            linewidth=0.9,
        )
        name = (
            f"{method}  {ranks[method]:.2f}"
            if align == "right"
            else f"{ranks[method]:.2f}  {method}"
        )
        gap = -0.05 if align == "right" else 0.05
        axes.text(side + gap, height, name, ha=align, va="center", fontsize=8.5, color=INK)


def _draw_line(
    axes: Axes, sweep: Sweep, method: str, setting: Setting, metric: str, number: int
) -> ErrorbarContainer:
    unit = 100 if in_percent(metric) else 1
    found = [
        (place, sweep.interval(method, value, setting, metric))
        for place, value in zip(_places(sweep), sweep.values, strict=True)
    ]
    there = [(place, interval) for place, interval in found if interval is not None]
    return axes.errorbar(
        [place for place, _ in there],
        [unit * interval.mean for _, interval in there],
        yerr=[unit * (interval.half or 0) for _, interval in there],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        capsize=2.5,
        linewidth=1.3,
        color=SERIES[number % len(SERIES)],
    )


def _draw_values(axes: Axes, sweep: Sweep) -> None:
    if sweep.logarithmic:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_places(sweep)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter(sweep.values))
    axes.set_xlabel(sweep.field)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _places(sweep: Sweep) -> list[float]:
    """Return the positions of the values: numbers on a logarithmic axis, else evenly spaced."""
    return (
        [float(value) for value in sweep.values]
        if sweep.logarithmic
        else [float(number) for number in range(len(sweep.values))]
    )
