"""Differences in plain words."""

from collections.abc import Sequence

from assay.stats import Difference, reproductions_needed


def sentence(difference: Difference, comparisons: int) -> str:
    """What one comparison of two methods shows, for a reader who skips the figures."""
    first, second, points = difference.first, difference.second, 100 * difference.interval.mean
    if difference.verdict == "better":
        return f"{first} is better than {second} by {points:.1f} points"
    if difference.verdict == "worse":
        return f"{first} is worse than {second} by {-points:.1f} points"
    if difference.verdict == "no difference found":
        return f"{first} and {second}: no difference found"
    needed = reproductions_needed(comparisons)
    return f"{first} and {second}: too few to tell ({difference.interval.n} reproductions, {needed} needed)"


def summary(found: Sequence[Difference]) -> list[str]:
    """The verdicts in a few lines: what is settled, and how much is not."""
    settled = [difference for difference in found if difference.verdict in ("better", "worse")]
    lines = [sentence(difference, len(found)) for difference in settled]
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
