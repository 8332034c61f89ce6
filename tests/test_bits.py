"""Bits z > 0 by Hamming distance: neighbours, ranks and scores are those of loops over bits,
whatever multiplies them and however many tie.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.metrics import evaluate
from assay.neighbours import Vectors, nearest, search, similarity, target_ranks
from assay.neighbours.bits import multiply, pack_bits, signs
from loops import for_each
from searches import PATHS, along, every_restriction

DIMS = [1, 7, 8, 63, 64, 65, 2048]
every_dim = for_each("dim", DIMS)
seeds = st.integers(0, 2**31)
few_examples = settings(max_examples=8, deadline=None)


def numbers(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Vectors with duplicates, and with zeros, which are no set bits."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(count, dim)) * (draw.random((count, dim)) < 0.8)
    z[draw.random(count) < 0.3] = z[0]
    return torch.from_numpy(z.astype(np.float32))


def packed(z: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits((z > 0).numpy(), axis=1))


def distance(a: Sequence[float], b: Sequence[float]) -> int:
    """The bits that differ, one at a time."""
    return sum((x > 0) != (y > 0) for x, y in zip(a, b, strict=True))


def slow_order(
    queries: torch.Tensor, references: torch.Tensor, columns: Sequence[Sequence[int]]
) -> list[list[int]]:
    """All columns of each query by (distance, index)."""
    rows = references.tolist()
    return [
        sorted(own, key=lambda column: (distance(query, rows[column]), column))
        for query, own in zip(queries.tolist(), columns, strict=True)
    ]


# --- Neighbours ---


@every_dim
@for_each("path", PATHS)
def test_neighbours_are_those_of_a_loop_over_bits(dim: int, path: str) -> None:
    z = numbers(24, dim)
    for wanted in every_restriction(24):
        stands = torch.ones(24, 24, dtype=torch.bool)
        if "counts" in wanted:
            stands &= wanted["counts"](torch.arange(24)[:, None], torch.arange(24)[None])
        if "exclude" in wanted:
            stands &= wanted["exclude"][:, None] != torch.arange(24)[None]
        columns = [row.nonzero()[:, 0].tolist() for row in stands]
        expected = [(row + [-1] * 7)[:7] for row in slow_order(z, z, columns)]
        with along(path):
            for given_ in (z, packed(z)):
                assert nearest(given_, given_, 7, similarity="hamming", **wanted).tolist() == (
                    expected
                )


@every_dim
@given(seed=seeds)
@few_examples
def test_queries_are_found_among_other_references(dim: int, seed: int) -> None:
    both = numbers(60, dim, seed)
    queries, references = both[:5], both[5:]
    expected = slow_order(queries, references, [range(55)] * 5)
    for path in ("as it comes", "small tiles", "few places"):
        with along(path):
            found = nearest(queries, references, 9, similarity="hamming")
            assert found.tolist() == [row[:9] for row in expected]
            assert torch.equal(
                found, nearest(packed(queries), packed(references), 9, similarity="hamming")
            )


@for_each("path", PATHS)
@for_each("dim", [1, 64, 65])
def test_where_all_tie_the_lower_index_is_first(dim: int, path: str) -> None:
    with along(path):
        for z in (torch.ones(300, dim), -torch.ones(300, dim), torch.zeros(300, dim)):
            found = nearest(z[:3], z, 20, torch.tensor([0, 7, -1]), similarity="hamming")
            for row, own in zip(found.tolist(), (0, 7, -1), strict=True):
                assert row == [index for index in range(22) if index != own][:20]


@pytest.mark.parametrize("worth", [0, 1 << 40], ids=["both sides", "one side"])
def test_long_codes_among_many_are_in_the_order_of_their_unpacked_products(
    worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one panel of tiles, on either way through them."""
    monkeypatch.setattr(search, "WORTH", worth)
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(7000, 2048, generator=draw)
    z[torch.randperm(7000, generator=draw)[:2000]] = z[:2000].clone()
    plus_minus = torch.where(z > 0, 1.0, -1.0)
    order = (plus_minus[:60] @ plus_minus.T).argsort(dim=1, descending=True, stable=True)
    assert torch.equal(nearest(z[:60], z, 20, similarity="hamming"), order[:, :20])
    both = nearest(*[packed(z)] * 2, 20, similarity="hamming")
    assert torch.equal(both[:60], order[:, :20])


