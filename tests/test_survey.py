"""A survey finds each problem that is planted in a data set, and none where there is none."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from assay.data import Dataset, inspect, load, splits
from assay.data.contact_sheet import (
    BROKEN,
    CELL,
    CLASSES,
    GAP,
    IMAGES,
    MARGIN,
    MOUNT,
    NAME_WIDTH,
    draw_sheet,
)
from assay.data.copies import find_flaws, flaws_of_trainval, near_pairs
from assay.data.image_files import ImageFiles
from assay.data.sources.features import Features
from assay.data.survey import BARS, Copies, Size, histogram, survey
from assay.errors import BadInput
from assay.protocols import Protocol
from miniature import SIDE


def vectors(sizes: list[int], **more: object) -> Dataset:
    """Make a data set of vectors with so many samples in each class."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    z = np.random.default_rng(0).normal(size=(len(labels), 3)).astype(np.float32)
    names = tuple(f"class-{number:03}" for number in range(len(sizes)))
    made = Dataset(
        "made",
        "features",
        labels,
        names,
        [f"sample-{row}" for row in range(len(labels))],
        Features(z),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def photo(path: Path, width: int, height: int, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(path)


def photos(root: Path, classes: int = 16, images: int = 2) -> Path:
    """Draw photos of 40 x 50 pixels, all different."""
    for number in range(classes):
        for image in range(images):
            photo(root / f"c{number:02}" / f"{image}.png", 40, 50, seed=100 * number + image)
    return root


# --- counts ---------------------------------------------------------------------------------------


def test_nothing_is_wrong_where_nothing_is_wrong(tmp_path: Path) -> None:
    found = survey(inspect(f"folder:{photos(tmp_path / 'fine')}"))
    assert not any(vars(found.problems).values())
    assert (found.classes, found.samples, found.inputs, found.classes_with_one_sample) == (
        16,
        32,
        3,
        0,
    )
    assert found.roles is None


def test_samples_per_class_are_counted() -> None:
    found = survey(vectors([1, 1, 2, 4, 12]))
    assert vars(found.samples_per_class) == {
        "least": 1, "first_quartile": 1, "median": 2, "third_quartile": 4, "most": 12, "mean": 4
    }  # fmt: skip
    assert found.problems.single == ("class-000", "class-001")
    assert found.classes_with_one_sample == 2
    assert found.sizes is None


def test_a_data_set_without_samples_is_no_obstacle() -> None:
    found = survey(vectors([]))
    assert (
        found.classes,
        found.samples,
        found.samples_per_class,
        found.histogram,
        found.sizes,
    ) == (0, 0, None, (), None)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_bars_count_every_class_once(per_class: list[int]) -> None:
    bars = histogram(np.array(per_class))
    assert [sum(bar.least <= one <= bar.most for one in per_class) for bar in bars] == [
        bar.classes for bar in bars
    ]
    assert sum(bar.classes for bar in bars) == len(per_class)
    assert (bars[0].least, bars[-1].most) == (min(per_class), max(per_class))
    assert all(one.most + 1 == other.least for one, other in pairwise(bars))
    assert len(bars) <= max(BARS, max(per_class).bit_length() + 1)


def test_bars_double_where_few_classes_have_very_many_samples() -> None:
    found = [(bar.least, bar.most, bar.classes) for bar in histogram(np.array([2, 2, 3, 5, 100]))]
    assert found == [(2, 3, 3), (4, 7, 1), (8, 15, 0), (16, 31, 0), (32, 63, 0), (64, 100, 1)]


def test_sizes_are_ranked_by_area(tmp_path: Path) -> None:
    for number, (width, height) in enumerate([(50, 40), (40, 40), (90, 70), (50, 40), (60, 60)]):
        photo(tmp_path / "d" / "c" / f"{number}.png", width, height, seed=number)
    sizes = survey(inspect(f"folder:{tmp_path / 'd'}")).sizes
    assert sizes is not None
    assert (sizes.smallest, sizes.median, sizes.largest) == (
        Size(40, 40, 1),
        Size(50, 40, 2),
        Size(90, 70, 1),
    )
    assert sizes.commonest[0] == Size(50, 40, 2)


def test_glyphs_have_one_size() -> None:
    found = survey(load("glyphs"))
    assert found.sizes is not None
    assert found.sizes.smallest == found.sizes.largest == Size(28, 28, found.samples)
    assert found.problems.tiny == ()  # drawings are small on purpose


# --- problems -------------------------------------------------------------------------------------


def test_every_unreadable_file_is_found_and_is_no_copy(tmp_path: Path) -> None:
    root = photos(tmp_path / "d")
    for name in ("c00/x.png", "c00/y.png", "c12/z.jpg"):
        (root / name).write_bytes(b"")
    (root / "c03" / "cut.png").write_bytes((root / "c03" / "0.png").read_bytes()[:60])
    problems = survey(inspect(f"folder:{root}")).problems
    assert [one.sample for one in problems.unreadable] == [
        "c00/x.png",
        "c00/y.png",
        "c03/cut.png",
        "c12/z.jpg",
    ]
    assert "the file is empty" in problems.unreadable[0].problem
    assert problems.leaks == problems.ambiguous == problems.repeats == problems.tiny == ()


def test_copies_are_sorted_by_the_harm_they_do(tmp_path: Path) -> None:
    root = photos(tmp_path / "d")
    shutil.copy(root / "c01/0.png", root / "c01/again.png")
    shutil.copy(root / "c02/0.png", root / "c03/noise.png")
    shutil.copy(root / "c04/0.png", root / "c09/leak.png")
    shutil.copy(root / "c04/0.png", root / "c09/twice.png")
    problems = survey(inspect(f"folder:{root}")).problems
    noise = Copies(("c02/0.png", "c03/noise.png"), ("c02", "c03"))
    leak = Copies(("c04/0.png", "c09/leak.png", "c09/twice.png"), ("c04", "c09", "c09"))
    assert problems.leaks == (leak,)
    assert problems.ambiguous == (noise, leak)
    assert [copies.samples for copies in problems.repeats] == [
        ("c01/0.png", "c01/again.png"),
        ("c09/leak.png", "c09/twice.png"),
    ]


def test_copies_of_vectors_are_found() -> None:
    dataset = vectors([2] * 16)
    assert isinstance(dataset.items, Features)
    dataset.items.z[31] = dataset.items.z[0]
    assert survey(dataset).problems.leaks == (
        Copies(("sample-0", "sample-31"), ("class-000", "class-015")),
    )


def test_tiny_and_long_images_are_found(tmp_path: Path) -> None:
    root = photos(tmp_path / "d")
    photo(root / "c00" / "tiny.png", 31, 90)
    photo(root / "c00" / "edge.png", 32, 160)
    photo(root / "c00" / "wide.png", 400, 40)
    problems = survey(inspect(f"folder:{root}")).problems
    assert [(one.sample, one.width, one.height) for one in problems.tiny] == [
        ("c00/tiny.png", 31, 90)
    ]
    assert [(one.sample, one.width, one.height) for one in problems.long] == [
        ("c00/wide.png", 400, 40)
    ]


def resave(source: Path, target: Path, scale: float = 0.6) -> None:
    """Save the same picture in another size and format."""
    with Image.open(source) as image:
        smaller = image.convert("RGB").resize(
            (round(image.width * scale), round(image.height * scale))
        )
    smaller.save(target, quality=70)


def test_a_picture_that_was_saved_anew_is_a_near_copy(tmp_path: Path) -> None:
    root = photos(tmp_path / "d")
    resave(root / "c04/0.png", root / "c09/smaller.jpg")
    problems = survey(inspect(f"folder:{root}")).problems
    assert problems.near == (Copies(("c04/0.png", "c09/smaller.jpg"), ("c04", "c09")),)
    assert problems.leaks == problems.ambiguous == problems.repeats == ()


def test_copies_blank_images_and_drawings_are_no_near_copies(tmp_path: Path) -> None:
    root = photos(tmp_path / "d")
    shutil.copy(root / "c01/0.png", root / "c09/same.png")
    for number, colour in enumerate(("white", "grey", "black")):
        Image.new("RGB", (40, 40), colour).save(root / "c02" / f"blank{number}.png")
    dataset = inspect(f"folder:{root}")
    assert survey(dataset).problems.near == ()
    resave(root / "c04/0.png", root / "c09/smaller.jpg")
    assert survey(replace(inspect(f"folder:{root}"), modality="drawing")).problems.near == ()


@given(st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_near_vectors_are_those_that_all_pairs_would_give(seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(60, 32)).astype(np.float32)
    x[40:] = x[:20] + draw.normal(size=(20, 32)).astype(np.float32) * 0.002
    x[7] = 0
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    rows, columns = np.nonzero(np.triu(unit @ unit.T >= 0.9999, k=1))
    assert near_pairs(x, 0.9999) == np.stack([rows, columns], axis=1).tolist()
    assert len(rows) == 19


def test_narrow_vectors_have_no_near_copies() -> None:
    dataset = vectors([2] * 16)
    assert isinstance(dataset.items, Features)
    dataset.items.z[31] = dataset.items.z[0] * 1.5
    assert survey(dataset).problems.near == ()


# --- what a bench reports -------------------------------------------------------------------------


def test_what_concerns_trainval_alone_is_kept_apart(tmp_path: Path) -> None:
    root = photos(tmp_path / "d")
    shutil.copy(root / "c01/0.png", root / "c01/again.png")
    shutil.copy(root / "c02/0.png", root / "c03/noise.png")
    shutil.copy(root / "c04/0.png", root / "c09/leak.png")
    shutil.copy(root / "c10/0.png", root / "c11/noise.png")
    resave(root / "c05/0.png", root / "c12/smaller.jpg")
    flaws = find_flaws(inspect(f"folder:{root}"))
    conflict = "1 image of trainval with more than one label, such as c02/0.png = c03/noise.png"
    leak = "1 image in both trainval and the test half, such as c04/0.png = c09/leak.png"
    other = "1 image of the test half with more than one label, such as c10/0.png = c11/noise.png"
    near = (
        "1 image in trainval nearly the same as one in the test half, such as c05/0.png ="
        " c12/smaller.jpg"
    )
    assert flaws.of_trainval == (
        conflict,
        "1 image more than once in a class of trainval, such as c01/0.png = c01/again.png",
    )
    assert flaws.of_test == (leak, other, near)
    assert flaws.refusal is not None
    assert flaws.refusal.startswith(f"folder:d: {leak}; {conflict}; {other}. ")
    assert flaws.refusal.endswith("or bench them as they are with --allow-leaks")


def test_official_data_and_copies_inside_a_class_and_near_copies_are_not_refused(
    tmp_path: Path,
) -> None:
    root = photos(tmp_path / "d")
    shutil.copy(root / "c01/0.png", root / "c01/again.png")
    resave(root / "c05/0.png", root / "c12/smaller.jpg")
    assert find_flaws(inspect(f"folder:{root}")).refusal is None
    shutil.copy(root / "c04/0.png", root / "c09/leak.png")
    published = replace(inspect(f"folder:{root}"), official=True)
    assert find_flaws(published).refusal is None
    assert any(
        "in both trainval and the test half" in text for text in find_flaws(published).of_test
    )


@given(st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_what_may_be_announced_depends_on_nothing_in_the_test_half(seed: int) -> None:
    """The same content in two classes of trainval and in the test half is a conflict with or
    without the test half.
    """
    draw = np.random.default_rng(seed)
    order = draw.permutation(32)
    dataset = vectors([2] * 16)
    assert isinstance(dataset.items, Features)
    z, labels = dataset.items.z, dataset.labels[order]
    z[:] = draw.integers(0, 12, len(z))[:, None]
    shuffled = replace(dataset, labels=labels, items=Features(z))
    other = z.copy()
    other[labels >= 8] = draw.normal(size=other[labels >= 8].shape)
    assert flaws_of_trainval(shuffled) == flaws_of_trainval(
        replace(shuffled, items=Features(other))
    )


@pytest.mark.parametrize(("classes", "official"), [(16, None), (17, None), (30, 8), (30, 20)])
def test_leaks_are_seen_across_the_halves_that_a_bench_would_make(
    classes: int, official: int | None
) -> None:
    dataset = vectors([2] * classes, trainval=official)
    trainval, _ = splits.of(dataset, Protocol("p.v1"))
    assert dataset.first_test_class == len(trainval.class_names)


def test_roles_count_in_the_test_half_only() -> None:
    query, gallery = np.zeros(6, dtype=bool), np.zeros(6, dtype=bool)
    query[[0, 2, 4]] = gallery[[1, 2, 3]] = True  # rows 0 and 1 are trainval's
    found = survey(
        vectors(
            [2, 2, 2], trainval=1, query=query, gallery=gallery, metadata={"bird": list("aabbcc")}
        )
    )
    assert found.roles is not None
    assert vars(found.roles) == {
        "queries": 2,
        "gallery": 2,
        "both": 1,
        "neither": 1,
        "unanswerable": 1,
    }
    assert found.metadata == {"bird": 3}


def test_a_sample_is_asked_for_its_hash_once_and_no_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = inspect(f"folder:{photos(tmp_path / 'd')}")
    calls = []
    real = ImageFiles.digest
    monkeypatch.setattr(
        ImageFiles, "digest", lambda items, index: calls.append(index) or real(items, index)
    )
    shutil.rmtree(tmp_path / "d")
    survey(dataset)
    assert sorted(calls) == list(range(len(dataset.labels)))


# --- the contact sheet ----------------------------------------------------------------------------


def cell(sheet: Image.Image, row: int, column: int) -> np.ndarray:
    top = sheet.height - MARGIN + GAP - (CELL + GAP) * (CLASSES - row)
    left = MARGIN + NAME_WIDTH + column * (CELL + GAP)
    return np.asarray(sheet.crop((left, top, left + CELL, top + CELL)))


def test_a_sheet_shows_classes_from_first_to_last(tmp_path: Path) -> None:
    root = photos(tmp_path / "d", classes=23, images=1)
    Image.new("RGB", (60, 60), "#ff0000").save(root / "c00" / "0.png")
    Image.new("RGB", (60, 60), "#0000ff").save(root / "c22" / "0.png")
    sheet = draw_sheet(inspect(f"folder:{root}"))
    assert sheet.width == 2 * MARGIN + NAME_WIDTH + CELL
    assert (cell(sheet, 0, 0) == (255, 0, 0)).all()
    assert (cell(sheet, CLASSES - 1, 0) == (0, 0, 255)).all()
    assert all(cell(sheet, row, 0).std() > 10 for row in range(CLASSES))


def test_names_stand_beside_their_images(tmp_path: Path) -> None:
    root = photos(tmp_path / "d", classes=12)
    (root / "c03").rename(root / ("c03 " + "Geococcyx californianus " * 8))
    sheet = draw_sheet(inspect(f"folder:{root}"))
    for row in range(CLASSES):
        top = sheet.height - MARGIN + GAP - (CELL + GAP) * (CLASSES - row)
        written = np.asarray(sheet.crop((0, top, MARGIN + NAME_WIDTH, top + CELL)).convert("L"))
        assert written.min() < 80
        assert (written[:, -GAP // 2 :] == 255).all()


def test_images_keep_their_shape_and_broken_ones_are_crossed_out(tmp_path: Path) -> None:
    root = photos(tmp_path / "d", classes=12, images=IMAGES + 3)
    for image in (root / "c00").iterdir():
        image.unlink()
    photo(root / "c00" / "0.png", 100, 50)
    photo(root / "c00" / "1.png", 20, 2000)  # too long to be scaled as a whole
    (root / "c00" / "2.png").write_bytes(b"no image")
    dataset = inspect(f"folder:{root}")
    (root / "c00" / "3.png").write_bytes(b"not there when it was looked at")
    sheet = draw_sheet(dataset)
    assert sheet.width == 2 * MARGIN + NAME_WIDTH + IMAGES * (CELL + GAP) - GAP
    mount, grey = (
        tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in (MOUNT, BROKEN)
    )
    whole = cell(sheet, 0, 0)
    assert (whole[: CELL // 4 - 2] == mount).all()
    assert whole[CELL // 4 + 2 : -CELL // 4 - 2].std() > 10
    assert cell(sheet, 0, 1).std() > 5
    broken = cell(sheet, 0, 2)
    assert (broken[:4] == grey).all()
    assert (broken[CELL // 2, CELL // 2] < grey).all()
    assert (cell(sheet, 0, 3) == 255).all()


def test_a_file_that_changed_meanwhile_is_crossed_out(tmp_path: Path) -> None:
    root = photos(tmp_path / "d", classes=12, images=1)
    dataset = inspect(f"folder:{root}")
    photo(root / "c00" / "0.png", 77, 77, seed=9)
    assert np.ptp(cell(draw_sheet(dataset), 0, 0).mean(axis=2)) < 100


def test_a_sheet_of_small_grey_and_of_few_images(mini_folder: Path) -> None:
    assert draw_sheet(load("glyphs")).size == (
        2 * MARGIN + NAME_WIDTH + IMAGES * (CELL + GAP) - GAP,
        1539,
    )
    mini = draw_sheet(load(f"folder:{mini_folder}"))
    assert mini.size == (2 * MARGIN + NAME_WIDTH + 4 * (CELL + GAP) - GAP, 1539)
    assert SIDE < CELL
    assert cell(mini, 0, 0).std() > 10


def test_vectors_cannot_be_drawn() -> None:
    with pytest.raises(BadInput, match=r"made holds vectors.*leave out --sheet"):
        draw_sheet(vectors([2] * 16))
