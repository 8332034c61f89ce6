"""Files and folders that appear whole or not at all, locks, and the cache folder."""

import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, Any

DRAFT, DEAD = ".draft-", ".dead-"
"""Beginnings of the names of unfinished files and folders, and of folders that are being removed.
"""

MOST_BYTES = 1 << 30
"""Bytes of the largest file that is read at once: a list, a document, an image."""

LONGEST_LINE = 10_000_001
"""Characters of a line above which a file is no list: the images of one landmark fill a long line.
"""

MANY_FILES = 64
"""Above this number of files, one sync of the whole system is quicker than one sync per file."""


# --- The cache folder ---


def cache_folder() -> Path:
    """Return the folder for what can be computed again: ASSAY_CACHE, else the user's cache."""
    if chosen := os.environ.get("ASSAY_CACHE"):
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 (raises nothing for an unknown ~user)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"


def looks_folder() -> Path:
    """Return the folder of the index of looks: ASSAY_LOOKS, else `looks` beside the cache.

    What it holds cannot be computed again, so it is in the user's folder for such state, unless
    ASSAY_CACHE says where everything goes.
    """
    if chosen := os.environ.get("ASSAY_LOOKS"):
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 (raises nothing for an unknown ~user)
    if os.environ.get("ASSAY_CACHE"):
        return cache_folder() / "looks"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "assay" / "looks"


def usable_cache() -> Path:
    """Create the cache folder, check that it can be written to, and return it.

    Raises `OSError` with the remedy otherwise, of which callers make a `BadInput` (`assay.errors`
    is on the same layer as this module). Call it before writing only: finished files in a read-only
    cache can still be read.
    """
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"x")
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        chosen = (
            os.environ.get("ASSAY_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache/assay"
        )
        raise OSError(
            f"the cache folder {chosen} cannot be used ({reason}); set ASSAY_CACHE to a folder that"
            " can be written to"
        ) from error
    return folder


@contextmanager
def empty_cache() -> Iterator[Path]:
    """Let the cache be an empty folder inside the block, for whatever must not come from the user's
    cache; yield the path of the latter. The folder is removed on leaving.
    """
    users, setting = cache_folder(), os.environ.get("ASSAY_CACHE")
    with tempfile.TemporaryDirectory(prefix="assay-cache-") as folder:
        os.environ["ASSAY_CACHE"] = folder  # processes that are started inside inherit it
        try:
            yield users
        finally:
            del os.environ["ASSAY_CACHE"]
            if setting is not None:
                os.environ["ASSAY_CACHE"] = setting


# --- Writing ---


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write `content` to `path`; a reader sees the old file or the new one, never a part.

    The content goes to a temporary file, which is synced to the disk and then renamed.
    """
    with errors_naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            regular(path)  # not a device, which would become a file
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=DRAFT)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Raise the `OSError` that `write_atomically` would, before the work whose outcome it is to
    write; nothing stays.
    """
    with errors_naming(path):
        if path.exists():
            regular(path)
        tempfile.TemporaryFile(dir=path.parent, prefix=DRAFT).close()


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, durably: all of it or, where the disk is full, nothing.

    Folders are made where they are missing. A killed writer may leave a torn line at the end, see
    `cut_torn_line`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with errors_naming(path):
        before = path.stat().st_size if path.exists() else 0
        content = line.encode() + b"\n"
        try:
            with path.open("ab", buffering=0) as stream:
                written = stream.write(content)
                if written < len(content):
                    stream.write(content[written:])  # raises the error that cut the first write
                os.fsync(stream.fileno())
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


def cut_torn_line(path: Path) -> None:
    """Remove the beginning of a line that a killed writer left at the end of a file."""
    if not path.exists():
        return
    content = read_bytes(path)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Set the file name of an `OSError` that has none (disk full) or only a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or DRAFT in str(error.filename)):
            error.filename, error.filename2 = str(path), None
        raise


# --- Reading ---


