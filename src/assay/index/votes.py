"""A vote among the matches of a query on what it shows, which may end in "unknown".

Votes are weighted by similarity. Classes of an index have few images each and not equally many, so
that among the k nearest the right class is often outnumbered by what is merely least different; a
plain majority, for which all k are equal, then answers wrongly. The weights are those of Dudani
(1976, "The distance-weighted k-nearest-neighbor rule", IEEE Transactions on Systems, Man, and
Cybernetics SMC-6(4)), with the extension of Macleod, Luk and Titterington (1987, the same journal,
SMC-17(4)) that a neighbour further away than the k-th is the zero point:

    w_j = (s_j - s_0) / (s_1 - s_0)

where s_j is the score of the j-th voter and s_0 that of the first image after them. With Dudani's
own zero point, the k-th score, the last voter never counts, nor does any that is as similar as it
is. It remains the zero point where no image comes after the voters. Where all scores are equal, all
weights are 1. Shifting or scaling the scores changes nothing, so cosines, distances and numbers of
bits are treated alike; the exponential weights of Wu et al. (2018, arxiv.org/abs/1805.01978) need a
temperature that fits the one or the other.

Measured on glyphs by lite0 (1 to 7 images of each class indexed, the nearest 5, 10 and 20 voting by
cosine, percent right): majority 36.1, 30.4, 25.8; Wu et al. with their temperature of 0.07 37.6,
33.8, 31.5; Dudani 41.2, 39.1, 36.2; these weights 40.9, 38.8, 36.1. The nearest alone: 41.7.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.errors import BadInput
from assay.index.matches import Found, Match

EQUAL = 1e-9
"""Relative difference of sums of weights below which they are equal: that of rounding."""

LEAST_SHARE = 0.5
"""Part of the vote with which a word wins."""


@dataclass(frozen=True)
class Vote:
    """What the neighbours of a query say it shows.

    Args:
        label: the word with most of the vote; None: unknown.
        share: its part of all votes, or where it is unknown, that of the word that came first.
        runner_up: the word that came second; None: there was no vote for another.
        runner_up_share: its part of all votes.
        voters: the images that voted; copies of one image count once.
        why: why it is unknown, in words; empty where it is known.
    """

    label: str | None
    share: float = 0.0
    runner_up: str | None = None
    runner_up_share: float = 0.0
    voters: int = 0
    why: str = ""


@dataclass(frozen=True)
class _Voter:
    """An image that votes.

    Args:
        score: its score.
        words: the words of its copies, which differ where they contradict each other.
    """

    score: float
    words: tuple[str, ...]


def vote(
    found: Found,
    column: str,
    *,
    neighbours: int,
    min_score: float = -math.inf,
    contents: Mapping[str, str] | None = None,
) -> Vote:
    """Return what the nearest images say that a query shows, by their words in a column.

    The voters are the nearest images that have a word in the column, as many as `neighbours` and
    those as similar as the last of them. Matches without a word neither vote nor take a place.
    Copies of an image share one vote, so that an image that was stored ten times does not outvote
    all others. Voters below the least score lose their vote. The word with the greatest sum of
    weights wins; of equal sums the one with the most similar image. If that is the same too, or the
    word has less than half of the vote, the answer is unknown. So the order of equally similar
    matches decides nothing.

    Args:
        found: matches of the query. There should be more than `neighbours`: those after the voters
            give the zero point, and copies take places.
        column: the column of metadata.
        neighbours: number of voters.
        min_score: the least score of a voter; infinite where no score is enough.
        contents: hash of the content of each match, by id, by which copies are known; a match that
            is not in it has no copies.
    """
    if neighbours < 1:
        raise BadInput(f"a vote needs at least 1 neighbour, and {neighbours} were asked for")
    voters, zero = _ballot(found.matches, column, neighbours, contents or {})
    if not voters:
        return Vote(None, why=f"no match has a word in the column {column}")
    kept = [voter for voter in voters if voter.score >= min_score]
    if kept:
        return _count(kept, _weights([voter.score for voter in kept], zero))
    if min_score == math.inf:
        return Vote(None, why="no score reaches the wanted precision")
    best = voters[0].score
    why = f"the most similar image has a score of {best:.3f}, below {min_score:g}"
    return Vote(None, why=why)


def _ballot(
    matches: Sequence[Match], column: str, neighbours: int, contents: Mapping[str, str]
) -> tuple[list[_Voter], float]:
    """Return the voters, best first, and the score of the first image after them.

    Without such an image it is the score of the last voter.
    """
    copies: dict[tuple[str, ...], list[Match]] = defaultdict(list)
    for match in matches:
        if match.words.get(column):
            known = contents.get(match.id)
            copies[("id", match.id) if known is None else ("content", known)].append(match)
    images = [
        _Voter(
            max(match.score for match in same),
            tuple(match.words[column] for match in same),
        )
        for same in copies.values()
    ]
    images.sort(key=lambda image: -image.score)
    last = images[min(neighbours, len(images)) - 1].score if images else 0.0
    voters = [image for image in images if image.score >= last]
    after = images[len(voters) :]
    return voters, after[0].score if after else last


def _weights(scores: Sequence[float], zero: float) -> list[float]:
    """Return the weights of voters with these scores; `zero` is the score without any weight."""
    span = max(scores) - zero
    return [(score - zero) / span if span > 0 else 1.0 for score in scores]


def _count(voters: Sequence[_Voter], weights: Sequence[float]) -> Vote:
    parts: dict[str, list[float]] = defaultdict(list)
    best: dict[str, float] = defaultdict(lambda: -math.inf)
    for voter, weight in zip(voters, weights, strict=True):
        for word in voter.words:
            parts[word].append(weight / len(voter.words))
            best[word] = max(best[word], voter.score)
    sums = {word: math.fsum(own) for word, own in parts.items()}  # whatever the order
    whole = math.fsum(sums.values())
    first, *others = sorted(sums, key=lambda word: (-sums[word], word))
    tied = [word for word in sums if math.isclose(sums[word], sums[first], rel_tol=EQUAL)]
    nearest = [word for word in tied if best[word] == max(best[one] for one in tied)]
    if len(nearest) == 1:
        first, *others = nearest[0], *(word for word in [first, *others] if word != nearest[0])
    share = sums[first] / whole
    why = ""
    if len(nearest) > 1:
        why = f"{' and '.join(sorted(nearest))} have the same vote and are equally similar"
    elif share < LEAST_SHARE and not math.isclose(share, LEAST_SHARE, rel_tol=EQUAL):
        why = f"{first} has {share:.0%} of the vote, less than {LEAST_SHARE:.0%}"
    second = next((word for word in others if sums[word] > 0), None)
    return Vote(
        label=None if why else first,
        share=share,
        runner_up=second,
        runner_up_share=sums[second] / whole if second is not None else 0.0,
        voters=len(voters),
        why=why,
    )
