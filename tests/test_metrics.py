"""Retrieval metrics against known values, loops, pytorch-metric-learning and scikit-learn, and
against the laws of a search.
"""

import decimal
import enum
import fractions
import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from assay.metric_names import NAMES, direction, expand, heading, in_percent
from assay.metrics import (
    Scores,
    evaluate,
    map_at_k,
    map_at_r,
    metrics,
    mrr,
    precision_at_1,
    r_precision,
    ranking,
    recall_at_k,
)
from assay.metrics.labels import number_classes
from assay.metrics.metric import Metric, choose_metrics, metric
from assay.registry import UnknownName, replacing
from loops import for_each

few_examples = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31)

RANKED = [name for name, found in metrics.items() if found.source in ("ranks", "first hit")]
EVERYTHING = ("precision_at_1", "recall_at_k", "r_precision", "map_at_r", "map_at_10", "mrr")
"""Each ranked metric; families with numbers that 40 samples allow."""

every_ranked_metric = for_each("name", RANKED)

# --- The definitions, one query at a time, no tensors: all hits in rank order, how many are
# relevant, the k of a family ---


def slow_precision_at_1(hits: Sequence[bool], relevant: int, k: int) -> float:
    return float(hits[0])


def slow_recall_at_k(hits: Sequence[bool], relevant: int, k: int) -> float:
    return float(True in hits[:k])


def slow_r_precision(hits: Sequence[bool], relevant: int, k: int) -> float:
    return sum(hits[:relevant]) / relevant


def slow_map_at_r(hits: Sequence[bool], relevant: int, k: int) -> float:
    total = 0.0
    for rank in range(1, relevant + 1):
        if hits[rank - 1]:
            total += sum(hits[:rank]) / rank
    return total / relevant


def slow_map_at_k(hits: Sequence[bool], relevant: int, k: int) -> float:
    total = 0.0
    for rank in range(1, k + 1):
        if hits[rank - 1]:
            total += sum(hits[:rank]) / rank
    return total / min(relevant, k)


def slow_mrr(hits: Sequence[bool], relevant: int, k: int) -> float:
    return 1 / (1 + list(hits).index(True))


REFERENCE: dict[str, Callable[[Sequence[bool], int, int], float]] = {
    "precision_at_1": slow_precision_at_1,
    "recall_at_k": slow_recall_at_k,
    "r_precision": slow_r_precision,
    "map_at_r": slow_map_at_r,
    "map_at_k": slow_map_at_k,
    "mrr": slow_mrr,
}

EXACT = [
    *itertools.product((0.5, -0.5), repeat=4),
    *(tuple(sign * float(i == axis) for i in range(4)) for axis in range(4) for sign in (1, -1)),
]
"""Unit vectors whose dot products are exact in any precision, so that ties are ties."""

Rows = list[tuple[float, ...]]


def slow_hits(z: Rows, y: Sequence[Any]) -> list[list[bool]]:
    """Each sample looked up among all others by dot product, ties by lower index."""
    found = []
    for query, row in enumerate(z):
        others = [other for other in range(len(z)) if other != query]
        similar = {
            other: sum(a * b for a, b in zip(row, z[other], strict=True)) for other in others
        }
        found.append(
            [
                y[other] == y[query]
                for other in sorted(others, key=lambda other: (-similar[other], other))
            ]
        )
    return found


def slow_scores(hits: list[list[bool]], name: str, k: int) -> list[float]:
    """NaN where there is nothing to find."""
    return [REFERENCE[name](row, sum(row), k) if any(row) else math.nan for row in hits]


def asked_for(name: str, k: int) -> str:
    """The name of a family's member."""
    return f"{metrics[name].stem}{k}" if metrics[name].values else name


def sample(count: int = 40, classes: int = 5, dim: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Clusters that overlap, so that no metric is trivial."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=draw)
    centres = torch.randn(classes, dim, generator=draw, dtype=torch.float64)
    return centres[y] + torch.randn(count, dim, generator=draw, dtype=torch.float64), y


def units(z: Tensor) -> Rows:
    return [tuple(row) for row in (z / z.norm(dim=1, keepdim=True)).tolist()]


def everything(z: Any, y: Any) -> dict[str, float]:
    return dict(evaluate(z, y, EVERYTHING))


def in_bytes(scores: Scores) -> dict[str, bytes]:
    return {name: scores.per_query(name).tobytes() for name in scores}


# --- Values ---


def test_every_ranked_metric_has_its_definition_written_out() -> None:
    assert set(REFERENCE) == set(RANKED)


def test_every_ranked_metric_is_among_those_that_the_laws_are_tried_on() -> None:
    assert {one.metric.name for one in choose_metrics(EVERYTHING)} == set(RANKED)


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
def test_known_values_of_the_reality_check(
    right: Sequence[int], expected: tuple[float, float, float]
) -> None:
    """R = 10, in percent: precision at 1, R-precision, MAP@R."""
    relevant, total = torch.tensor([[rank in right for rank in range(1, 11)]]), torch.tensor([10])
    found = [
        100 * function(relevant, total).item()
        for function in (precision_at_1, r_precision, map_at_r)
    ]
    assert found == pytest.approx(expected, abs=1e-12)


@for_each("first", [1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 40])
def test_recall_is_one_from_the_rank_of_the_first_hit_on(first: int) -> None:
    relevant, total = (
        torch.tensor([[rank >= first for rank in range(1, 41)]]),
        torch.tensor([41 - first]),
    )
    for k in (1, 2, 4, 8, 16, 32, 40):
        assert recall_at_k(relevant, total, k).item() == float(k >= first)


def test_the_reciprocal_rank_is_that_of_the_first_hit() -> None:
    assert mrr(torch.tensor([1, 2, 3, 1000])).tolist() == [1, 1 / 2, 1 / 3, 1 / 1000]


@every_ranked_metric
@given(seed=seeds)
@few_examples
def test_matches_its_definition(name: str, seed: int) -> None:
    draw = random.Random(seed)
    width, queries = draw.randint(1, 12), draw.randint(1, 5)
    k = draw.randint(1, width)
    totals = [draw.randint(0, width) for _ in range(queries)]
    hits = [[draw.random() < 0.4 for _ in range(width)] for _ in range(queries)]
    if metrics[name].source == "first hit":
        hits = [row if any(row) else [True, *row] for row in hits]
        totals = [max(1, total) for total in totals]
        found = metrics[name].function(torch.tensor([1 + row.index(True) for row in hits]))
    else:
        number = [k] if metrics[name].values else []
        found = metrics[name].function(torch.tensor(hits), torch.tensor(totals), *number)
    expected = [
        REFERENCE[name](row, total, k) if total else math.nan
        for row, total in zip(hits, totals, strict=True)
    ]
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True)


