"""Samplers that plan batches from the memory bank: coreset, ddm and frd."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import sqrtm
from scipy.stats import binomtest, chisquare, wasserstein_distance
from torch import Tensor
from torch.nn.functional import normalize

from assay.bank import Bank
from assay.devices import torch_threads
from assay.samplers import samplers
from assay.samplers.candidates import CANDIDATES, draw_candidates, plan_nearest
from assay.samplers.classes import Classes
from assay.samplers.coreset import farthest_first
from assay.samplers.ddm import compare_distances, wasserstein
from assay.samplers.frd import frechet
from assay.samplers.sampler import Indices, bank_of

few_examples = settings(max_examples=40, deadline=None)
PLANNERS = [name for name, sampler in samplers.items() if bank_of(sampler) == "kept"]
every_planner = pytest.mark.parametrize("name", PLANNERS)
SIZES = (1, 2, 3, 7, 4, 4, 30, 12, 12)


def bank(sizes: tuple[int, ...] = SIZES, dim: int = 6, seed: int = 0) -> Bank:
    """Unit vectors near centres of their classes, in random order."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=generator)]
    centre = torch.randn(len(sizes), dim, generator=generator)
    z = centre[y] + torch.randn(len(y), dim, generator=generator)
    return Bank(normalize(z, dim=1), y)


def plan(
    name: str, bank: Bank, batch: tuple[int, int] = (4, 2), count: int = 5, seed: int = 0
) -> Indices:
    return samplers[name](bank, batch, count, np.random.default_rng(seed))


# --- laws ---


def test_three_samplers_plan_from_a_kept_bank() -> None:
    assert {"coreset", "ddm", "frd"} <= set(PLANNERS)


@every_planner
def test_another_bank_gives_other_batches(name: str) -> None:
    one = bank()
    other = replace(one, z=bank(seed=1).z)
    assert plan(name, one).tolist() != plan(name, other).tolist()


@every_planner
def test_a_plan_is_the_same_with_any_number_of_threads(name: str) -> None:
    one = bank((30,) * 40, dim=64)
    plans = []
    for threads in (1, 2):
        with torch_threads(threads):
            plans.append(plan(name, one, (20, 3)).tolist())
            assert torch.get_num_threads() == threads
    assert plans[0] == plans[1]


@every_planner
def test_a_plan_leaves_the_bank_as_it_is(name: str) -> None:
    one = bank()
    z, y = one.z.clone(), one.y.clone()
    plan(name, one)
    assert torch.equal(one.z, z)
    assert torch.equal(one.y, y)


def zeros(z_ND: Tensor) -> Tensor:
    return torch.zeros_like(z_ND)


def half_zeros(z_ND: Tensor) -> Tensor:
    """Embeddings of half of the samples were not finite."""
    return z_ND * (torch.arange(len(z_ND)) % 2)[:, None]


def all_equal(z_ND: Tensor) -> Tensor:
    return z_ND[:1].expand_as(z_ND).contiguous()


