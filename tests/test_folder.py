"""One folder per class: files that are read, left out and refused, and fingerprints."""

import errno
import os
import re
import shutil
import struct
import threading
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, features

from assay.data import Dataset, image_files, load, load_without_broken, splits
from assay.data.dataset import NAMED, without_broken
from assay.data.images import (
    FORMATS,
    HEIF_READER,
    MOST_PIXELS,
    decode_image,
    endings,
    first_step,
)
from assay.data.sources.folder import load_folder
from assay.errors import BadInput
from assay.protocols import FirstStep, Protocol
from assay.registry import UnknownName
from refusals import refusal
from sealed import receipt

SQUARE = FirstStep("square", 8)
CLASSES = [f"class {number:02}" for number in range(16)]
ORIENTED: dict[int, Callable[[Any], Any]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}
"""How an upright picture comes from the stored one, by the value of the EXIF tag 0x0112."""


def picture(seed: int = 0, width: int = 12, height: int = 8) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def fill(root: Path, classes: list[str] = CLASSES, per_class: int = 2) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for image in range(per_class):
            picture(10 * number + image).save(root / name / f"{image}.png")
    return root


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """Write a PNG by hand, of a form that Pillow does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def square(image: Image.Image, side: int) -> Any:
    return first_step(image, FirstStep("square", side), channels=3)


def read_image(path: Path) -> Image.Image:
    return decode_image(path.read_bytes(), path)


def fingerprints(root: Path, folder: Path) -> tuple[str, str]:
    """Return those of trainval and of test; the ledger that opens the seal lies in `folder`."""
    trainval, test = splits.of(load(f"folder:{root}"), Protocol("p.v1"))
    return trainval.fingerprint, test.open(receipt(folder, trainval.fingerprint)).fingerprint


def left_out(dataset: Dataset) -> dict[str, int]:
    """Return the number of files left out according to the notes, by ending."""
    found: Counter[str] = Counter()
    for note in dataset.notes:
        if counted := re.fullmatch(r"(\d+) files?(?: of the test half)? left out, .*: (.+)", note):
            found[counted[2]] += int(counted[1])
    return dict(found)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    return fill(tmp_path / "birds")


def test_each_folder_is_a_class_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("wren", "Robin", "10", "2", "ünd"):
        fill(tmp_path / "birds", [name])
    dataset = load(f"folder:{tmp_path / 'birds'}")
    assert dataset.class_names == ("10", "2", "Robin", "wren", "ünd")
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert list(dataset.ids[:3]) == ["10/0.png", "10/1.png", "2/0.png"]
    assert (dataset.name, dataset.modality, dataset.items.inputs, dataset.notes) == (
        "folder:birds",
        "photo",
        3,
        (),
    )


def test_samples_are_read_in_the_order_they_are_asked_for(birds: Path) -> None:
    dataset = load_folder(birds)
    one, other = (
        dataset.items.arrays(np.array([3, 17]), SQUARE),
        dataset.items.arrays(np.array([17, 3]), SQUARE),
    )
    assert one.shape == (2, 8, 8, 3)
    assert one.dtype == np.uint8
    assert (one == other[::-1]).all()
    assert (one[0] == square(picture(11), 8)).all()
    assert (one[1] == square(picture(81), 8)).all()


def test_nested_folders_and_hidden_files_are_not_entered(birds: Path) -> None:
    before = load_folder(birds)
    fill(birds / CLASSES[0], ["inside"])
    fill(birds, [".hidden class"])
    (birds / CLASSES[0] / "folder.png").mkdir()
    (birds / CLASSES[0] / "._0.png").write_bytes(b"resource fork")
    picture().save(birds / CLASSES[0] / ".hidden.png")
    picture().save(birds / "loose.png")
    after = load_folder(birds)
    assert after.ids == before.ids
    assert after.class_names == before.class_names


NO_IMAGES = ("notes.txt", "labels.csv", "Thumbs.db", "README", "x.json", "video.mp4", "x.svg")
KNOWN_TO_PILLOW_BY_NAME = (
    "paper.pdf",
    "features.h5",
    "table.hdf",
    "video.mpg",
    "video.mpeg",
    "weather.grib",
)
OTHER_FORMATS = (
    "icon.ico",
    "icon.icns",
    "layers.psd",
    "drawing.eps",
    "drawing.ps",
    "page.pcx",
    "plot.wmf",
)


def test_files_that_are_not_read_are_left_out_and_noted(birds: Path) -> None:
    before = load_folder(birds)
    for name in (*NO_IMAGES, *KNOWN_TO_PILLOW_BY_NAME, *OTHER_FORMATS):
        (birds / CLASSES[0] / name).write_bytes(b"no format it reads")
        after = load_folder(birds)
        assert after.ids == before.ids, name
        assert left_out(after) == {Path(name).suffix or name: 1}, name
        (birds / CLASSES[0] / name).unlink()


def test_files_left_out_are_counted_by_their_ending_over_all_classes(birds: Path) -> None:
    for name in ("a.txt", "b.txt", "README", ".hidden.txt", "c.pdf"):
        (birds / CLASSES[0] / name).touch()
    (birds / CLASSES[-1] / "a.txt").touch()
    (birds / CLASSES[-1] / "folder.txt").mkdir()
    dataset = load_folder(birds)
    assert left_out(dataset) == {".txt": 3, ".pdf": 1, "README": 1}
    assert dataset.notes == (
        "1 file left out, no image that can be read: .pdf",
        "2 files left out, no images that can be read: .txt",
        "1 file left out, no image that can be read: README",
        "1 hidden file or folder in classes left out",
        "1 file of the test half left out, no image that can be read: .txt",
        f"1 folder inside classes of the test half left out: {CLASSES[-1]}/folder.txt",
    )


def test_what_lies_beside_the_classes_is_counted(birds: Path) -> None:
    for name in ("README.md", "labels.csv"):
        (birds / name).touch()
    (birds / ".git").mkdir()
    notes = (
        "1 hidden file or folder left out",
        "2 files beside the class folders left out: README.md, labels.csv",
    )
    assert load_folder(birds).notes == load_folder(birds).left_out == notes


def test_what_may_be_announced_of_files_left_out_does_not_depend_on_the_test_half(
    birds: Path,
) -> None:
    (birds / CLASSES[0] / "a.txt").touch()
    before = load_folder(birds).left_out
    for name in ("b.txt", ".hidden"):
        (birds / CLASSES[-1] / name).touch()
    (birds / CLASSES[-1] / "folder").mkdir()
    after = load_folder(birds)
    assert after.left_out == before == after.notes[:1]
    assert len(after.notes) == 4


def test_a_note_can_be_written_whatever_the_names_of_files_are(birds: Path) -> None:
    Path(os.fsdecode(os.fsencode(birds / CLASSES[0]) + b"/notes.\xff")).touch()
    Path(os.fsdecode(os.fsencode(birds) + b"/empty \xff")).mkdir()
    dataset = load_folder(birds)
    assert len(dataset.notes) == 2
    for note in dataset.notes:
        assert note.encode()


def test_a_large_class_is_not_compared_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds for thousands of files, minutes for tens of thousands."""
    count, compared = 300, 0
    real = type(tmp_path).__eq__

    def equal(path: Path, other: object) -> bool:
        nonlocal compared
        compared += 1
        return bool(real(path, other))

    (tmp_path / "a").mkdir()
    content = BytesIO()
    picture().save(content, "PNG")
    for number in range(count):
        (tmp_path / "a" / f"{number}.png").write_bytes(content.getvalue())
    monkeypatch.setattr(type(tmp_path), "__eq__", equal)
    assert len(load_folder(tmp_path).ids) == count
    assert compared < 20 * count


