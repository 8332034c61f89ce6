"""Figures of a comparison, as SVG and PNG; the same studies give the same bytes."""

from io import BytesIO
from typing import Literal

from matplotlib import rc_context
from matplotlib.figure import Figure

from assay.tables import Comparison
from assay.tables.comparison import SETTINGS

Form = Literal["svg", "png"]
FORMS: tuple[Form, ...] = ("svg", "png")
COLOURS = {"concatenated": "#1f5fa8", "separated": "#c2571a"}
INK, FAINT = "#222222", "#dddddd"


def intervals(comparison: Comparison) -> Figure:
    """MAP@R of every method with its 95% interval, the best on top."""
    methods = sorted(comparison.methods, key=lambda name: comparison.interval(name, "separated", "map_at_r").mean)
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
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel("test MAP@R, percent, with 95% intervals over reproductions")
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.legend(loc="lower right", frameon=False)
    return figure


def draw(figure: Figure, form: Form) -> bytes:
    """The figure's file, without a date or a random name in it."""
    content = BytesIO()
    with rc_context({"svg.hashsalt": "assay", "font.family": "DejaVu Sans", "font.size": 9}):
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(content, format=form, dpi=160, metadata=metadata)
    return content.getvalue()
