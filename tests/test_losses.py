"""Every loss against its equation in loops, against pytorch-metric-learning, and against the laws
that all share.
"""

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.losses import losses
from assay.losses.loss import Loss
from assay.methods import Method, assemble, methods
from assay.miners import miners
from assay.pairs import Mined, Pairs, References, Triplets, all_pairs
from assay.space import Choice
from equations import CONSTANTS, REFERENCE, Case, Row, Weights, off_centre, unit
from half_precision import run_script
from loops import for_each
from miniature import QUICK
from watching import Waits

BUILT_IN = [name for name, loss in losses.items() if loss.__module__.startswith("assay.")]
CLASS_LOSSES = [name for name in BUILT_IN if losses[name].compares == "classes"]
PAIR_LOSSES = [name for name in BUILT_IN if losses[name].takes_mined()]
"""Those that compare samples, be it in pairs or in triplets."""
BATCH_LOSSES = [name for name in BUILT_IN if losses[name].compares == "batch"]
LABEL_LOSSES = [*CLASS_LOSSES, "margin_per_class"]
"""Those that look a label up among their weights."""

every_loss = for_each("name", BUILT_IN)
every_class_loss = for_each("name", CLASS_LOSSES)
every_pair_loss = for_each("name", PAIR_LOSSES)
every_label_loss = for_each("name", LABEL_LOSSES)
few_examples = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**31)

FIRST_OF_A_CLASS = ["angular_n_pairs", "n_pairs", "n_pairs_symmetric", "prototypical"]
"""They look at the first pair, or the first half, of each class, so the order inside a class
matters.
"""


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """What miners and new weights draw is the same in every run, whatever ran before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# --- Batches to try them on ---


def draw_labels(draw: random.Random, count: int, classes: int) -> list[int]:
    """Labels of classes that may be very unequal in size."""
    return draw.choices(
        range(classes), weights=[draw.random() ** 3 + 1e-3 for _ in range(classes)], k=count
    )


def draw_rows(draw: random.Random, count: int, dim: int, duplicates: bool = False) -> list[Row]:
    rows = [[draw.gauss(0, 1) for _ in range(dim)] for _ in range(count)]
    if duplicates:
        for target in range(1, count):
            if draw.random() < 0.5:
                rows[target] = list(rows[draw.randrange(target)])
    return rows


def batch(
    count: int = 8, dim: int = 5, classes: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    z = torch.randn(count, dim, generator=draw, dtype=torch.float64).to(dtype)
    return z, torch.arange(count) % classes


def case_of(
    name: str,
    z: list[Row],
    y: list[int],
    memory: tuple[list[Row], list[int]] | None = None,
    own: list[int] | None = None,
) -> Case:
    """All pairs and triplets of a batch, with itself or with a memory in which `own` says where
    each sample lies.
    """
    rows, labels = (z, y) if memory is None else memory
    own = list(range(len(y))) if memory is None else own
    if losses[name].normalise:
        z, rows = [unit(row) for row in z], [unit(row) for row in rows]
    columns = range(len(labels))
    positives = [
        [
            column
            for column in columns
            if labels[column] == y[i] and (own is None or column != own[i])
        ]
        for i in range(len(y))
    ]
    negatives = [[column for column in columns if labels[column] != y[i]] for i in range(len(y))]
    return on_pairs(Case(z, y, rows, labels, [], [], []), positives, negatives)


def on_pairs(case: Case, positives: list[list[int]], negatives: list[list[int]]) -> Case:
    """The case with these pairs, and each positive pair with every negative of its anchor as
    triplets.
    """
    triplets = [(a, p, n) for a in range(len(case.y)) for p in positives[a] for n in negatives[a]]
    return replace(case, positives=positives, negatives=negatives, triplets=triplets)


def on_triplets(case: Case, triplets: list[tuple[int, int, int]]) -> Case:
    """The case with these triplets, and the pairs that occur in them, each once."""
    positives = [
        sorted({p for a, p, _ in triplets if a == anchor}) for anchor in range(len(case.y))
    ]
    negatives = [
        sorted({n for a, _, n in triplets if a == anchor}) for anchor in range(len(case.y))
    ]
    return replace(case, positives=positives, negatives=negatives, triplets=triplets)


def on_mined(case: Case, mined: Mined) -> Case:
    """The case with what a miner chose."""
    if isinstance(mined, Pairs):
        return on_pairs(case, columns_of(mined.positive), columns_of(mined.negative))
    rows = zip(
        mined.anchor.tolist(), mined.positive.tolist(), columns_of(mined.negative), strict=True
    )
    return on_triplets(case, [(a, p, n) for a, p, negatives in rows for n in negatives])


def columns_of(mask: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask]


def mask_of(columns: list[list[int]], width: int) -> Tensor:
    rows = [[column in row for column in range(width)] for row in columns]
    return torch.tensor(rows, dtype=torch.bool).reshape(len(columns), width)


# --- Losses to try ---


def build(
    name: str, dim: int, classes: int, seed: int = 0, dtype: torch.dtype = torch.float64, **own: Any
) -> Loss:
    """A loss whose boundaries, where it learns some, are not all alike: else one per class would
    pass for one for all.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loss = fresh(name, dim, classes, dtype, **own)
        if losses[name].compares != "classes":
            for weight in loss.parameters():
                weight.data += 0.2 * torch.rand(weight.shape, dtype=torch.float64).to(dtype)
    return loss


