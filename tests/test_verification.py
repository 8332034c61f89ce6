"""ROC AUC, EER and TAR at FAR over all pairs: against loops and scikit-learn, for any tiles."""

import importlib
import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from assay.metrics import evaluate
from assay.metrics.verification import STEPS, Verification, verification
from assay.neighbours.vectors import Vectors

few_examples = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**31)
NAN = pytest.approx(math.nan, nan_ok=True)
module = importlib.import_module("assay.metrics.verification")

Pairs = tuple[list[float], list[float]]
"""Similarities of the positive and of the negative pairs."""


# --- The definitions, one pair at a time ---


def naive_cosine(a: list[float], b: list[float]) -> float:
    norms = math.hypot(*a), math.hypot(*b)
    return (
        math.fsum(x / norms[0] * (y / norms[1]) for x, y in zip(a, b, strict=True))
        if all(norms)
        else 0.0
    )


def naive_pairs(
    z: Tensor, y: Tensor, gallery: Tensor | None = None, gallery_y: Tensor | None = None
) -> Pairs:
    own = list(zip(z.tolist(), y.tolist(), strict=True))
    if gallery is None or gallery_y is None:
        pairs = list(itertools.combinations(own, 2))
    else:
        pairs = list(itertools.product(own, zip(gallery.tolist(), gallery_y.tolist(), strict=True)))
    scored = [(naive_cosine(a, b), label == other) for (a, label), (b, other) in pairs]
    return [score for score, same in scored if same], [score for score, same in scored if not same]


def naive_auc(pairs: Pairs, tie: float = 0.5, slack: float = 1e-9) -> float:
    """Share of (positive, negative) in the right order; those within the slack count as `tie`."""
    ranks = [tie if abs(p - n) <= slack else float(p > n) for p in pairs[0] for n in pairs[1]]
    return math.fsum(ranks) / len(ranks)


def naive_points(pairs: Pairs) -> list[tuple[float, float]]:
    """FAR and TAR, from the threshold that accepts nothing down to the one that accepts all."""
    positives, negatives = ([round(score, 9) for score in scores] for scores in pairs)
    thresholds = [math.inf, *sorted({*positives, *negatives}, reverse=True)]
    return [
        (
            sum(n >= t for n in negatives) / len(negatives),
            sum(p >= t for p in positives) / len(positives),
        )
        for t in thresholds
    ]


def naive_eer(pairs: Pairs) -> float:
    for (far, tar), (next_far, next_tar) in itertools.pairwise(naive_points(pairs)):
        before, after = far - (1 - tar), next_far - (1 - next_tar)
        if after >= 0:
            return far + (next_far - far) * -before / (after - before)
    raise AssertionError("the last threshold accepts everything")


def naive_tar(pairs: Pairs, wanted: float) -> float:
    return max(tar for far, tar in naive_points(pairs) if far <= wanted)