@every_ranked_metric
@given(seed=seeds)
@few_examples
def test_evaluate_is_a_search_written_out_under_duplicates_and_ties(name: str, seed: int) -> None:
    draw = random.Random(seed)
    count = draw.choice([3, 5, 10, 30, 60])
    z = [draw.choice(EXACT) for _ in range(count)]
    y = [0, 0, *draw.choices(range(draw.randint(1, count)), k=count - 2)]
    k = draw.randint(1, count - 1)
    label = asked_for(name, k)
    found, expected = evaluate(z, y, [label]), slow_scores(slow_hits(z, y), name, k)
    assert found.per_query(label).tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert found[label] == pytest.approx(np.nanmean(expected), abs=1e-12)


@every_ranked_metric
@for_each("seed", range(3))
def test_evaluate_is_a_search_written_out_on_random_vectors(name: str, seed: int) -> None:
    """Classes of very different sizes."""
    draw = random.Random(seed)
    z, _ = sample(count=70, dim=5, seed=seed)
    y = [min(int(draw.expovariate(0.5)), 20) for _ in range(70)]
    label = asked_for(name, 17)
    expected = slow_scores(slow_hits(units(z), y), name, 17)
    assert evaluate(z, y, [label]).per_query(label).tolist() == pytest.approx(
        expected, abs=1e-12, nan_ok=True
    )


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 32, 64])
def test_recall_at_any_k_is_a_search_written_out(k: int) -> None:
    z, y = sample(count=80, classes=12, seed=5)
    expected = slow_scores(slow_hits(units(z), y.tolist()), "recall_at_k", k)
    assert evaluate(z, y, [f"recall_at_{k}"]).per_query(f"recall_at_{k}").tolist() == pytest.approx(
        expected, nan_ok=True
    )


# --- The first hit, however far down ---


@pytest.mark.parametrize("between", [0, 30, 31, 32, 33, 62, 150])
def test_a_first_hit_far_down_the_list_is_found_at_its_rank(between: int) -> None:
    """On an arc, the pair is at its ends: all others lie between."""
    angles = np.linspace(0, 1, between + 2)
    scores = evaluate(
        np.stack([np.cos(angles), np.sin(angles)], axis=1), [0, *range(1, between + 1), 0], ["mrr"]
    )
    assert scores.per_query("mrr")[[0, -1]].tolist() == [1 / (between + 1)] * 2
    assert (scores.queries, scores.skipped) == (2, between)


def test_a_first_hit_far_down_among_ties_is_found_by_its_index() -> None:
    """All 60 tie: a query meets the others by their index, and its only fellow is the last, or the
    first but one.
    """
    scores = evaluate(np.ones((60, 3)), ["a", "b", *range(56), "b", "a"], ["mrr"])
    assert scores.per_query("mrr")[[0, 1, 58, 59]].tolist() == [1 / 59, 1 / 58, 1 / 2, 1]


def test_of_several_tied_hits_far_down_the_first_by_index_counts() -> None:
    z = np.array([[1.0, 0.0]] * 41 + [[0.0, 1.0]] * 9)
    y = [0, *range(1, 41), *range(41, 46), 0, 46, 0, 0]
    assert evaluate(z, y, ["mrr"]).per_query("mrr")[0] == 1 / (40 + 6)


@pytest.mark.parametrize("seed", range(6))
def test_first_hits_far_down_are_those_of_a_search_written_out_under_ties(seed: int) -> None:
    draw = random.Random(seed)
    z = [draw.choice(EXACT) for _ in range(90)]
    y = [*range(40), *range(40), 40, 40, *range(41, 49)]
    draw.shuffle(y)
    expected = slow_scores(slow_hits(z, y), "mrr", 1)
    assert min(value for value in expected if value == value) < 1 / 33
    assert evaluate(z, y, ["mrr"]).per_query("mrr").tolist() == pytest.approx(
        expected, abs=1e-15, nan_ok=True
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "hamming"])
def test_first_hits_far_down_are_found_by_any_similarity(similarity: str) -> None:
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 2, size=(100, 16))
    z = np.packbits(bits, axis=1) if similarity == "hamming" else 2.0 * bits - 1
    y = draw.permutation([*range(45), *range(45), *range(45, 55)])
    expected = slow_scores(
        slow_hits([tuple(row) for row in (2 * bits - 1).tolist()], y.tolist()), "mrr", 1
    )
    found = evaluate(z, y, ["mrr"], similarity=similarity).per_query("mrr")
    assert found.tolist() == pytest.approx(expected, abs=1e-15, nan_ok=True)


