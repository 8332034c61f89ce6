"""Differences in plain words."""

from collections.abc import Sequence

from assay.stats import Difference, reproductions_needed, reproductions_to_see

MANY = 10
"""Settled pairs above which a summary takes those of one method together."""


def sentence(difference: Difference, comparisons: int) -> str:
    """What one comparison of two methods shows, for a reader who skips the figures."""
    first, second, points = difference.first, difference.second, 100 * difference.interval.mean
    if difference.verdict == "better":
        return f"{first} is better than {second} by {points:.1f} points"
    if difference.verdict == "worse":
        return f"{first} is worse than {second} by {-points:.1f} points"
    if difference.verdict == "no difference found":
        return f"{first} and {second}: no difference found"
    needed = f"{reproductions_needed(comparisons)} needed{_for_as_seen(difference)}"
    return f"{first} and {second}: too few to tell ({difference.interval.n} reproductions, {needed})"


def summary(found: Sequence[Difference]) -> list[str]:
    """The verdicts in a few lines: what is settled, and how much is not; pair by pair while those are few."""
    settled = [difference for difference in found if difference.verdict in ("better", "worse")]
    lines = _together(settled) if len(settled) > MANY else [sentence(difference, len(found)) for difference in settled]
    same = sum(difference.verdict == "no difference found" for difference in found)
    few = [difference for difference in found if difference.verdict == "too few to tell"]
    if same:
        lines.append(f"{same} of {len(found)} pairs: no difference found")
    if few:
        lines.append(
            f"{len(few)} of {len(found)} pairs: too few to tell with {few[0].interval.n} reproductions; "
            f"--set reproductions={reproductions_needed(len(found))} would see a difference of 2 standard deviations"
        )
    return lines


def _together(settled: Sequence[Difference]) -> list[str]:
    """A line for each method and what it is better or worse than."""
    by_first: dict[tuple[str, str], list[Difference]] = {}
    for difference in settled:
        by_first.setdefault((difference.first, difference.verdict), []).append(difference)
    return [_line(first, verdict, pairs) for (first, verdict), pairs in by_first.items()]


def _line(first: str, verdict: str, pairs: Sequence[Difference]) -> str:
    by = sorted({f"{100 * abs(pair.interval.mean):.1f}" for pair in pairs}, key=float)
    points = by[0] if len(by) == 1 else f"{by[0]} to {by[-1]}"
    return f"{first} is {verdict} than {', '.join(pair.second for pair in pairs)}, by {points} points"


def to_see(reproductions: int | None) -> str:
    """A number of reproductions; beyond what anyone would run it is only said to be so."""
    return "over 10,000" if reproductions is None else f"{reproductions:,}"


def _for_as_seen(difference: Difference) -> str:
    """What it would take to settle a difference as large as the one seen."""
    if difference.deviation is None:
        return ""
    count = reproductions_to_see(difference.interval.mean, difference.deviation, difference.comparisons)
    return f"; {to_see(count)} for the {100 * abs(difference.interval.mean):.2f} points seen here"
