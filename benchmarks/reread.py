"""The reality check's tables read again: which of its differences remain if searching has luck of
its own.

python benchmarks/reread.py [--out docs/results/reality-check-reread]

Musgrave, Belongie and Lim (2020, arxiv.org/abs/2003.08505) searched each of 14 methods once on each
data set and ran the parameters found ten times. Their intervals are over those runs. Another search
would have found other parameters; by how much scores differ for that reason was not measured. So
the spread of the search is assumed here, and the result is an estimate.

With se the standard error of a mean of ten runs (half the published interval over t(9, 0.975)) and
s the assumed standard deviation over searches, the difference of two methods with one search each
has

    V = 2 s^2 + se_a^2 + se_b^2,    nu = 9 V^2 / (se_a^4 + se_b^4)   (s is known, so it takes no
    degrees of freedom)

and two methods are different where |difference| > t(nu, 1 - 0.05 / (2 x 91)) sqrt(V): all 91 pairs
of a data set at 5% together.

ProxyNCA and normalised softmax are one loss under two names, with T = 1 / (2 k)
(`benchmarks/same_loss.py`), searched in two spaces. Of that pair the script says from which spread
on it is not different any more.
"""

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from assay.published import DATA, REALITY_CHECK, reported
from assay.records.lines import Setting

SPREADS = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Assumed standard deviations over searches, in points of MAP@R."""

ONE_LOSS = "normalized_softmax", "proxy_nca"
METHODS = tuple(
    method for method in dict.fromkeys(REALITY_CHECK.values()) if method != "pretrained"
)
PAIRS = tuple(combinations(METHODS, 2))
RUNS, ALPHA = 10, 0.05
SETTINGS: tuple[Setting, ...] = ("concatenated", "separated")


@dataclass(frozen=True)
class Score:
    """A published score: mean and standard error over ten runs of one search, in points."""

    mean: float
    error: float


@dataclass(frozen=True)
class Pair:
    """Two scores that are compared as one of `comparisons` pairs."""

    first: Score
    second: Score
    comparisons: int = len(PAIRS)

    @property
    def gap(self) -> float:
        """By how much the means differ."""
        return abs(self.first.mean - self.second.mean)

    @property
    def error(self) -> float:
        """Standard error of the gap over runs alone."""
        return math.hypot(self.first.error, self.second.error)

    def needed(self, spread: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how large the gap must be where searches have this spread, for each of several."""
        variance = 2 * spread**2 + self.error**2
        freedom = (RUNS - 1) * variance**2 / (self.first.error**4 + self.second.error**4)
        return np.asarray(
            stats.t.ppf(1 - ALPHA / (2 * self.comparisons), freedom) * np.sqrt(variance)
        )

    def differs(self, spread: float) -> bool:
        """Return whether the gap is larger than that."""
        return bool(self.gap > self.needed(np.array(spread)))

    @property
    def usual_spread(self) -> float:
        """The spread of the search for which the squared gap of two searches of one loss is
        expected to be as large as this.
        """
        return math.sqrt(max(0.0, self.gap**2 - self.error**2) / 2)

    @property
    def last_spread(self) -> float:
        """The spread of the search from which on the two are not different; 0 where they are not
        even without one.

        Degrees of freedom grow with the spread, so that a little of it may make two methods
        different that were not: the last spread counts at which they are.
        """
        spreads = np.linspace(0, self.gap, 10_001)
        return float(max(spreads[self.gap > self.needed(spreads)], default=0.0))


@cache
def scores(data: str, setting: Setting) -> dict[str, Score]:
    """Return MAP@R of the 14 methods on a data set."""
    found = {}
    for method in METHODS:
        said = reported(method, data, "map_at_r", setting)
        assert said is not None and said.half_width is not None and said.runs == RUNS, (
            method,
            data,
        )
        found[method] = Score(
            100 * said.mean, 100 * said.half_width / float(stats.t.ppf(0.975, RUNS - 1))
        )
    return found


def pairs(data: str, setting: Setting) -> dict[tuple[str, str], Pair]:
    """Return all pairs of methods on a data set."""
    found = scores(data, setting)
    return {(a, b): Pair(found[a], found[b]) for a, b in PAIRS}


def remaining(data: str, setting: Setting, spread: float) -> int:
    """Return how many of the 91 pairs are different."""
    return sum(pair.differs(spread) for pair in pairs(data, setting).values())


def one_loss(data: str, setting: Setting) -> Pair:
    """Return the pair of the two names of one loss, as one of the 91."""
    found = scores(data, setting)
    return Pair(found[ONE_LOSS[0]], found[ONE_LOSS[1]])


