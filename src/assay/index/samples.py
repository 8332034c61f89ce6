"""The images that are to be indexed: their names, their metadata and the folder they lie in."""

import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import check_vectors, decode_labels, decode_words, read_arrays
from assay.data.dataset import Labels
from assay.data.given import Given, GivenSamples, find_in_tree, find_samples
from assay.data.sources.features import check_finite
from assay.errors import BadInput
from assay.npz import read_npy
from assay.progress import Progress, silent
from assay.protocols import SampleKind

FOLDER, CLASS = "folder", "class"
"""Columns of metadata that the layout of the images gives."""

SKIP = ", or pass --skip-broken"

FILES_OF_VECTORS = (".npz", ".npy")


@dataclass(frozen=True)
class SamplesToIndex:
    """Samples with their names in an index.

    Args:
        given: the samples.
        ids: their names: paths below the root, where they are files.
        root: the folder that holds all files; None: they are no files.
        words: metadata of each sample, by column.
        columns: the columns that these samples set, for every one of them.
        below: the part of the root that the images were looked for in; empty: all of it.
        numbered: whether the names are only the numbers of rows.
    """

    given: GivenSamples
    ids: tuple[str, ...]
    root: Path | None
    words: tuple[Mapping[str, str], ...]
    columns: tuple[str, ...]
    below: str = ""
    numbered: bool = False

    @property
    def label(self) -> str | None:
        """The column that says what class an image is of, if there is one.

        Folders of photos may be years or events, so they count as classes only where they are asked
        for.
        """
        return CLASS if CLASS in self.columns else None


def find_to_index(
    images: Given,
    takes: SampleKind,
    inputs: int,
    *,
    root: Path | None = None,
    skip_broken: bool = False,
    progress: Progress = silent,
) -> SamplesToIndex:
    """Find the samples to index.

    Args:
        images: a folder, with all folders below it; `kind:path` of `assay list datasets`; an .npz
            or .npy of vectors; or what `assay.embed` takes.
        takes: the kind of samples that the model takes.
        inputs: channels of the images, or width of the vectors, that it takes.
        root: the folder that names are relative to; None: the folder of the images.
        skip_broken: leave out files that cannot be read, which are refused otherwise.
        progress: called while files are checked.
    """
    path = Path(images).expanduser() if isinstance(images, str | os.PathLike) else None
    in_tree = takes == "images" and path is not None and path.is_dir()
    if in_tree:
        assert path is not None
        folder: Path | None = path.resolve()
        given = find_tree(path, inputs, progress, skip_broken=skip_broken)
    elif takes == "vectors" and path is not None and path.suffix.lower() in FILES_OF_VECTORS:
        given, folder = find_vectors(path), None
    else:
        given = find_samples(images, takes, inputs, progress, skip_broken=skip_broken, remedy=SKIP)
        folder = Path(given.source) if given.source else _common_folder(given.files)
    home = folder if root is None else root.expanduser().resolve()
    if given.files and home is not None and folder is not None:
        ids = [_below(file, home) for file in given.files]
        if in_tree:
            given = replace(given, words={FOLDER: [_folder_of(id_) for id_ in ids]})
        found = _named(given, ids, home)
        return found if folder == home else replace(found, below=_below(folder, home))
    named = given.arrays.get("ids")
    if named is None:
        return replace(_named(given, [*map(str, range(given.count))], None), numbered=True)
    return _named(given, [*map(str, named.tolist())], None)


def find_tree(
    folder: Path, inputs: int, progress: Progress = silent, *, skip_broken: bool
) -> GivenSamples:
    """Return the images in a folder and below it, with the folder of each as a word."""
    given = find_in_tree(folder.resolve(), inputs, progress, skip_broken=skip_broken, remedy=SKIP)
    return replace(given, words={FOLDER: [_folder_of(id_) for id_ in given.arrays["ids"].tolist()]})


def _folder_of(id_: str) -> str:
    """Return the folder in the name of an image; empty where it lies in the root itself."""
    return id_.rpartition("/")[0]


def find_vectors(path: Path) -> GivenSamples:
    """Return the rows of an .npy, or of an .npz with z and, where it has them, ids and labels y."""
    called = str(path)
    if path.suffix.lower() == ".npy":
        try:
            arrays = {"z": read_npy(path)}
        except ValueError as error:
            raise BadInput(
                f"{path} cannot be read as an .npy of vectors: {error}; write it again with"
                " np.save(path, z)"
            ) from None
    else:
        arrays = read_arrays(path, called, ["z"], ["y", "ids", "classes"])
    z = arrays["z"]
    check_vectors(z, called)
    check_finite(z, called)
    found = find_samples(z, "vectors", z.shape[1])
    for name in {"y", "ids"} & set(arrays):
        if arrays[name].shape != (len(z),):
            raise BadInput(
                f"{path}: {name} has shape {arrays[name].shape}; z has {len(z)} rows, so it must"
                f" have shape ({len(z)},)"
            )
    words = {CLASS: _class_names(arrays, called)} if "y" in arrays else {}
    ids = {"ids": decode_words("ids", arrays["ids"], called)} if "ids" in arrays else {}
    return replace(found, called=path.name, words=words, arrays=ids)


def _class_names(arrays: Mapping[str, NDArray[Any]], called: str) -> list[str]:
    """Return the label of each row in words."""
    y = decode_labels(arrays["y"], len(arrays["z"]), called)
    classes = arrays.get("classes")
    if classes is None:
        return [str(one) for one in y.tolist()]
    if y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < len(classes)):
        raise BadInput(
            f"{called}: beside the {len(classes)} names in classes, y must hold their numbers, 0 to"
            f" {len(classes) - 1}"
        )
    return [str(one) for one in decode_words("classes", classes, called)[y].tolist()]


def _named(given: GivenSamples, ids: Sequence[str], root: Path | None) -> SamplesToIndex:
    """Return the samples by their names; the first of several with one name stands for all."""
    first = {id_: row for row, id_ in reversed(list(enumerate(ids)))}
    rows: Labels = np.array(sorted(first.values()), dtype=np.int64)
    for id_ in first:
        if not id_ or not id_.isprintable():
            raise BadInput(
                f"{given.called}: the name {id_!a} is empty, or has letters that cannot be printed;"
                " give another"
            )
    words = tuple(
        {
            column: unicodedata.normalize("NFC", str(values[row])).strip()
            for column, values in given.words.items()
            if str(values[row]).strip()
        }
        for row in rows.tolist()
    )
    samples = given if len(rows) == given.count else given.some(rows)
    samples = replace(samples, notes=given.notes, contents=cache(samples.contents))
    return SamplesToIndex(
        samples, tuple(ids[row] for row in rows.tolist()), root, words, tuple(given.words)
    )


def _common_folder(files: Sequence[Path]) -> Path | None:
    if not files:
        return None
    return Path(os.path.commonpath([file.parent for file in files]))


def _below(file: Path, root: Path) -> str:
    """Return the path of a file below the root; raise `BadInput` where it lies elsewhere."""
    for one in (file, file.resolve()):
        if one.is_relative_to(root):
            return one.relative_to(root).as_posix()
    raise BadInput(
        f"{file} does not lie below {root}, the folder that the names in this index are relative"
        " to; give images below it, say where they are now with --root, or make another index and"
        " join the two with `assay merge`"
    )