def fresh(
    name: str, dim: int, classes: int, dtype: torch.dtype = torch.float64, **own: Any
) -> Loss:
    """A loss as training starts with it."""
    loss = losses[name](**own)
    loss.setup(dim, classes)
    return loss.to(dtype)


def weights_of(loss: Loss) -> Weights:
    return {name: value.detach().tolist() for name, value in loss.named_parameters()}


def method_of(name: str) -> Method:
    """The method that is this loss, without a miner where there is one such."""
    of_loss = [method for method in methods.values() if method.loss is losses[name]]
    return min(of_loss, key=lambda method: method.miner is not None)


def own_space(name: str) -> dict[str, Any]:
    taken = inspect.signature(losses[name]).parameters
    return {key: range_ for key, range_ in method_of(name).space.items() if key in taken}


def draw_parameters(draw: random.Random, name: str) -> dict[str, Any]:
    """The defaults, or a point of the search space."""
    return (
        {}
        if draw.random() < 0.3
        else {key: range_.at(draw.random()) for key, range_ in own_space(name).items()}
    )


def corners(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the ends of the ranges."""
    ends = [
        range_.options if isinstance(range_, Choice) else (range_.low, range_.high)
        for range_ in space.values()
    ]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*ends)]


def value_and_gradient(
    loss: Callable[..., Tensor], z: Tensor, y: Tensor, *more: Any
) -> tuple[Tensor, Tensor]:
    leaf = z.detach().clone().requires_grad_()
    value = loss(leaf, y, *more)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


TOLERANCE = {torch.float64: (1e-9, 1e-11), torch.float32: (1e-3, 1e-5)}
"""Relative and absolute."""


ANGLE_TOLERANCE = {torch.float64: (1e-9, 1e-6), torch.float32: (1e-3, 5e-3)}
"""In single precision the cosine of two equal vectors may be 1 - 6e-8: an angle of 0.0003, times
scale and sine of the margin.
"""


def is_near(expected: float) -> Any:
    relative, absolute = TOLERANCE[torch.float64]
    return pytest.approx(expected, rel=relative, abs=absolute)


def assert_is_its_equation(
    name: str,
    z: list[Row],
    y: list[int],
    dtype: torch.dtype = torch.float64,
    classes: int = 0,
    **own: Any,
) -> None:
    """Value as written out, gradient finite."""
    loss = build(name, len(z[0]), classes or max(y) + 1, dtype=dtype, **own)
    value, gradient = value_and_gradient(loss, torch.tensor(z, dtype=dtype), torch.tensor(y))
    expected = REFERENCE[name](case_of(name, z, y), weights_of(loss), **own)
    relative, absolute = (ANGLE_TOLERANCE if name == "tuplet_margin" else TOLERANCE)[dtype]
    assert value.item() == pytest.approx(expected, rel=relative, abs=absolute)
    assert value.ndim == 0
    assert value.dtype == gradient.dtype == dtype
    assert torch.isfinite(gradient).all()


# --- Value ---


def test_every_loss_has_its_equation_written_out() -> None:
    assert set(REFERENCE) == set(BUILT_IN)


@every_loss
def test_defaults_are_those_of_the_equation(name: str) -> None:
    written = list(inspect.signature(REFERENCE[name]).parameters.values())[2:]
    taken = inspect.signature(losses[name]).parameters.values()
    assert {item.name: item.default for item in written if item.name != "constants"} == {
        item.name: item.default for item in taken
    }


@every_loss
@given(seed=seeds)
@few_examples
def test_matches_its_equation(name: str, seed: int) -> None:
    draw = random.Random(seed)
    count, classes, dim = draw.randint(1, 12), draw.randint(1, 5), draw.randint(2, 6)
    z, y = draw_rows(draw, count, dim), draw_labels(draw, count, classes)
    own = draw_parameters(draw, name)
    loss = build(name, dim, classes, seed=seed, **own)
    value = loss(torch.tensor(z, dtype=torch.float64), torch.tensor(y)).item()
    assert value == is_near(REFERENCE[name](case_of(name, z, y), weights_of(loss), **own))


@every_loss
def test_matches_its_equation_at_every_corner_of_its_space(name: str) -> None:
    z, y = draw_rows(random.Random(5), 9, 4), [0, 1, 2, 2, 1, 0, 0, 1, 3]
    for own in corners(own_space(name)):
        assert_is_its_equation(name, z, y, **own)


@pytest.mark.parametrize("centres", [1, 2, 5])
def test_soft_triple_matches_its_equation_whatever_the_number_of_centres(centres: int) -> None:
    assert_is_its_equation(
        "soft_triple", draw_rows(random.Random(6), 7, 4), [0, 1, 2, 0, 1, 2, 2], centres=centres
    )


@every_pair_loss
@given(seed=seeds, known=st.booleans())
@few_examples
def test_matches_its_equation_against_a_memory(name: str, seed: int, known: bool) -> None:
    """`known`: the batch lies in the memory, at columns that `own` names; else it holds only other
    samples.
    """
    draw = random.Random(seed)
    count, classes, dim, more = (
        draw.randint(1, 6),
        draw.randint(1, 4),
        draw.randint(2, 6),
        draw.randint(0, 9),
    )
    z, y = draw_rows(draw, count, dim), draw_labels(draw, count, classes)
    past, labels = draw_rows(draw, more, dim), draw_labels(draw, more, classes)
    columns = draw.sample(range(count + more), count) if known else None
    if columns is not None:
        for column, row, label in sorted(zip(columns, z, y, strict=True)):
            past.insert(column, row)
            labels.insert(column, label)
    own = draw_parameters(draw, name)
    memory = References(
        torch.tensor(past, dtype=torch.float64).reshape(-1, dim),
        torch.tensor(labels, dtype=torch.long),
        None if columns is None else torch.tensor(columns),
    )
    loss = build(name, dim, classes, **own)
    value = loss(torch.tensor(z, dtype=torch.float64), torch.tensor(y), None, memory).item()
    case = case_of(name, z, y, (past, labels), columns)
    assert value == is_near(REFERENCE[name](case, weights_of(loss), **own))


@every_pair_loss
@given(seed=seeds)
@few_examples
def test_matches_its_equation_on_mined_pairs(name: str, seed: int) -> None:
    """A loss of triplets takes every positive pair with every negative of its anchor."""
    draw = random.Random(seed)
    count, classes, dim = draw.randint(1, 9), draw.randint(1, 4), draw.randint(2, 6)
    z, y = draw_rows(draw, count, dim), draw_labels(draw, count, classes)
    case, keep = case_of(name, z, y), draw.random()
    case = on_pairs(
        case,
        [[column for column in row if draw.random() < keep] for row in case.positives],
        [[column for column in row if draw.random() < keep] for row in case.negatives],
    )
    mined = Pairs(mask_of(case.positives, count), mask_of(case.negatives, count))
    loss = build(name, dim, classes)
    value = loss(torch.tensor(z, dtype=torch.float64), torch.tensor(y), mined).item()
    assert value == is_near(REFERENCE[name](case, weights_of(loss)))


@every_pair_loss
@given(seed=seeds)
@few_examples
def test_matches_its_equation_on_mined_triplets(name: str, seed: int) -> None:
    """A loss of pairs takes those that occur in a triplet, each once."""
    draw = random.Random(seed)
    count, classes, dim = draw.randint(1, 9), draw.randint(1, 4), draw.randint(2, 6)
    z, y = draw_rows(draw, count, dim), draw_labels(draw, count, classes)
    case, keep = case_of(name, z, y), draw.random()
    pairs = [pair for pair in case.positive_pairs if draw.random() < keep]
    chosen = [[n for n in case.negatives[a] if draw.random() < keep] for a, _ in pairs]
    anchor, positive = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).unbind(1)
    mined = Triplets(anchor, positive, mask_of(chosen, count))
    loss = build(name, dim, classes)
    value = loss(torch.tensor(z, dtype=torch.float64), torch.tensor(y), mined).item()
    assert value == is_near(REFERENCE[name](on_mined(case, mined), weights_of(loss)))


LISTED = ("listed_triplets", "listed_pairs")
"""Miners that take no batch of any size."""

MINERS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {})
        for name, miner in miners.items()
        if miner.__module__.startswith("assay.") and name not in LISTED
    ),
    ("random", {"of": "pairs"}),
    ("easy_positive", {"negatives": "hard"}),
]


@every_pair_loss
@for_each("count", [12, 1])
def test_matches_its_equation_on_what_any_miner_chooses(name: str, count: int) -> None:
    z, y = batch(count=count, dim=4)
    case, loss = case_of(name, z.tolist(), y.tolist()), build(name, 4, 3)
    for miner_name, parameters in MINERS:
        miner = miners[miner_name](**parameters)
        miner.normalise = losses[name].normalise
        mined = miner(z, y)
        expected = REFERENCE[name](on_mined(case, mined), weights_of(loss))
        assert loss(z, y, mined).item() == is_near(expected), miner_name


@every_pair_loss
def test_what_is_mined_need_not_follow_the_labels(name: str) -> None:
    """As the rho miner has it: the anchor is its own positive, and a sample of its class is pushed
    away.
    """
    z, y = batch()
    same = (y[:, None] == y) & ~torch.eye(8, dtype=torch.bool)
    mined = Triplets(torch.arange(8), torch.arange(8), same)
    value, gradient = value_and_gradient(build(name, 5, 3), z, y, mined)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_a_triplet_of_an_anchor_with_itself_pushes_its_class_away() -> None:
    z, y = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64), torch.tensor([0, 0])
    mined = Triplets(torch.tensor([0]), torch.tensor([0]), torch.tensor([[False, True]]))
    value, gradient = value_and_gradient(build("triplet", 2, 1, margin=1.0), z, y, mined)
    assert value.item() == pytest.approx(1 - 0.8**0.5)
    assert gradient[0] @ (z[1] - z[0]) > 0


RHO = ["rho_contrastive", "rho_triplet", "rho_margin", "rho_snr"]


@pytest.mark.parametrize("name", RHO)
@pytest.mark.parametrize("labels", [[0, 0, 0, 1], [0, 0, 1, 1]], ids=["third", "pair"])
def test_a_swapped_sample_is_pushed_away_from_its_own_class(name: str, labels: list[int]) -> None:
    """One anchor with the other samples of its class nearby, of which a step of gradient descent
    moves the one that was drawn away from it. Without a swap none is.
    """
    away = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = away[:1] + 0.1 * away
    z[3] = -away[0]
    y, own = torch.tensor(labels), torch.tensor([0])
    for swap_probability in (1.0, 0.0):
        parts = assemble(methods[name], {"swap_probability": swap_probability}, QUICK)
        parts.loss.setup(6, 2)
        past = z.clone().requires_grad_()
        references = References(past, y, own)
        assert parts.miner is not None
        mined = parts.miner(z[:1], y[:1], references)
        assert isinstance(mined, Triplets)
        value = parts.loss.double()(z[:1], y[:1], mined, references)
        (gradient,) = torch.autograd.grad(value, past)
        [pushed] = mined.negative[0].nonzero().flatten().tolist()
        step = -(gradient * (z - z[0])).sum(1)
        if swap_probability:
            assert labels[pushed] == 0
            assert step[pushed] > 0
        else:
            assert step[y == 0].le(0).all()


@pytest.mark.parametrize("name", RHO)
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0] * 4, [0], []], ids=str)
def test_rho_costs_nothing_where_there_is_no_triplet(name: str, labels: list[int]) -> None:
    """No positives, no negatives, one sample, none."""
    z, y = batch(count=len(labels))[0], torch.tensor(labels, dtype=torch.long)
    parts = assemble(methods[name], {"swap_probability": 1.0}, QUICK)
    assert parts.miner is not None
    parts.loss.setup(5, 4)
    value, gradient = value_and_gradient(parts.loss.double(), z, y, parts.miner(z, y))
    assert value.item() == 0
    assert gradient.eq(0).all()


# --- Planted answers ---


def test_prototypical_picks_the_class_of_each_query_by_the_mean_of_its_support() -> None:
    """Prototypes are (0, 0), the mean of two samples, and (3, 0), a single sample of three."""
    z = torch.tensor([[-1.0, 0], [3, 0], [1, 0], [1, 0], [3, 0], [-1, 0], [3, 0]])
    y = torch.tensor([0, 1, 0, 0, 1, 0, 1])
    to_own_and_other = [(1, 4), (1, 16), (0, 9), (0, 9)]
    for scale in (1.0, 0.25):
        terms = [math.log(1 + math.exp(scale * (own - other))) for own, other in to_own_and_other]
        value = losses["prototypical"](scale=scale)(z, y).item()
        assert value == pytest.approx(sum(terms) / 4, rel=1e-4)


def test_prototypical_leaves_out_a_class_with_a_single_sample() -> None:
    z, y = batch(count=9)
    y[4] = 7
    value, gradient = value_and_gradient(losses["prototypical"](), z, y)
    others = y != 7
    rest, rest_gradient = value_and_gradient(losses["prototypical"](), z[others], y[others])
    assert value.item() == pytest.approx(rest.item(), rel=1e-12)
    torch.testing.assert_close(gradient[others], rest_gradient)
    assert gradient[4].eq(0).all()


def test_angular_n_pairs_is_the_sum_of_its_parts() -> None:
    """Two classes at right angles: a.p = 1, all other products are 0, and t = 1."""
    z, y = torch.eye(2, dtype=torch.float64).repeat_interleave(2, 0), torch.tensor([0, 0, 1, 1])
    value = losses["angular_n_pairs"](alpha=45.0, weight=3.0, regularisation=0.01)(z, y).item()
    of_pairs, of_angles = math.log(1 + math.exp(-1)), math.log(1 + 2 * math.exp(-4))
    assert value == pytest.approx(of_pairs + 3 * of_angles + 0.01 * 2)


# --- Laws ---


@for_each("name", [name for name in BUILT_IN if name not in FIRST_OF_A_CLASS])
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    z, y = batch()
    loss, order = build(name, 5, 3), torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert_same_in_another_order(loss, z, y, order)


@pytest.mark.parametrize("name", FIRST_OF_A_CLASS)
def test_order_of_the_classes_does_not_matter_where_that_inside_a_class_does(name: str) -> None:
    z, y = batch(count=9)
    loss, by_class = build(name, 5, 3), torch.arange(9).view(3, 3).T
    assert_same_in_another_order(loss, z, y, by_class[[2, 0, 1]].flatten())
    assert loss(z.flip(0), y.flip(0)).item() != pytest.approx(loss(z, y).item(), rel=1e-3)


def assert_same_in_another_order(loss: Loss, z: Tensor, y: Tensor, order: Tensor) -> None:
    value, gradient = value_and_gradient(loss, z, y)
    shuffled, shuffled_gradient = value_and_gradient(loss, z[order], y[order])
    torch.testing.assert_close(value, shuffled, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient[order], shuffled_gradient, rtol=1e-8, atol=1e-12)


@for_each("name", [name for name in BUILT_IN if name not in LABEL_LOSSES])
def test_names_of_the_labels_do_not_matter(name: str) -> None:
    z, y = batch()
    loss, renamed = build(name, 5, 3), torch.tensor([2**40, -3, 2**40 + 1])
    assert loss(z, renamed[y]).item() == pytest.approx(loss(z, y).item(), rel=1e-12)


@every_label_loss
def test_names_of_the_labels_do_not_matter_when_the_class_weights_follow(name: str) -> None:
    z, y = batch()
    loss, renamed = build(name, 5, 3), torch.tensor([2, 0, 1])
    before = loss(z, y)
    with torch.no_grad():
        for weight in loss.parameters():
            weight[renamed] = weight.clone()
    torch.testing.assert_close(loss(z, renamed[y]), before, rtol=1e-10, atol=1e-12)


@every_loss
@for_each("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_type_of_the_labels_does_not_matter(name: str, dtype: torch.dtype) -> None:
    z, y = batch()
    loss = build(name, 5, 3)
    assert loss(z, y.to(dtype)).item() == loss(z, y).item()


@every_loss
@for_each("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@given(seed=seeds)
@few_examples
def test_matches_its_equation_with_duplicates_in_the_batch(
    name: str, dtype: torch.dtype, seed: int
) -> None:
    """Two equal embeddings are at distance 0, so their pair is no active term and does not dilute a
    mean over those.
    """
    draw = random.Random(seed)
    count = draw.randint(2, 10)
    z, y = draw_rows(draw, count, 6, duplicates=True), draw_labels(draw, count, 3)
    assert_is_its_equation(name, z, y, dtype)


@every_loss
@for_each("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_gradient_is_finite_when_all_embeddings_are_the_same(name: str, dtype: torch.dtype) -> None:
    assert_is_its_equation(name, [[0.6, 0.8, 0.0]] * 6, [0, 0, 0, 1, 1, 2], dtype)


@every_loss
def test_gradient_is_finite_when_no_two_labels_agree(name: str) -> None:
    assert_is_its_equation(name, draw_rows(random.Random(1), 5, 4), [0, 1, 2, 3, 4])


@every_loss
@for_each("classes", [1, 3])
def test_gradient_is_finite_when_all_labels_agree(name: str, classes: int) -> None:
    assert_is_its_equation(name, draw_rows(random.Random(2), 5, 4), [0] * 5, classes=classes)


@every_loss
def test_gradient_is_finite_for_a_single_sample(name: str) -> None:
    assert_is_its_equation(name, draw_rows(random.Random(3), 1, 4), [0])


@every_loss
def test_an_empty_batch_costs_nothing_but_a_regulariser_of_weights(name: str) -> None:
    z, y = batch(count=0)
    loss = build(name, 5, 3)
    value, _ = value_and_gradient(loss, z, y)
    assert value.item() == is_near(REFERENCE[name](case_of(name, [], []), weights_of(loss)))
    assert (value.item() == 0) == (name != "soft_triple")


@every_loss
def test_gradient_is_finite_for_a_vector_of_zeros(name: str) -> None:
    z, y = batch()
    z[2] = 0
    value, gradient = value_and_gradient(build(name, 5, 3), z, y)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


@every_loss
def test_gradient_is_finite_when_a_sample_lies_on_a_class_or_opposite(name: str) -> None:
    """Cosines of 1 and -1 are where an angle has no gradient."""
    z, y = batch(dtype=torch.float32)
    loss = build(name, 5, 3, dtype=torch.float32)
    for weight in loss.parameters():
        if weight.ndim > 1:
            rows = weight.detach().flatten(0, -2)
            z[0], z[1], z[2], z[3] = rows[0], -rows[0], rows[-1], -rows[-1]
    for label in range(3):
        value, gradient = value_and_gradient(loss, z, torch.full_like(y, label))
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()


def assert_costs_nothing(name: str, loss: Loss, z: Tensor, y: Tensor, *more: Any) -> None:
    """0 and still in the graph. SNR alone has a regulariser over the batch, whatever is compared in
    it.
    """
    value, gradient = value_and_gradient(loss, z, y, *more)
    if name == "snr_contrastive":
        assert value.item() == pytest.approx(
            0.1 * off_centre(case_of(name, z.tolist(), y.tolist())), rel=1e-5
        )
        assert torch.isfinite(gradient).all()
    else:
        assert value.item() == 0
        assert gradient.eq(0).all()


@every_pair_loss
@for_each("dtype", [torch.float32, torch.float64])
def test_nothing_to_compare_costs_nothing_and_stays_in_the_graph(
    name: str, dtype: torch.dtype
) -> None:
    z, y = batch(count=1, dtype=dtype)
    assert_costs_nothing(name, build(name, 5, 3, dtype=dtype), z, y)


@every_pair_loss
def test_an_empty_memory_costs_nothing_and_stays_in_the_graph(name: str) -> None:
    z, y = batch()
    assert_costs_nothing(name, build(name, 5, 3), z, y, None, References(z[:0], y[:0], None))


@every_pair_loss
def test_mined_pairs_or_triplets_that_are_empty_cost_nothing_and_stay_in_the_graph(
    name: str,
) -> None:
    z, y = batch()
    none, nobody = torch.zeros(8, 8, dtype=torch.bool), torch.empty(0, dtype=torch.long)
    pair_without_negative = Triplets(torch.tensor([0]), torch.tensor([3]), none[:1])
    for mined in [Pairs(none, none), Triplets(nobody, nobody, none[:0]), pair_without_negative]:
        assert_costs_nothing(name, build(name, 5, 3), z, y, mined)


HINGES = [
    "contrastive",
    "margin",
    "margin_per_class",
    "quadruplet",
    "ranked_list",
    "triplet",
    "triplet_mean",
    "triplet_squared",
]


@pytest.mark.parametrize("name", HINGES)
def test_a_batch_without_active_terms_costs_nothing_and_stays_in_the_graph(name: str) -> None:
    z = torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0)
    assert_costs_nothing(name, fresh(name, 3, 3), z, torch.tensor([0, 0, 1, 1, 2, 2]))


@pytest.mark.parametrize("name", ["snr_contrastive", "snr_triplet"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vector_of_equal_entries_is_no_signal_in_any_number_of_dimensions(
    name: str, dtype: torch.dtype
) -> None:
    """The mean of equal numbers is not always that number: what is left would be a signal of 1e-15,
    and the ratio 1e13.
    """
    for dim in range(2, 130):
        z = torch.randn(
            8, dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64
        ).to(dtype)
        z[3] = 1
        value, gradient = value_and_gradient(
            build(name, dim, 2, dtype=dtype), z, torch.arange(8) % 2
        )
        assert value < 50
        assert gradient.abs().max() < 1e3


@pytest.mark.parametrize("name", ["snr_contrastive", "snr_triplet"])
def test_an_anchor_without_a_signal_is_compared_with_nothing(name: str) -> None:
    z, y = batch()
    z[0] = 1
    others = torch.tensor([[False, True, True] + [False] * 5])
    for anchor, costs in ((0, False), (1, True)):
        mined = Triplets(torch.tensor([anchor]), torch.tensor([3]), others.roll(anchor, 1))
        loss = build(name, 5, 3, regularisation=0.0)
        value, gradient = value_and_gradient(loss, z, y, mined)
        assert (value > 0) == costs
        assert gradient.ne(0).any() == costs


@pytest.mark.parametrize("name", ["prototypical", "triplet_squared"])
def test_what_raw_embeddings_have_in_common_does_not_drown_their_differences(name: str) -> None:
    z = torch.randn(16, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, loss = torch.arange(16) % 4, build(name, 8, 4)
    value, gradient = value_and_gradient(loss, z + 1000, y)
    single, single_gradient = value_and_gradient(loss, (z + 1000).float(), y)
    assert single.item() == pytest.approx(value.item(), rel=1e-3)
    torch.testing.assert_close(single_gradient.double(), gradient, rtol=0, atol=1e-3)


def test_ties_of_quadruplets_have_a_subgradient() -> None:
    """A negative that coincides with a positive: its hinges are at their kink, and count for
    nothing on either side.
    """
    z, y = batch(count=9, dim=4)
    z[3] = z[1] = z[0]
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    _, gradient = value_and_gradient(build("quadruplet", 4, 3, pair_margin=0.0), z, y)
    nearby, seen = torch.Generator().manual_seed(0), []
    for _ in range(40):
        moved = z + 1e-7 * torch.randn(z.shape, generator=nearby, dtype=torch.float64)
        seen.append(
            value_and_gradient(build("quadruplet", 4, 3, pair_margin=0.0), moved, y)[1][
                [4, 5, 6, 7, 8]
            ]
        )
    low, high = torch.stack(seen).amin(0) - 1e-5, torch.stack(seen).amax(0) + 1e-5
    assert ((low <= gradient[[4, 5, 6, 7, 8]]) & (gradient[[4, 5, 6, 7, 8]] <= high)).all()


# --- Gradient ---


@for_each("name", [name for name in BUILT_IN if name not in CONSTANTS])
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    z, y = batch()
    own: dict[str, Any] = {"centres": 2} if name == "soft_triple" else {}
    loss = build(name, 5, 3, **own)
    names = [weight for weight, _ in loss.named_parameters()]

    def value(z: Tensor, *weights: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(
            loss, dict(zip(names, weights, strict=True)), (z, y)
        )
        return result

    inputs = [z, *(weight.detach().clone() for weight in loss.parameters())]
    assert torch.autograd.gradcheck(value, [tensor.requires_grad_() for tensor in inputs])


@for_each("name", [name for name in PAIR_LOSSES if name not in CONSTANTS])
def test_gradient_reaches_the_references_as_finite_differences_say(name: str) -> None:
    z, y = batch()
    past, labels = batch(count=5)
    loss = build(name, 5, 3)

    def value(z: Tensor, past: Tensor) -> Tensor:
        return loss(z, y, None, References(past + 0.1, labels, None))

    assert torch.autograd.gradcheck(value, [z.requires_grad_(), past.requires_grad_()])


def finite_differences(
    equation: Callable[[Tensor], float], at: Tensor, step: float = 1e-6
) -> Tensor:
    slopes = []
    for number in range(at.numel()):
        move = torch.zeros(at.numel(), dtype=at.dtype)
        move[number] = step
        slopes.append(
            (equation(at + move.view_as(at)) - equation(at - move.view_as(at))) / (2 * step)
        )
    return torch.tensor(slopes, dtype=at.dtype).view_as(at)


@pytest.mark.parametrize("name", list(CONSTANTS))
def test_gradient_is_that_of_the_equation_with_its_constants_held(name: str) -> None:
    """These equations declare weights without gradient, so finite differences of the loss itself
    are another number.
    """
    z, y = batch()
    loss = build(name, 5, 3)
    weights = weights_of(loss)
    constants = CONSTANTS[name](case_of(name, z.tolist(), y.tolist()), weights)

    def equation(z: Tensor, **moved: Any) -> float:
        return REFERENCE[name](
            case_of(name, z.tolist(), y.tolist()), weights | moved, constants=constants
        )

    _, gradient = value_and_gradient(loss, z, y)
    torch.testing.assert_close(gradient, finite_differences(equation, z), rtol=1e-5, atol=1e-7)
    for key, weight in loss.named_parameters():
        (gradient,) = torch.autograd.grad(loss(z, y), weight)
        slopes = finite_differences(
            lambda moved, key=key: equation(z, **{key: moved.tolist()}), weight.detach()
        )  # type: ignore[misc]
        torch.testing.assert_close(gradient, slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in CONSTANTS if name in PAIR_LOSSES])
def test_gradient_of_references_is_that_of_the_equation_with_its_constants_held(name: str) -> None:
    z, y = batch()
    past, labels = batch(count=5)
    past, loss = past + 0.1, build(name, 5, 3)

    def case_at(z: Tensor, past: Tensor) -> Case:
        return case_of(name, z.tolist(), y.tolist(), (past.tolist(), labels.tolist()))

    constants = CONSTANTS[name](case_at(z, past), {})
    leaves = z.clone().requires_grad_(), past.clone().requires_grad_()
    value = loss(leaves[0], y, None, References(leaves[1], labels, None))
    of_batch, of_past = torch.autograd.grad(value, leaves)
    expected_of_batch = finite_differences(
        lambda moved: REFERENCE[name](case_at(moved, past), {}, constants=constants), z
    )
    expected_of_past = finite_differences(
        lambda moved: REFERENCE[name](case_at(z, moved), {}, constants=constants), past
    )
    torch.testing.assert_close(of_batch, expected_of_batch, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(of_past, expected_of_past, rtol=1e-5, atol=1e-7)


# --- Precision ---


@every_loss
def test_single_precision_is_finite_and_near_double_precision(name: str) -> None:
    z, y = batch()
    exact, _ = value_and_gradient(build(name, 5, 3), z, y)
    value, gradient = value_and_gradient(build(name, 5, 3, dtype=torch.float32), z.float(), y)
    assert value.dtype == gradient.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), rel=1e-4)
    assert torch.isfinite(gradient).all()


HALF_PRECISION = """
import copy, json, sys, torch
from assay.losses import losses

def measure(loss, z, autocast=False):
    z = z.detach().clone().requires_grad_()
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(z, y)
        value.backward()
    except RuntimeError as error:
        return {"error": str(error)}
    return {
        "value": value.item(),
        "dtype": str(value.dtype),
        "gradient": z.grad.tolist(),
        "finite": bool(torch.isfinite(value) and torch.isfinite(z.grad).all()),
        "weights": [str(weight.dtype) for weight in loss.parameters()],
    }

results = {}
for name in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    loss = losses[name]()
    loss.setup(8, 3)
    z, y = torch.randn(12, 8), torch.arange(12) % 3
    half, half_loss = z.bfloat16(), copy.deepcopy(loss).bfloat16()
    results[name] = {
        "single": measure(loss, z),
        "autocast": measure(loss, z, autocast=True),
        "rounded batch": measure(loss, half.float()),
        "half batch": measure(loss, half),
        "rounded both": measure(copy.deepcopy(half_loss).float(), half.float()),
        "half both": measure(half_loss, half),
    }
print(json.dumps(results))
"""


@pytest.fixture(scope="session")
def half_precision() -> dict[str, dict[str, Any]]:
    return run_script(HALF_PRECISION, BUILT_IN)


@every_loss
@for_each("what", ["batch", "both"])
def test_half_precision_is_that_of_the_rounded_numbers_in_single_precision(
    name: str, what: str, half_precision: dict[str, dict[str, Any]]
) -> None:
    measured, rounded = (
        half_precision[name][f"half {what}"],
        half_precision[name][f"rounded {what}"],
    )
    assert "error" not in measured, measured
    assert measured["finite"], measured
    assert measured["value"] == pytest.approx(rounded["value"], rel=1e-5)


@for_each("name", [name for name in BUILT_IN if list(fresh(name, 4, 3).parameters())])
def test_a_batch_in_half_precision_leaves_weights_in_single_precision(
    name: str, half_precision: dict[str, dict[str, Any]]
) -> None:
    assert set(half_precision[name]["half batch"]["weights"]) == {"torch.float32"}


@every_loss
def test_autocast_changes_nothing(name: str, half_precision: dict[str, dict[str, Any]]) -> None:
    assert half_precision[name]["autocast"] == half_precision[name]["single"]
    assert half_precision[name]["autocast"]["dtype"] == "torch.float32"


# --- More laws ---


@for_each("name", [name for name in BUILT_IN if losses[name].normalise])
def test_scale_of_the_embeddings_does_not_matter(name: str) -> None:
    z, y = batch()
    loss = build(name, 5, 3)
    scales = torch.logspace(-3, 3, 8, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(z * scales, y), loss(z, y), rtol=1e-9, atol=1e-12)


@for_each("name", [name for name in PAIR_LOSSES if losses[name].normalise])
def test_scale_of_the_references_does_not_matter(name: str) -> None:
    z, y = batch()
    past, labels = batch(count=5)
    loss = build(name, 5, 3)
    near, far = (References(past * scale + 0.1 * scale, labels, None) for scale in (1, 1000))
    torch.testing.assert_close(loss(z, y, None, far), loss(z, y, None, near), rtol=1e-9, atol=1e-12)


@every_class_loss
def test_scale_of_the_class_weights_does_not_matter(name: str) -> None:
    z, y = batch()
    loss = build(name, 5, 3)
    before = loss(z, y)
    for weight in loss.parameters():
        weight.data *= torch.logspace(-2, 2, 3, dtype=torch.float64).view(
            -1, *[1] * (weight.ndim - 1)
        )
    torch.testing.assert_close(loss(z, y), before, rtol=1e-9, atol=1e-12)


LOG_SUM_EXP_OF_A_NUMBER_OF_ROWS_FROM_THE_DATA = [
    "angular",
    "angular_n_pairs",
    "angular_raw",
    "n_pairs",
    "n_pairs_symmetric",
]
"""How many pairs there are stands in the labels (`nonzero`), and torch's log-sum-exp asks, while it
is traced, whether any.
"""


CHOSEN_IN_NUMPY = ["structured_clustering"]
"""Medoids are chosen on the CPU, step by step."""


@for_each(
    "name",
    [
        name
        for name in BUILT_IN
        if name not in (*LOG_SUM_EXP_OF_A_NUMBER_OF_ROWS_FROM_THE_DATA, *CHOSEN_IN_NUMPY)
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # dynamo's own way with autograd functions
@pytest.mark.slow
def test_compiles_into_one_graph(name: str) -> None:
    """`aot_eager` traces forward and backward as the default backend would, without waiting for a
    C++ compiler.
    """
    z, y = batch(dtype=torch.float32)
    loss = build(name, 5, 3, dtype=torch.float32)
    value, gradient = value_and_gradient(loss, z, y)
    torch._dynamo.reset()
    compiled, compiled_gradient = value_and_gradient(
        torch.compile(loss, fullgraph=True, backend="aot_eager"), z, y
    )
    torch.testing.assert_close(compiled, value)
    torch.testing.assert_close(compiled_gradient, gradient)


@every_loss
def test_state_dict_round_trip_gives_the_same_loss(name: str) -> None:
    z, y = batch()
    loss, other = build(name, 5, 3, seed=1), build(name, 5, 3, seed=2)
    other.load_state_dict(loss.state_dict())
    assert other(z, y).item() == loss(z, y).item()


@every_class_loss
def test_class_weights_are_in_the_state_dict(name: str) -> None:
    loss = build(name, 5, 3)
    assert {key for key, _ in loss.named_parameters()} <= set(loss.state_dict())
    assert any(
        weight.shape[0] == 3 and weight.shape[-1] == 5 for weight in loss.state_dict().values()
    )


@every_class_loss
def test_class_weights_start_at_unit_expected_norm(name: str) -> None:
    for weight in fresh(name, 64, 500).parameters():
        assert weight.norm(dim=-1).mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("name", ["margin", "margin_per_class"])
def test_boundaries_start_where_beta_says(name: str) -> None:
    loss = fresh(name, 5, 3, beta=0.75)
    assert {
        key: set(weight.detach().flatten().tolist()) for key, weight in loss.named_parameters()
    } == {"beta": {0.75}}


@for_each("name", [name for name, method in methods.items() if method.loss in losses.values()])
def test_losses_are_finite_at_every_corner_of_their_space(name: str) -> None:
    """With duplicates and opposite vectors, the extremes of distances and similarities, in single
    precision.
    """
    method = methods[name]
    z, y = batch(count=12, dtype=torch.float32)
    z[1], z[3], z[4] = z[0], z[0], -z[0]
    for parameters in corners(
        {key: range_ for key, range_ in method.space.items() if key != "weights_lr"}
    ):
        parts = assemble(method, parameters, QUICK)
        parts.loss.setup(5, 3)
        value, gradient = value_and_gradient(
            parts.loss, z, y, parts.miner(z, y) if parts.miner else None
        )
        assert torch.isfinite(value), parameters
        assert torch.isfinite(gradient).all(), parameters


COUNTS = {
    **dict.fromkeys(
        ["triplet", "triplet_mean", "triplet_squared", "snr_triplet", "angular", "angular_raw"], 1
    ),  # the positive pairs
    **dict.fromkeys(["smooth_ap", "n_pairs", "n_pairs_symmetric"], 1),
    "angular_n_pairs": 2,  # the positive pairs, and those of n-pairs
    "quadruplet": 2,  # the positive pairs, and those of two classes
}


@every_loss
def test_no_loss_waits_for_the_device_but_to_count_pairs(name: str) -> None:
    z, y = batch(dtype=torch.float32)
    loss, leaf = build(name, 5, 3, dtype=torch.float32), z.clone().requires_grad_()
    with Waits() as waits:
        loss(leaf, y).backward()
    assert waits.count == COUNTS.get(name, 0)


# --- What a loss refuses ---


@every_label_loss
@for_each("label", [3, 100, -1, -100])
def test_a_label_without_a_weight_raises_with_the_label_and_the_range(
    name: str, label: int
) -> None:
    z, y = batch()
    y[0] = label
    with pytest.raises(ValueError, match=rf"label {label} .*0 to 2"):
        build(name, 5, 3)(z, y)


@for_each("name", [*CLASS_LOSSES, *BATCH_LOSSES])
def test_a_loss_of_classes_or_of_a_whole_batch_takes_no_mined_pairs_and_no_references(
    name: str,
) -> None:
    z, y = batch()
    loss, references = build(name, 5, 3), References.of_batch(z, y)
    why = {"classes": "own weights", "batch": "batch as a whole"}[losses[name].compares]
    with pytest.raises(ValueError, match=f"{why}: it takes no mined pairs and no references"):
        loss(z, y, all_pairs(y, references))
    with pytest.raises(ValueError, match=why):
        loss(z, y, None, references)


@every_label_loss
def test_a_loss_without_its_weights_says_that_setup_is_missing(name: str) -> None:
    z, y = batch()
    with pytest.raises(ValueError, match="setup"):
        losses[name]()(z, y)


@every_class_loss
@for_each("dim", [4, 6, 1])
def test_embeddings_of_another_size_than_the_weights_raise_with_both(name: str, dim: int) -> None:
    z, y = batch(dim=dim)
    with pytest.raises(ValueError, match=rf"dim=5, but embeddings have {dim} dimensions"):
        build(name, 5, 3)(z, y)


@every_loss
def test_mismatched_lengths_raise_with_both_shapes(name: str) -> None:
    z, y = batch()
    with pytest.raises(ValueError, match=r"\(8, 5\) and \(7,\)"):
        build(name, 5, 3)(z, y[:7])


@every_loss
@for_each("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_labels_that_are_not_whole_numbers_raise(name: str, dtype: torch.dtype) -> None:
    z, y = batch()
    with pytest.raises(ValueError, match=str(dtype)):
        build(name, 5, 3)(z, y.to(dtype))


def test_a_sample_is_never_its_own_positive() -> None:
    z, y = batch()
    pairs = all_pairs(y, References.of_batch(z, y))
    assert not pairs.positive.diagonal().any()
    assert not (pairs.positive & pairs.negative).any()
