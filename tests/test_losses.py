"""Every loss against its equation in loops, against pytorch-metric-learning, and against the laws that all share."""

import inspect
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as pml
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from assay.losses import losses
from assay.method import Loss
from assay.methods import Method, assemble, methods
from assay.pairs import Pairs, References, Triplets, all_pairs, distances
from assay.protocols import protocols
from assay.space import Choice

BUILT_IN = [name for name, loss in losses.items() if loss.__module__.startswith("assay.")]
every_loss = pytest.mark.parametrize("name", BUILT_IN)
few_examples = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31)

Row = list[float]
Weights = dict[str, list[Row]]


# --- The equations, one term at a time, no tensors ---


@dataclass
class Case:
    """A batch in plain numbers: unit vectors, and which columns of the references each sample is compared with."""

    z: list[Row]
    y: list[int]
    references: list[Row]
    positives: list[list[int]]
    negatives: list[list[int]]
    triplets: list[tuple[int, int, int]] = field(default_factory=list)


def contrastive(case: Case, weights: Weights, pos_margin: float = 0.0, neg_margin: float = 0.5) -> float:
    pull, push = [], []
    for anchor, (positives, negatives) in enumerate(zip(case.positives, case.negatives, strict=True)):
        pull += [distance(case.z[anchor], case.references[column]) - pos_margin for column in positives]
        push += [neg_margin - distance(case.z[anchor], case.references[column]) for column in negatives]
    return mean_above_zero(pull) + mean_above_zero(push)


def triplet(case: Case, weights: Weights, margin: float = 0.1) -> float:
    terms = []
    for anchor, positive, negative in case.triplets:
        to_positive = distance(case.z[anchor], case.references[positive])
        to_negative = distance(case.z[anchor], case.references[negative])
        terms.append(to_positive - to_negative + margin)
    return mean_above_zero(terms)


