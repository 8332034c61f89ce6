"""Published scores beside scores measured with the published parameters or protocol."""

from collections.abc import Iterator
from dataclasses import dataclass

from assay.metric_names import DEFAULT_METRICS, heading
from assay.protocols import CUSTOM
from assay.published import DATA, Elsewhere, Reported, elsewhere, in_its_paper, reported
from assay.published.results import OtherBenchmark
from assay.records.lines import Setting
from assay.records.origin import Published
from assay.stats import Interval
from assay.tables.comparison import SETTINGS, Comparison
from assay.tables.table import Table, percent, points

RECALL = "recall_at_1"
"""The metric in which the papers of the methods reported."""


@dataclass(frozen=True)
class Pair:
    """A published score and the same score measured here."""

    method: str
    setting: Setting
    metric: str
    published: Reported
    measured: Interval

    @property
    def inside(self) -> bool | None:
        """Whether the measured mean lies in the published interval; None without an interval."""
        low, high = self.published.low, self.published.high
        return None if low is None or high is None else low <= self.measured.mean <= high

    @property
    def overlap(self) -> bool | None:
        """Whether the two intervals overlap; None where either has no ends."""
        theirs, ours = (
            (self.published.low, self.published.high),
            (self.measured.low, self.measured.high),
        )
        if theirs[0] is None or theirs[1] is None or ours[0] is None or ours[1] is None:
            return None
        return theirs[0] <= ours[1] and ours[0] <= theirs[1]

    @property
    def sentence(self) -> str:
        """The comparison in plain words."""
        off = 100 * (self.measured.mean - self.published.mean)
        apart = f"{abs(off):.2f} points {'above' if off > 0 else 'below'}"
        if self.inside is None:
            return f"published without an interval; measured {apart} it"
        if self.inside:
            return "the measured mean lies in the published interval"
        shared = {
            True: "; the intervals overlap",
            False: "; the intervals do not overlap",
            None: "",
        }[self.overlap]
        return f"the measured mean lies outside the published interval, {apart} its mean{shared}"


def pairs(comparison: Comparison) -> list[Pair]:
    """Return every score published for these methods on the data set of the parameters."""
    origin = comparison.origin
    if not isinstance(origin, Published) or origin.data not in DATA:
        return []
    return [
        Pair(method, setting, metric, found, comparison.interval(method, setting, metric))
        for setting in SETTINGS
        for metric in comparison.metrics
        if metric in DEFAULT_METRICS
        for method in comparison.methods
        if (found := reported(method, origin.data, metric, setting)) is not None
    ]


def published_sentences(comparison: Comparison) -> list[str]:
    """Return for each method whether its MAP@R comes out as published, and the count.

    MAP@R is of concatenated models, with which the paper's tables begin.
    """
    found = [
        pair
        for pair in pairs(comparison)
        if (pair.setting, pair.metric) == ("concatenated", "map_at_r")
    ]
    changed = "under changed settings " if CUSTOM in comparison.protocol else ""
    lines = [f"{pair.method}: {changed}{pair.sentence}" for pair in found]
    judged = [pair for pair in found if pair.inside is not None]
    inside = sum(bool(pair.inside) for pair in judged)
    return (
        [
            *lines,
            (
                f"{inside} of {len(judged)} methods lie in the published interval of MAP@R"
                " (concatenated)"
            ),
        ]
        if judged
        else lines
    )


def published_or_measured(comparison: Comparison) -> Table | None:
    """Return the table of published and measured scores; None where nothing was published."""
    found = pairs(comparison)
    if not found:
        return None
    return Table(
        name="published",
        title="Published versus measured",
        note=(
            f"Parameters {comparison.given_by}; nothing was searched. Published: mean and 95%"
            " interval of tables 4 to 6 of the reality check, 10 reproductions. Measured: mean and"
            " 95% t-interval over reproductions here. In percent."
        ),
        columns=["method", "setting", "metric", "published", "measured", "in words"],
        rows=[
            [
                pair.method,
                pair.setting,
                heading(pair.metric),
                _published(pair.published),
                percent(pair.measured),
                pair.sentence,
            ]
            for pair in found
        ],
        raw=[
            {
                "method": pair.method,
                "setting": pair.setting,
                "metric": pair.metric,
                "published": pair.published.mean,
                "published_half_width": pair.published.half_width,
                "measured": pair.measured.mean,
                "low": pair.measured.low,
                "high": pair.measured.high,
                "inside": pair.inside,
                "overlap": pair.overlap,
            }
            for pair in found
        ],
    )


