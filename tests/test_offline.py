"""Samplers that mine all training samples: neighbouring classes, lists of triplets and of pairs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from assay.bank import Bank
from assay.run import compute
from assay.samplers import offline_lists, samplers
from assay.samplers.offline_hard import GROUP
from assay.samplers.sampler import Indices, bank_of
from heads import PROTOCOL, VIEW, runs_of

OFFLINE = ("offline_hard", "offline_triplets", "offline_pairs")
every_planner = pytest.mark.parametrize("name", OFFLINE)
few_examples = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)
shapes = st.tuples(
    st.lists(st.integers(1, 9), min_size=2, max_size=9).map(tuple),
    st.integers(2, 9),
    st.integers(2, 5),
).filter(lambda shape: shape[1] <= len(shape[0]))
"""Images of each class, and a batch of classes x images."""


def bank_of_sizes(sizes: Sequence[int], dim: int = 5, seed: int = 0) -> Bank:
    """Return shuffled classes of these sizes, each around a centre."""
    draw = np.random.default_rng(seed)
    y = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = draw.normal(size=(len(sizes), dim))[y] + 0.7 * draw.normal(size=(len(y), dim))
    return Bank(F.normalize(torch.from_numpy(z).float()), torch.from_numpy(y))


def plan(name: str, bank: Bank, batch: tuple[int, int], count: int = 8, seed: int = 0) -> Indices:
    planned: Any = samplers[name]
    rows: Indices = planned(bank, batch, count, np.random.default_rng(seed))
    return rows


def on_circle(degrees: Sequence[float], per_class: int, spread: float = 1.0) -> Bank:
    """Return classes at these angles, with images `spread` degrees around them."""
    y = np.repeat(np.arange(len(degrees)), per_class)
    around = np.tile(np.linspace(-spread, spread, per_class), len(degrees))
    angle = np.deg2rad(np.array(degrees, dtype=float)[y] + around)
    z = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], axis=1)).float()
    return Bank(z, torch.from_numpy(y))


def parts_of(row: Indices, parts: int) -> list[tuple[int, ...]]:
    """Return the triplets or pairs of a batch."""
    return [tuple(one) for one in row.reshape(parts, -1).T.tolist()]


def distance(bank: Bank, first: int, second: int) -> float:
    return math.dist(bank.z[first].tolist(), bank.z[second].tolist())


def check_hard(row: Indices, y: list[int], batch: tuple[int, int]) -> None:
    classes, images = batch
    slots = row.reshape(classes, images).tolist()
    of_slots = [{y[image] for image in slot} for slot in slots]
    assert all(len(own) == 1 for own in of_slots)
    assert len(set.union(*of_slots)) == classes
    for slot in slots:
        times = Counter(slot)
        each = [times[image] for image in range(len(y)) if y[image] == y[slot[0]]]
        assert max(each) - min(each) <= 1


def check_triplets(row: Indices, y: list[int], batch: tuple[int, int]) -> None:
    assert len(row) == batch[0] * batch[1] // 3 * 3
    for anchor, positive, negative in parts_of(row, 3):
        assert y[anchor] == y[positive] != y[negative]
        assert (anchor == positive) == (y.count(y[anchor]) == 1)


def check_pairs(row: Indices, y: list[int], batch: tuple[int, int]) -> None:
    assert len(row) == batch[0] * batch[1] // 2 * 2
    pairs = parts_of(row, 2)
    same = [pair for pair in pairs if y[pair[0]] == y[pair[1]]]
    assert same == pairs[: len(pairs) // 2]
    for first, second in same:
        assert (first == second) == (y.count(y[first]) == 1)


CHECKS: dict[str, Callable[[Indices, list[int], tuple[int, int]], None]] = {
    "offline_hard": check_hard,
    "offline_triplets": check_triplets,
    "offline_pairs": check_pairs,
}


def check(name: str, bank: Bank, batch: tuple[int, int], count: int = 8, seed: int = 0) -> None:
    rows = plan(name, bank, batch, count, seed)
    assert rows.dtype == np.int64
    assert len(rows) == count
    for row in rows:
        CHECKS[name](row, bank.y.tolist(), batch)


# --- Laws ---


def test_every_sampler_that_mines_all_samples_gets_a_fresh_bank() -> None:
    assert {bank_of(samplers[name]) for name in OFFLINE} == {"fresh"}


@every_planner
@given(shape=shapes, seed=seeds)
@few_examples
def test_batches_have_their_form(
    name: str, shape: tuple[tuple[int, ...], int, int], seed: int
) -> None:
    sizes, classes, images = shape
    check(name, bank_of_sizes(sizes, seed=seed), (classes, images), seed=seed)


@every_planner
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ((1,) * 9, (4, 2)),
        ((6, 6), (2, 4)),
        ((5, 5, 5), (3, 1)),
        ((1, 1), (2, 2)),
        ((4000, 1, 1), (3, 2)),
    ],
    ids=["one image per class", "two classes", "all classes", "two images", "one large class"],
)
def test_odd_data_have_batches_too(
    name: str, sizes: tuple[int, ...], batch: tuple[int, int]
) -> None:
    """The large class fills the pool of images among which negatives are looked for."""
    check(name, bank_of_sizes(sizes), batch)


@every_planner
def test_a_collapsed_bank_has_batches_of_all_classes(name: str) -> None:
    bank = bank_of_sizes((5,) * 12)
    flat = replace(bank, z=torch.zeros_like(bank.z))
    check(name, flat, (4, 3), count=40)
    rows = plan(name, flat, (4, 3), count=40)
    times = np.bincount(bank.y.numpy()[rows.ravel()], minlength=12)
    assert times.min() > 0


@every_planner
def test_images_that_are_all_alike_in_two_classes_have_batches(name: str) -> None:
    bank = bank_of_sizes((5,) * 6)
    z = bank.z.clone()
    z[bank.y < 2] = bank.z[0]
    check(name, replace(bank, z=z), (3, 4))


@every_planner
def test_the_same_generator_gives_the_same_plan_and_another_gives_another(name: str) -> None:
    bank = bank_of_sizes((7,) * 10)
    before = bank.z.clone()
    np.random.seed(1)
    first = plan(name, bank, (4, 4), seed=3)
    np.random.seed(2)
    torch.manual_seed(7)
    assert np.array_equal(plan(name, bank, (4, 4), seed=3), first)
    assert not np.array_equal(plan(name, bank, (4, 4), seed=4), first)
    assert torch.equal(bank.z, before)


@every_planner
def test_a_plan_follows_the_bank(name: str) -> None:
    bank = bank_of_sizes((7,) * 10)
    other = bank_of_sizes((7,) * 10, seed=9)
    found = plan(name, bank, (4, 4)), plan(name, replace(bank, z=other.z), (4, 4))
    assert not np.array_equal(*found)


def test_more_classes_than_there_are_raise_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="batch of 8 classes cannot be drawn from 7"):
        plan("offline_hard", bank_of_sizes((2,) * 7), (8, 2))


@pytest.mark.parametrize("name", ["offline_triplets", "offline_pairs"])
def test_a_single_class_has_no_negatives_and_raises(name: str) -> None:
    with pytest.raises(ValueError, match="there is only one"):
        plan(name, bank_of_sizes((9,)), (1, 6))


@pytest.mark.parametrize(("name", "least"), [("offline_triplets", 3), ("offline_pairs", 2)])
def test_a_list_has_at_least_one_entry(name: str, least: int) -> None:
    bank = bank_of_sizes((4, 4))
    for batch in ((1, 1), (least, 1), (2 * least - 1, 1)):
        assert plan(name, bank, batch).shape == (8, least)
    assert plan(name, bank, (2, least)).shape == (8, 2 * least)


# --- Neighbouring classes ---


def means_of(bank: Bank) -> list[NDArray[np.float64]]:
    """Return the mean of each class, of unit length, one class at a time."""
    found = []
    for label in range(int(bank.y.max()) + 1):
        rows = [z for z, own in zip(bank.z.tolist(), bank.y.tolist(), strict=True) if own == label]
        mean = np.array(rows).mean(axis=0)
        found.append(mean / np.linalg.norm(mean))
    return found


def classes_of(row: Indices, bank: Bank, batch: tuple[int, int]) -> list[int]:
    found: list[int] = bank.y.numpy()[row.reshape(batch)[:, 0]].tolist()
    return found


def groups_of(classes: list[int]) -> list[list[int]]:
    """Return each seed of a batch with the classes that follow it."""
    return [classes[start : start + GROUP] for start in range(0, len(classes), GROUP)]


@given(shape=shapes, seed=seeds)
@few_examples
def test_a_seed_is_followed_by_its_nearest_classes_that_are_not_in_the_batch(
    shape: tuple[tuple[int, ...], int, int], seed: int
) -> None:
    sizes, classes, images = shape
    bank, batch = bank_of_sizes(sizes, seed=seed), (classes, images)
    means = means_of(bank)
    for row in plan("offline_hard", bank, batch, seed=seed):
        taken: list[int] = []
        for group in groups_of(classes_of(row, bank, batch)):
            taken.append(group[0])
            for follower in group[1:]:
                free = [label for label in range(len(means)) if label not in taken]
                best = max(float(means[group[0]] @ means[label]) for label in free)
                assert float(means[group[0]] @ means[follower]) >= best - 1e-6
                taken.append(follower)


def test_classes_on_a_circle_are_drawn_with_the_nearest_on_it() -> None:
    """24 classes at equal steps: the nearest three of a class lie within two steps."""
    bank = on_circle([15.0 * number for number in range(24)], per_class=3)
    for row in plan("offline_hard", bank, (4, 3), count=24):
        seed, *others = classes_of(row, bank, (4, 3))
        steps = sorted(min((one - seed) % 24, (seed - one) % 24) for one in others)
        assert steps == [1, 1, 2]


def test_classes_that_are_near_only_by_length_are_not_neighbours() -> None:
    """A mean is compared by its direction: images of a wide class have a short mean."""
    bank = on_circle([0, 20, 180, 200, 90, 110], per_class=5, spread=9.0)
    wide = replace(bank, z=torch.cat([bank.z, -bank.z[:4]]), y=torch.cat([bank.y, bank.y[:4]]))
    for row in plan("offline_hard", wide, (2, 2), count=30):
        first, second = classes_of(row, wide, (2, 2))
        assert second == first ^ 1


@given(classes=st.integers(1, 9), more=st.integers(0, 12), count=st.integers(1, 40), seed=seeds)
@few_examples
def test_every_class_is_a_seed_about_equally_often(
    classes: int, more: int, count: int, seed: int
) -> None:
    """Of a batch of all classes, the last seed would be the class that is left."""
    known = 2 * classes + more
    bank, batch = bank_of_sizes((2,) * known, seed=seed), (classes, 2)
    seeds_drawn = Counter(
        group[0]
        for row in plan("offline_hard", bank, batch, count, seed)
        for group in groups_of(classes_of(row, bank, batch))
    )
    often = [seeds_drawn[label] for label in range(known)]
    assert max(often) - min(often) <= 2


def test_any_image_of_a_class_is_as_likely_as_any_other() -> None:
    bank = bank_of_sizes((6,) * 8)
    times = np.bincount(plan("offline_hard", bank, (4, 2), count=600).ravel(), minlength=48)
    for label in range(8):
        assert chisquare(times[bank.y.numpy() == label]).pvalue > 1e-4


def test_classes_that_are_equally_near_follow_by_chance_and_not_by_number() -> None:
    bank = bank_of_sizes((3,) * 12)
    flat = replace(bank, z=torch.zeros_like(bank.z))
    followers = Counter(
        follower
        for seed in range(100)
        for row in plan("offline_hard", flat, (4, 2), count=1, seed=seed)
        for follower in classes_of(row, flat, (4, 2))[1:]
    )
    assert chisquare([followers[label] for label in range(12)]).pvalue > 1e-4


# --- Triplets ---


class Watched(np.random.Generator):
    """A generator that keeps what it chose."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self.chosen: list[list[int]] = []

    def choice(self, *arguments: Any, **named: Any) -> Any:
        found = super().choice(*arguments, **named)
        self.chosen.append(found.tolist())
        return found


