"""`evaluate`: who looks for whom, what it takes and leaves alone, what it refuses, and how much it
holds at once.
"""

import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

import assay
from assay.clusters import kmeans
from assay.metrics import Scores, evaluate, geometry, metrics, ranking
from assay.metrics.clustering import nmi
from assay.neighbours import Vectors
from assay.registry import UnknownName
from loops import for_each

few_examples = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31)

RANKED = (
    "precision_at_1",
    "recall_at_1",
    "recall_at_3",
    "r_precision",
    "map_at_r",
    "map_at_3",
    "mrr",
)
WHOLE = tuple(name for name, found in metrics.items() if found.source not in ("ranks", "first hit"))

Stands = Callable[[int, int], bool]


def slow_lists(
    z: Sequence[Sequence[float]],
    y: Sequence[Any],
    queries: Sequence[int],
    gallery: Sequence[int],
    stands: Stands,
) -> list[list[bool]]:
    """The hits of each query in rank order: rows of one array, ties by place in the gallery, a
    query never in its own list.
    """
    lists = []
    for query in queries:
        others = [row for row in gallery if row != query and stands(query, row)]
        similar = {row: sum(a * b for a, b in zip(z[query], z[row], strict=True)) for row in others}
        lists.append([y[row] == y[query] for row in sorted(others, key=lambda row: -similar[row])])
    return lists


def slow_score(name: str, hits: Sequence[bool]) -> float:
    """By the definitions, one query at a time; NaN where there is nothing to find."""
    relevant, (family, _, number) = sum(hits), name.rpartition("_")
    if not relevant:
        return math.nan
    if name == "mrr":
        return 1 / (1 + list(hits).index(True))
    if family in ("precision_at", "recall_at"):
        return float(any(hits[: int(number)]))
    if name == "r_precision":
        return sum(hits[:relevant]) / relevant
    k = relevant if number == "r" else int(number)
    return sum(
        sum(hits[:rank]) / rank for rank in range(1, k + 1) if any(hits[rank - 1 : rank])
    ) / min(relevant, k)


def assert_scored_as(found: Scores, lists: list[list[bool]]) -> None:
    for name in found:
        expected = [slow_score(name, hits) for hits in lists]
        assert found.per_query(name).tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True), (
            name
        )
        assert found[name] == pytest.approx(np.nanmean(expected), abs=1e-12), name
    assert found.skipped == sum(not any(hits) for hits in lists)
    assert found.queries + found.skipped == len(lists)


def always(query: int, row: int) -> bool:
    return True