# --- Other people's implementations ---


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_pytorch_metric_learning(seed: int) -> None:
    z, y = sample(count=60, classes=7, seed=seed)
    theirs = pytorch_metric_learning(
        z, y, "max_bin_count", ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    )
    ours = evaluate(z, y)
    assert ours["precision_at_1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(theirs["r_precision"], abs=1e-6)
    assert ours["map_at_r"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_pytorch_metric_learning_over_whole_lists(seed: int) -> None:
    z, y = sample(count=60, classes=7, seed=seed)
    theirs = pytorch_metric_learning(z, y, 59, ("mean_reciprocal_rank", "mean_average_precision"))
    ours = evaluate(z, y, ["mrr", "map_at_59"])
    assert ours["mrr"] == pytest.approx(theirs["mean_reciprocal_rank"], abs=1e-6)
    assert ours["map_at_59"] == pytest.approx(theirs["mean_average_precision"], abs=1e-6)


def pytorch_metric_learning(
    z: Tensor, y: Tensor, k: int | str, include: tuple[str, ...]
) -> dict[str, float]:
    calculator = AccuracyCalculator(
        include=include,
        k=k,
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity()),
        kmeans_func=lambda *_: None,
    )
    return dict(calculator.get_accuracy(z, y))


def test_average_precision_over_whole_lists_agrees_with_scikit_learn() -> None:
    z, y = sample(count=50, seed=4)
    similar = torch.tensor(units(z)) @ torch.tensor(units(z)).T
    ours = evaluate(z, y, ["map_at_49"]).per_query("map_at_49")
    for query in range(50):
        others = torch.arange(50) != query
        hits, scores = (y[others] == y[query]).numpy(), similar[query][others].numpy()
        assert ours[query] == pytest.approx(average_precision_score(hits, scores), abs=1e-12)
        assert ours[query] == pytest.approx(
            label_ranking_average_precision_score(hits[None], scores[None]), abs=1e-12
        )


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_recall_agrees_with_the_neighbours_of_scikit_learn(k: int, similarity: str) -> None:
    """Asked without queries, it leaves out the sample itself."""
    z, y = sample(count=80, classes=10, seed=6)
    found = (
        NearestNeighbors(n_neighbors=k, metric=similarity)
        .fit(z.numpy())
        .kneighbors(return_distance=False)
    )
    expected = (y.numpy()[found] == y.numpy()[:, None]).any(1).astype(float)
    assert (
        evaluate(z, y, [f"recall_at_{k}"], similarity=similarity)
        .per_query(f"recall_at_{k}")
        .tolist()
        == expected.tolist()
    )


# --- Laws ---


def test_order_of_the_samples_does_not_matter() -> None:
    z, y = sample()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    before, after = evaluate(z, y, EVERYTHING), evaluate(z[order], y[order], EVERYTHING)
    for name in before:
        assert after.per_query(name).tolist() == before.per_query(name)[order.numpy()].tolist()
        assert after[name] == pytest.approx(before[name], abs=1e-12)


@pytest.mark.parametrize("reach", [3, 15, 100], ids=["1e3", "1e15", "1e100"])
def test_scale_of_the_embeddings_does_not_matter(reach: int) -> None:
    z, y = sample()
    scales = torch.logspace(-reach, reach, len(y), dtype=torch.float64)[:, None]
    assert everything(z * scales, y) == everything(z, y)


def test_rotations_do_not_matter() -> None:
    z, y = sample()
    rotation = torch.linalg.qr(
        torch.randn(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    )[0]
    assert everything(z @ rotation, y) == everything(z, y)


def test_names_of_the_labels_do_not_matter() -> None:
    z, y = sample()
    names = np.array(["wren", "owl", "kite", "rook", "tern"])
    assert everything(z, names[y.numpy()]) == everything(z, y)


def test_precision_is_perfect_where_every_sample_has_a_duplicate_of_its_class() -> None:
    z, y = sample()
    scores = evaluate(
        torch.cat([z, z]), torch.cat([y, y]), ["precision_at_1", "recall_at_2", "mrr"]
    )
    assert dict(scores) == {"precision_at_1": 1, "recall_at_2": 1, "mrr": 1}


def test_scores_are_those_of_chance_where_all_embeddings_are_the_same() -> None:
    """All similarities tie, so that each query finds the others by their index."""
    scores = evaluate(np.ones((4, 3)), [0, 1, 0, 1], ["precision_at_1", "mrr"])
    assert scores.per_query("precision_at_1").tolist() == [0, 0, 1, 0]
    assert scores.per_query("mrr").tolist() == [1 / 2, 1 / 3, 1, 1 / 2]


@pytest.mark.parametrize("seed", range(5))
def test_metrics_lie_between_zero_and_one_and_are_ordered(seed: int) -> None:
    z, _ = sample(count=80, seed=seed)
    scores = evaluate(z, np.arange(80) % 15, EVERYTHING)
    of = scores.per_query
    for name in scores:
        assert ((of(name) >= 0) & (of(name) <= 1)).all()
    assert (of("map_at_r") <= of("r_precision") + 1e-12).all(), "each hit counts at most 1"
    assert (of("precision_at_1") == of("recall_at_1")).all()
    assert (of("precision_at_1") <= of("mrr")).all()
    assert ((of("mrr") >= 1 / 8) == (of("recall_at_8") == 1)).all()
    for fewer, more in itertools.pairwise((1, 2, 4, 8, 16, 32)):
        assert (of(f"recall_at_{fewer}") <= of(f"recall_at_{more}")).all()
    assert 0 < scores["map_at_r"] < scores["r_precision"]
    assert 0 < scores["recall_at_1"] < scores["recall_at_32"]


@pytest.mark.parametrize("size", [2, 5])
def test_where_all_classes_are_of_one_size_map_at_r_is_map_at_that_k(size: int) -> None:
    z, _ = sample(count=60)
    scores = evaluate(z, np.arange(60) // size, ["map_at_r", f"map_at_{size - 1}"])
    assert scores.per_query("map_at_r").tolist() == scores.per_query(f"map_at_{size - 1}").tolist()


def test_type_of_the_embeddings_does_not_matter() -> None:
    z, y = sample()
    coarse = (z * 8).round()
    expected = everything(coarse, y)
    assert everything(coarse.float(), y) == expected
    assert everything(coarse.half(), y) == expected
    assert everything(coarse.bfloat16(), y) == expected
    assert everything(coarse.long(), y) == expected
    assert everything(coarse.to(torch.int8), y) == expected
    assert everything(coarse.numpy(), y.numpy()) == expected
    assert everything(coarse.numpy().astype(">f4"), y.numpy()) == expected
    assert everything(coarse.tolist(), y.tolist()) == expected
    assert everything(pd.DataFrame(coarse.numpy()), pd.Series(y.numpy())) == expected
    assert everything(coarse.requires_grad_(), y) == expected


@pytest.mark.parametrize("worth", [0, 1 << 15], ids=["both sides at once", "one side"])
@pytest.mark.parametrize("entries", [1, 100, 600, 1500])
@pytest.mark.parametrize(
    "names",
    [EVERYTHING, ("recall_at_2", "r_precision", "map_at_r", "mrr")],
    ids=["equal lists", "unequal"],
)
def test_the_groups_in_which_queries_are_looked_up_do_not_matter(
    names: tuple[str, ...], entries: int, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes, whether the lists of all fit at once, of most, or of one; all numbers that
    bound memory are small.
    """
    draw = np.random.default_rng(0)
    y = draw.permutation(np.repeat(np.arange(20), [25, 9, 5, *[2] * 12, *[1] * 5]))
    z = draw.choice(np.array(EXACT), size=len(y)) + draw.choice([0, 1e-9], size=(len(y), 1))
    whole = evaluate(z, y, names)
    calls = spy_on_searches(monkeypatch)
    hold_little(
        monkeypatch,
        LIST_ENTRIES=entries,
        FAR_ENOUGH=3,
        TILE=32,
        PANEL=1,
        PAIRS=400,
        BLOCK=64,
        BUFFER=64,
        WORTH=worth,
    )
    assert in_bytes(evaluate(z, y, names)) == in_bytes(whole)
    assert len(calls) > 1, "the lists did not fit at once"


def test_a_metric_does_not_depend_on_those_asked_for_beside_it() -> None:
    """Lists are as long as the longest that is wanted."""
    draw = np.random.default_rng(1)
    y = draw.permutation(np.repeat(np.arange(12), [40, 17, 8, *[3] * 5, *[1] * 4]))
    z = draw.normal(size=(len(y), 4)) + draw.normal(size=(12, 4))[y]
    together = in_bytes(evaluate(z, y, (*EVERYTHING, "map_at_70")))
    for name, found in together.items():
        assert in_bytes(evaluate(z, y, [name])) == {name: found}


def test_a_query_does_not_depend_on_those_looked_up_beside_it() -> None:
    draw = np.random.default_rng(2)
    y = np.repeat(np.arange(6), [30, 12, 6, 3, 2, 2])
    z = draw.normal(size=(len(y), 4)) + draw.normal(size=(6, 4))[y]
    together = evaluate(z, y, EVERYTHING)
    for query in (0, 29, 30, 47, 52, 54):
        alone = evaluate(z, y, EVERYTHING, queries=[query])
        assert [alone.per_query(name)[0] for name in alone] == [
            together.per_query(name)[query] for name in together
        ]


def hold_little(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Make what bounds memory small, wherever it is looked up, so that a few samples take several
    rounds.
    """
    for name, module in list(sys.modules.items()):
        if name == "assay.metrics.ranking" or name.startswith("assay.neighbours."):
            for constant in sizes.keys() & vars(module).keys():
                monkeypatch.setattr(module, constant, sizes[constant])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    z, y = sample(count=200, classes=30, dim=100)
    expected, before = in_bytes(evaluate(z, y, EVERYTHING)), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert in_bytes(evaluate(z, y, EVERYTHING)) == expected
    finally:
        torch.set_num_threads(before)


def test_classes_of_different_sizes_keep_their_own_scores() -> None:
    """Queries are looked up in the order of their list's length, and their scores put back where
    they belong.
    """
    degrees, y = np.radians([0, 10, 11, 12, 13, 1, 40, 41, 4]), [0, 1, 1, 1, 1, 0, 2, 2, 2]
    scores = evaluate(np.stack([np.cos(degrees), np.sin(degrees)], axis=1), y, ["r_precision"])
    assert scores.per_query("r_precision").tolist() == [1, 1, 1, 1, 1, 1, 1 / 2, 1 / 2, 0]
    assert scores.per_class("r_precision") == pytest.approx({0: 1, 1: 1, 2: 1 / 3})


def spy_on_searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many queries were looked up, and how many neighbours of each, in every search from now
    on.
    """
    calls: list[tuple[int, int]] = []
    search = ranking.nearest

    def nearest(queries: Any, references: Any, k: int, *rest: Any, **named: Any) -> Tensor:
        calls.append((len(queries), k))
        return search(queries, references, k, *rest, **named)

    monkeypatch.setattr(ranking, "nearest", nearest)
    return calls


# --- Pitfalls ---


def test_self_is_excluded_by_index_and_not_as_the_first_hit() -> None:
    """Pitfall 1. Each sample has a duplicate of another class; who drops the first hit finds the
    query itself.
    """
    z = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    scores = evaluate(z, [0, 1, 1, 0], ["precision_at_1", "recall_at_1", "mrr"])
    assert scores["precision_at_1"] == scores["recall_at_1"] == 0
    assert scores.per_query("mrr").tolist() == [1 / 3, 1 / 2, 1 / 3, 1 / 2]


@pytest.mark.parametrize("size", [2, 3, 10, 50])
def test_perfect_retrieval_scores_exactly_one_for_every_class_size(size: int) -> None:
    """Pitfall 2. A divisor that counts the query would give (n - 1) / n."""
    y = np.repeat([0, 1, 2], size)
    z = np.eye(3)[y] + 1e-3 * np.random.default_rng(0).normal(size=(len(y), 3))
    scores = evaluate(
        z,
        y,
        ["precision_at_1", "recall_at_1", "r_precision", "map_at_r", "map_at_1", "map_at_5", "mrr"],
    )
    assert dict(scores) == dict.fromkeys(scores, 1.0)


def test_average_precision_at_k_is_divided_by_k_where_more_are_relevant() -> None:
    """Pitfall 2. A perfect ranking with R = 50 and k = 10 scores 1, not 0.2."""
    assert map_at_k(torch.ones(1, 10, dtype=torch.bool), torch.tensor([50]), 10).item() == 1
    z = np.eye(2)[np.repeat([0, 1], 51)] + 1e-3 * np.random.default_rng(0).normal(size=(102, 2))
    assert evaluate(z, np.repeat([0, 1], 51), ["map_at_10"])["map_at_10"] == 1


def test_average_precision_at_k_is_divided_by_r_where_fewer_are_relevant() -> None:
    """Pitfall 2, the other way round: R = 2 and k = 10, both found at once."""
    relevant = torch.zeros(1, 10, dtype=torch.bool)
    relevant[0, :2] = True
    assert map_at_k(relevant, torch.tensor([2]), 10).item() == 1
    assert map_at_k(relevant, torch.tensor([4]), 10).item() == 0.5


def test_large_classes_are_not_cut_off_at_some_k() -> None:
    """Pitfall 3. A class of 1,100 beside a few others: all its 1,099 neighbours are looked at."""
    y = np.array([0] * 1100 + [1] * 3)
    z = np.eye(2)[y] + 1e-3 * np.random.default_rng(0).normal(size=(len(y), 2))
    assert dict(evaluate(z, y)) == {"precision_at_1": 1, "r_precision": 1, "map_at_r": 1}


@pytest.mark.parametrize("function", [r_precision, map_at_r])
def test_fewer_neighbours_than_relevant_references_raise(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Pitfall 3."""
    with pytest.raises(ValueError, match="3 relevant references, but only 2 neighbours"):
        function(torch.ones(1, 2, dtype=torch.bool), torch.tensor([3]))


@pytest.mark.parametrize("function", [recall_at_k, map_at_k])
def test_fewer_neighbours_than_k_raise(function: Callable[[Tensor, Tensor, int], Tensor]) -> None:
    """Pitfall 3."""
    with pytest.raises(ValueError, match="k is 3, but only 2 neighbours"):
        function(torch.ones(1, 2, dtype=torch.bool), torch.tensor([1]), 3)


@for_each("start", [2**24, 2**53, 2**62, -(2**53) - 8], ids=["2^24", "2^53", "2^62", "-2^53"])
@for_each(
    "kind", [list, np.asarray, torch.tensor, pd.Series], ids=["list", "numpy", "torch", "pandas"]
)
def test_labels_above_the_digits_of_a_float_do_not_merge(
    kind: Callable[[list[int]], Any], start: int
) -> None:
    """Pitfall 4. Neighbouring class numbers that float32 or float64 would take for one."""
    z, y = sample()
    assert everything(z, kind([start + int(label) for label in y])) == everything(z, y)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (np.uint64, np.int64),
        (np.int64, np.uint64),
        (np.uint64, np.int8),
        (np.int64, np.float64),
        (np.float32, np.int64),
    ],
    ids=lambda kind: str(np.dtype(kind)),
)
def test_labels_of_two_types_do_not_merge_in_one_that_holds_neither(kind: Any, other: Any) -> None:
    """Pitfall 4. Whole numbers of two types meet in float64 if numpy is left to choose."""
    y, gallery_y = np.array([1, 2, 3], dtype=kind), np.array([1, 2, 3], dtype=other)
    if y.dtype.itemsize == 8 and y.dtype.kind in "iu":
        y = np.array([1, 2**53, 2**53 + 1], dtype=kind)
    if gallery_y.dtype.itemsize == 8 and gallery_y.dtype.kind in "iu":
        gallery_y = np.array([1, 2**53 + 1, 2**53], dtype=other)
    numbers = [
        [found.names[number] for number in part]
        for found in [number_classes(y, gallery_y)]
        for part in found.numbers
    ]
    assert numbers == [y.tolist(), gallery_y.tolist()]


def test_singletons_are_counted_and_per_query_scores_line_up_with_the_labels() -> None:
    """Pitfall 5."""
    z = [[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [-1.0, 0.0], [0.0, -1.0]]
    y = ["pair", "lone", "pair", "lonely", "alone"]
    scores = evaluate(
        z, y, ["precision_at_1", "recall_at_2", "r_precision", "map_at_r", "map_at_2", "mrr"]
    )
    assert (scores.queries, scores.skipped, scores.classes) == (2, 3, 1)
    assert scores.labels == y
    for name in scores:
        assert np.isnan(scores.per_query(name)).tolist() == [False, True, False, True, True]
        assert scores[name] == 1
        assert set(scores.per_class(name)) == set(y)


def test_singletons_still_stand_in_the_way_of_others() -> None:
    z = [[1.0, 0.0], [0.99, 0.01], [0.9, 0.1]]
    scores = evaluate(z, ["pair", "lone", "pair"], ["precision_at_1", "mrr"])
    assert scores.per_query("precision_at_1").tolist()[0] == 0
    assert scores.per_query("mrr").tolist()[0] == 1 / 2


@pytest.mark.parametrize("name", [name for name in RANKED if metrics[name].source == "ranks"])
def test_a_query_without_relevant_references_is_nan_and_never_zero(name: str) -> None:
    number = [1] if metrics[name].values else []
    found = metrics[name].function(torch.tensor([[False], [True]]), torch.tensor([0, 1]), *number)
    assert found[0].isnan()
    assert found[1] == 1


def test_no_more_than_a_bounded_number_of_neighbours_is_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pitfall 7. 300 queries x 299 neighbours would be 89,700 entries; 5,000 are allowed."""
    y = np.repeat([0, 1, 2, 3], [150, 100, 25, 25])
    z = np.eye(4)[y] + 0.3 * np.random.default_rng(0).normal(size=(300, 4))
    expected = evaluate(z, y, ["map_at_r", "mrr"])
    calls = spy_on_searches(monkeypatch)
    monkeypatch.setattr(ranking, "LIST_ENTRIES", 5000)
    found = evaluate(z, y, ["map_at_r", "mrr"])
    assert max(queries * k for queries, k in calls) <= 5000
    assert len(calls) > 1
    assert sum(queries for queries, _ in calls) >= 300
    assert in_bytes(found) == in_bytes(expected)


def test_one_huge_class_beside_many_small_ones_scores_as_a_plain_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pitfalls 3 and 7: long lists for a few, short ones for most, none for some."""
    draw = np.random.default_rng(0)
    y = draw.permutation(np.repeat(np.arange(71), [120, *[3] * 20, *[2] * 30, *[1] * 20]))
    z = torch.from_numpy(draw.normal(size=(len(y), 3)) + draw.normal(size=(71, 3))[y])
    hits = slow_hits(units(z), y.tolist())
    for entries in (ranking.LIST_ENTRIES, 2000):
        monkeypatch.setattr(ranking, "LIST_ENTRIES", entries)
        scores = evaluate(z, y, ["r_precision", "map_at_r", "mrr", "recall_at_4", "map_at_100"])
        assert (scores.queries, scores.skipped) == (240, 20)
        for name, family, k in [
            ("r_precision", "r_precision", 0),
            ("map_at_r", "map_at_r", 0),
            ("mrr", "mrr", 0),
            ("recall_at_4", "recall_at_k", 4),
            ("map_at_100", "map_at_k", 100),
        ]:
            assert scores.per_query(name).tolist() == pytest.approx(
                slow_scores(hits, family, k), abs=1e-12, nan_ok=True
            )


# --- Labels ---


class Bird(enum.Enum):
    WREN, OWL, KITE, ROOK, TERN = range(5)


LABELS: dict[str, list[Any]] = {
    "negative": [-5, -4, -3, -2, -1],
    "strings": ["a", "b", "c", "d", "a "],
    "an empty string": ["", " ", "\n", "\0", "nan"],
    "bytes": [b"a", b"b", b"c", b"d", b"e"],
    "tuples": [(0, 1), (1, 0), (0, 0), (1, 1), (2, 2)],
    "tuples of different lengths": [(), (0,), (0, 0), (0, 0, 0), ((0,),)],
    "mixed": [None, "1", 1, (1,), frozenset({1})],
    "none and numbers": [None, 0, 1, 2, 3],
    "numbers and their names": [0, "0", 1, "1", b"1"],
    "unsigned": [2**63, 2**63 + 1, 2**63 + 2, 2**63 + 3, 2**63 + 4],
    "signed and unsigned": [2**63 + 1, 2**63 + 2, 2**63 + 3, -1, -2],
    "beyond 64 bits": [2**70, 2**70 + 1, 2**70 + 2, 2**70 + 3, 2**70 + 4],
    "far below 0": [-(2**63), -(2**63) - 1, -(2**70), -(2**70) - 1, 0],
    "floats": [0.1, 0.2, 0.1 + 0.2, 0.3, math.inf],
    "floats and large whole numbers": [0.5, 2**53, 2**53 + 1, 2**63, 2**63 + 1],
    "fractions": [fractions.Fraction(n, 7) for n in range(5)],
    "decimals": [decimal.Decimal(n) / 10 for n in range(5)],
    "members of an enumeration": list(Bird),
    "numpy numbers": [np.int8(0), np.int64(1), np.float32(2), np.uint64(2**63), np.str_("owl")],
}


@for_each("names", LABELS.values(), ids=LABELS)
def test_labels_of_any_type_are_told_apart(names: list[Any]) -> None:
    z, y = sample()
    scores = evaluate(z, [names[int(label)] for label in y], EVERYTHING)
    assert dict(scores) == everything(z, y)
    assert set(scores.per_class("mrr")) == set(names)
    assert scores.labels == [names[int(label)] for label in y]


@for_each(
    "kind",
    [
        tuple,
        lambda names: np.array(names),
        lambda names: np.array(names, dtype=object),
        lambda names: np.array(names, dtype=np.dtypes.StringDType()),
        lambda names: np.array(names, dtype="S"),
        pd.Series,
        lambda names: pd.Series(names, index=reversed(range(len(names)))),
        lambda names: pd.Series(names, dtype="category"),
        pd.Index,
        pd.Categorical,
    ],
    ids=[
        "tuple",
        "str",
        "object",
        "StringDType",
        "bytes",
        "Series",
        "Series backwards",
        "categories",
        "Index",
        "Categorical",
    ],
)
def test_names_are_labels_in_any_container(kind: Callable[[list[str]], Any]) -> None:
    z, y = sample()
    names = ["wren", "owl", "kite", "rook", "tern"]
    scores = evaluate(z, kind([names[int(label)] for label in y]), EVERYTHING)
    assert dict(scores) == everything(z, y)
    assert {
        label.decode() if isinstance(label, bytes) else label for label in scores.per_class("mrr")
    } == set(names)


@for_each(
    "kind",
    [
        *(
            torch.int8,
            torch.uint8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.float32,
            torch.float64,
        ),
        *("i1", "u1", ">i2", "u4", "u8", ">f4", "f2", "f8"),
        *("Int64", "UInt8", "Float32"),
    ],
    ids=str,
)
def test_numbers_are_labels_in_any_type(kind: Any) -> None:
    z, y = sample()
    if isinstance(kind, torch.dtype):
        labels: Any = y.to(kind)
    else:
        labels = pd.Series(y.numpy(), dtype=kind) if kind[0].isupper() else y.numpy().astype(kind)
    assert everything(z, labels) == everything(z, y)


@pytest.mark.parametrize(
    "kind", [list, np.array, torch.tensor, pd.Series], ids=["list", "numpy", "torch", "pandas"]
)
def test_truth_values_are_labels(kind: Callable[[list[bool]], Any]) -> None:
    z, y = sample(classes=2)
    scores = evaluate(z, kind([bool(label) for label in y]), EVERYTHING)
    assert dict(scores) == everything(z, y)
    assert set(scores.per_class("mrr")) == {False, True}


def test_dates_are_labels() -> None:
    z, y = sample()
    dates = np.datetime64("2020-01-01") + y.numpy()
    assert (
        everything(z, dates)
        == everything(z, pd.Series(dates))
        == everything(z, dates.tolist())
        == everything(z, y)
    )
    assert set(evaluate(z, dates, ["mrr"]).per_class("mrr")) == set(dates.tolist())


def test_labels_on_the_way_of_a_gradient_are_labels() -> None:
    z, y = sample()
    assert everything(z, y.double().requires_grad_()) == everything(z, y)


def test_labels_in_a_list_of_tensors_are_told_apart_by_their_values() -> None:
    """As a loop over a data set collects them; a tensor's hash is its address."""
    z, y = sample()
    assert everything(z, list(y)) == everything(z, y)


@for_each(
    "labels",
    [
        [0.0, 1.0, math.nan, 0.0],
        ["a", "b", math.nan, "a"],
        ["a", "b", np.float32("nan"), "a"],
        np.array([0.0, 1.0, math.nan, 0.0]),
        np.array([0.0, 1.0, math.nan, 0.0], dtype=np.float16),
        np.array(["a", "b", math.nan, "a"], dtype=object),
        torch.tensor([0.0, 1.0, math.nan, 0.0]),
        pd.Series(["a", "b", None, "a"]),
        pd.Series(["a", "b", None, "a"], dtype="category"),
        pd.Series([0, 1, None, 0]),
        pd.Series([0, 1, None, 0], dtype="Int64"),
        pd.Series([True, False, None, True], dtype="boolean"),
        pd.Series([0, 1, pd.NA, 0], dtype=object),
        np.array(["2020-01-01", "2020-01-02", "NaT", "NaT"], dtype="datetime64[s]"),
        [decimal.Decimal(0), decimal.Decimal(1), decimal.Decimal("nan"), decimal.Decimal(0)],
    ],
    ids=[
        *("floats", "names", "numpy scalar", "numpy", "half", "object", "torch"),
        *(
            "pandas names",
            "categories",
            "pandas numbers",
            "nullable",
            "nullable bool",
            "NA among objects",
            "dates",
            "decimals",
        ),
    ],
)
def test_the_first_label_that_is_missing_is_named(labels: Any) -> None:
    """A label that does not equal itself has no class, and two that are missing are not of one
    class.
    """
    with pytest.raises(
        ValueError, match=r"label 2 is (NaN|NaT|<NA>|missing).*leave such samples out"
    ):
        evaluate(np.eye(4), labels, ["mrr"])


@pytest.mark.parametrize("kind", [list, np.array], ids=["list", "numpy"])
def test_a_missing_label_of_the_gallery_is_named_by_its_place_there(
    kind: Callable[[list[float]], Any],
) -> None:
    with pytest.raises(ValueError, match=r"\b1\b.* is NaN"):
        evaluate(
            np.eye(4), [0, 1, 0, 1], ["mrr"], gallery=(np.eye(4), kind([0.0, math.nan, 1.0, 1.0]))
        )


@pytest.mark.parametrize(
    "bad", [[1], {1}, {1: 1}, (1, [2])], ids=["list", "set", "dict", "list in a tuple"]
)
def test_the_first_label_that_cannot_be_compared_is_named(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"label 2 is .*hashable"):
        evaluate(np.eye(4), [(0,), (1,), bad, bad], ["mrr"])


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        (np.zeros((4, 1), dtype=int), r"\(4, 1\)"),
        (torch.zeros(4, 1, dtype=torch.long), r"\(4, 1\)"),
        (pd.DataFrame({"y": [0, 0, 1, 1]}), r"\(4, 1\)"),
        (7, r"\(\)"),
        ("aabb", r"\(\)"),
        (torch.tensor(7), r"\(\)"),
    ],
    ids=["numpy", "torch", "data frame", "a number", "a word", "one tensor"],
)
def test_labels_of_another_shape_raise(labels: Any, shape: str) -> None:
    with pytest.raises(ValueError, match=rf"shape \(N,\), got {shape}"):
        evaluate(np.eye(4), labels)


def test_classes_are_numbered_over_all_lists_together() -> None:
    found = number_classes(np.array([7, 9, 7]), [9, 8], torch.tensor([7]))
    assert [[found.names[number] for number in part] for part in found.numbers] == [
        [7, 9, 7],
        [9, 8],
        [7],
    ]
    assert len(found.names) == 3


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False),
            st.text(max_size=2),
            st.tuples(st.integers(0, 2)),
        ),
        min_size=1,
        max_size=12,
    )
)
@few_examples
def test_two_labels_share_a_class_exactly_where_they_are_equal(labels: list[Any]) -> None:
    """Across two lists of any kinds of label."""
    half = len(labels) // 2
    found = number_classes(labels[:half], labels[half:])
    numbers = np.concatenate(found.numbers)
    for one, other in itertools.combinations(range(len(labels)), 2):
        assert (numbers[one] == numbers[other]) == (labels[one] == labels[other])
    assert [found.names[number] for number in numbers] == labels