def semihard(bank: Bank, anchor: int, positive: int, pool: list[int]) -> float:
    """Return the distance of the nearest negative that is farther than the positive, else of the
    farthest.
    """
    apart = [distance(bank, anchor, n) for n in pool if bank.y[n] != bank.y[anchor]]
    beyond = [d for d in apart if d > distance(bank, anchor, positive)]
    return min(beyond) if beyond else max(apart)


@given(shape=shapes.filter(lambda shape: len(shape[0]) > 2), seed=seeds, pool=st.integers(10, 60))
@few_examples
def test_a_negative_is_the_semihard_one_of_the_pool_of_its_batch(
    shape: tuple[tuple[int, ...], int, int], seed: int, pool: int
) -> None:
    sizes, classes, images = shape
    bank, draw = bank_of_sizes(sizes, seed=seed), Watched(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline_lists, "POOL", pool)
        planner: Any = samplers["offline_triplets"]
        rows = planner(bank, (classes, images), 6, draw)
    assert [len(chosen) for chosen in draw.chosen] == [min(pool, len(bank.y))] * 6
    for row, chosen in zip(rows, draw.chosen, strict=True):
        assert len(set(chosen)) == len(chosen)
        for anchor, positive, negative in parts_of(row, 3):
            if any(bank.y[one] != bank.y[anchor] for one in chosen):
                assert negative in chosen
                assert distance(bank, anchor, negative) == pytest.approx(
                    semihard(bank, anchor, positive, chosen), abs=2e-3
                )