def count_rows() -> list[dict[str, object]]:
    """Return a row for each data set and form: pairs that remain at each spread."""
    return [
        {
            "data": DATA[data],
            "form": setting,
            **{f"{spread:g}": remaining(data, setting, spread) for spread in SPREADS},
        }
        for setting in reversed(SETTINGS)
        for data in DATA
    ]


def gap_rows() -> list[dict[str, object]]:
    """Return a row for each data set and form: the gap between the two names of one loss."""
    rows: list[dict[str, object]] = []
    for setting in reversed(SETTINGS):
        for data in DATA:
            pair = one_loss(data, setting)
            alone = Pair(pair.first, pair.second, comparisons=1)
            rows.append(
                {
                    "data": DATA[data],
                    "form": setting,
                    "gap": round(pair.gap, 2),
                    "standard errors": round(pair.gap / pair.error, 1),
                    "different, no spread": "yes" if pair.differs(0) else "no",
                    "not different from": round(pair.last_spread, 2),
                    "alone, from": round(alone.last_spread, 2),
                    "spread for such a gap": round(pair.usual_spread, 2),
                }
            )
    return rows


def best_rows() -> list[dict[str, object]]:
    """Return a row for each data set and form: how many of the 13 others are not shown to differ
    from the best method.
    """
    rows: list[dict[str, object]] = []
    for setting in reversed(SETTINGS):
        for data in DATA:
            means = {method: score.mean for method, score in scores(data, setting).items()}
            best = max(means, key=means.__getitem__)
            own = [pair for names, pair in pairs(data, setting).items() if best in names]
            counts = {
                f"{spread:g}": sum(not pair.differs(spread) for pair in own) for spread in SPREADS
            }
            rows.append({"data": DATA[data], "form": setting, "best": best, **counts})
    return rows


def as_markdown(rows: Sequence[dict[str, object]]) -> str:
    """Return rows as a table of a page."""
    header = list(rows[0])
    lines = [
        header,
        ["---" if column in ("data", "form", "best") else "---:" for column in header],
        *(row.values() for row in rows),
    ]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def figure() -> Figure:
    """Return pairs that remain over the spread, and where the two names of one loss are not
    different any more.
    """
    made = Figure(figsize=(7.2, 3.4), layout="constrained")
    colours = {"cub": "#0072b2", "cars": "#d55e00", "sop": "#009e73"}
    spreads = [number / 100 for number in range(121)]
    for axes, setting in zip(made.subplots(1, 2, sharey=True), reversed(SETTINGS), strict=True):
        for data, name in DATA.items():
            colour, last = colours[data], one_loss(data, setting).last_spread
            axes.plot(
                spreads,
                [remaining(data, setting, spread) for spread in spreads],
                color=colour,
                label=name,
            )
            axes.plot(
                [last],
                [remaining(data, setting, last)],
                "o",
                color=colour,
                markersize=7,
                markeredgecolor="black",
                zorder=3,
            )
        axes.set(
            title=setting,
            xlabel="assumed spread of the search, points",
            ylim=(0, 91),
            xlim=(-0.02, 1.2),
        )
        axes.spines[["top", "right"]].set_visible(False)
    made.axes[0].set_ylabel("pairs of 91 that are different")
    made.axes[1].legend(frameon=False)
    return made


def write(out: Path) -> None:
    """Write the figure, and of every pair the spread from which on it is not different."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for form in ("png", "svg"):
        with rc_context({"svg.hashsalt": "assay", "font.size": 9}):
            metadata = {"Date": None} if form == "svg" else {"Software": None}
            figure().savefig(out.with_suffix(f".{form}"), dpi=150, metadata=metadata)
    with out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            [
                "data",
                "form",
                "first",
                "second",
                "difference",
                "standard_error",
                "not_different_from",
            ]
        )
        for setting in reversed(SETTINGS):
            for data in DATA:
                for names, pair in pairs(data, setting).items():
                    gap = pair.first.mean - pair.second.mean
                    writer.writerow(
                        [
                            data,
                            setting,
                            *names,
                            f"{gap:.2f}",
                            f"{pair.error:.4f}",
                            f"{pair.last_spread:.4f}",
                        ]
                    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/reality-check-reread"))
    out = parser.parse_args().out
    write(out)
    print(
        *map(as_markdown, (count_rows(), gap_rows(), best_rows())),
        f"written: {out}.png, .svg, .csv",
        sep="\n\n",
    )


if __name__ == "__main__":
    main()