def sample(count: int = 40, classes: int = 5, dim: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Clusters that overlap, so that no metric is trivial."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=draw)
    centres = torch.randn(classes, dim, generator=draw, dtype=torch.float64)
    return centres[y] + torch.randn(count, dim, generator=draw, dtype=torch.float64), y


def small_rows(draw: random.Random, count: int) -> list[tuple[float, ...]]:
    """Vectors of one length with many duplicates and ties, whose products are exact in any
    precision.
    """
    return [tuple(draw.choice((-0.5, 0.5)) for _ in range(4)) for _ in range(count)]


def in_bytes(scores: Scores) -> dict[str, bytes]:
    return {name: scores.per_query(name).tobytes() for name in scores}


def random_roles(draw: random.Random, count: int) -> tuple[list[int], list[int]]:
    """Queries and gallery in any order, which overlap or not; both hold some."""
    rows = list(range(count))
    queries = draw.sample(rows, draw.randint(1, count))
    gallery = draw.sample(rows, draw.randint(5, count))
    return queries, gallery


# --- Roles ---


@given(seed=seeds)
@few_examples
def test_queries_are_looked_up_in_the_gallery_and_do_not_find_themselves(seed: int) -> None:
    """Pitfall 10. Any rows may be queries, any may be in the gallery, under duplicates and ties."""
    draw = random.Random(seed)
    z, y = small_rows(draw, 30), draw.choices(range(draw.choice([2, 6])), k=30)
    queries, gallery = random_roles(draw, 30)
    lists = slow_lists(z, y, queries, gallery, always)
    if any(any(hits) for hits in lists):
        found = evaluate(z, y, RANKED, queries=queries, gallery=gallery)
        assert_scored_as(found, lists)
        assert found.ids == queries
        assert found.labels == [y[row] for row in queries]


def test_disjoint_queries_and_gallery_as_in_shop() -> None:
    """Pitfall 10. In-Shop: two masks; a query finds only samples of the gallery."""
    z, y = sample(count=60, classes=8)
    queries = torch.arange(60) % 3 == 0
    found = evaluate(z, y, RANKED, queries=queries, gallery=~queries)
    rows = (z / z.norm(dim=1, keepdim=True)).tolist()
    query_rows, gallery_rows = queries.nonzero()[:, 0].tolist(), (~queries).nonzero()[:, 0].tolist()
    assert_scored_as(found, slow_lists(rows, y.tolist(), query_rows, gallery_rows, always))
    assert found.ids == query_rows


def test_without_a_gallery_queries_are_looked_up_among_all_samples() -> None:
    z, y = sample()
    everyone, some = evaluate(z, y, RANKED), evaluate(z, y, RANKED, queries=[7, 3, 30])
    for name in RANKED:
        assert some.per_query(name).tolist() == everyone.per_query(name)[[7, 3, 30]].tolist()


def test_without_queries_all_samples_are_looked_up_in_the_gallery() -> None:
    z, y = sample()
    gallery = list(range(0, 40, 2))
    found = evaluate(z, y, RANKED, gallery=gallery)
    rows = (z / z.norm(dim=1, keepdim=True)).tolist()
    assert_scored_as(found, slow_lists(rows, y.tolist(), range(40), gallery, always))


def test_queries_that_are_also_in_the_gallery_do_not_find_themselves() -> None:
    """Pitfall 10. Only the first query is in the gallery; each lies where a stranger lies."""
    z = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    scores = evaluate(
        z, ["a", "b", "b", "a"], ["precision_at_1", "mrr"], queries=[0, 3], gallery=[0, 1, 2]
    )
    assert scores.per_query("precision_at_1").tolist()[0] != 1 or scores.skipped
    assert np.isnan(scores.per_query("mrr")[0])
    assert scores.per_query("mrr")[1] == 1 / 2


def test_a_query_outside_the_gallery_can_find_all_of_it_while_another_is_inside() -> None:
    """Row 5 has five references, row 0 four: itself is not one."""
    scores = evaluate(
        np.eye(6) + 1,
        [0] * 6,
        ["r_precision", "map_at_r", "mrr"],
        queries=[0, 5],
        gallery=[0, 1, 2, 3, 4],
    )
    assert dict(scores) == {"r_precision": 1, "map_at_r": 1, "mrr": 1}


def test_a_query_outside_the_gallery_finds_the_last_reference_among_many_ties() -> None:
    """299 references tie, too many to remember; the last is the query's duplicate, and nothing is
    to be left out for it.
    """
    z = torch.tensor([[1.0, 0.0]] * 299 + [[1.0, 1.0]] * 2)
    scores = evaluate(
        z, [0] * 299 + [1, 1], ["recall_at_10", "mrr"], queries=[0, 300], gallery=range(300)
    )
    assert dict(scores) == {"recall_at_10": 1, "mrr": 1}


def test_masks_and_row_numbers_mean_the_same() -> None:
    z, y = sample()
    mask = np.zeros(40, dtype=bool)
    mask[[1, 5, 6, 20, 33]] = True
    expected = in_bytes(
        evaluate(z, y, RANKED, queries=[1, 5, 6, 20, 33], gallery=np.flatnonzero(~mask))
    )
    for queries in (
        mask,
        mask.tolist(),
        torch.from_numpy(mask),
        np.flatnonzero(mask).astype(np.uint16),
        (1, 5, 6, 20, 33),
    ):
        assert in_bytes(evaluate(z, y, RANKED, queries=queries, gallery=~mask)) == expected


@pytest.mark.parametrize(
    "kind",
    [pd.Series, lambda mask: np.frombuffer(mask.tobytes(), dtype=bool)],
    ids=["pandas", "read-only"],
)
def test_a_mask_that_must_not_be_written_to_is_taken_without_a_warning(
    kind: Callable[[Any], Any],
) -> None:
    z, y = sample()
    mask = np.arange(40) % 2 == 0
    expected = in_bytes(evaluate(z, y, RANKED, queries=mask, gallery=~mask))
    assert in_bytes(evaluate(z, y, RANKED, queries=kind(mask), gallery=kind(~mask))) == expected


def test_roles_that_name_everyone_change_nothing() -> None:
    z, y = sample()
    expected = in_bytes(evaluate(z, y, RANKED))
    everyone = np.ones(40, dtype=bool)
    assert in_bytes(evaluate(z, y, RANKED, queries=everyone)) == expected
    assert in_bytes(evaluate(z, y, RANKED, gallery=everyone)) == expected
    assert in_bytes(evaluate(z, y, RANKED, queries=range(40), gallery=np.arange(40))) == expected


def test_order_of_the_gallery_does_not_matter_without_ties() -> None:
    z, y = sample()
    rows = list(range(10, 40))
    shuffled = random.Random(0).sample(rows, len(rows))
    before = evaluate(z, y, RANKED, queries=range(20), gallery=rows)
    assert in_bytes(evaluate(z, y, RANKED, queries=range(20), gallery=shuffled)) == in_bytes(before)


def test_a_gallery_of_its_own_is_the_same_as_rows_of_one_array() -> None:
    """Pitfall 10. As a tuple (z, y)."""
    z, y = sample(count=50)
    one = evaluate(z, y, RANKED, queries=range(20), gallery=range(20, 50))
    two = evaluate(z[:20], y[:20], RANKED, gallery=(z[20:], y[20:]))
    assert in_bytes(two) == in_bytes(one)
    assert two.ids == list(range(20))


def test_a_gallery_of_its_own_may_be_asked_by_some() -> None:
    z, y = sample(count=50)
    one = evaluate(z, y, RANKED, queries=[4, 2, 9], gallery=range(20, 50))
    two = evaluate(
        z[:20],
        y[:20],
        RANKED,
        queries=[4, 2, 9],
        gallery=(z[20:], y[20:]),
        ids=[f"n{row}" for row in range(20)],
    )
    assert in_bytes(two) == in_bytes(one)
    assert two.ids == ["n4", "n2", "n9"]


def test_samples_of_another_array_are_other_samples_even_if_equal() -> None:
    """Pitfall 10. Nothing is left out of a gallery of its own: a duplicate there is found."""
    z, y = sample()
    assert dict(evaluate(z, y, ["precision_at_1", "mrr"], gallery=(z, y))) == {
        "precision_at_1": 1,
        "mrr": 1,
    }


@for_each(
    "kind",
    [
        list,
        tuple,
        np.asarray,
        lambda y: np.array(y, dtype=np.int8),
        lambda y: np.array(y, dtype=np.uint64),
        lambda y: np.array(y, dtype=float),
        lambda y: np.array(y, dtype=object),
        lambda y: [np.int32(label) for label in y],
        torch.tensor,
        pd.Series,
    ],
    ids=[
        "list",
        "tuple",
        "int64",
        "int8",
        "uint64",
        "float",
        "object",
        "numpy scalars",
        "torch",
        "pandas",
    ],
)
def test_labels_of_a_gallery_match_whatever_their_type(kind: Callable[[list[int]], Any]) -> None:
    """Pitfall 10."""
    z, y = sample(count=50)
    expected = in_bytes(evaluate(z[:20], y[:20], RANKED, gallery=(z[20:], y[20:])))
    for queries_y in (y[:20], y[:20].tolist(), y[:20].numpy()):
        assert (
            in_bytes(evaluate(z[:20], queries_y, RANKED, gallery=(z[20:], kind(y[20:].tolist()))))
            == expected
        )


def test_names_of_a_gallery_match_whatever_holds_them() -> None:
    z, y = sample(count=50)
    names = np.array(["wren", "owl", "kite", "rook", "a very long name"])[y]
    expected = in_bytes(evaluate(z[:20], y[:20], RANKED, gallery=(z[20:], y[20:])))
    for kind in (
        list,
        pd.Series,
        lambda part: part.astype(object),
        lambda part: np.array(part.tolist()),
    ):
        assert (
            in_bytes(evaluate(z[:20], names[:20], RANKED, gallery=(z[20:], kind(names[20:]))))
            == expected
        )


def test_a_class_only_among_queries_is_skipped_and_counted() -> None:
    """Pitfall 10."""
    z = np.eye(5)
    scores = evaluate(
        z, ["a", "b", "c", "b", "c"], ["map_at_r", "mrr"], queries=[0, 1, 2, 4], gallery=[1, 3, 4]
    )
    assert (scores.queries, scores.skipped, scores.classes) == (2, 2, 2)
    for name in scores:
        assert np.isnan(scores.per_query(name)).tolist() == [
            True,
            False,
            False,
            True,
        ], "4 finds nobody but itself"
        assert math.isnan(scores.per_class(name)["a"])


def test_a_class_only_in_the_gallery_stands_in_the_way_and_is_not_asked_for() -> None:
    """Pitfall 10."""
    angles = np.radians([0, 1, 2])
    scores = evaluate(
        np.stack([np.cos(angles), np.sin(angles)], axis=1),
        ["a", "stranger", "a"],
        ["mrr"],
        queries=[0],
        gallery=[1, 2],
    )
    assert dict(scores) == {"mrr": 1 / 2}
    assert scores.per_class("mrr") == {"a": 1 / 2}
    assert scores.classes == 1


def test_landmarks_are_scored_at_a_hundred_in_an_index_of_their_own() -> None:
    """Pitfall 10. Some landmarks have more than 100 images in the index, some fewer, some none;
    distractors fill it up.
    """
    draw = np.random.default_rng(0)
    index_y = draw.permutation([*[0] * 130, *[1] * 7, *[2] * 1, *range(100, 160)])
    y = [0, 0, 1, 1, 2, 2, 3, 3]
    centres = draw.normal(size=(160, 4))
    z, index_z = (
        centres[y] + draw.normal(size=(8, 4)),
        centres[index_y] + draw.normal(size=(len(index_y), 4)),
    )
    found = evaluate(z, y, ["map_at_100", "map_at_k"], gallery=(index_z, index_y))
    rows = np.concatenate([z, index_z])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    lists = slow_lists(
        rows.tolist(), [*y, *index_y.tolist()], range(8), range(8, len(rows)), always
    )
    assert list(found) == ["map_at_100"]
    assert_scored_as(found, lists)
    assert (found.queries, found.skipped) == (6, 2)


# --- Who counts ---


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@given(seed=seeds)
@few_examples
def test_references_that_do_not_count_are_neither_found_nor_missed(
    similarity: str, seed: int
) -> None:
    """Re-identification: the same person seen by the same camera is junk. Under duplicates and
    ties.
    """
    draw = random.Random(seed)
    count = 40
    z, person = small_rows(draw, count), draw.choices(range(draw.choice([3, 15])), k=count)
    camera = draw.choices(range(3), k=count)
    queries, gallery = random_roles(draw, count)
    lists = slow_lists(
        z, person, queries, gallery, lambda q, r: person[q] != person[r] or camera[q] != camera[r]
    )
    who, where = torch.tensor(person), torch.tensor(camera)

    def counts(query: Tensor, reference: Tensor) -> Tensor:
        return (who[query] != who[reference]) | (where[query] != where[reference])

    if any(any(hits) for hits in lists):
        names = RANKED if len(gallery) > 3 else ("map_at_r", "mrr")
        assert_scored_as(
            evaluate(
                z,
                person,
                names,
                queries=queries,
                gallery=gallery,
                counts=counts,
                similarity=similarity,
            ),
            lists,
        )


def test_what_counts_is_told_by_rows_of_both_arrays() -> None:
    draw = np.random.default_rng(1)
    person, camera = draw.integers(10, size=90), draw.integers(4, size=90)
    z = draw.normal(size=(90, 5)) + draw.normal(size=(10, 5))[person]
    rows = (z / np.linalg.norm(z, axis=1, keepdims=True)).tolist()
    gallery = list(range(30, 90))
    asked = [3, 1, 29, 17]
    lists = slow_lists(
        rows,
        person.tolist(),
        asked,
        gallery,
        lambda q, r: person[q] != person[r] or camera[q] != camera[r],
    )
    who, where = torch.from_numpy(person), torch.from_numpy(camera)

    def counts(query: Tensor, reference: Tensor) -> Tensor:
        return (who[:30][query] != who[30:][reference]) | (
            where[:30][query] != where[30:][reference]
        )

    found = evaluate(
        z[:30], person[:30], RANKED, queries=asked, gallery=(z[30:], person[30:]), counts=counts
    )
    assert_scored_as(found, lists)


@pytest.mark.parametrize("seed", range(5))
def test_a_first_hit_far_down_is_counted_without_junk(seed: int) -> None:
    """A fourth of what is in the way is junk of another kind, and so is a fourth of what is to be
    found.
    """
    draw = random.Random(seed)
    z, y, odd = (
        small_rows(draw, 90),
        [*range(40), *range(40), *range(10)],
        draw.choices([0, 1], k=90),
    )
    draw.shuffle(y)
    lists = slow_lists(
        z, y, range(90), range(90), lambda q, r: not (odd[q] and odd[r] and (q + r) % 2)
    )
    assert max(hits.index(True) for hits in lists if any(hits)) > 40
    is_odd = torch.tensor(odd, dtype=torch.bool)

    def counts(query: Tensor, reference: Tensor) -> Tensor:
        return ~(is_odd[query] & is_odd[reference] & ((query + reference) % 2 == 1))

    assert_scored_as(evaluate(z, y, ["mrr", "map_at_r"], counts=counts), lists)


def test_a_query_of_whom_nothing_counts_is_skipped_and_counted() -> None:
    camera = torch.tensor([0, 0, 0, 1])
    scores = evaluate(
        np.eye(4),
        ["a", "a", "b", "b"],
        ["map_at_r", "mrr"],
        counts=lambda query, reference: camera[query] != camera[reference],
    )
    assert (scores.queries, scores.skipped) == (2, 2)
    assert np.isnan(scores.per_query("mrr")).tolist() == [True, True, False, False]


def test_where_fewer_than_k_count_the_rest_of_a_list_is_empty() -> None:
    """Two references count, a stranger and then a hit; the last two, which do not, are of the
    class.
    """
    degrees = np.radians([0, 1, 2, 3, 4])
    scores = evaluate(
        np.stack([np.cos(degrees), np.sin(degrees)], axis=1),
        ["a", "b", "a", "a", "a"],
        ["map_at_4", "recall_at_4", "map_at_r", "mrr"],
        queries=[0],
        gallery=[1, 2, 3, 4],
        counts=lambda query, reference: (query < 3) & (reference < 3),
    )
    assert dict(scores) == {"map_at_4": 1 / 2, "recall_at_4": 1, "map_at_r": 0, "mrr": 1 / 2}


def test_groups_do_not_matter_to_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    z, y = small_rows(draw, 60), [0] * 30 + draw.choices(range(1, 12), k=30)
    gallery, queries = random_roles(draw, 60)
    camera = torch.tensor(draw.choices(range(3), k=60))

    def counts(query: Tensor, reference: Tensor) -> Tensor:
        return camera[query] != camera[reference]

    whole = evaluate(
        z, y, ["map_at_r", "mrr", "recall_at_3"], queries=queries, gallery=gallery, counts=counts
    )
    for entries in (1, 100, 400):
        hold_little(monkeypatch, entries)
        parts = evaluate(
            z,
            y,
            ["map_at_r", "mrr", "recall_at_3"],
            queries=queries,
            gallery=gallery,
            counts=counts,
        )
        assert in_bytes(parts) == in_bytes(whole)


def hold_little(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Make all that bounds memory small, wherever it is looked up, so that a few samples take
    several rounds.
    """
    sizes = {
        "LIST_ENTRIES": entries,
        "FAR_ENOUGH": 2,
        "TILE": 32,
        "PANEL": 1,
        "PAIRS": 256,
        "BLOCK": 64,
        "BUFFER": 64,
    }
    for name, module in list(sys.modules.items()):
        if name == "assay.metrics.ranking" or name.startswith("assay.neighbours."):
            for constant in sizes.keys() & vars(module).keys():
                monkeypatch.setattr(module, constant, sizes[constant])


# --- Metrics of the whole ---


def test_every_metric_of_the_registry_can_be_asked_for_at_once() -> None:
    z, y = sample(count=102)
    scores = evaluate(z, y, tuple(metrics))
    assert all(isinstance(value, float) for value in scores.values())
    for name in ("precision_at_1", "recall_at_8", "map_at_100", "mrr", "ami", "pi_ratio", "eer"):
        assert evaluate(z, y, [name])[name] == scores[name]


def test_metrics_of_the_whole_are_of_all_that_take_part() -> None:
    """As a query or in the gallery; the rest is left out."""
    z, y = sample(count=60)
    rows = torch.tensor([*range(20), *range(30, 50)])
    names = [name for name in WHOLE if metrics[name].source in ("clusters", "vectors")]
    part = evaluate(z, y, names, queries=rows[10:], gallery=rows[:30])
    assert dict(part) == pytest.approx(dict(evaluate(z[rows], y[rows], names)), abs=1e-12)


def test_clusters_are_as_many_as_classes_take_part() -> None:
    """Pitfall 6, as far as roles go."""
    z, y = sample(count=60, classes=6)
    rows = (y < 3).nonzero()[:, 0]
    units = z[rows].float() / z[rows].float().norm(dim=1, keepdim=True)
    expected = nmi(y[rows].numpy(), kmeans(units, 3, seed=4).labels.numpy())
    assert evaluate(z, y, ["nmi"], queries=rows, gallery=rows, seed=4)["nmi"] == pytest.approx(
        expected, abs=1e-12
    )


def test_geometry_is_that_of_its_functions() -> None:
    z, y = sample()
    scores = evaluate(
        z, y, ["pi_intra", "pi_inter", "pi_ratio", "spectral_decay", "spectral_decay_2"]
    )
    assert dict(scores) == {
        "pi_intra": geometry.pi_intra(z, y),
        "pi_inter": geometry.pi_inter(z, y),
        "pi_ratio": geometry.pi_ratio(z, y),
        "spectral_decay": geometry.spectral_decay(z),
        "spectral_decay_2": geometry.spectral_decay(z, dropped=1),
    }


def test_a_dead_dimension_decays_infinitely() -> None:
    z, y = sample()
    z[:, 2] = 0
    assert evaluate(z, y, ["spectral_decay"])["spectral_decay"] == math.inf


@pytest.mark.parametrize(
    ("queries", "gallery"),
    [
        (range(40), range(40)),
        (range(15), range(15, 40)),
        (range(20), range(10, 40)),
        (range(39, -1, -1), range(40)),
    ],
    ids=["all", "disjoint", "overlapping", "backwards"],
)
def test_verification_is_over_all_pairs_but_those_of_a_sample_with_itself(
    queries: range, gallery: range
) -> None:
    z, y = sample()
    units = z / z.norm(dim=1, keepdim=True)
    pairs = [(query, row) for query in queries for row in gallery if query != row]
    expected = roc_auc_score(
        [int(y[query] == y[row]) for query, row in pairs],
        [float(units[query] @ units[row]) for query, row in pairs],
    )
    found = evaluate(z, y, ["roc_auc"], queries=queries, gallery=gallery)
    assert found["roc_auc"] == pytest.approx(expected, abs=1e-4)


def test_verification_takes_a_gallery_of_its_own() -> None:
    z, y = sample()
    one = evaluate(z, y, ["roc_auc", "eer"], queries=range(15), gallery=range(15, 40))
    two = evaluate(z[:15], y[:15], ["roc_auc", "eer"], gallery=(z[15:], y[15:]))
    assert dict(one) == dict(two)


def test_the_seed_is_that_of_k_means_and_nothing_else() -> None:
    z, y = sample(count=100, classes=20, dim=3)
    by_seed = [evaluate(z, y, ["nmi", "map_at_r"], seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert by_seed[0]["nmi"] == by_seed[1]["nmi"]
    assert len({scores["nmi"] for scores in by_seed}) > 1
    assert len({scores["map_at_r"] for scores in by_seed}) == 1


# --- What it takes, and leaves alone ---


def test_assay_evaluate_is_this_function() -> None:
    assert assay.evaluate is evaluate


def test_a_memory_mapped_file_is_evaluated_where_it_lies(tmp_path: Path) -> None:
    z, y = sample()
    np.save(tmp_path / "z.npy", z.numpy())
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert in_bytes(evaluate(mapped, y, RANKED)) == in_bytes(evaluate(z, y, RANKED))
    split = evaluate(mapped, y, RANKED, queries=range(20), gallery=range(10, 40))
    assert in_bytes(split) == in_bytes(
        evaluate(z, y, RANKED, queries=range(20), gallery=range(10, 40))
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize(
    "roles", [{}, {"queries": range(70), "gallery": range(40, 110)}], ids=["all", "roles"]
)
def test_embeddings_are_read_in_pieces_and_never_whole(
    roles: dict[str, Any], similarity: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pitfall 7."""
    z, y = sample(count=110, classes=25, dim=8)
    np.save(tmp_path / "z.npy", z.numpy())
    expected = in_bytes(evaluate(z, y, ["map_at_r", "mrr"], similarity=similarity, **roles))
    hold_little(monkeypatch, 64)
    read, sizes = Vectors.read, []

    def spy(
        self: Vectors, which: slice | Tensor, dtype: torch.dtype | None = torch.float32
    ) -> Tensor:
        rows = read(self, which, dtype)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(Vectors, "read", spy)
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert (
        in_bytes(evaluate(mapped, y, ["map_at_r", "mrr"], similarity=similarity, **roles))
        == expected
    )
    assert max(sizes) <= 64


@for_each(
    "kind",
    [
        torch.Tensor.half,
        lambda z: z.float().T.contiguous().T,
        lambda z: z.repeat_interleave(2, 1)[:, ::2],
        lambda z: z.flip(0).numpy()[::-1],
        lambda z: np.asfortranarray(z.numpy()),
        lambda z: z.numpy().astype(np.float16),
        lambda z: z.numpy().astype(">f8"),
        lambda z: z.numpy().astype(np.longdouble),
        lambda z: z.numpy().astype(np.int16),
        lambda z: pd.DataFrame(z.numpy()),
        lambda z: z.tolist(),
        lambda z: list(z),
        lambda z: [tuple(row) for row in z.tolist()],
    ],
    ids=[
        *(
            "half tensor",
            "transposed",
            "strided",
            "backwards",
            "Fortran",
            "half",
            "big-endian",
            "long double",
            "int16",
        ),
        *("data frame", "lists", "list of tensors", "tuples"),
    ],
)
def test_embeddings_of_any_kind_and_layout_score_the_same(kind: Callable[[Tensor], Any]) -> None:
    z, y = sample()
    coarse = (8 * z).round()
    assert in_bytes(evaluate(kind(coarse), y, RANKED)) == in_bytes(evaluate(coarse, y, RANKED))


def test_inputs_are_left_as_they_were() -> None:
    z, y = (part.numpy() for part in sample())
    queries, gallery = np.arange(40) % 2 == 0, np.arange(39, 5, -1)
    ids = [f"n{row}" for row in range(40)]
    before = [part.tobytes() for part in (z, y, queries, gallery)]
    tensor = torch.from_numpy(z.copy())
    for similarity in ("cosine", "dot", "euclidean"):
        evaluate(
            z,
            y,
            [*RANKED, "nmi", "pi_ratio"],
            queries=queries,
            gallery=gallery,
            ids=ids,
            similarity=similarity,
        )
        evaluate(tensor, y, [*RANKED, "nmi", "pi_ratio"], queries=queries, similarity=similarity)
    assert [part.tobytes() for part in (z, y, queries, gallery)] == before
    assert tensor.numpy().tobytes() == before[0]
    assert ids == [f"n{row}" for row in range(40)]


def test_inputs_that_must_not_be_written_to_are_read() -> None:
    z, y = (part.numpy() for part in sample())
    expected = in_bytes(evaluate(z, y, RANKED))
    z.flags.writeable = y.flags.writeable = False
    assert in_bytes(evaluate(z, y, RANKED)) == expected


def test_gradients_neither_hinder_nor_are_hindered() -> None:
    z, y = sample()
    expected = in_bytes(evaluate(z, y, RANKED))
    on_its_way = (z.clone().requires_grad_() * 2) / 2
    assert in_bytes(evaluate(on_its_way, y, RANKED)) == expected
    assert (
        evaluate(on_its_way, y, ["precision_at_1"], gallery=(on_its_way, y))["precision_at_1"] == 1
    )
    assert on_its_way.requires_grad
    with torch.no_grad():
        assert in_bytes(evaluate(z, y, RANKED)) == expected
    with torch.inference_mode():
        assert in_bytes(evaluate(z * 1, y, RANKED)) == expected
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("names", [RANKED, WHOLE], ids=["ranked", "whole"])
def test_the_precision_that_training_runs_in_does_not_matter(names: tuple[str, ...]) -> None:
    """`evaluate` is often called where a model has just been trained: under autocast, with fast
    products allowed.
    """
    z, y = sample(count=120, dim=24)
    expected = dict(evaluate(z, y, names))
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu"):
            assert dict(evaluate(z, y, names)) == pytest.approx(expected, abs=1e-9, nan_ok=True)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(allowed)


@pytest.mark.parametrize("names", [RANKED, WHOLE], ids=["ranked", "whole"])
def test_the_default_type_of_tensors_does_not_matter(names: tuple[str, ...]) -> None:
    z, y = sample(count=120)
    expected = dict(evaluate(z, y, names))
    torch.set_default_dtype(torch.float64)
    try:
        assert dict(evaluate(z, y, names)) == pytest.approx(expected, abs=1e-9, nan_ok=True)
    finally:
        torch.set_default_dtype(torch.float32)


def test_randomness_of_the_caller_is_left_alone() -> None:
    z, y = sample()
    torch.manual_seed(0)
    np.random.seed(0)
    states = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()
    scores = evaluate(z, y, ["map_at_r", "mrr", "nmi", "spectral_decay", "roc_auc"])
    scores.interval("mrr")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == states[1:]


def test_a_second_evaluation_gives_the_same_bytes() -> None:
    z, y = sample(count=60)
    names = ("map_at_r", "recall_at_8", "mrr", "nmi", "pi_ratio", "spectral_decay", "roc_auc")
    first, second = evaluate(z, y, names), evaluate(z, y, names)
    assert np.array(list(first.values())).tobytes() == np.array(list(second.values())).tobytes()
    assert repr(first) == repr(second)


def test_progress_is_told_stage_by_stage() -> None:
    z, y = sample(count=120)
    told: list[tuple[str, int, int]] = []
    evaluate(z, y, ["map_at_r", "nmi", "roc_auc"], progress=lambda *step: told.append(step))
    assert {stage for stage, _, _ in told} == {"neighbours", "k-means", "pairs"}
    assert all(1 <= done <= total for _, done, total in told)
    for stage in ("neighbours", "pairs"):
        _, done, total = [step for step in told if step[0] == stage][-1]
        assert done == total


def test_ids_follow_the_queries() -> None:
    z, y = sample()
    names = [f"{row}.jpg" for row in range(40)]
    assert evaluate(z, y, ids=names).ids == names
    for kind in (list, tuple, np.array, pd.Series, pd.Index):
        assert evaluate(z, y, queries=[5, 3], ids=kind(names)).ids == ["5.jpg", "3.jpg"]


def test_ids_follow_the_queries_by_place_and_not_by_an_index_of_their_own() -> None:
    z, y = sample()
    names = pd.Series([f"{row}.jpg" for row in range(40)], index=range(39, -1, -1))
    assert evaluate(z, y, queries=[5, 3], ids=names).ids == ["5.jpg", "3.jpg"]


def test_ids_in_a_tensor_are_numbers() -> None:
    z, y = sample()
    assert evaluate(z, y, queries=[5, 3], ids=torch.arange(100, 140)).ids == [105, 103]


# --- What it refuses ---

Z, Y = np.eye(6), [0, 0, 1, 1, 2, 2]


@for_each("bad", [math.nan, math.inf, -math.inf])
@for_each(
    "names",
    [("map_at_r",), ("mrr",), ("nmi",), ("pi_intra",), ("roc_auc",)],
    ids=lambda names: names[0],
)
def test_the_first_row_that_is_not_finite_is_named_and_all_are_counted(
    bad: float, names: tuple[str, ...]
) -> None:
    z, y = sample()
    z[7, 2] = z[11, 0] = bad
    with pytest.raises(ValueError, match=r"row 7 and 1 other.*NaN or infinite; remove"):
        evaluate(z, y, names)


def test_a_row_that_is_not_finite_is_named_by_its_place_in_the_array() -> None:
    """Not by its place among the queries, nor in the group of them that was looked up."""
    z, y = sample()
    z[21] = math.nan
    with pytest.raises(ValueError, match=r"\b21\b.*NaN or infinite"):
        evaluate(z, y, queries=range(20, 40), gallery=range(20))
    with pytest.raises(ValueError, match=r"\b21\b.*NaN or infinite"):
        evaluate(z, y, queries=range(20), gallery=range(20, 40))


def test_a_row_that_is_not_finite_is_named_by_its_place_in_the_array_whatever_the_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z, _ = sample()
    z[30] = math.nan
    monkeypatch.setattr(ranking, "LIST_ENTRIES", 1)
    with pytest.raises(ValueError, match=r"\b30\b.*NaN or infinite"):
        evaluate(z, [0] * 30 + [1] * 10)


def test_rows_that_do_not_take_part_may_be_anything() -> None:
    z, y = sample()
    z[30:] = math.nan
    assert np.isfinite(
        list(
            evaluate(z, y, [*RANKED, "pi_intra"], queries=range(10), gallery=range(10, 30)).values()
        )
    ).all()


def test_a_row_of_another_gallery_that_is_not_finite_is_named() -> None:
    z, y = sample()
    other = z.clone()
    other[9, 1] = math.nan
    with pytest.raises(ValueError, match=r"row 9 of the gallery is NaN or infinite; remove"):
        evaluate(z, y, gallery=(other, y))


def test_mismatched_lengths_raise_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="6 embeddings but 5 labels; each embedding needs one"):
        evaluate(Z, Y[:5])
    with pytest.raises(
        ValueError, match="6 embeddings of the gallery but 4 labels; each embedding needs one"
    ):
        evaluate(Z, Y, gallery=(Z, Y[:4]))
    with pytest.raises(ValueError, match="6 embeddings but 2 ids; each embedding needs one"):
        evaluate(Z, Y, ids=["a", "b"])


@pytest.mark.parametrize("shape", [(6,), (6, 2, 2), (), (6, 0)])
def test_embeddings_of_another_shape_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"shape \(.*{shape[0] if shape else ''}"):
        evaluate(np.ones(shape), Y)


