"""Differences in plain words.

Every word follows from the simultaneous interval that is printed beside it.
"""

import math
from collections.abc import Sequence

from assay.records.lines import Setting
from assay.records.study import StudyRecord
from assay.stats import Difference
from assay.tables.comparison import Comparison
from assay.tables.family import is_settled
from assay.tables.form import ends, in_points, number_of
from assay.tables.length import not_converged_clause

MANY = 15
"""Pairs above which a summary takes those of one method together."""
ONE_SEARCH = "at the parameters that one search found"
FORMS: dict[Setting, str] = {"separated": "single models", "concatenated": "concatenated models"}


def sentence(comparison: Comparison, difference: Difference) -> str:
    """Return the result of a comparison of two methods, for a reader who skips the figures."""
    pair = [difference.first, difference.second]
    takes = (
        f"; {what_it_takes(comparison, difference)}" if difference.verdict == "undecided" else ""
    )
    return (
        _verdict(difference)
        + _one_search(comparison, pair)
        + takes
        + not_converged_clause(comparison, pair)
    )


def summary(comparison: Comparison, setting: Setting = "separated") -> list[str]:
    """Return the verdicts in a few lines, pair by pair while there are few pairs.

    Control twins have lines of their own.
    """
    twins = comparison.family.twins.keys()
    found = [one for one in comparison.differences(setting) if not {one.first, one.second} & twins]
    if len(found) <= MANY:
        return [sentence(comparison, difference) for difference in found]
    lines = _together(comparison, [one for one in found if is_settled(one)])
    same = [one for one in found if one.verdict == "equivalent"]
    if same:
        lines.append(
            f"{len(same)} of {len(found)} pairs: equivalent, within"
            f" {in_points(comparison.smallest)}"
        )
    return lines + _undecided(
        comparison, [one for one in found if one.verdict == "undecided"], len(found)
    )


def covered(comparison: Comparison) -> str:
    """Return which sources of uncertainty the intervals cover, and which they leave out."""
    fixed = (
        "Folds and test classes are the same for all methods, and the intervals do not cover them"
    )
    if comparison.replicated:
        return f"Intervals cover the luck of the search and of the training seed. {fixed}."
    if comparison.searched_once:
        return (
            f"Verdicts are {ONE_SEARCH}: intervals cover the training seed, and the luck of the"
            " search is not covered. Another search could give another order; --set searches=4"
            f" measures it. {fixed}."
        )
    return f"Intervals cover the luck of the training seed; nothing was searched. {fixed}."


def estimated(comparison: Comparison) -> str:
    """Return in words which quantity the scores estimate."""
    if comparison.replicated:
        return (
            "Estimated: the expected test score, over searches and training seeds, of this budget"
            " of search and then training."
        )
    if comparison.searched_once:
        return f"Estimated: the expected test score, over training seeds, {ONE_SEARCH}."
    return (
        "Estimated: the expected test score, over training seeds, of training with the given"
        " parameters."
    )


def unit_of(record: StudyRecord) -> str:
    """Return the name of the independent values of a study."""
    return "search" if record.searches > 1 else "reproduction"


def what_it_takes(comparison: Comparison, difference: Difference) -> str:
    """Return how many searches would find the smallest difference that matters.

    The observed difference is never used.
    """
    records = [comparison.record(name) for name in (difference.first, difference.second)]
    varied = [record for record in records if len(record.units("separated", "map_at_r")) > 1]
    if not varied:
        return "one value each has no interval; --set searches=4 gives one"
    unit = "search" if any(record.searches > 1 for record in varied) else "reproduction"
    of = "each" if len(varied) == 2 else varied[0].method
    units = [record.units("separated", "map_at_r") for record in varied]
    if all(len(set(values)) == 1 for values in units):
        return (
            f"all {unit}{'es' if unit == 'search' else 's'} gave the same score, so their spread is"
            " not known"
        )
    if min(map(len, units)) == 2 and unit == "search":
        return "two searches hardly show a spread; begin with --set searches=4"
    find = f"would find a difference of {in_points(difference.smallest)} 4 times in 5"
    if difference.needed is None:
        return (
            f"no number of {unit}es that can be run {find}"
            if unit == "search"
            else f"no number of reproductions {find}"
        )
    run = min(map(len, units))
    if difference.needed <= run:
        return f"the {number_of(run, unit)} of {of} {find}"
    return (
        f"{number_of(difference.needed, unit)} of {of} {find}"
        f" ({_setting(varied[0], unit, difference.needed)})"
    )


def _setting(record: StudyRecord, unit: str, needed: int) -> str:
    """Return the settings that ask for that many searches.

    A study that searches nothing reproduces once for each search of the protocol.
    """
    if unit == "search":
        return f"--set searches={needed}"
    searches = int(record.announced.protocol.resolved.searches)
    return f"--set reproductions={math.ceil(needed / searches)}"


def _verdict(difference: Difference) -> str:
    first, second = difference.first, difference.second
    if is_settled(difference):
        by = f"{100 * difference.interval.mean:.1f}"
        little = ", too little to matter" if difference.verdict != "better" else ""
        return (
            f"{first} is better than {second} by {by} points ({ends(difference.interval)}){little}"
        )
    if difference.verdict == "equivalent":
        return (
            f"{first} and {second} are equivalent: within {in_points(difference.smallest)}"
            f" ({ends(difference.interval)})"
        )
    seen = f" ({ends(difference.interval)})" if difference.interval.low is not None else ""
    return f"{first} and {second}: undecided{seen}"


def _one_search(comparison: Comparison, methods: Sequence[str]) -> str:
    return f", {ONE_SEARCH}" if set(methods) & set(comparison.searched_once) else ""


def _together(comparison: Comparison, settled: Sequence[Difference]) -> list[str]:
    """Return a line for each method with the methods that it is better than."""
    by_first: dict[tuple[str, str], list[Difference]] = {}
    for difference in settled:
        by_first.setdefault((difference.first, difference.verdict), []).append(difference)
    return [
        _line(comparison, first, verdict, pairs) for (first, verdict), pairs in by_first.items()
    ]


def _line(comparison: Comparison, first: str, verdict: str, pairs: Sequence[Difference]) -> str:
    by = sorted({f"{100 * pair.interval.mean:.1f}" for pair in pairs}, key=float)
    points = by[0] if len(by) == 1 else f"{by[0]} to {by[-1]}"
    others = [pair.second for pair in pairs]
    little = ", too little to matter" if verdict != "better" else ""
    added = _one_search(comparison, [first, *others]) + not_converged_clause(
        comparison, [first, *others]
    )
    return f"{first} is better than {', '.join(others)}, by {points} points{little}{added}"


def _undecided(comparison: Comparison, found: Sequence[Difference], pairs: int) -> list[str]:
    if not found:
        return []
    hardest = max(found, key=lambda one: math.inf if one.needed is None else one.needed)
    takes = what_it_takes(comparison, hardest)
    return [f"{len(found)} of {pairs} pairs: undecided; for the widest of them, {takes}"]
