"""Three embeddings that R@1, NMI and F1 call equally good, and MAP@R does not.

    python examples/misleading_metrics.py --out misleading_metrics.png

After Figure 1 of A Metric Learning Reality Check (Musgrave et al. 2020, arxiv.org/abs/2003.08505),
with a construction of our own: seven classes are discs of 50 points each, and nothing changes but
how far apart the discs stand. As soon as they no longer touch, the nearest neighbour is of the
class and k-means finds every disc, so R@1, NMI and F1 have nothing left to tell. Who looks further
than one neighbour still meets other classes, until the discs are as far apart as they are wide.

It is not a matter of the ceiling: with a few points of each class astray in another disc, R@1, NMI
and F1 fall, by the same amount in all three.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

import assay

SPACINGS = {"nearly touching": 2.2, "a little apart": 2.6, "well apart": 4.0}
"""Distance between neighbouring centres, in radii of a disc."""

CENTRES = np.array([(0, 0), *((np.cos(turn), np.sin(turn)) for turn in np.arange(6) * np.pi / 3)])
POINTS = 50
ASTRAY = 3

METRICS = {
    "R@1": "precision_at_1",
    "NMI": "nmi",
    "AMI": "ami",
    "F1": "f1",
    "RP": "r_precision",
    "MAP@R": "map_at_r",
}
TELLING = ("RP", "MAP@R")

COLOURS = "#555555", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7"
"""Okabe and Ito's, which the colour-blind can tell apart; the markers differ too."""

MARKERS = "Xos^Dvp"
INK, FAINT, FRAME, ACCENT = "#222222", "#666666", "#cccccc", "#a3002f"


def embedding(spacing: float, astray: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points (350, 2) and their classes: the same discs of radius 1 at any spacing.

    The first `astray` points of each class huddle together in the middle of the next disc.
    """
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(len(CENTRES)), POINTS)
    angle, radius = draw.uniform(0, 2 * np.pi, len(y)), np.sqrt(draw.uniform(0, 1, len(y)))
    lost = np.arange(len(y)) % POINTS < astray
    radius[lost] *= 0.15
    disc = np.where(lost, (y + 1) % len(CENTRES), y)
    return (
        spacing * CENTRES[disc]
        + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1),
        y,
    )


def score(astray: int = 0) -> dict[str, assay.Scores]:
    """All metrics of the three embeddings."""
    found = {name: embedding(spacing, astray) for name, spacing in SPACINGS.items()}
    return {
        name: assay.evaluate(z, y, list(METRICS.values()), similarity="euclidean")
        for name, (z, y) in found.items()
    }


def table(found: dict[str, assay.Scores]) -> str:
    """The scores in percent, as Markdown."""
    lines = [f"| discs | {' | '.join(METRICS)} |", f"| --- |{' ---: |' * len(METRICS)}"]
    for name, scores in found.items():
        lines.append(
            f"| {name} |"
            f" {' | '.join(f'{100 * scores[metric]:.1f}' for metric in METRICS.values())} |"
        )
    return "\n".join(lines)


def picture(found: dict[str, assay.Scores]) -> Figure:
    """A panel for each embedding, all to one scale, its scores below it."""
    figure = Figure(figsize=(10.2, 4.05))
    panels = figure.subplots(1, len(found), sharex=True, sharey=True)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.86, bottom=0.13, wspace=0.05)
    for axes, (name, scores) in zip(panels, found.items(), strict=True):
        axes.set(aspect="equal", xticks=[], yticks=[])
        axes.set_title(name, fontsize=13, color=INK, pad=22)
        axes.spines[:].set_color(FRAME)
        draw_points(axes, SPACINGS[name])
        draw_search(axes, SPACINGS[name], scores)
        write_scores(axes, scores)
    return figure


def draw_points(axes: Axes, spacing: float) -> None:
    """Classes by colour and marker."""
    z, y = embedding(spacing)
    for number, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        axes.scatter(
            z[y == number, 0], z[y == number, 1], s=14, c=colour, marker=marker, linewidths=0
        )


def draw_search(axes: Axes, spacing: float, scores: assay.Scores) -> None:
    """One query, the same in all panels, with a ring around its R nearest."""
    z, y = embedding(spacing)
    wanted = POINTS - 1
    query = int(z[y == 0, 1].argmax())  # at the upper edge of the disc in the middle
    reach = np.sort(np.linalg.norm(z - z[query], axis=1))[wanted]
    axes.add_patch(Circle((z[query, 0], z[query, 1]), reach, fill=False, color=INK, linewidth=1.2))
    axes.scatter(
        z[query, 0],
        z[query, 1],
        s=170,
        c=INK,
        marker="*",
        edgecolors="white",
        linewidths=0.9,
        zorder=3,
    )
    right = round(wanted * scores.per_query("r_precision")[query])
    said = f"of the {wanted} nearest to ★, {right} are of its class"
    axes.text(0.5, 1.025, said, fontsize=9.5, color=INK, ha="center", transform=axes.transAxes)


def write_scores(axes: Axes, scores: assay.Scores) -> None:
    """Names and values below the panel; what tells the panels apart stands out."""
    for place, (name, metric) in enumerate(METRICS.items()):
        tells = name in TELLING
        weight = "bold" if tells else "normal"
        style: dict[str, Any] = {
            "color": ACCENT if tells else FAINT,
            "ha": "center",
            "va": "top",
            "transform": axes.transAxes,
        }
        across = (place + 0.5) / len(METRICS)
        axes.text(across, -0.03, name, fontsize=9.5, **style)
        axes.text(
            across, -0.09, f"{100 * scores[metric]:.1f}", fontsize=10.5, weight=weight, **style
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("misleading_metrics.png"),
        help="where to write the picture",
    )
    out = parser.parse_args(arguments).out
    found = score()
    print(
        f"{table(found)}\n\n{ASTRAY} of {POINTS} points of each class"
        f" astray:\n\n{table(score(ASTRAY))}"
    )
    picture(found).savefig(out, format="png", dpi=150, metadata={"Software": None})
    print(f"\nThe picture: {out}")


if __name__ == "__main__":
    main()