@for_each("dim", [3, 16])
def test_more_ties_than_places_are_taken_in_whole_rows(dim: int) -> None:
    """Among 3,000 codes of few bits hundreds tie with the last one wanted."""
    z = numbers(3000, dim)
    plus_minus, own = torch.where(z > 0, 1.0, -1.0), torch.arange(3000)
    products = plus_minus[:200] @ plus_minus.T
    for wanted, stands in (
        ({}, own[None] >= 0),
        ({"exclude": own[:200]}, own[:200, None] != own[None]),
        ({"counts": lambda q, r: q % 2 != r % 2}, own[:200, None] % 2 != own[None] % 2),
        ({"counts": lambda q, r: (r < 5) & (q >= 0)}, (own[None] < 5).expand(200, -1)),
    ):
        order = products.masked_fill(~stands, -torch.inf).argsort(
            dim=1, descending=True, stable=True
        )[:, :20]
        expected = order.masked_fill(~stands.expand(200, -1).gather(1, order), -1)
        assert torch.equal(nearest(z[:200], z, 20, similarity="hamming", **wanted), expected)


@every_dim
def test_ranks_are_those_of_a_loop_over_bits(dim: int) -> None:
    z = numbers(30, dim)
    order = slow_order(z, z, [range(30)] * 30)
    for target in range(0, 30, 7):
        ranks = target_ranks(z, z, torch.full((30,), target), similarity="hamming")
        assert ranks.tolist() == [row.index(target) + 1 for row in order]


@every_dim
def test_products_of_8_bits_and_of_numbers_find_the_same(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = numbers(40, dim)
    for type_ in (torch.int8, torch.float32):
        monkeypatch.setattr(similarity, "fastest_type", lambda *_, type_=type_: type_)
        found = nearest(z, z, 9, similarity="hamming")
        assert found.tolist() == [row[:9] for row in slow_order(z, z, [range(40)] * 40)]
        ranks = target_ranks(z, z, found[:, 4], similarity="hamming")
        assert ranks.tolist() == [5] * 40


@for_each("shape", [(1, 1, 1), (1, 70, 5), (33, 8, 1), (17, 2048, 19), (0, 64, 3), (3, 64, 0)])
def test_products_of_8_bits_are_exact(shape: tuple[int, int, int]) -> None:
    queries, dim, references = shape
    draw = torch.Generator().manual_seed(0)
    left, right = (
        2 * torch.randint(2, (rows, dim), generator=draw) - 1 for rows in (queries, references)
    )
    out = torch.full((queries, references), torch.nan)
    multiply(left.to(torch.int8), right.to(torch.int8), out)
    assert torch.equal(out, (left @ right.T).float())


def test_no_query_finds_nothing() -> None:
    z = numbers(10, 65)
    assert nearest(z[:0], z, 2, similarity="hamming").shape == (0, 2)
    with pytest.raises(ValueError, match="there are no references to search in"):
        nearest(z, z[:0], 1, similarity="hamming")


# --- Packing ---


@every_dim
@for_each("path", ["as it comes", "few pairs at once"])
def test_bits_are_packed_as_numpy_packs_them(dim: int, path: str) -> None:
    z = numbers(20, dim)
    chosen = torch.tensor([3, 1, 1, 19])
    with along(path):
        for rows, expected in ((Vectors(z), z), (Vectors(z, chosen=chosen), z[chosen])):
            bits = pack_bits(rows)
            assert torch.equal(bits.read(slice(0, 20), None), packed(expected))
            assert pack_bits(bits) is bits


@every_dim
def test_signs_are_the_bits_and_minus_ones_at_the_end(dim: int) -> None:
    z = numbers(20, dim)
    unpacked = signs(packed(z), torch.float32)
    assert torch.equal(unpacked[:, :dim], torch.where(z > 0, 1.0, -1.0))
    assert (unpacked[:, dim:] == -1).all()
    assert unpacked.shape[1] == -(-dim // 8) * 8


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.float64, np.float16])
def test_numbers_of_any_type_are_taken_by_their_sign(dtype: Any) -> None:
    z = np.array([[3, -1, 0, 1], [-2, -1, 0, 5], [1, 1, 1, 1]], dtype=dtype)
    assert nearest(z, z, 2, torch.arange(3), similarity="hamming").tolist() == [
        [1, 2],
        [0, 2],
        [0, 1],
    ]


