"""Sources of uncertainty: the search, the training seed, the fold, the test classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.records.lines import Setting
from assay.stats import (
    Component,
    Components,
    aa_difference,
    class_error,
    components,
    deviation,
    over_classes,
    with_limits,
)
from assay.tables.comparison import Comparison
from assay.tables.table import Table, points
from assay.tables.verdicts import covered, sentence

SOURCES = ("search", "seed", "search and seed together", "fold", "test classes")


@dataclass(frozen=True)
class Sources:
    """Standard deviations of a method's MAP@R (single models) by source; None where not known."""

    method: str
    by_name: Mapping[str, Component | None]


def sources_of(comparison: Comparison) -> list[Sources]:
    """Return the sources of each method's uncertainty."""
    found = []
    for record in comparison.records:
        over = (
            components(record.by_search("separated", "map_at_r"))
            if len(record.tests) > 1
            else Components(None, None, None)
        )
        folds = [
            [float(fold["map_at_r"]) for fold in test.folds] for test in record.tests if test.folds
        ]
        per_class = comparison.classes.get(record.key)
        by_name = {
            "search": over.search,
            "seed": over.seed,
            "search and seed together": over.together if over.seed is None else None,
            "fold": _over_folds(folds) if folds else None,
            "test classes": class_error(
                per_class.separated, np.zeros_like(per_class.separated), per_class.queries
            )
            if per_class
            else None,
        }
        found.append(Sources(record.method, by_name))
    return found


def sources(comparison: Comparison) -> Table:
    """Return the table of sources, each with its own uncertainty."""
    found = sources_of(comparison)
    names = [
        name
        for name in SOURCES
        if any(one.by_name[name] for one in found) or name == "test classes"
    ]
    return Table(
        name="sources",
        title="Where uncertainty comes from",
        note=(
            "By how much the MAP@R of single models would move, in points (standard deviation,"
            " with its 95% limits), if one thing were drawn again. Search: another search with its"
            " own selection. Seed: another training with the same parameters. Fold: one model"
            " trained on other classes. Test classes: as many other classes to test on (standard"
            f" error of the score). {_apart(comparison)}{covered(comparison)}"
        ),
        columns=["method", *names],
        rows=[[one.method, *(_cell(one, name) for name in names)] for one in found],
        raw=[
            {
                "method": one.method,
                "source": name,
                "deviation": spread.deviation if spread else None,
                "low": spread.low if spread else None,
                "high": spread.high if spread else None,
            }
            for one in found
            for name in names
            for spread in [one.by_name[name]]
        ],
    )


def classes(comparison: Comparison, setting: Setting) -> Table | None:
    """Return the differences with test classes redrawn instead of searches.

    None where classes were not recorded.
    """
    by_method = {record.method: comparison.classes.get(record.key) for record in comparison.records}
    found = []
    for difference in comparison.differences(setting):
        first, second = by_method[difference.first], by_method[difference.second]
        if first is not None and second is not None:
            interval = over_classes(
                getattr(first, setting), getattr(second, setting), first.queries
            )
            found.append((difference, interval))
    if not found:
        return None
    return Table(
        name=f"classes-{setting}",
        title=f"Differences in MAP@R over test classes, {setting}",
        note=(
            "First minus second, in points, with a 95% interval for other test classes of the same"
            " kind, the same classes for both methods. Searches and seeds stay as they were; no"
            " correction for the number of pairs, and no verdict."
        ),
        columns=["first", "second", "difference", "95% interval over classes"],
        rows=[
            [
                d.first,
                d.second,
                f"{100 * i.mean:+.2f}",
                (
                    ""
                    if i.low is None or i.high is None
                    else f"{100 * i.low:+.2f} to {100 * i.high:+.2f}"
                ),
            ]
            for d, i in found
        ],
        raw=[
            {
                "first": d.first,
                "second": d.second,
                "difference": i.mean,
                "low": i.low,
                "high": i.high,
                "classes": i.n,
            }
            for d, i in found
        ],
    )


def control(comparison: Comparison, setting: Setting = "separated") -> list[str]:
    """Return by how much two searches of one method differ, and the result of a control twin."""
    spreads = {
        record.method: deviation(record.units(setting, "map_at_r"))
        for record in comparison.records
        if record.searched and record.searches > 1
    }
    lines = []
    if spreads:
        each = ", ".join(
            f"{method} {100 * aa_difference([spread]):.2f}" for method, spread in spreads.items()
        )
        lines.append(
            "Two independent searches of the same method differ by about"
            f" {100 * aa_difference(list(spreads.values())):.2f} points of MAP@R on these data"
            f" (root mean square over methods; {each})"
        )
    for twin, original in comparison.family.twins.items():
        pair = [
            one
            for one in comparison.differences(setting)
            if {one.first, one.second} == {twin, original}
        ]
        lines += [
            f"Control: {twin} is {original} with seeds of its own; {sentence(comparison, one)}"
            for one in pair
        ]
    return lines


def _over_folds(rows: Sequence[Sequence[float]]) -> Component | None:
    """Return the spread over folds, each averaged over all runs.

    The folds are the same in every search.
    """
    means = np.mean(rows, axis=0)
    return with_limits(deviation(means.tolist()), len(means) - 1) if len(means) > 1 else None


def _apart(comparison: Comparison) -> str:
    if comparison.replicated and all(
        len(record.tests) == record.searches for record in comparison.records
    ):
        return (
            "With one reproduction of each search, the effects of search and seed cannot be"
            " separated. "
        )
    return ""


def _cell(one: Sources, name: str) -> str:
    found = one.by_name[name]
    if found is not None:
        return f"{points(found.deviation)} ({points(found.low)} to {points(found.high)})"
    return "not recorded" if name == "test classes" else ""