def test_a_postscript_program_is_not_run(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow hands such files to Ghostscript, whatever their names."""
    (tmp_path / "bin").mkdir()
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch '{tmp_path / 'was run'}'\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    (birds / CLASSES[0] / "harmless.png").write_bytes(program)
    with pytest.raises(BadInput, match=r"harmless\.png"):
        load(f"folder:{birds}")
    assert not (tmp_path / "was run").exists()


def test_endings_are_known_in_capitals_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    picture().save(tmp_path / "a" / "1.JPG")
    picture().save(tmp_path / "a" / "2.PnG")
    assert load_folder(tmp_path).ids == ["a/1.JPG", "a/2.PnG"]


def test_a_class_without_images_is_left_out_and_noted(birds: Path) -> None:
    (birds / "a empty").mkdir()
    (birds / "b text").mkdir()
    (birds / "b text" / "notes.txt").touch()
    dataset = load_folder(birds)
    assert dataset.class_names == tuple(CLASSES)
    assert dataset.notes[:2] == (
        "a empty: no images in it, left out",
        "b text: no images in it, left out",
    )
    assert left_out(dataset) == {".txt": 1}
    assert len(dataset.notes) == 3


def test_a_class_of_one_image_is_kept(birds: Path) -> None:
    (birds / CLASSES[3] / "1.png").unlink()
    dataset = load_folder(birds)
    assert dataset.class_names == tuple(CLASSES)
    assert np.bincount(dataset.labels)[3] == 1


def test_one_class_is_a_data_set_but_cannot_be_split(tmp_path: Path) -> None:
    dataset = load_folder(fill(tmp_path / "birds", ["only"], 5))
    assert dataset.class_names == ("only",)
    with pytest.raises(BadInput, match="folder:birds has 1 class;"):
        splits.of(dataset, Protocol("p.v1"))


def test_a_class_may_be_a_link_to_a_place_inside(birds: Path) -> None:
    (birds / CLASSES[0]).rename(birds / ".moved")
    (birds / CLASSES[0]).symlink_to(".moved")
    assert load_folder(birds).class_names == tuple(CLASSES)


def test_a_class_that_lies_outside_is_refused(birds: Path, tmp_path: Path) -> None:
    (birds / CLASSES[0]).rename(tmp_path / "moved")
    (birds / CLASSES[0]).symlink_to(tmp_path / "moved")
    with pytest.raises(BadInput, match=rf"{CLASSES[0]} leads out of"):
        load_folder(birds)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no .*/missing"):
        load(f"folder:{tmp_path / 'missing'}")


def test_a_path_too_long_to_be_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="xxx"):
        load(f"folder:{tmp_path / ('x' * 300)}")


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "birds.zip").touch()
    with pytest.raises(BadInput, match=r"birds\.zip is a file; give the folder"):
        load(f"folder:{tmp_path / 'birds.zip'}")


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs one folder per class"):
        load(f"folder:{tmp_path}")
    picture().save(tmp_path / "loose.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="1 image and no class folders; put the images of each"):
        load(f"folder:{tmp_path}")


LAYOUTS = {
    "a folder around the class folders": (
        ["birds/wren", "birds/robin"],
        r"its folder birds holds 2 folders with images; give folder:.*/birds$",
    ),
    "two levels": (
        ["north/wren", "south/robin"],
        r"images two levels down, as in north/wren, .* move folders such as north/wren up into",
    ),
    "parts with the same classes": (
        ["train/wren", "train/robin", "val/wren"],
        r"holds train, val, with class folders in them \(1 class in each\); Assay splits by class,"
        r".* put all images of a class into one folder of .* such as folder:.*/train$",
    ),
    "parts with other classes": (
        ["train/wren", "test/robin"],
        r"test, train, with class folders in them; .* by a table: with the column split, or give",
    ),
    "parts without classes": (
        ["train", "test"],
        r"holds test, train, which are no classes, .* in a table: \(a \.csv with the columns path",
    ),
}
"""Folders with images in them, and what is said of the folder that holds them."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_layout_is_explained_with_the_folders_found(tmp_path: Path, layout: str) -> None:
    folders, said = LAYOUTS[layout]
    fill(tmp_path / "x", folders)
    with pytest.raises(BadInput, match=said):
        load(f"folder:{tmp_path / 'x'}")


def test_a_class_that_is_called_as_a_part_is_a_class_among_others(tmp_path: Path) -> None:
    fill(tmp_path, ["bus", "train", "test"])
    assert load(f"folder:{tmp_path}").class_names == ("bus", "test", "train")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("birds", "birds is a folder: write its kind before it, folder:.*birds$"),
        ("birds.csv", "birds.csv is a file: write its kind before it, table:.*birds.csv$"),
        ("birds.PARQUET", "write its kind before it, table:"),
        ("birds.npz", "write its kind before it, features:.*birds.npz$"),
        ("birds.txt", "of no kind of data set; give folder: with a folder of class folders"),
    ],
)
def test_a_path_without_its_kind_suggests_the_kind(tmp_path: Path, name: str, said: str) -> None:
    if "." in name:
        (tmp_path / name).write_text("")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match=said):
        load(str(tmp_path / name))