def multi_similarity(case: Case, weights: Weights, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> float:
    total = 0.0
    for anchor, (positives, negatives) in enumerate(zip(case.positives, case.negatives, strict=True)):
        pull = sum(math.exp(-alpha * (dot(case.z[anchor], case.references[column]) - base)) for column in positives)
        push = sum(math.exp(beta * (dot(case.z[anchor], case.references[column]) - base)) for column in negatives)
        total += math.log(1 + pull) / alpha + math.log(1 + push) / beta
    return total / len(case.z)


def normalized_softmax(case: Case, weights: Weights, temperature: float = 0.05) -> float:
    total = 0.0
    for row, label in zip(case.z, case.y, strict=True):
        cosines = [dot(row, unit(weight)) for weight in weights["weights"]]
        exponentials = [math.exp(cosine / temperature) for cosine in cosines]
        total -= math.log(exponentials[label] / sum(exponentials))
    return total / len(case.z)


REFERENCE: dict[str, Callable[..., float]] = {
    "contrastive": contrastive,
    "triplet": triplet,
    "multi_similarity": multi_similarity,
    "normalized_softmax": normalized_softmax,
}


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def unit(row: Row) -> Row:
    norm = math.sqrt(dot(row, row))
    return [x / norm for x in row]


def distance(a: Row, b: Row) -> float:
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def mean_above_zero(terms: list[float]) -> float:
    active = [term for term in terms if term > 0]
    return math.fsum(active) / len(active) if active else 0.0


# --- Batches to try them on ---


def draw_labels(draw: random.Random, count: int, classes: int) -> list[int]:
    """Labels of classes that may be very unequal in size."""
    return draw.choices(range(classes), weights=[draw.random() ** 3 + 1e-3 for _ in range(classes)], k=count)


def draw_rows(draw: random.Random, count: int, dim: int, duplicates: bool = False) -> list[Row]:
    rows = [[draw.gauss(0, 1) for _ in range(dim)] for _ in range(count)]
    if duplicates:
        for target in range(1, count):
            if draw.random() < 0.5:
                rows[target] = list(rows[draw.randrange(target)])
    return rows


def case_of(z: list[Row], y: list[int], memory: tuple[list[Row], list[int]] | None = None, own: list[int] | None = None) -> Case:
    """All pairs and triplets of a batch, with itself or with a memory in which `own` says where each sample lies."""
    rows, labels = (z, y) if memory is None else memory
    own = list(range(len(y))) if memory is None else own
    columns = range(len(labels))
    positives = [
        [column for column in columns if labels[column] == y[i] and (own is None or column != own[i])] for i in range(len(y))
    ]
    negatives = [[column for column in columns if labels[column] != y[i]] for i in range(len(y))]
    triplets = [(a, p, n) for a in range(len(y)) for p in positives[a] for n in negatives[a]]
    return Case([unit(row) for row in z], y, [unit(row) for row in rows], positives, negatives, triplets)


def build(name: str, dim: int, classes: int, seed: int = 0, dtype: torch.dtype = torch.float64, **own: Any) -> Loss:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loss = losses[name](**own)
        loss.setup(dim, classes)
    return loss.to(dtype)


def weights_of(loss: Loss) -> Weights:
    return {name: value.detach().tolist() for name, value in loss.named_parameters()}


def compares_samples(name: str) -> bool:
    """Whether the loss looks at pairs or triplets, not at class weights."""
    return not list(build(name, 4, 3).parameters())


PAIR_LOSSES = [name for name in BUILT_IN if compares_samples(name)]
CLASS_LOSSES = [name for name in BUILT_IN if not compares_samples(name)]
every_pair_loss = pytest.mark.parametrize("name", PAIR_LOSSES)
every_class_loss = pytest.mark.parametrize("name", CLASS_LOSSES)


def method_of(name: str) -> Method:
    return next(method for method in methods.values() if method.loss is losses[name] and method.miner is None)


def draw_parameters(draw: random.Random, name: str) -> dict[str, Any]:
    """The defaults, or a point of the search space."""
    taken = inspect.signature(losses[name]).parameters
    space = {key: range_ for key, range_ in method_of(name).space.items() if key in taken}
    return {} if draw.random() < 0.3 else {key: range_.at(draw.random()) for key, range_ in space.items()}


def value_and_gradient(loss: Loss, z: Tensor, y: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
    leaf = z.detach().clone().requires_grad_()
    value = loss(leaf, y, *more)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def batch(count: int = 8, dim: int = 5, classes: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    z = torch.randn(count, dim, generator=draw, dtype=torch.float64).to(dtype)
    return z, torch.arange(count) % classes


TOLERANCE = {torch.float64: (1e-5, 1e-9), torch.float32: (1e-3, 1e-5)}
"""Relative and absolute."""


def assert_is_its_equation(name: str, z: list[Row], y: list[int], dtype: torch.dtype = torch.float64, **own: Any) -> None:
    """Value as written out, gradient finite."""
    loss = build(name, len(z[0]), max(y) + 1, dtype=dtype, **own)
    value, gradient = value_and_gradient(loss, torch.tensor(z, dtype=dtype), torch.tensor(y))
    expected = REFERENCE[name](case_of(z, y), weights_of(loss), **own)
    relative, absolute = TOLERANCE[dtype]
    assert value.item() == pytest.approx(expected, rel=relative, abs=absolute)
    assert value.ndim == 0
    assert torch.isfinite(gradient).all()


# --- Value ---


def test_every_loss_has_its_equation_written_out() -> None:
    assert set(REFERENCE) == set(BUILT_IN)


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
    assert value == pytest.approx(REFERENCE[name](case_of(z, y), weights_of(loss), **own), rel=1e-5, abs=1e-9)


@every_pair_loss
@given(seed=seeds, known=st.booleans())
@few_examples
def test_matches_its_equation_against_a_memory(name: str, seed: int, known: bool) -> None:
    """`known`: the batch lies in the memory, at columns that `own` names; else it holds only other samples."""
    draw = random.Random(seed)
    count, classes, dim, more = draw.randint(1, 6), draw.randint(1, 4), draw.randint(2, 6), draw.randint(0, 9)
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
    value = build(name, dim, classes, **own)(torch.tensor(z, dtype=torch.float64), torch.tensor(y), None, memory).item()
    case = case_of(z, y, (past, labels), columns)
    assert value == pytest.approx(REFERENCE[name](case, {}, **own), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in PAIR_LOSSES if name != "triplet"])
@given(seed=seeds)
@few_examples
def test_matches_its_equation_on_mined_pairs(name: str, seed: int) -> None:
    draw = random.Random(seed)
    count, classes, dim = draw.randint(1, 9), draw.randint(1, 4), draw.randint(2, 6)
    z, y = draw_rows(draw, count, dim), draw_labels(draw, count, classes)
    case, keep = case_of(z, y), draw.random()
    case.positives = [[column for column in row if draw.random() < keep] for row in case.positives]
    case.negatives = [[column for column in row if draw.random() < keep] for row in case.negatives]
    mined = Pairs(mask(case.positives, count), mask(case.negatives, count))
    value = build(name, dim, classes)(torch.tensor(z, dtype=torch.float64), torch.tensor(y), mined).item()
    assert value == pytest.approx(REFERENCE[name](case, {}), rel=1e-5, abs=1e-9)


@given(seed=seeds)
@few_examples
def test_triplet_matches_its_equation_on_mined_triplets(seed: int) -> None:
    draw = random.Random(seed)
    count, classes, dim = draw.randint(1, 9), draw.randint(1, 4), draw.randint(2, 6)
    z, y = draw_rows(draw, count, dim), draw_labels(draw, count, classes)
    case, keep = case_of(z, y), draw.random()
    pairs = [(a, p) for a in range(count) for p in case.positives[a] if draw.random() < keep]
    chosen = [[n for n in case.negatives[a] if draw.random() < keep] for a, _ in pairs]
    case.triplets = [(a, p, n) for (a, p), row in zip(pairs, chosen, strict=True) for n in row]
    anchor, positive = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).unbind(1)
    mined = Triplets(anchor, positive, mask(chosen, count))
    value = build("triplet", dim, classes)(torch.tensor(z, dtype=torch.float64), torch.tensor(y), mined).item()
    assert value == pytest.approx(triplet(case, {}), rel=1e-5, abs=1e-9)


def mask(columns: list[list[int]], width: int) -> Tensor:
    rows = [[column in row for column in range(width)] for row in columns]
    return torch.tensor(rows, dtype=torch.bool).reshape(len(columns), width)


# --- A second oracle ---

ORACLES: dict[str, Callable[[Loss, int, int], Any]] = {
    "contrastive": lambda loss, dim, classes: pml.ContrastiveLoss(pos_margin=0.1, neg_margin=1.1),
    "triplet": lambda loss, dim, classes: pml.TripletMarginLoss(margin=0.3),
    "multi_similarity": lambda loss, dim, classes: pml.MultiSimilarityLoss(alpha=3, beta=40, base=0.4),
    "normalized_softmax": lambda loss, dim, classes: pml.NormalizedSoftmaxLoss(classes, dim, temperature=0.2),
}
ORACLE_PARAMETERS: dict[str, dict[str, Any]] = {
    "contrastive": {"pos_margin": 0.1, "neg_margin": 1.1},
    "triplet": {"margin": 0.3},
    "multi_similarity": {"alpha": 3.0, "beta": 40.0, "base": 0.4},
    "normalized_softmax": {"temperature": 0.2},
}


@pytest.mark.parametrize("name", list(ORACLES))
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_pytorch_metric_learning_in_value_and_gradient(name: str, seed: int) -> None:
    """The forms are the same ones: both follow what the reality check benchmarked."""
    draw, dim, classes = random.Random(seed), 6, 4
    z = torch.tensor(draw_rows(draw, 14, dim), dtype=torch.float64)
    y = torch.tensor([*range(classes), *range(classes), *draw_labels(draw, 6, classes)])
    loss = build(name, dim, classes, seed=seed, **ORACLE_PARAMETERS[name])
    oracle = ORACLES[name](loss, dim, classes)
    for weight, theirs in zip(loss.parameters(), oracle.parameters(), strict=True):
        theirs.data = weight.detach().T.clone()
    value, gradient = value_and_gradient(loss, z, y)
    expected, expected_gradient = value_and_gradient(oracle, z, y)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_of_class_weights_agrees_with_pytorch_metric_learning(seed: int) -> None:
    loss = build("normalized_softmax", 5, 3, seed=seed)
    oracle = pml.NormalizedSoftmaxLoss(3, 5, temperature=0.05)
    oracle.W.data = next(loss.parameters()).detach().T.clone()
    z, y = batch()
    (ours,) = torch.autograd.grad(loss(z, y), list(loss.parameters()))
    (theirs,) = torch.autograd.grad(oracle(z, y), [oracle.W])
    torch.testing.assert_close(ours.T, theirs, rtol=1e-7, atol=1e-10)


def test_a_single_pair_counts_though_pytorch_metric_learning_drops_it() -> None:
    """Theirs departs from the equation: it returns 0 where neither kind of pair occurs more than once."""
    z, past = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    y = torch.tensor([0])
    assert losses["contrastive"]()(z, y, None, References(past, y, None)).item() == pytest.approx(math.sqrt(2))
    assert pml.ContrastiveLoss()(z, y, ref_emb=past, ref_labels=y).item() == 0


# --- Laws ---


@every_loss
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    z, y = batch()
    loss, order = build(name, 5, 3), torch.randperm(8, generator=torch.Generator().manual_seed(1))
    value, gradient = value_and_gradient(loss, z, y)
    shuffled, shuffled_gradient = value_and_gradient(loss, z[order], y[order])
    torch.testing.assert_close(value, shuffled, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient[order], shuffled_gradient, rtol=1e-8, atol=1e-12)


@every_pair_loss
def test_names_of_the_labels_do_not_matter(name: str) -> None:
    z, y = batch()
    loss, renamed = build(name, 5, 3), torch.tensor([2**40, -3, 2**40 + 1])
    assert loss(z, renamed[y]).item() == loss(z, y).item()


@every_class_loss
def test_names_of_the_labels_do_not_matter_when_the_class_weights_follow(name: str) -> None:
    z, y = batch()
    loss, renamed = build(name, 5, 3), torch.tensor([2, 0, 1])
    before = loss(z, y)
    with torch.no_grad():
        for weight in loss.parameters():
            if weight.shape[:1] == (3,):
                weight[renamed] = weight.clone()
    torch.testing.assert_close(loss(z, renamed[y]), before, rtol=1e-10, atol=1e-12)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@given(seed=seeds)
@few_examples
def test_matches_its_equation_with_duplicates_in_the_batch(name: str, dtype: torch.dtype, seed: int) -> None:
    """Two equal embeddings are at distance 0, so their pair is no active term and does not dilute a mean over those."""
    draw = random.Random(seed)
    count = draw.randint(2, 10)
    z, y = draw_rows(draw, count, 6, duplicates=True), draw_labels(draw, count, 3)
    assert_is_its_equation(name, z, y, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 128])
