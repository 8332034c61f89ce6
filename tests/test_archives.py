"""Archives are unpacked once and completely, and no member lands outside of the folder."""

import gzip
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.data.paths import check_inside
from assay.data.sources import archives
from assay.data.sources.archives import is_archive, unpack
from assay.errors import BadInput
from assay.files import DRAFT
from refusals import refusal

FILES = {"birds/one.txt": b"one", "birds/deep/two.txt": b"two" * 1000, "list.txt": b""}
MODES = {".tar": "w", ".tgz": "w:gz", ".tar.gz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.name != "unpacked"]


def write_zip(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, *members: tarfile.TarInfo, files: dict[str, bytes] = FILES) -> Path:
    ending = next(
        ending for ending in sorted(MODES, key=len, reverse=True) if path.name.endswith(ending)
    )
    with tarfile.open(path, MODES[ending]) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return path


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def unpacked(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("ending", [".zip", *MODES])
def test_what_went_in_comes_out(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"birds{ending}"
    (write_zip if ending == ".zip" else write_tar)(path)
    assert is_archive(path)
    assert unpacked(unpack(path)) == FILES


def test_folders_of_an_archive_that_says_them_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "birds.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tar_member("./", tarfile.DIRTYPE))
        archive.addfile(tar_member("./birds/", tarfile.DIRTYPE))
        archive.addfile(tar_member("./birds/one.txt"))
    assert unpacked(unpack(path)) == {"birds/one.txt": b""}


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "birds.zip")
    folder = unpack(path)
    (folder / "mark").touch()
    assert unpack(path) == folder
    assert (folder / "mark").exists()


def test_another_archive_of_the_same_name_is_another_folder(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "birds.zip")
    first = unpack(path)
    write_zip(path, {"other.txt": b"other"})
    (tmp_path / "sub").mkdir()
    moved = Path(shutil.copy2(path, tmp_path / "sub"))
    assert len({first, unpack(path), unpack(moved)}) == 3
    assert unpacked(unpack(path)) == {"other.txt": b"other"}


def test_an_archive_of_the_same_size_written_later_is_another_folder(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "birds.zip", {"one.txt": b"one"})
    first, before = unpack(path), path.stat()
    write_zip(path, {"one.txt": b"two"})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert path.stat().st_size == before.st_size
    assert (unpacked(first), unpacked(unpack(path))) == ({"one.txt": b"one"}, {"one.txt": b"two"})


def test_the_folder_is_in_the_cache_under_the_name_of_the_archive(
    tmp_path: Path, cache: Path
) -> None:
    folder = unpack(write_tar(tmp_path / "My birds.tar.gz"))
    assert folder.parent == cache / "unpacked"
    assert re.fullmatch(r"My_birds-[0-9a-f]{16}", folder.name)


def test_progress_counts_bytes_up_to_the_whole(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    unpack(write_zip(tmp_path / "birds.zip"), lambda *words: reports.append(words))
    assert reports == [("birds.zip", 3, 3003), ("birds.zip", 3003, 3003), ("birds.zip", 3003, 3003)]


class Bad(NamedTuple):
    """A member that is refused, and the word that says why."""

    name: str
    word: str
    kind: bytes = tarfile.REGTYPE
    target: str = ""


NAMES = [
    Bad("../evil.txt", ".."),
    Bad("birds/../../evil.txt", ".."),
    Bad("/evil.txt", "absolute"),
    Bad("C:/evil.txt", "drive"),
    Bad("birds\\..\\evil.txt", "backslashes"),
    Bad("birds/e\nvil.txt", "not text"),
]
KINDS = [
    Bad("birds/link", "link to ../../evil", tarfile.SYMTYPE, "../../evil"),
    Bad("birds/link", "link to /etc/passwd", tarfile.SYMTYPE, "/etc/passwd"),
    Bad("birds/link", "link to ../evil", tarfile.LNKTYPE, "../evil"),
    Bad("birds/null", "device", tarfile.CHRTYPE),
    Bad("birds/disk", "device", tarfile.BLKTYPE),
    Bad("birds/pipe", "device", tarfile.FIFOTYPE),
]


def check_refused(path: Path, bad: Bad, cache: Path) -> None:
    message = refusal((path.name, bad), lambda: unpack(path))
    assert bad.word in message, bad
    assert f"{path}: its member {bad.name!a} " in message, bad
    assert left_in(cache) == [], bad


def test_a_member_of_a_tar_that_leads_out_is_refused(tmp_path: Path, cache: Path) -> None:
    for bad, ending in product((*NAMES, *KINDS), (".tar", ".tgz")):
        path = write_tar(tmp_path / f"birds{ending}", tar_member(bad.name, bad.kind, bad.target))
        check_refused(path, bad, cache)
        assert not (tmp_path / "evil.txt").exists(), bad


def test_a_member_of_a_zip_that_leads_out_is_refused(tmp_path: Path, cache: Path) -> None:
    for bad in NAMES:
        path = write_zip(tmp_path / "birds.zip", FILES | {bad.name: b"evil"})
        check_refused(path, bad, cache)


@pytest.mark.parametrize(("mode", "word"), [(0o120777, "link"), (0o020666, "device")])
def test_a_member_of_a_zip_that_is_no_plain_file_is_refused(
    tmp_path: Path, cache: Path, mode: int, word: str
) -> None:
    path = tmp_path / "birds.zip"
    info = zipfile.ZipInfo("birds/link")
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "../../evil.txt")
    with pytest.raises(BadInput, match=f"'birds/link' is a {word}"):
        unpack(path)
    assert left_in(cache) == []


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_tar(tmp_path / "birds.tar", tar_member("./list.txt"))
    with pytest.raises(BadInput, match=r"'list\.txt' is there twice"):
        unpack(path)
    assert left_in(cache) == []


def test_a_file_where_another_member_needs_a_folder_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "birds.zip", {"birds": b"", "birds/one.txt": b"one"})
    with pytest.raises(BadInput, match=r"birds\.zip cannot be unpacked: "):
        unpack(path)
    assert left_in(cache) == []


def test_an_encrypted_zip_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "birds.zip", {"one.txt": b"one"})
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"one\.txt is encrypted"):
        unpack(path)
    assert left_in(cache) == []


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path, cache: Path) -> None:
    noise = {
        f"{number}.bin": bytes((7919 * number * byte >> 3) % 256 for byte in range(3000))
        for number in range(8)
    }
    for ending in (".zip", *MODES):
        path = tmp_path / f"birds{ending}"
        write_zip(path, noise) if ending == ".zip" else write_tar(path, files=noise)
        content = path.read_bytes().rstrip(b"\0")  # a tar's end mark is zeros
        for keep in (0.0, 0.3, 0.7, 0.95):
            path.write_bytes(content[: int(keep * len(content))])
            message = refusal((ending, keep), lambda path=path: unpack(path))
            assert "fetch it again" in message and str(path) in message, (ending, keep)
            assert left_in(cache) == [], (ending, keep)