@pytest.mark.parametrize(
    "z", [np.ones((6, 2), dtype=bool), np.ones((6, 2), dtype=complex), np.full((6, 2), "a")]
)
def test_embeddings_that_are_not_real_numbers_raise(z: Any) -> None:
    with pytest.raises(ValueError, match=f"real numbers, got {z.dtype}"):
        evaluate(z, Y)


def test_queries_and_a_gallery_of_different_dimensions_raise_with_both() -> None:
    with pytest.raises(ValueError, match="6 dimensions, but references 5"):
        evaluate(Z, Y, gallery=(np.eye(5), [0] * 5))


@for_each("role", ["queries", "gallery"])
@for_each(
    "rows",
    [[False] * 6, np.zeros(6, dtype=bool), torch.tensor([], dtype=torch.long), [], range(0)],
    ids=["list", "mask", "tensor", "empty list", "empty range"],
)
def test_no_row_to_look_up_or_to_find_raises(role: str, rows: Any) -> None:
    with pytest.raises(ValueError, match=f"no row in {role}: there is nothing to evaluate"):
        evaluate(Z, Y, **{role: rows})


@pytest.mark.parametrize("role", ["queries", "gallery"])
def test_a_mask_of_another_length_raises_with_both(role: str) -> None:
    with pytest.raises(ValueError, match=rf"6 embeddings but a mask of 5 entries for {role}"):
        evaluate(Z, Y, **{role: [True] * 5})