def test_a_known_semihard_negative_is_found_behind_a_wrong_label() -> None:
    """Class 0 at 0 and 10 degrees, an image of class 1 at 1 degree, as if its label were wrong; the
    next negative is at 12 degrees, all others beyond.
    """
    degrees = [0.0, 10.0, 1.0, 12.0, 60.0, 90.0, 120.0]
    y = torch.tensor([0, 0, 1, 2, 2, 1, 1])
    angle = torch.tensor(degrees).deg2rad()
    bank = Bank(torch.stack([angle.cos(), angle.sin()], dim=1), y)
    found = {
        (anchor, positive): negative
        for row in plan("offline_triplets", bank, (3, 2), count=12)
        for anchor, positive, negative in parts_of(row, 3)
    }
    assert found[0, 1] == 3
    assert found[1, 0] == 4


def test_every_image_is_an_anchor_before_any_is_again() -> None:
    bank = bank_of_sizes((5,) * 7)
    rows = plan("offline_triplets", bank, (4, 4), count=21)
    anchors = rows.reshape(21, 3, 5)[:, 0].ravel().tolist()
    for start in (0, 35, 70):
        assert sorted(anchors[start : start + 35]) == list(range(35))


@pytest.mark.parametrize("name", ["triplets", "pairs"])
def test_every_partner_in_a_class_is_as_likely_as_any_other(name: str) -> None:
    """Without a bank to tell images apart."""
    bank = bank_of_sizes((5, 4, 2))
    flat = replace(bank, z=torch.zeros_like(bank.z))
    parts = {"triplets": 3, "pairs": 2}[name]
    drawn = Counter(
        one[:2]
        for row in plan(f"offline_{name}", flat, (4, 6), count=500)
        for one in parts_of(row, parts)
        if bank.y[one[0]] == bank.y[one[1]]
    )
    for anchor, label in enumerate(bank.y.tolist()):
        others = [row for row, own in enumerate(bank.y.tolist()) if own == label and row != anchor]
        if len(others) > 1:
            assert chisquare([drawn[anchor, other] for other in others]).pvalue > 1e-4


