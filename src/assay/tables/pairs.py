"""Tables of pairs of methods: their differences, and the searches needed to find one."""

from assay.records.lines import Setting
from assay.stats import POWER, Difference, alpha_of_look
from assay.tables.comparison import Comparison
from assay.tables.family import is_settled
from assay.tables.form import Table, in_points, points
from assay.tables.verdicts import sentence

WORTH_SEEING = (0.005, 0.01, 0.02)
"""Differences in MAP@R, as shares, for which the table says how many searches would find them."""


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
                *(_count(counts[x]) for x in WORTH_SEEING),
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


def _count(count: int | None) -> str:
    return "over 10,000" if count is None else f"{count:,}"