@pytest.mark.parametrize("role", ["queries", "gallery"])
@pytest.mark.parametrize(
    ("rows", "named"), [([0, 6], "6"), ([-1, 2], "-1"), (torch.tensor([2**40]), str(2**40))]
)
def test_rows_that_are_not_there_raise(role: str, rows: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"{role} hold row {named}; there are rows 0 to 5"):
        evaluate(Z, Y, **{role: rows})


@pytest.mark.parametrize("role", ["queries", "gallery"])
def test_rows_named_twice_raise_and_are_named(role: str) -> None:
    with pytest.raises(ValueError, match=rf"{role} name (a row|row 4) twice; name each once"):
        evaluate(Z, Y, **{role: [4, 1, 4]})


@for_each("role", ["queries", "gallery"])
@for_each(
    "rows",
    [
        np.array([0.0, 1.0]),
        np.array([[0, 1]]),
        3,
        np.ones((6, 2), dtype=bool),
        np.ones((6, 1), dtype=bool),
        ["a", "b"],
    ],
    ids=[
        "floats",
        "two dimensions",
        "a number",
        "mask of two columns",
        "mask of one column",
        "names",
    ],
)
def test_rows_that_are_neither_numbers_nor_a_mask_raise(role: str, rows: Any) -> None:
    with pytest.raises(ValueError, match=f"{role} are row numbers or a mask"):
        evaluate(Z, Y, **{role: rows})