def test_packed_bits_among_numbers_are_refused_with_the_remedy() -> None:
    z = numbers(8, 16)
    for queries, references, told in (
        (packed(z), z, "the queries are uint8, bits that are packed already, and the references"),
        (z, packed(z), "the references are uint8, bits that are packed already, and the queries"),
    ):
        with pytest.raises(ValueError, match=told):
            nearest(queries, references, 1, similarity="hamming")
        with pytest.raises(ValueError, match=told):
            evaluate(queries, [0, 1] * 4, gallery=(references, [0, 1] * 4), similarity="hamming")


def test_sides_of_other_widths_are_refused_even_if_they_fill_as_many_bytes() -> None:
    told = "queries have 63 dimensions, but references 64"
    with pytest.raises(ValueError, match=told):
        nearest(numbers(8, 63), numbers(8, 64), 1, similarity="hamming")
    with pytest.raises(ValueError, match=told):
        evaluate(
            numbers(8, 63),
            [0, 1] * 4,
            gallery=(numbers(8, 64), [0, 1] * 4),
            similarity="hamming",
        )


# --- Scores ---

RANKED = ["map_at_r", "precision_at_1", "r_precision", "recall_at_4", "mrr"]


@every_dim
def test_scores_are_those_of_products_of_minus_one_and_one(dim: int) -> None:
    """Those are exact as well, so that not one query may differ."""
    draw = np.random.default_rng(dim)
    y = draw.integers(6, size=80)
    z = (draw.normal(size=(6, dim))[y] + draw.normal(size=(80, dim))).astype(np.float32)
    plus_minus = np.where(z > 0, 1.0, -1.0)
    apart = np.arange(80) % 3 == 0
    for roles in (
        {},
        {"queries": apart},
        {"queries": apart, "gallery": ~apart},
        {"queries": np.array([5, 9, 2]), "counts": lambda q, r: q % 2 != r % 2},
    ):
        found = evaluate(z, y, RANKED, similarity="hamming", **roles)
        bits = evaluate(np.packbits(z > 0, axis=1), y, RANKED, similarity="hamming", **roles)
        expected = evaluate(plus_minus, y, RANKED, similarity="dot", **roles)
        for name in RANKED:
            for one in (found, bits):
                assert np.array_equal(
                    one.per_query(name), expected.per_query(name), equal_nan=True
                ), (name, roles)
        assert found.similarity == "hamming"
    gallery = evaluate(z[apart], y[apart], RANKED, gallery=(z, y), similarity="hamming")
    expected = evaluate(
        plus_minus[apart], y[apart], RANKED, gallery=(plus_minus, y), similarity="dot"
    )
    assert [gallery[name] for name in RANKED] == [expected[name] for name in RANKED]


def test_embeddings_that_are_not_finite_are_refused_before_they_become_bits() -> None:
    z = numbers(8, 5)
    z[3, 2] = torch.nan
    with pytest.raises(ValueError, match="row 3 of the embeddings is NaN or infinite"):
        evaluate(z, [0, 1] * 4, similarity="hamming")
    with pytest.raises(ValueError, match="row 3 of the queries is NaN or infinite"):
        nearest(z, z, 1, similarity="hamming")
