"""Samplers: which samples are in a batch, how often each comes, and what a seed decides."""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch.nn.functional import normalize

from assay.bank import Bank
from assay.data.augment import augment
from assay.errors import BadInput
from assay.losses import losses
from assay.protocols import ResolvedAugment
from assay.samplers import fixed_pattern, samplers
from assay.samplers.sampler import (
    Indices,
    bank_of,
    check_pattern,
    cites,
    has_fixed_pattern,
    paper_of,
    plans,
)

few_examples = settings(max_examples=40, deadline=None)
LISTS = ("offline_pairs", "offline_triplets")
"""Their batches are lists of pairs or triplets, as many as fit: tests/test_offline.py has the laws.
"""
every_sampler = pytest.mark.parametrize("name", [name for name in samplers if name not in LISTS])
with_fixed_pattern = pytest.mark.parametrize(
    "name", [name for name, sampler in samplers.items() if has_fixed_pattern(sampler)]
)
in_rounds_of_classes = pytest.mark.parametrize("name", ["balanced", "copies"])
with_images_of_each_class = pytest.mark.parametrize(
    "name", ["balanced", "episodes", "coreset", "ddm", "frd"]
)

SIZES = (1, 2, 3, 7, 4, 4, 30)
"""Images per class, some fewer than a batch wants."""