def test_a_pool_without_a_negative_gives_way_to_any_image_of_another_class() -> None:
    bank = bank_of_sizes((5000, 6, 6))
    few = np.flatnonzero(bank.y.numpy() > 0)
    negatives = Counter(
        negative
        for row in plan("offline_triplets", bank, (3, 40), count=60)
        for anchor, _, negative in parts_of(row, 3)
        if bank.y[anchor] == 0
    )
    assert set(negatives) == set(few.tolist())


# --- Pairs ---


def test_every_image_of_another_class_is_as_likely_as_any_other() -> None:
    """Without a bank to tell images apart."""
    bank = bank_of_sizes((5, 4, 2))
    flat = replace(bank, z=torch.zeros_like(bank.z))
    drawn = Counter(
        pair
        for row in plan("offline_pairs", flat, (4, 6), count=500)
        for pair in parts_of(row, 2)[6:]
    )
    for first, label in enumerate(bank.y.tolist()):
        others = [row for row, own in enumerate(bank.y.tolist()) if own != label]
        assert chisquare([drawn[first, other] for other in others]).pvalue > 1e-4


def test_the_hardest_eighth_of_the_random_pairs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[tuple[int, int]]] = []
    for kind in ("draw_same", "draw_other"):
        plain = getattr(offline_lists._Members, kind)

        def watched(self: Any, first: Indices, draw: Any, plain: Any = plain) -> Indices:
            second: Indices = plain(self, first, draw)
            drawn.append(list(zip(first.tolist(), second.tolist(), strict=True)))
            return second

        monkeypatch.setattr(offline_lists._Members, kind, watched)
    bank = bank_of_sizes((3, 4, 1, 6, 8))
    rows = plan("offline_pairs", bank, (5, 5), count=10)
    for row, same, other in zip(rows, drawn[::2], drawn[1::2], strict=True):
        pairs = parts_of(row, 2)
        assert (len(same), len(other)) == (8 * 6, 8 * 6)
        for kept, candidates, sign in ((pairs[:6], same, -1), (pairs[6:], other, 1)):
            assert set(kept) <= set(candidates)
            hardness = sorted(sign * distance(bank, *pair) for pair in candidates)
            assert sorted(sign * distance(bank, *pair) for pair in kept) == pytest.approx(
                hardness[:6], abs=1e-6
            )