def regular(path: Path) -> Path:
    """Return the path; raise `OSError` where it is a pipe, a socket or a device.

    Opening a pipe waits for a writer, and a device may never end. Every file is opened by way of
    this function: by the readers below, or by a library that opens the path itself.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        name = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}.get(kind, "a device")
        raise OSError(errno.EINVAL, f"it is {name}, not a file", str(path))
    return path


def memory() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def open_file(path: Path) -> BufferedReader:
    """Open a file to read its bytes."""
    return regular(path).open("rb")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file; raise `OSError`, before any is read, where it has over `most`."""
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise OSError(errno.EOVERFLOW, f"it has {size:,} bytes, more than {most:,}", str(path))
        return stream.read()


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    return read_bytes(path).decode("utf-8")


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file, with their ends; raise `ValueError` at an endless one."""
    with TextIOWrapper(open_file(path), encoding=encoding, newline="") as stream:
        number = 1
        while line := stream.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise ValueError(f"line {number} has over {LONGEST_LINE - 1:,} characters")
            yield line
            number += 1


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where there is no such folder.

    Hidden names, which begin with a dot, are left out: drafts are such, and what systems and
    editors leave in folders.
    Unlike `Path.glob`, it raises `OSError` where the folder may not be read, rather than to say
    that nothing is in it.
    """
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_json(path: Path) -> Any:
    """Return the JSON document in a file; raise `ValueError` where it is none."""
    return parse_json(read_bytes(path))


def parse_json(content: bytes) -> Any:
    """Return a JSON document as it can be written again.

    Raises `ValueError` also for what `json` lets pass: NaN and infinities, halves of characters
    (surrogates), and more levels than can be read.
    """

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        document = json.loads(content.decode("utf-8"), parse_constant=refuse)
        if b"\\ud" in content.lower():
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it has too many levels") from None
    return document


# --- Folders and drafts ---


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(final: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; on leaving it is renamed to `final`.

    Where `final` exists already, that one stays and the new folder is removed; with `replace`, the
    old one is moved aside, and removed when the new one has taken its place.
    """
    with errors_naming(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=final.parent, prefix=DRAFT))
        os.chmod(draft, 0o755)
        aside: Path | None = None
        try:
            yield draft
            inside = list(draft.rglob("*"))
            _sync_files([path for path in inside if path.is_file()])
            for folder in (draft, *(path for path in inside if path.is_dir())):
                sync_folder(folder)
            if replace and final.is_dir():
                aside = final.rename(draft.with_name(f"{DEAD}{draft.name}"))
            try:
                draft.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        sync_folder(final.parent)
        if aside is not None:
            shutil.rmtree(aside)


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes left unfinished in `folder` and below."""
    _remove(folder.rglob(f"{DRAFT}*"), folder.rglob(f"{DEAD}*"))


def remove_drafts_in(folder: Path) -> None:
    """Remove what killed processes left unfinished in `folder` itself.

    Files further below may be the user's, with any name.
    """
    _remove(folder.glob(f"{DRAFT}*"), folder.glob(f"{DEAD}*"))


def _remove(drafts: Iterable[Path], dead: Iterable[Path]) -> None:
    """Remove drafts, and dead folders that another process had begun to remove.

    A draft is renamed before it is emptied, so that a process that is still filling it cannot put
    it in place half empty.
    """
    for draft in list(drafts):
        if draft.is_dir():
            with suppress(FileNotFoundError):
                shutil.rmtree(draft.rename(draft.with_name(f"{DEAD}{draft.name}")))
        else:
            draft.unlink(missing_ok=True)
    for folder in list(dead):
        shutil.rmtree(folder, ignore_errors=True)


def _sync_files(paths: list[Path]) -> None:
    """Make the files durable, which costs a wait for the disk for each."""
    if len(paths) > MANY_FILES:
        os.sync()
        return
    for path in paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


# --- Locks ---


@contextmanager
def lock_now(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; raises `BlockingIOError` if another process holds it.

    The kernel releases the lock when its holder dies.
    """
    with path.open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def lock_in_turn(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at `path`; wait for the process that holds it, and call `waiting` then.

    The file is removed on leaving. A process that waited for the lock of a file that was removed
    locks the new file instead.
    """
    while True:
        with path.open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(stream, fcntl.LOCK_EX)
            if not _is_at(stream, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(stream: IO[str], path: Path) -> bool:
    """Return whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
