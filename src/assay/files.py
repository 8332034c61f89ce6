"""Files that are either whole or not there: write to a temporary name, fsync, rename."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

DRAFT, DEAD = ".draft-", ".dead-"

MANY = 64
"""Files from which on one call for the whole system is quicker than one for each."""


def cache_folder() -> Path:
    """Where what can be made again is kept between runs:
    ASSAY_CACHE, else the user's cache folder.
    """
    if chosen := os.environ.get("ASSAY_CACHE"):
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 (which raises nothing where ~ is nobody's)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"


def usable_cache() -> Path:
    """The cache folder, made and tried; `OSError` with the remedy where it cannot be made or
    written to.

    Its users make a `BadInput` of that (`assay.errors` stands beside this module, not below it).
    What is whole in a cache that cannot be written to may be read all the same: ask for this before
    something is made.
    """
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"x")
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


def write_atomically(path: Path, content: bytes | str) -> None:
    """Put `content` at `path`; a reader sees the old file or the new one, never a part."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in an `OSError` that names nothing, as that of a full disk, or a draft that
    nobody has heard of.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or DRAFT in str(error.filename)):
            error.filename, error.filename2 = str(path), None
        raise


def read_json(path: Path) -> Any:
    """The JSON document at `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Fill the folder yielded; on leaving it appears at `final` at once, or not at all where one is
    there already.
    """
    with naming(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=final.parent, prefix=DRAFT))
        os.chmod(draft, 0o755)
        try:
            yield draft
            _sync_files([path for path in draft.rglob("*") if path.is_file()])
            sync_folder(draft)
            _rename_unless_there(draft, final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        sync_folder(final.parent)


def remove_drafts(folder: Path) -> None:
    """Clear what killed processes left unfinished below `folder`.

    A draft is renamed before it is emptied, so that a process that is still filling it cannot put
    it in place half empty.
    """
    _remove(list(folder.rglob(f"{DRAFT}*")))
    _clear(list(folder.rglob(f"{DEAD}*")))


def remove_drafts_in(folder: Path) -> None:
    """Clear what killed processes left unfinished in `folder` itself; what lies deeper may be other
    people's, of any name.
    """
    _remove(list(folder.glob(f"{DRAFT}*")))
    _clear(list(folder.glob(f"{DEAD}*")))


def _remove(drafts: list[Path]) -> None:
    for draft in drafts:
        if draft.is_dir():
            with suppress(FileNotFoundError):
                shutil.rmtree(draft.rename(draft.with_name(f"{DEAD}{draft.name}")))
        else:
            draft.unlink(missing_ok=True)


def _clear(dead_ones: list[Path]) -> None:
    for dead in dead_ones:
        shutil.rmtree(dead, ignore_errors=True)


def _sync_files(paths: list[Path]) -> None:
    """Make the files durable, one by one where they are few: each costs a wait for the disk."""
    if len(paths) > MANY:
        os.sync()
        return
    for path in paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _rename_unless_there(draft: Path, final: Path) -> None:
    try:
        draft.rename(final)
    except OSError:
        if not final.is_dir():
            raise


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` while inside; raises `BlockingIOError` where another process
    holds it.

    The kernel drops the lock when its holder dies, however it dies.
    """
    with path.open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def in_turn(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at `path` while inside, after the process that holds it now; `waiting` is
    called where there is one.

    The file is removed on leaving, so whoever gets the lock of a file that is no longer there tries
    again.
    """
    while True:
        with path.open("a+") as stream:
            _lock(stream, waiting)
            if not _is_at(stream, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _lock(stream: IO[str], waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(stream, fcntl.LOCK_EX)


def _is_at(stream: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