def test_pairs_of_two_classes_are_those_of_the_classes_side_by_side() -> None:
    """Three couples of classes; a random pair is of one couple in one of five cases."""
    bank = on_circle([0, 6, 120, 126, 240, 246], per_class=8)
    for row in plan("offline_pairs", bank, (6, 8), count=20):
        for first, second in parts_of(row, 2)[12:]:
            assert int(bank.y[second]) == int(bank.y[first]) ^ 1


def test_pairs_of_one_class_have_its_odd_image() -> None:
    """One image of each class lies apart; one in four random pairs has it."""
    bank = on_circle([0, 90, 180, 270], per_class=8, spread=2.0)
    z = bank.z.clone()
    z[7::8] = F.normalize(z[7::8] + z[7::8].roll(1, 1))
    for row in plan("offline_pairs", replace(bank, z=z), (6, 8), count=20):
        assert all(7 in (first % 8, second % 8) for first, second in parts_of(row, 2)[:12])


# --- In a training on vectors ---


@pytest.mark.parametrize(
    ("method", "sampler"),
    [
        ("triplet", "offline_hard"),
        ("normalized_softmax", "offline_hard"),
        ("triplet_offline", "balanced"),
        ("contrastive_offline", "balanced"),
    ],
)
@pytest.mark.parametrize("refresh", [3, None])
def test_mined_batches_are_the_same_in_a_stack_and_alone(
    method: str, sampler: str, refresh: int | None
) -> None:
    """Three steps do not divide an epoch of four."""
    protocol = replace(PROTOCOL, sampler=sampler, refresh=refresh)
    runs = runs_of(method, protocol)
    together = compute(runs, VIEW)
    [alone] = compute(runs[2:3], VIEW)
    assert alone.history == together[2].history
    assert all(torch.equal(alone.weights[key], other) for key, other in together[2].weights.items())
    losses = [[checkpoint.loss for checkpoint in fitted.history] for fitted in together]
    assert all(first != second for first, second in pairwise(losses))


@pytest.mark.parametrize("method", ["triplet", "triplet_offline"])
def test_another_refresh_is_another_training(method: str) -> None:
    found = []
    for refresh in (2, 3):
        protocol = replace(PROTOCOL, sampler="offline_hard", refresh=refresh)
        [fitted] = compute(runs_of(method, protocol)[:1], VIEW)
        found.append(fitted)
    assert found[0].history != found[1].history
