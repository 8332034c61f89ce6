"""Metrics against known values, against loops, against pytorch-metric-learning, and against the laws of a search."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torch import Tensor

from assay.metrics import evaluate, map_at_r, metrics, precision_at_1, r_precision

few_examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
every_metric = pytest.mark.parametrize("name", list(metrics))


# --- The definitions, one query at a time, no tensors ---


def slow_precision_at_1(hits: Sequence[bool], relevant: int) -> float:
    return float(hits[0])


def slow_r_precision(hits: Sequence[bool], relevant: int) -> float:
    return sum(hits[:relevant]) / relevant


def slow_map_at_r(hits: Sequence[bool], relevant: int) -> float:
    total = 0.0
    for rank in range(1, relevant + 1):
        if hits[rank - 1]:
            total += sum(hits[:rank]) / rank
    return total / relevant


REFERENCE: dict[str, Callable[[Sequence[bool], int], float]] = {
    "precision_at_1": slow_precision_at_1,
    "r_precision": slow_r_precision,
    "map_at_r": slow_map_at_r,
}

EXACT = [
    *itertools.product((0.5, -0.5), repeat=4),
    *(tuple(sign * float(i == axis) for i in range(4)) for axis in range(4) for sign in (1, -1)),
]
"""Unit vectors whose dot products are exact in any precision, so that ties are ties."""


def slow_evaluate(z: list[tuple[float, ...]], y: list[Any], name: str) -> list[float]:
    """Each sample looked up among all others by dot product, ties by lower index; NaN where its class has no other."""
    scores = []
    for query, row in enumerate(z):
        others = [other for other in range(len(z)) if other != query]
        similar = {other: sum(a * b for a, b in zip(row, z[other], strict=True)) for other in others}
        ranked = sorted(others, key=lambda other: (-similar[other], other))
        hits = [y[other] == y[query] for other in ranked]
        scores.append(REFERENCE[name](hits, sum(hits)) if any(hits) else math.nan)
    return scores


def sample(count: int = 40, classes: int = 5, dim: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Clusters that overlap, so that no metric is trivial."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=draw)
    centres = torch.randn(classes, dim, generator=draw, dtype=torch.float64)
    return centres[y] + torch.randn(count, dim, generator=draw, dtype=torch.float64), y


def everything(z: Any, y: Any) -> dict[str, float]:
    return dict(evaluate(z, y, tuple(metrics)))


# --- Values ---


def test_every_metric_has_its_definition_written_out() -> None:
    assert set(REFERENCE) == set(metrics)


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ([1], (100, 10, 10)),
        ([1, 10], (100, 20, 12)),
        ([1, 2], (100, 20, 20)),
        (range(1, 11), (100, 100, 100)),
        ([], (0, 0, 0)),
    ],
    ids=["only the 1st", "1st and 10th", "1st and 2nd", "all", "none"],
)
def test_known_values_of_the_reality_check(right: Sequence[int], expected: tuple[float, float, float]) -> None:
    """R = 10, in percent: precision at 1, R-precision, MAP@R."""
    relevant, total = torch.tensor([[rank in right for rank in range(1, 11)]]), torch.tensor([10])
    found = [100 * metric(relevant, total).item() for metric in (precision_at_1, r_precision, map_at_r)]
    assert found == pytest.approx(expected, abs=1e-12)


@every_metric
@given(seed=seeds)
@few_examples
def test_matches_its_definition(name: str, seed: int) -> None:
    draw = random.Random(seed)
    width, queries = draw.randint(1, 12), draw.randint(1, 5)
    totals = [draw.randint(0, width) for _ in range(queries)]
    hits = [[draw.random() < 0.4 for _ in range(width)] for _ in range(queries)]
    found = metrics[name](torch.tensor(hits), torch.tensor(totals)).tolist()
    expected = [REFERENCE[name](row, total) if total else math.nan for row, total in zip(hits, totals, strict=True)]
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


@every_metric
@given(seed=seeds)
@few_examples
def test_evaluate_is_a_search_written_out_under_duplicates_and_ties(name: str, seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(3, 30)
    z = [draw.choice(EXACT) for _ in range(count)]
    y = [0, 0, *draw.choices(range(draw.randint(1, 8)), k=count - 2)]
    found, expected = evaluate(z, y, [name]), slow_evaluate(z, y, name)
    assert found.per_query(name).tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert found[name] == pytest.approx(np.nanmean(expected), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_pytorch_metric_learning(seed: int) -> None:
    z, y = sample(count=60, classes=7, seed=seed)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity()),
        kmeans_func=lambda *_: None,
    )
    theirs = calculator.get_accuracy(z, y)
    ours = evaluate(z, y)
    assert ours["precision_at_1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(theirs["r_precision"], abs=1e-6)
    assert ours["map_at_r"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)


# --- Laws ---


def test_order_of_the_samples_does_not_matter() -> None:
    z, y = sample()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    before, after = evaluate(z, y), evaluate(z[order], y[order])
    for name in before:
        assert after.per_query(name) == pytest.approx(before.per_query(name)[order.numpy()], abs=1e-12, nan_ok=True)
        assert after[name] == pytest.approx(before[name], abs=1e-12)


@pytest.mark.parametrize("reach", [3, 15, 100], ids=["1e3", "1e15", "1e100"])
def test_scale_of_the_embeddings_does_not_matter(reach: int) -> None:
    z, y = sample()
    scales = torch.logspace(-reach, reach, len(y), dtype=torch.float64)[:, None]
    assert everything(z * scales, y) == everything(z, y)


def test_rotations_do_not_matter() -> None:
    z, y = sample()
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64))[0]
    assert everything(z @ rotation, y) == everything(z, y)


def test_names_of_the_labels_do_not_matter() -> None:
    z, y = sample()
    names = np.array(["wren", "owl", "kite", "rook", "tern"])
    assert everything(z, names[y.numpy()]) == everything(z, y)


def test_precision_is_perfect_where_every_sample_has_a_duplicate_of_its_class() -> None:
    z, y = sample()
    assert evaluate(torch.cat([z, z]), torch.cat([y, y]))["precision_at_1"] == 1


def test_scores_are_those_of_chance_where_all_embeddings_are_the_same() -> None:
    """All similarities tie, so that each query finds the others by their index."""
    scores = evaluate(np.ones((4, 3)), [0, 1, 0, 1])
    assert scores.per_query("precision_at_1").tolist() == [0, 0, 1, 0]


def test_metrics_lie_between_zero_and_one_and_are_ordered() -> None:
    """MAP@R never exceeds R-precision: each hit counts at most 1."""
    scores = evaluate(*sample(count=80))
    for name in metrics:
        assert ((scores.per_query(name) >= 0) & (scores.per_query(name) <= 1)).all()
    assert (scores.per_query("map_at_r") <= scores.per_query("r_precision") + 1e-12).all()


def test_type_of_the_embeddings_does_not_matter() -> None:
    z, y = sample()
    coarse = (z * 8).round()
    expected = everything(coarse, y)
    assert everything(coarse.float(), y) == expected
    assert everything(coarse.half(), y) == expected
    assert everything(coarse.long(), y) == expected
    assert everything(coarse.numpy(), y.numpy()) == expected
    assert everything(coarse.tolist(), y.tolist()) == expected
    assert everything(coarse.requires_grad_(), y) == expected


# --- Pitfalls ---


def test_self_is_excluded_by_index_and_not_as_the_first_hit() -> None:
    """Pitfall 1. Each sample has a duplicate of another class; who drops the first hit finds the query itself."""
    z = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert evaluate(z, [0, 1, 1, 0])["precision_at_1"] == 0


@pytest.mark.parametrize("size", [2, 3, 10, 50])
def test_perfect_retrieval_scores_exactly_one_for_every_class_size(size: int) -> None:
    """Pitfall 2. A divisor that counts the query would give (n - 1) / n."""
    y = np.repeat([0, 1, 2], size)
    scores = evaluate(np.eye(3)[y] + 1e-3 * np.random.default_rng(0).normal(size=(len(y), 3)), y)
    assert dict(scores) == dict.fromkeys(scores, 1.0)


def test_large_classes_are_not_cut_off_at_some_k() -> None:
    """Pitfall 3. A class of 1,500 beside a few others: all its 1,499 neighbours are looked at."""
    y = np.array([0] * 1500 + [1] * 3)
    z = np.eye(2)[y] + 1e-3 * np.random.default_rng(0).normal(size=(len(y), 2))
    assert evaluate(z, y)["map_at_r"] == 1


@pytest.mark.parametrize("metric", [r_precision, map_at_r])
def test_fewer_neighbours_than_relevant_references_raise(metric: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Pitfall 3."""
    with pytest.raises(ValueError, match="3 relevant references, but only 2 neighbours"):
        metric(torch.ones(1, 2, dtype=torch.bool), torch.tensor([3]))