def labels(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> NDArray[np.int64]:
    """Shuffled labels of classes of these sizes."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def draw(
    count: int, y: NDArray[np.int64], batch: tuple[int, int], seed: int = 0, name: str = "balanced"
) -> list[Indices]:
    if bank_of(samplers[name]) is None:
        return list(itertools.islice(samplers[name](y, batch, seed), count))
    return list(samplers[name](bank(y), batch, count, np.random.default_rng(seed)))


def bank(y: NDArray[np.int64], dim: int = 5) -> Bank:
    """A memory bank in which nearby samples are more often of one class."""
    generator = torch.Generator().manual_seed(0)
    number = torch.from_numpy(np.unique(y, return_inverse=True)[1])
    centre = torch.randn(len(y), dim, generator=generator)[number]
    z = normalize(centre + torch.randn(len(y), dim, generator=generator), dim=1)
    return Bank(z, torch.from_numpy(y))


def classes_of(indices: Indices, y: NDArray[np.int64], per_class: int) -> list[int]:
    """The class of each slot of a batch, after checking that its images are side by side."""
    slots = y[indices].reshape(-1, per_class)
    assert (slots == slots[:, :1]).all()
    return [int(label) for label in slots[:, 0]]


shapes = st.tuples(
    st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple),
    st.integers(1, 8),
    st.integers(1, 6),
).filter(lambda shape: shape[1] <= len(shape[0]))


@with_fixed_pattern
@given(shape=shapes, seed=st.integers(0, 2**62))
@few_examples
def test_a_batch_holds_different_classes_with_their_images_side_by_side(
    name: str, shape: tuple[tuple[int, ...], int, int], seed: int
) -> None:
    """Pitfall 37. No class fills two slots."""
    sizes, classes, per_class = shape
    y = labels(sizes)
    for indices in draw(4, y, (classes, per_class), seed, name):
        assert indices.shape == (classes * per_class,)
        assert len(set(classes_of(indices, y, per_class))) == classes


@in_rounds_of_classes
@given(shape=shapes, seed=st.integers(0, 2**62))
@few_examples
def test_every_class_is_drawn_once_before_any_comes_again(
    name: str, shape: tuple[tuple[int, ...], int, int], seed: int
) -> None:
    sizes, classes, per_class = shape
    y = labels(sizes)
    drawn = [
        label
        for indices in draw(3 * len(sizes), y, (classes, per_class), seed, name)
        for label in classes_of(indices, y, per_class)
    ]
    rounds = [drawn[start : start + len(sizes)] for start in range(0, len(drawn), len(sizes))]
    assert all(sorted(part) == list(range(len(sizes))) for part in rounds)


@pytest.mark.parametrize("name", ["balanced", "coreset", "ddm", "frd"])
@given(size=st.integers(1, 9), per_class=st.integers(1, 20), seed=st.integers(0, 2**62))
@few_examples
def test_a_small_class_repeats_its_images_as_evenly_as_possible(
    name: str, size: int, per_class: int, seed: int
) -> None:
    y = labels((size,))
    (indices,) = draw(1, y, (1, per_class), seed, name)
    times = Counter(indices.tolist())
    each = [times[image] for image in range(size)]
    assert sum(each) == per_class
    assert max(each) - min(each) <= 1


@given(size=st.integers(2, 9), per_class=st.integers(2, 20), seed=st.integers(0, 2**62))
@few_examples
def test_no_image_of_an_episode_is_support_and_query(size: int, per_class: int, seed: int) -> None:
    """A query would else be compared with itself."""
    (indices,) = draw(1, labels((size,)), (1, per_class), seed, "episodes")
    support, queries = indices[: per_class // 2].tolist(), indices[per_class // 2 :].tolist()
    assert not set(support) & set(queries)
    assert len(set(support)) == min(per_class // 2, size if per_class <= size else size // 2)


@with_images_of_each_class
def test_a_large_class_repeats_no_image_in_a_slot(name: str) -> None:
    y = labels((30, 30))
    for indices in draw(20, y, (2, 16), name=name):
        assert [len(set(slot)) for slot in indices.reshape(2, 16).tolist()] == [16, 16]


@every_sampler
def test_every_image_comes_up_in_time(name: str) -> None:
    y = labels()
    seen = {index for indices in draw(400, y, (3, 4), name=name) for index in indices.tolist()}
    assert seen == set(range(len(y)))


@with_fixed_pattern
def test_labels_stay_with_their_images_where_a_class_has_fewer_than_wanted(name: str) -> None:
    """Pitfall 36. No label without an image: every index points at an image of the slot's class."""
    y = labels((1, 2, 5))
    for indices in draw(20, y, (3, 4), name=name):
        assert len(indices) == 12
        assert sorted(classes_of(indices, y, 4)) == [0, 1, 2]


def test_labels_stay_with_their_images_where_points_of_a_coreset_share_a_class() -> None:
    """Pitfall 36."""
    y = labels((1, 2, 5))
    for indices in draw(20, y, (6, 4), name="coreset"):
        assert sorted(set(classes_of(indices, y, 4))) == [0, 1, 2]


@in_rounds_of_classes
def test_no_class_fills_two_slots_where_rounds_meet(name: str) -> None:
    """Pitfall 37. 5 classes, 3 a batch: each second batch begins with the rest of a round."""
    y = labels((4,) * 5)
    for seed in range(30):
        for indices in draw(10, y, (3, 2), seed, name):
            assert len(set(classes_of(indices, y, 2))) == 3


@in_rounds_of_classes
def test_no_class_is_left_out_of_an_epoch(name: str) -> None:
    """Pitfall 37. 7 classes, 3 a batch: after 3 batches all have been drawn, after 7 all equally
    often.
    """
    y = labels()
    batches = [classes_of(indices, y, 2) for indices in draw(7, y, (3, 2), name=name)]
    assert {label for part in batches[:3] for label in part} == set(range(7))
    assert set(Counter(label for part in batches for label in part).values()) == {3}


@every_sampler
def test_the_same_seed_gives_the_same_batches_whatever_is_drawn_elsewhere(name: str) -> None:
    """Pitfall 14."""
    y = labels()
    np.random.seed(1)
    torch.manual_seed(1)
    first = draw(10, y, (3, 4), seed=5, name=name)
    np.random.seed(2)
    torch.manual_seed(2)
    second = draw(10, y, (3, 4), seed=5, name=name)
    assert [part.tolist() for part in first] == [part.tolist() for part in second]


@every_sampler
def test_another_seed_gives_other_batches(name: str) -> None:
    y = labels()
    first, second = (draw(10, y, (3, 4), seed=seed, name=name) for seed in (5, 6))
    assert [part.tolist() for part in first] != [part.tolist() for part in second]


@every_sampler
def test_numpy_state_is_left_alone(name: str) -> None:
    np.random.seed(3)
    before = np.random.get_state(legacy=False)["state"]["key"].tolist()
    draw(5, labels(), (3, 4), name=name)
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before


@pytest.mark.parametrize("name", [name for name in samplers if bank_of(samplers[name]) is None])
def test_two_samplers_do_not_disturb_each_other(name: str) -> None:
    y = labels()
    alone = draw(6, y, (3, 4), seed=1, name=name)
    one, other = samplers[name](y, (3, 4), 1), samplers[name](y, (3, 4), 2)
    mixed = []
    for _ in range(6):
        mixed.append(next(one))
        next(other)
    assert [part.tolist() for part in mixed] == [part.tolist() for part in alone]


@every_sampler
def test_a_declared_pattern_of_labels_is_that_of_every_batch(name: str) -> None:
    """Heads on vectors rely on it: their losses get these labels instead of the batch's own."""
    if has_fixed_pattern(samplers[name]):
        y = labels()
        for indices in draw(20, y, (3, 4), name=name):
            assert len(set(classes_of(indices, y, 4))) == 3


def test_a_sampler_declares_no_pattern_unless_it_says_so() -> None:
    def plain(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
        yield from samplers["balanced"](y, batch, seed)

    assert has_fixed_pattern(samplers["balanced"])
    assert not has_fixed_pattern(plain)
    assert has_fixed_pattern(fixed_pattern(plain))


def test_a_batch_without_the_declared_pattern_is_refused() -> None:
    check_pattern("mine", np.array([4, 4, 0, 0, 7, 7]), (3, 2))
    for wrong in ([4, 0, 4, 0, 7, 7], [4, 4, 0, 0, 4, 4], [4, 4, 0, 0], [4, 4, 0, 0, 7, 7, 7]):
        with pytest.raises(BadInput, match=r"mine declares a fixed pattern.*remove @fixed_pattern"):
            check_pattern("mine", np.array(wrong), (3, 2))


@every_sampler
def test_other_names_of_the_classes_change_nothing(name: str) -> None:
    y = labels()
    first, second = (draw(5, given, (7, 3), name=name) for given in (y, y * 10 - 35))
    assert [part.tolist() for part in first] == [part.tolist() for part in second]


@with_fixed_pattern
def test_more_classes_than_there_are_raise_with_both_numbers(name: str) -> None:
    with pytest.raises(ValueError, match="batch of 8 classes cannot be drawn from 7"):
        draw(1, labels(), (8, 2), name=name)


@every_sampler
@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1), (2, 1, 30), SIZES, (40,) * 20])
@pytest.mark.parametrize("batch", [(1, 1), (1, 2), (2, 1), (3, 4), (1, 40), (7, 90)])
def test_a_batch_of_any_shape_is_row_numbers_of_the_training_set(
    name: str, sizes: tuple[int, ...], batch: tuple[int, int]
) -> None:
    batch = min(batch[0], len(sizes)), batch[1]
    y = labels(sizes)
    drawn = draw(3, y, batch, name=name)
    assert len(drawn) == 3
    for indices in drawn:
        assert indices.shape == (batch[0] * batch[1],)
        assert indices.dtype == np.int64
        assert 0 <= indices.min() <= indices.max() < len(y)


