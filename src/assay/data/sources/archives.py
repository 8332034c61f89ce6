"""Archives, unpacked once into the cache; every member is checked before any is written."""

import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Self

from assay.data.paths import writable_cache
from assay.errors import BadInput, reason_of
from assay.files import cache_folder, lock_in_turn, new_folder, regular, remove_drafts_in
from assay.hashing import digest
from assay.progress import Progress, silent

TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
ENDINGS = (".zip", *TAR)
COPY_BYTES = 1 << 20
"""Bytes that are copied at a time."""

RATIO, SMALL = 100, 100_000_000
"""How many times larger than the archive its members may be, unless they are small."""

LONGEST_NAME, MOST_AFTER_END = 100_000, 100_000_000
"""Bytes of the longest name in a tar file, and of the most that may follow its end mark."""


@dataclass(frozen=True)
class Member:
    """One plain file of an archive."""

    name: str
    size: int
    open: Callable[[], IO[bytes] | None]


def is_archive(path: Path) -> bool:
    """Return whether a file's name is that of an archive that can be unpacked."""
    return path.name.lower().endswith(ENDINGS)


def unpack(archive: Path, progress: Progress = silent) -> Path:
    """Return the folder of the cache with the content of `archive`; unpack it there unless this
    file has been unpacked before.

    Refused, with nothing left behind: an archive that is cut off, encrypted or too large for the
    disk, and members that are no plain files or would land outside of the folder. Links of any kind
    are refused: none of the data sets needs one. One process at a time unpacks, and removes what
    killed processes left half unpacked.
    """
    final = cache_folder() / "unpacked" / _name_in_cache(archive)
    if os.path.isdir(final):  # noqa: PTH112 (a cache that cannot be entered holds nothing)
        return final
    place = writable_cache() / "unpacked"
    place.mkdir(exist_ok=True)

    def waiting() -> None:
        progress(f"{archive.name}: waiting for another process that unpacks", 0, 1)

    with lock_in_turn(place.with_name("unpacked.lock"), waiting):
        remove_drafts_in(place)
        if final.is_dir():
            return final
        with _opened(archive) as members:
            total = sum(member.size for member in members)
            _check_space(archive, total)
            with new_folder(final) as draft:
                _write(archive, members, draft, total, progress)
    return final


def _name_in_cache(archive: Path) -> str:
    """Return the archive's name with a hash that tells it from a file put there later."""
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", archive.name.split(".")[0])[:60]
    found = archive.stat()
    return f"{stem}-{digest([str(archive.resolve()), found.st_size, found.st_mtime_ns])[:16]}"


DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)
"""Errors from reading an archive that is cut off, damaged or no archive."""


@contextmanager
def _opened(archive: Path) -> Iterator[list[Member]]:
    """Give the checked members, to be read while inside; errors of a damaged archive become
    `BadInput`.
    """
    kind = _tar if archive.name.lower().endswith(TAR) else _zip
    try:
        with kind(regular(archive)) as members:
            _check_clashes(archive, members)
            yield members
    except BadInput:
        raise
    except DAMAGED as error:
        raise BadInput(_damage(archive, error)) from None