@pytest.mark.parametrize("start", [2**24, 2**53, 2**62, -(2**53) - 8], ids=["2^24", "2^53", "2^62", "-2^53"])
@pytest.mark.parametrize("kind", [list, np.asarray, torch.tensor], ids=["list", "numpy", "torch"])
def test_labels_above_the_digits_of_a_float_do_not_merge(kind: Callable[[list[int]], Any], start: int) -> None:
    """Pitfall 4. Neighbouring class numbers that float32 or float64 would take for one."""
    z, y = sample()
    assert everything(z, kind([start + int(label) for label in y])) == everything(z, y)


@pytest.mark.parametrize(
    "names",
    [
        [-5, -4, -3, -2, -1],
        ["a", "b", "c", "d", "a "],
        [b"a", b"b", b"c", b"d", b"e"],
        [2**63, 2**63 + 1, 2**63 + 2, 2**63 + 3, 2**63 + 4],
        [2**63 + 1, 2**63 + 2, 2**63 + 3, -1, -2],
        [2**70, 2**70 + 1, 2**70 + 2, 2**70 + 3, 2**70 + 4],
    ],
    ids=["negative", "strings", "bytes", "unsigned", "signed and unsigned", "beyond 64 bits"],
)
def test_labels_of_any_type_are_told_apart(names: list[Any]) -> None:
    z, y = sample()
    assert everything(z, [names[int(label)] for label in y]) == everything(z, y)


