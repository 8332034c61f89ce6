"""The neighbour search is a brute force in float64, sorted by (similarity, index), whatever the tiles."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import assay.neighbours
from assay.neighbours import nearest

few_examples = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)

EXACT = [
    *itertools.product((0.5, -0.5), repeat=4),
    *(tuple(sign * float(i == axis) for i in range(4)) for axis in range(4) for sign in (1, -1)),
    (0.0, 0.0, 0.0, 0.0),
]
"""Unit vectors (and the vector of zeros) whose dot products are exact in any precision, so that ties are ties."""

Rows = list[tuple[float, ...]]


def brute_force(queries: Rows, references: Rows, k: int, exclude: list[int] | None = None) -> list[list[int]]:
    """All similarities of unit vectors, one at a time, sorted by (similarity descending, index ascending)."""
    found = []
    for number, query in enumerate(queries):
        allowed = [column for column in range(len(references)) if exclude is None or column != exclude[number]]
        similar = {column: sum(a * b for a, b in zip(query, references[column], strict=True)) for column in allowed}
        found.append(sorted(allowed, key=lambda column: (-similar[column], column))[:k])
    return found


def unit_rows(z: Tensor) -> Rows:
    exact = z.double()
    return [tuple(row) for row in (exact / exact.norm(dim=1, keepdim=True)).tolist()]


def draw_exact(draw: random.Random, count: int) -> Rows:
    return [draw.choice(EXACT) for _ in range(count)]


@given(seed=seeds, itself=st.booleans())
@few_examples
def test_equals_a_brute_force_under_duplicates_and_ties(seed: int, itself: bool) -> None:
    draw = random.Random(seed)
    references = draw_exact(draw, draw.randint(2, 40))
    queries = references if itself else draw_exact(draw, draw.randint(1, 10))
    exclude = list(range(len(references))) if itself else None
    k = draw.randint(1, len(references) - itself)
    found = nearest(torch.tensor(queries), torch.tensor(references), k, None if exclude is None else torch.tensor(exclude))
    assert found.tolist() == brute_force(queries, references, k, exclude)


@given(seed=seeds)
@few_examples
def test_any_reference_can_be_left_out(seed: int) -> None:
    draw = random.Random(seed)
    references, queries = draw_exact(draw, draw.randint(2, 20)), draw_exact(draw, draw.randint(1, 10))
    exclude = [draw.randrange(len(references)) for _ in queries]
    found = nearest(torch.tensor(queries), torch.tensor(references), len(references) - 1, torch.tensor(exclude))
    assert found.tolist() == brute_force(queries, references, len(references) - 1, exclude)
    assert all(left_out not in row for left_out, row in zip(exclude, found.tolist(), strict=True))


@given(seed=seeds)
@few_examples
def test_equals_a_brute_force_on_random_vectors_with_duplicates(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    references = torch.randn(30, 7, generator=draw)
    references = references[torch.randint(30, (40,), generator=draw)]
    queries = torch.randn(6, 7, generator=draw)
    found = nearest(queries, references, 12)
    assert found.tolist() == brute_force(unit_rows(queries), unit_rows(references), 12)


@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.parametrize("spread", [1e-6, 1e-7, 1e-9])
def test_tells_apart_what_single_precision_cannot(k: int, spread: float) -> None:
    """A hundred references whose similarities to a query differ by less than float32 can be wrong about."""
    draw = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 32, generator=draw, dtype=torch.float64)
    centre = torch.randn(32, generator=draw, dtype=torch.float64)
    references = centre + spread * torch.randn(100, 32, generator=draw, dtype=torch.float64)
    assert nearest(queries, references, k).tolist() == brute_force(unit_rows(queries), unit_rows(references), k)


def test_constant_vectors_are_found_in_order_of_their_index() -> None:
    z = torch.full((6, 3), 0.1)
    assert nearest(z, z, 5, torch.arange(6)).tolist() == [[j for j in range(6) if j != i] for i in range(6)]


def test_vectors_of_zeros_are_found_in_order_of_their_index() -> None:
    z = torch.zeros(4, 3)
    assert nearest(z, z, 3, torch.arange(4)).tolist() == [[j for j in range(4) if j != i] for i in range(4)]


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-20, 2.0**20, 2.0**60], ids=["2^-40", "2^-20", "2^20", "2^60"])
@pytest.mark.parametrize("side", ["queries", "references"])
def test_norms_do_not_matter_to_single_precision(scale: float, side: str) -> None:
    """Each second vector is scaled by a power of two, which changes no digit of its direction."""
    assert_norms_do_not_matter(scale, side, torch.float32)


@pytest.mark.parametrize("scale", [2.0**-600, 2.0**-100, 2.0**100, 2.0**600], ids=["2^-600", "2^-100", "2^100", "2^600"])
@pytest.mark.parametrize("side", ["queries", "references"])
def test_norms_do_not_matter_to_double_precision(scale: float, side: str) -> None:
    assert_norms_do_not_matter(scale, side, torch.float64)


def assert_norms_do_not_matter(scale: float, side: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(2)
    vectors = {
        "queries": torch.randn(8, 5, generator=draw, dtype=dtype),
        "references": torch.randn(20, 5, generator=draw, dtype=dtype),
    }
    before = nearest(vectors["queries"], vectors["references"], 20)
    vectors[side][::2] *= scale
    assert torch.isfinite(vectors[side]).all()
    assert vectors[side].ne(0).all()
    assert nearest(vectors["queries"], vectors["references"], 20).tolist() == before.tolist()


@pytest.mark.parametrize("tile", [1, 7, 64, 1000])
def test_tiles_do_not_matter(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    rows = [*draw_exact(draw, 50), *[tuple(draw.gauss(0, 1) for _ in range(4)) for _ in range(30)]]
    z, own = torch.tensor(rows), torch.arange(80)
    whole = nearest(z, z, 30, own)
    monkeypatch.setattr(assay.neighbours, "TILE", tile)
    assert torch.equal(nearest(z, z, 30, own), whole)


def test_a_query_does_not_depend_on_the_queries_beside_it() -> None:
    draw = random.Random(6)
    references, queries = (
        torch.tensor(draw_exact(draw, 40)),
        torch.randn(9, 4, generator=torch.Generator().manual_seed(6)),
    )
    together = nearest(queries, references, 15)
    alone = torch.cat([nearest(query[None], references, 15) for query in queries])
    assert torch.equal(together, alone)


def test_vectors_are_left_as_they_were() -> None:
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)) * 10
    before = z.clone()
    nearest(z, z, 2, torch.arange(5))
    assert torch.equal(z, before)


@pytest.mark.parametrize("k", [-1, 0, 6])
def test_a_k_that_cannot_be_served_raises_with_the_numbers(k: int) -> None:
    z = torch.eye(5)
    with pytest.raises(ValueError, match=rf"k is {k}, but a query has 5 references"):
        nearest(z, z, k)


def test_a_k_that_counts_the_left_out_reference_raises_with_the_numbers() -> None:
    z = torch.eye(5)
    with pytest.raises(ValueError, match="k is 5, but a query has 4 references"):
        nearest(z, z, 5, torch.arange(5))
