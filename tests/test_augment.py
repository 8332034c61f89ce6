"""Augmentation: each range does what its name says, and nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.data.augment import affine, augment, to_tensor
from assay.protocol import Augment, Look, Protocol, resolve

STILL = Augment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0)
WILD = Augment(area=(0.2, 1.0), aspect=(0.5, 2.0), flip=0.5, rotation=30.0, shear=20.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 5, channels: int = 3, size: int = 12) -> Tensor:
    return torch.rand(count, channels, size, size, generator=generator(9))


def corners(theta_N23: Tensor) -> Tensor:
    """Where the corners of the output lie in the input (N, 4, 2)."""
    square = torch.tensor([[-1.0, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]])
    return square @ theta_N23.transpose(1, 2)


def always(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every uniform number drawn from now on is `value`."""

    def rand(*shape: int, **_: Any) -> Tensor:
        return torch.full(shape, value)

    monkeypatch.setattr(torch, "rand", rand)


# --- Ranges of one point ---


def test_ranges_that_leave_no_choice_leave_the_image_unchanged() -> None:
    x = images()
    torch.testing.assert_close(augment(x, STILL, generator()), x, atol=1e-5, rtol=0)


def test_a_certain_flip_mirrors_every_image() -> None:
    x = images()
    torch.testing.assert_close(augment(x, replace(STILL, flip=1.0), generator()), x.flip(3), atol=1e-5, rtol=0)


def test_half_a_flip_mirrors_about_half_of_the_images() -> None:
    theta = affine(4000, replace(STILL, flip=0.5), generator())
    assert (theta[:, 0, 0] < 0).float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(("drawn", "turns"), [(0.0, -1), (1.0, 1)])