def test_singletons_are_counted_and_per_query_scores_line_up_with_the_labels() -> None:
    """Pitfall 5."""
    z = [[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [-1.0, 0.0], [0.0, -1.0]]
    scores = evaluate(z, ["pair", "lone", "pair", "lonely", "alone"])
    assert (scores.queries, scores.skipped) == (2, 3)
    for name in scores:
        assert np.isnan(scores.per_query(name)).tolist() == [False, True, False, True, True]
        assert scores[name] == 1


def test_singletons_still_stand_in_the_way_of_others() -> None:
    z = [[1.0, 0.0], [0.99, 0.01], [0.9, 0.1]]
    assert evaluate(z, ["pair", "lone", "pair"]).per_query("precision_at_1").tolist()[0] == 0


@every_metric
def test_a_query_without_relevant_references_is_nan_and_never_zero(name: str) -> None:
    found = metrics[name](torch.tensor([[False], [True]]), torch.tensor([0, 1]))
    assert found[0].isnan()
    assert found[1] == 1


# --- What evaluate refuses, and what it returns ---


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_row_that_is_not_finite_is_named_and_all_are_counted(bad: float) -> None:
    z, y = sample()
    z[7, 2] = z[11, 0] = bad
    with pytest.raises(ValueError, match=r"embedding 7 .*\(2 such rows\)"):
        evaluate(z, y)


def test_mismatched_lengths_raise_with_both_numbers() -> None:
    z, y = sample()
    with pytest.raises(ValueError, match="40 embeddings but 39 labels"):
        evaluate(z, y[:39])


@pytest.mark.parametrize("shape", [(4,), (4, 2, 2), (1, 3), (0, 3)])
def test_embeddings_of_another_shape_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape \(N, D\)"):
        evaluate(np.ones(shape), [0] * shape[0])


def test_labels_of_another_shape_raise() -> None:
    with pytest.raises(ValueError, match=r"shape \(N,\), got \(4, 1\)"):
        evaluate(np.eye(4), np.zeros((4, 1), dtype=int))


def test_labels_that_never_repeat_raise() -> None:
    with pytest.raises(ValueError, match="no two of the 4 samples share a label"):
        evaluate(np.eye(4), [0, 1, 2, 3])


def test_an_unknown_metric_suggests_the_nearest_name() -> None:
    with pytest.raises(KeyError, match="did you mean 'map_at_r'"):
        evaluate(np.eye(2), [0, 0], ["map_at_rr"])


def test_no_metric_at_all_raises() -> None:
    with pytest.raises(ValueError, match="at least one metric"):
        evaluate(np.eye(2), [0, 0], [])


def test_only_the_metrics_asked_for_are_returned_in_their_order() -> None:
    assert list(evaluate(np.eye(2), [0, 0], ["map_at_r", "precision_at_1"])) == ["map_at_r", "precision_at_1"]