def test_a_table_is_not_taken_for_a_kind(tmp_path: Path) -> None:
    """The name that is suggested loads."""
    fill(tmp_path / "birds")
    with pytest.raises(BadInput) as raised:
        load(str(tmp_path / "birds"))
    assert len(load(str(raised.value).rpartition(", ")[2])) == 32


# --- broken images left out ---


def break_images(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).write_bytes(b"no image")


BROKEN = {
    "one of trainval": ["class 01/0.png"],
    "one of each half": ["class 01/0.png", "class 15/1.png"],
    "a whole class of trainval": ["class 01/0.png", "class 01/1.png"],
    "a whole class of the test half": ["class 12/0.png", "class 12/1.png"],
    "two classes, which moves the border": [
        f"class {number:02}/{image}.png" for number in (6, 7) for image in (0, 1)
    ],
}


@pytest.mark.parametrize("which", BROKEN)
def test_skipping_is_the_same_as_removing_the_files(birds: Path, which: str) -> None:
    """Twins: broken and skipped, removed. One data set, whichever halves the files are in."""
    fill(birds, ["class 16", "class 17"])
    removed = shutil.copytree(birds, birds.parent / "removed" / birds.name)
    break_images(birds, BROKEN[which])
    for name in BROKEN[which]:
        (removed / name).unlink()
    skipped, twin = load_without_broken(f"folder:{birds}"), load(f"folder:{removed}")
    every = np.arange(len(twin))
    assert skipped.fingerprint(every) == twin.fingerprint(every)
    assert skipped.class_names == twin.class_names
    assert (skipped.labels == twin.labels).all()
    assert skipped.first_test_class == twin.first_test_class
    assert (skipped.items.arrays(every, SQUARE) == twin.items.arrays(every, SQUARE)).all()
    of_skipped, of_twin = (splits.of(one, Protocol("p.v1")) for one in (skipped, twin))
    assert of_skipped[0].fingerprint == of_twin[0].fingerprint
    assert of_skipped[1].fingerprint == of_twin[1].fingerprint


