"""Clusters and their agreement, against loops written out, scikit-learn, and laws that hold for any
labels.
"""

import importlib
import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from assay.clusters import kmeans
from assay.metrics.clustering import ami, nmi, nmi_geometric, pairwise_f1

module = importlib.import_module(
    "assay.clusters"
)  # the package's attribute of that name is the function


# Agreement, one term at a time, no arrays.


def entropy(labels):
    return -sum(n / len(labels) * math.log(n / len(labels)) for n in Counter(labels).values())


def information(a, b):
    total, in_a, in_b = len(a), Counter(a), Counter(b)
    return sum(
        n / total * math.log(n * total / (in_a[i] * in_b[j]))
        for (i, j), n in Counter(zip(a, b, strict=True)).items()
    )


def expected_information(a, b):
    """The mean over the hypergeometric distribution of each cell, in whole numbers up to the last
    division.
    """
    total, expected = len(a), 0.0
    for x in Counter(a).values():
        for y in Counter(b).values():
            for n in range(max(1, x + y - total), min(x, y) + 1):
                chance = math.comb(y, n) * math.comb(total - y, x - n) / math.comb(total, x)
                expected += chance * n / total * math.log(total * n / (x * y))
    return expected


def slow_nmi(a, b):
    mean = (entropy(a) + entropy(b)) / 2
    return information(a, b) / mean if mean else 1.0


def slow_nmi_geometric(a, b):
    mean = math.sqrt(entropy(a) * entropy(b))
    return information(a, b) / mean if mean else float(entropy(a) == entropy(b))


def slow_ami(a, b):
    expected = expected_information(a, b)
    above = (entropy(a) + entropy(b)) / 2 - expected
    return (information(a, b) - expected) / above if above > 1e-12 else 1.0


def slow_pairwise_f1(a, b):
    pairs = list(combinations(range(len(a)), 2))
    same_a, same_b = ({(i, j) for i, j in pairs if labels[i] == labels[j]} for labels in (a, b))
    if not same_a and not same_b:
        return 1.0
    if not same_a & same_b:
        return 0.0
    precision, recall = len(same_a & same_b) / len(same_b), len(same_a & same_b) / len(same_a)
    return 2 * precision * recall / (precision + recall)


REFERENCE = {
    nmi: slow_nmi,
    nmi_geometric: slow_nmi_geometric,
    ami: slow_ami,
    pairwise_f1: slow_pairwise_f1,
}

every_score = pytest.mark.parametrize("score", list(REFERENCE), ids=lambda score: score.__name__)

labelings = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        *[st.lists(st.integers(0, 9), min_size=n, max_size=n)] * 2
    )  # few points, often few or single members
)


@every_score
@given(labelings)
def test_agreement_matches_its_equation(score, pair):
    assert score(*pair) == pytest.approx(REFERENCE[score](*pair), abs=1e-9)


@every_score
@given(labelings)
def test_agreement_is_symmetric(score, pair):
    a, b = pair
    assert score(a, b) == pytest.approx(score(b, a), abs=1e-9)


@every_score
@given(labelings, st.permutations(range(10)))
def test_names_of_the_labels_do_not_matter(score, pair, names):
    a, b = pair
    renamed = [f"class {names[label]}" for label in a]
    assert score(renamed, np.array(b) - 5) == pytest.approx(score(a, b), abs=1e-9)


@every_score
@given(labelings, st.randoms())
def test_order_of_the_points_does_not_matter(score, pair, random):
    points = list(zip(*pair, strict=True))
    random.shuffle(points)
    assert score(*zip(*points, strict=True)) == pytest.approx(score(*pair), abs=1e-9)


@every_score
@given(labelings)
def test_a_labeling_agrees_with_itself_entirely(score, pair):
    assert score(pair[0], pair[0]) == 1.0


def random_labels(seed, points, clusters):
    return np.random.default_rng(seed).integers(0, clusters, points)


SHAPES = {
    "few": (500, 5, 7),
    "many": (3000, 700, 650),
    "more clusters than classes": (2000, 4, 900),
    "one cluster": (100, 6, 1),
    "one class": (100, 1, 6),
    "one point": (1, 1, 1),
}


