"""Augmentation: crops and scaling as torchvision's; each range does what its name says, and nothing
else.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import chisquare, ks_2samp
from torch import Tensor

import assay.data.augment
from assay.data.augment import (
    affine,
    augment,
    centre,
    cut,
    draw_crops,
    resample,
    to_tensor,
    turn,
    weights,
)
from assay.protocols import Modality, Protocol, ResolvedAugment, resolve
from assay.trunks import trunk_facts
from assay.trunks.torchvision import import_torchvision

Pixels = NDArray[np.uint8]
STILL = ResolvedAugment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0)
WILD = ResolvedAugment(area=(0.2, 1.0), aspect=(0.5, 2.0), flip=0.5, rotation=30.0, shear=20.0)
PUBLISHED = ResolvedAugment(
    area=(0.16, 1.0), aspect=(3 / 4, 4 / 3), flip=0.5, rotation=0.0, shear=0.0
)
"""Those of the reality check."""


@pytest.fixture(scope="module")
def transforms() -> Any:
    import_torchvision()
    from torchvision import transforms

    return transforms


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def picture(height: int = 12, width: int = 12, channels: int = 3, seed: int = 9) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pictures(count: int = 5, size: int = 12) -> Pixels:
    return np.stack([picture(size, size, seed=seed) for seed in range(count)])


def images(count: int = 5, channels: int = 3, size: int = 12) -> Tensor:
    return torch.rand(count, channels, size, size, generator=generator(9))


def shapes_of(height: int, width: int, count: int) -> NDArray[np.int64]:
    return np.tile(np.array([height, width]), (count, 1))


def corners(theta_N23: Tensor) -> Tensor:
    """Return where the corners of the output lie in the input (N, 4, 2)."""
    square = torch.tensor([[-1.0, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]])
    return square @ theta_N23.transpose(1, 2)


def always(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every uniform number drawn from now on be `value`."""

    def rand(*shape: int, **_: Any) -> Tensor:
        return torch.full(shape, value)

    monkeypatch.setattr(torch, "rand", rand)


def turned(x: Tensor, ranges: ResolvedAugment, draw: torch.Generator) -> Tensor:
    return turn(x, ranges, x.shape[3], draw)


# --- Scaling ---


