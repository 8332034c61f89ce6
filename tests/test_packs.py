"""Packs: the same images with and without kill -9, bounded memory, and views that read nothing by
themselves.
"""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assay.data import Dataset, content, images, packs, splits
from assay.data.augment import cut
from assay.data.dataset import Half, Labels
from assay.data.image_files import ImageFiles
from assay.data.packs import (
    PackedImages,
    SelectedImages,
    View,
    expected_bytes,
    place_pack,
    place_vectors,
    read_pack,
    write_pack,
)
from assay.data.partial_pack import PartialPack
from assay.data.sources.features import Features
from assay.data.sources.folder import load_folder
from assay.data.sources.glyphs import Drawings
from assay.data.splits import TrainVal
from assay.errors import BadInput
from assay.files import lock_in_turn, read_json
from assay.hashing import digest, digest_bytes
from assay.protocols import FirstStep, Protocol

PROTOCOL = Protocol("p.v1")
SHORT, SQUARE = FirstStep("short", 8), FirstStep("square", 8)
CHUNK, COUNT = 5, 24
"""Images at a time, and of trainval in all: five chunks, the last one smaller."""

PACKING = f"""
import os, signal, sys, time
from pathlib import Path
from assay.data import packs, splits
from assay.data.partial_pack import PartialPack
from assay.data.sources.folder import load_folder
from assay.data.image_files import ImageFiles
from assay.protocols import FirstStep, Protocol

packs.CHUNK = {CHUNK}
root, folder, form = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
trainval = splits.of(load_folder(root), Protocol("p.v1"))[0]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
real = PartialPack._add
"""
WRITE = "packs.write_pack(folder, trainval, FirstStep('short', 8), form, {progress})\n"

DEATHS = {
    "before the first chunk": "ImageFiles.arrays = lambda *_: die()\n",
    "after two chunks": "progress = lambda what, done, of: done >= 10 and die()\n",
    "in the middle of a chunk": (
        """
def _add(self, name, *contents):
    if name.endswith("pixels.bin") and self.rows == 10:
        real(self, name, *contents[:2], bytes(contents[2])[:7])
        die()
    real(self, name, *contents)
PartialPack._add = _add
"""
    ),
    "before the log has a line of it": (
        """
def _add(self, name, *contents):
    if name == "log" and self.rows == 15:
        real(self, name, contents[0][:3])
        die()
    real(self, name, *contents)
PartialPack._add = _add
"""
    ),
    "before it is put in place": "Path.rename = lambda *_: die()\n",
}


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Draw a smooth picture, as photos are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def make_folder(root: Path, width: int | None = None, side: int = 12) -> Path:
    """Make 16 classes of 3 images, of many shapes unless a width is given."""
    for number in range(16):
        (root / f"{number:02}").mkdir(parents=True)
        for image in range(3):
            wide = width or side + (5 * number + 3 * image) % 11
            photo(10 * number + image, wide, side).save(root / f"{number:02}" / f"{image}.png")
    return root


def trainval_of(root: Path) -> TrainVal:
    return splits.of(load_folder(root), PROTOCOL)[0]


def drawings() -> TrainVal:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 28, 28), dtype=np.uint8)
    return splits.of(made(Drawings(pixels), modality="drawing"), PROTOCOL)[0]


def made(items: Any, modality: Any = "features") -> Dataset:
    names = tuple(f"{number:02}" for number in range(16))
    return Dataset(
        "made", modality, np.repeat(np.arange(16), 2), names, [str(row) for row in range(32)], items
    )


