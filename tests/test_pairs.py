"""The maths that losses and miners share, each function against loops and against what it must
never do.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.losses.quadruplet import crossings
from assay.pairs import (
    Pairs,
    References,
    Triplets,
    all_pairs,
    as_compared,
    as_pairs,
    as_triplets,
    distances,
    log1p_exp,
    log1p_sum_exp,
    log_sum_exp,
    masked_mean,
    pair_counts,
    sine,
    soft_histograms,
    squared_distances,
    triplet_hinges,
    unit,
    without_autocast,
)
from loops import for_each

CPU = torch.device("cpu")
few_examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
both_precisions = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)
both_distances = for_each("measure", [distances, squared_distances])

Triple = tuple[int, int, int]


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def mask(*shape: int, seed: int = 0, share: float = 0.5) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def gradient(value: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, leaves))


# --- What is compared ---


def test_half_precision_becomes_single_and_nothing_else_changes() -> None:
    for given_, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
    ):
        assert as_compared(rows(3, 2).to(given_), normalise=False).dtype == expected
        assert as_compared(rows(3, 2).to(given_), normalise=True).dtype == expected
    z = rows(3, 2)
    assert as_compared(z, normalise=False) is z
    assert torch.equal(as_compared(z, normalise=True), unit(z))


def test_products_inside_are_not_autocast_and_those_outside_are() -> None:
    """No product is taken here: on some CPUs one in bfloat16 would end the process."""
    assert isinstance(without_autocast(CPU), nullcontext)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with without_autocast(CPU):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def all_pairs_in_loops(
    y: list[int], labels: list[int], own: list[int] | None
) -> tuple[set[tuple[int, int]], ...]:
    everything = [(i, j) for i in range(len(y)) for j in range(len(labels))]
    positives = {
        (i, j) for i, j in everything if y[i] == labels[j] and (own is None or own[i] != j)
    }
    return positives, {(i, j) for i, j in everything if y[i] != labels[j]}


def entries(table: Tensor) -> set[tuple[int, int]]:
    return {(i, j) for i, j in table.nonzero().tolist()}


@given(seed=seeds, known=st.booleans())
@few_examples
def test_pairs_are_those_of_the_labels_and_never_a_sample_with_itself(
    seed: int, known: bool
) -> None:
    draw = random.Random(seed)
    y, labels = (
        draw.choices(range(3), k=draw.randint(0, 5)),
        draw.choices(range(3), k=draw.randint(5, 8)),
    )
    own = draw.sample(range(len(labels)), len(y)) if known else None
    for sample, column in enumerate(own or []):
        labels[column] = y[sample]
    references = References(
        rows(len(labels), 2),
        torch.tensor(labels),
        None if own is None else torch.tensor(own).long(),
    )
    pairs = all_pairs(torch.tensor(y, dtype=torch.long), references)
    assert (entries(pairs.positive), entries(pairs.negative)) == all_pairs_in_loops(y, labels, own)


def test_a_batch_is_its_own_references() -> None:
    z, y = rows(4, 2), torch.tensor([0, 0, 1, 0])
    references = References.of_batch(z, y)
    assert references.z is z
    assert references.own is not None
    assert references.own.tolist() == [0, 1, 2, 3]
    pairs = all_pairs(y, references)
    assert not pairs.positive.diagonal().any()
    assert not (pairs.positive & pairs.negative).any()


# --- Unit vectors ---


@both_precisions
def test_a_unit_vector_is_the_row_over_its_length(dtype: torch.dtype) -> None:
    z = rows(7, 5, dtype=dtype)
    torch.testing.assert_close(unit(z), F.normalize(z), rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert unit(z).dtype == dtype
    assert unit(z[:0]).shape == (0, 5)


def test_gradient_of_unit_vectors_is_that_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(unit, [rows(4, 3).requires_grad_()])
    assert torch.autograd.gradcheck(unit, [rows(3, 1).requires_grad_()])


@both_precisions
def test_a_row_of_zeros_stays_one_without_gradient(dtype: torch.dtype) -> None:
    z = rows(3, 4, dtype=dtype)
    z[1] = 0
    leaf = z.requires_grad_()
    (found,) = gradient((unit(leaf) * rows(3, 4, seed=1, dtype=dtype)).sum(), leaf)
    assert unit(leaf)[1].tolist() == found[1].tolist() == [0.0] * 4
    assert torch.isfinite(found).all()
    assert found[[0, 2]].ne(0).all()


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e-17),
        (torch.float32, 1e17),
        (torch.float64, 1e-140),
        (torch.float64, 1e140),
    ],
)
def test_tiny_and_huge_rows_are_normalised_like_any_other(dtype: torch.dtype, scale: float) -> None:
    z = rows(5, 4)
    leaf = (z * scale).to(dtype).requires_grad_()
    torch.testing.assert_close(unit(leaf), unit(z).to(dtype), rtol=1e-5, atol=0)
    (found,) = gradient((unit(leaf) * rows(5, 4, seed=1, dtype=dtype)).sum(), leaf)
    near = z.clone().requires_grad_()
    (expected,) = gradient((unit(near) * rows(5, 4, seed=1)).sum(), near)
    torch.testing.assert_close(found.double() * scale, expected, rtol=1e-4, atol=1e-6)


@both_precisions
def test_a_row_below_the_smallest_number_counts_as_zeros(dtype: torch.dtype) -> None:
    """Its length cannot be told from 0: no NaN, and no gradient of 1e38."""
    for dim in (1, 3):
        leaf = torch.full((2, dim), torch.finfo(dtype).tiny / 8, dtype=dtype).requires_grad_()
        assert unit(leaf).eq(0).all()
        (found,) = gradient(unit(leaf).sum(), leaf)
        assert found.eq(0).all()


# --- Distances ---


@both_distances
@for_each(
    ("count", "more", "dim"), [(6, 4, 3), (1, 5, 2), (5, 1, 7), (4, 4, 1), (0, 3, 2), (3, 0, 2)]
)
def test_distances_are_those_of_the_differences(
    measure: Callable[..., Tensor], count: int, more: int, dim: int
) -> None:
    a, b = rows(count, dim), rows(more, dim, seed=1)
    expected = [
        [math.fsum((x - y) ** 2 for x, y in zip(p, q, strict=True)) for q in b.tolist()]
        for p in a.tolist()
    ]
    squares = torch.tensor(expected, dtype=torch.float64).reshape(count, more)
    torch.testing.assert_close(
        measure(a, b), squares.sqrt() if measure is distances else squares, rtol=1e-10, atol=1e-12
    )


@both_distances
def test_distances_among_one_set_are_those_between_it_and_a_copy(
    measure: Callable[..., Tensor],
) -> None:
    """In value and gradient: the same set twice takes another way through the backward pass."""
    z, weights = rows(6, 3), rows(6, 6, seed=1)
    alone = z.clone().requires_grad_()
    left, right = z.clone().requires_grad_(), z.clone().requires_grad_()
    torch.testing.assert_close(measure(alone, alone), measure(left, right), rtol=1e-12, atol=0)
    (once,) = gradient((measure(alone, alone) * weights).sum(), alone)
    torch.testing.assert_close(
        once,
        sum(gradient((measure(left, right) * weights).sum(), left, right)),
        rtol=1e-10,
        atol=1e-12,
    )


@both_distances
def test_gradient_of_distances_is_that_of_finite_differences(
    measure: Callable[..., Tensor],
) -> None:
    assert torch.autograd.gradcheck(
        measure, [rows(4, 3).requires_grad_(), rows(5, 3, seed=1).requires_grad_()]
    )


def test_gradient_of_distances_among_one_set_is_that_of_finite_differences() -> None:
    """Off the diagonal: on it, moving a vector moves both ends, which finite differences do not
    see.
    """
    apart = ~torch.eye(4, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda z: distances(z, z)[apart], [rows(4, 3).requires_grad_()])


@both_distances
def test_gradient_reaches_only_the_side_that_asks_for_it(measure: Callable[..., Tensor]) -> None:
    a, b = rows(3, 2), rows(4, 2, seed=1)
    for left, right in ((True, False), (False, True)):
        leaves = a.clone().requires_grad_(left), b.clone().requires_grad_(right)
        (found,) = gradient(measure(*leaves).sum(), leaves[right])
        assert torch.isfinite(found).all()
        assert found.ne(0).all()


@both_precisions
@both_distances
@pytest.mark.parametrize("dim", [2, 128])
def test_distance_of_equal_vectors_is_zero(
    measure: Callable[..., Tensor], dim: int, dtype: torch.dtype
) -> None:
    z = F.normalize(rows(64, dim, seed=dim, dtype=dtype))
    twice = torch.cat([z, z])
    assert measure(twice, twice).diagonal(64).max().item() == 0
    assert measure(z, z.clone()).diagonal().max().item() == 0


@both_precisions
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_distance_of_equal_vectors_is_zero_at_any_scale(scale: float, dtype: torch.dtype) -> None:
    z = rows(64, 16, dtype=dtype) * scale
    assert distances(z, z.clone()).diagonal().max().item() == 0
    torch.testing.assert_close(distances(z, 2 * z).diagonal(), z.norm(dim=1))


@pytest.mark.parametrize(("apart", "rtol", "atol"), [(3e-2, 0.01, 0.0), (1e-3, 0.0, 1.5e-3)])
def test_distance_of_near_vectors_is_near_the_truth(apart: float, rtol: float, atol: float) -> None:
    """In single precision |a|^2 + |b|^2 - 2ab has lost a distance of 0.001, but not one of 0.03."""
    z = F.normalize(rows(200, 128, dtype=torch.float32))
    moved = F.normalize(z + apart * F.normalize(rows(200, 128, seed=1, dtype=torch.float32)))
    truth = (z.double() - moved.double()).norm(dim=1)
    torch.testing.assert_close(distances(z, moved).diagonal().double(), truth, rtol=rtol, atol=atol)


@both_distances
def test_gradient_of_distances_is_zero_where_vectors_coincide(
    measure: Callable[..., Tensor],
) -> None:
    z = torch.tensor([[0.6, 0.8], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    other = z.detach().clone().requires_grad_()
    found = [*gradient(measure(z, z).sum(), z), *gradient(measure(z, other).sum(), z, other)]
    assert [part.tolist() for part in found] == [[[0.0, 0.0], [0.0, 0.0]]] * 3


@both_distances
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_vector_that_is_not_finite_is_not_at_distance_zero(
    measure: Callable[..., Tensor], bad: float
) -> None:
    """Else a training that has diverged would have a fine loss."""
    z, other = rows(3, 2), rows(4, 2, seed=1)
    z[1, 0] = bad
    found = measure(z, other)
    assert not torch.isfinite(found[1]).any()
    assert torch.isfinite(found[[0, 2]]).all()
    assert not torch.isfinite(measure(z, z)[1]).any()


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (unit, [(3, 4)]),
        (distances, [(3, 4), (5, 4)]),
        (lambda z: distances(z, z).sum(1), [(3, 4)]),
        (sine, [(6,)]),
    ],
    ids=["unit", "distances", "own distances", "sine"],
)
def test_a_second_derivative_is_refused_and_never_wrong(
    function: Callable[..., Tensor], shapes: Any
) -> None:
    leaves = [
        (rows(*shape, seed=number) / 5).requires_grad_() for number, shape in enumerate(shapes)
    ]
    gradients = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.stack([gradient.square().sum() for gradient in gradients]).sum().backward()


# --- Sines ---


@both_precisions
def test_a_sine_is_that_of_the_angle(dtype: torch.dtype) -> None:
    angles = [math.radians(degrees) for degrees in range(1, 180)]
    found = sine(torch.tensor([math.cos(angle) for angle in angles], dtype=dtype))
    torch.testing.assert_close(
        found,
        torch.tensor([math.sin(angle) for angle in angles], dtype=dtype),
        rtol=1e3 * torch.finfo(dtype).eps,
        atol=0,
    )


def test_gradient_of_a_sine_is_that_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(
        sine, [torch.linspace(-0.99, 0.99, 9, dtype=torch.float64).requires_grad_()]
    )


@both_precisions
def test_a_sine_is_zero_without_gradient_at_both_ends_and_beyond(dtype: torch.dtype) -> None:
    """Rounding takes the cosine of two unit vectors a little beyond 1."""
    ends = torch.tensor([1.0, -1.0, 1 + 1e-6, -1 - 1e-6], dtype=dtype).requires_grad_()
    assert sine(ends).tolist() == [0.0] * 4
    (found,) = gradient(sine(ends).sum(), ends)
    assert found.tolist() == [0.0] * 4


@both_precisions
def test_gradient_of_a_sine_is_finite_next_to_its_ends(dtype: torch.dtype) -> None:
    near = torch.nextafter(
        torch.tensor([1.0, -1.0], dtype=dtype), torch.zeros(2, dtype=dtype)
    ).requires_grad_()
    (found,) = gradient(sine(near).sum(), near)
    assert torch.isfinite(found).all()
    assert torch.isfinite(sine(near)).all()


# --- Sums over masks ---

EITHER_WAY = pytest.mark.parametrize("dim", [0, 1])


def masked(x: Tensor, kept: Tensor, dim: int) -> list[list[float]]:
    """The entries of each line that the mask keeps."""
    values, lines = x.tolist(), kept.tolist()
    if dim == 0:
        values, lines = (
            [list(line) for line in zip(*values, strict=True)],
            [list(line) for line in zip(*lines, strict=True)],
        )
    return [
        [value for value, keep in zip(row, line, strict=True) if keep]
        for row, line in zip(values, lines, strict=True)
    ]


@EITHER_WAY
@given(seed=st.integers(0, 2**20))
@few_examples
def test_log_sums_of_exponentials_are_those_of_loops(dim: int, seed: int) -> None:
    x, kept = 3 * rows(4, 5, seed=seed), mask(4, 5, seed=seed)
    sums = [math.fsum(map(math.exp, line)) for line in masked(x, kept, dim)]
    expected = [math.log(total) if total else -math.inf for total in sums]
    assert log_sum_exp(x, kept, dim).tolist() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert log1p_sum_exp(x, kept, dim).tolist() == pytest.approx(
        [math.log1p(total) for total in sums], rel=1e-10, abs=1e-12
    )


def test_log_sums_run_along_the_rows_unless_told_otherwise() -> None:
    x, kept = rows(4, 5), mask(4, 5)
    assert torch.equal(log_sum_exp(x, kept), log_sum_exp(x, kept, dim=1))
    assert torch.equal(log1p_sum_exp(x, kept), log1p_sum_exp(x, kept, dim=1))


@EITHER_WAY
def test_an_empty_line_has_no_sum_and_no_gradient(dim: int) -> None:
    x, kept = rows(4, 4).requires_grad_(), mask(4, 4)
    kept[2] = False
    kept[:, 2] = False
    assert log_sum_exp(x, kept, dim)[2].item() == -math.inf
    assert log1p_sum_exp(x, kept, dim)[2].item() == 0
    for function in (log_sum_exp, log1p_sum_exp):
        value = function(x, kept, dim)
        (found,) = gradient(value[torch.isfinite(value)].sum(), x)
        assert torch.isfinite(found).all()
        assert found[~kept].eq(0).all()
        (of_empty,) = gradient(function(x, kept, dim)[2], x)
        assert of_empty.eq(0).all()


@pytest.mark.parametrize(
    ("shape", "dim", "lines"), [((3, 0), 1, 3), ((0, 3), 0, 3), ((0, 3), 1, 0), ((3, 0), 0, 0)]
)
def test_sums_over_nothing_are_those_of_empty_lines(
    shape: tuple[int, int], dim: int, lines: int
) -> None:
    x, kept = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    assert log_sum_exp(x, kept, dim).tolist() == [-math.inf] * lines
    assert log1p_sum_exp(x, kept, dim).tolist() == [0.0] * lines


@both_precisions
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_exponents_neither_overflow_nor_vanish(size: float, dtype: torch.dtype) -> None:
    x = torch.tensor([[size, 0.0, -size], [-size, -size, -size]], dtype=dtype).requires_grad_()
    kept = torch.ones(2, 3, dtype=torch.bool)
    assert log_sum_exp(x, kept)[0].item() == pytest.approx(size)
    assert log1p_sum_exp(x, kept).tolist() == pytest.approx([size, 0.0])
    (found,) = gradient(log1p_sum_exp(x, kept).sum(), x)
    assert found.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@EITHER_WAY
@pytest.mark.parametrize("function", [log_sum_exp, log1p_sum_exp])
def test_gradients_of_log_sums_are_those_of_finite_differences(
    function: Callable[..., Tensor], dim: int
) -> None:
    kept = mask(4, 5, seed=3, share=0.7)
    assert kept.any(dim).all()
    assert torch.autograd.gradcheck(lambda x: function(x, kept, dim), [rows(4, 5).requires_grad_()])


@pytest.mark.parametrize("function", [log_sum_exp, log1p_sum_exp])
@pytest.mark.parametrize("outside", [math.nan, math.inf, 1e300])
def test_what_lies_outside_of_the_mask_does_not_reach_a_log_sum(
    function: Callable[..., Tensor], outside: float
) -> None:
    x, kept = rows(4, 5), mask(4, 5, seed=3, share=0.7)
    leaf = torch.where(kept, x, outside).requires_grad_()
    assert torch.equal(function(leaf, kept), function(x, kept))
    (found,) = gradient(function(leaf, kept).sum(), leaf)
    assert torch.isfinite(found).all()
    assert found[~kept].eq(0).all()


def test_log_of_one_more_than_an_exponential_is_exact_at_both_ends() -> None:
    x = [-700.0, -100.0, -30.0, -1.0, 0.0, 1.0, 19.0, 21.0, 30.0, 49.9, 50.1, 700.0]
    expected = [math.log1p(math.exp(value)) for value in x]
    assert log1p_exp(torch.tensor(x, dtype=torch.float64)).tolist() == pytest.approx(
        expected, rel=1e-14, abs=0
    )
    ends = torch.tensor([-math.inf, -1e300, 1e300, math.inf], dtype=torch.float64).requires_grad_()
    assert log1p_exp(ends).tolist() == [0.0, 0.0, 1e300, math.inf]
    (found,) = gradient(log1p_exp(ends).sum(), ends)
    assert found.tolist() == [0.0, 0.0, 1.0, 1.0]


def test_gradient_of_the_log_of_one_more_than_an_exponential_is_that_of_finite_differences() -> (
    None
):
    assert torch.autograd.gradcheck(
        log1p_exp, [torch.linspace(-30, 30, 13, dtype=torch.float64).requires_grad_()]
    )


@pytest.mark.parametrize("shape", [(4, 5), (7,), (2, 3, 4)])
def test_a_masked_mean_is_that_of_loops(shape: tuple[int, ...]) -> None:
    x, kept = rows(*shape), mask(*shape)
    values = [
        value
        for value, keep in zip(x.flatten().tolist(), kept.flatten().tolist(), strict=True)
        if keep
    ]
    assert masked_mean(x, kept).item() == pytest.approx(math.fsum(values) / len(values), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: masked_mean(x, kept), [x.requires_grad_()])


@pytest.mark.parametrize("shape", [(4, 5), (0,), (3, 0)])
def test_a_mean_over_nothing_is_zero_and_stays_in_the_graph(shape: tuple[int, ...]) -> None:
    x = rows(*shape).requires_grad_()
    value = masked_mean(x, torch.zeros(shape, dtype=torch.bool))
    assert value.item() == 0
    (found,) = gradient(value, x)
    assert found.eq(0).all()


@pytest.mark.parametrize("outside", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_lies_outside_of_the_mask_does_not_reach_a_mean(outside: float, share: float) -> None:
    x, kept = rows(4, 5), mask(4, 5, share=share)
    leaf = torch.where(kept, x, outside).requires_grad_()
    assert masked_mean(leaf, kept).item() == masked_mean(x, kept).item()
    (found,) = gradient(masked_mean(leaf, kept), leaf)
    assert torch.isfinite(found).all()
    assert found[~kept].eq(0).all()


# --- Triplets ---


def listed(triplets: Triplets) -> list[Triple]:
    """Each triplet as (row, column, column), as often as it is there."""
    pairs = zip(
        triplets.anchor.tolist(),
        triplets.positive.tolist(),
        triplets.negative.tolist(),
        strict=True,
    )
    return [(a, p, n) for a, p, row in pairs for n, there in enumerate(row) if there]


def draw_pairs(seed: int, count: int = 5, more: int = 6) -> Pairs:
    """Any two masks that do not overlap, with empty rows among them."""
    kind = torch.randint(0, 3, (count, more), generator=torch.Generator().manual_seed(seed))
    kind[:, 0] = torch.where(mask(count, seed=seed), 0, kind[:, 0])
    emptied = mask(count, seed=seed + 1, share=0.2)[:, None]
    return Pairs((kind == 1) & ~emptied, kind == 2)


def draw_triplets(seed: int, count: int = 5, more: int = 6) -> Triplets:
    """Any triplets, with a repeated positive pair and pairs without a negative among them."""
    draw = torch.Generator().manual_seed(seed)
    anchor = torch.randint(0, count, (7,), generator=draw)
    positive = torch.randint(0, more, (7,), generator=draw)
    anchor[1], positive[1] = anchor[0], positive[0]
    negative = torch.rand(7, more, generator=draw) < 0.4
    negative[2] = False
    return Triplets(anchor, positive, negative)


def mined(seed: int, kind: str) -> Pairs | Triplets:
    return draw_pairs(seed) if kind == "pairs" else draw_triplets(seed)


either_kind = pytest.mark.parametrize("kind", ["pairs", "triplets"])


@given(seed=st.integers(0, 2**20))
@few_examples
def test_pairs_as_triplets_are_each_positive_with_every_negative_of_its_anchor(seed: int) -> None:
    pairs = draw_pairs(seed)
    positives, negatives = sorted(entries(pairs.positive)), sorted(entries(pairs.negative))
    expected = [(a, p, n) for a, p in positives for again, n in negatives if a == again]
    assert sorted(listed(as_triplets(pairs))) == expected


@either_kind
@given(seed=st.integers(0, 2**20))
@few_examples
def test_a_pair_counts_as_often_as_it_stands_in_a_triplet(kind: str, seed: int) -> None:
    found = mined(seed, kind)
    triples = listed(as_triplets(found))
    positives, negatives = (
        Counter((a, p) for a, p, _ in triples),
        Counter((a, n) for a, _, n in triples),
    )
    for table, counts in zip(pair_counts(found, 5), (positives, negatives), strict=True):
        assert table.tolist() == [[counts[i, j] for j in range(6)] for i in range(5)]


@given(seed=st.integers(0, 2**20))
@few_examples
def test_triplets_as_pairs_are_those_that_stand_in_one_each_once(seed: int) -> None:
    triplets = draw_triplets(seed)
    pairs = as_pairs(triplets, 5)
    assert entries(pairs.positive) == {(a, p) for a, p, _ in listed(triplets)}
    assert entries(pairs.negative) == {(a, n) for a, _, n in listed(triplets)}
    assert pairs.positive.shape == pairs.negative.shape == (5, 6)


@given(seed=st.integers(0, 2**20))
@few_examples
def test_pairs_there_and_back_are_those_of_anchors_that_have_both_kinds(seed: int) -> None:
    pairs = draw_pairs(seed)
    both = (pairs.positive.any(1) & pairs.negative.any(1))[:, None]
    back = as_pairs(as_triplets(pairs), 5)
    assert torch.equal(back.positive, pairs.positive & both)
    assert torch.equal(back.negative, pairs.negative & both)


def test_what_has_the_right_shape_is_left_as_it_is() -> None:
    pairs, triplets = draw_pairs(0), draw_triplets(0)
    assert as_pairs(pairs, 5) is pairs
    assert as_triplets(triplets) is triplets


def no_triplets(more: int = 6) -> Triplets:
    nobody = torch.empty(0, dtype=torch.long)
    return Triplets(nobody, nobody, torch.empty(0, more, dtype=torch.bool))


def test_nothing_mined_is_no_pair_and_no_triplet() -> None:
    nothing = torch.zeros(5, 6, dtype=torch.bool)
    for found in (no_triplets(), Pairs(nothing, nothing)):
        assert listed(as_triplets(found)) == []
        assert not as_pairs(found, 5).positive.any()
        assert not as_pairs(found, 5).negative.any()
        assert all(table.shape == (5, 6) and not table.any() for table in pair_counts(found, 5))


def hinges_in_full(d: Tensor, triplets: Triplets, margin: float) -> tuple[Tensor, Tensor]:
    """The same with a term for each triplet, differentiated by torch."""
    terms = d[triplets.anchor, triplets.positive][:, None] - d[triplets.anchor] + margin
    hinges = torch.relu(terms) * triplets.negative
    return hinges.sum(), ((terms > 0) & triplets.negative).sum()


def check_hinges(d: Tensor, triplets: Triplets, margin: float) -> None:
    ours, theirs = d.clone().requires_grad_(), d.clone().requires_grad_()
    (total, active), (expected, count) = (
        triplet_hinges(ours, triplets, margin),
        hinges_in_full(theirs, triplets, margin),
    )
    assert total.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-12)
    assert active.item() == count.item()
    assert not active.requires_grad
    torch.testing.assert_close(
        gradient(total, ours), gradient(expected, theirs), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
@given(seed=st.integers(0, 2**20))
@few_examples
def test_hinges_are_those_of_every_triplet_in_value_and_gradient(margin: float, seed: int) -> None:
    d = rows(5, 6, seed=seed).abs()
    check_hinges(d, draw_triplets(seed), margin)
    check_hinges(d, as_triplets(draw_pairs(seed)), margin)


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0])
def test_hinges_that_are_exactly_zero_are_not_active(margin: float) -> None:
    """Distances in halves, so that some triplets lie on the edge."""
    on_the_edge = 0
    for seed in range(20):
        d = torch.randint(0, 4, (5, 6), generator=torch.Generator().manual_seed(seed)).double() / 2
        triplets = draw_triplets(seed)
        on_the_edge += sum((d[a, p] - d[a, n] + margin).item() == 0 for a, p, n in listed(triplets))
        check_hinges(d, triplets, margin)
    assert on_the_edge > 20


def test_hinges_of_no_triplets_cost_nothing_and_stay_in_the_graph() -> None:
    d = rows(5, 6).abs().requires_grad_()
    for triplets in (
        no_triplets(),
        Triplets(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.zeros(2, 6, dtype=torch.bool)),
    ):
        total, active = triplet_hinges(d, triplets, 0.3)
        assert total.item() == active.item() == 0
        (found,) = gradient(total, d)
        assert found.eq(0).all()


# --- Histograms ---

GRIDS = pytest.mark.parametrize(
    ("low", "high", "bins"), [(-1, 1, 10), (0, 4, 7), (0, 4, 2), (-1.0, 1.0, 1)]
)


def histogram_in_loops(x: list[float], low: float, high: float, bins: int) -> list[float]:
    """A triangle one step wide around each node."""
    step = (high - low) / bins
    nodes = [low + step * number for number in range(bins + 1)]
    return [
        math.fsum(max(0.0, 1 - abs(min(max(value, low), high) - node) / step) for value in x)
        for node in nodes
    ]


@GRIDS
@given(seed=st.integers(0, 2**20))
@few_examples
def test_histograms_are_those_of_loops(low: float, high: float, bins: int, seed: int) -> None:
    """Also beyond both ends of the grid, where the outermost node takes all."""
    x, pairs = low + (high - low) * (0.5 + 0.4 * rows(5, 6, seed=seed)), draw_pairs(seed)
    for found, kept in zip(
        soft_histograms(x, pairs, low, high, bins), (pairs.positive, pairs.negative), strict=True
    ):
        expected = [histogram_in_loops(line, low, high, bins) for line in masked(x, kept, dim=1)]
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9
        )


@GRIDS
def test_no_pair_is_lost_or_counted_twice(low: float, high: float, bins: int) -> None:
    x, pairs = 3 * rows(5, 6), draw_pairs(1)
    for found, kept in zip(
        soft_histograms(x, pairs, low, high, bins), (pairs.positive, pairs.negative), strict=True
    ):
        assert found.shape == (5, bins + 1)
        torch.testing.assert_close(found.sum(1), kept.sum(1).double())
        assert found.ge(0).all()


@both_precisions
def test_a_value_on_a_node_counts_there_alone(dtype: torch.dtype) -> None:
    nodes = torch.tensor([[-1.0, -0.5, 0.0, 0.5, 1.0]], dtype=dtype)
    for number in range(5):
        only = torch.arange(5)[None] == number
        for pairs, place in ((Pairs(only, ~only & False), 0), (Pairs(~only & False, only), 1)):
            both = soft_histograms(nodes, pairs, -1, 1, 4)
            assert both[place].tolist() == [[float(node == number) for node in range(5)]]
            assert not both[1 - place].any()


def test_a_value_beyond_the_grid_counts_at_its_end_without_gradient() -> None:
    x = torch.tensor([[-7.0, 9.0, 0.25]], dtype=torch.float64).requires_grad_()
    every = torch.ones(1, 3, dtype=torch.bool)
    positive, _ = soft_histograms(x, Pairs(every, ~every), -1, 1, 4)
    assert positive.tolist() == [[1.0, 0.0, 0.5, 0.5, 1.0]]
    (found,) = gradient((positive * torch.arange(5)).sum(), x)
    assert found[0, :2].tolist() == [0.0, 0.0]
    assert found[0, 2].item() == pytest.approx(2)


def test_gradient_of_histograms_is_that_of_finite_differences() -> None:
    """Between the nodes, where there is one."""
    draw, pairs = torch.Generator().manual_seed(0), draw_pairs(2)
    x = (
        torch.randint(0, 8, (5, 6), generator=draw) + 0.2 + 0.6 * torch.rand(5, 6, generator=draw)
    ).double()
    assert torch.autograd.gradcheck(
        lambda x: soft_histograms(x, pairs, 0, 8, 8), [x.requires_grad_()]
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_a_number_is_no_error(bad: float) -> None:
    """A training that has diverged is to end as such, by a loss that is not finite; infinity lies
    beyond the grid.
    """
    x, every = rows(2, 3), torch.ones(2, 3, dtype=torch.bool)
    x[1, 1] = bad
    for pairs, kind in ((Pairs(every, ~every), 0), (Pairs(~every, every), 1)):
        found = soft_histograms(x, pairs, -1, 1, 4)[kind]
        assert torch.isfinite(found[0]).all()
        assert found[1].sum().isfinite().item() == (not math.isnan(bad))


def test_histograms_of_nothing_are_empty_and_stay_in_the_graph() -> None:
    for shape in ((3, 4), (3, 0), (0, 4)):
        x, none = rows(*shape).requires_grad_(), torch.zeros(shape, dtype=torch.bool)
        positive, negative = soft_histograms(x, Pairs(none, none), -1, 1, 5)
        assert positive.shape == negative.shape == (shape[0], 6)
        assert not positive.any()
        (found,) = gradient(positive.sum() + negative.sum(), x)
        assert found.eq(0).all()


# --- Crossings of the quadruplet loss ---


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_crossings_are_those_of_loops(seed: int) -> None:
    draw = random.Random(seed)
    groups = draw.sample(range(-5, 2**40), draw.randint(1, 4))
    low = [(draw.random(), draw.choice(groups)) for _ in range(draw.randint(0, 9))]
    high = [(draw.random(), draw.choice(groups)) for _ in range(draw.randint(0, 9))]
    below = [sum(group == own and value < mine for value, group in low) for mine, own in high]
    above = [sum(group == own and value > mine for value, group in high) for mine, own in low]
    members = [sum(group == own for _, group in low) for _, own in high]
    values = [
        torch.tensor([value for value, _ in part], dtype=torch.float64) for part in (low, high)
    ]
    labels = [torch.tensor([group for _, group in part], dtype=torch.long) for part in (low, high)]
    found = crossings(values[0], labels[0], values[1], labels[1])
    assert [part.tolist() for part in found] == [below, above, members]


def test_crossings_of_every_order_of_a_few_values() -> None:
    """Two low and two high values in one group, in all orders that they can have."""
    one = torch.zeros(2, dtype=torch.long)
    for order in itertools.permutations([0.0, 1.0, 2.0, 3.0]):
        low, high = order[:2], order[2:]
        found = crossings(torch.tensor(low), one, torch.tensor(high), one)
        assert found[0].tolist() == [sum(value < mine for value in low) for mine in high]
        assert found[1].tolist() == [sum(value > mine for value in high) for mine in low]