def random_boxes(count: int, seed: int) -> list[tuple[Pixels, tuple[int, int, int, int]]]:
    """Draw images of many shapes, each with a box inside it."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        height, width = draw.integers(1, 70, 2).tolist()
        high, wide = int(draw.integers(1, height + 1)), int(draw.integers(1, width + 1))
        top, left = (
            int(draw.integers(0, height - high + 1)),
            int(draw.integers(0, width - wide + 1)),
        )
        found.append((picture(height, width, seed=number), (top, left, high, wide)))
    return found


EXTREMES = [
    (picture(1, 1), (0, 0, 1, 1)),
    (picture(40, 1), (0, 0, 40, 1)),
    (picture(1, 40), (0, 0, 1, 40)),
    (picture(30, 30), (3, 29, 20, 1)),
    (picture(69, 69), (0, 0, 69, 69)),
    (picture(23, 23), (0, 0, 23, 23)),
    (picture(46, 50), (0, 4, 46, 46)),
]


@pytest.mark.parametrize("size", [1, 7, 23, 32])
def test_scaling_is_torchvisions(size: int, transforms: Any) -> None:
    cases = [*random_boxes(60, size), *EXTREMES]
    mirrored = torch.rand(len(cases), generator=generator()) < 0.5
    crops = [
        image[top : top + high, left : left + wide] for image, (top, left, high, wide) in cases
    ]
    found = resample(crops, mirrored, size)
    assert found.shape == (len(cases), 3, size, size)
    assert found.dtype == torch.float32
    for (image, box), flip, one in zip(cases, mirrored, found, strict=True):
        exact = torch.from_numpy(image).permute(2, 0, 1).float() / 255
        expected = transforms.functional.resized_crop(
            exact, *box, size=[size, size], antialias=True
        )
        expected = transforms.functional.hflip(expected) if flip else expected
        torch.testing.assert_close(one, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [7, 23])
def test_scaling_is_pillows_to_the_nearest_grey_level(size: int) -> None:
    cases = [*random_boxes(60, 50 + size), *EXTREMES]
    crops = [
        image[top : top + high, left : left + wide] for image, (top, left, high, wide) in cases
    ]
    found = (
        resample(crops, torch.zeros(len(cases), dtype=torch.bool), size).permute(0, 2, 3, 1).numpy()
        * 255
    )
    for one, crop in zip(found, crops, strict=True):
        expected = np.asarray(Image.fromarray(crop).resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(one - expected).max() <= 1.01


def test_a_crop_of_the_size_wanted_is_left_as_it_is() -> None:
    x = pictures(size=12)
    assert torch.allclose(
        resample(list(x), torch.zeros(5, dtype=torch.bool), 12), to_tensor(x), atol=1e-6
    )


def test_grey_images_stay_grey() -> None:
    found = resample(
        [picture(9, 7, channels=1), picture(4, 11, channels=1)], torch.tensor([True, False]), 5
    )
    assert found.shape == (2, 1, 5, 5)


def test_scaled_images_come_in_the_layout_of_channels_last() -> None:
    found = resample(list(pictures()), torch.zeros(5, dtype=torch.bool), 8)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_weights_sum_to_one_within_a_line_and_to_nothing_beyond_it() -> None:
    lengths = torch.tensor([1, 2, 9, 30])
    matrices = weights(lengths, 30, 8)
    assert matrices.shape == (4, 8, 30)
    torch.testing.assert_close(matrices.sum(2), torch.ones(4, 8), atol=1e-6, rtol=0)
    for matrix, length in zip(matrices, lengths.tolist(), strict=True):
        assert (matrix[:, length:] == 0).all()
        torch.testing.assert_close(
            matrix[:, :length], matrix[:, :length].flip(0, 1), atol=1e-6, rtol=0
        )


def test_what_lies_beside_an_image_in_the_batch_does_not_leak_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crops = [picture(*shape) for shape in ((5, 40), (40, 5), (1, 1), (17, 23))]
    mirrored = torch.tensor([False, True, False, True])
    together = resample(crops, mirrored, 9)
    for number, crop in enumerate(crops):
        alone = resample([crop], mirrored[number : number + 1], 9)[0]
        torch.testing.assert_close(together[number], alone, atol=1e-6, rtol=0)
    plain = assay.data.augment._pad

    def on_white(crops: Any) -> Pixels:
        batch = plain(crops)
        for row, crop in zip(batch, crops, strict=True):
            row[crop.shape[0] :], row[:, crop.shape[1] :] = 255, 255
        return batch

    monkeypatch.setattr(assay.data.augment, "_pad", on_white)
    assert torch.equal(resample(crops, mirrored, 9), together)


def test_an_array_and_a_list_of_images_are_treated_alike() -> None:
    x = pictures(8, 20)
    together, ragged = (augment(samples, PUBLISHED, 16, generator(4)) for samples in (x, list(x)))
    assert torch.equal(together, ragged)
    assert torch.equal(centre(x, 13), centre(list(x), 13))


def test_images_of_any_shapes_become_one_batch() -> None:
    ragged = [picture(*shape) for shape in ((30, 20), (20, 45), (20, 20))]
    found = augment(ragged, PUBLISHED, 16, generator(1))
    assert found.shape == (3, 3, 16, 16)
    boxes, mirrored = draw_crops(np.array([[30, 20], [20, 45], [20, 20]]), PUBLISHED, generator(1))
    assert torch.equal(found, resample(cut(ragged, boxes), mirrored, 16))


# --- The centre ---


@pytest.mark.parametrize("size", [5, 6, 12])
def test_the_centre_is_torchvisions(size: int, transforms: Any) -> None:
    ragged = [
        picture(*shape)
        for shape in (
            (12, 12),
            (13, 12),
            (12, 13),
            (15, 17),
            (16, 15),
            (12, 30),
            (31, 12),
            (14, 14),
        )
    ]
    found = centre(ragged, size)
    assert found.shape == (8, 3, size, size)
    for image, one in zip(ragged, found, strict=True):
        exact = torch.from_numpy(image).permute(2, 0, 1)
        assert torch.equal((one * 255).round().byte(), transforms.CenterCrop(size)(exact))


@pytest.mark.parametrize(("stored", "size"), [(12, 12), (12, 11), (13, 10), (13, 7)])
def test_the_centre_of_even_arrays_is_torchvisions(stored: int, size: int, transforms: Any) -> None:
    x = pictures(3, stored)
    expected = transforms.CenterCrop(size)(torch.from_numpy(x).permute(0, 3, 1, 2))
    assert torch.equal((centre(x, size) * 255).round().byte(), expected)


# --- Crops: the distribution is torchvision's ---

WORLDS = {
    "a wide photo": (48, 72, PUBLISHED),
    "a tall photo": (90, 40, PUBLISHED),
    "a square": (60, 60, replace(PUBLISHED, area=(0.4, 1.0))),
    "many tries fail": (30, 120, replace(PUBLISHED, area=(0.3, 0.6))),
    "lopsided aspect": (50, 50, replace(PUBLISHED, area=(0.1, 0.5), aspect=(1.0, 3.0))),
}


@pytest.mark.parametrize("world", list(WORLDS))
def test_crops_have_the_distribution_of_torchvisions(world: str, transforms: Any) -> None:
    height, width, ranges = WORLDS[world]
    count = 3000
    boxes, _ = draw_crops(shapes_of(height, width, count), ranges, generator(11))
    torch.manual_seed(12)
    blank = torch.zeros(1, height, width)
    theirs = np.array(
        [
            transforms.RandomResizedCrop.get_params(blank, ranges.area, ranges.aspect)
            for _ in range(count)
        ]
    )
    for name, measure in {
        "area": lambda box: box[:, 2] * box[:, 3],
        "aspect": lambda box: box[:, 3] / box[:, 2],
        "height": lambda box: box[:, 2],
        "top": lambda box: box[:, 0],
        "left": lambda box: box[:, 1],
        "bottom": lambda box: box[:, 0] + box[:, 2],
        "middle": lambda box: 2 * box[:, 1] + box[:, 3],
    }.items():
        assert ks_2samp(measure(boxes), measure(theirs), method="asymp").pvalue > 0.01, name


def test_area_is_area_and_not_side() -> None:
    """Pitfall 17. A quarter of the area is half of each side, not a quarter of it."""
    boxes, _ = draw_crops(shapes_of(64, 64, 20), replace(STILL, area=(0.25, 0.25)), generator())
    assert (boxes[:, 2:] == 32).all()


def test_aspect_is_width_over_height() -> None:
    boxes, _ = draw_crops(
        shapes_of(64, 64, 20), replace(STILL, area=(0.25, 0.25), aspect=(4.0, 4.0)), generator()
    )
    assert (boxes[:, 2:] == [16, 64]).all()


@pytest.mark.parametrize(
    "ranges",
    [PUBLISHED, replace(PUBLISHED, area=(0.01, 0.02)), replace(PUBLISHED, area=(0.9, 1.0))],
)
def test_crops_keep_inside_their_images(ranges: ResolvedAugment) -> None:
    shapes = np.random.default_rng(0).integers(1, 60, (3000, 2))
    boxes, _ = draw_crops(shapes, ranges, generator())
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= shapes).all()


def test_every_place_of_a_crop_is_as_likely_as_any_other() -> None:
    """5 by 5 places, those at the far edges among them."""
    boxes, _ = draw_crops(
        shapes_of(12, 12, 5000), replace(STILL, area=(64 / 144, 64 / 144)), generator(2)
    )
    assert (boxes[:, 2:] == 8).all()
    places = np.bincount(boxes[:, 0] * 5 + boxes[:, 1], minlength=25)
    assert len(places) == 25
    assert chisquare(places).pvalue > 0.01


@pytest.mark.parametrize(
    ("height", "width", "area", "aspect"),
    [
        (10, 300, (0.9, 1.0), (3 / 4, 4 / 3)),
        (300, 11, (0.9, 1.0), (3 / 4, 4 / 3)),
        (1, 50, (0.9, 1.0), (3 / 4, 4 / 3)),
        (50, 1, (0.9, 1.0), (3 / 4, 4 / 3)),
        (31, 31, (1.0, 1.0), (2.0, 2.0)),
        (31, 31, (1.0, 1.0), (0.4, 0.4)),
        (3, 3, (0.001, 0.002), (0.9, 1.1)),
        (40, 41, (0.0001, 0.0001), (0.5, 2.0)),
    ],
)
def test_where_no_draw_fits_the_crop_is_torchvisions(
    height: int, width: int, area: tuple[float, float], aspect: tuple[float, float], transforms: Any
) -> None:
    ranges = replace(PUBLISHED, area=area, aspect=aspect)
    expected = transforms.RandomResizedCrop.get_params(torch.zeros(1, height, width), area, aspect)
    boxes, _ = draw_crops(shapes_of(height, width, 5), ranges, generator())
    assert (boxes == np.array(expected)).all()


def test_images_of_a_batch_are_cropped_independently() -> None:
    """The same numbers in an image of another shape give another crop of the same share."""
    boxes, mirrored = draw_crops(shapes_of(100, 100, 400), PUBLISHED, generator(5))
    measures = np.stack(
        [
            np.log(boxes[:, 2] * boxes[:, 3]),
            np.log(boxes[:, 3] / boxes[:, 2]),
            boxes[:, 0] / (101 - boxes[:, 2]),
            boxes[:, 1] / (101 - boxes[:, 3]),
            mirrored.numpy(),
        ]
    )
    own = np.corrcoef(measures) - np.eye(5)
    next_one = np.corrcoef(measures[:, 1:], measures[:, :-1])[:5, 5:]
    assert np.abs(own).max() < 0.2
    assert np.abs(next_one).max() < 0.2


# --- Mirror images ---


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_certain_flip_mirrors_every_image_and_an_impossible_one_none(flip: float) -> None:
    x = pictures()
    found = augment(x, replace(STILL, flip=flip), 12, generator())
    torch.testing.assert_close(
        found, to_tensor(x).flip(3) if flip else to_tensor(x), atol=1e-6, rtol=0
    )


def test_half_a_flip_mirrors_about_half_of_the_images() -> None:
    _, mirrored = draw_crops(shapes_of(10, 10, 4000), PUBLISHED, generator())
    assert mirrored.float().mean().item() == pytest.approx(0.5, abs=0.04)
    _, mirrored = draw_crops(shapes_of(10, 10, 4000), replace(PUBLISHED, flip=0.1), generator())
    assert mirrored.float().mean().item() == pytest.approx(0.1, abs=0.03)


# --- Turned and sheared: ranges of one point ---


def test_ranges_that_leave_no_choice_leave_the_image_unchanged() -> None:
    x = images()
    torch.testing.assert_close(turned(x, STILL, generator()), x, atol=1e-5, rtol=0)


def test_a_certain_flip_mirrors_every_turned_image() -> None:
    x = images()
    torch.testing.assert_close(
        turned(x, replace(STILL, flip=1.0), generator()), x.flip(3), atol=1e-5, rtol=0
    )


def test_half_a_flip_mirrors_about_half_of_the_turned_images() -> None:
    theta = affine(4000, replace(STILL, flip=0.5), generator())
    assert (theta[:, 0, 0] < 0).float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(("drawn", "turns"), [(0.0, -1), (1.0, 1)])
def test_ninety_degrees_turn_the_image_to_either_side(
    drawn: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = pictures()
    always(drawn, monkeypatch)
    found = augment(x, replace(STILL, rotation=90.0), 12, generator())
    torch.testing.assert_close(found, torch.rot90(to_tensor(x), turns, (2, 3)), atol=1e-4, rtol=0)


def test_a_rotation_keeps_lengths_and_stays_within_its_angle() -> None:
    linear = affine(500, replace(STILL, rotation=25.0), generator())[:, :, :2]
    torch.testing.assert_close(
        linear @ linear.transpose(1, 2), torch.eye(2).expand(500, 2, 2), atol=1e-5, rtol=0
    )
    angles = torch.atan2(linear[:, 1, 0], linear[:, 0, 0]).rad2deg()
    assert angles.abs().max().item() <= 25.001
    assert angles.min().item() < -20
    assert angles.max().item() > 20


def test_a_shear_moves_rows_sideways_only_and_stays_within_its_angle() -> None:
    theta = affine(500, replace(STILL, shear=15.0), generator())
    torch.testing.assert_close(
        theta[:, 1], torch.tensor([0.0, 1.0, 0.0]).expand(500, 3), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(theta[:, 0, 0], torch.ones(500), atol=1e-6, rtol=0)
    angles = theta[:, 0, 1].atan().rad2deg()
    assert angles.abs().max().item() <= 15.001
    assert angles.abs().max().item() > 12


@pytest.mark.parametrize("ranges", [replace(STILL, rotation=15.0), replace(STILL, shear=15.0)])
def test_a_range_of_rotation_or_of_shear_alone_turns_images(ranges: ResolvedAugment) -> None:
    x = pictures()
    assert not torch.allclose(augment(x, ranges, 12, generator()), to_tensor(x), atol=0.1)
    assert torch.equal(
        augment(x, ranges, 12, generator()), turn(to_tensor(x), ranges, 12, generator())
    )


def test_images_that_keep_their_shapes_are_not_turned() -> None:
    with pytest.raises(AssertionError, match="one shape"):
        augment(list(pictures()), WILD, 12, generator())


def test_turned_images_have_the_size_asked_for() -> None:
    assert augment(pictures(size=20), WILD, 8, generator()).shape == (5, 3, 8, 8)


# --- Crops of turned images ---


def test_area_of_a_turned_crop_is_area_and_not_side() -> None:
    """Pitfall 17."""
    theta = affine(50, replace(STILL, area=(0.25, 0.25)), generator())
    torch.testing.assert_close(theta[:, 0, 0], torch.full((50,), 0.5), atol=1e-6, rtol=0)
    torch.testing.assert_close(theta[:, 1, 1], torch.full((50,), 0.5), atol=1e-6, rtol=0)


def test_area_is_drawn_evenly_from_its_range() -> None:
    theta = affine(4000, replace(STILL, area=(0.1, 0.9)), generator())
    area = theta[:, 0, 0] * theta[:, 1, 1]
    assert area.min().item() == pytest.approx(0.1, abs=0.01)
    assert area.max().item() == pytest.approx(0.9, abs=0.01)
    assert area.mean().item() == pytest.approx(0.5, abs=0.02)


def test_aspect_of_a_turned_crop_is_width_over_height_and_as_often_tall_as_wide() -> None:
    theta = affine(4000, replace(STILL, area=(0.3, 0.3), aspect=(0.5, 2.0)), generator())
    aspect = theta[:, 0, 0] / theta[:, 1, 1]
    assert aspect.min().item() == pytest.approx(0.5, abs=0.02)
    assert aspect.max().item() == pytest.approx(2.0, abs=0.02)
    assert aspect.log().mean().item() == pytest.approx(0, abs=0.03)
    torch.testing.assert_close(
        theta[:, 0, 0] * theta[:, 1, 1], torch.full((4000,), 0.3), atol=1e-5, rtol=0
    )


def test_a_wide_crop_is_wide() -> None:
    theta = affine(1, replace(STILL, area=(0.25, 0.25), aspect=(4.0, 4.0)), generator())[0]
    assert theta[0, 0].item() == pytest.approx(1.0, abs=1e-6)
    assert theta[1, 1].item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize(
    "ranges",
    [replace(WILD, rotation=0.0, shear=0.0), replace(STILL, area=(0.9, 1.0), aspect=(0.3, 3.0))],
)
def test_crops_to_be_turned_keep_inside_the_image(ranges: ResolvedAugment) -> None:
    assert corners(affine(2000, ranges, generator())).abs().max().item() <= 1 + 1e-6


def test_crops_reach_every_corner_of_the_image() -> None:
    reached = corners(affine(4000, replace(STILL, area=(0.25, 0.25)), generator()))
    assert reached.amin((0, 1)).tolist() == pytest.approx([-1, -1], abs=0.02)
    assert reached.amax((0, 1)).tolist() == pytest.approx([1, 1], abs=0.02)


@pytest.mark.parametrize("modality", ["drawing", "photo"])
def test_the_automatic_ranges_keep_the_area_and_the_aspect_that_they_declare(
    modality: Modality,
) -> None:
    ranges = resolve(Protocol("p.v1"), modality, trunk_facts).augment
    theta = affine(2000, replace(ranges, flip=0.0, rotation=0.0, shear=0.0), generator())
    assert ranges.area
    assert ranges.aspect
    area, aspect = theta[:, 0, 0] * theta[:, 1, 1], theta[:, 0, 0] / theta[:, 1, 1]
    assert ranges.area[0] - 1e-5 <= area.min().item() <= area.max().item() <= ranges.area[1] + 1e-5
    assert (
        ranges.aspect[0] - 1e-5
        <= aspect.min().item()
        <= aspect.max().item()
        <= ranges.aspect[1] + 1e-5
    )


def test_a_turned_and_mirrored_crop_keeps_its_area() -> None:
    theta = affine(300, replace(STILL, area=(0.36, 0.36), rotation=40.0, flip=0.5), generator())
    kept = torch.linalg.det(theta[:, :, :2]).abs()
    torch.testing.assert_close(kept, torch.full((300,), 0.36), atol=1e-5, rtol=0)


def test_a_crop_magnifies_what_it_keeps() -> None:
    """Half of each side at the upper left corner: every pixel of that quarter covers two by two."""
    x = torch.zeros(1, 1, 8, 8)
    x[:, :, :4, :4] = 1
    found = [
        turned(x, replace(STILL, area=(0.25, 0.25)), generator(seed)).mean().item()
        for seed in range(40)
    ]
    assert max(found) > 0.8
    assert min(found) < 0.2


# --- Chance ---


@pytest.mark.parametrize("ranges", [WILD, PUBLISHED])
def test_parameters_are_drawn_only_from_the_generator_given(ranges: ResolvedAugment) -> None:
    """Pitfall 14."""
    x = pictures()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = augment(x, ranges, 12, generator(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(augment(x, ranges, 12, generator(3)), first)
    assert not torch.equal(augment(x, ranges, 12, generator(4)), first)


@pytest.mark.parametrize("ranges", [WILD, PUBLISHED])
def test_the_generator_moves_on_from_batch_to_batch(ranges: ResolvedAugment) -> None:
    x, draw = pictures(), generator()
    assert not torch.equal(augment(x, ranges, 12, draw), augment(x, ranges, 12, draw))


def test_ranges_and_shapes_do_not_decide_how_much_chance_is_used() -> None:
    """Two protocols that differ in one range draw the same numbers for all others."""

    def next_after(ranges: ResolvedAugment, shapes: NDArray[np.int64]) -> list[float]:
        turning, cropping = generator(), generator()
        affine(6, ranges, turning)
        draw_crops(shapes, ranges, cropping)
        return [torch.rand(1, generator=draw).item() for draw in (turning, cropping)]

    assert next_after(STILL, shapes_of(9, 9, 6)) == next_after(WILD, shapes_of(1, 90, 6))


def test_each_image_has_parameters_of_its_own() -> None:
    theta = affine(6, WILD, generator())
    assert len({tuple(matrix.flatten().tolist()) for matrix in theta}) == 6


def test_parameters_of_an_image_are_drawn_independently_of_each_other() -> None:
    crops = affine(4000, replace(WILD, area=(0.2, 0.4), rotation=0.0, shear=0.0), generator(1))
    width, height = crops[:, 0, 0].abs(), crops[:, 1, 1]
    turns = affine(4000, replace(STILL, rotation=30.0, shear=20.0, area=(0.2, 0.4)), generator(1))
    angle = torch.atan2(turns[:, 1, 0], turns[:, 0, 0])
    sheared = angle.cos() * turns[:, 0, 1] + angle.sin() * turns[:, 1, 1]
    drawn = {
        "area": width * height,
        "aspect": (width / height).log(),
        "left": crops[:, 0, 2] / (1 - width),
        "top": crops[:, 1, 2] / (1 - height),
        "mirror": crops[:, 0, 0].sign(),
        "angle": angle,
        "slant": sheared / turns[:, 0, 0].hypot(turns[:, 1, 0]),
    }
    correlation = torch.corrcoef(torch.stack(list(drawn.values()))) - torch.eye(len(drawn))
    assert correlation.abs().max().item() < 0.07


# --- Pixels and vectors ---


def test_vectors_pass() -> None:
    z = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    for ranges in (WILD, PUBLISHED):
        draw = generator()
        assert augment(z, ranges, 0, draw).tolist() == z.tolist()
        assert torch.equal(draw.get_state(), generator().get_state())
    assert centre(z, 0).tolist() == z.tolist()


def test_colours_stay_between_those_of_the_image() -> None:
    x = np.full((6, 12, 12, 3), 64, dtype=np.uint8)
    x[:, 3:9, 2:7] = 192
    for ranges in (WILD, PUBLISHED):
        changed = augment(x, ranges, 10, generator()) * 255
        assert changed.min().item() >= 64 - 1e-3
        assert changed.max().item() <= 192 + 1e-3


def test_what_falls_outside_takes_the_colour_of_the_border() -> None:
    x = torch.full((8, 3, 10, 10), 0.7)
    torch.testing.assert_close(turned(x, WILD, generator()), x, atol=1e-6, rtol=0)


def test_pixels_become_numbers_from_zero_to_one_with_the_channels_first() -> None:
    x = to_tensor(np.array([[[[0, 51, 255]], [[255, 0, 102]]]], dtype=np.uint8))
    assert x.dtype == torch.float32
    assert x.shape == (1, 3, 2, 1)
    assert x.flatten().tolist() == pytest.approx([0, 1, 0.2, 0, 1, 0.4], abs=1e-7)


def test_vectors_become_tensors_as_they_are() -> None:
    vectors = np.array([[-3.0, 700.0]], dtype=np.float32)
    vectors.setflags(write=False)
    x = to_tensor(vectors)
    assert x.tolist() == [[-3.0, 700.0]]
    x[0, 0] = 1
    assert vectors[0, 0] == -3


def test_images_that_cannot_be_written_to_are_read_in_silence() -> None:
    """Packs are memory-mapped."""
    x = pictures()
    x.setflags(write=False)
    for samples in (x, list(x)):
        assert augment(samples, PUBLISHED, 8, generator()).shape == (5, 3, 8, 8)
        assert centre(samples, 8).shape == (5, 3, 8, 8)