def test_a_table_loses_the_rows_of_broken_images_with_their_marks(birds: Path) -> None:
    """Twins: broken and skipped, or without the rows; trainval loses a class by it."""
    rows = [
        f"class {number:02}/{image}.png,{number},{'test' if number > 5 else 'train'},{image},1,c"
        for number in range(16)
        for image in (0, 1)
    ]
    head, gone = "path,label,split,query,gallery,camera", (6, 7, 20)
    for name, kept in (("all", range(32)), ("some", [row for row in range(32) if row not in gone])):
        lines = [head, *(rows[row] for row in kept)]
        (birds / f"{name}.csv").write_text("\n".join(lines))
    break_images(birds, [rows[row].partition(",")[0] for row in gone])
    skipped = load_without_broken(f"table:{birds / 'all.csv'}")
    twin = load(f"table:{birds / 'some.csv'}")
    every = np.arange(29)
    assert skipped.fingerprint(every) == twin.fingerprint(every)
    assert (
        (skipped.trainval, skipped.metadata) == (5, twin.metadata) == (twin.trainval, twin.metadata)
    )


def test_broken_images_are_counted_and_named_and_those_of_the_test_half_apart(birds: Path) -> None:
    break_images(birds, BROKEN["one of each half"])
    with pytest.raises(BadInput, match=r"\(2 such samples; .*\), or pass --skip-broken$"):
        load(f"folder:{birds}")
    dataset = load_without_broken(f"folder:{birds}")
    of_trainval = "1 broken image left out: class 01/0.png"
    of_test = "1 broken image of the test half left out: class 15/1.png"
    assert dataset.notes == (of_trainval, of_test)
    assert dataset.left_out == (of_trainval,), "the announcement says nothing of the test half"


def test_many_broken_images_are_counted_and_the_first_named(birds: Path) -> None:
    for number in range(NAMED + 5):
        (birds / CLASSES[0] / f"broken{number:02}.png").write_bytes(b"no image")
    (note,) = load_without_broken(f"folder:{birds}").notes
    assert note.startswith("25 broken images left out: class 00/broken00.png, ")
    assert note.endswith("broken19.png and 5 more")


def test_nothing_is_skipped_where_nothing_is_broken_or_everything(birds: Path) -> None:
    whole = load(f"folder:{birds}")
    assert without_broken(whole) is whole
    break_images(birds, [str(path.relative_to(birds)) for path in birds.glob("*/*.png")])
    with pytest.raises(BadInput, match=r"none of the 32 samples of folder:birds is left: .*0\.png"):
        load_without_broken(f"folder:{birds}")


def test_an_official_data_set_is_never_changed(birds: Path) -> None:
    break_images(birds, ["class 01/0.png"])
    official = replace(load_folder(birds), official=True)
    with pytest.raises(BadInput, match="its published samples, so none can be skipped, and 1 can"):
        without_broken(official)


def test_a_format_whose_reader_is_missing_names_the_reader(tmp_path: Path) -> None:
    if HEIF_READER is not None:
        pytest.skip("pillow-heif is installed")
    fill(tmp_path, ["class"])
    (tmp_path / "class" / "photo.HEIC").write_bytes(b"ftypheic")
    (note,) = load(f"folder:{tmp_path}").notes
    assert note.endswith(".HEIC; HEIC images need pillow-heif: pip install pillow-heif, or"
                         " save them as JPEG")  # fmt: skip
    with pytest.raises(BadInput, match=r"photo.HEIC cannot be read as an image: HEIC images need"):
        read_image(tmp_path / "class" / "photo.HEIC")
    for path in (tmp_path / "class").glob("*.png"):
        path.unlink()
    with pytest.raises(BadInput, match="no folder with images in it: HEIC images need"):
        load(f"folder:{tmp_path}")


