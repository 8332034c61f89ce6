"""Figures over data sets and over the values of a sweep."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from assay.metric_names import heading, in_percent
from assay.records.lines import Setting
from assay.report.figures import FAINT, INK, SERIES
from assay.stats import Friedman, ties
from assay.tables import Across, Sweep
from assay.tables.comparison import SETTINGS

MARKERS = "osD^vP*X"
STEP = 0.34
"""Height of a line of names in a diagram of ranks."""


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


def sweep_figure(sweep: Sweep, metric: str) -> Figure:
    """Draw a metric over the values of a field, single and concatenated models side by side.

    Each method has a line with 95% intervals.
    """
    figure = Figure(figsize=(9.2, 3.5), layout="constrained")
    panels = figure.subplots(1, 2, squeeze=False)[0]
    for axes, setting in zip(panels, SETTINGS, strict=True):
        for number, method in enumerate(sweep.methods):
            _draw_line(axes, sweep, method, setting, metric, number)
        _draw_values(axes, sweep)
        unit = ", percent" if in_percent(metric) else ""
        axes.set_ylabel(f"test {heading(metric)}{unit}")
        axes.set_title(setting, fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False
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
) -> None:
    unit = 100 if in_percent(metric) else 1
    found = [
        (place, sweep.interval(method, value, setting, metric))
        for place, value in zip(_places(sweep), sweep.values, strict=True)
    ]
    there = [(place, interval) for place, interval in found if interval is not None]
    axes.errorbar(
        [place for place, _ in there],
        [unit * interval.mean for _, interval in there],
        yerr=[unit * (interval.half or 0) for _, interval in there],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        capsize=2.5,
        linewidth=1.3,
        color=SERIES[number % len(SERIES)],
        label=method,
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
