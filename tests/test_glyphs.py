"""The embedded data set: real characters, all different, the same pixels everywhere."""

import json
import os
import subprocess
import sys
import unicodedata
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont  # type: ignore[import-untyped]
from matplotlib import get_data_path

from assay.data import load, splits
from assay.data.dataset import Dataset
from assay.data.sources.glyphs import SIZE, Drawings, load_glyphs
from assay.files import cache_folder
from assay.protocols import FirstStep, Protocol, Resize

DRAWN = FirstStep("square", SIZE)
GOLDEN = "e22411043690101a7db43f1845318d108756541fcfc974f7fb722664666277f4"
"""Fingerprint of trainval as PINNED draws it; another version of them may draw other pixels, and
has its own.
"""
PINNED = {"pillow": "13.0.0", "matplotlib": "3.11.2"}

FINGERPRINT = """
import json
from assay.data import load, splits
from assay.protocols import Protocol
dataset = load("glyphs")
print(json.dumps([splits.of(dataset, Protocol("x"))[0].fingerprint, len(dataset.ids)]))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def glyphs(cache: Path) -> Dataset:
    """Draw the data set, which fills `cache`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ASSAY_CACHE", str(cache))
        return load("glyphs")


@pytest.fixture(scope="module")
def images(glyphs: Dataset) -> dict[str, dict[str, np.ndarray]]:
    """Return the images by face and character, from the data set."""
    pixels = glyphs.items.arrays(np.arange(len(glyphs.ids)), DRAWN)[..., 0]
    by_face: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for id_, image in zip(glyphs.ids, pixels, strict=True):
        point, _, face = id_.partition("/")
        by_face[face][chr(int(point.removeprefix("U+"), 16))] = image
    return by_face