def beside_other_studies(comparison: Comparison) -> Table | None:
    """Return the scores of the unbiased evaluation or the revisiting study beside those measured.

    They appear where their protocol was run on their data.
    """
    found = list(_others(comparison))
    if not found:
        return None
    return Table(
        name="beside",
        title="Beside the published scores of the study that this protocol follows",
        note=(
            "Published scores were tuned and their checkpoints chosen on the test half (maxima over"
            " epochs), one run or a standard deviation over runs; measured ones choose on"
            " validation folds and have 95% t-intervals. Single models, in percent."
        ),
        columns=["method", "metric", "published", "measured"],
        rows=[
            [method, heading(one.metric), _elsewhere(one), percent(measured)]
            for method, one, measured in found
        ],
        raw=[
            {
                "method": method,
                "metric": one.metric,
                "published": one.mean,
                "published_deviation": one.deviation,
                "measured": measured.mean,
                "low": measured.low,
                "high": measured.high,
            }
            for method, one, measured in found
        ],
    )


def beside_the_papers(comparison: Comparison) -> Table | None:
    """Return R@1 as the papers of the methods report it, as the unbiased evaluation measured it,
    and as measured here.

    The table appears under a protocol of the unbiased evaluation, on one of its data sets.
    """
    if not comparison.protocol.startswith("unbiased/") or RECALL not in comparison.metrics:
        return None
    by_study = {method: one.mean for method, one, _ in _others(comparison) if one.metric == RECALL}
    found = [
        (method, paper, by_study.get(method), comparison.interval(method, "separated", RECALL))
        for method in comparison.methods
        if (paper := in_its_paper(method, comparison.data)) is not None
    ]
    if not found:
        return None
    return Table(
        name="reported",
        title="R@1 as papers report it, as the unbiased evaluation measured it, and as measured",
        note=(
            "Reported: by the paper of each method, with the trunk, width and last layer named"
            " here, which differ from method to method. Study: one run of the unbiased evaluation"
            " on this protocol's trunk, tuned on the test half. Measured: single models, chosen on"
            " validation folds, 95% t-interval. Empty where no score is known. In percent."
        ),
        groups=[("", 1), ("Reported", 4), ("Study", 1), ("Measured", 1)],
        columns=["method", "trunk", "dim", "normalised", *[heading(RECALL)] * 3],
        rows=[
            [
                method,
                paper.trunk,
                paper.dim,
                "yes" if paper.normalised else "no",
                points(paper.recall_at_1),
                points(studied),
                percent(measured),
            ]
            for method, paper, studied, measured in found
        ],
        raw=[
            {
                "method": method,
                "trunk": paper.trunk,
                "dim": paper.dim,
                "normalised": paper.normalised,
                "metric": RECALL,
                "reported": paper.recall_at_1,
                "study": studied,
                "measured": measured.mean,
                "low": measured.low,
                "high": measured.high,
            }
            for method, paper, studied, measured in found
        ],
    )


def _others(comparison: Comparison) -> Iterator[tuple[str, Elsewhere, Interval]]:
    family = comparison.protocol.partition("/")[0]
    studies: dict[str, OtherBenchmark] = {"unbiased": "unbiased", "revisiting": "revisiting"}
    if family not in studies:
        return
    trunk = comparison.announced.protocol.resolved.trunk
    for method in comparison.methods:
        for one in elsewhere(method, comparison.data, studies[family]):
            if one.trunk == trunk and one.metric in comparison.metrics:
                yield method, one, comparison.interval(method, "separated", one.metric)


def _published(found: Reported) -> str:
    mean = f"{100 * found.mean:.2f}"
    return mean if found.half_width is None else f"{mean} ± {100 * found.half_width:.2f}"


def _elsewhere(found: Elsewhere) -> str:
    mean = f"{100 * found.mean:.2f}"
    return mean if found.deviation is None else f"{mean} (deviation {100 * found.deviation:.2f})"
