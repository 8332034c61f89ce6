"""The tables of pairs of methods: what they differ by, and what it would take to see it."""

from dataclasses import dataclass

from assay.stats import POWER, Difference, reproductions_to_see
from assay.tables.comparison import Comparison, Setting
from assay.tables.form import Table, p_value, points
from assay.tables.verdicts import sentence, to_see

WORTH_SEEING = (0.005, 0.01, 0.02)
"""Differences in MAP@R, as shares, for which the table says how many reproductions would see them."""


def differences(comparison: Comparison, setting: Setting) -> Table:
    """Every pair of methods with its verdict."""
    found = comparison.differences(setting)
    return Table(
        name=f"differences-{setting}",
        title=f"Paired differences in MAP@R, {setting}",
        note=(
            "First minus second, in points of MAP@R, over paired reproductions (same seeds, folds and first trunk). "
            "p by a paired t test, adjusted for all pairs of this table by Holm's method; the interval is not adjusted. "
            "Effect: mean difference in standard deviations of the differences."
        ),
        columns=["first", "second", "difference", "95% interval", "p (Holm)", "effect", "verdict"],
        rows=[
            [
                d.first,
                d.second,
                f"{100 * d.interval.mean:+.2f}",
                "" if d.interval.low is None else f"{100 * d.interval.low:+.2f} to {100 * (d.interval.high or 0):+.2f}",
                "" if d.p is None else p_value(d.p),
                "" if d.effect is None else f"{d.effect:.1f}",
                sentence(d, len(found)),
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
                "reproductions": d.interval.n,
                "p_holm": d.p,
                "effect": d.effect,
                "verdict": d.verdict,
            }
            for d in found
        ],
    )


def needed(comparison: Comparison, setting: Setting) -> Table | None:
    """How many reproductions would see a difference of so many points; None where no pair says how far differences vary."""
    found = [_Needed.of(d) for d in comparison.differences(setting) if d.deviation is not None]
    if not found:
        return None
    return Table(
        name=f"needed-{setting}",
        title=f"Reproductions needed to see a difference in MAP@R, {setting}",
        note=(
            f"Fewest reproductions with which a difference of so many points would be found at least {POWER:.0%} of the time, if "
            "differences vary over reproductions as they did here, at the strictest step of Holm's correction for all pairs of "
            "this table. The deviation is itself an estimate: with few reproductions take these numbers for their order."
        ),
        columns=["first", "second", "deviation", *(f"{100 * x:g} points" for x in WORTH_SEEING), "as seen here", "in words"],
        rows=[
            [
                one.pair.first,
                one.pair.second,
                points(one.pair.deviation),
                *(to_see(one.counts[x]) for x in WORTH_SEEING),
                f"{100 * one.pair.interval.mean:.2f}: {to_see(one.as_seen)}",
                one.in_words,
            ]
            for one in found
        ],
        raw=[
            {
                "first": one.pair.first,
                "second": one.pair.second,
                "deviation": one.pair.deviation,
                "reproductions": one.pair.interval.n,
                **{f"needed_{x}": one.counts[x] for x in WORTH_SEEING},
                "difference": one.pair.interval.mean,
                "needed_difference": one.as_seen,
            }
            for one in found
        ],
    )


@dataclass(frozen=True)
class _Needed:
    """A pair, and the reproductions that would see each difference worth seeing, and the one seen."""

    pair: Difference
    counts: dict[float, int | None]
    as_seen: int | None

    @classmethod
    def of(cls, pair: Difference) -> "_Needed":
        assert pair.deviation is not None
        counts = {x: reproductions_to_see(x, pair.deviation, pair.comparisons) for x in WORTH_SEEING}
        return cls(pair, counts, reproductions_to_see(pair.interval.mean, pair.deviation, pair.comparisons))

    @property
    def in_words(self) -> str:
        """The smallest of the differences worth seeing that as many reproductions as were run can see."""
        ran = self.pair.interval.n
        seen = [x for x, count in self.counts.items() if count is not None and count <= ran]
        if seen:
            return f"the {ran} reproductions run can see {100 * seen[0]:g} points"
        return f"the {ran} reproductions run cannot see even {100 * WORTH_SEEING[-1]:g} points"