@pytest.mark.parametrize(
    "gallery",
    [(Z,), (Z, Y, Y), (0, 1, 2), [Z, Y]],
    ids=["no labels", "a third part", "rows in a tuple", "a list of two"],
)
def test_a_gallery_of_its_own_is_a_pair(gallery: Any) -> None:
    with pytest.raises(ValueError, match=r"\(z, y\)"):
        evaluate(Z, Y, gallery=gallery)


@pytest.mark.parametrize(
    ("name", "roles", "most"),
    [
        ("recall_at_6", {}, 5),
        ("map_at_6", {}, 5),
        ("map_at_k", {}, 5),
        ("recall_at_4", {"queries": [0], "gallery": [1, 2, 3]}, 3),
        ("recall_at_3", {"queries": [1], "gallery": [1, 2, 3]}, 2),
        ("recall_at_7", {"gallery": (Z, Y)}, 6),
        ("recall_at_99999999999999999999999", {}, 5),
    ],
)
def test_a_k_larger_than_the_gallery_raises_with_both(
    name: str, roles: dict[str, Any], most: int
) -> None:
    with pytest.raises(
        ValueError,
        match=rf"_\d+ looks at \d+ references, but a query has {most} to choose from; ask for a sm",
    ):
        evaluate(Z, Y, [name], **roles)


