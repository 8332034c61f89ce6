"""Verdicts on pairs of methods: in plain words, and as tables.

Every word follows from the simultaneous interval that is printed beside it.
"""

import math
from collections.abc import Sequence

from assay.records.lines import Setting
from assay.records.study import StudyRecord
from assay.stats import POWER, Difference, alpha_of_look
from assay.tables.comparison import Comparison
from assay.tables.family import is_settled
from assay.tables.length import not_converged_clause
from assay.tables.table import Table, ends, in_points, number_of, points

MANY = 15
"""Pairs above which a summary takes those of one method together."""
ONE_SEARCH = "at the parameters that one search found"
FORMS: dict[Setting, str] = {"separated": "single models", "concatenated": "concatenated models"}
WORTH_SEEING = (0.005, 0.01, 0.02)
"""Differences in MAP@R, as shares, for which the table says how many searches would find them."""


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
    lines = _settled(comparison, [one for one in found if is_settled(one)])
    same = [one for one in found if one.verdict == "equivalent"]
    if same:
        lines.append(
            f"{len(same)} of {len(found)} pairs: equivalent, within"
            f" {in_points(comparison.smallest)}"
        )
    undecided = [one for one in found if one.verdict == "undecided"]
    if undecided:
        hardest = max(undecided, key=lambda one: math.inf if one.needed is None else one.needed)
        takes = what_it_takes(comparison, hardest)
        lines.append(
            f"{len(undecided)} of {len(found)} pairs: undecided; for the widest of them, {takes}"
        )
    return lines


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


def _settled(comparison: Comparison, settled: Sequence[Difference]) -> list[str]:
    """Return a line for each method with the methods that it is better than."""
    by_first: dict[tuple[str, str], list[Difference]] = {}
    for difference in settled:
        by_first.setdefault((difference.first, difference.verdict), []).append(difference)
    lines = []
    for (first, verdict), pairs in by_first.items():
        by = sorted({f"{100 * pair.interval.mean:.1f}" for pair in pairs}, key=float)
        size = by[0] if len(by) == 1 else f"{by[0]} to {by[-1]}"
        others = [pair.second for pair in pairs]
        little = ", too little to matter" if verdict != "better" else ""
        added = _one_search(comparison, [first, *others]) + not_converged_clause(
            comparison, [first, *others]
        )
        lines.append(f"{first} is better than {', '.join(others)}, by {size} points{little}{added}")
    return lines


# --- tables ---------------------------------------------------------------------------------------


def differences(comparison: Comparison, setting: Setting) -> Table | None:
    """Return the table of every declared pair with its verdict; None where there is no pair."""
    found = comparison.differences(setting)
    if not found:
        return None
    other: Setting = "concatenated" if setting == "separated" else "separated"
    elsewhere = {frozenset((one.first, one.second)): one for one in comparison.differences(other)}
    return Table(
        name=f"differences-{setting}",
        title=f"Differences in MAP@R, {setting}",
        note=_note(comparison, found),
        columns=["first", "second", "difference", "interval", other, "verdict"],
        rows=[
            [
                d.first,
                d.second,
                f"{100 * d.interval.mean:+.2f}",
                (
                    ""
                    if d.interval.low is None
                    else f"{100 * d.interval.low:+.2f} to {100 * (d.interval.high or 0):+.2f}"
                ),
                _seen_from(d, elsewhere[frozenset((d.first, d.second))]),
                sentence(comparison, d),
            ]
            for d in found
        ],
        raw=[
            {
                "first": d.first,
                "second": d.second,
                "difference": d.interval.mean,
                "low": d.interval.low,
                "high": d.interval.high,
                "units": d.interval.n,
                "error": d.error,
                "freedom": d.freedom,
                "look": d.look,
                "comparisons": d.comparisons,
                "smallest": d.smallest,
                "needed": d.needed,
                "verdict": d.verdict,
                "in_words": sentence(comparison, d),
            }
            for d in found
        ],
    )


def needed(comparison: Comparison, setting: Setting) -> Table | None:
    """Return the table of how many searches would find a difference of so many points.

    None where no pair has a known spread.
    """
    by_size = {x: comparison.needed(setting, x) for x in WORTH_SEEING}
    found = [
        (d, {x: by_size[x][d.first, d.second] for x in WORTH_SEEING})
        for d in comparison.differences(setting)
        if d.freedom is not None
    ]
    if not found:
        return None
    unit = "searches" if comparison.replicated else "reproductions"
    return Table(
        name=f"needed-{setting}",
        title=f"{unit.capitalize()} needed to find a difference in MAP@R, {setting}",
        note=(
            f"Fewest {unit} of each method with which a true difference of so many points would be"
            f" found at least {POWER:.0%} of the time, at the level of the next look at this family"
            f" of {found[0][0].comparisons} pairs. From the upper 80% limit of what the scores vary"
            " by, since few values tell little of it. The differences are fixed beforehand: the"
            " one seen here says nothing about how many would have been needed."
        ),
        columns=["first", "second", "standard error", *(in_points(x) for x in WORTH_SEEING), "run"],
        rows=[
            [
                d.first,
                d.second,
                points(d.error),
                *(
                    "over 10,000" if (count := counts[x]) is None else f"{count:,}"
                    for x in WORTH_SEEING
                ),
                str(d.interval.n),
            ]
            for d, counts in found
        ],
        raw=[
            {
                "first": d.first,
                "second": d.second,
                "error": d.error,
                "units": d.interval.n,
                **{f"needed_{x}": counts[x] for x in WORTH_SEEING},
            }
            for d, counts in found
        ],
    )


def _note(comparison: Comparison, found: list[Difference]) -> str:
    unit = "searches" if comparison.replicated else "reproductions"
    level = f"{1 - sum(alpha_of_look(look) for look in {d.look for d in found}):.3g}"
    declared, references = comparison.pairs_paid_for, " and ".join(comparison.family.references)
    among = (
        f"each method with the declared reference, {references}"
        if comparison.family.references
        else "all pairs of methods"
    )
    few = among + (
        f", each with {comparison.family.yardstick}" if comparison.family.yardstick else ""
    )
    smallest = in_points(comparison.smallest)
    return (
        f"First minus second, in points of MAP@R, over {unit}, not paired. The intervals are"
        f" simultaneous: they hold all together with a probability of {level}, whichever of the"
        f" {declared} declared pairs are shown ({few}; methods without scores count). Words follow"
        f" from the interval alone: above 0, better; also below {smallest}, better but too little"
        f" to matter; around 0 and within {smallest} on both sides, equivalent; else undecided. A"
        f" bench of few {unit} will rarely say equivalent. The column before the verdict has the"
        " verdict of the other form."
    )


def _seen_from(difference: Difference, other: Difference) -> str:
    """Return the verdict of the other form, in the direction of this row."""
    if not is_settled(other):
        return other.verdict
    return (
        other.verdict
        if other.first == difference.first
        else other.verdict.replace("better", "worse")
    )
