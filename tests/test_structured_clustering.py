"""The search for medoids in structured clustering: against every clustering there is, against loops
on batches of the size of training, and on planted answers.
"""

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from assay.losses import losses
from assay.losses.structured_clustering import Agreement, assign, choose, exchange, refine
from equations import (
    Case,
    clustering_value,
    clusters_of,
    geometric_nmi,
    greedy_medoids,
    refined_medoids,
    unit,
)

seeds = st.integers(0, 2**31)
few_examples = settings(max_examples=30, deadline=None)


def draw_case(seed: int, count: int, classes: int, spread: float = 1.0) -> Case:
    """Classes of unequal size around means of their own."""
    draw = random.Random(seed)
    means = [[draw.gauss(0, 1) for _ in range(4)] for _ in range(classes)]
    y = [draw.randrange(classes) for _ in range(count)]
    z = [unit([x + draw.gauss(0, spread) for x in means[label]]) for label in y]
    return Case(z, y, z, y, [], [], [])


def planted_case(seed: int) -> Case:
    """Tight classes along the axes, in random order."""
    draw = random.Random(seed)
    y = [label for label in range(draw.randint(2, 3)) for _ in range(draw.randint(1, 2))]
    draw.shuffle(y)
    z = [unit([(axis == label) + draw.gauss(0, 0.02) for axis in range(4)]) for label in y]
    return Case(z, y, z, y, [], [], [])


def crowded_case(seed: int) -> Case:
    """Ten samples at three places, whatever their class."""
    draw = random.Random(seed)
    places = [unit([draw.gauss(0, 1) for _ in range(3)]) for _ in range(3)]
    z, y = draw.choices(places, k=10), [draw.randrange(4) for _ in range(10)]
    return Case(z, y, z, y, [], [], [])


def distances_of(case: Case) -> NDArray[np.float64]:
    return np.array([[case.d(i, j) for j in range(len(case.y))] for i in range(len(case.y))])


def found_by_search(case: Case, gamma: float, rounding: float = 0.0) -> tuple[list[int], list[int]]:
    """The medoids before and after the refinement."""
    d = distances_of(case)
    d += rounding * np.random.default_rng(0).uniform(-1, 1, d.shape)
    agreement = Agreement(np.array(case.y))
    greedy = choose(d, agreement, gamma)
    return greedy.tolist(), refine(d, agreement, gamma, greedy).tolist()


def exhaustive_maximum(case: Case, gamma: float) -> float:
    sets = itertools.combinations(range(len(case.y)), len(set(case.y)))
    return max(clustering_value(case, list(medoids), gamma) for medoids in sets)


def loss_and_gradient(z: Tensor, y: Tensor, gamma: float = 1.0) -> tuple[float, Tensor]:
    leaf = z.clone().requires_grad_()
    value = losses["structured_clustering"](gamma=gamma)(leaf, y)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.item(), gradient


# --- The search ---


@given(seed=seeds, count=st.integers(1, 8), classes=st.integers(1, 4), scale=st.floats(-2, 1))
@few_examples
def test_the_search_is_never_above_the_maximum_and_its_refinement_never_lowers_it(
    seed: int, count: int, classes: int, scale: float
) -> None:
    case, gamma = draw_case(seed, count, classes), 10**scale
    greedy, refined = (
        clustering_value(case, medoids, gamma) for medoids in found_by_search(case, gamma)
    )
    assert greedy <= refined + 1e-9
    assert refined <= exhaustive_maximum(case, gamma) + 1e-9


@given(seed=seeds, scale=st.floats(-2, -0.3))
@few_examples
def test_the_search_finds_the_maximum_on_tight_classes_far_apart(seed: int, scale: float) -> None:
    case, gamma = planted_case(seed), 10**scale
    _, medoids = found_by_search(case, gamma)
    assert {case.y[medoid] for medoid in medoids} == set(case.y)
    assert clustering_value(case, medoids, gamma) == pytest.approx(exhaustive_maximum(case, gamma))


@pytest.mark.parametrize("gamma", [0.01, 1.0, 10.0])
def test_the_search_is_that_of_the_loops_on_larger_batches(gamma: float) -> None:
    """Some refinements take more than one round, and some change who belongs where."""
    exchanged = 0
    for seed in range(12):
        case = draw_case(seed, 24, 6)
        greedy = greedy_medoids(case, gamma)
        refined = refined_medoids(case, gamma, greedy)
        assert found_by_search(case, gamma) == (greedy, refined), seed
        exchanged += clusters_of(case, greedy) != clusters_of(case, refined)
    assert exchanged > 1


@pytest.mark.parametrize("rounding", [0.0, 1e-13])
def test_the_search_is_that_of_the_loops_where_samples_coincide(rounding: float) -> None:
    """The first of equals is chosen, whatever the last digits of their distances are."""
    for seed in range(40):
        case = crowded_case(seed)
        greedy = greedy_medoids(case, 1.0)
        refined = refined_medoids(case, 1.0, greedy)
        assert found_by_search(case, 1.0, rounding) == (greedy, refined), seed