def _damage(archive: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return (
            f"{archive} cannot be unpacked: {error.strerror} ({error.filename or 'no file named'})"
        )
    size = archive.stat().st_size
    reason = reason_of(error).partition(": - method")[0]  # of each compression that was tried
    return (
        f"{archive} ({size:,} bytes) cannot be unpacked: {reason}; it is cut"
        " off, damaged or no such archive at all: fetch it again and compare its size with the one"
        " at the source"
    )


@contextmanager
def _zip(archive: Path) -> Iterator[list[Member]]:
    with zipfile.ZipFile(archive) as opened:
        infos = [info for info in opened.infolist() if _is_file_in_zip(archive, info)]
        _check_ratio(archive, sum(info.file_size for info in infos))
        yield [
            Member(_checked(archive, info.filename), info.file_size, partial(opened.open, info))
            for info in infos
        ]


def _is_file_in_zip(archive: Path, info: zipfile.ZipInfo) -> bool:
    _checked(archive, info.filename)
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise _refused(archive, info.filename, "is a link")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(archive, info.filename, "is a device")
    if info.flag_bits & 1:
        raise BadInput(
            f"{archive}: {info.filename} is encrypted; unpack it yourself with the password and"
            " give the folder"
        )
    return not info.is_dir()


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if not header.isreg() and header.size > LONGEST_NAME:
            raise ValueError(f"it has a name of {header.size:,} bytes")
        return header

    @classmethod
    def fromtarfile(cls, opened: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(opened)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # typeshed does not list it
            assert isinstance(opened, _Tar)
            opened.ended = True
            raise


class _Tar(tarfile.TarFile):
    """A tar file that knows whether its end mark was read: `TarFile` takes an archive that is cut
    off between two members for a complete one.
    """

    tarinfo = _Header
    ended = False


def _read_to_end(opened: tarfile.TarFile) -> None:
    """Read what follows the end mark, for a compressed archive is checked at its end."""
    left = MOST_AFTER_END
    while opened.fileobj is not None and (chunk := opened.fileobj.read(COPY_BYTES)):
        left -= len(chunk)
        if left < 0:
            raise ValueError(f"over {MOST_AFTER_END:,} bytes follow its end mark")


@contextmanager
def _tar(archive: Path) -> Iterator[list[Member]]:
    with _Tar.open(archive) as opened:
        infos, total = [], 0
        for info in opened:
            if _is_file_in_tar(archive, info):
                infos.append(info)
                total += info.size
                _check_ratio(archive, total)  # before the bytes of the member are passed over
        if not opened.ended:
            raise EOFError("its end is missing")
        _read_to_end(opened)
        yield [
            Member(_checked(archive, info.name), info.size, partial(opened.extractfile, info))
            for info in infos
        ]


def _is_file_in_tar(archive: Path, info: tarfile.TarInfo) -> bool:
    _checked(archive, info.name)
    if info.issym() or info.islnk():
        raise _refused(archive, info.name, f"is a link to {info.linkname}")
    if not info.isfile() and not info.isdir():
        raise _refused(archive, info.name, "is a device")
    return info.isfile()


def _checked(archive: Path, name: str) -> str:
    """Return the member's name as a relative path with /; `BadInput` where it is unsafe."""
    if "\\" in name or re.match(r"[A-Za-z]:", name):
        raise _refused(archive, name, "is named as on Windows, with a drive or backslashes")
    if name.startswith("/"):
        raise _refused(archive, name, "has an absolute path")
    if ".." in name.split("/"):
        raise _refused(archive, name, "has .. in its path")
    if not name.isprintable():
        raise _refused(archive, name, "has characters in its name that are not text")
    return PurePosixPath(name).as_posix()


def _check_clashes(archive: Path, members: list[Member]) -> None:
    names: set[str] = set()
    for member in members:
        if member.name in names:
            raise _refused(archive, member.name, "is there twice")
        names.add(member.name)


def _refused(archive: Path, name: str, what: str) -> BadInput:
    return BadInput(
        f"{archive}: its member {name!a} {what}; no official archive holds such a thing: fetch it"
        " again from its source, or unpack it yourself and give the folder"
    )


def _check_ratio(archive: Path, total: int) -> None:
    """Raise `BadInput` where members claim to be far larger than the archive: images are not."""
    size = archive.stat().st_size
    if total > max(RATIO * size, SMALL):
        raise BadInput(
            f"{archive} ({_amount(size)}) claims to hold {_amount(total)}, over {RATIO} times its"
            " size, as no official archive does; fetch it again from its source, or unpack it"
            " yourself and give the folder"
        )


def _check_space(archive: Path, total: int) -> None:
    place = cache_folder()
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    if total > free:
        raise BadInput(
            f"{archive} takes {_amount(total)} unpacked, but {place} has {_amount(free)} free; make"
            " room, set ASSAY_CACHE to a folder on a larger disk, or unpack it yourself and give"
            " the folder"
        )


def _amount(size: int) -> str:
    """Return a size as people write it.

    >>> _amount(1_234_567_890)
    '1.2 GB'
    """
    value, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:,.{0 if unit == 'bytes' else 1}f} {unit}"


def _write(
    archive: Path, members: list[Member], folder: Path, total: int, progress: Progress
) -> None:
    done = 0
    for member in members:
        target = folder / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        written = _copy(archive, member, target)
        if written != member.size:
            raise _refused(
                archive, member.name, f"has {written:,} bytes but claims {member.size:,}"
            )
        done += written
        progress(archive.name, done, total)


def _copy(archive: Path, member: Member, target: Path) -> int:
    """Write a member and return its bytes; at most one byte more than it claims is read."""
    source = member.open()
    assert source is not None, "links and folders were left out"
    written = 0
    with source, target.open("xb") as stream:
        while chunk := source.read(min(COPY_BYTES, member.size - written + 1)):
            written += stream.write(chunk)
            if written > member.size:
                raise _refused(
                    archive, member.name, f"is larger than the {member.size:,} bytes it claims"
                )
    return written