def test_heic_images_are_read_where_their_reader_is_there(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    smooth = picture(1, 4, 3).resize((64, 48), Image.Resampling.BICUBIC)
    heif.from_pillow(smooth).save(tmp_path / "photo.heic", quality=95)
    read = np.asarray(read_image(tmp_path / "photo.heic")).astype(int)
    assert np.abs(read - np.asarray(smooth)).mean() < 4
    folder = fill(tmp_path / "x", ["class"])
    shutil.copy(tmp_path / "photo.heic", folder / "class")
    assert list(load(f"folder:{folder}").ids)[-1] == "class/photo.heic"


def test_a_kind_without_a_path_and_an_unknown_kind_are_refused() -> None:
    with pytest.raises(BadInput, match="folder: needs a path"):
        load("folder:")
    with pytest.raises(UnknownName, match="did you mean 'folder:'"):
        load("folders:birds")
    with pytest.raises(UnknownName, match="did you mean 'folder:'"):
        load("folder")


def jpeg_bytes(tmp_path: Path) -> bytes:
    picture(0, 64, 64).save(tmp_path / "whole.jpg")
    return (tmp_path / "whole.jpg").read_bytes()


@pytest.mark.parametrize("place", [CLASSES[0], CLASSES[-1]])
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("zero.jpg", lambda _: b"", "the file is empty"),
        ("text.png", lambda _: b"<html>404</html>", "not a format it knows"),
        ("half.jpg", lambda whole: whole[: len(whole) // 2], "truncated"),
        ("short.jpg", lambda whole: whole[:-200], "truncated"),
        ("head.jpg", lambda whole: whole[:20], ""),
        ("zeros.jpg", lambda _: bytes(1000), "not a format it knows"),
    ],
)
def test_a_broken_image_is_named_whichever_half_it_belongs_to(
    birds: Path,
    tmp_path: Path,
    place: str,
    name: str,
    content: Callable[[bytes], bytes],
    reason: str,
) -> None:
    (birds / place / name).write_bytes(content(jpeg_bytes(tmp_path)))
    with pytest.raises(
        BadInput, match=f"{place}/{name} cannot be read as an image .*{reason}.*; fix or remove it"
    ):
        load(f"folder:{birds}")


def test_an_image_cut_anywhere_is_named(tmp_path: Path) -> None:
    for ending in ("png", "gif", "bmp", "tif", "webp", "jpg", "ppm", "jp2", "tga"):
        path = tmp_path / f"cut.{ending}"
        picture(0, 40, 40).save(path)
        whole = path.read_bytes()
        for share in (0.0, 0.1, 0.5, 0.9):
            path.write_bytes(whole[: int(len(whole) * share)])
            message = refusal(f"{share} of .{ending}", lambda path=path: read_image(path))
            assert f"cut.{ending} cannot be read" in message, share


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_an_avif_with_damaged_content_is_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.avif"
    picture(0, 40, 40).save(path)
    whole = path.read_bytes()
    start = whole.index(b"mdat") + 4
    path.write_bytes(whole[:start] + bytes(len(whole) - start))
    with pytest.raises(BadInput, match=r"damaged\.avif cannot be read"):
        read_image(path)


@pytest.mark.parametrize("place", [CLASSES[0], CLASSES[-1]])
@pytest.mark.parametrize("target", ["nowhere.png", "gone.png"])
def test_a_link_to_an_image_that_is_not_there_is_named(
    birds: Path, place: str, target: str
) -> None:
    """`gone.png` is a link to itself."""
    (birds / place / "gone.png").symlink_to(target)
    with pytest.raises(
        BadInput,
        match=(
            rf"{place}/gone\.png (cannot be read: .*; fix|is a link that leads round in a circle;"
            r" put)"
        ),
    ):
        load(f"folder:{birds}")


def test_a_link_to_an_image_inside_is_that_image(birds: Path) -> None:
    picture(77).save(birds / "elsewhere.png")
    (birds / CLASSES[0] / "linked.png").symlink_to("../elsewhere.png")
    dataset = load_folder(birds)
    assert dataset.ids[2] == f"{CLASSES[0]}/linked.png"
    assert (dataset.items.arrays(np.array([2]), SQUARE)[0] == square(picture(77), 8)).all()


def test_a_link_to_an_image_outside_is_refused(birds: Path, tmp_path: Path) -> None:
    picture(77).save(tmp_path / "elsewhere.png")
    (birds / CLASSES[0] / "linked.png").symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(BadInput, match=r"linked\.png leads out of"):
        load_folder(birds)


def test_an_image_that_cannot_be_opened_is_named_on_loading(
    birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = image_files.read_bytes

    def refuse(path: Path) -> bytes:
        if path.parent.name == CLASSES[-1]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path)

    monkeypatch.setattr(image_files, "read_bytes", refuse)
    with pytest.raises(BadInput, match=rf"{CLASSES[-1]}/0\.png cannot be read: Permission denied"):
        load(f"folder:{birds}")


def test_an_image_that_has_gone_since_loading_is_named(birds: Path) -> None:
    dataset = load_folder(birds)
    (birds / CLASSES[0] / "1.png").unlink()
    with pytest.raises(BadInput, match=rf"{CLASSES[0]}/1\.png cannot be read: No such file"):
        dataset.items.arrays(np.array([0, 1, 2]), SQUARE)


@pytest.mark.parametrize(
    ("width", "height"), [(8_001, 10_000), (MOST_PIXELS + 1, 1), (60_000, 60_000)]
)
def test_an_enormous_image_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    (tmp_path / "bomb.png").write_bytes(png(width, height, 1, 0, b""))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was unpacked"))
    with pytest.raises(
        BadInput, match=r"bomb\.png would unpack to an enormous image, above 80,000,000 pixels"
    ):
        read_image(tmp_path / "bomb.png")


def test_an_image_of_the_largest_size_is_unpacked(tmp_path: Path) -> None:
    """This file has a head and no pixels, and the message says only that."""
    assert MOST_PIXELS == 8_000 * 10_000
    (tmp_path / "head.png").write_bytes(png(8_000, 10_000, 1, 0, b""))
    with pytest.raises(BadInput, match=r"head\.png cannot be read as an image \(.*truncated"):
        read_image(tmp_path / "head.png")


def test_the_formats_read_are_on_a_list() -> None:
    """A format that Pillow or a plugin adds later is not read."""
    listed = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP"}
    assert {"BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"} <= set(FORMATS) <= listed
    assert {
        ".jpg",
        ".jpeg",
        ".png",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
        ".webp",
        ".ppm",
        ".pgm",
        ".jp2",
    } <= endings()
    assert not endings() & {
        ".eps",
        ".ps",
        ".pdf",
        ".ico",
        ".psd",
        ".h5",
        ".hdf",
        ".grib",
        ".wmf",
        ".emf",
        ".mpg",
    }


def test_every_format_on_the_list_is_read(tmp_path: Path) -> None:
    for ending in ("bmp", "gif", "jpeg", "jp2", "mpo", "png", "ppm", "tga", "tiff", "webp"):
        (tmp_path / ending / "a").mkdir(parents=True)
        grey = Image.new("RGB", (16, 16), (200, 200, 200))
        grey.save(tmp_path / ending / "a" / f"grey.{ending}")
        items = load_folder(tmp_path / ending).items
        found = np.asarray(items.arrays(np.array([0]), FirstStep("square", 16)))
        assert np.abs(found.astype(int) - 200).max() <= 3, ending


def test_another_format_is_not_read_under_the_name_of_one_on_the_list(tmp_path: Path) -> None:
    path = tmp_path / "disguised.png"
    for kind in ("ICO", "ICNS", "PCX", "SGI", "DDS", "XBM", "MSP"):
        picture(0, 16, 16).convert("1" if kind in ("XBM", "MSP") else "RGB").save(path, kind)
        message = refusal(kind, lambda: read_image(path))
        assert "disguised.png cannot be read as an image (not a format it knows)" in message, kind


def test_a_format_on_the_list_is_read_under_the_name_of_another(tmp_path: Path) -> None:
    picture().save(tmp_path / "really a png.jpg", "PNG")
    assert (np.asarray(read_image(tmp_path / "really a png.jpg")) == np.asarray(picture())).all()


def test_reading_in_many_threads_leaves_the_warnings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters of warnings belong to the whole process: two threads that set them would undo each
    other's.
    """
    picture().save(tmp_path / "picture.png")
    real, names = Image.open, ("first", "second")
    entered, may_leave = ({name: threading.Event() for name in names} for _ in range(2))

    def open_in_turn(stream: BytesIO, *options: Any, **more: Any) -> Image.Image:
        name = stream.getvalue().decode()
        entered[name].set()
        assert may_leave[name].wait(10)
        return real(tmp_path / "picture.png", *options, **more)

    monkeypatch.setattr(Image, "open", open_in_turn)
    before = list(warnings.filters)
    threads = {
        name: threading.Thread(target=decode_image, args=(name.encode(), tmp_path / name))
        for name in names
    }
    for name in names:
        threads[name].start()
        assert entered[name].wait(10)
    for name in names:
        may_leave[name].set()
        threads[name].join()
    assert list(warnings.filters) == before


def test_grey_images_have_three_equal_channels(tmp_path: Path) -> None:
    grey = np.arange(96, dtype=np.uint8).reshape(8, 12)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    found = np.asarray(read_image(tmp_path / "grey.png"))
    assert (found == grey[:, :, None]).all()
    assert found.shape == (8, 12, 3)


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    bits = np.eye(8, dtype=bool)
    Image.fromarray(bits).save(tmp_path / "bits.png")
    assert (np.asarray(read_image(tmp_path / "bits.png"))[:, :, 1] == 255 * bits).all()


@pytest.mark.parametrize("ending", ["jpg", "tif"])
@pytest.mark.parametrize(
    ("ink", "seen"),
    [
        ((0, 255, 255, 0), (255, 0, 0)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 0, 0, 0), (255,) * 3),
        ((0, 0, 0, 255), (0,) * 3),
    ],
)
def test_cmyk_is_seen_in_its_colours(
    tmp_path: Path, ending: str, ink: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    Image.new("CMYK", (16, 16), ink).save(tmp_path / f"cmyk.{ending}")
    found = np.asarray(read_image(tmp_path / f"cmyk.{ending}")).astype(int)
    assert np.abs(found - seen).max() <= 2


def palette_image() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 255, 0, 0, 0, 255, 0])
    image.putdata([0, 1, 2])
    return image


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    palette_image().save(tmp_path / "palette.png")
    found = np.asarray(read_image(tmp_path / "palette.png"))
    assert found.tolist() == [[[10, 20, 30], [255, 0, 0], [0, 255, 0]]]


@pytest.mark.parametrize("ending", ["png", "gif"])
def test_a_transparent_colour_of_a_palette_becomes_white(tmp_path: Path, ending: str) -> None:
    palette_image().save(tmp_path / f"palette.{ending}", transparency=1)
    found = np.asarray(read_image(tmp_path / f"palette.{ending}"))
    assert found.tolist() == [[[10, 20, 30], [255, 255, 255], [0, 255, 0]]]


def test_half_transparent_colours_of_a_palette_are_laid_on_white(tmp_path: Path) -> None:
    palette_image().save(tmp_path / "palette.png", transparency=bytes([255, 0, 128]))
    found = np.asarray(read_image(tmp_path / "palette.png"))
    assert found.tolist() == [[[10, 20, 30], [255, 255, 255], [127, 255, 127]]]


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), (255, 0, 0)),
        ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (7, 255), (7, 7, 7)),
    ],
)
def test_transparency_is_laid_on_white(
    tmp_path: Path, mode: str, colour: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    Image.new(mode, (4, 4), colour).save(tmp_path / "clear.png")
    assert read_image(tmp_path / "clear.png").getpixel((0, 0)) == seen


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (9, 8, 7)), ("L", 9)])
def test_a_single_transparent_colour_becomes_white(tmp_path: Path, mode: str, colour: Any) -> None:
    Image.new(mode, (4, 4), colour).save(tmp_path / "clear.png", transparency=colour)
    assert read_image(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path, ending: str) -> None:
    deep = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / f"deep.{ending}")
    found = np.asarray(read_image(tmp_path / f"deep.{ending}"))
    assert found[0, :, 0].tolist() == [0, 1, 128, 255]
    assert (found == found[:, :, :1]).all()


def test_sixteen_bits_of_each_colour_are_scaled_to_eight(tmp_path: Path) -> None:
    row = struct.pack(">B6H", 0, 65535, 0, 128 * 257, 257, 257, 257)
    (tmp_path / "deep.png").write_bytes(png(2, 1, 16, 2, row))
    assert np.asarray(read_image(tmp_path / "deep.png")).tolist() == [[[255, 0, 128], [1, 1, 1]]]


def test_an_image_of_floats_is_refused(tmp_path: Path) -> None:
    for ending, white in product(("tif", "pfm"), (1, 255, 65535)):
        path = tmp_path / f"floats.{ending}"
        Image.fromarray(np.linspace(0, white, 96, dtype=np.float32).reshape(8, 12)).save(path)
        message = refusal((ending, white), lambda path=path: read_image(path))
        assert f"floats.{ending} holds floating-point pixels" in message, white
        assert message.endswith("; save it with 8 or 16 bits"), white


@pytest.mark.parametrize("orientation", list(ORIENTED))
def test_an_image_is_turned_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = picture()
    stored.save(tmp_path / "turned.png", exif=exif)
    found = np.asarray(read_image(tmp_path / "turned.png"))
    assert (found == ORIENTED[orientation](np.asarray(stored))).all()


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.new("RGB", (32, 16), "black")
    stored.paste("white", (0, 0, 16, 16))
    stored.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    found = np.asarray(read_image(tmp_path / "turned.jpg"))
    assert found.shape == (32, 16, 3)
    assert found[:15].min() > 200
    assert found[17:].max() < 50


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture().save(tmp_path / "odd.png", exif=exif)
    assert (np.asarray(read_image(tmp_path / "odd.png")) == np.asarray(picture())).all()


def test_the_first_picture_of_an_animation_counts(tmp_path: Path) -> None:
    first, second = Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 200)
    first.save(tmp_path / "moving.gif", save_all=True, append_images=[second])
    assert read_image(tmp_path / "moving.gif").getpixel((0, 0)) == (10, 10, 10)


def test_a_square_is_the_middle_of_the_image() -> None:
    stripes = np.zeros((10, 30, 3), dtype=np.uint8)
    stripes[:, 10:20] = 255
    assert (square(Image.fromarray(stripes), 10) == 255).all()
    assert (square(Image.fromarray(stripes.swapaxes(0, 1)), 10) == 255).all()


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (1, 500), (500, 1), (47, 49), (48, 48), (1000, 999), (13, 7)]
)
def test_every_shape_becomes_a_square(width: int, height: int) -> None:
    found = square(Image.new("RGB", (width, height), (10, 20, 30)), 48)
    assert found.shape == (48, 48, 3)
    assert (found == np.array([10, 20, 30], dtype=np.uint8)).all()


def test_all_kinds_of_images_stand_in_one_array(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, mode in enumerate(["L", "RGB", "RGBA", "P", "1", "LA", "I;16", "CMYK"]):
        ending = "tif" if mode == "CMYK" else "png"
        Image.new(mode, (5 + number, 20 - number)).save(tmp_path / "a" / f"{number}.{ending}")
    arrays = load_folder(tmp_path).items.arrays(np.arange(8), FirstStep("square", 16))
    assert arrays.shape == (8, 16, 16, 3)
    assert arrays.dtype == np.uint8


def test_fingerprints_do_not_depend_on_where_the_data_lies(birds: Path, tmp_path: Path) -> None:
    before = fingerprints(birds, tmp_path)
    shutil.copytree(birds, tmp_path / "deep" / "copied elsewhere")
    assert fingerprints(tmp_path / "deep" / "copied elsewhere", tmp_path) == before
    link = tmp_path / "link"
    link.symlink_to(birds)
    assert fingerprints(link, tmp_path) == before


def test_fingerprints_do_not_depend_on_the_working_folder(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprints(birds, tmp_path)
    monkeypatch.chdir(birds)
    assert fingerprints(Path(), tmp_path) == before


def test_fingerprints_do_not_depend_on_the_order_in_which_files_were_made(
    birds: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    for path in sorted(birds.rglob("*.png"), reverse=True):
        (other / path.parent.name).mkdir(parents=True, exist_ok=True)
        (other / path.parent.name / path.name).write_bytes(path.read_bytes())
        os.utime(other / path.parent.name / path.name, (1, 1))
    assert fingerprints(other, tmp_path) == fingerprints(birds, tmp_path)


def change_a_byte(path: Path) -> None:
    """Change a byte behind the end of the PNG, where the picture stays readable."""
    path.write_bytes(path.read_bytes() + b"\x00")


def replace_the_picture(path: Path) -> None:
    picture(999).save(path)


def rename(path: Path) -> None:
    path.rename(path.with_name("renamed.png"))


def add_one(path: Path) -> None:
    picture(999).save(path.with_name("added.png"))


def break_it(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize("change", [change_a_byte, replace_the_picture, break_it])
def test_an_image_that_has_changed_since_loading_is_refused(
    birds: Path, change: Callable[[Path], object]
) -> None:
    dataset = load_folder(birds)
    trainval, _ = splits.of(dataset, Protocol("p.v1"))
    change(birds / CLASSES[0] / "1.png")
    with pytest.raises(BadInput, match=rf"{CLASSES[0]}/1\.png has changed since it was first read"):
        dataset.items.arrays(np.array([0, 1, 2]), SQUARE)
    with pytest.raises(BadInput, match="has changed"):
        trainval.arrays(SQUARE)
    assert dataset.items.arrays(np.array([0, 2]), SQUARE).shape == (2, 8, 8, 3)


def test_an_image_written_anew_with_the_same_bytes_has_not_changed(birds: Path) -> None:
    dataset, path = load_folder(birds), birds / CLASSES[0] / "0.png"
    path.write_bytes(path.read_bytes())
    os.utime(path, (1, 1))
    assert (dataset.items.arrays(np.array([0]), SQUARE)[0] == square(picture(0), 8)).all()


@pytest.mark.parametrize(
    "change", [change_a_byte, replace_the_picture, rename, add_one, Path.unlink]
)
@pytest.mark.parametrize("half", [0, 1])
def test_a_change_in_one_half_changes_its_fingerprint_and_not_the_others(
    birds: Path, tmp_path: Path, change: Callable[[Path], object], half: int
) -> None:
    before = fingerprints(birds, tmp_path)
    change(birds / CLASSES[(2, 13)[half]] / "0.png")
    after = fingerprints(birds, tmp_path)
    assert after[half] != before[half]
    assert after[1 - half] == before[1 - half]


def test_the_name_of_a_class_is_part_of_its_halfs_fingerprint(birds: Path, tmp_path: Path) -> None:
    before = fingerprints(birds, tmp_path)
    (birds / CLASSES[15]).rename(birds / "class 99")
    after = fingerprints(birds, tmp_path)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_broken_image_has_a_problem_and_the_others_have_none(birds: Path) -> None:
    (birds / CLASSES[0] / "1.png").write_bytes(b"")
    items = load_folder(birds).items
    assert items.problem(0) is None
    assert (
        items.problem(1)
        == f"{birds / CLASSES[0] / '1.png'} cannot be read as an image (the file is empty); fix or"
        " remove it"
    )
    with pytest.raises(BadInput, match=r"1\.png cannot be read"):
        items.arrays(np.array([0, 1]), SQUARE)


COMPOSED, DECOMPOSED = "Bl\u00e5meis", "Bla\u030ameis"
"""One word in the two ways of Unicode: as Linux and Windows keep it, and as macOS does."""


def test_a_copy_on_another_file_system_is_the_same_data_set(tmp_path: Path) -> None:
    both = []
    for name in (COMPOSED, DECOMPOSED):
        fill(tmp_path / name / "birds", [name, "Blaz", *CLASSES])
        (tmp_path / name / "birds" / name / "0.png").rename(
            tmp_path / name / "birds" / name / f"{name}.png"
        )
        both.append(load_folder(tmp_path / name / "birds"))
    assert both[0].class_names == both[1].class_names == ("Blaz", COMPOSED, *CLASSES)
    assert list(both[0].ids) == list(both[1].ids)
    everything = np.arange(len(both[0].ids))
    assert both[0].fingerprint(everything) == both[1].fingerprint(everything)


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=rf"({COMPOSED}|{DECOMPOSED}) .* have one name.*; rename one"
    ):
        load_folder(fill(tmp_path / "birds", [COMPOSED, DECOMPOSED, *CLASSES]))


def test_two_images_of_one_name_are_refused(birds: Path) -> None:
    for name in (COMPOSED, DECOMPOSED):
        picture().save(birds / CLASSES[0] / f"{name}.png")
    with pytest.raises(BadInput, match=r"have one name.*; rename one"):
        load_folder(birds)


def test_a_file_name_that_is_not_utf_8_is_taken_or_refused_by_name(birds: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(birds / CLASSES[0]) + b"/\xff.png"))
    shutil.copy(birds / CLASSES[0] / "0.png", odd)

    def fingerprint() -> str:
        dataset: Dataset = load(f"folder:{birds}")
        return splits.of(dataset, Protocol("p.v1"))[0].fingerprint

    try:
        found = fingerprint()
    except BadInput:
        found = "refused"
    assert found