@pytest.mark.parametrize(("points", "classes", "clusters"), SHAPES.values(), ids=SHAPES)
def test_agreement_matches_scikit_learn(points, classes, clusters):
    a, b = random_labels(0, points, classes), random_labels(1, points, clusters)
    mixed = np.where(random_labels(2, points, 2) == 0, a, b)
    for other in (b, mixed, a, np.arange(points), np.full(points, 3)):
        assert nmi(a, other) == pytest.approx(normalized_mutual_info_score(a, other), abs=1e-9)
        geometric = normalized_mutual_info_score(a, other, average_method="geometric")
        assert nmi_geometric(a, other) == pytest.approx(geometric, abs=1e-9)
        assert ami(a, other) == pytest.approx(adjusted_mutual_info_score(a, other), abs=1e-9)


def test_f1_matches_the_pairs_that_scikit_learn_counts():
    a, b = random_labels(0, 3000, 40), random_labels(1, 3000, 700)
    (_, only_b), (only_a, both) = pair_confusion_matrix(a, b)
    assert pairwise_f1(a, b) == pytest.approx(2 * both / (2 * both + only_a + only_b), abs=1e-12)


def test_clusters_of_very_different_sizes_match_scikit_learn():
    a = np.repeat(np.arange(60), np.arange(1, 61))
    b = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [1700, 100, 29, 1]))
    assert ami(a, b) == pytest.approx(adjusted_mutual_info_score(a, b), abs=1e-9)


@every_score
def test_degenerate_labelings_have_defined_scores(score):
    alone, together = list(range(6)), [0] * 6
    assert score(together, together) == 1.0
    assert score(alone, alone) == 1.0
    assert score([5], ["a"]) == 1.0
    assert score(alone, together) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("score", [nmi, nmi_geometric, ami], ids=lambda score: score.__name__)
def test_one_cluster_says_nothing_about_several_classes(score):
    assert score([0, 0, 1, 2, 2], [7] * 5) == 0.0


def test_nmi_of_random_labels_rises_with_the_clusters_while_ami_stays_near_zero():
    y = random_labels(0, 4000, 50)
    counts = (2, 20, 200, 2000)
    scores = [nmi(y, random_labels(1, 4000, count)) for count in counts]
    assert scores == sorted(scores) and scores[0] < 0.01 and scores[-1] > 0.5
    assert all(abs(ami(y, random_labels(1, 4000, count))) < 0.02 for count in counts)