# --- Names ---


def test_a_family_stands_for_its_usual_members() -> None:
    assert [one.label for one in choose_metrics(["recall_at_k"])] == [
        f"recall_at_{k}" for k in (1, 2, 4, 8, 16, 32)
    ]
    assert [one.label for one in choose_metrics(["map_at_k"])] == ["map_at_100"]
    assert [one.label for one in choose_metrics(["tar_at_far"])] == [
        "tar_at_far_1e-2",
        "tar_at_far_1e-3",
        "tar_at_far_1e-4",
    ]


def test_every_metric_says_what_it_is() -> None:
    for name, found in metrics.items():
        assert isinstance(found, Metric)
        assert found.name == name
        assert found.about.strip(), name


def test_every_metric_can_be_asked_for_by_its_name_and_by_its_members_names() -> None:
    for name in metrics:
        members = choose_metrics([name])
        assert members, name
        for member in members:
            (again,) = choose_metrics([member.label])
            assert (again.label, again.metric, again.value) == (
                member.label,
                metrics[name],
                member.value,
            )


def test_tables_know_exactly_the_metrics_that_are_computed() -> None:
    own = {name for name in metrics if metrics.origin(name).startswith("assay.")}
    assert own == set(NAMES)
    assert expand(metrics) == [chosen.label for chosen in choose_metrics(metrics)]
    for name, known in NAMES.items():
        assert {field: getattr(metrics[name], field) for field in vars(known)} == vars(known)