@pytest.mark.parametrize("ending", [".tar", ".tgz"])
def test_a_tar_that_is_cut_between_two_members_is_refused(
    tmp_path: Path, cache: Path, ending: str
) -> None:
    whole = write_tar(
        tmp_path / "whole.tar", files={f"{number}.bin": b"x" * 512 for number in range(4)}
    ).read_bytes()
    path = tmp_path / f"birds{ending}"
    if ending == ".tar":
        path.write_bytes(whole[: 3 * 1024])
    else:
        path.write_bytes(gzip.compress(whole[: 3 * 1024]))
    with tarfile.open(path) as taken_for_whole:
        assert len(taken_for_whole.getnames()) == 3
    with pytest.raises(BadInput, match="its end is missing"):
        unpack(path)
    assert left_in(cache) == []


@pytest.mark.parametrize("ending", [".zip", ".tgz"])
def test_a_page_of_text_saved_as_an_archive_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"birds{ending}"
    path.write_text("<html>404 not found</html>" * 100)
    with pytest.raises(BadInput, match=r"\(2,600 bytes\) cannot be unpacked"):
        unpack(path)


def test_a_changed_byte_is_found(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "birds.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("one.txt", "needle in a haystack")
    path.write_bytes(path.read_bytes().replace(b"needle", b"noodle", 1))
    with pytest.raises(BadInput, match="CRC"):
        unpack(path)
    assert left_in(cache) == []


def test_a_zip_that_lies_about_a_size_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "birds.zip", {"one.txt": b"x" * 100_000})
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\1\2")
    assert struct.unpack_from("<I", content, central + 24) == (100_000,)
    struct.pack_into("<I", content, central + 24, 10)
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"birds\.zip"):
        unpack(path)
    assert left_in(cache) == []


