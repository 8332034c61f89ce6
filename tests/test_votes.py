"""`assay search --classify`: a vote among the neighbours of a query."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.index.matches import Found, Match
from assay.index.votes import vote


def found(*matches):
    """Return matches of a query from (score, word), or (score, word, id) in any order."""
    return Found(
        "query",
        tuple(
            Match(
                rank=place + 1,
                id=rest[0] if rest else f"{place}.png",
                score=score,
                confidence=None,
                words={} if word is None else {"bird": word},
            )
            for place, (score, word, *rest) in enumerate(matches)
        ),
    )


def label(*matches, neighbours=5, **options):
    """Return the word that matches vote for."""
    return vote(found(*matches), "bird", neighbours=neighbours, **options).label


def slow_vote(matches, neighbours, min_score):
    """Return label and share by the rule of the docstring, in exact fractions, with plain loops.

    Every match is an image of its own and has a word.
    """
    scores = sorted((Fraction(score) for score, _ in matches), reverse=True)
    last = scores[min(neighbours, len(scores)) - 1]
    below = [score for score in scores if score < last]
    zero = below[0] if below else last
    votes = {}
    for score, word in matches:
        if score < last or score < min_score:
            continue
        weight = (Fraction(score) - zero) / (scores[0] - zero) if scores[0] > zero else Fraction(1)
        votes.setdefault(word, []).append((weight, score))
    if not votes:
        return None, 0
    sums = {word: sum(weight for weight, _ in own) for word, own in votes.items()}
    tied = [word for word in sums if sums[word] == max(sums.values())]
    nearest = {word: max(score for _, score in votes[word]) for word in tied}
    winners = [word for word in tied if nearest[word] == max(nearest.values())]
    share = max(sums.values()) / sum(sums.values())
    return (winners[0] if len(winners) == 1 and 2 * share >= 1 else None), share


quarters = st.integers(-8, 8).map(lambda number: number / 4)
"""Scores whose differences are exact, with ties among them."""


@given(
    matches=st.lists(st.tuples(quarters, st.sampled_from("abc")), min_size=1, max_size=12),
    neighbours=st.integers(1, 8),
    min_score=st.one_of(st.just(-math.inf), quarters),
)
def test_the_vote_is_that_of_the_rule_written_out(matches, neighbours, min_score):
    seen = vote(found(*matches), "bird", neighbours=neighbours, min_score=min_score)
    expected, share = slow_vote(matches, neighbours, min_score)
    assert seen.label == expected
    assert seen.share == pytest.approx(float(share))
    assert bool(seen.why) == (seen.label is None)


# --- planted cases --------------------------------------------------------------------------------


def test_a_small_class_that_is_near_is_not_outvoted_by_many_that_are_far():
    """A plain majority of five says jay."""
    near = [(0.9, "owl"), (0.88, "owl")]
    far = [(0.30, "jay"), (0.29, "jay"), (0.28, "jay"), (0.27, "jay"), (0.26, "jay")]
    assert label(*near, *far) == "owl"


def test_many_that_are_almost_as_near_outvote_a_single_one():
    """With the k-th score as the zero point, the four would have no weight at all."""
    near = [(0.90, "owl"), *[(0.88, "jay")] * 4]
    seen = vote(found(*near, (0.2, "owl"), (0.1, "owl")), "bird", neighbours=5)
    assert (seen.label, seen.runner_up, seen.voters) == ("jay", "owl", 5)
    weight = (0.88 - 0.2) / (0.9 - 0.2)
    assert seen.share == pytest.approx(4 * weight / (1 + 4 * weight))
    assert seen.share + seen.runner_up_share == pytest.approx(1)


def test_where_nothing_comes_after_the_voters_the_last_has_no_weight():
    seen = vote(found((0.9, "owl"), (0.5, "jay"), (0.1, "jay")), "bird", neighbours=3)
    assert (seen.label, seen.share) == ("owl", pytest.approx(2 / 3))


def test_equal_scores_have_equal_weights():
    seen = vote(found(*[(-3.0, "owl")] * 2, *[(-3.0, "jay")] * 4), "bird", neighbours=6)
    assert (seen.label, seen.share, seen.runner_up) == ("jay", pytest.approx(4 / 6), "owl")


def test_a_single_neighbour_decides_alone():
    seen = vote(found((0.9, "owl"), (0.8, "jay")), "bird", neighbours=1)
    assert (seen.label, seen.share, seen.runner_up, seen.voters) == ("owl", 1.0, None, 1)


def test_a_tie_goes_to_the_word_with_the_most_similar_image():
    """Weights 1 and 0.5 + 0.5."""
    matches = [(1.0, "owl"), (0.5, "jay"), (0.5, "jay"), (0.0, "tit")]
    seen = vote(found(*matches), "bird", neighbours=3)
    assert (seen.label, seen.share, seen.runner_up) == ("owl", 0.5, "jay")


def test_a_tie_that_the_best_score_does_not_break_is_unknown():
    seen = vote(found((0.9, "owl"), (0.9, "jay"), (0.1, "tit")), "bird", neighbours=2)
    assert seen.label is None
    assert seen.why == "jay and owl have the same vote and are equally similar"


# --- unknown --------------------------------------------------------------------------------------


def test_a_query_that_is_like_nothing_is_unknown():
    matches = [(0.41, "owl"), (0.4, "owl"), (0.1, "jay")]
    assert label(*matches) == "owl"
    seen = vote(found(*matches), "bird", neighbours=2, min_score=0.6)
    assert (seen.label, seen.share, seen.voters) == (None, 0.0, 0)
    assert seen.why == "the most similar image has a score of 0.410, below 0.6"


def test_voters_below_the_threshold_lose_their_vote():
    matches = [(0.9, "owl"), (0.7, "jay"), (0.69, "jay"), (0.68, "jay"), (0.0, "jay")]
    assert label(*matches, neighbours=4) == "jay"
    assert label(*matches, neighbours=4, min_score=0.8) == "owl"
    assert label(*matches, neighbours=4, min_score=0.9) == "owl"


def test_where_no_score_is_enough_the_reason_is_the_precision():
    seen = vote(found((0.9, "owl")), "bird", neighbours=1, min_score=math.inf)
    assert (seen.label, seen.why) == (None, "no score reaches the wanted precision")


def test_without_a_word_in_the_column_it_is_unknown():
    for matches in ([], [(0.9, None), (0.8, None)]):
        seen = vote(found(*matches), "bird", neighbours=3)
        assert seen.label is None
        assert seen.why == "no match has a word in the column bird"


def test_matches_without_a_word_take_no_place():
    with_gaps = [(0.95, None), (0.9, "owl"), (0.8, None), (0.7, "jay"), (0.6, "jay"), (0.1, "tit")]
    without = [match for match in with_gaps if match[1]]
    for neighbours in (1, 2, 3):
        seen = [
            vote(found(*matches), "bird", neighbours=neighbours) for matches in (with_gaps, without)
        ]
        assert seen[0] == seen[1]


def test_a_divided_vote_is_unknown():
    matches = [(0.9, "owl"), (0.89, "jay"), (0.88, "tit"), (0.1, "tit")]
    seen = vote(found(*matches), "bird", neighbours=3)
    assert (seen.label, seen.why) == (None, "owl has 34% of the vote, less than 50%")
    assert label((0.9, "owl"), (0.7, "jay"), (0.7, "tit"), (0.5, "tit"), neighbours=3) == "owl"


# --- copies ---------------------------------------------------------------------------------------


def test_copies_of_one_image_have_one_vote():
    copies = [(0.80, "jay", f"copy{number}.png") for number in range(6)]
    others = [(0.9, "owl", "owl.png"), (0.7, "owl", "owl2.png"), (0.1, "tit", "tit.png")]
    matches = [others[0], *copies, *others[1:]]
    contents = {name: "same" for _, _, name in copies}
    assert label(*matches, neighbours=3) == "jay"
    assert label(*matches, neighbours=3, contents=contents) == "owl"
    alone = [others[0], copies[0], *others[1:]]
    for neighbours in (1, 2, 3):
        options = {"neighbours": neighbours, "contents": contents}
        ours, theirs = (vote(found(*one), "bird", **options) for one in (matches, alone))
        assert ours == theirs


def test_copies_that_contradict_each_other_divide_their_vote():
    matches = [(0.9, "owl", "a"), (0.9, "jay", "b"), (0.9, "owl", "c"), (0.1, "tit", "d")]
    seen = vote(found(*matches), "bird", neighbours=1, contents=dict.fromkeys("abc", "same"))
    assert (seen.label, seen.share) == ("owl", pytest.approx(2 / 3))
    assert (seen.runner_up, seen.runner_up_share) == ("jay", pytest.approx(1 / 3))
    assert seen.voters == 1


# --- laws -----------------------------------------------------------------------------------------

eighths = st.lists(
    st.tuples(st.integers(-16, 16).map(lambda number: number / 8), st.sampled_from("abcd")),
    min_size=1,
    max_size=7,
)


@given(matches=eighths, neighbours=st.integers(1, 6), draw=st.randoms(use_true_random=False))
def test_the_order_of_the_matches_decides_nothing(matches, neighbours, draw):
    shuffled = draw.sample(matches, len(matches))
    one, other = (
        vote(found(*order), "bird", neighbours=neighbours) for order in (matches, shuffled)
    )
    assert one == other


def test_the_order_of_equal_thirds_decides_nothing():
    """Sums of floats depend on their order; here they would break a tie."""
    matches = [(0.9, "owl"), (0.7, "jay"), (0.5, "jay"), (0.3, "tit"), (0.6, "tit"), (0.0, "owl")]
    seen = {vote(found(*order), "bird", neighbours=5) for order in itertools.permutations(matches)}
    assert len(seen) == 1


@given(
    matches=eighths,
    neighbours=st.integers(1, 6),
    scale=st.sampled_from([0.25, 2.0, 64.0]),
    shift=st.integers(-4, 4),
)
def test_shifted_and_scaled_scores_give_the_same_vote(matches, neighbours, scale, shift):
    moved = [(scale * score + shift, word) for score, word in matches]
    one, other = (vote(found(*given), "bird", neighbours=neighbours) for given in (matches, moved))
    assert (one.label, one.share, one.runner_up) == (other.label, other.share, other.runner_up)


@given(matches=eighths, neighbours=st.integers(1, 6))
def test_shares_are_shares(matches, neighbours):
    seen = vote(found(*matches), "bird", neighbours=neighbours)
    assert 0 <= seen.runner_up_share <= 1
    assert 0 < seen.share <= 1
    assert seen.share + seen.runner_up_share <= 1 + 1e-9
    assert (seen.runner_up is None) == (seen.runner_up_share == 0) == (seen.share == 1)


def test_a_vote_of_no_neighbours_is_refused():
    with pytest.raises(BadInput, match="needs at least 1 neighbour, and 0 were asked for"):
        vote(found((0.9, "owl")), "bird", neighbours=0)
