"""Image files of every kind: decoded, scaled in the first step, and remembered between loads."""

import errno
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assay.data import image_files, images
from assay.data.image_files import ImageFiles
from assay.data.images import MOST_PIXELS, decode_image, first_step, is_too_long, shape_after
from assay.errors import BadInput
from assay.files import cache_folder
from assay.protocols import FirstStep, Resize

HERE = Path("here.jpg")


def picture(seed: int = 0, width: int = 12, height: int = 8) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def pixels(content: bytes) -> Any:
    return np.asarray(decode_image(content, HERE))


def test_a_progressive_photo_is_the_same_picture() -> None:
    photo = picture(0, 64, 48)
    assert (pixels(saved(photo, "JPEG", progressive=True)) == pixels(saved(photo, "JPEG"))).all()


def test_a_progressive_photo_cut_short_is_refused() -> None:
    whole = saved(picture(0, 64, 48), "JPEG", progressive=True)
    with pytest.raises(BadInput, match=r"here\.jpg cannot be read as an image .*truncated"):
        decode_image(whole[: len(whole) // 2], HERE)


def test_a_turned_tiff_is_turned_once() -> None:
    turned = saved(picture(), "TIFF", tiffinfo={0x0112: 6})
    assert (pixels(turned) == np.rot90(np.asarray(picture()), -1)).all()


def with_notes(orientation: int, damage: Callable[[bytes], bytes]) -> bytes:
    """Make a photo whose EXIF notes have an orientation and a program, and damage the notes."""
    exif = Image.Exif()
    exif[0x0112], exif[0x0131], exif[0x8769] = orientation, "soft", {0x9003: "2020:01:01 00:00:00"}
    return saved(picture(0, 64, 48), "JPEG", exif=damage(exif.tobytes()))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(
    "damage",
    [
        lambda notes: notes[:14] + b"\xff" * 30,
        lambda notes: b"Exif\x00\x00nonsense",
        lambda notes: notes[:11],
    ],
    ids=["noise", "text", "cut"],
)
def test_damaged_notes_leave_a_photo_readable(damage: Callable[[bytes], bytes]) -> None:
    assert (pixels(with_notes(6, damage)) == pixels(saved(picture(0, 64, 48), "JPEG"))).all()


@pytest.mark.filterwarnings("ignore:Tag data larger than file")
def test_a_photo_is_turned_upright_though_other_notes_are_damaged() -> None:
    def change_the_type_of_the_program(notes: bytes) -> bytes:
        assert b"\x01\x31\x00\x02" in notes
        return notes.replace(b"\x01\x31\x00\x02", b"\x01\x31\x00\x0a")

    plain = pixels(saved(picture(0, 64, 48), "JPEG"))
    assert (pixels(with_notes(6, change_the_type_of_the_program)) == np.rot90(plain, -1)).all()


def test_the_first_of_two_photos_in_one_file_counts() -> None:
    first, second = (
        Image.new("RGB", (16, 16), (200, 10, 10)),
        Image.new("RGB", (16, 16), (10, 10, 200)),
    )
    both = saved(first, "MPO", save_all=True, append_images=[second])
    assert np.abs(pixels(both).astype(int) - [200, 10, 10]).max() <= 3


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_picture_of_an_animation_counts(kind: str) -> None:
    first, second = (
        Image.new("RGB", (16, 16), (200, 200, 200)),
        Image.new("RGB", (16, 16), (0, 0, 0)),
    )
    moving = saved(first, kind, save_all=True, append_images=[second])
    assert np.abs(pixels(moving).astype(int) - 200).max() <= 3


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [("PA", None, None), ("LA", (40, 128), 147), ("1", 1, 255), ("I;16", 65535, 255)],
)
def test_odd_modes_are_seen_on_white(mode: str, colour: Any, seen: int | None) -> None:
    if mode == "PA":
        image = Image.new("RGBA", (4, 4), (9, 9, 9, 0)).quantize()
        assert image.mode == "P"
        seen = 255
    else:
        image = Image.new(mode, (4, 4), colour)
    assert (pixels(saved(image, "PNG")) == seen).all()


def test_cmyk_photos_with_and_without_adobes_marker_are_the_same_colours() -> None:
    """Adobe inverts the ink, and other programs do too, whether they write its marker or not."""
    adobe = saved(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG")
    start = adobe.index(b"\xff\xee")
    length = struct.unpack(">H", adobe[start + 2 : start + 4])[0]
    plain = adobe[:start] + adobe[start + 2 + length :]
    assert np.abs(pixels(adobe).astype(int) - [0, 255, 255]).max() <= 2
    assert np.abs(pixels(plain).astype(int) - [0, 255, 255]).max() <= 2


def test_a_photo_that_claims_to_be_enormous_is_refused() -> None:
    whole = bytearray(saved(picture(0, 64, 48), "JPEG"))
    frame = whole.index(b"\xff\xc0")
    whole[frame + 5 : frame + 9] = struct.pack(">HH", 60_000, 60_000)
    with pytest.raises(
        BadInput, match=rf"would unpack to an enormous image, above {MOST_PIXELS:,} pixels"
    ):
        decode_image(bytes(whole), HERE)


@pytest.mark.parametrize(
    "size",
    [(640, 480), (480, 640), (500, 333), (333, 500), (256, 256), (256, 300), (7, 9), (1000, 63)],
)
def test_the_short_side_is_scaled_and_the_shape_kept(size: tuple[int, int]) -> None:
    """torchvision's Resize(256): the long side is int(256 * long / short)."""
    width, height = size
    found = first_step(picture(0, width, height), FirstStep("short", 256), 3)
    short, long = min(size), max(size)
    expected = (256, int(256 * long / short)) if width > height else (int(256 * long / short), 256)
    assert found.shape == (*expected, 3)
    assert shape_after(width, height, FirstStep("short", 256)) == expected
    scaled = picture(0, width, height).resize((expected[1], expected[0]), Image.Resampling.BILINEAR)
    assert (found == np.asarray(scaled)).all()


@pytest.mark.parametrize("kind", ["square", "short", "stretch"])
def test_an_image_of_the_right_size_keeps_its_pixels(kind: Resize) -> None:
    assert (
        first_step(picture(0, 16, 16), FirstStep(kind, 16), 3) == np.asarray(picture(0, 16, 16))
    ).all()


def test_a_stretched_image_is_all_there() -> None:
    stripes = np.zeros((10, 40, 3), dtype=np.uint8)
    stripes[:, 20:] = 255
    found = first_step(Image.fromarray(stripes), FirstStep("stretch", 10), 3)
    assert found.shape == (10, 10, 3)
    assert (found[:, :4] == 0).all()
    assert (found[:, 6:] == 255).all()


@pytest.mark.parametrize("kind", ["square", "short", "stretch"])
def test_what_is_scaled_down_is_averaged(kind: Resize) -> None:
    board = np.indices((64, 64)).sum(axis=0) % 2 * np.uint8(255)
    found = first_step(
        Image.fromarray(board.astype(np.uint8)).convert("RGB"), FirstStep(kind, 8), 3
    )
    assert np.abs(found.astype(int) - 127).max() < 8


@pytest.mark.parametrize("kind", ["square", "short", "stretch"])
def test_one_channel_is_grey(kind: Resize) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    found = first_step(Image.fromarray(grey).convert("RGB"), FirstStep(kind, 16), 1)
    assert found.shape == (16, 16, 1)
    assert (found[..., 0] == grey).all()
    red = first_step(Image.new("RGB", (20, 30), (255, 0, 0)), FirstStep(kind, 16), 1)
    assert (red == 76).all()


@pytest.mark.parametrize(
    ("width", "height", "too_long"),
    [(160, 10, False), (10, 160, False), (161, 10, True), (1, 5000, True)],
)
def test_a_thread_of_pixels_is_too_long_where_it_keeps_its_shape(
    width: int, height: int, too_long: bool
) -> None:
    assert is_too_long(width, height, FirstStep("short", 100)) is too_long
    for kind in ("square", "stretch"):
        assert not is_too_long(width, height, FirstStep(kind, 100))  # type: ignore[arg-type]


def make_files(root: Path, count: int = 6) -> list[Path]:
    paths = [root / f"{number % 2}" / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, 10 + number, 9).save(path)
    return paths


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Save six images, which may be remembered although they are new."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_files, "SETTLED", 0)
    return make_files(tmp_path / "data")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the files that are read."""
    names: list[str] = []
    real = image_files.read_bytes

    def read(path: Path) -> bytes:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(image_files, "read_bytes", read)
    return names


def database() -> Path:
    [found] = (cache_folder() / "scans").glob("*.sqlite")
    return found


def test_sizes_digests_and_channels_of_files_are_known(tmp_path: Path, paths: list[Path]) -> None:
    files = ImageFiles(paths, tmp_path / "data")
    assert files.sizes.tolist() == [[10 + number, 9] for number in range(6)]
    assert len({files.digest(number) for number in range(6)}) == 6
    assert [files.problem(number) for number in range(6)] == [None] * 6
    assert (files.paths, files.inputs) == (paths, 3)
    grey = ImageFiles(paths, tmp_path / "data", channels=1)
    assert np.asarray(grey.arrays(np.arange(2), FirstStep("stretch", 5))).shape == (2, 5, 5, 1)


def test_images_that_keep_their_shapes_are_a_list(tmp_path: Path, paths: list[Path]) -> None:
    found = ImageFiles(paths, tmp_path / "data").arrays(np.array([5, 0]), FirstStep("short", 18))
    assert isinstance(found, list)
    assert [image.shape for image in found] == [(18, 30, 3), (18, 20, 3)]
    assert np.asarray(
        ImageFiles(paths, tmp_path / "data").arrays(np.arange(0), FirstStep("square", 4))
    ).shape == (0, 4, 4, 3)


def test_the_size_is_that_of_the_upright_image(tmp_path: Path, paths: list[Path]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(0, 12, 8).save(paths[0], exif=exif)
    assert ImageFiles(paths, tmp_path / "data").sizes[0].tolist() == [8, 12]


def test_a_file_that_was_seen_is_not_opened_again(
    tmp_path: Path, paths: list[Path], opened: list[str]
) -> None:
    first = ImageFiles(paths, tmp_path / "data")
    assert sorted(opened) == [path.name for path in paths]
    opened.clear()
    second = ImageFiles(paths[::-1], tmp_path / "data")
    assert opened == []
    assert [second.digest(row) for row in range(6)] == [first.digest(row) for row in range(6)][::-1]
    assert second.sizes.tolist() == first.sizes.tolist()[::-1]


def test_the_same_folder_by_another_name_is_the_same(
    tmp_path: Path, paths: list[Path], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths[1].write_bytes(b"")
    ImageFiles(paths, tmp_path / "data")
    opened.clear()
    monkeypatch.chdir(tmp_path)
    relative = [path.relative_to(tmp_path) for path in paths]
    again = ImageFiles(relative, Path("data"))
    assert opened == []
    assert str(again.problem(1)).startswith("data/1/1.png cannot be read")


def rewrite(path: Path) -> None:
    picture(99).save(path)


def rewrite_in_secret(path: Path) -> None:
    """Write another picture of the same size, with the old time of writing."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # in the checksum of the last chunk, which is not looked at
    time.sleep(0.02)
    path.write_bytes(bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_a_copy(path: Path) -> None:
    shutil.copy(path.parent / "4.png", path)


@pytest.mark.parametrize("change", [rewrite, rewrite_in_secret, replace_by_a_copy])
def test_a_changed_file_alone_is_looked_at_again(
    tmp_path: Path, paths: list[Path], opened: list[str], change: Callable[[Path], None]
) -> None:
    before = ImageFiles(paths, tmp_path / "data")
    change(paths[2])
    opened.clear()
    after = ImageFiles(paths, tmp_path / "data")
    assert opened == ["2.png"]
    assert [row for row in range(6) if after.digest(row) != before.digest(row)] == [2]


def test_a_file_written_a_moment_ago_is_not_remembered(
    tmp_path: Path, paths: list[Path], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that counts seconds it could change again without another time."""
    monkeypatch.setattr(image_files, "SETTLED", 2.0)
    ImageFiles(paths, tmp_path / "data")
    ImageFiles(paths, tmp_path / "data")
    assert len(opened) == 12


def test_a_problem_is_remembered(tmp_path: Path, paths: list[Path], opened: list[str]) -> None:
    paths[3].write_bytes(b"no picture")
    first = ImageFiles(paths, tmp_path / "data")
    opened.clear()
    second = ImageFiles(paths, tmp_path / "data")
    assert opened == []
    message = f"{paths[3]} cannot be read as an image (not a format it knows); fix or remove it"
    assert first.problem(3) == second.problem(3) == message
    assert second.sizes[3].tolist() == [0, 0]


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "Permission denied"), MemoryError()]
)
def test_a_problem_that_is_not_the_files_own_is_not_remembered(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        (
            patched.setattr(image_files, "read_bytes", fail)
            if isinstance(error, OSError)
            else patched.setattr(Image, "open", fail)
        )
        assert str(paths[0]) in str(ImageFiles(paths, tmp_path / "data").problem(0))
    assert ImageFiles(paths, tmp_path / "data").problem(0) is None


def test_a_file_that_is_not_there_has_a_problem(tmp_path: Path, paths: list[Path]) -> None:
    paths[0].unlink()
    message = f"{paths[0]} cannot be read: No such file or directory; fix or remove it"
    assert ImageFiles(paths, tmp_path / "data").problem(0) == message


def test_other_code_looks_at_all_files_again(
    tmp_path: Path, paths: list[Path], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ImageFiles(paths, tmp_path / "data")
    opened.clear()
    monkeypatch.setattr(image_files, "decoder_hash", lambda: "another Pillow")
    ImageFiles(paths, tmp_path / "data")
    assert len(opened) == 6


def test_an_interrupted_scan_goes_on_where_it_was(
    tmp_path: Path, paths: list[Path], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "AT_ONCE", 2)

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ImageFiles(paths, tmp_path / "data", progress=interrupt)
    opened.clear()
    ImageFiles(paths, tmp_path / "data")
    assert sorted(opened) == ["4.png", "5.png"]


def test_a_killed_scan_goes_on_where_it_was(
    tmp_path: Path, paths: list[Path], opened: list[str]
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from assay.data import image_files
image_files.SETTLED, image_files.AT_ONCE, image_files.COMMIT = 0, 2, -1
def die(stage, done, total):
    if done == 4:
        os.kill(os.getpid(), signal.SIGKILL)
image_files.check_files([Path(path) for path in sys.argv[2:]], Path(sys.argv[1]), die)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data"), *map(str, paths)], capture_output=True
    )
    assert done.returncode == -9, done.stderr
    ImageFiles(paths, tmp_path / "data")
    assert sorted(opened) == ["4.png", "5.png"]


def test_two_processes_may_scan_one_folder(
    tmp_path: Path, paths: list[Path], opened: list[str]
) -> None:
    code = """
import sys
from pathlib import Path
from assay.data import image_files
image_files.SETTLED, image_files.AT_ONCE, image_files.COMMIT = 0, 1, -1
print(len(image_files.check_files([Path(path) for path in sys.argv[2:]], Path(sys.argv[1]))))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "data"), *map(str, paths)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["6\n", "6\n"]
    ImageFiles(paths, tmp_path / "data")
    assert opened == []


def overwrite(file: Path) -> None:
    file.write_bytes(b"no database at all, and long enough to be seen as such" * 20)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def change_an_entry(file: Path) -> None:
    """Write a digest with another digit, with which every use of the file would be refused."""
    with sqlite3.connect(file) as connection:
        for path, entry in connection.execute("SELECT path, entry FROM seen_2").fetchall():
            stamp, (digest, *rest) = json.loads(entry)
            damaged = json.dumps([stamp, ["0" + digest[1:], *rest]])
            connection.execute("UPDATE seen_2 SET entry = ? WHERE path = ?", (damaged, path))
    connection.close()


@pytest.mark.parametrize("damage", [overwrite, cut, change_an_entry, Path.unlink])
def test_a_damaged_memory_costs_the_work_again_and_no_more(
    tmp_path: Path, paths: list[Path], opened: list[str], damage: Callable[[Path], None]
) -> None:
    first = ImageFiles(paths, tmp_path / "data")
    damage(database())
    for expected in (6, 0):
        opened.clear()
        again = ImageFiles(paths, tmp_path / "data")
        assert [again.digest(row) for row in range(6)] == [first.digest(row) for row in range(6)]
        assert len(opened) == expected


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, paths: list[Path], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert ImageFiles(paths, tmp_path / "data").problem(0) is None
    assert len(opened) == 12


def test_progress_is_reported_to_the_callback(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "AT_ONCE", 4)
    reports: list[tuple[str, int, int]] = []
    ImageFiles(paths, tmp_path / "data", progress=lambda *words: reports.append(words))
    assert reports == [("checking images", done, 6) for done in (0, 4, 6)]
    reports.clear()
    paths[0].write_bytes(b"x")
    ImageFiles(paths, tmp_path / "data", progress=lambda *words: reports.append(words))
    assert reports == [("checking images", 5, 6), ("checking images", 6, 6)]


def test_the_code_that_decodes_is_part_of_what_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = images.decoder_hash()
    for name, value in (
        ("code_hash", lambda _: "edited"),
        ("PIL", type("Other", (), {"__version__": "0"})),
    ):
        images.decoder_hash.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(images, name, value)
            assert images.decoder_hash() != before
    images.decoder_hash.cache_clear()
    assert images.decoder_hash() == before


def test_an_image_too_long_is_named_where_it_keeps_its_shape(
    tmp_path: Path, paths: list[Path]
) -> None:
    picture(0, 1, 5000).save(paths[0])
    files = ImageFiles(paths, tmp_path / "data")
    with pytest.raises(
        BadInput, match=r"0\.png is 1 x 5000 pixels.* 500,000, above 16 x 100; crop or remove it"
    ):
        files.arrays(np.array([1, 0]), FirstStep("short", 100))
    assert files.problem(0) is None
    assert np.asarray(files.arrays(np.array([0]), FirstStep("square", 4))).shape == (1, 4, 4, 3)
