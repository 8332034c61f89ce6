"""Gains over baselines that papers claimed, and the gains that the reality check measured."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from assay.published.names import DATA, REALITY_CHECK, rows
from assay.published.studies import reported

Baseline = Literal["contrastive", "triplet"]
BASELINES: tuple[Baseline, ...] = ("contrastive", "triplet")

_AS_REPORTED: dict[str, Baseline] = {
    "Contrastive (baseline as reported)": "contrastive",
    "Triplet (baseline as reported)": "triplet",
}


@dataclass(frozen=True)
class Gain:
    """The share of the baseline's score by which a method lies above it: 0.5 is half as much again.

    Args:
        method: by our name.
        year: of the paper that says so.
        baseline: contrastive or triplet, as that paper reported it.
        data: cub, cars or sop.
        metric: by our name.
        gain: (method - baseline) / baseline.
    """

    method: str
    year: int
    baseline: Baseline
    data: str
    metric: str
    gain: float


@cache
def claimed_gains() -> tuple[Gain, ...]:
    """Return the gains in P@1 that papers claimed over the baseline in the same paper.

    Only gains for which both scores are known are returned.
    """
    ours = {theirs: name for name, theirs in DATA.items()}
    baselines = {
        (row["paper"], row["dataset"], _AS_REPORTED[row["method"]]): float(row["value"])
        for row in rows("mlrc_reported")
        if row["method"] in _AS_REPORTED
    }
    return tuple(
        Gain(
            row["method"],
            int(row["year"]),
            baseline,
            ours[row["dataset"]],
            "precision_at_1",
            float(row["value"]) / below - 1,
        )
        for row in rows("claims")
        for baseline in BASELINES
        if (below := baselines.get((row["paper"], row["dataset"], baseline))) is not None
    )


def measured_gains(metric: str, years: dict[str, int]) -> tuple[Gain, ...]:
    """Return the gains of single models in the reality check, for methods with a given year."""
    methods = [method for method in dict.fromkeys(REALITY_CHECK.values()) if method in years]
    return tuple(
        Gain(method, years[method], baseline, data, metric, above.mean / below.mean - 1)
        for method in methods
        for baseline in BASELINES
        for data in DATA
        if method != baseline
        and (above := reported(method, data, metric, "separated")) is not None
        and (below := reported(baseline, data, metric, "separated")) is not None
    )