@pytest.fixture
def draws(glyphs: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grow by one whenever the data set is drawn, which takes no time here."""
    pixels = glyphs.items.arrays(np.arange(len(glyphs.ids)), DRAWN)[..., 0]
    times: list[int] = []

    def draw() -> tuple[np.ndarray, list[str]]:
        times.append(1)
        return pixels, list(glyphs.ids)

    monkeypatch.setattr("assay.data.sources.glyphs._draw", draw)
    return times


def trainval_fingerprint(dataset: Dataset) -> str:
    return splits.of(dataset, Protocol("x"))[0].fingerprint


def fingerprint_elsewhere(cache: Path) -> tuple[str, int]:
    """Return the fingerprint that another process finds with this cache."""
    environment = {**os.environ, "ASSAY_CACHE": str(cache), "PYTHONHASHSEED": "123"}
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    fingerprint, samples = json.loads(done.stdout)
    return fingerprint, samples


def test_there_are_hundreds_of_classes_with_ten_faces_and_more(glyphs: Dataset) -> None:
    faces = np.bincount(glyphs.labels)
    assert len(glyphs.class_names) == len(faces) >= 300
    assert faces.min() >= 10


def test_classes_stand_in_the_order_of_their_code_points(glyphs: Dataset) -> None:
    points = [int(name.removeprefix("U+"), 16) for name in glyphs.class_names]
    assert points == sorted(set(points))
    assert (np.diff(glyphs.labels) >= 0).all()


def test_every_sample_is_named_by_its_class_and_face(glyphs: Dataset) -> None:
    assert len(set(glyphs.ids)) == len(glyphs.ids) == len(glyphs.labels)
    assert [id_.partition("/")[0] for id_ in glyphs.ids] == [
        glyphs.class_names[label] for label in glyphs.labels
    ]


def test_classes_are_plain_letters_and_digits(glyphs: Dataset) -> None:
    for name in glyphs.class_names:
        character = chr(int(name.removeprefix("U+"), 16))
        assert unicodedata.category(character) in ("Lu", "Ll", "Lo", "Nd")
        assert unicodedata.normalize("NFKD", character) == character


def test_no_image_is_blank(images: dict[str, dict[str, np.ndarray]]) -> None:
    for face in images.values():
        for character, image in face.items():
            assert (image > 127).any(), f"{character} is blank"


def test_no_image_is_clipped(images: dict[str, dict[str, np.ndarray]]) -> None:
    for face in images.values():
        for character, image in face.items():
            border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
            assert not border.any(), f"{character} touches the frame"


def test_no_two_classes_look_the_same_in_a_face(images: dict[str, dict[str, np.ndarray]]) -> None:
    for face, drawn in images.items():
        characters = list(drawn)
        pixels = np.stack([drawn[character].ravel() for character in characters]).astype(np.int64)
        for row in range(1, len(characters)):
            apart = ((pixels[:row] - pixels[row]) ** 2).sum(axis=1).min()
            assert apart >= 255**2, f"{characters[row]} coincides with another class in {face}"


def test_no_image_stands_in_two_classes(glyphs: Dataset) -> None:
    classes: dict[bytes, set[int]] = defaultdict(set)
    for image, label in zip(
        glyphs.items.arrays(np.arange(len(glyphs.ids)), DRAWN), glyphs.labels, strict=True
    ):
        classes[image.tobytes()].add(int(label))
    assert max(len(labels) for labels in classes.values()) == 1


def test_every_character_is_really_in_its_font_and_no_placeholder(
    images: dict[str, dict[str, np.ndarray]],
) -> None:
    for face, drawn in images.items():
        with TTFont(Path(get_data_path()) / "fonts" / "ttf" / f"{face}.ttf") as font:
            names = font.getBestCmap()
            outlines = font["glyf"]
            for character in drawn:
                assert names.get(ord(character), ".notdef") != ".notdef", (
                    f"{character} is not in {face}"
                )
                assert outlines[names[ord(character)]] != outlines[".notdef"], (
                    f"{character} is a box in {face}"
                )


def test_the_pixels_are_grey_with_white_ink_on_black(glyphs: Dataset) -> None:
    pixels = glyphs.items.arrays(np.arange(len(glyphs.ids)), DRAWN)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (len(glyphs.ids), SIZE, SIZE, 1)
    assert glyphs.items.inputs == 1
    assert 0.02 < (pixels > 127).mean() < 0.3


@pytest.mark.parametrize("size", [14, 56])
def test_another_size_is_the_same_picture_scaled(glyphs: Dataset, size: int) -> None:
    indices = np.arange(0, 400, 40)
    drawn, scaled = (
        glyphs.items.arrays(indices, DRAWN),
        glyphs.items.arrays(indices, FirstStep("square", size)),
    )
    assert scaled.shape == (len(indices), size, size, 1)
    assert np.abs(drawn.mean(axis=(1, 2, 3)) - scaled.mean(axis=(1, 2, 3))).max() < 4


def test_samples_come_in_the_order_they_are_asked_for(glyphs: Dataset) -> None:
    one, other = (
        glyphs.items.arrays(np.array([5, 900]), DRAWN),
        glyphs.items.arrays(np.array([900, 5]), DRAWN),
    )
    assert (one == other[::-1]).all()
    assert (one[0] != one[1]).any()


def test_the_data_set_is_what_it_was(glyphs: Dataset) -> None:
    installed = {name: version(name) for name in PINNED}
    if installed != PINNED:
        pytest.skip(f"the golden fingerprint is that of {PINNED}, installed are {installed}")
    assert trainval_fingerprint(glyphs) == GOLDEN


def test_a_fresh_process_with_an_empty_cache_and_one_with_a_warm_cache_find_the_same(
    glyphs: Dataset, tmp_path: Path
) -> None:
    expected = (trainval_fingerprint(glyphs), len(glyphs.ids))
    assert fingerprint_elsewhere(tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == 1
    assert fingerprint_elsewhere(tmp_path) == expected


def test_the_cached_data_set_is_the_drawn_one(
    glyphs: Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(cache))
    monkeypatch.setattr("assay.data.sources.glyphs._draw", lambda: pytest.fail("drawn again"))
    again, everything = load("glyphs"), np.arange(len(glyphs.ids))
    assert again.ids == glyphs.ids
    assert again.class_names == glyphs.class_names
    assert (again.labels == glyphs.labels).all()
    assert (again.items.arrays(everything, DRAWN) == glyphs.items.arrays(everything, DRAWN)).all()


def as_npy(content: bytes) -> bytes:
    """Return one of the cached arrays as .npy, without the archive."""
    start = content.index(b"\x93NUMPY")
    return content[start:]


def with_unknown_compression(content: bytes) -> bytes:
    """Return the archive with an unknown compression in each entry of its directory."""
    first, *entries = content.split(b"PK\x01\x02")
    return b"PK\x01\x02".join([first, *(entry[:6] + b"\x63\x00" + entry[8:] for entry in entries)])


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"no archive at all", id="text"),
        pytest.param(lambda content: content[: len(content) // 2], id="half"),
        pytest.param(lambda content: content[:-1], id="a byte short"),
        pytest.param(
            lambda content: content[:5000] + b"\xff" * 100 + content[5100:], id="overwritten"
        ),
        pytest.param(lambda content: content.replace(b"pixels", b"pixles"), id="other names"),
        pytest.param(as_npy, id="one array"),
        pytest.param(with_unknown_compression, id="compression"),
        pytest.param(lambda content: content.replace(b"PK\x01\x02", b"PK\x01\x03"), id="directory"),
    ],
)
def test_a_damaged_cache_is_drawn_again(
    glyphs: Dataset,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    draws: list[int],
    damage: object,
) -> None:
    assert callable(damage)
    [file] = cache.iterdir()
    (tmp_path / file.name).write_bytes(damage(file.read_bytes()))
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    assert trainval_fingerprint(load("glyphs")) == trainval_fingerprint(glyphs)
    assert trainval_fingerprint(load("glyphs")) == trainval_fingerprint(glyphs)
    assert len(draws) == 1, "the damaged file was not replaced"


@pytest.mark.parametrize("place", ["file/below", "file"])
def test_a_cache_that_cannot_be_written_is_no_error(
    glyphs: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: list[int], place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / place))
    assert trainval_fingerprint(load_glyphs()) == trainval_fingerprint(glyphs)
    assert (tmp_path / "file").read_text() == "in the way"
    assert len(draws) == 1


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("ASSAY_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "assay"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "assay"


def test_a_user_without_a_home_needs_none_where_the_cache_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def test_a_changed_pixel_changes_the_digest_of_its_sample_only() -> None:
    pixels = np.zeros((2, SIZE, SIZE), dtype=np.uint8)
    before = [Drawings(pixels).digest(index) for index in range(2)]
    pixels[1, 3, 3] = 1
    assert Drawings(pixels).digest(0) == before[0]
    assert Drawings(pixels).digest(1) != before[1]


@pytest.mark.parametrize("kind", ["square", "short", "stretch"])
def test_every_first_step_of_a_square_drawing_is_the_same(glyphs: Dataset, kind: Resize) -> None:
    indices = np.arange(3)
    found = glyphs.items.arrays(indices, FirstStep(kind, 40))
    assert (np.asarray(found) == glyphs.items.arrays(indices, FirstStep("square", 40))).all()


def test_no_drawing_has_a_problem(glyphs: Dataset) -> None:
    assert glyphs.items.problem(0) is None