def test_a_k_of_the_whole_gallery_is_welcome() -> None:
    assert dict(evaluate(Z, Y, ["recall_at_5"])) == {"recall_at_5": 1}
    assert dict(evaluate(Z, Y, ["recall_at_6"], gallery=(Z, Y))) == {"recall_at_6": 1}
    assert dict(evaluate(Z, Y, ["recall_at_3"], queries=[0], gallery=[1, 2, 3])) == {
        "recall_at_3": 1
    }


def test_labels_that_never_repeat_raise_with_their_number() -> None:
    for names in (("precision_at_1",), ("mrr",), ("map_at_r", "nmi")):
        with pytest.raises(
            ValueError,
            match=(
                "all 6 queries have no sample of their class to find: no two samples share a label"
            ),
        ):
            evaluate(Z, range(6), names)
    with pytest.raises(ValueError, match="all 2 queries have no sample of their class"):
        evaluate(Z, Y, queries=[0, 1], gallery=[2, 3])
    with pytest.raises(ValueError, match=r"all 6 queries .* none that counts"):
        evaluate(Z, Y, counts=lambda query, reference: (query < 0) & (reference < 0))


@pytest.mark.parametrize(
    "name", ["precision_at_1", "recall_at_1", "r_precision", "map_at_r", "map_at_1", "mrr"]
)
def test_one_sample_has_nothing_to_find(name: str) -> None:
    """And no smaller k would help."""
    with pytest.raises(ValueError, match="there is one sample, and nothing to look it up in"):
        evaluate(np.eye(1), [0], [name])