def draw_signs(seed: int, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Vectors of four signs: cosines -1, -1/2, 0, 1/2 and 1 only, hence ties everywhere."""
    draw = random.Random(seed)
    z = torch.tensor(
        [[draw.choice([-1.0, 1.0]) for _ in range(4)] for _ in range(count or draw.randint(4, 14))]
    )
    return z, torch.tensor([0, 0, 1, *(draw.randrange(4) for _ in range(len(z) - 3))])


def draw_samples(seed: int, count: int = 200, classes: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=draw)
    return (
        torch.randn(count, 16, generator=draw) + torch.randn(classes, 16, generator=draw)[y] / 2,
        y,
    )


def draw_norms(count: int) -> Tensor:
    draw = random.Random(count)
    return torch.tensor(
        [[10 ** draw.uniform(-200, 200)] for _ in range(count)], dtype=torch.float64
    )


def assert_same(found: Verification, expected: Verification, apart: int = 0) -> None:
    """The same pairs in each bin; or, where products are rounded in another order, at most `apart`
    that moved.
    """
    for one, other in (
        (found.positives_B, expected.positives_B),
        (found.negatives_B, expected.negatives_B),
    ):
        assert one.sum() == other.sum()
        assert (one.cumsum(0) - other.cumsum(0)).abs().max() <= apart


@given(seed=seeds)
@few_examples
def test_every_figure_matches_its_definition_among_ties(seed: int) -> None:
    z, y = draw_signs(seed)
    pairs = naive_pairs(z, y)
    found = verification(z, y)
    assert (found.positives, found.negatives) == (len(pairs[0]), len(pairs[1]))
    if pairs[1]:
        assert found.roc_auc == pytest.approx(naive_auc(pairs), abs=1e-12)
        assert found.eer == pytest.approx(naive_eer(pairs), abs=1e-12)
        for far in (0.2, 0.5, 0.75, 1.0):
            assert found.tar_at_far(far) == (
                pytest.approx(naive_tar(pairs, far), abs=1e-12) if len(pairs[1]) * far >= 1 else NAN
            )


def test_the_metrics_by_name_are_these_figures() -> None:
    z, y = draw_signs(3)
    found, scores = verification(z, y), evaluate(z, y, ["roc_auc", "eer", "tar_at_far_5e-1"])
    assert 0 < found.eer < found.roc_auc < 1
    assert (scores["roc_auc"], scores["eer"]) == (found.roc_auc, found.eer)
    assert scores["tar_at_far_5e-1"] == found.tar_at_far(0.5)


@given(seed=seeds)
@few_examples
def test_queries_are_compared_with_the_gallery_only(seed: int) -> None:
    (z, y), (gallery, gallery_y) = draw_signs(seed), draw_signs(seed + 1, count=9)
    pairs = naive_pairs(z, y, gallery, gallery_y)
    found = verification(z, y, gallery, gallery_y)
    assert (found.positives, found.negatives) == (len(pairs[0]), len(pairs[1]))
    assert found.roc_auc == pytest.approx(naive_auc(pairs), abs=1e-12)
    assert found.eer == pytest.approx(naive_eer(pairs), abs=1e-12)


@given(seed=seeds)
@few_examples
def test_area_is_right_up_to_the_ties_within_the_resolution(seed: int) -> None:
    z, y = draw_samples(seed, count=25)
    pairs = naive_pairs(z, y)
    slack = 1.2 / STEPS
    low, high = naive_auc(pairs, tie=0, slack=slack), naive_auc(pairs, tie=1, slack=slack)
    assert low - 1e-12 <= verification(z, y).roc_auc <= high + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_every_figure_is_that_of_scikit_learn(seed: int) -> None:
    z, y = draw_samples(seed)
    positives, negatives = naive_pairs(z, y)
    truth, scores = [1] * len(positives) + [0] * len(negatives), positives + negatives
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    steps = np.arange(len(fpr))
    crossing = brentq(
        lambda step: np.interp(step, steps, fpr) - 1 + np.interp(step, steps, tpr), 0, len(fpr) - 1
    )
    found = verification(z, y)
    assert found.roc_auc == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)
    assert found.eer == pytest.approx(np.interp(crossing, steps, fpr), abs=1e-3)
    for far in (0.1, 1e-2, 1e-3):
        assert found.tar_at_far(far) == pytest.approx(tpr[fpr <= far].max(), abs=1e-3)


# --- Known values ---


def test_classes_apart_are_told_without_error() -> None:
    found = verification(torch.eye(10).repeat(5, 1), torch.arange(10).repeat(5))
    assert (found.roc_auc, found.eer, found.tar_at_far(1e-2)) == (1, 0, 1)
    assert (found.positives, found.negatives) == (100, 1125)


def test_classes_that_repel_their_own_are_always_mistaken() -> None:
    found = verification(
        [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], torch.tensor([0, 0, 1, 1])
    )
    assert (found.roc_auc, found.eer, found.tar_at_far(0.5)) == (0, 1, 0)


def test_figures_read_off_a_curve_by_hand() -> None:
    """From the top: 2 of 4 positives; a tie of 1 positive and 1 of 5 negatives; the other
    negatives; 1 positive.
    """
    found = Verification(torch.tensor([1, 0, 1, 2]), torch.tensor([0, 4, 1, 0]))
    assert found.roc_auc == pytest.approx((2 * 5 + 1 * 4.5 + 0) / 20)
    assert found.eer == pytest.approx(
        0.2 + 0.8 * 0.05 / 0.8
    )  # FRR stays at 1/4 while FAR rises from 1/5 to 1
    assert found.tar_at_far(0.2) == 0.75
    assert found.tar_at_far(0.99) == 0.75
    assert found.tar_at_far(1) == 1


def test_pairs_closer_than_the_resolution_are_ties_and_those_farther_are_not() -> None:
    near, far = 1e-7, 2e-5
    for gap, expected in ((near, 0.5), (far, 1.0)):
        gallery = torch.tensor(
            [[0.7, math.sqrt(1 - 0.7**2)], [0.7 - gap, math.sqrt(1 - (0.7 - gap) ** 2)]],
            dtype=torch.float64,
        )
        assert (
            verification([[1.0, 0.0]], torch.tensor([0]), gallery, torch.tensor([0, 1])).roc_auc
            == expected
        )


def test_a_false_accept_rate_needs_enough_negatives_to_mean_anything() -> None:
    found = Verification(torch.tensor([0, 1]), torch.tensor([100, 0]))
    assert found.tar_at_far(0.01) == 1
    assert math.isnan(found.tar_at_far(0.0099))


@pytest.mark.parametrize("negatives", [3, 49, 100, 1000, 9973])
def test_one_accepted_negative_is_within_a_rate_of_one_in_all(negatives: int) -> None:
    found = Verification(torch.tensor([1, 0, 1]), torch.tensor([negatives - 1, 1, 0]))
    assert found.tar_at_far(1 / negatives) == 0.5
    assert found.tar_at_far(1 - 1 / (2 * negatives)) == 0.5


@pytest.mark.parametrize("far", [0.0, -0.1, 1.5, math.nan])
def test_a_rate_that_is_none_raises(far: float) -> None:
    with pytest.raises(ValueError, match=r"lies in \(0, 1\]"):
        Verification(torch.tensor([1]), torch.tensor([1])).tar_at_far(far)


# --- Laws ---


def test_self_pairs_are_left_out_but_duplicates_are_not() -> None:
    found = verification(torch.ones(5, 3), torch.tensor([0, 0, 0, 1, 1]))
    assert (found.positives, found.negatives) == (4, 6)
    assert (found.roc_auc, found.eer) == (0.5, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_the_samples_does_not_matter(seed: int) -> None:
    z, y = draw_signs(seed, count=30)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
    assert_same(verification(z[order], y[order]), verification(z, y))
    assert_same(verification(z[order], y[order], z, y), verification(z, y, z[order], y[order]))


def test_norms_do_not_matter_however_huge_or_tiny() -> None:
    z, y = draw_samples(0)
    assert_same(verification(z * draw_norms(len(z)), y), verification(z, y), apart=3)


def test_rotation_does_not_matter() -> None:
    z, y = draw_samples(0)
    turned = z.double() @ torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64)).Q
    found, expected = verification(turned, y), verification(z, y)
    assert_same(found, expected, apart=10)
    assert found.roc_auc == pytest.approx(expected.roc_auc, abs=1e-6)


@pytest.mark.parametrize(
    "rename", [lambda y: 7 - y, lambda y: y * 1000 + 5, lambda y: y + 2**24, lambda y: y - 2**40]
)
def test_names_of_the_classes_do_not_matter(rename) -> None:
    z, y = draw_signs(0, count=30)
    assert_same(verification(z, rename(y)), verification(z, y))


def test_numbers_of_classes_are_not_rounded() -> None:
    found = verification(torch.eye(2), torch.tensor([2**24, 2**24 + 1]))
    assert (found.positives, found.negatives) == (0, 1)


@pytest.mark.parametrize(("tile", "panel"), [(1, 1), (7, 7), (7, 21), (64, 512)])
def test_size_of_the_tiles_does_not_matter(
    tile: int, panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = draw_samples(1, count=60)
    gallery, gallery_y = draw_samples(2, count=45)
    expected, expected_of_gallery = verification(z, y), verification(z, y, gallery, gallery_y)
    monkeypatch.setattr(module, "PAIRS_TILE", tile)
    monkeypatch.setattr(module, "PAIRS_PANEL", panel)
    assert_same(verification(z, y), expected, apart=3)
    assert_same(verification(z, y, gallery, gallery_y), expected_of_gallery, apart=3)


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_number_of_threads_does_not_matter(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw_samples(1, count=61)
    expected = verification(z, y)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert_same(verification(z, y), expected)


def test_counts_move_on_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw_signs(1, count=60)
    monkeypatch.setattr(module, "PAIRS_TILE", 16)
    monkeypatch.setattr(module, "PAIRS_PANEL", 32)
    expected = verification(z, y)
    monkeypatch.setattr(module, "INT32_MAX", 300)
    assert_same(verification(z, y), expected)


def test_a_memory_mapped_file_gives_the_same(tmp_path: Path) -> None:
    z, y = draw_samples(4)
    np.save(tmp_path / "z.npy", z.numpy())
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert_same(verification(mapped, y), verification(z, y))
    assert_same(verification(z, y, Vectors(mapped), y), verification(z, y, z, y))


def test_never_more_than_a_panel_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = Vectors.read

    def watched(
        self: Vectors, which: slice | Tensor, dtype: torch.dtype | None = torch.float32
    ) -> Tensor:
        if isinstance(which, Tensor):
            sizes.append(len(which))
        return read(self, which, dtype)

    monkeypatch.setattr(module, "PAIRS_TILE", 8)
    monkeypatch.setattr(module, "PAIRS_PANEL", 16)
    monkeypatch.setattr(Vectors, "read", watched)
    verification(*draw_samples(0))
    assert max(sizes) == 16


@pytest.mark.parametrize("with_gallery", [False, True])
def test_progress_counts_every_tile_up_to_the_last(
    with_gallery: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAIRS_TILE", 16)
    monkeypatch.setattr(module, "PAIRS_PANEL", 32)
    seen: list[tuple[int, int]] = []
    z, y = draw_samples(0, count=100)
    others = draw_samples(1, count=40) if with_gallery else (None, None)
    verification(z, y, *others, progress=lambda _, done, total: seen.append((done, total)))
    total = 7 * 3 if with_gallery else 7 * 8 // 2
    assert seen == [(done, total) for done in range(1, total + 1)]


# --- Nothing left to tell apart ---


@pytest.mark.parametrize(
    ("y", "positives", "negatives"),
    [([0, 0, 0], 3, 0), ([0, 1, 2], 0, 3), ([5], 0, 0), ([], 0, 0)],
    ids=["one class", "all singletons", "one sample", "no sample"],
)
def test_no_positives_or_no_negatives_have_no_figures(
    y: list[int], positives: int, negatives: int
) -> None:
    found = verification(torch.eye(3)[: len(y)], torch.tensor(y, dtype=torch.int64))
    assert (found.positives, found.negatives) == (positives, negatives)
    assert all(map(math.isnan, (found.roc_auc, found.eer, found.tar_at_far(1))))
    assert (
        repr(found)
        == f"Verification(roc_auc nan, eer nan; {positives} positives, {negatives} negatives)"
    )


def test_zero_vectors_are_neither_like_nor_unlike() -> None:
    z, y = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
    found = verification(z, y)
    assert (found.roc_auc, found.positives, found.negatives) == (
        0.75,
        1,
        2,
    )  # 0 ties with 0 and beats -1


def test_similarities_rounded_beyond_one_stay_in_the_last_bins() -> None:
    z = torch.randn(200, 333, generator=torch.Generator().manual_seed(0))
    found = verification(torch.cat([z, z, -z]), torch.arange(200).repeat(3))
    assert found.positives == 600
    assert int(found.positives_B[-1]) == 200
    assert int(found.positives_B[0]) == 400


# --- Wrong input ---


def test_labels_that_do_not_line_up_raise() -> None:
    with pytest.raises(ValueError, match=r"3 embeddings but labels of shape \(2,\)"):
        verification(torch.eye(3), torch.tensor([0, 1]))


def test_half_a_gallery_raises() -> None:
    with pytest.raises(ValueError, match="give both, or neither"):
        verification(torch.eye(3), torch.arange(3), torch.eye(3))


def test_a_gallery_of_other_dimensions_raises() -> None:
    with pytest.raises(
        ValueError, match="queries of 3 dimensions cannot be compared with a gallery of 2"
    ):
        verification(torch.eye(3), torch.arange(3), torch.eye(2), torch.arange(2))


def test_a_row_that_is_not_a_number_raises() -> None:
    with pytest.raises(ValueError, match="row 1 of the embeddings"):
        verification([[1.0, 0.0], [math.nan, 0.0]], torch.tensor([0, 0]))


def test_a_row_that_is_in_the_gallery_is_not_compared_with_itself() -> None:
    draw = torch.Generator().manual_seed(3)
    z, y = torch.randn(12, 5, generator=draw), torch.arange(12) % 3
    z[4] = 0
    asked = torch.tensor([1, 4, 7, 8])
    found = verification(z[asked], y[asked], z, y, own=asked)
    pairs = [(int(i), j) for i in asked for j in range(12) if j != int(i)]
    assert (found.positives, found.negatives) == (
        sum(bool(y[i] == y[j]) for i, j in pairs),
        sum(bool(y[i] != y[j]) for i, j in pairs),
    )
    u = torch.nn.functional.normalize(z, dim=1)
    expected = roc_auc_score(
        [bool(y[i] == y[j]) for i, j in pairs], [float(u[i] @ u[j]) for i, j in pairs]
    )
    assert found.roc_auc == pytest.approx(expected, abs=1e-6)