def test_the_name_of_a_users_own_metric_stands_for_itself() -> None:
    assert expand(["mine", "map_at_r", "mine"]) == ["mine", "map_at_r"]
    assert (heading("mine"), in_percent("mine"), direction("mine")) == ("mine", True, 1)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("map_at_rr", "map_at_r"),
        ("recal_at_1", "recall_at_k"),
        ("map_at_x", "map_at_r"),
        ("map_at_", "map_at_r"),
        ("recall_at_-1", "recall_at_k"),
        ("recall_at_1e3", "recall_at_k"),
        ("nmi_2", "nmi"),
        ("pi_intra_1", "pi_intra"),
    ],
)
def test_an_unknown_metric_suggests_the_nearest_name(asked: str, nearest: str) -> None:
    with pytest.raises(
        UnknownName, match=f"no metric is called '{asked}'; did you mean '{nearest}'"
    ):
        evaluate(np.eye(2), [0, 0], [asked])


@pytest.mark.parametrize(
    "asked", ["recall_at_0", "map_at_0", "recall_at_00", "tar_at_far_0", "tar_at_far_0.0"]
)
def test_the_number_of_a_family_is_above_zero(asked: str) -> None:
    with pytest.raises(ValueError, match=f"{asked}: the number in it is "):
        evaluate(np.eye(2), [0, 0], [asked])