def test_no_sample_at_all_raises() -> None:
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate(np.zeros((0, 3)), [])


@pytest.mark.parametrize(
    "names",
    [("map_at_r",), ("mrr",), ("nmi",), ("pi_intra",), ("roc_auc",)],
    ids=lambda names: names[0],
)
def test_an_unknown_similarity_suggests_the_nearest(names: tuple[str, ...]) -> None:
    """Whatever is asked for: nothing is scored under a name that nobody knows."""
    with pytest.raises((UnknownName, ValueError), match="cosin"):
        evaluate(Z, Y, names, similarity="cosin")
    with pytest.raises(UnknownName, match="no similarity is called 'cosin'; did you mean 'cosine'"):
        evaluate(Z, Y, ["map_at_r"], similarity="cosin")


@pytest.mark.parametrize(
    "name", [name for name in WHOLE if metrics[name].source in ("clusters", "vectors")]
)
def test_a_metric_of_one_set_of_vectors_refuses_a_gallery_of_its_own(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"{name} is a metric of one set of vectors; give queries and gallery as rows of one",
    ):
        evaluate(Z, Y, ["map_at_r", name], gallery=(Z, Y))


@for_each("name", WHOLE)
@pytest.mark.parametrize("z", [Z, np.packbits(Z > 0, axis=1)], ids=["numbers", "packed"])
def test_a_metric_of_the_whole_embedding_refuses_bits(name: str, z: np.ndarray) -> None:
    told = rf"{name}.* is not a metric of bits, which hamming compares; leave it out, or leave out"
    with pytest.raises(ValueError, match=told):
        evaluate(z, Y, [name], similarity="hamming")