def test_a_medoid_belongs_to_itself_even_where_another_is_at_the_same_place() -> None:
    d = np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 0.5], [0.5, 0.5, 0.0]])
    assert assign(d, np.array([0, 1])).tolist() == [0, 1, 0]
    assert assign(d, np.array([1, 0])).tolist() == [1, 0, 0]


@pytest.mark.parametrize("draw", [crowded_case, lambda seed: draw_case(seed, 10, 3)])
def test_an_exchange_gives_the_clusters_of_the_exchanged_medoids(draw: Any) -> None:
    for seed in range(10):
        d, medoids = distances_of(draw(seed)), np.array([7, 2, 5])
        candidates = np.array([i for i in range(10) if i not in (7, 5)])
        before, taken = exchange(d, medoids, 1, candidates)
        for candidate, own in zip(candidates, taken, strict=True):
            expected = assign(d, np.array([7, candidate, 5]))
            assert np.where(own, 1, before).tolist() == expected.tolist()


# --- Agreement ---


@given(seed=seeds, count=st.integers(1, 30), clusters=st.integers(1, 6))
@few_examples
def test_nmi_is_the_geometric_one_of_scikit_learn(seed: int, count: int, clusters: int) -> None:
    """Except where there is one cluster or one class: theirs is 1 if both, ours always 0."""
    draw = np.random.default_rng(seed)
    y = draw.integers(-1, 3, count)
    before, taken = draw.integers(0, clusters, count), draw.random((4, count)) < draw.random()
    labelings = np.where(taken, clusters, before)
    for found, labels in zip(Agreement(y).nmi(before, taken), labelings, strict=True):
        theirs = normalized_mutual_info_score(y, labels, average_method="geometric")
        expected = 0 if 1 in (len(set(y)), len(set(labels))) else theirs
        assert found == pytest.approx(expected, abs=1e-12)
        assert found == pytest.approx(geometric_nmi(labels.tolist(), y.tolist()), abs=1e-12)


# --- The loss ---


def test_clusters_across_the_classes_cost_the_margin_and_the_lengths_of_the_classes() -> None:
    """Two places, each with a sample of both classes: F(S) = 0, NMI = 0, F~ = -2 sqrt(2)."""
    z = torch.eye(2, dtype=torch.float64).repeat_interleave(2, 0)
    value, gradient = loss_and_gradient(z, torch.tensor([0, 1, 0, 1]), gamma=0.7)
    assert value == pytest.approx(0.7 + 2 * math.sqrt(2))
    moved, _ = loss_and_gradient(z - 0.1 * gradient, torch.tensor([0, 1, 0, 1]), gamma=0.7)
    assert moved < value


def test_tight_classes_far_apart_cost_nothing() -> None:
    case = planted_case(3)
    value, gradient = loss_and_gradient(
        torch.tensor(case.z, dtype=torch.float64), torch.tensor(case.y), gamma=0.3
    )
    assert value == pytest.approx(0, abs=1e-12)
    assert gradient.abs().max() < 1e-12


def test_one_class_costs_the_margin_whose_gradient_is_zero() -> None:
    z = torch.tensor(draw_case(0, 6, 1).z)
    value, gradient = loss_and_gradient(z, torch.zeros(6, dtype=torch.long), gamma=0.4)
    assert value == pytest.approx(0.4)
    assert gradient.eq(0).all()


def test_samples_that_are_all_of_different_classes_cost_nothing() -> None:
    z = torch.tensor(draw_case(0, 6, 1).z)
    value, gradient = loss_and_gradient(z, torch.arange(6))
    assert value == 0
    assert gradient.eq(0).all()


def test_the_gradient_is_that_of_two_sums_of_distances() -> None:
    """From each sample to the medoid of its class, and to that of its cluster; the NMI has none."""
    case = draw_case(5, 20, 4)
    y = torch.tensor(case.y)
    value, gradient = loss_and_gradient(torch.tensor(case.z, dtype=torch.float64), y, gamma=0.5)
    medoids = refined_medoids(case, 0.5, greedy_medoids(case, 0.5))
    of_clusters = [medoids[k] for k in clusters_of(case, medoids)]
    of_classes = []
    for label in case.y:
        members = [i for i, other in enumerate(case.y) if other == label]
        of_classes.append(min(members, key=lambda j: sum(case.d(i, j) for i in members)))
    leaf = torch.tensor(case.z, dtype=torch.float64).requires_grad_()
    z = torch.nn.functional.normalize(leaf)
    sums = [
        (z - z[medoid]).square().sum(1).clamp(min=1e-30).sqrt().sum()
        for medoid in (of_classes, of_clusters)
    ]
    (expected,) = torch.autograd.grad(sums[0] - sums[1], leaf)
    assert value > 0
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rows", [slice(4, 5), slice(None)])
def test_embeddings_that_are_not_numbers_give_nan_and_no_error(rows: slice) -> None:
    z = torch.tensor(draw_case(0, 12, 3).z)
    z[rows, 1] = math.nan
    assert losses["structured_clustering"]()(z, torch.arange(12) % 3).isnan()
