"""The rank of a reference is the place where a brute force in float64, sorted by (similarity,
index), has it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.neighbours import nearest, target_ranks
from loops import for_each
from searches import (
    PATHS,
    Rows,
    Search,
    along,
    draw_search,
    every_kind,
    every_path,
    every_restriction,
    every_similarity,
    exact_score,
    vectors_for,
)

few_examples = settings(max_examples=6, deadline=None)
seeds = st.integers(0, 2**31)


def expected_ranks(search: Search, targets: list[int]) -> list[int]:
    """One more than the references that stand in the list and come first, one pair at a time."""
    found = []
    for query, target, columns in zip(search.queries, targets, search.standing(), strict=True):
        own = (-exact_score(search.similarity, query, search.references[target]), target)
        found.append(
            1
            + sum(
                (-exact_score(search.similarity, query, search.references[c]), c) < own
                for c in columns
            )
        )
    return found


@every_kind
@given(seed=seeds)
@few_examples
def test_equal_those_of_a_brute_force(
    kind: Callable[[random.Random, int], Rows], similarity: str, seed: int
) -> None:
    draw = random.Random(seed)
    search = draw_search(draw, kind, similarity)
    targets = [draw.randrange(len(search.references)) for _ in search.queries]
    exclude = None if search.exclude is None else torch.tensor(search.exclude)
    with along(draw.choice(list(PATHS))):
        found = target_ranks(
            *search.sides(),
            torch.tensor(targets),
            exclude,
            similarity=similarity,
            counts=search.counts,
        ).tolist()
    clear = replace(search, k=len(search.references), exclude=None, counts=None).clear()
    expected = expected_ranks(search, targets)
    assert {number: found[number] for number in clear} == {
        number: expected[number] for number in clear
    }


@every_path
@every_similarity
def test_the_nearest_are_ranked_in_order(similarity: str, path: str) -> None:
    z = vectors_for(similarity, 40)
    for wanted in every_restriction(40):
        found = nearest(z, z, 9, similarity=similarity, **wanted)
        for place in (0, 8):
            with along(path):
                ranks = target_ranks(z, z, found[:, place], similarity=similarity, **wanted)
            assert ranks.tolist() == [place + 1] * 40


def test_duplicates_are_ranked_in_order_of_their_index() -> None:
    z = torch.full((60, 3), 0.1)
    assert target_ranks(z, z, torch.arange(60)).tolist() == list(range(1, 61))
    assert target_ranks(z, z, torch.arange(59, -1, -1), torch.arange(60)).tolist() == [
        *range(59, 29, -1),
        *range(30, 0, -1),
    ]


def test_where_only_the_target_counts_it_is_first() -> None:
    z, targets = vectors_for("cosine", 50), torch.arange(50).flip(0)
    assert target_ranks(z, z, targets, counts=lambda q, r: targets[q] == r).tolist() == [1] * 50


def test_vectors_are_left_as_they_were() -> None:
    z = vectors_for("cosine", 20)
    before = z.clone()
    target_ranks(z, z, torch.arange(20))
    assert torch.equal(z, before)


def test_progress_rises_to_its_total() -> None:
    z, calls = vectors_for("cosine", 50), []
    with along("small tiles"):
        target_ranks(
            z, z, torch.arange(50), progress=lambda _, done, total: calls.append((done, total))
        )
    assert calls == [(50 * done, 2500) for done in (8, 16, 24, 32, 40, 48, 50)]


def test_of_a_query_far_away_fit_what_is_found() -> None:
    references = torch.tensor([[1.0], [1 + 1e-9], [1 + 2e-9], [-1.0]], dtype=torch.float64)
    query = torch.tensor([[1e17]], dtype=torch.float64)
    with along("few places"):
        found = nearest(query, references, 1, similarity="euclidean")
    assert target_ranks(query, references, found[:, 0], similarity="euclidean").tolist() == [1]


def test_products_that_overflow_do_not_count() -> None:
    references = torch.tensor(
        [[-1.0], [0.0], [1e-156], [2e-156], [3e-156], [1.0]], dtype=torch.float64
    )
    queries = torch.tensor([[3e-156]], dtype=torch.float64).repeat(6, 1)
    assert target_ranks(queries, references, torch.arange(6), similarity="euclidean").tolist() == [
        5,
        4,
        3,
        2,
        1,
        6,
    ]


# --- Inputs ---


@pytest.mark.parametrize("form", [Tensor.int, Tensor.numpy, Tensor.tolist])
def test_targets_may_be_indices_of_any_form(form: Callable[[Tensor], Any]) -> None:
    z, targets = vectors_for("cosine", 50), torch.arange(50).flip(0)
    assert torch.equal(
        target_ranks(z, z, form(targets), form(targets.flip(0))),
        target_ranks(z, z, targets, targets.flip(0)),
    )


@pytest.mark.parametrize("form", [Tensor.double, Tensor.numpy, Tensor.tolist])
def test_vectors_may_be_of_any_form(form: Callable[[Tensor], Any]) -> None:
    z, targets = vectors_for("cosine", 50), torch.arange(50).flip(0)
    assert torch.equal(target_ranks(form(z), form(z), targets), target_ranks(z, z, targets))


@for_each(
    ("arguments", "told"),
    [
        ((np.full((3, 3), np.nan), np.eye(3), torch.arange(3)), "of the queries is NaN"),
        ((np.eye(3), np.full((3, 3), np.nan), torch.arange(3)), "of the references is NaN"),
        ((np.eye(3), np.ones((3, 2)), torch.arange(3)), "3 dimensions, but references 2"),
        ((np.eye(3), np.ones((0, 3)), torch.arange(3)), "no references"),
        ((np.eye(3), np.eye(3), torch.arange(2)), "3 queries but 2 targets"),
        (
            (np.eye(3), np.eye(3), torch.tensor([0, 1, 3])),
            "targets hold 0 to 3; references are 0 to 2",
        ),
        ((np.eye(3), np.eye(3), torch.tensor([0, 1, -1])), "targets hold -1 to 1"),
        ((np.eye(3), np.eye(3), torch.arange(3), torch.tensor([0, 1, 3])), "exclude holds 0 to 3"),
        (
            (np.eye(3), np.eye(3), torch.arange(3), torch.arange(2)),
            "exclude has 2 entries; 3 queries",
        ),
    ],
    ids=[
        "queries",
        "references",
        "dimensions",
        "none",
        "length",
        "too large",
        "negative",
        "exclude",
        "length of exclude",
    ],
)
def test_bad_input_raises_with_the_numbers(arguments: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        target_ranks(*arguments)


def test_nobody_has_no_ranks() -> None:
    assert target_ranks(torch.eye(3)[:0], torch.eye(3), torch.arange(0)).tolist() == []


def test_progress_may_be_none_as_in_nearest() -> None:
    assert target_ranks(torch.eye(3), torch.eye(3), torch.arange(3), progress=None).tolist() == [
        1,
        1,
        1,
    ]