@pytest.mark.parametrize("name", [name for name in WHOLE if metrics[name].source == "pairs"])
def test_a_metric_of_all_pairs_refuses_another_similarity_and_what_counts(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"{name}.* compares all pairs by cosine; leave out counts= and similarity=",
    ):
        evaluate(Z, Y, [name], similarity="dot")
    with pytest.raises(
        ValueError,
        match=rf"{name}.* compares all pairs by cosine; leave out counts= and similarity=",
    ):
        evaluate(Z, Y, [name], counts=lambda query, reference: query != reference)


def test_packed_bits_are_searched_by_the_bits_that_differ() -> None:
    draw = np.random.default_rng(0)
    bits, y = draw.integers(0, 2, size=(50, 24)), draw.integers(6, size=50)
    rows = (2.0 * bits - 1).tolist()
    found = evaluate(np.packbits(bits, axis=1), y, RANKED, similarity="hamming")
    assert_scored_as(found, slow_lists(rows, y.tolist(), range(50), range(50), always))
    assert found.similarity == "hamming"


def test_errors_come_before_the_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo, or a metric that cannot be computed, in the last place of a long list."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the search was begun")

    monkeypatch.setattr(ranking, "nearest", never)
    for names, roles in [
        (["map_at_r", "mapp"], {}),
        (["map_at_r", "recall_at_6"], {}),
        (["map_at_r", "nmi"], {"gallery": (Z, Y)}),
        (["map_at_r", "roc_auc"], {"similarity": "dot"}),
        (["map_at_r", "tar_at_far_2"], {}),
        (["map_at_r"], {"ids": [1]}),
    ]:
        with pytest.raises((ValueError, UnknownName)):
            evaluate(Z, Y, names, **roles)


def test_what_counts_may_be_told_by_numpy_arrays_or_is_refused_in_words() -> None:
    camera = np.array([0, 1, 0, 1, 0, 1])
    try:
        scores = evaluate(
            Z, Y, ["mrr"], counts=lambda query, reference: camera[query] != camera[reference]
        )
    except ValueError as error:
        assert "counts" in str(error)  # noqa: PT017
    else:
        assert scores.queries == 6
