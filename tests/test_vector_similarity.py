"""What products tell apart, exact scores tell apart the same way; what is equal scores the same
wherever it stands.
"""

import random
from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.neighbours import Vectors, vector_similarities
from assay.neighbours.bits import multiply
from assay.neighbours.similarity import VectorSimilarity
from loops import for_each
from searches import (
    SIMILARITIES,
    Rows,
    Search,
    along,
    draw_search,
    every_kind,
    every_similarity,
    exact_score,
    gaussian,
    packed_bits,
)

few_examples = settings(max_examples=6, deadline=None)
seeds = st.integers(0, 2**31)
every_precision = for_each("dtype", [torch.float32, torch.float64])


def compare(search: Search) -> VectorSimilarity:
    return vector_similarities[search.similarity](*map(Vectors, search.sides()))


def bounds(compared: VectorSimilarity, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Lower and upper ends (Q, R) of what the products say."""
    queries, references = (
        torch.arange(len(compared.queries)),
        torch.arange(len(compared.references)),
    )
    upper = torch.empty(len(queries), len(references), dtype=dtype)
    multiply(compared.left(queries, dtype), compared.right(references, dtype), upper)
    return upper - compared.gap(queries[:, None], references[None], dtype), upper


def exact_scores(compared: VectorSimilarity) -> Tensor:
    references = torch.arange(len(compared.references))
    return torch.stack(
        [
            compared.exact(torch.full_like(references, query), references)
            for query in range(len(compared.queries))
        ]
    )


def test_every_similarity_is_tested() -> None:
    assert set(SIMILARITIES) == set(vector_similarities)


@every_kind
@every_precision
@given(seed=seeds)
@few_examples
def test_what_products_tell_apart_is_apart(
    kind: Callable[[random.Random, int], Rows], similarity: str, dtype: torch.dtype, seed: int
) -> None:
    """In exact arithmetic, whatever rounding the products have suffered."""
    search = draw_search(random.Random(seed), kind, similarity)
    compared = compare(search)
    assert compared.trusts(torch.float64)
    if not compared.trusts(dtype):
        return
    lower, upper = bounds(compared, dtype)
    for number, query in enumerate(search.queries):
        exact = [exact_score(similarity, query, reference) for reference in search.references]
        order = {score: place for place, score in enumerate(sorted(set(exact)))}
        place = torch.tensor([order[score] for score in exact])
        apart = lower[number][:, None] > upper[number][None]
        assert (place[:, None] > place[None])[apart].all()


@every_kind
@given(seed=seeds)
@few_examples
def test_exact_scores_are_in_the_order_of_exact_arithmetic(
    kind: Callable[[random.Random, int], Rows], similarity: str, seed: int
) -> None:
    search = draw_search(random.Random(seed), kind, similarity)
    search = Search(
        search.queries, search.references, len(search.references), similarity, dtype=search.dtype
    )
    scores = exact_scores(compare(search))
    for number, row in search.clear().items():
        assert scores[number].argsort(descending=True, stable=True).tolist() == row


@every_kind
@every_precision
@given(seed=seeds)
@few_examples
def test_no_gap_is_wider_than_the_widest(
    kind: Callable[[random.Random, int], Rows], similarity: str, dtype: torch.dtype, seed: int
) -> None:
    compared = compare(draw_search(random.Random(seed), kind, similarity))
    queries, references = (
        torch.arange(len(compared.queries)),
        torch.arange(len(compared.references)),
    )
    gaps = compared.gap(queries[:, None], references[None], dtype)
    assert (gaps <= compared.widest_gap(queries, dtype).expand(len(queries))[:, None]).all()
    assert (gaps >= 0).all()


@for_each("similarity", ["cosine", "dot", "euclidean"])
@for_each("dim", [1, 5, 33, 700])
def test_equal_rows_score_the_same_wherever_they_stand(similarity: str, dim: int) -> None:
    draw = torch.Generator().manual_seed(dim)
    query, row = torch.randn(1, dim, generator=draw), torch.randn(1, dim, generator=draw)
    compared = vector_similarities[similarity](Vectors(query), Vectors(row.repeat(101, 1)))
    alone = compared.exact(torch.zeros(1, dtype=torch.long), torch.tensor([100]))
    assert exact_scores(compared).unique().tolist() == alone.tolist()


@for_each("similarity", ["cosine", "dot", "euclidean"])
@for_each("dim", [1, 31, 32, 33, 512, 5000])
@for_each("shape", ["around zero", "positive", "constant", "rising"])
@every_precision
def test_products_of_many_dimensions_err_by_less_than_the_gap(
    similarity: str, dim: int, shape: str, dtype: torch.dtype
) -> None:
    """The cases where rounding adds up: all terms of one sign, of one size, growing."""
    draw = torch.Generator().manual_seed(dim)
    noise = torch.randn(24, dim, generator=draw, dtype=torch.float64)
    rows = {
        "around zero": noise,
        "positive": noise.abs() + 0.5,
        "constant": 0.1 + 1e-7 * noise[:, :1].expand(24, dim),
        "rising": torch.linspace(0.1, 1, dim, dtype=torch.float64) + 1e-6 * noise,
    }[shape]
    compared = vector_similarities[similarity](Vectors(rows[:4]), Vectors(rows[4:]))
    lower, upper = bounds(compared, dtype)
    exact = exact_scores(compared)
    apart = lower[:, :, None] > upper[:, None]
    assert (exact[:, :, None] > exact[:, None])[apart].all()


@every_precision
def test_exact_scores_of_a_query_far_away_agree_with_products(dtype: torch.dtype) -> None:
    compared = vector_similarities["euclidean"](
        Vectors(torch.tensor([[1e17]], dtype=torch.float64)),
        Vectors(torch.tensor([[1.0], [2], [3]], dtype=torch.float64)),
    )
    lower, upper = bounds(compared, dtype)
    exact = exact_scores(compared)
    assert (exact[:, :, None] > exact[:, None])[lower[:, :, None] > upper[:, None]].all()


@every_similarity
def test_what_is_kept_in_memory_does_not_matter(similarity: str) -> None:
    search = draw_search(
        random.Random(7), packed_bits if similarity == "hamming" else gaussian, similarity
    )
    kept = exact_scores(compare(search))
    with along("few pairs at once"):
        assert torch.equal(exact_scores(compare(search)), kept)