def test_an_archive_larger_than_the_disk_is_refused_before_a_byte_is_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "bomb.zip", {"zeros": bytes(5_000_000)})
    assert path.stat().st_size < 10_000
    room = shutil.disk_usage(tmp_path)._replace(free=4_900_000)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda place: room)
    monkeypatch.setattr(archives, "new_folder", None)
    with pytest.raises(
        BadInput, match=r"takes 5\.0 MB unpacked, but .* has 4\.9 MB free; .*ASSAY_CACHE"
    ):
        unpack(path)
    assert left_in(cache) == []


UNPACKING = """
import sys, time
from pathlib import Path
from assay.data.sources import archives
written, real, reports = [], archives._write, []
def write(*arguments):
    written.append(1)
    time.sleep(0.5)
    real(*arguments)
archives._write = write
print("ready", flush=True)
sys.stdin.readline()
archives.unpack(Path(sys.argv[1]), lambda what, done, total: reports.append(what))
print(len(written), any("waiting" in what for what in reports))
"""


def test_of_two_processes_one_unpacks_and_the_other_waits(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "birds.zip")
    command = [sys.executable, "-c", UNPACKING, str(path)]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert sorted(process.communicate(timeout=60)[0] for process in both) == [
        "0 True\n",
        "1 False\n",
    ]
    assert unpacked(unpack(path)) == FILES
    assert [path.name for path in cache.iterdir()] == ["unpacked"]


def test_what_killed_processes_left_half_unpacked_is_cleared(tmp_path: Path, cache: Path) -> None:
    first = unpack(write_zip(tmp_path / "first.zip", {f"{DRAFT}named by somebody/a.txt": b"a"}))
    (cache / "unpacked" / f"{DRAFT}killed" / "birds").mkdir(parents=True)
    (cache / "unpacked" / f"{DRAFT}killed" / "birds" / "one.txt").write_text("half")
    second = unpack(write_zip(tmp_path / "second.zip"))
    assert set((cache / "unpacked").iterdir()) == {first, second}
    assert unpacked(first) == {f"{DRAFT}named by somebody/a.txt": b"a"}


def test_a_cache_that_cannot_be_used_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "birds.zip")
    monkeypatch.setenv("ASSAY_CACHE", str(path))
    with pytest.raises(
        BadInput, match=r"cache folder .*birds\.zip cannot be used .*; set ASSAY_CACHE"
    ):
        unpack(path)


def test_being_stopped_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    path = write_zip(tmp_path / "birds.zip")
    with pytest.raises(KeyboardInterrupt):
        unpack(path, stop)
    assert left_in(cache) == []
    assert unpacked(unpack(path)) == FILES


def link_file(root: Path, outside: Path) -> Path:
    (root / "birds" / "link.jpg").symlink_to(outside / "secret.jpg")
    return root / "birds" / "link.jpg"


def link_folder(root: Path, outside: Path) -> Path:
    (root / "more").symlink_to(outside)
    return root / "more"


@pytest.mark.parametrize("make", [link_file, link_folder])
def test_a_link_out_of_the_data_is_named(
    tmp_path: Path, make: Callable[[Path, Path], Path]
) -> None:
    root, outside = tmp_path / "root", tmp_path / "root-of-others"
    for folder in (root / "birds", outside / "sub"):
        folder.mkdir(parents=True)
    (outside / "secret.jpg").touch()
    link = make(root, outside)
    paths = [root / "birds" / "one.jpg", link if make is link_file else link / "sub" / "a.jpg"]
    with pytest.raises(
        BadInput,
        match=f"^{re.escape(str(link))} leads out of {re.escape(str(root))}, to .*root-of-others",
    ):
        check_inside(root, paths)


def test_links_inside_the_data_and_a_link_to_the_whole_are_fine(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "birds").mkdir(parents=True)
    (root / "birds" / "one.jpg").touch()
    (root / "again.jpg").symlink_to("birds/one.jpg")
    (tmp_path / "alias").symlink_to(root)
    for start in (root, tmp_path / "alias"):
        check_inside(
            start, [start / "birds" / "one.jpg", start / "again.jpg", start / "not there.jpg"]
        )


def test_a_link_in_a_circle_is_named(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(BadInput, match="one is a link that leads round in a circle"):
        check_inside(tmp_path, [tmp_path / "one"])