@pytest.mark.parametrize("asked", ["recall_at_0.5", "recall_at_1e-3", "map_at_2.5e-1"])
def test_the_number_of_a_family_of_ranks_is_a_whole_one(asked: str) -> None:
    with pytest.raises(ValueError, match=asked):
        evaluate(np.eye(2), [0, 0], [asked])


def test_a_false_accept_rate_above_one_raises() -> None:
    with pytest.raises(ValueError, match="5"):
        evaluate(np.eye(4), [0, 0, 1, 1], ["tar_at_far_5"])


def test_one_name_by_itself_is_not_taken_for_a_list_of_letters() -> None:
    """Either it stands for that metric, or it is said what to write."""
    try:
        assert list(evaluate(np.eye(2), [0, 0], "map_at_r")) == ["map_at_r"]
    except ValueError as error:
        assert "map_at_r" in str(error).partition("all:")[0]  # noqa: PT017


def test_no_metric_at_all_raises() -> None:
    with pytest.raises(ValueError, match=r"at least one metric of .*map_at_r"):
        evaluate(np.eye(2), [0, 0], [])


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for name in ("_parts", "_origins"):
        monkeypatch.setattr(metrics, name, dict(getattr(metrics, name)))


def nothing_at_all(relevant: Tensor, total: Tensor, k: int) -> Tensor:
    """Nothing, k times."""
    return torch.zeros_like(total, dtype=torch.float64) + k


@pytest.mark.usefixtures("own_registry")
def test_a_metric_is_registered_by_its_decorator_and_stays_a_function() -> None:
    assert metric("nothing_at_all", values=(3,))(nothing_at_all) is nothing_at_all
    assert metrics["nothing_at_all"] == Metric(
        name="nothing_at_all",
        heading="nothing_at_all",
        values=(3,),
        source="ranks",
        function=nothing_at_all,
    )
    assert metrics["nothing_at_all"].about == "Nothing, k times."
    scores = evaluate(np.eye(4), [0, 0, 1, 1], ["nothing_at_all", "nothing_at_all_2"])
    assert dict(scores) == {"nothing_at_all_3": 3, "nothing_at_all_2": 2}
    with pytest.raises(ValueError, match="registered already"):
        metric("nothing_at_all")(nothing_at_all)


@pytest.mark.usefixtures("own_registry")
def test_a_metric_is_that_of_the_module_that_added_it() -> None:
    """So that a module of one's own can be loaded again."""
    for number in (1, 2):
        with replacing(__name__):
            metric("nothing_at_all", values=(number,))(nothing_at_all)
    assert metrics["nothing_at_all"].values == (2,)