@every_score
def test_large_and_negative_ids_do_not_merge(score):
    near = [2**24, 2**24 + 1, 2**62, 2**62 + 1, -1, -(2**24) - 1, -(2**24)]
    y = torch.tensor(near).repeat_interleave(2)
    assert score(y, np.arange(7).repeat(2)) == 1.0
    assert score(y.tolist(), y.numpy()) == 1.0
    assert score(y, y // 2) < 1.0


@every_score
def test_labels_of_any_kind_count_alike(score):
    a, b = ["x", "x", "y", "z", "y"], [1, 1, 2, 2, 3]
    kinds = [
        b,
        tuple(b),
        np.array(b),
        np.array(b, dtype=np.uint8),
        torch.tensor(b),
        [str(label) for label in b],
        np.array(list("11223")),
    ]
    assert len({score(a, kind) for kind in kinds}) == 1
    assert score(np.array(a), b) == score(a, b)


@every_score
def test_labelings_of_different_points_are_refused(score):
    with pytest.raises(ValueError, match="3 labels against 2"):
        score([0, 1, 2], [0, 1])
    with pytest.raises(ValueError, match="0 labels against 0"):
        score([], [])
    with pytest.raises(ValueError, match=r"\(2, 1\)"):
        score(np.zeros((2, 1), dtype=int), [0, 1])


@every_score
def test_as_many_classes_as_stanford_products_need_no_dense_table(score):
    assert 0 <= score(random_labels(0, 60_502, 11_316), random_labels(1, 60_502, 11_316)) + 0.01 < 1


# k-means.


def blobs(seed, points=300, clusters=6, dim=5, spread=1.0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(clusters, dim, generator=draw, dtype=dtype)
    y = torch.randint(clusters, (points,), generator=draw)
    return centres[y] + spread * torch.randn(points, dim, generator=draw, dtype=dtype), y


def slow_inertia(z, labels):
    total = 0.0
    for cluster in set(labels.tolist()):
        members = [
            row for row, label in zip(z.tolist(), labels.tolist(), strict=True) if label == cluster
        ]
        mean = [sum(column) / len(members) for column in zip(*members, strict=True)]
        total += sum((x - m) ** 2 for row in members for x, m in zip(row, mean, strict=True))
    return total


def slow_lloyd(z, centres, iterations):
    """Assign, move, assign, ... by distances written out; no cluster may run empty."""
    for _ in range(iterations + 1):
        labels = torch.stack([((row - centres) ** 2).sum(1).argmin() for row in z])
        centres = torch.stack([z[labels == cluster].mean(0) for cluster in range(len(centres))])
    return labels


def lloyd(z, centres, iterations=300):
    return module._lloyd(z, centres, iterations, lambda done: None)


def test_well_separated_clusters_are_found_exactly():
    z, y = blobs(0, spread=0.01)
    found = kmeans(z, 6, starts=10)
    assert nmi(y, found.labels) == 1.0
    assert found.converged and found.iterations < 100
    assert found.labels.dtype == torch.long and found.labels.shape == (300,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("iterations", [1, 2, 100])
def test_inertia_is_that_of_a_loop(dtype, iterations):
    z, _ = blobs(1, dtype=dtype)
    found = kmeans(z, 9, starts=2, iterations=iterations)
    assert found.inertia == pytest.approx(
        slow_inertia(z, found.labels), rel=1e-6 if dtype == torch.float32 else 1e-12
    )


def test_inertia_never_increases_over_the_iterations():
    z, _ = blobs(2, points=500, spread=3.0)
    runs = [kmeans(z, 40, starts=1, iterations=iterations) for iterations in range(1, 15)]
    inertias = [run.inertia for run in runs]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[0] > inertias[-1]
    assert [run.iterations for run in runs] == [min(n, runs[-1].iterations) for n in range(1, 15)]


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("k", [12, 60])
def test_every_iteration_is_lloyds(iterations, k):
    z, _ = blobs(3, points=200, spread=2.0)
    rows = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:k]
    assert torch.equal(lloyd(z, z[rows], iterations).labels, slow_lloyd(z, z[rows], iterations))


def test_a_centre_that_stays_wins_a_point_whose_own_has_moved_away():
    z = torch.tensor([[0.0], [4.9], [-10.0], [10.0]])
    assert lloyd(z, z[[0, 3]], iterations=1).labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [2, 10, 60])
def test_matches_scikit_learn_from_the_same_centres(seed, k):
    z, _ = blobs(seed, points=600, dim=8, spread=3.0)
    rows = torch.randperm(600, generator=torch.Generator().manual_seed(seed))[:k]
    theirs = KMeans(k, init=z[rows].numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(
        z.numpy()
    )
    ours = lloyd(z, z[rows])
    assert ours.converged
    assert ours.labels.tolist() == theirs.labels_.tolist()
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-9)


def test_no_point_is_nearer_to_another_centre_once_converged():
    z, _ = blobs(4, points=2000, clusters=100, dim=16, spread=2.0, dtype=torch.float32)
    found = kmeans(z, 300, starts=1)
    centres = torch.stack([z[found.labels == cluster].double().mean(0) for cluster in range(300)])
    apart = torch.cdist(z.double(), centres)
    assert found.converged
    assert (apart.gather(1, found.labels[:, None]).squeeze(1) <= apart.amin(1) * (1 + 1e-5)).all()


def test_the_seed_decides_the_result():
    z, _ = blobs(5, spread=3.0)
    first, again, other = (kmeans(z, 25, starts=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.labels, again.labels) and first.inertia == again.inertia
    assert not torch.equal(first.labels, other.labels)


def test_more_starts_are_never_worse():
    z, _ = blobs(6, spread=2.0)
    inertias = [kmeans(z, 15, starts=starts).inertia for starts in (1, 2, 5)]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[0] > inertias[-1]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_size_of_the_tiles_does_not_matter(monkeypatch, size):
    z, _ = blobs(7, points=200, spread=2.0)
    whole = kmeans(z, 30, starts=1)
    monkeypatch.setattr(module, "POINTS_TILE", size)
    monkeypatch.setattr(module, "POINTS_BLOCK", size)
    tiled = kmeans(z, 30, starts=1)
    assert torch.equal(whole.labels, tiled.labels)
    assert whole.inertia == pytest.approx(tiled.inertia, rel=1e-12)


def test_one_cluster_holds_all_points_about_their_mean():
    z, _ = blobs(8)
    found = kmeans(z, 1)
    assert found.labels.tolist() == [0] * 300
    assert found.inertia == pytest.approx(float(((z - z.mean(0)) ** 2).sum()))


def test_as_many_clusters_as_points_leave_each_alone():
    z, _ = blobs(9, points=80)
    found = kmeans(z, 80)
    assert sorted(found.labels.tolist()) == list(range(80))
    assert found.inertia == 0 and found.converged and found.iterations == 1


def test_constant_points_share_a_cluster():
    found = kmeans(torch.full((20, 3), 0.1), 4)
    assert found.labels.unique().numel() == 1
    assert found.inertia == 0 and found.converged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_duplicates_share_a_cluster_and_take_no_other(dtype):
    distinct = torch.randn(30, 7, generator=torch.Generator().manual_seed(0), dtype=dtype)
    y = torch.arange(30).repeat_interleave(torch.arange(1, 31))
    for k in (30, 200):
        found = kmeans(distinct[y], k, starts=1)
        assert nmi(y, found.labels) == 1.0
        assert found.inertia < 1e-24 and found.converged


@given(st.integers(0, 2**31), st.integers(1, 25))
def test_no_cluster_is_empty_when_enough_points_are_distinct(seed, k):
    draw = torch.Generator().manual_seed(seed)
    z = torch.randint(0, 4, (60, 3), generator=draw).float()
    distinct = len(z.unique(dim=0))
    found = kmeans(z, k, starts=1, seed=seed)
    assert found.labels.bincount(minlength=k).gt(0).sum() == min(k, distinct)
    assert found.converged


def test_empty_clusters_get_the_points_farthest_from_their_centres():
    z = torch.tensor([[0.0], [1.0], [2.0], [50.0], [90.0]])
    assert module._Lloyd(z, torch.tensor([[1.0], [1000.0], [2000.0]])).labels_N.tolist() == [
        0,
        0,
        0,
        2,
        1,
    ]


def test_a_cluster_does_not_lose_its_only_point_to_an_empty_one():
    z = torch.tensor([[0.0], [1.0], [100.0]])
    assert module._Lloyd(z, torch.tensor([[0.4], [90.0], [1000.0]])).labels_N.tolist() == [0, 2, 1]


def test_a_cluster_that_runs_empty_on_the_way_is_filled():
    z = torch.tensor([[-1.0], [1.0], [1.8], [1.9], [-1.8], [-1.9]])
    centres = torch.tensor([[0.0], [2.5], [-2.5]])
    assert module._Lloyd(z, centres).labels_N.tolist() == [0, 0, 1, 1, 2, 2]
    assert lloyd(z, centres).labels.tolist() == [0, 1, 1, 1, 2, 2]


def test_points_far_from_the_origin_keep_their_digits():
    z, y = blobs(10, spread=0.01, dtype=torch.float32)
    assert nmi(y, kmeans(z + 30_000, 6, starts=10).labels) == 1.0


def test_half_precision_and_gradients_are_accepted():
    z, y = blobs(11, spread=0.01)
    assert nmi(y, kmeans(z.half().requires_grad_(), 6, starts=10).labels) == 1.0


def test_progress_is_reported_after_each_iteration_and_ends_at_the_total():
    z, _ = blobs(12, spread=3.0)
    reported = []
    kmeans(z, 20, starts=3, iterations=50, progress=lambda _, *step: reported.append(step))
    done = [step for step, _ in reported]
    assert done[:3] == [1, 2, 3]
    assert done == sorted(set(done))
    assert {50, 100, 150} <= set(done) and len(done) < 150
    assert {total for _, total in reported} == {150} and reported[-1] == (150, 150)


def test_impossible_requests_are_refused_with_their_numbers():
    z = torch.randn(5, 2)
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"{k} clusters of 5 points"):
            kmeans(z, k)
    with pytest.raises(ValueError, match="0 starts of 100 iterations"):
        kmeans(z, 2, starts=0)
    with pytest.raises(ValueError, match="5 starts of 0 iterations"):
        kmeans(z, 2, iterations=0)
    z[[1, 3], 0] = torch.tensor([torch.nan, torch.inf])
    with pytest.raises(ValueError, match="2 of 5 points"):
        kmeans(z, 2)
