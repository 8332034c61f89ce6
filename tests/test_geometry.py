"""Density and spectral decay: against loops and numpy, under the laws of cosine, and where nothing
is left to measure.
"""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.metrics.geometry import pi_inter, pi_intra, pi_ratio, spectral_decay
from assay.neighbours import vectors as vectors_module
from assay.neighbours.vectors import Vectors
from loops import for_each

few_examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
every_density = for_each("density", [pi_intra, pi_inter, pi_ratio])

Rows = list[list[float]]


# --- The equations, one term at a time ---


def naive_unit(row: list[float]) -> list[float]:
    norm = math.hypot(*row)
    return [value / norm for value in row] if norm > 0 else row


def naive_distance(a: list[float], b: list[float]) -> float:
    return 1 - math.fsum(x * y for x, y in zip(naive_unit(a), naive_unit(b), strict=True))


def naive_mean_distance(rows: Rows) -> float:
    distances = [
        naive_distance(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j
    ]
    return math.fsum(distances) / len(distances)


def by_class(z: Rows, y: list[int]) -> dict[int, Rows]:
    return {
        label: [row for row, other in zip(z, y, strict=True) if other == label]
        for label in sorted(set(y))
    }


def naive_intra(z: Rows, y: list[int]) -> float:
    means = [naive_mean_distance(rows) for rows in by_class(z, y).values() if len(rows) > 1]
    return math.fsum(means) / len(means) if means else math.nan


def naive_inter(z: Rows, y: list[int]) -> float:
    centres = [
        [math.fsum(column) for column in zip(*map(naive_unit, rows), strict=True)]
        for rows in by_class(z, y).values()
    ]
    return naive_mean_distance(centres) if len(centres) > 1 else math.nan


def naive_singular_values(z: Rows) -> list[float]:
    """One-sided Jacobi: turn pairs of columns until all are orthogonal; then their norms are the
    singular values.
    """
    columns = [list(column) for column in zip(*map(naive_unit, z), strict=True)]
    for _ in range(40):
        for i in range(len(columns)):
            for j in range(i):
                a, b = columns[i], columns[j]
                product = math.fsum(x * y for x, y in zip(a, b, strict=True))
                if product != 0:
                    ratio = (math.fsum(y * y for y in b) - math.fsum(x * x for x in a)) / (
                        2 * product
                    )
                    tangent = math.copysign(1, ratio) / (abs(ratio) + math.hypot(1, ratio))
                    cosine = 1 / math.hypot(1, tangent)
                    columns[i] = [cosine * (x - tangent * y) for x, y in zip(a, b, strict=True)]
                    columns[j] = [cosine * (tangent * x + y) for x, y in zip(a, b, strict=True)]
    return sorted((math.hypot(*column) for column in columns), reverse=True)


def naive_divergence(singular_values: list[float], dropped: int) -> float:
    kept = singular_values[dropped:]
    return math.fsum(
        1 / len(kept) * math.log(1 / len(kept) / (value / math.fsum(kept))) for value in kept
    )


def draw_samples(seed: int, dim: int | None = None) -> tuple[Tensor, Tensor]:
    draw = random.Random(seed)
    count, dim, classes = draw.randint(4, 25), dim or draw.randint(2, 5), draw.randint(2, 5)
    z = torch.tensor(
        [[draw.gauss(0.3, 1) for _ in range(dim)] for _ in range(count)], dtype=torch.float64
    )
    return z, torch.tensor([0, 0, 1, 1] + [draw.randrange(classes) for _ in range(count - 4)])


def draw_rotation(dim: int) -> Tensor:
    return torch.linalg.qr(
        torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ).Q


@given(seed=seeds)
@few_examples
def test_densities_match_their_equations(seed: int) -> None:
    z, y = draw_samples(seed)
    intra, inter = naive_intra(z.tolist(), y.tolist()), naive_inter(z.tolist(), y.tolist())
    assert pi_intra(z, y) == pytest.approx(intra, abs=1e-12)
    assert pi_inter(z, y) == pytest.approx(inter, abs=1e-12)
    assert pi_ratio(z, y) == pytest.approx(intra / inter, rel=1e-10)


@given(seed=seeds, dropped=st.integers(0, 2))
@few_examples
def test_spectral_decay_matches_its_equation(seed: int, dropped: int) -> None:
    z, _ = draw_samples(seed, dim=4)
    assert spectral_decay(z, dropped=dropped) == pytest.approx(
        naive_divergence(naive_singular_values(z.tolist()), dropped), abs=1e-9
    )


@pytest.mark.parametrize("dropped", [0, 1, 5])
def test_spectral_decay_is_that_of_the_full_decomposition_of_numpy(dropped: int) -> None:
    z = np.random.default_rng(0).normal(size=(500, 20)) * np.logspace(0, -4, 20)
    s = np.linalg.svd(z / np.linalg.norm(z, axis=1, keepdims=True), compute_uv=False)
    assert spectral_decay(z, dropped=dropped) == pytest.approx(
        naive_divergence(s.tolist(), dropped), rel=1e-10
    )


# --- The smallest singular value ---


def nearly_flat(thickness: float) -> Tensor:
    z = torch.randn(300, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[:, -1] *= thickness
    return z @ draw_rotation(6)


def test_the_smallest_singular_value_counts() -> None:
    """Pitfall 8: a truncated decomposition would give all of these the same value."""
    found = [spectral_decay(nearly_flat(thickness)) for thickness in (1e-3, 1e-4, 1e-5)]
    assert np.diff(found) == pytest.approx(math.log(10) / 6, rel=1e-3)


def test_a_singular_value_that_a_gram_matrix_would_lose_counts() -> None:
    z = nearly_flat(1e-10)
    s = np.linalg.svd(torch.nn.functional.normalize(z, dim=1).numpy(), compute_uv=False)
    assert (
        np.linalg.eigvalsh(z.T @ z)[0] < 1e-14
    )  # its square root would be off by three orders of magnitude
    assert 1e-10 < s[-1] < 1e-8
    assert spectral_decay(z) == pytest.approx(naive_divergence(s.tolist(), 0), rel=1e-6)


def test_a_dead_dimension_is_infinite_decay() -> None:
    z = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[:, 2] = 0
    assert spectral_decay(z) == math.inf
    assert spectral_decay(z @ draw_rotation(6)) == math.inf
    assert spectral_decay(z, dropped=5) == math.inf
    assert spectral_decay(z[:, [0, 1, 3, 4, 5]]) < 1


def test_fewer_samples_than_dimensions_are_infinite_decay() -> None:
    z = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    assert spectral_decay(z) == math.inf
    assert spectral_decay(torch.cat([z, z])) == math.inf
    assert spectral_decay(z.T) < math.inf


def test_dimensions_used_alike_have_no_decay() -> None:
    assert spectral_decay(torch.eye(4).repeat(3, 1)) == pytest.approx(0, abs=1e-14)
    assert spectral_decay([[1.0], [-2.0]]) == 0


def test_a_largest_value_that_sticks_out_is_dropped() -> None:
    z = torch.eye(4).repeat(3, 1) + 5
    assert spectral_decay(z) > 0.1
    assert spectral_decay(z, dropped=1) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dropped", [-1, 3, 4])
def test_dropping_all_singular_values_raises(dropped: int) -> None:
    with pytest.raises(
        ValueError, match=rf"dropped = {dropped} of 3 singular values; it lies in 0..2"
    ):
        spectral_decay(torch.eye(3), dropped=dropped)


# --- Laws ---


@every_density
@given(seed=seeds)
@few_examples
def test_order_of_the_samples_does_not_matter(density, seed: int) -> None:
    z, y = draw_samples(seed)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    assert density(z[order], y[order]) == pytest.approx(density(z, y), rel=1e-10)
    assert spectral_decay(z[order]) == pytest.approx(spectral_decay(z), rel=1e-9)


@every_density
@given(seed=seeds)
@few_examples
def test_norms_do_not_matter_however_huge_or_tiny(density, seed: int) -> None:
    z, y = draw_samples(seed)
    draw = random.Random(seed)
    scaled = z * torch.tensor([[10 ** draw.uniform(-200, 200)] for _ in y], dtype=torch.float64)
    assert density(scaled, y) == pytest.approx(density(z, y), rel=1e-10)
    assert spectral_decay(scaled) == pytest.approx(spectral_decay(z), rel=1e-9)


@every_density
@given(seed=seeds)
@few_examples
def test_rotation_does_not_matter(density, seed: int) -> None:
    z, y = draw_samples(seed, dim=4)
    turned = z @ draw_rotation(4)
    assert density(turned, y) == pytest.approx(density(z, y), rel=1e-10)
    assert spectral_decay(turned) == pytest.approx(spectral_decay(z), rel=1e-9)


@every_density
@for_each(
    "rename", [lambda y: 7 - y, lambda y: y * 1000 + 5, lambda y: y + 2**24, lambda y: y - 2**40]
)
def test_names_of_the_classes_do_not_matter(density, rename) -> None:
    z, y = draw_samples(3)
    assert density(z, rename(y)) == pytest.approx(density(z, y), rel=1e-12)


@every_density
@pytest.mark.parametrize("block", [1, 13, 64])
def test_size_of_the_blocks_does_not_matter(
    density, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = draw_samples(5)
    expected = density(z, y), spectral_decay(z)
    monkeypatch.setattr(vectors_module, "BLOCK", block)
    assert (density(z, y), spectral_decay(z)) == pytest.approx(expected, rel=1e-9)


@every_density
def test_a_memory_mapped_file_gives_the_same(density, tmp_path: Path) -> None:
    z, y = draw_samples(7)
    np.save(tmp_path / "z.npy", z.numpy())
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert density(mapped, y) == density(Vectors(mapped), y) == density(z, y)
    assert spectral_decay(mapped) == spectral_decay(z)


def test_never_more_than_a_block_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = Vectors.read

    def watched(self: Vectors, *args, **kwargs) -> Tensor:
        rows = read(self, *args, **kwargs)
        sizes.append(rows.numel())
        return rows

    monkeypatch.setattr(vectors_module, "BLOCK", 100)
    monkeypatch.setattr(Vectors, "read", watched)
    z = torch.randn(200, 5)
    for measure in (lambda: pi_ratio(z, torch.arange(200) % 3), lambda: spectral_decay(z)):
        measure()
        assert max(sizes) == 100


# --- Nothing left to measure ---


def test_a_single_class_has_no_distance_to_others() -> None:
    z, y = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    assert pi_intra(z, y) > 0
    assert math.isnan(pi_inter(z, y))
    assert math.isnan(pi_ratio(z, y))


def test_classes_of_one_sample_have_no_distance_within() -> None:
    z, y = torch.eye(3), torch.arange(3)
    assert math.isnan(pi_intra(z, y))
    assert pi_inter(z, y) == 1
    assert math.isnan(pi_ratio(z, y))


def test_a_class_of_one_sample_leaves_the_others_as_they_are() -> None:
    z, y = draw_samples(11)
    more = torch.cat([z, torch.ones(1, z.shape[1])]), torch.cat([y, torch.tensor([99])])
    assert pi_intra(*more) == pytest.approx(pi_intra(z, y), rel=1e-12)


def test_no_sample_at_all_has_no_density() -> None:
    z, y = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    assert all(math.isnan(density(z, y)) for density in (pi_intra, pi_inter, pi_ratio))
    assert spectral_decay(z) == math.inf


@given(seed=seeds)
@few_examples
def test_a_collapsed_space_has_no_distances_and_no_ratio(seed: int) -> None:
    """Exactly none: rounding errors of equal directions with unequal norms must not be divided."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=3) * draw.uniform(0.1, 10, size=(30, 1))
    y = torch.from_numpy(draw.integers(0, 4, size=30))
    assert pi_intra(z, y) == 0
    assert pi_inter(z, y) == 0
    assert math.isnan(pi_ratio(z, y))
    assert spectral_decay(z) == math.inf


def test_collapsed_classes_apart_have_ratio_zero() -> None:
    z, y = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    assert (pi_intra(z, y), pi_inter(z, y), pi_ratio(z, y)) == (0, 1, 0)


def test_classes_spread_around_one_direction_have_an_infinite_ratio() -> None:
    z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [2.0, 1.0], [2.0, -1.0]])
    y = torch.tensor([0, 0, 1, 1])
    assert pi_inter(z, y) == 0
    assert pi_ratio(z, y) == math.inf


def test_opposite_vectors_leave_a_class_without_direction() -> None:
    draw = np.random.default_rng(0)
    away = draw.normal(size=8)
    z = np.stack([away, -3e7 * away, away * 1e-5, -away, draw.normal(size=8)])
    y = torch.tensor([0, 0, 0, 0, 1])
    assert pi_intra(z, y) == pytest.approx(4 / 3, rel=1e-12)
    assert pi_inter(z, y) == pytest.approx(1, rel=1e-12)


def test_zero_vectors_are_at_distance_one_from_all() -> None:
    z, y = (
        torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]),
        torch.tensor([0, 0, 1, 1, 1]),
    )
    assert pi_intra(z, y) == pytest.approx((1 + 2 / 3) / 2)
    assert pi_inter(z, y) == 1
    assert spectral_decay(torch.zeros(4, 2)) == math.inf


def test_nearly_collapsed_classes_keep_their_distance() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 1e-5]], dtype=torch.float64)
    assert pi_intra(z, torch.tensor([0, 0])) == pytest.approx(5e-11, rel=1e-4)


# --- Wrong input ---


@every_density
def test_labels_that_do_not_line_up_raise(density) -> None:
    with pytest.raises(ValueError, match=r"3 embeddings but labels of shape \(2,\)"):
        density(torch.eye(3), torch.tensor([0, 1]))


@every_density
def test_a_row_that_is_not_a_number_raises(density) -> None:
    z = torch.eye(3)
    z[1, 1] = math.nan
    with pytest.raises(ValueError, match="row 1 of the embeddings"):
        density(z, torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match="row 1 of the embeddings"):
        spectral_decay(z)
