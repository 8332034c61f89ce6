"""Several indexes of one model joined into a new one."""

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.files import new_folder, read_bytes, write_atomically
from assay.index.builder import Written
from assay.index.catalog import Entry
from assay.index.manifest import CALIBRATION, MODELS, is_index
from assay.index.versions import Change, Present, no_rows, place_version, writing
from assay.progress import Progress, silent


def merge(indexes: Sequence[Path], out: Path, progress: Progress = silent) -> Written:
    """Join indexes of one model into a new one; nothing is embedded.

    Names stay relative to the folder that all images have in common. One name with two contents is
    refused.
    """
    if is_index(out):
        raise BadInput(f"{out} is an index already; give the name of a new one")
    parts = [part for part in map(Present.read, indexes) if part is not None]
    if len(parts) < len(indexes) or not parts:
        wrong = [str(path) for path in indexes if not is_index(path)]
        raise BadInput(f"{', '.join(wrong) or 'nothing'} is not an index; give folders of indexes")
    first = parts[0].manifest
    for part in parts[1:]:
        _check_alike(parts[0], part)
    homes = [part.manifest.root for part in parts]
    home = None if None in homes else os.path.commonpath([str(one) for one in homes])
    entries: dict[str, Entry] = {}
    differ = 0
    rows: list[NDArray[Any]] = []
    for part in parts:
        before = "" if home is None else os.path.relpath(str(part.manifest.root), home)
        places = []
        for row, id_, content in part.images:
            name = id_ if before in ("", ".") else f"{Path(before).as_posix()}/{id_}"
            if name not in entries:
                entries[name] = Entry(name, content, part.words.get(row, {}))
                places.append(row)
            elif entries[name].content == content:
                differ += part.words.get(row, {}) != entries[name].words
            else:
                remedy = (
                    "rename one of the two files and bring its index up to date"
                    if home is not None
                    else "index one of them again with ids of its own (np.savez(..., ids=...))"
                )
                raise BadInput(
                    f"{part.root} has another image called {name} than an index before it; {remedy}"
                )
        rows.append(part.vectors.rows[np.array(places, dtype=np.int64)])
    with writing(out) as root:
        source = parts[0].root / MODELS / first.model.print
        if not (root / MODELS / first.model.print).exists():
            with new_folder(root / MODELS / first.model.print) as draft:
                for path in sorted(source.iterdir()):
                    if path.is_file() and not path.is_symlink():
                        shutil.copyfile(path, draft / path.name)
        labels = {part.manifest.label for part in parts}
        base = replace(
            first,
            index=secrets.token_hex(8),
            version=0,
            generation=0,
            root=home,
            images=", ".join(part.manifest.images for part in parts),
            label=labels.pop() if len(labels) == 1 else None,
        )
        change = Change(no_rows(), np.concatenate(rows), list(entries.values()))
        manifest = place_version(root, base, None, change, progress)
        notes = _keep_calibration(root, parts)
        if differ:
            notes += (
                f"{differ:,} images have other metadata in a later index, which are left out",
            )
        return Written(manifest, added=len(entries), notes=notes)


def _keep_calibration(root: Path, parts: Sequence[Present]) -> tuple[str, ...]:
    """Copy the calibration where all parts have the same; return a note where some is left out."""
    files = [part.root / CALIBRATION for part in parts]
    found = [read_bytes(file) if file.exists() else None for file in files]
    if found[0] is not None and all(one == found[0] for one in found):
        write_atomically(root / CALIBRATION, found[0])
        return ()
    if any(one is not None for one in found):
        return (
            "the indexes have different calibrations, so the new one has none; run `assay"
            f" calibrate {root} --data DATA`",
        )
    return ()


def _check_alike(first: Present, other: Present) -> None:
    """Raise `BadInput` unless two indexes can be one."""
    ours, theirs = first.manifest, other.manifest
    pair = f"{first.root} and {other.root}"
    if ours.model.print != theirs.model.print:
        raise BadInput(
            f"{pair} differ in their model ({ours.model.name} and {theirs.model.name}), so their"
            " vectors cannot be compared; make one of them again with the model of the other"
            " (--rebuild)"
        )
    if (ours.similarity, ours.precision) != (theirs.similarity, theirs.precision):
        floats = {ours.precision, theirs.precision} == {"float32", "float16"}
        remedy = (
            "run `assay index` with --precision float16 on the other one first; nothing is embedded"
            if floats
            else "make one of them again like the other (--rebuild)"
        )
        raise BadInput(f"{pair} store {ours.precision} and {theirs.precision}; {remedy}")
    if (ours.root is None) != (theirs.root is None):
        raise BadInput(
            f"only one of {pair} was made of files, so their names cannot be joined; index the"
            " images of the other one as files too"
        )