def vectors() -> Dataset:
    return made(Features(np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(root: Path, folder: Path, code: str, form: str = "pixels") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PACKING + code, str(root), str(folder), form]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture
def trainval(root: Path) -> TrainVal:
    return trainval_of(root)


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Collect the rows of each chunk that is decoded, with small chunks."""
    chunks: list[list[int]] = []
    real = ImageFiles.arrays

    def arrays(self: ImageFiles, indices: Labels, step: FirstStep) -> Any:
        chunks.append(indices.tolist())
        return real(self, indices, step)

    monkeypatch.setattr(ImageFiles, "arrays", arrays)
    monkeypatch.setattr(packs, "CHUNK", CHUNK)
    return chunks


def test_images_of_many_shapes_are_read_as_they_were_written(
    tmp_path: Path, trainval: TrainVal
) -> None:
    write_pack(tmp_path / "deep" / "pack", trainval, SHORT)
    found, expected = PackedImages(tmp_path / "deep" / "pack"), trainval.arrays(SHORT)
    assert len(found) == len(expected) == COUNT
    assert len({image.shape for image in expected}) > 3
    for row in range(COUNT):
        assert found.shape_of(row) == expected[row].shape[:2]
        assert (found[np.array([row])][0] == expected[row]).all()
    chosen = found[np.array([20, 3, 3])]
    assert isinstance(chosen, list)
    assert [image.tobytes() for image in chosen] == [expected[row].tobytes() for row in (20, 3, 3)]
    assert [image.tobytes() for image in found[5:7]] == [expected[row].tobytes() for row in (5, 6)]


def test_images_of_one_shape_are_one_array(tmp_path: Path, trainval: TrainVal) -> None:
    write_pack(tmp_path / "pack", trainval, SQUARE)
    found, expected = PackedImages(tmp_path / "pack"), np.asarray(trainval.arrays(SQUARE))
    everything = found[:]
    assert isinstance(everything, np.ndarray)
    assert everything.shape == (COUNT, 8, 8, 3)
    assert (everything == expected).all()
    assert (found[np.array([7, 1])] == expected[[7, 1]]).all()


def test_images_that_keep_their_shapes_are_one_array_where_all_have_the_same(
    tmp_path: Path,
) -> None:
    alike = trainval_of(make_folder(tmp_path / "alike", width=18))
    write_pack(tmp_path / "pack", alike, SHORT)
    found = PackedImages(tmp_path / "pack")[np.array([2, 0])]
    assert isinstance(found, np.ndarray)
    assert found.shape == (2, 8, 12, 3)


def test_drawings_go_through_the_same_door(tmp_path: Path) -> None:
    half = drawings()
    write_pack(tmp_path / "pack", half, FirstStep("square", 14))
    found = PackedImages(tmp_path / "pack")
    assert found.channels == 1
    assert (found[:] == half.arrays(FirstStep("square", 14))).all()
    assert expected_bytes(half, FirstStep("square", 14)) == 16 * 14 * 14


def test_a_pack_says_what_it_is(tmp_path: Path, trainval: TrainVal) -> None:
    write_pack(tmp_path / "pack", trainval, SHORT)
    assert sorted(contents(tmp_path / "pack")) == ["index.npy", "pack.json", "pixels.bin", "y.npy"]
    about = read_json(tmp_path / "pack" / "pack.json")
    assert (about["count"], about["channels"], about["form"]) == (COUNT, 3, "pixels")
    assert about["step"] == {"kind": "short", "side": 8}
    assert about["fingerprint"] == trainval.fingerprint
    assert (np.load(tmp_path / "pack" / "y.npy") == trainval.y).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack"]


def test_nothing_is_copied_of_what_is_not_asked_for(tmp_path: Path, trainval: TrainVal) -> None:
    for name, step in (("even", SQUARE), ("ragged", SHORT)):
        write_pack(tmp_path / name, trainval, step)
        found = PackedImages(tmp_path / name)
        assert np.shares_memory(found[3:5][0], found._bytes)
        for crop in cut(found[3:5], np.array([[1, 2, 4, 3], [0, 0, 8, 8]])):
            assert np.shares_memory(crop, found._bytes)
            with pytest.raises(ValueError, match="read-only"):
                crop[0] = 0


@pytest.mark.parametrize("form", ["pixels", "jpeg"])
def test_crops_are_the_boxes_of_the_images(tmp_path: Path, trainval: TrainVal, form: Any) -> None:
    write_pack(tmp_path / "pack", trainval, SHORT, form)
    found = PackedImages(tmp_path / "pack")
    rows, boxes = np.array([3, 9, 3]), np.array([[1, 2, 4, 3], [0, 0, 8, 8], [7, 7, 1, 1]])
    crops, whole = cut(found[rows], boxes), found[rows]
    for crop, image, (top, left, height, width) in zip(crops, whole, boxes.tolist(), strict=True):
        assert crop.shape == (height, width, 3)
        assert (crop == image[top : top + height, left : left + width]).all()


@pytest.mark.parametrize("step", [FirstStep("short", 48), FirstStep("square", 48)])
def test_jpeg_is_close_to_the_pixels_and_smaller(
    tmp_path: Path, trainval: TrainVal, step: FirstStep
) -> None:
    for form in ("pixels", "jpeg"):
        write_pack(tmp_path / form, trainval, step, form)  # type: ignore[arg-type]
    pixels, jpeg = PackedImages(tmp_path / "pixels"), PackedImages(tmp_path / "jpeg")
    assert type(pixels[:]) is type(jpeg[:])
    for row in range(COUNT):
        one, other = pixels.image(row).astype(float), jpeg.image(row).astype(float)
        assert one.shape == other.shape
        noise = ((one - other) ** 2).mean()
        assert 10 * np.log10(255**2 / noise) > 38, "PSNR in dB"
    assert len(jpeg._bytes) < 0.5 * len(pixels._bytes)


def test_a_grey_jpeg_has_one_channel(tmp_path: Path) -> None:
    write_pack(tmp_path / "pack", drawings(), FirstStep("square", 28), "jpeg")
    assert np.asarray(PackedImages(tmp_path / "pack")[:3]).shape == (3, 28, 28, 1)


@pytest.mark.parametrize("step", [SHORT, SQUARE, FirstStep("stretch", 10)])
def test_the_size_of_a_pack_is_known_beforehand(
    tmp_path: Path, trainval: TrainVal, step: FirstStep
) -> None:
    write_pack(tmp_path / "pack", trainval, step)
    assert expected_bytes(trainval, step) == (tmp_path / "pack" / "pixels.bin").stat().st_size
    assert expected_bytes(trainval, step, "jpeg") < expected_bytes(trainval, step)


def test_the_images_of_a_chunk_alone_are_in_memory(
    tmp_path: Path, read_rows: list[list[int]]
) -> None:
    half, step = trainval_of(make_folder(tmp_path / "photos", side=100)), FirstStep("square", 200)
    expected_bytes(half, step)
    tracemalloc.start()
    try:
        write_pack(tmp_path / "pack", half, step)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(rows) for rows in read_rows] == [5, 5, 5, 5, 4]
    assert peak < 0.6 * expected_bytes(half, step)


def test_large_images_make_small_chunks(
    tmp_path: Path, trainval: TrainVal, read_rows: list[list[int]]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packs, "CHUNK_BYTES", 2 * 8 * 8 * 3)
        write_pack(tmp_path / "pack", trainval, SQUARE)
    assert max(len(rows) for rows in read_rows) == 2


@pytest.mark.parametrize("form", ["pixels", "jpeg"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_process_is_resumed_to_the_same_bytes(
    tmp_path: Path,
    root: Path,
    trainval: TrainVal,
    read_rows: list[list[int]],
    death: str,
    form: Any,
) -> None:
    folder = tmp_path / "pack"
    killed = run(
        root,
        folder,
        "from assay.progress import silent as progress\n"
        + DEATHS[death]
        + WRITE.format(progress="progress"),
        form,
    )
    _, problem = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, problem
    assert not folder.exists()
    assert (tmp_path / "pack.partial").is_dir()
    write_pack(folder, trainval, SHORT, form)
    first = {"before the first chunk": 0, "before it is put in place": COUNT}.get(death, 10)
    assert [row for rows in read_rows for row in rows] == list(range(first, COUNT)), (
        "finished chunks are not decoded again"
    )
    write_pack(tmp_path / "whole", trainval, SHORT, form)
    assert contents(folder) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack", "whole"]


def test_what_was_begun_of_other_images_is_thrown_away(
    tmp_path: Path, root: Path, read_rows: list[list[int]]
) -> None:
    other, mine = trainval_of(make_folder(tmp_path / "other", side=10)), trainval_of(root)

    def stop(what: str, done: int, total: int) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(tmp_path / "pack", other, SHORT, progress=stop)
    write_pack(tmp_path / "pack", mine, SHORT)
    assert [image.tobytes() for image in PackedImages(tmp_path / "pack")[:]] == [
        image.tobytes() for image in mine.arrays(SHORT)
    ]


def damage_the_log(partial: Path) -> None:
    (partial / "log").write_bytes((partial / "log").read_bytes()[:-9] + b"\x00\x00\n[24,9999]\n")


def lose_pixels(partial: Path) -> None:
    os.truncate(partial / "pack" / "pixels.bin", 100)


def lose_the_index(partial: Path) -> None:
    (partial / "index.bin").unlink()


@pytest.mark.parametrize("damage", [damage_the_log, lose_pixels, lose_the_index])
def test_a_damaged_partial_pack_costs_work_and_nothing_else(
    tmp_path: Path, trainval: TrainVal, damage: Any
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packs, "CHUNK", CHUNK)
        with pytest.raises(KeyboardInterrupt):
            write_pack(tmp_path / "pack", trainval, SHORT, progress=stop)
    damage(tmp_path / "pack.partial")
    write_pack(tmp_path / "pack", trainval, SHORT)
    write_pack(tmp_path / "whole", trainval, SHORT)
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")


def test_of_two_processes_one_packs_and_both_have_the_result(
    tmp_path: Path, root: Path, trainval: TrainVal
) -> None:
    counting = """
chunks, arrays = [], ImageFiles.arrays
def count(self, indices, step):
    chunks.append(len(indices))
    time.sleep(0.15)
    return arrays(self, indices, step)
ImageFiles.arrays = count
reports = []
"""
    printing = (
        "print(len(chunks), len(packs.PackedImages(folder)), 'waiting' in ' '.join(reports))\n"
    )
    code = counting + WRITE.format(progress="lambda what, *_: reports.append(what)") + printing
    both = [run(root, tmp_path / "pack", code) for _ in range(2)]
    said = sorted(process.communicate()[0] for process in both)
    assert said == [f"0 {COUNT} True\n", f"5 {COUNT} False\n"]
    write_pack(tmp_path / "whole", trainval, SHORT)
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack", "whole"]


def test_a_pack_appears_whole_and_progress_is_reported(
    tmp_path: Path, trainval: TrainVal, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[str, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        reports.append((what, done, total))
        assert not (tmp_path / "pack").exists()

    monkeypatch.setattr(packs, "CHUNK", CHUNK)
    write_pack(tmp_path / "pack", trainval, SHORT, progress=progress)
    assert reports == [("packing images", done, COUNT) for done in (0, 5, 10, 15, 20, 24)]


def test_a_pack_that_is_there_stays(
    tmp_path: Path, trainval: TrainVal, read_rows: list[list[int]]
) -> None:
    write_pack(tmp_path / "pack", trainval, SHORT)
    before = contents(tmp_path / "pack")
    read_rows.clear()
    write_pack(tmp_path / "pack", trainval, SQUARE)
    assert contents(tmp_path / "pack") == before
    assert read_rows == []


Usage = namedtuple("Usage", "total used free")


def test_a_pack_that_will_not_fit_is_refused_before_it_is_begun(
    tmp_path: Path, trainval: TrainVal, monkeypatch: pytest.MonkeyPatch, read_rows: list[list[int]]
) -> None:
    needed = expected_bytes(trainval, SHORT)
    monkeypatch.setattr(packs, "expected_bytes", lambda *_: 31_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 30_500_000_000))
    with pytest.raises(
        BadInput, match=r"need 31\.00 GB, but .* has 30\.50 GB left; free .*ASSAY_CACHE.*--jpeg"
    ):
        write_pack(tmp_path / "pack", trainval, SHORT)
    assert list(tmp_path.iterdir()) == []
    assert read_rows == []
    monkeypatch.setattr(packs, "expected_bytes", lambda *_: needed)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed))
    write_pack(tmp_path / "pack", trainval, SHORT)


def test_what_is_packed_already_needs_no_space(
    tmp_path: Path, trainval: TrainVal, read_rows: list[list[int]]
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(tmp_path / "pack", trainval, SHORT, progress=stop)
    missing = (
        expected_bytes(trainval, SHORT)
        - (tmp_path / "pack.partial" / "pack" / "pixels.bin").stat().st_size
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, missing - 1))
        with pytest.raises(BadInput, match="GB left"):
            write_pack(tmp_path / "pack", trainval, SHORT)
        patched.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, missing))
        write_pack(tmp_path / "pack", trainval, SHORT)
    assert len(read_rows) == 5


def test_a_disk_that_fills_up_is_named_and_work_goes_on_later(
    tmp_path: Path, trainval: TrainVal, monkeypatch: pytest.MonkeyPatch, read_rows: list[list[int]]
) -> None:
    real = PartialPack._add

    def fill_up(self: PartialPack, name: str, *contents: Any) -> None:
        if self.folder.name == "pack.partial" and name != "log" and self.rows == 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, name, *contents)

    monkeypatch.setattr(PartialPack, "_add", fill_up)
    with pytest.raises(BadInput, match="GB left; free some space"):
        write_pack(tmp_path / "pack", trainval, SHORT)
    monkeypatch.setattr(PartialPack, "_add", real)
    write_pack(tmp_path / "pack", trainval, SHORT)
    assert [rows[0] for rows in read_rows] == [0, 5, 10, 10, 15, 20]


def test_a_pack_cut_short_is_refused_by_name(tmp_path: Path, trainval: TrainVal) -> None:
    write_pack(tmp_path / "pack", trainval, SHORT)
    os.truncate(tmp_path / "pack" / "pixels.bin", 1000)
    with pytest.raises(
        BadInput, match="pack is not the pack that was written there; remove the folder"
    ):
        PackedImages(tmp_path / "pack")


def test_an_image_too_long_is_named_before_anything_is_packed(
    tmp_path: Path, read_rows: list[list[int]]
) -> None:
    root = make_folder(tmp_path / "photos")
    photo(0, 300, 2).save(root / "07" / "thread.png")
    half = trainval_of(root)
    with pytest.raises(
        BadInput,
        match=(
            r"thread\.png is 300 x 2 pixels.* 1,200, above 16 x 8; crop or remove it.*resize=square"
        ),
    ):
        write_pack(tmp_path / "pack", half, SHORT)
    assert read_rows == []
    write_pack(tmp_path / "pack", half, SQUARE)


def test_a_pickled_pack_is_its_place(tmp_path: Path, trainval: TrainVal) -> None:
    write_pack(tmp_path / "pack", trainval, FirstStep("square", 100))
    found = PackedImages(tmp_path / "pack")
    pickled = pickle.dumps(View(found, trainval.y).rows(np.arange(5)))
    assert len(pickled) < 5000
    assert (pickle.loads(pickled).x[:] == found[:5]).all()


def test_rows_of_a_view_read_nothing(
    tmp_path: Path, trainval: TrainVal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pack(tmp_path / "view", trainval, SHORT)
    view, expected = read_pack(tmp_path / "view"), trainval.arrays(SHORT)
    with monkeypatch.context() as patched:
        patched.setattr(PackedImages, "image", lambda *_: pytest.fail("read"))
        patched.setattr(PackedImages, "__getitem__", lambda *_: pytest.fail("read"))
        some = view.rows(np.array([9, 4, 4, 20])).rows(np.array([3, 0]))
    assert isinstance(some.x, SelectedImages)
    assert some.x.base is view.x
    assert len(some.x) == len(some.y) == 2
    assert some.inputs == view.inputs == 3
    assert [image.shape for image in some.x[np.arange(2)]] == [
        expected[row].shape for row in (20, 9)
    ]
    assert [image.tobytes() for image in some.x[np.array([1, 0])]] == [
        expected[row].tobytes() for row in (9, 20)
    ]
    [crop] = cut(some.x[np.array([1])], np.array([[1, 1, 3, 3]]))
    assert (crop == expected[9][1:4, 1:4]).all()
    assert (some.y == trainval.y[[20, 9]]).all()
    assert [image.tobytes() for image in some.x] == [expected[row].tobytes() for row in (20, 9)]
    assert [image.tobytes() for image in view.x] == [image.tobytes() for image in expected]
    marked = view.rows(np.arange(COUNT) < 3)
    assert len(marked.x) == 3


def test_rows_of_vectors_are_in_memory(tmp_path: Path) -> None:
    half = splits.of(vectors(), PROTOCOL)[0]
    write_pack(tmp_path / "view", half, FirstStep("square", 0))
    view = read_pack(tmp_path / "view")
    some = view.rows(np.array([5, 2]))
    assert type(some.x) is np.ndarray
    assert some.x.dtype == np.float32
    assert some.x.flags["C_CONTIGUOUS"]
    assert not np.shares_memory(some.x, np.asarray(view.x))
    assert some.inputs == 3


@pytest.mark.parametrize("images", [True, False])
def test_marks_of_queries_and_of_the_gallery_go_along(
    tmp_path: Path, root: Path, images: bool
) -> None:
    dataset = load_folder(root) if images else vectors()
    draw = np.random.default_rng(0)
    query, gallery = (draw.random(len(dataset.labels)) < 0.5 for _ in range(2))
    half = Half(replace(dataset, query=query, gallery=gallery), np.arange(20, 30))
    write_pack(tmp_path / "view", half, SQUARE if images else FirstStep("square", 0))
    view = read_pack(tmp_path / "view")
    assert view.query is not None and view.gallery is not None
    assert (view.query == query[20:30]).all()
    assert (view.gallery == gallery[20:30]).all()
    some = view.rows(np.array([7, 1]))
    assert some.query is not None and some.gallery is not None
    assert some.query.tolist() == query[[27, 21]].tolist()
    assert some.gallery.tolist() == gallery[[27, 21]].tolist()


def test_a_view_without_marks_has_none(tmp_path: Path, trainval: TrainVal) -> None:
    write_pack(tmp_path / "view", trainval, SQUARE)
    view = read_pack(tmp_path / "view")
    assert (view.query, view.gallery) == (None, None)


def test_a_view_is_placed_in_the_cache_once(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half = trainval_of(root)
    folder = place_pack(half, SHORT)
    assert folder.parent == tmp_path / "packs"
    with monkeypatch.context() as patched:
        patched.setattr(ImageFiles, "arrays", lambda *_: pytest.fail("packed again"))
        assert place_pack(trainval_of(root), SHORT) == folder
    others = {
        place_pack(half, SHORT, "jpeg"),
        place_pack(half, SQUARE),
        place_pack(half, FirstStep("short", 9)),
    }
    assert len({*others, folder}) == 4
    assert (read_pack(folder).y == half.y).all()


def test_an_edit_elsewhere_leaves_a_pack_valid(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = trainval_of(root)
    hashed: list[str] = []

    def spy(file: str) -> str:
        hashed.append(Path(file).name)
        return "0" * 64

    monkeypatch.setattr("assay.data.packs.code_hash", spy)
    monkeypatch.setattr("assay.data.images.code_hash", spy)
    images.decoder_hash.cache_clear()
    packs._packing_hash(half)
    images.decoder_hash.cache_clear()
    assert sorted(hashed) == ["image_files.py", "images.py", "packs.py", "partial_pack.py"]


def test_vectors_of_a_halfs_samples_are_made_once(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half = trainval_of(root)
    z = np.random.default_rng(0).normal(size=(COUNT, 5)).astype(np.float32)
    folder = place_vectors(half, "resnet50", lambda: z)
    assert place_vectors(half, "resnet50", lambda: pytest.fail("made again")) == folder
    view = read_pack(folder)
    assert (view.x == z).all()
    assert (view.y == half.y).all()
    assert view.inputs == 5


def cut_pixels(folder: Path) -> None:
    os.truncate(folder / "pixels.bin", 1000)


def flip_a_bit(name: str) -> Any:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return damage


def change_a_label(folder: Path) -> None:
    y = np.load(folder / "y.npy")
    y[0] += 1
    np.save(folder / "y.npy", y)


def change_the_channels(folder: Path) -> None:
    text = (folder / "pack.json").read_text()
    (folder / "pack.json").write_text(text.replace('"channels": 3', '"channels": 1'))


def overwrite(name: str, content: bytes) -> Any:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def lose(name: str) -> Any:
    def damage(folder: Path) -> None:
        (folder / name).unlink()

    return damage


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


SPOILT: dict[str, Any] = {
    "pixels cut": cut_pixels,
    "pixels gone": lose("pixels.bin"),
    "pixels changed": flip_a_bit("pixels.bin"),
    "the index changed": flip_a_bit("index.npy"),
    "a label changed": change_a_label,
    "labels gone": lose("y.npy"),
    "labels empty": overwrite("y.npy", b""),
    "labels an archive": overwrite("y.npy", b"PK\x03\x04 and no more"),
    "the index is text": overwrite("index.npy", b"no array"),
    "the index gone": lose("index.npy"),
    "the note gone": lose("pack.json"),
    "the note no JSON": overwrite("pack.json", b"\xff{"),
    "the note of another form": overwrite("pack.json", b"[]"),
    "the note changed": change_the_channels,
    "everything gone": empty,
}
"""Damage that a pack in the cache may have."""


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_pack_is_refused_on_reading_and_made_again_on_placing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half = trainval_of(root)
    folder = place_pack(half, SHORT)
    before = contents(folder)
    SPOILT[how](folder)
    with pytest.raises(
        BadInput, match=f"^{folder} is not the pack that was written there; remove the folder"
    ) as error:
        read_pack(folder)
    assert "\n" not in str(error.value)
    assert place_pack(half, SHORT) == folder
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_marks_that_are_gone_are_missed(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    dataset = load_folder(root)
    marks = np.arange(len(dataset.labels)) % 2 == 0
    half = Half(replace(dataset, query=marks, gallery=~marks), np.arange(20, 30))
    folder = place_pack(half, SQUARE)
    (folder / "query.npy").unlink()
    with pytest.raises(BadInput, match="remove the folder"):
        read_pack(folder)
    assert read_pack(place_pack(half, SQUARE)).query is not None


@pytest.mark.parametrize(
    "how",
    [
        "a label changed",
        "labels gone",
        "the note gone",
        "everything gone",
        "vectors cut",
        "vectors gone",
        "vectors changed",
    ],
)
def test_damaged_vectors_are_refused_on_reading_and_made_again_on_placing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half, z = trainval_of(root), np.random.default_rng(0).normal(size=(COUNT, 5)).astype(np.float32)
    folder = place_vectors(half, "resnet50", lambda: z)
    before = contents(folder)
    {
        "vectors cut": overwrite("x.npy", before["x.npy"][:-4]),
        "vectors gone": lose("x.npy"),
        "vectors changed": flip_a_bit("x.npy"),
        **SPOILT,
    }[how](folder)
    with pytest.raises(
        BadInput, match=f"^{folder} is not the pack that was written there; remove the folder"
    ):
        read_pack(folder)
    assert place_vectors(half, "resnet50", lambda: z) == folder
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["resnet50"]


def test_a_file_or_a_dangling_link_in_the_place_of_a_pack_makes_room(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half = trainval_of(root)
    folder = place_pack(half, SHORT)
    for put in (Path.touch, lambda path: path.symlink_to("nowhere")):
        shutil.rmtree(folder)
        put(folder)
        assert (read_pack(place_pack(half, SHORT)).y == half.y).all()


def test_a_process_hashes_large_files_once_until_they_change(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half, read, real = trainval_of(root), [], content._segment
    folder = place_pack(half, SHORT)
    monkeypatch.setattr(content, "SETTLED", 0)
    monkeypatch.setattr(content, "_segment", lambda *a: read.append(a[0].name) or real(*a))
    read_pack(place_pack(half, SHORT))
    read_pack(folder)
    assert read == ["pixels.bin"]
    before = (folder / "pixels.bin").stat()
    flip_a_bit("pixels.bin")(folder)
    os.utime(folder / "pixels.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BadInput, match="remove the folder"):
        read_pack(folder)


def test_a_file_written_a_moment_ago_is_hashed_at_each_opening(tmp_path: Path) -> None:
    """A second write may leave it with the same times, which have a coarse grain."""
    path = tmp_path / "pixels.bin"
    path.write_bytes(b"one")
    stat = path.stat()
    first = content.digest_content(path)
    path.write_bytes(b"two")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "stat", lambda *_, **__: stat)
        assert content.digest_content(path) != first


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 37])
def test_the_hash_of_a_file_is_that_of_its_pieces_however_they_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(content, "SEGMENT", 10)
    monkeypatch.setattr(content, "PIECE", 4)
    written = np.random.default_rng(0).bytes(size)
    (tmp_path / "file").write_bytes(written)
    segments = [written[start : start + 10] for start in range(0, size, 10)]
    expected = digest([digest_bytes(segment) for segment in segments])
    assert content.digest_content(tmp_path / "file") == expected
    for step in (1, 7, 25):
        hashed = content.ContentHash()
        for start in range(0, size, step):
            hashed.add(written[start : start + step])
        assert hashed.digest == expected


@pytest.mark.forgery("the command", what="the beginning of a pack that a killed writer left: {}")
@pytest.mark.parametrize("name", ["pack/pixels.bin", "index.bin"])
def test_an_altered_beginning_of_a_pack_is_begun_anew(
    tmp_path: Path, trainval: TrainVal, read_rows: list[list[int]], name: str
) -> None:
    """A writer is killed; what it left is poisoned, with the same length, before it goes on."""

    def stop(what: str, done: int, total: int) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(tmp_path / "pack", trainval, SHORT, progress=stop)
    flip_a_bit(name)(tmp_path / "pack.partial")
    write_pack(tmp_path / "pack", trainval, SHORT)
    write_pack(tmp_path / "whole", trainval, SHORT)
    assert [rows[0] for rows in read_rows[:7]] == [0, 5, 0, 5, 10, 15, 20]
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["pack/pixels.bin", "index.bin"])
def test_a_pack_altered_while_it_is_written_is_not_used(
    tmp_path: Path, trainval: TrainVal, read_rows: list[list[int]], name: str
) -> None:
    def poison(what: str, done: int, total: int) -> None:
        if done == COUNT:
            flip_a_bit(name)(tmp_path / "pack.partial")

    def write_and_read() -> None:
        write_pack(tmp_path / "pack", trainval, SHORT, progress=poison)
        read_pack(tmp_path / "pack")

    with pytest.raises(BadInput, match=r"altered while|not the pack that was written there"):
        write_and_read()


def test_who_waits_for_features_that_another_computes_is_told_so(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half, z = trainval_of(root), np.ones((COUNT, 5), dtype=np.float32)
    said, waits = list[tuple[Any, ...]](), threading.Event()

    def hear(*given: Any) -> None:
        said.append(given)
        waits.set()

    folder = place_vectors(half, "resnet50", lambda: z, hear)
    assert said == []
    shutil.rmtree(folder)
    with ThreadPoolExecutor(1) as pool:
        with lock_in_turn(folder.with_name("resnet50.lock"), lambda: None):
            other = pool.submit(place_vectors, half, "resnet50", lambda: z, hear)
            assert waits.wait(60)
        assert other.result() == folder
    assert said == [("waiting for another process that computes these features", 0, COUNT)]


def test_of_two_processes_one_makes_a_damaged_pack_again(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half = trainval_of(root)
    folder = place_pack(half, SHORT)
    before = contents(folder)
    cut_pixels(folder)
    code = """
from assay.data.packs import place_pack, read_pack
chunks, arrays = [], ImageFiles.arrays
ImageFiles.arrays = lambda *a: (chunks.append(1), time.sleep(0.15), arrays(*a))[2]
read_pack(place_pack(trainval, FirstStep('short', 8)))
print(len(chunks))
"""
    both = [run(root, folder, code) for _ in range(2)]
    assert sorted(process.communicate()[0] for process in both) == ["0\n", "5\n"]
    assert contents(folder) == before


def test_a_cache_that_cannot_be_used_is_one_message(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "file"))
    for place in (
        lambda: place_pack(trainval_of(root), SHORT),
        lambda: place_vectors(trainval_of(root), "x", lambda: np.ones(1)),
    ):
        with pytest.raises(
            BadInput, match=r"cache folder .*file cannot be used \(.*\); set ASSAY_CACHE"
        ):
            place()


def test_a_whole_pack_is_used_though_the_cache_cannot_be_written_to(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    half = trainval_of(root)
    folder = place_pack(half, SHORT)
    monkeypatch.setattr("assay.data.packs.writable_cache", lambda: pytest.fail("asked for"))
    assert place_pack(half, SHORT) == folder