def test_distance_of_equal_vectors_is_zero(dim: int, dtype: torch.dtype) -> None:
    z = torch.nn.functional.normalize(torch.randn(64, dim, generator=torch.Generator().manual_seed(dim), dtype=dtype))
    twice = torch.cat([z, z])
    farthest = distances(twice, twice).diagonal(64).max().item()
    assert farthest == 0


@pytest.mark.parametrize(("apart", "rtol", "atol"), [(3e-2, 0.01, 0.0), (1e-3, 0.0, 1.5e-3)])
def test_distance_of_near_vectors_is_near_the_truth(apart: float, rtol: float, atol: float) -> None:
    """In single precision |a|^2 + |b|^2 - 2ab has lost a distance of 0.001, but not one of 0.03."""
    z = torch.nn.functional.normalize(torch.randn(200, 128, generator=torch.Generator().manual_seed(0)))
    step = torch.nn.functional.normalize(torch.randn(200, 128, generator=torch.Generator().manual_seed(1)))
    moved = torch.nn.functional.normalize(z + apart * step)
    truth = (z.double() - moved.double()).norm(dim=1)
    torch.testing.assert_close(distances(z, moved).diagonal().double(), truth, rtol=rtol, atol=atol)


def test_gradient_of_distances_is_zero_where_vectors_coincide() -> None:
    z = torch.tensor([[0.6, 0.8], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(distances(z, z).sum(), z)
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@every_loss
def test_gradient_is_finite_when_all_embeddings_are_the_same(name: str) -> None:
    assert_is_its_equation(name, [[0.6, 0.8, 0.0]] * 6, [0, 0, 0, 1, 1, 2])


@every_loss
def test_gradient_is_finite_when_no_two_labels_agree(name: str) -> None:
    assert_is_its_equation(name, draw_rows(random.Random(1), 5, 4), [0, 1, 2, 3, 4])


@every_loss
def test_gradient_is_finite_when_all_labels_agree(name: str) -> None:
    assert_is_its_equation(name, draw_rows(random.Random(2), 5, 4), [0] * 5)


@every_loss
def test_gradient_is_finite_for_a_single_sample(name: str) -> None:
    assert_is_its_equation(name, draw_rows(random.Random(3), 1, 4), [0])


@every_loss
def test_gradient_is_finite_for_a_vector_of_zeros(name: str) -> None:
    z, y = batch()
    z[2] = 0
    value, gradient = value_and_gradient(build(name, 5, 3), z, y)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


@every_pair_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_compare_costs_nothing_and_stays_in_the_graph(name: str, dtype: torch.dtype) -> None:
    z, y = batch(count=1, dtype=dtype)
    value, gradient = value_and_gradient(build(name, 5, 3, dtype=dtype), z, y)
    assert value.item() == 0
    assert gradient.eq(0).all()


@every_pair_loss
def test_an_empty_memory_costs_nothing_and_stays_in_the_graph(name: str) -> None:
    z, y = batch()
    empty = References(z[:0], y[:0], None)
    value, gradient = value_and_gradient(build(name, 5, 3), z, y, None, empty)
    assert value.item() == 0
    assert gradient.eq(0).all()


@pytest.mark.parametrize("name", ["contrastive", "triplet"])
def test_a_batch_without_active_terms_costs_nothing_and_stays_in_the_graph(name: str) -> None:
    z = torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0)
    value, gradient = value_and_gradient(build(name, 3, 3), z, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert value.item() == 0
    assert gradient.eq(0).all()


@every_pair_loss
def test_mined_pairs_that_are_empty_cost_nothing_and_stay_in_the_graph(name: str) -> None:
    z, y = batch()
    none = torch.zeros(8, 8, dtype=torch.bool)
    nobody = torch.empty(0, dtype=torch.long)
    mined = Triplets(nobody, nobody, none[:0]) if name == "triplet" else Pairs(none, none)
    value, gradient = value_and_gradient(build(name, 5, 3), z, y, mined)
    assert value.item() == 0
    assert gradient.eq(0).all()


@every_loss
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    z, y = batch()
    loss = build(name, 5, 3)
    names = [weight for weight, _ in loss.named_parameters()]

    def value(z: Tensor, *weights: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(loss, dict(zip(names, weights, strict=True)), (z, y))
        return result

    inputs = [z, *(weight.detach().clone() for weight in loss.parameters())]
    assert torch.autograd.gradcheck(value, [tensor.requires_grad_() for tensor in inputs])


@every_pair_loss
def test_gradient_reaches_the_references_as_finite_differences_say(name: str) -> None:
    z, y = batch()
    past, labels = batch(count=5)
    loss = build(name, 5, 3)

    def value(z: Tensor, past: Tensor) -> Tensor:
        return loss(z, y, None, References(past + 0.1, labels, None))

    assert torch.autograd.gradcheck(value, [z.requires_grad_(), past.requires_grad_()])


@every_loss
def test_single_precision_is_finite_and_near_double_precision(name: str) -> None:
    z, y = batch()
    exact, _ = value_and_gradient(build(name, 5, 3), z, y)
    value, gradient = value_and_gradient(build(name, 5, 3, dtype=torch.float32), z.float(), y)
    assert value.dtype == gradient.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), rel=1e-4)
    assert torch.isfinite(gradient).all()


HALF_PRECISION = """
import json, sys, torch
from assay.losses import losses

def measure(loss, z):
    try:
        value = loss(z, y)
        value.backward()
    except RuntimeError as error:
        return {"error": str(error)}
    finite = bool(torch.isfinite(value) and torch.isfinite(z.grad).all())
    return {"value": value.item(), "finite": finite, "dtypes": [str(weight.dtype) for weight in loss.parameters()]}

results = {}
for name in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    loss = losses[name]()
    loss.setup(8, 3)
    z, y = torch.randn(12, 8), torch.arange(12) % 3
    halves = [z.bfloat16().requires_grad_() for _ in range(2)]
    results[name] = {
        "single": loss(z, y).item(),
        "half batch": measure(loss, halves[0]),
        "half both": measure(loss.bfloat16(), halves[1]),
    }
print(json.dumps(results))
"""


@pytest.fixture(scope="session")
def half_precision() -> dict[str, dict[str, Any]]:
    """Measured in its own process: on some CPUs bfloat16 products kill it unless oneDNN is held back from the start."""
    process = subprocess.run(
        [sys.executable, "-c", HALF_PRECISION, json.dumps(BUILT_IN)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    results: dict[str, dict[str, Any]] = json.loads(process.stdout)
    return results


@every_loss
def test_half_precision_is_finite(name: str, half_precision: dict[str, dict[str, Any]]) -> None:
    measured = half_precision[name]
    assert measured["half both"]["finite"], measured
    assert measured["half both"]["value"] == pytest.approx(measured["single"], rel=0.1, abs=0.05)


@every_class_loss
def test_a_batch_in_half_precision_leaves_class_weights_in_single_precision(
    name: str, half_precision: dict[str, dict[str, Any]]
) -> None:
    measured = half_precision[name]["half batch"]
    assert "error" not in measured, measured
    assert measured["finite"]
    assert set(measured["dtypes"]) == {"torch.float32"}


@pytest.mark.parametrize("name", [name for name in BUILT_IN if losses[name].normalise])
def test_scale_of_the_embeddings_does_not_matter(name: str) -> None:
    z, y = batch()
    loss = build(name, 5, 3)
    scales = torch.logspace(-3, 3, 8, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(z * scales, y), loss(z, y), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in PAIR_LOSSES if losses[name].normalise])
def test_scale_of_the_references_does_not_matter(name: str) -> None:
    z, y = batch()
    past, labels = batch(count=5)
    loss = build(name, 5, 3)
    near, far = (References(past * scale + 0.1 * scale, labels, None) for scale in (1, 1000))
    torch.testing.assert_close(loss(z, y, None, far), loss(z, y, None, near), rtol=1e-9, atol=1e-12)


@every_loss
def test_compiles_into_one_graph(name: str) -> None:
    """`aot_eager` traces forward and backward as the default backend would, without waiting for a C++ compiler."""
    z, y = batch(dtype=torch.float32)
    loss = build(name, 5, 3, dtype=torch.float32)
    value, gradient = value_and_gradient(loss, z, y)
    torch._dynamo.reset()
    compiled, compiled_gradient = value_and_gradient(torch.compile(loss, fullgraph=True, backend="aot_eager"), z, y)  # type: ignore[arg-type]
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
    assert any(weight.shape == (3, 5) for weight in loss.state_dict().values())


@every_class_loss
def test_class_weights_start_at_unit_expected_norm(name: str) -> None:
    for weight in build(name, 64, 500).parameters():
        if weight.shape == (500, 64):
            assert weight.norm(dim=1).mean().item() == pytest.approx(1, abs=0.02)


# --- Pitfalls ---


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


@every_loss
def test_no_tensor_comes_near_a_cube_of_the_batch(name: str) -> None:
    """128 classes x 4: 1,536 positive pairs x 512 references is 3 N^2; N^3 would be 512 N^2."""
    count = 512
    z, y = batch(count=count, dim=8, classes=128, dtype=torch.float32)
    loss = build(name, 8, 128, dtype=torch.float32)
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        value_and_gradient(loss, z, y)
    assert 0 < largest.elements <= 4 * count**2


@every_class_loss
def test_labels_numbered_from_one_raise(name: str) -> None:
    z, y = batch()
    with pytest.raises((ValueError, IndexError), match="3"):
        build(name, 5, 3)(z, y + 1)


@every_class_loss
@pytest.mark.parametrize("label", [-1, -100])
def test_a_negative_label_raises_and_is_never_left_out_silently(name: str, label: int) -> None:
    z, y = batch()
    y[0] = label
    with pytest.raises((ValueError, IndexError), match=str(label)):
        build(name, 5, 3)(z, y)


def corners(method: Method) -> list[dict[str, Any]]:
    """Every combination of the ends of the ranges."""
    ends = [range_.options if isinstance(range_, Choice) else (range_.low, range_.high) for range_ in method.space.values()]
    return [dict(zip(method.space, values, strict=True)) for values in itertools.product(*ends)]


@pytest.mark.parametrize("name", [name for name, method in methods.items() if method.loss in losses.values()])
def test_losses_are_finite_at_every_corner_of_their_space(name: str) -> None:
    """With duplicates and opposite vectors, the extremes of distances and similarities, in single precision."""
    method = methods[name]
    z, y = batch(dtype=torch.float32)
    z[1], z[3], z[4] = z[0], z[0], -z[0]
    for parameters in corners(method):
        parts = assemble(method, parameters, protocols["quick"])
        parts.loss.setup(5, 3)
        value, gradient = value_and_gradient(parts.loss, z, y, parts.miner(z, y) if parts.miner else None)
        assert torch.isfinite(value), parameters
        assert torch.isfinite(gradient).all(), parameters


# --- What a loss refuses ---


@every_loss
def test_mismatched_lengths_raise_with_both_shapes(name: str) -> None:
    z, y = batch()
    with pytest.raises(ValueError, match=r"\(8, 5\) and \(7,\)"):
        build(name, 5, 3)(z, y[:7])


@every_loss
def test_labels_that_are_not_whole_numbers_raise(name: str) -> None:
    z, y = batch()
    with pytest.raises(ValueError, match="float32"):
        build(name, 5, 3)(z, y.float())


def test_a_sample_is_never_its_own_positive() -> None:
    z, y = batch()
    pairs = all_pairs(y, References.of_batch(z, y))
    assert not pairs.positive.diagonal().any()
    assert not (pairs.positive & pairs.negative).any()