# --- Where samplers are from ---


@pytest.mark.parametrize("name", list(samplers))
def test_every_sampler_of_assay_names_its_paper(name: str) -> None:
    paper = paper_of(samplers[name])
    assert paper is not None
    assert 2000 < paper.year < 2100
    assert "/" in paper.url


def test_a_sampler_may_have_no_paper_and_no_bank() -> None:
    def plain(y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
        yield y

    assert (paper_of(plain), bank_of(plain)) == (None, None)
    paper = paper_of(samplers["frd"])
    assert paper_of(cites(paper)(plain)) == paper
    assert bank_of(plans("fresh")(plain)) == "fresh"


# --- random ---


@given(
    size=st.integers(1, 40),
    batch=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    seed=st.integers(0),
)
@few_examples
def test_random_draws_every_image_once_before_any_comes_again(
    size: int, batch: tuple[int, int], seed: int
) -> None:
    y = np.zeros(size, dtype=np.int64)
    batches = draw(2 * size, y, batch, seed, "random")
    drawn = np.concatenate(batches)
    for start in range(0, len(drawn) - size + 1, size):
        assert sorted(drawn[start : start + size].tolist()) == list(range(size))
    for indices in batches:
        times = np.bincount(indices, minlength=size)
        assert len(indices) > size or times.max() == 1


def test_random_does_not_look_at_classes() -> None:
    one_class, many = np.zeros(30, dtype=np.int64), np.arange(30)
    first, second = (draw(9, y, (2, 4), name="random") for y in (one_class, many))
    assert [part.tolist() for part in first] == [part.tolist() for part in second]


# --- spc_r ---


def test_the_last_image_of_spc_r_is_another_one_of_a_class_already_present() -> None:
    y = labels((2, 3, 30, 30))
    for indices in draw(300, y, (4, 1), name="spc_r"):
        *others, last = indices.tolist()
        assert y[last] in y[others]
        assert any(y[other] == y[last] and other != last for other in others)


def test_spc_r_draws_classes_evenly_however_large_and_then_images_evenly() -> None:
    y = labels((2, 3, 40))
    first = [int(indices[0]) for indices in draw(3000, y, (2, 2), name="spc_r")]
    assert_even([(int(y[image]),) for image in first], [(0,), (1,), (2,)])
    assert_even(
        [(image,) for image in first if y[image] == 1],
        [(int(image),) for image in np.flatnonzero(y == 1)],
    )


def test_any_class_present_may_be_that_of_the_last_image_of_spc_r() -> None:
    y = np.repeat(np.arange(1000), 2)
    places = []
    for indices in draw(900, y, (2, 2), name="spc_r"):
        *others, last = y[indices].tolist()
        if len(set(others)) == 3:
            places.append((others.index(last),))
    assert_even(places, [(0,), (1,), (2,)])


# --- episodes ---


def test_episodes_draw_any_classes_again_whatever_came_before() -> None:
    y = labels((3,) * 5)
    drawn = [
        tuple(sorted(classes_of(indices, y, 2)))
        for indices in draw(2000, y, (2, 2), name="episodes")
    ]
    pairs = list(itertools.combinations(range(5), 2))
    assert_even(drawn, pairs)
    following = list(zip(drawn[::2], drawn[1::2], strict=True))
    assert_even(following, list(itertools.product(pairs, repeat=2)))


# --- copies ---


def test_copies_are_of_one_image_of_each_class_any_of_its_images() -> None:
    y = labels((1, 2, 5))
    drawn = [indices.reshape(3, 4) for indices in draw(600, y, (3, 4), name="copies")]
    assert all((slots == slots[:, :1]).all() for slots in drawn)
    images = [(int(image),) for slots in drawn for image in slots[:, 0] if y[image] == 2]
    assert_even(images, [(int(image),) for image in np.flatnonzero(y == 2)])


def test_augmentation_makes_copies_different_views() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(22, 16, 16, 3), dtype=np.uint8)
    ranges = ResolvedAugment(area=(0.3, 1.0), aspect=(0.8, 1.25), flip=0.5, rotation=0, shear=0)
    (indices,) = draw(1, labels((1, 2, 5, 14)), (4, 2), name="copies")
    views = augment(pixels[indices], ranges, 16, torch.Generator().manual_seed(0))
    assert all(not torch.equal(one, other) for one, other in views.reshape(4, 2, -1))


