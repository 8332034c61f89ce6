"""Every miner against its rule in loops, and the laws that all of them share."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import miners as pml
from torch import Tensor

from assay.losses import losses
from assay.miners import miners
from assay.miners.miner import Miner
from assay.pairs import Pairs, References, all_pairs

BUILT_IN = [name for name, miner in miners.items() if miner.__module__.startswith("assay.")]
every_miner = pytest.mark.parametrize("name", BUILT_IN)
few_examples = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)

Row = list[float]
Kept = tuple[set[tuple[int, int]], set[tuple[int, int]]]


def multi_similarity(
    z: list[Row], y: list[int], references: list[Row], labels: list[int], own: list[int] | None, epsilon: float = 0.1
) -> Kept:
    """Eq. 12 and 13, pair by pair, no tensors."""
    positives, negatives = set(), set()
    for i, row in enumerate(z):
        similar = [cosine(row, reference) for reference in references]
        same = [j for j, label in enumerate(labels) if label == y[i] and (own is None or j != own[i])]
        other = [j for j, label in enumerate(labels) if label != y[i]]
        positives |= {(i, j) for j in same if other and similar[j] < max(similar[n] for n in other) + epsilon}
        negatives |= {(i, j) for j in other if same and similar[j] > min(similar[p] for p in same) - epsilon}
    return positives, negatives


REFERENCE: dict[str, Callable[..., Kept]] = {"multi_similarity": multi_similarity}


def cosine(a: Row, b: Row) -> float:
    inner = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return inner / math.sqrt(math.fsum(x * x for x in a)) / math.sqrt(math.fsum(x * x for x in b))


def draw_batch(draw: random.Random, count: int, dim: int, classes: int) -> tuple[list[Row], list[int]]:
    rows = [[draw.gauss(0, 1) for _ in range(dim)] for _ in range(count)]
    return rows, draw.choices(range(classes), weights=[draw.random() ** 3 + 1e-3 for _ in range(classes)], k=count)


def batch(count: int = 9, dim: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    z = torch.randn(count, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return z, torch.arange(count) % classes


def mine(name: str, *arguments: Any, **parameters: Any) -> Pairs:
    pairs = miners[name](**parameters)(*arguments)
    assert isinstance(pairs, Pairs)
    return pairs


def kept(pairs: Pairs) -> Kept:
    positive, negative = ({(int(i), int(j)) for i, j in mask.nonzero().tolist()} for mask in (pairs.positive, pairs.negative))
    return positive, negative


def test_every_miner_has_its_rule_written_out() -> None:
    assert set(REFERENCE) == set(BUILT_IN)


@every_miner
@given(seed=seeds)
@few_examples
def test_matches_its_rule(name: str, seed: int) -> None:
    draw = random.Random(seed)
    z, y = draw_batch(draw, draw.randint(1, 12), draw.randint(2, 5), draw.randint(1, 4))
    found = mine(name, torch.tensor(z, dtype=torch.float64), torch.tensor(y))
    assert kept(found) == REFERENCE[name](z, y, z, y, list(range(len(y))))


@every_miner
@given(seed=seeds)
@few_examples
def test_matches_its_rule_against_a_memory(name: str, seed: int) -> None:
    draw = random.Random(seed)
    dim, classes = draw.randint(2, 5), draw.randint(1, 4)
    z, y = draw_batch(draw, draw.randint(1, 6), dim, classes)
    past, labels = draw_batch(draw, draw.randint(1, 9), dim, classes)
    memory = References(torch.tensor(past, dtype=torch.float64), torch.tensor(labels), None)
    found = mine(name, torch.tensor(z, dtype=torch.float64), torch.tensor(y), memory)
    assert kept(found) == REFERENCE[name](z, y, past, labels, None)


@given(seed=seeds, epsilon=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
@few_examples
def test_multi_similarity_keeps_what_pytorch_metric_learning_keeps(seed: int, epsilon: float) -> None:
    """Both read eq. 12 and 13 alike, also where an anchor has no positive or no negative."""
    draw = random.Random(seed)
    rows, labels = draw_batch(draw, draw.randint(2, 12), 4, draw.randint(1, 4))
    z, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)
    anchors, positives, again, negatives = (part.tolist() for part in pml.MultiSimilarityMiner(epsilon)(z, y))
    theirs = set(zip(anchors, positives, strict=True)), set(zip(again, negatives, strict=True))
    assert kept(mine("multi_similarity", z, y, epsilon=epsilon)) == theirs


def test_multi_similarity_keeps_only_pairs_within_epsilon_of_the_other_kind() -> None:
    """One anchor at 0 degrees, positives at 10 and 60, negatives at 50 and 90: cosines 0.98, 0.5 and 0.64, 0."""
    angles = torch.tensor([0.0, 10, 60, 50, 90]).deg2rad()
    z, y = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 0, 1, 1])
    positives, negatives = kept(mine("multi_similarity", z, y, epsilon=0.1))
    assert {pair for pair in positives if pair[0] == 0} == {(0, 2)}
    assert {pair for pair in negatives if pair[0] == 0} == {(0, 3)}


def test_multi_similarity_with_a_wide_epsilon_keeps_every_pair() -> None:
    z, y = batch()
    found, everything = mine("multi_similarity", z, y, epsilon=2.1), all_pairs(y, References.of_batch(z, y))
    assert kept(found) == kept(everything)


@every_miner
def test_keeps_only_pairs_that_there_are(name: str) -> None:
    z, y = batch()
    positives, negatives = kept(mine(name, z, y))
    all_positives, all_negatives = kept(all_pairs(y, References.of_batch(z, y)))
    assert positives <= all_positives
    assert negatives <= all_negatives
    assert positives or negatives


@every_miner
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    z, y = batch()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    found, shuffled = mine(name, z, y), mine(name, z[order], y[order])
    assert torch.equal(found.positive[order][:, order], shuffled.positive)
    assert torch.equal(found.negative[order][:, order], shuffled.negative)


@every_miner
def test_names_of_the_labels_do_not_matter(name: str) -> None:
    z, y = batch()
    assert kept(mine(name, z, torch.tensor([2**40, -3, 2**40 + 1])[y])) == kept(mine(name, z, y))


@every_miner
def test_scale_of_the_embeddings_does_not_matter(name: str) -> None:
    z, y = batch()
    scales = torch.logspace(-3, 3, 9, dtype=torch.float64)[:, None]
    assert kept(mine(name, z * scales, y)) == kept(mine(name, z, y))


@every_miner
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 0, 0], [0]], ids=["no positives", "no negatives", "one sample"])
def test_keeps_nothing_where_one_kind_of_pair_is_missing(name: str, labels: list[int]) -> None:
    z, _ = batch(count=len(labels))
    found = mine(name, z, torch.tensor(labels))
    assert found.positive.shape == found.negative.shape == (len(labels), len(labels))
    assert kept(found) == (set(), set())


@every_miner
def test_duplicates_are_mined_like_any_other_pair(name: str) -> None:
    z, y = [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.8, -0.6]], [0, 0, 1, 1]
    found = mine(name, torch.tensor(z, dtype=torch.float64), torch.tensor(y))
    assert kept(found) == REFERENCE[name](z, y, z, y, [0, 1, 2, 3])
    assert found.positive[0, 1]
    assert found.negative[0, 2]


def test_no_gradient_goes_through_the_choice() -> None:
    seen: list[bool] = []

    class Watching(Miner):
        def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
            seen.extend([z.requires_grad, references.z.requires_grad, torch.is_grad_enabled()])
            return all_pairs(y, references)

    z, y = batch()
    leaf = z.requires_grad_()
    Watching()(leaf, y)
    Watching()(leaf, y, References(leaf * 2, y, None))
    assert seen == [False] * 6


@every_miner
def test_a_loss_on_what_was_mined_is_finite_even_if_that_is_nothing(name: str) -> None:
    z, _ = batch(count=4)
    for labels in ([0, 1, 2, 3], [0, 0, 1, 1]):
        y = torch.tensor(labels)
        leaf = z.clone().requires_grad_()
        value = losses["multi_similarity"]()(leaf, y, mine(name, z, y))
        (gradient,) = torch.autograd.grad(value, leaf)
        assert torch.isfinite(gradient).all()
        assert (value.item() == 0) == (labels == [0, 1, 2, 3])