def in_pairs(z_ND: Tensor) -> Tensor:
    return z_ND[torch.arange(len(z_ND)) // 2]


@every_planner
@pytest.mark.parametrize("change", [zeros, half_zeros, all_equal, in_pairs])
@pytest.mark.parametrize("sizes", [SIZES, (1,) * 9])
def test_embeddings_that_lie_at_one_place_still_give_whole_batches(
    name: str, change: Callable[[Tensor], Tensor], sizes: tuple[int, ...]
) -> None:
    one = bank(sizes)
    collapsed = replace(one, z=change(one.z))
    for batch in ((9, 1), (4, 3), (1, 7)):
        for rows in plan(name, collapsed, batch):
            slots = one.y[rows].reshape(batch)
            assert (slots == slots[:, :1]).all()


@every_planner
def test_a_bank_that_does_not_tell_samples_apart_still_gives_every_class(name: str) -> None:
    one = bank((20,) * 9)
    rows = plan(name, replace(one, z=zeros(one.z)), count=60)
    assert set(one.y[rows.ravel()].tolist()) == set(range(9))


@every_planner
def test_a_training_set_larger_than_a_pool_is_drawn_from_everywhere(name: str) -> None:
    """Pitfall 35. Picks in a pool are rows of the bank, not of the pool."""
    rows = plan(name, bank((3,) * 600), (20, 2), count=40)
    assert chisquare(np.bincount(rows.ravel() // 180, minlength=10)).pvalue > 1e-4


# --- coreset ---


def picks_by_loops(points: NDArray[np.float32], count: int) -> list[int]:
    """Farthest first, one distance at a time."""
    chosen = [0]
    while len(chosen) < min(count, len(points)):
        best, farthest = -1, -1.0
        for place, point in enumerate(points):
            nearest = min(sum((point - points[one]) ** 2) for one in chosen)
            if place not in chosen and nearest > farthest:
                best, farthest = place, nearest
        chosen.append(best)
    return [chosen[number % len(chosen)] for number in range(count)]


@given(seed=st.integers(0, 2**31), count=st.integers(1, 25))
@few_examples
def test_points_are_picked_as_by_loops(seed: int, count: int) -> None:
    """On a grid of whole numbers, so that many distances are equal and some are 0."""
    points = np.random.default_rng(seed).integers(0, 4, size=(18, 2)).astype(np.float32)
    assert farthest_first(points, count).tolist() == picks_by_loops(points, count)


def test_points_on_a_line_are_picked_from_its_ends_to_its_middle() -> None:
    line = np.array([[0.0], [16.0], [8.0], [12.0], [5.0], [2.0]], dtype=np.float32)
    assert farthest_first(line, 6).tolist() == [0, 1, 2, 3, 4, 5]


def test_points_at_one_place_are_each_picked_before_any_comes_again() -> None:
    assert farthest_first(np.zeros((4, 3), dtype=np.float32), 9).tolist() == [
        0, 1, 2, 3, 0, 1, 2, 3, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("size", [40, 700])
def test_a_coreset_is_the_farthest_points_of_its_pool(size: int) -> None:
    """Pitfall 35. In the bank's rows, also where the pool is a part of the bank."""
    one = bank((size // 4,) * 4)
    for seed in range(5):
        pool = np.random.default_rng(seed).choice(size, min(size, 512), replace=False)
        picks = picks_by_loops(one.z.numpy()[pool], 6)
        [rows] = plan("coreset", one, (6, 3), count=1, seed=seed)
        assert rows[::3].tolist() == pool[picks].tolist()


def test_a_coreset_holds_the_few_points_that_lie_apart() -> None:
    """Pitfall 35. Planted: 5 rows at the axes, all others close together."""
    one = bank((50,) * 8)
    z = normalize(torch.tensor([1.0, 0, 0, 0, 0, 0]) + 0.01 * one.z, dim=1)
    apart = [7, 77, 177, 277, 377]
    z[apart] = torch.eye(6)[1:]
    for rows in plan("coreset", replace(one, z=z), (7, 2), count=20):
        assert set(apart) <= set(rows[::2].tolist())


def test_fillers_of_a_coreset_are_other_images_of_the_class_any_of_them() -> None:
    one = bank((4, 30))
    z = normalize(one.z + 9, dim=1)
    point = int((one.y == 0).nonzero()[0])
    z[point] *= -1  # a point of every coreset
    times = dict.fromkeys((one.y == 0).nonzero()[:, 0].tolist(), 0)
    for rows in plan("coreset", replace(one, z=z), (2, 3), count=300):
        for first, *others in rows.reshape(2, 3).tolist():
            assert first not in others
            assert len(set(others)) == 2
            if first == point:
                for other in others:
                    times[other] += 1
    del times[point]
    assert sum(times.values()) == 600
    assert chisquare(list(times.values())).pvalue > 0.01


# --- pools and candidates ---

shapes = st.tuples(
    st.lists(st.integers(1, 9), min_size=1, max_size=12).map(tuple),
    st.integers(1, 12),
    st.sampled_from([1, 2, 5, 200, 600]),
).filter(lambda shape: shape[1] <= len(shape[0]))


@given(shape=shapes, seed=st.integers(0, 2**31))
@few_examples
def test_candidates_are_different_classes_of_the_pool(
    shape: tuple[tuple[int, ...], int, int], seed: int
) -> None:
    sizes, chosen, per_class = shape
    y = bank(sizes).y.numpy()
    pool, candidates = draw_candidates(Classes(y), (chosen, per_class), np.random.default_rng(seed))
    drawn = y[pool].reshape(-1, per_class)
    assert (drawn == drawn[:, :1]).all()
    assert len(drawn) >= max(512 // per_class, 1)
    assert candidates.shape == (CANDIDATES, chosen * per_class)
    for places in candidates:
        slots = y[pool[places]].reshape(chosen, per_class)
        assert (slots == slots[:, :1]).all()
        assert len(set(slots[:, 0].tolist())) == chosen


def test_a_pool_is_512_images_of_classes_drawn_evenly_with_replacement() -> None:
    classes = Classes(np.repeat(np.arange(400), 6))
    generator = np.random.default_rng(1)
    pools = [draw_candidates(classes, (28, 4), generator)[0] for _ in range(60)]
    assert {len(pool) for pool in pools} == {512}
    drawn = np.concatenate([pool[::4] // 6 for pool in pools])
    assert len(set(drawn[:128].tolist())) < 128
    assert chisquare(np.bincount(drawn, minlength=400)).pvalue > 0.01


def test_a_class_that_was_drawn_twice_is_in_as_many_candidates_as_any_other() -> None:
    """Of four draws of six classes two are of one class: two of three classes are a candidate."""
    classes = Classes(np.repeat(np.arange(6), 9))
    generator = np.random.default_rng(0)
    times = []
    for _ in range(300):
        pool, candidates = draw_candidates(classes, (2, 128), generator)
        often = np.bincount(pool[::128] // 9)
        if sorted(often[often > 0]) == [1, 1, 2]:
            firsts = pool[candidates[:, ::128]] // 9
            times += (firsts == often.argmax()).any(axis=1).tolist()
    assert len(times) > 1000
    assert binomtest(sum(times), len(times), 2 / 3).pvalue > 0.01


@pytest.mark.parametrize("best", [0, 4, 9])
def test_the_nearest_candidate_is_the_batch(best: int) -> None:
    """Pitfall 35. Each row of the bank holds its own number, so that what was measured is seen."""
    y = torch.arange(1500) // 3
    seen = []

    def measure(z_PD: Tensor, candidates_TB: Tensor) -> Tensor:
        seen.append(z_PD[candidates_TB[best], 0].long().tolist())
        return (torch.arange(CANDIDATES) - best).abs().double()

    one = Bank(torch.arange(1500.0)[:, None], y)
    rows = plan_nearest(one, (20, 2), 6, np.random.default_rng(0), measure)
    assert rows.tolist() == seen


def test_the_first_of_equally_near_candidates_is_the_batch() -> None:
    seen = []

    def measure(z_PD: Tensor, candidates_TB: Tensor) -> Tensor:
        seen.append(z_PD[candidates_TB[3], 0].long().tolist())
        return torch.tensor([2.0, 1, 1, 0, 0, 3, 0, 1, 1, 1])

    one = Bank(torch.arange(900.0)[:, None], torch.arange(900) // 3)
    assert plan_nearest(one, (20, 2), 3, np.random.default_rng(0), measure).tolist() == seen


# --- the distances ---


def pool_of(seed: int, points: int = 30, dim: int = 4, size: int = 8) -> tuple[Tensor, Tensor]:
    """A pool and places of three candidates."""
    generator = torch.Generator().manual_seed(seed)
    z = normalize(torch.randn(points, dim, generator=generator).double(), dim=1)
    places = torch.stack([torch.randperm(points, generator=generator)[:size] for _ in range(3)])
    return z, places


def histogram_by_loops(z: NDArray[np.float64], low: float, high: float) -> list[int]:
    """Pairs of points in each of 50 bins by their distance."""
    counts = [0] * 50
    for first in range(len(z)):
        for second in range(first):
            distance = float(np.sqrt(((z[first] - z[second]) ** 2).sum()))
            counts[min(int((distance - low) / (high - low) * 50), 49)] += 1
    return counts


def ddm_by_loops(z_PD: Tensor, places: Tensor) -> float:
    """Between bin centres, by scipy."""
    z = z_PD.numpy()
    between = [np.linalg.norm(z[i] - z[j]) for i in range(len(z)) for j in range(i)]
    low, high = min(between), max(between)
    centres = [low + (number + 0.5) * (high - low) / 50 for number in range(50)]
    pool, own = (histogram_by_loops(part, low, high) for part in (z, z[places.numpy()]))
    return float(wasserstein_distance(centres, centres, own, pool))


def frd_by_loops(z_PD: Tensor, places: Tensor) -> float:
    """By scipy's root of a matrix."""
    first, second = z_PD.numpy()[places.numpy()], z_PD.numpy()
    gap = ((first.mean(0) - second.mean(0)) ** 2).sum()
    c1, c2 = np.cov(first.T), np.cov(second.T)
    return float(gap + np.trace(c1 + c2 - 2 * np.real(sqrtm(c1 @ c2))))


BY_LOOPS = {"ddm": (compare_distances, ddm_by_loops), "frd": (frechet, frd_by_loops)}


@pytest.mark.parametrize("name", list(BY_LOOPS))
@given(seed=st.integers(0, 2**31), size=st.integers(6, 30))
@few_examples
def test_candidates_are_as_far_from_the_pool_as_by_loops(name: str, seed: int, size: int) -> None:
    ours, by_loops = BY_LOOPS[name]
    z, candidates = pool_of(seed, size=size)
    expected = [by_loops(z, places) for places in candidates]
    assert ours(z, candidates).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", list(BY_LOOPS))
def test_each_batch_is_the_nearest_to_its_pool_of_ten_as_by_loops(name: str) -> None:
    _, by_loops = BY_LOOPS[name]
    one = bank((9,) * 30)
    [rows] = plan(name, one, (12, 2), count=1, seed=3)
    pool, candidates = draw_candidates(Classes(one.y.numpy()), (12, 2), np.random.default_rng(3))
    z = one.z[torch.from_numpy(pool)].double()
    far = [by_loops(z, torch.from_numpy(places)) for places in candidates]
    assert len(set(far)) == CANDIDATES
    assert rows.tolist() == pool[candidates[int(np.argmin(far))]].tolist()


@pytest.mark.parametrize("name", list(BY_LOOPS))
def test_a_candidate_as_the_pool_is_nearer_than_one_of_a_single_corner(name: str) -> None:
    """Planted: a pool in two corners, half in each."""
    ours, _ = BY_LOOPS[name]
    corners = torch.eye(3).double()[torch.arange(40) % 2]
    z = normalize(corners + 0.05 * pool_of(0, 40, 3)[0], dim=1)
    even, both = torch.arange(0, 40, 2)[:12], torch.arange(12)
    far, near = ours(z, torch.stack([even, both])).tolist()
    assert near < far / 10


@pytest.mark.parametrize("name", list(BY_LOOPS))
def test_the_pool_itself_is_at_distance_0(name: str) -> None:
    z, _ = pool_of(1)
    assert BY_LOOPS[name][0](z, torch.arange(30)[None]).item() == pytest.approx(0, abs=1e-7)


def test_histograms_far_apart_are_at_a_large_distance() -> None:
    """Pitfall 35. Their bins have the same heights, which says nothing of where they are."""
    left, right = torch.zeros(2, 50)
    left[2], left[3], right[42], right[43] = 0.25, 0.75, 0.25, 0.75
    assert sorted(left.tolist()) == sorted(right.tolist())
    assert wasserstein(left, right).item() == pytest.approx(40)
    assert wasserstein_distance(left.tolist(), right.tolist()) == 0


def test_the_distance_of_histograms_is_that_of_scipy_over_their_bins() -> None:
    first, second = torch.rand(2, 50, generator=torch.Generator().manual_seed(0)).double()
    expected = wasserstein_distance(range(50), range(50), first.numpy(), second.numpy())
    found = wasserstein(first / first.sum(), second / second.sum()).item()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("points", "dim", "size"), [(30, 4, 3), (30, 40, 8), (6, 20, 2), (9, 3, 1)]
)
def test_the_frechet_distance_stays_real_where_covariances_have_no_full_rank(
    points: int, dim: int, size: int
) -> None:
    """As the nuclear norm of A_1 A_2^T, by an SVD of the whole."""
    z, candidates = pool_of(2, points, dim, size)
    for places, found in zip(candidates, frechet(z, candidates).tolist(), strict=True):
        parts = [part - part.mean(0) for part in (z[places], z)]
        a1, a2 = (part / max(len(part) - 1, 1) ** 0.5 for part in parts)
        gap = (z[places].mean(0) - z.mean(0)).square().sum()
        nuclear = torch.linalg.svdvals(a1 @ a2.T).sum()
        expected = gap + a1.square().sum() + a2.square().sum() - 2 * nuclear
        assert found == pytest.approx(expected.item(), abs=1e-6)
        assert found > -1e-6


def test_the_frechet_distance_of_points_on_a_line_is_that_of_two_bells() -> None:
    """(m1 - m2)^2 + (s1 - s2)^2."""
    z = torch.tensor([[0.0], [2.0], [10.0], [16.0]]).double()
    pool = z.var().sqrt()
    expected = (1 - 7) ** 2 + (2**0.5 - pool) ** 2
    assert frechet(z, torch.tensor([[0, 1]])).item() == pytest.approx(expected.item())