def test_n_pairs_of_identical_copies_still_pushes_classes_apart() -> None:
    """On vectors, which are not augmented."""
    z = torch.tensor([[1.0, 0.2], [0.8, 0.6]]).repeat_interleave(2, dim=0).requires_grad_()
    losses["n_pairs"]()(z, torch.tensor([0, 0, 1, 1])).backward()
    moved = (z - z.grad).detach()
    assert (moved[0] - moved[2]).norm() > (z[0] - z[2]).norm()


# --- Chance is even ---


def places(size: int, per_class: int, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return the images drawn from one class of `size` images, batch by batch."""
    y = np.zeros(size, dtype=np.int64)
    return [tuple(indices.tolist()) for indices in draw(count, y, (1, per_class), seed)]


def assert_even(drawn: list[tuple[int, ...]], possible: list[tuple[int, ...]]) -> None:
    times = Counter(drawn)
    assert set(times) == set(possible)
    assert chisquare([times[one] for one in possible]).pvalue > 0.01


@pytest.mark.parametrize(("size", "per_class"), [(7, 1), (5, 2), (4, 3), (4, 4), (3, 3)])
def test_every_order_of_different_images_is_as_likely_as_any_other(
    size: int, per_class: int
) -> None:
    drawn = places(size, per_class, 80 * size**2, seed=1)
    assert_even(drawn, list(itertools.permutations(range(size), per_class)))


@pytest.mark.parametrize("per_class", [2, 3, 6])
def test_every_image_of_a_large_class_and_every_pair_of_places_is_as_likely_as_any_other(
    per_class: int,
) -> None:
    """Classes of many sizes at once, the one that is looked at in the middle."""
    y = labels((20, 9, 3, per_class, 31))
    own = np.flatnonzero(y == 1)
    number = {image: place for place, image in enumerate(own.tolist())}
    drawn = []
    for indices in draw(1500, y, (5, per_class), seed=2):
        drawn.append([number[image] for image in indices.tolist() if image in number])
    taken = np.array(drawn)
    assert taken.shape == (1500, per_class)
    for column in taken.T:
        assert_even([(place,) for place in column.tolist()], [(place,) for place in range(9)])
    for first, second in itertools.combinations(range(per_class), 2):
        assert_even(
            [tuple(pair) for pair in taken[:, [first, second]].tolist()],
            list(itertools.permutations(range(9), 2)),
        )


@pytest.mark.parametrize(
    ("size", "per_class", "extra"), [(3, 4, 1), (2, 3, 1), (3, 5, 2), (2, 5, 1)]
)
def test_a_small_class_gives_all_its_images_in_any_order_and_then_again(
    size: int, per_class: int, extra: int
) -> None:
    rounds = list(itertools.permutations(range(size)))
    rest = list(itertools.permutations(range(size), extra))
    whole = itertools.product(rounds, repeat=per_class // size)
    possible = [(*itertools.chain(*parts), *more) for parts in whole for more in rest]
    assert_even(places(size, per_class, 1500, seed=3), possible)


def test_one_batch_tells_nothing_of_the_next() -> None:
    drawn = places(4, 1, 3000, seed=4)
    pairs = [(*first, *second) for first, second in zip(drawn[::2], drawn[1::2], strict=True)]
    assert_even(pairs, list(itertools.product(range(4), repeat=2)))


def test_any_two_classes_meet_as_often_as_any_others() -> None:
    y = labels((4,) * 6)
    met = [
        tuple(sorted(classes_of(next(samplers["balanced"](y, (2, 2), seed)), y, 2)))
        for seed in range(1500)
    ]
    assert_even(met, list(itertools.combinations(range(6), 2)))


def test_large_and_small_classes_of_a_batch_do_not_mix() -> None:
    """Pitfall 36. Repeats only where a class has too few images, and then of its own."""
    sizes = (1, 2, 3, 4, 5, 9)
    y = labels(sizes)
    for indices in draw(60, y, (6, 4), seed=5):
        for slot in indices.reshape(6, 4):
            (own,) = set(y[slot].tolist())
            assert len(set(slot.tolist())) == min(4, sizes[own])
