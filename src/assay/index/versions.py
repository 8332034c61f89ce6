"""Versions of an index: the one that is there, and a new one that takes its place in one step.

A version is written to a folder of its own, which never changes; `index.json`, which names it, is
replaced at the end. A killed writer leaves the old version or the new one, and drafts that the next
writer removes. Rows that were given up are left in place while they are few.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput, check_utf8
from assay.files import DEAD, DRAFT, lock_now, new_folder, read_bytes, read_json, remove_drafts_in
from assay.index.backends import Backend, Earlier, Mask, Rows, StoredVectors, backends
from assay.index.catalog import Catalog, Entry, drafting
from assay.index.manifest import (
    ALIVE,
    BACKEND,
    CATALOG,
    LOCK,
    MANIFEST,
    MODELS,
    PENDING,
    VECTORS,
    VERSIONS,
    DamagedIndex,
    Manifest,
    check_sizes,
    folder_of,
    is_index,
    read_manifest,
    sums_of,
)
from assay.index.opening import open_alive, open_vectors
from assay.index.recall import Quality, measure
from assay.index.scoring import prepare
from assay.index.settings import settled_backend
from assay.npz import write_npy
from assay.progress import Progress

OURS = b"the lock of an image index of Assay\n"
"""Content of the file of the lock, by which a folder without a finished index is known."""

VERSION_NAME, MODEL_NAME = re.compile(r"v\d{6,}"), re.compile(r"[0-9a-f]{64}")
"""Names of the folders of versions and of models; nothing else is ever removed."""

MOST_DEAD = 0.2
"""Share of the rows above which those that were given up are removed and all are numbered anew."""


@dataclass(frozen=True)
class Present:
    """The version of an index that is to be replaced."""

    root: Path
    manifest: Manifest
    vectors: StoredVectors
    alive: Mask | None
    images: tuple[tuple[int, str, str], ...]
    words: Mapping[int, Mapping[str, str]] = field(repr=False)

    @classmethod
    def read(cls, root: Path) -> "Present | None":
        """Read the present version; None where there is none so far."""
        if not is_index(root):
            return None
        manifest = read_manifest(root)
        check_sizes(root, manifest)
        folder = root / manifest.folder
        words: dict[int, dict[str, str]] = {}
        with closing(Catalog(folder / CATALOG)) as catalog:
            for column in catalog.columns:
                for row, word in catalog.words(column).items():
                    words.setdefault(row, {})[column] = word
            images = tuple(catalog.images())
        alive = open_alive(folder, manifest)
        return cls(root, manifest, open_vectors(folder, manifest), alive, images, words)


@dataclass(frozen=True)
class Change:
    """How a new version differs from the one before.

    Args:
        dead: rows of the version before that are given up.
        vectors: new rows, as they are stored.
        entries: the images of the new rows.
        words: rows that stay, with their new metadata.
    """

    dead: Rows
    vectors: NDArray[Any]
    entries: Sequence[Entry] = ()
    words: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def is_nothing(self) -> bool:
        """Whether there is no change."""
        return not (len(self.dead) or len(self.entries) or self.words)


# --- the lock -------------------------------------------------------------------------------------


@contextmanager
def writing(out: Path, *, new: bool = True) -> Iterator[Path]:
    """Yield the folder of an index with its lock held, and without what killed writers left.

    Raise `BadInput` where another process holds the lock, or the folder is no index.
    """
    check_utf8(out)
    if not new:
        read_manifest(out)
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; give the folder of an index")
    if out.is_dir() and any(out.iterdir()) and not _is_ours(out):
        raise BadInput(
            f"--out {out} holds files and is no index; give another folder, or an empty one"
        )
    for name in (VERSIONS, MODELS, PENDING, LOCK):
        if (out / name).is_symlink():
            raise BadInput(
                f"{out / name} is a link, and an index holds none: what it leads to would be"
                " changed; remove it"
            )
    created = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with lock_now(out / LOCK):
            _mark(out / LOCK)
            _clean(out)
            try:
                yield out
            except BaseException:
                if created and [path.name for path in out.iterdir()] == [LOCK]:
                    shutil.rmtree(out, ignore_errors=True)
                raise
            _clean(out)
    except BlockingIOError:
        raise BadInput(
            f"{out} is being written by another process; run this again when it has ended (you can"
            " search meanwhile)"
        ) from None


def _is_ours(out: Path) -> bool:
    """Return whether a folder is an index, or one that was begun here and never finished.

    Other programs write files called index.json too.
    """
    lock = out / LOCK
    if lock.is_file() and (read_bytes(lock) == OURS or [*out.iterdir()] == [lock]):
        return True
    try:
        document = read_json(out / MANIFEST)
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("kind") == Manifest.kind


def _mark(lock: Path) -> None:
    """Write into the file of the lock, which is held, that the folder is to become an index."""
    if not lock.stat().st_size:
        lock.write_bytes(OURS)


def _clean(root: Path) -> None:
    """Remove drafts of killed writers, and versions and models that are not the present ones.

    Of a damaged index nothing is removed, until it is made again.
    """
    remove_drafts_in(root)
    try:
        manifest = read_manifest(root) if is_index(root) else None
    except DamagedIndex:
        return
    present = None if manifest is None else root / manifest.folder
    for folder in _folders_in(root / VERSIONS, VERSION_NAME):
        if folder != present:
            _discard(folder, present)
    for folder in _folders_in(root / MODELS, MODEL_NAME):
        if manifest is None or folder.name != manifest.model.print:
            _discard(folder, present)


def _folders_in(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Return the folders in a folder that a writer made, drafts too, by their names; no links."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        path
        for path in inside
        if path.is_dir()
        and not path.is_symlink()
        and (name.fullmatch(path.name) or path.name.startswith((DRAFT, DEAD)))
    ]


def _discard(folder: Path, present: Path | None) -> None:
    """Remove a folder; readers see it whole or not at all.

    It stays where a server that keeps a part of it cannot be reached: the next writer tries again.
    """
    try:
        forget(folder / BACKEND, present)
    except BadInput:
        return
    if not folder.name.startswith(DEAD):
        folder = folder.rename(folder.with_name(f"{DEAD}{folder.name}-{secrets.token_hex(4)}"))
    shutil.rmtree(folder, ignore_errors=True)


def forget(structure: Path, present: Path | None) -> None:
    """Remove what a structure keeps outside of the index, whichever back end wrote it.

    Raise `BadInput` where a server cannot be reached.
    """
    if structure.is_dir():
        for kind in backends.values():
            kind().discard(structure, None if present is None else present / BACKEND)


# --- a new version --------------------------------------------------------------------------------


def place_version(
    root: Path, base: Manifest, present: Present | None, change: Change, progress: Progress
) -> Manifest:
    """Write a version and make it the present one."""
    before = 0 if present is None else present.manifest.rows
    was_alive = np.ones(before, dtype=np.bool_)
    if present is not None and present.alive is not None:
        was_alive &= present.alive
    was_alive[change.dead] = False
    compact = bool((~was_alive).sum() > MOST_DEAD * (before + len(change.entries)))
    kept = np.flatnonzero(was_alive) if compact else np.arange(before)
    rows = len(kept) + len(change.entries)
    alive = np.ones(rows, dtype=np.bool_)
    if not compact:
        alive[:before] = was_alive
    mask = None if alive.all() else alive
    version = _next_version(root, base.version)
    same_rows = present is not None and not compact
    chosen = settled_backend(base)
    with new_folder(root / folder_of(version)) as draft, _forgetting(draft / BACKEND, root):
        _write_vectors(draft / VECTORS, present, kept, change.vectors, base, same_rows, progress)
        stored = open_vectors(draft, replace(base, rows=rows))
        write_npy(draft / ALIVE, alive)
        catalog = None if present is None else root / present.manifest.folder / CATALOG
        with drafting(draft / CATALOG, catalog) as written:
            written.remove(change.dead.tolist())
            written.describe(change.words)
            if compact:
                written.renumber(kept)
            written.add(len(kept), change.entries)
            columns = written.finish()
        (draft / BACKEND).mkdir()
        extends = same_rows and present is not None and _extends(base, present.manifest)
        chosen.build(
            draft / BACKEND,
            stored,
            mask,
            Earlier(root / present.manifest.folder / BACKEND, before)
            if extends and present
            else None,
            progress,
        )
        quality = _measured(chosen, draft / BACKEND, stored, mask, progress)
        manifest = replace(
            base,
            version=version,
            generation=base.generation + (not same_rows),
            rows=rows,
            count=int(alive.sum()),
            quality=quality,
            columns=columns,
            label=_label(base.label, columns),
            files=sums_of(draft),
        )
    manifest.write(root)
    return manifest


@contextmanager
def _forgetting(structure: Path, root: Path) -> Iterator[None]:
    """Remove what a structure keeps outside of the index, where the block does not end well."""
    try:
        yield
    except BaseException:
        present = root / read_manifest(root).folder if is_index(root) else None
        with suppress(BadInput):
            forget(structure, present)
        raise


def _measured(
    backend: Backend, folder: Path, stored: StoredVectors, mask: Mask | None, progress: Progress
) -> Quality | None:
    """Return the recall of a structure; None where it is exact, or there is nothing to find."""
    if backend.is_exact or not len(stored) or (mask is not None and not mask.any()):
        return None
    with closing(backend.open(folder, stored)) as opened:
        return measure(opened, stored, mask, progress=progress)


def _next_version(root: Path, last: int) -> int:
    """Return a number above those of all versions, those that a killed writer left among them."""
    left = [folder.name for folder in _folders_in(root / VERSIONS, VERSION_NAME)]
    return 1 + max([last, *(int(name[1:]) for name in left if VERSION_NAME.fullmatch(name))])


def _label(label: str | None, columns: Sequence[str]) -> str | None:
    return label if label in columns else None


def _extends(base: Manifest, present: Manifest) -> bool:
    names = ("backend", "settings", "similarity", "precision")
    return all(getattr(base, name) == getattr(present, name) for name in names)


def _write_vectors(
    path: Path,
    present: Present | None,
    kept: Rows,
    new: NDArray[Any],
    base: Manifest,
    same_rows: bool,
    progress: Progress,
) -> None:
    """Write the vectors of a version; where they are those of the version before, link its file."""
    old = None if present is None else present.vectors.rows
    dtype = base.dtype
    if (
        present is not None
        and same_rows
        and not len(new)
        and old is not None
        and old.dtype == dtype
    ):
        with suppress(OSError):
            os.link(present.root / present.manifest.folder / VECTORS, path)
            return
    shape = (len(kept) + len(new), base.width)
    if not shape[0]:
        write_npy(path, np.empty(shape, dtype=dtype))
        return
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    step = max(1, (1 << 24) // shape[1])
    for start in range(0, len(kept), step):
        assert old is not None
        part = kept[start : start + step]
        found = old[part]
        if found.dtype != base.dtype:  # to half precision, which may not hold them
            found = prepare(found, base.similarity, base.dtype.type)
        rows[start : start + len(part)] = found
        progress("writing vectors", start + len(part), shape[0])
    rows[len(kept) :] = new
    rows.flush()


def no_rows() -> Rows:
    """Return no rows at all."""
    return np.empty(0, dtype=np.int64)


def no_vectors(present: Present) -> NDArray[Any]:
    """Return no vectors, of the form in which an index stores them."""
    return np.empty((0, present.vectors.width), dtype=present.vectors.rows.dtype)
