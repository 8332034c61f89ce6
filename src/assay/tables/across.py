"""Methods ranked over several data sets."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from assay.hashing import digest
from assay.records.lines import Setting
from assay.records.origin import Published
from assay.stats import Friedman, friedman, ranks, ties
from assay.stats.ranks import SAMPLED
from assay.tables.comparison import SETTINGS, Comparison
from assay.tables.studies import as_file_name
from assay.tables.table import Table, p_value

FEWEST_DATA_SETS, FEWEST_METHODS = 2, 3


@dataclass(frozen=True)
class Across:
    """The same methods under the same protocol on several data sets.

    Args:
        protocol: its name; that of a family where each data set has its own, as in the reality
            check.
        parts: a comparison for each data set.
    """

    protocol: str
    parts: tuple[Comparison, ...]

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods that all data sets have, without control twins."""
        first = self.parts[0]
        own = [method for method in first.methods if method not in first.family.twins]
        return [method for method in own if all(method in part.methods for part in self.parts)]

    @cached_property
    def data(self) -> list[str]:
        """Names of the data sets; data sets of one name are distinguished by their contents."""
        names = [part.data for part in self.parts]
        return [
            name if names.count(name) == 1 else f"{name} ({part.announced.data.trainval[:6]})"
            for name, part in zip(names, self.parts, strict=True)
        ]

    @property
    def given_by(self) -> str | None:
        """The origin of the parameters in words; None where they were searched."""
        return _source(self.parts[0])

    @property
    def slug(self) -> str:
        """The name of the section in file names."""
        parts = digest([part.slug for part in self.parts])[:8]
        words = f"several-{len(self.parts)}-{self.protocol}-{parts}"
        return as_file_name(words)

    def means(self, setting: Setting) -> dict[str, list[float]]:
        """Return MAP@R of each method on each data set, the mean over reproductions."""
        return {
            method: [part.interval(method, setting, "map_at_r").mean for part in self.parts]
            for method in self.methods
        }

    def test(self, setting: Setting) -> Friedman:
        """Compute Friedman's test of the ranks."""
        return friedman(self.means(setting))


def _source(comparison: Comparison) -> str | None:
    """Return where parameters come from, in words; a paper gives them for one data set each."""
    origin = comparison.origin
    return f"published by {origin.paper}" if isinstance(origin, Published) else comparison.given_by


def across(comparisons: Sequence[Comparison]) -> list[Across]:
    """Return the comparisons that share a protocol.

    They have at least three methods in common, over at least two data sets.
    """
    families: dict[tuple[str, str], dict[str, Comparison]] = {}
    for comparison in sorted(comparisons, key=lambda one: (-len(one.records), one.slug)):
        if len(comparison.records) >= FEWEST_METHODS:
            place = (
                without_data_set(comparison.protocol),
                f"{_source(comparison)} {digest(comparison.announced.environment)}",
            )
            families.setdefault(place, {}).setdefault(
                comparison.announced.data.trainval, comparison
            )
    found = [
        Across(protocol, tuple(sorted(by_data.values(), key=lambda one: one.slug)))
        for (protocol, _), by_data in families.items()
    ]
    large = [
        one
        for one in found
        if len(one.parts) >= FEWEST_DATA_SETS and len(one.methods) >= FEWEST_METHODS
    ]
    return sorted(large, key=lambda one: one.slug)


def without_data_set(protocol: str) -> str:
    """Return the name of a protocol without the name of a data set.

    >>> without_data_set("reality-check/cub.v1"), without_data_set("unbiased/resnet50.v1")
    ('reality-check.v1', 'unbiased/resnet50.v1')
    """
    return re.sub(r"/(cub|cars|sop|any)(?=\.v)", "", protocol)


def rank_tables(found: Across) -> list[Table]:
    """Return the tables of ranks over data sets by MAP@R, for single and concatenated models."""
    return [ranks_over_data(found, setting) for setting in reversed(SETTINGS)]


def ranks_over_data(found: Across, setting: Setting) -> Table:
    """Return the table of mean ranks, the best method first, with the rank on each data set."""
    test = found.test(setting)
    means = found.means(setting)
    order = sorted(found.methods, key=lambda method: (test.ranks[method], method))
    on_each = [
        ranks({method: [values[number]] for method, values in means.items()})
        for number in range(len(found.parts))
    ]
    by_method = {method: [column[method] for column in on_each] for method in found.methods}
    return Table(
        name=f"mean-ranks-{setting}",
        title=f"Mean ranks over {len(found.parts)} data sets, {setting}",
        note=(
            "Ranks by mean MAP@R on each data set; 1 is best. Friedman's chi-square"
            f" {test.chi_square:.2f}, {_p(test)}. Nemenyi's critical difference"
            f" {test.critical_difference:.2f}: methods whose mean ranks are closer do not differ"
            " significantly."
        ),
        groups=[("", 2), ("Rank on", len(found.parts))],
        columns=["method", "mean rank", *found.data],
        rows=[
            [method, f"{test.ranks[method]:.2f}", *(f"{rank:g}" for rank in by_method[method])]
            for method in order
        ],
        raw=[
            {
                "method": method,
                "mean_rank": test.ranks[method],
                **dict(zip(found.data, by_method[method], strict=True)),
                "critical_difference": test.critical_difference,
                "p": test.p,
                "p_from": test.p_from,
                "p_iman_davenport": test.p_f,
            }
            for method in order
        ],
    )


def in_words(found: Across, setting: Setting = "separated", alpha: float = 0.05) -> list[str]:
    """Return in words whether the ranks differ at all, and between which methods."""
    test = found.test(setting)
    widest = len(found.methods) - 1
    lines = [
        f"Over {len(found.parts)} data sets the methods' ranks"
        f" {'differ' if test.p <= alpha else 'do not differ beyond chance'} ({_p(test)})"
    ]
    if test.critical_difference >= widest:
        return [
            *lines,
            (
                f"No two methods can differ significantly by ranks over {len(found.parts)} data"
                f" sets: they would have to be {test.critical_difference:.1f} ranks apart, and"
                f" {widest} is the most there is; more data sets are needed"
            ),
        ]
    order = sorted(found.methods, key=lambda method: (test.ranks[method], method))
    apart = [
        f"{order[0]} (mean rank {test.ranks[order[0]]:.2f}) ranks above {method}"
        f" ({test.ranks[method]:.2f})"
        for method in order
        if test.p <= alpha and test.ranks[method] - test.ranks[order[0]] > test.critical_difference
    ]
    groups = [
        f"no significant difference: {', '.join(group)}"
        for group in ties(test.ranks, test.critical_difference)
    ]
    return [*lines, *apart, *groups]


def _p(test: Friedman) -> str:
    """Return the p value of a test and how it was computed, in words."""
    if test.p_from == "exact":
        return f"exact p {p_value(test.p)}"
    if test.p_from == "permutations":
        return f"p {p_value(test.p)} by {SAMPLED:,} random permutations of the ranks"
    return (
        f"Iman and Davenport's F {'infinite' if math.isinf(test.f) else f'{test.f:.2f}'}, p"
        f" {p_value(test.p)}"
    )