def test_ninety_degrees_turn_the_image_to_either_side(drawn: float, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images()
    always(drawn, monkeypatch)
    turned = augment(x, replace(STILL, rotation=90.0), generator())
    torch.testing.assert_close(turned, torch.rot90(x, turns, (2, 3)), atol=1e-4, rtol=0)


def test_a_rotation_keeps_lengths_and_stays_within_its_angle() -> None:
    linear = affine(500, replace(STILL, rotation=25.0), generator())[:, :, :2]
    torch.testing.assert_close(linear @ linear.transpose(1, 2), torch.eye(2).expand(500, 2, 2), atol=1e-5, rtol=0)
    angles = torch.atan2(linear[:, 1, 0], linear[:, 0, 0]).rad2deg()
    assert angles.abs().max().item() <= 25.001
    assert angles.min().item() < -20
    assert angles.max().item() > 20


def test_a_shear_moves_rows_sideways_only_and_stays_within_its_angle() -> None:
    theta = affine(500, replace(STILL, shear=15.0), generator())
    torch.testing.assert_close(theta[:, 1], torch.tensor([0.0, 1.0, 0.0]).expand(500, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(theta[:, 0, 0], torch.ones(500), atol=1e-6, rtol=0)
    angles = theta[:, 0, 1].atan().rad2deg()
    assert angles.abs().max().item() <= 15.001
    assert angles.abs().max().item() > 12


# --- Crops ---


def test_area_is_area_and_not_side() -> None:
    """Pitfall 17. A quarter of the area is half of each side, not a quarter of it."""
    theta = affine(50, replace(STILL, area=(0.25, 0.25)), generator())
    torch.testing.assert_close(theta[:, 0, 0], torch.full((50,), 0.5), atol=1e-6, rtol=0)
    torch.testing.assert_close(theta[:, 1, 1], torch.full((50,), 0.5), atol=1e-6, rtol=0)


def test_area_is_drawn_evenly_from_its_range() -> None:
    theta = affine(4000, replace(STILL, area=(0.1, 0.9)), generator())
    area = theta[:, 0, 0] * theta[:, 1, 1]
    assert area.min().item() == pytest.approx(0.1, abs=0.01)
    assert area.max().item() == pytest.approx(0.9, abs=0.01)
    assert area.mean().item() == pytest.approx(0.5, abs=0.02)


def test_aspect_is_width_over_height_and_as_often_tall_as_wide() -> None:
    theta = affine(4000, replace(STILL, area=(0.3, 0.3), aspect=(0.5, 2.0)), generator())
    aspect = theta[:, 0, 0] / theta[:, 1, 1]
    assert aspect.min().item() == pytest.approx(0.5, abs=0.02)
    assert aspect.max().item() == pytest.approx(2.0, abs=0.02)
    assert aspect.log().mean().item() == pytest.approx(0, abs=0.03)
    torch.testing.assert_close(theta[:, 0, 0] * theta[:, 1, 1], torch.full((4000,), 0.3), atol=1e-5, rtol=0)


def test_a_wide_crop_is_wide() -> None:
    theta = affine(1, replace(STILL, area=(0.25, 0.25), aspect=(4.0, 4.0)), generator())[0]
    assert theta[0, 0].item() == pytest.approx(1.0, abs=1e-6)
    assert theta[1, 1].item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("ranges", [replace(WILD, rotation=0.0, shear=0.0), replace(STILL, area=(0.9, 1.0), aspect=(0.3, 3.0))])
def test_crops_keep_inside_the_image(ranges: Augment) -> None:
    assert corners(affine(2000, ranges, generator())).abs().max().item() <= 1 + 1e-6


def test_crops_reach_every_corner_of_the_image() -> None:
    reached = corners(affine(4000, replace(STILL, area=(0.25, 0.25)), generator()))
    assert reached.amin((0, 1)).tolist() == pytest.approx([-1, -1], abs=0.02)
    assert reached.amax((0, 1)).tolist() == pytest.approx([1, 1], abs=0.02)


@pytest.mark.parametrize("look", ["drawing", "photo"])
def test_the_automatic_ranges_keep_the_area_and_the_aspect_that_they_declare(look: Look) -> None:
    ranges = resolve(Protocol("p.v1"), look).augment
    theta = affine(2000, replace(ranges, flip=0.0, rotation=0.0, shear=0.0), generator())
    assert ranges.area
    assert ranges.aspect
    area, aspect = theta[:, 0, 0] * theta[:, 1, 1], theta[:, 0, 0] / theta[:, 1, 1]
    assert ranges.area[0] - 1e-5 <= area.min().item() <= area.max().item() <= ranges.area[1] + 1e-5
    assert ranges.aspect[0] - 1e-5 <= aspect.min().item() <= aspect.max().item() <= ranges.aspect[1] + 1e-5


def test_a_turned_and_mirrored_crop_keeps_its_area() -> None:
    theta = affine(300, replace(STILL, area=(0.36, 0.36), rotation=40.0, flip=0.5), generator())
    kept = torch.linalg.det(theta[:, :, :2]).abs()
    torch.testing.assert_close(kept, torch.full((300,), 0.36), atol=1e-5, rtol=0)


def test_a_crop_magnifies_what_it_keeps() -> None:
    """Half of each side at the upper left corner: every pixel of that quarter covers two by two."""
    x = torch.zeros(1, 1, 8, 8)
    x[:, :, :4, :4] = 1
    found = [augment(x, replace(STILL, area=(0.25, 0.25)), generator(seed)).mean().item() for seed in range(40)]
    assert max(found) > 0.8
    assert min(found) < 0.2


# --- Chance ---


def test_parameters_are_drawn_only_from_the_generator_given() -> None:
    x = images()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = augment(x, WILD, generator(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(augment(x, WILD, generator(3)), first)
    assert not torch.equal(augment(x, WILD, generator(4)), first)


def test_the_generator_moves_on_from_batch_to_batch() -> None:
    x, draw = images(), generator()
    assert not torch.equal(augment(x, WILD, draw), augment(x, WILD, draw))


def test_ranges_do_not_decide_how_much_chance_is_used() -> None:
    """So that two protocols that differ in one range draw the same numbers for all others."""
    after = []
    for ranges in (STILL, WILD):
        draw = generator()
        affine(6, ranges, draw)
        after.append(torch.rand(1, generator=draw).item())
    assert after[0] == after[1]


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
    z = torch.randn(4, 7, generator=generator())
    draw = generator()
    assert augment(z, WILD, draw) is z
    assert torch.equal(draw.get_state(), generator().get_state())


def test_colours_stay_between_those_of_the_image() -> None:
    x = images() * 0.5 + 0.25
    changed = augment(x, WILD, generator())
    assert changed.shape == x.shape
    assert x.min() - 1e-6 <= changed.min()
    assert changed.max() <= x.max() + 1e-6


def test_what_falls_outside_takes_the_colour_of_the_border() -> None:
    x = torch.full((8, 3, 10, 10), 0.7)
    torch.testing.assert_close(augment(x, WILD, generator()), x, atol=1e-6, rtol=0)


def test_pixels_become_numbers_from_zero_to_one() -> None:
    x = to_tensor(np.array([[[[0, 51, 255]]]], dtype=np.uint8))
    assert x.dtype == torch.float32
    assert x.flatten().tolist() == pytest.approx([0, 0.2, 1], abs=1e-7)


def test_vectors_become_tensors_as_they_are() -> None:
    vectors = np.array([[-3.0, 700.0]], dtype=np.float32)
    vectors.setflags(write=False)
    x = to_tensor(vectors)
    assert x.tolist() == [[-3.0, 700.0]]
    x[0, 0] = 1
    assert vectors[0, 0] == -3


def test_a_protocol_that_was_not_resolved_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="not resolved"):
        affine(1, Augment(), generator())
