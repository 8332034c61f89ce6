"""Samples to embed, in whatever form they are given: the one place that finds them."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from assay.data import splits
from assay.data.dataset import Dataset, Half, Labels, Samples, Vectors, contents_of, without_broken
from assay.data.image_files import ImageFiles
from assay.data.images import Picture, check_picture, endings, missing_reader, read_images
from assay.data.load import TABLES, check_kind_of, check_usable, inspect, load
from assay.data.paths import check_inside
from assay.data.seal import Reason, everything
from assay.data.sources import datasets
from assay.data.sources.features import (
    Features,
    check_finite,
    digests_of_rows,
    label_arrays,
)
from assay.data.sources.folder import images_in, visible_folders
from assay.errors import BadInput
from assay.hashing import digest_bytes
from assay.progress import Progress, silent
from assay.protocols import FirstStep, SampleKind, kind_of, protocols


@dataclass(frozen=True)
class GivenSamples:
    """Samples to embed.

    Args:
        called: name of the samples in messages.
        read: reads samples by their numbers.
        count: number of samples.
        kind: images or vectors.
        inputs: channels of an image, or width of a vector.
        contents: returns the hash of the content of each.
        arrays: what is known of the samples, as the arrays of a features file.
        halves: returns trainval and the test half, where they are a data set that can be split.
        source: the folder of class folders that they come from, if known.
        notes: what was left out, in words.
        files: their image files; empty where they are none.
        words: metadata by column, a word for each sample.
    """

    called: str
    read: Callable[[Labels, FirstStep], Samples]
    count: int
    kind: SampleKind
    inputs: int
    contents: Callable[[], list[str]]
    arrays: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    halves: Callable[[], tuple[Half, ...]] = tuple
    source: str = ""
    files: tuple[Path, ...] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def some(self, rows: Labels) -> "GivenSamples":
        """Return some of the samples, to be read; their arrays and words are left out."""

        def read(numbers: Labels, step: FirstStep) -> Samples:
            return self.read(rows[numbers], step)

        def contents() -> list[str]:
            hashes = self.contents()
            return [hashes[row] for row in rows.tolist()]

        return GivenSamples(
            self.called, read, len(rows), self.kind, self.inputs, contents, halves=self.halves
        )


IN_MEMORY = "samples in memory"
"""Name in messages of samples that are given without files."""

Given = str | Path | Dataset | Picture | Vectors | Sequence[Any]
"""What `find_samples` takes."""


def find_samples(
    given: Given,
    takes: SampleKind,
    inputs: int,
    progress: Progress = silent,
    *,
    skip_broken: bool = False,
    remedy: str = "",
) -> GivenSamples:
    """Return the samples that are given, for a model that takes samples of this kind.

    Args:
        given: a file, a folder of images or of class folders, `kind:path`, a `Dataset`, Pillow's
            image, pixels (H, W, 3) or (N, H, W, 3), a list of files, of images or of pixels, or
            rows of features (N, width).
        takes: the kind of samples that the model takes.
        inputs: channels of the images that it takes, or the width of its vectors.
        progress: is called while files are checked.
        skip_broken: leave out files that cannot be read; they are refused otherwise.
        remedy: what else can be done about such files, in words.
    """
    refusal = None if skip_broken else remedy
    if isinstance(given, Dataset):
        return _of_dataset(without_broken(given) if skip_broken else given)
    if isinstance(given, str | os.PathLike):
        return _at_path(os.fspath(given), inputs, progress, refusal)
    if takes == "vectors":
        return _rows(given, inputs)
    pictures = _pictures(given)
    if pictures and all(isinstance(one, str | os.PathLike) for one in pictures):
        files = [Path(one) for one in pictures]
        return _files("a list of images", files, [*map(str, files)], inputs, progress, refusal)
    called = "the image" if len(pictures) == 1 else "image {} of the list"
    for number, picture in enumerate(pictures):
        check_picture(picture, called.format(number))

    def read(rows: Labels, step: FirstStep) -> Samples:
        return read_images([pictures[row] for row in rows.tolist()], step, inputs)

    def contents() -> list[str]:
        return [digest_bytes(np.ascontiguousarray(picture).tobytes()) for picture in pictures]

    return GivenSamples(IN_MEMORY, read, len(pictures), "images", inputs, contents)


def find_in_tree(
    folder: Path, channels: int, progress: Progress = silent, *, skip_broken: bool, remedy: str = ""
) -> GivenSamples:
    """Return all images in a folder and in the folders below it, without labels.

    Hidden files and folders are left out, and files that need a reader which is not installed, with
    a note. Files that cannot be read or named are refused, or left out with `skip_broken`; `remedy`
    is what else can be done about them, in words.
    """
    there = list(_files_below(folder))
    read = endings()
    found = [file for file in there if file.suffix.lower() in read]
    problems = {file: problem for file in found if (problem := _unusable(file, folder))}
    notes = _unread([file for file in there if file.suffix.lower() not in read])
    if problems and not skip_broken:
        several = f" ({len(problems)} such files)" if len(problems) > 1 else ""
        raise BadInput(f"{next(iter(problems.values()))}{remedy}{several}")
    files = [file for file in found if file not in problems]
    if not files:
        raise BadInput(
            f"{folder} holds no images that can be read, nor do the folders in it"
            f" ({'; '.join(notes) or ', '.join(sorted(read)[:8]) + ', ...'})"
        )
    ids = [file.relative_to(folder).as_posix() for file in files]
    given = _files(folder.name, files, ids, channels, progress, None if skip_broken else remedy)
    left_out = [f"left out: {problem}" for problem in problems.values()]
    return replace(given, notes=(*notes, *left_out, *given.notes))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below it, in order, without the hidden ones."""
    inside = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    yield from (child for child in inside if not child.is_dir())
    for child in inside:
        if child.is_dir():
            yield from _files_below(child)


def _unusable(file: Path, folder: Path) -> str | None:
    """Return why a file below a folder cannot be named or may not be read; None where it can."""
    name = str(file)
    if not name.isprintable():
        return f"{name!a} has letters in its name that cannot be printed; rename the file"
    if file.is_symlink() and not file.exists():
        return f"{file} is a link to {file.readlink()}, which is not there; remove it"
    try:
        check_inside(folder, [file])
    except BadInput as error:
        return str(error)
    return None


def _unread(files: Iterable[Path]) -> list[str]:
    """Return a note for each kind of image that needs a reader which is not installed."""
    needed = Counter(filter(None, (missing_reader(file.suffix) for file in files)))
    return [
        f"{count:,} image{'s' * (count > 1)} left out: {reader}" for reader, count in needed.items()
    ]


def _of_dataset(dataset: Dataset) -> GivenSamples:
    half = everything(dataset)
    arrays, kind = label_arrays(dataset), kind_of(dataset.modality)
    return GivenSamples(
        dataset.name,
        half.some,
        len(dataset),
        kind,
        half.inputs,
        half.contents,
        arrays,
        dataset.notes,
        lambda: _halves_of(dataset),
        files=tuple(dataset.items.paths) if isinstance(dataset.items, ImageFiles) else (),
        words={
            "class": [dataset.class_names[label] for label in dataset.labels.tolist()],
            **dataset.metadata,
        },
    )


def _halves_of(dataset: Dataset) -> tuple[Half, ...]:
    """Return trainval and the test half; nothing where the data set cannot be split."""
    try:
        trainval, sealed = splits.of(dataset, replace(protocols["quick"], folds=2))
    except BadInput:
        return ()
    return trainval, sealed.hand_out(Reason.EVERY_VECTOR)


def _at_path(name: str, channels: int, progress: Progress, remedy: str | None) -> GivenSamples:
    """Return the samples of a data set by name, of class folders, or of images without classes.

    `remedy` is what else can be done about broken files; None: leave them out.
    """

    def read(found: str) -> GivenSamples:
        samples = _of_dataset(
            without_broken(inspect(found, progress))
            if remedy is None
            else load(found, progress, remedy)
        )
        folder = found.removeprefix("folder:")
        root = Path(folder).expanduser().resolve()
        return samples if folder == found else replace(samples, source=str(root))

    path, (kind, colon, _) = Path(name).expanduser(), name.partition(":")
    if name in datasets or (colon and f"{kind}:" in datasets):
        return read(name)
    if not path.exists():
        raise BadInput(
            f"there is no {name}; give a folder or file of images, or kind:path of `assay list"
            " datasets`"
        )
    if path.is_dir():
        files = images_in(path)
        if any(map(images_in, visible_folders(path))):
            return read(f"folder:{path}")
        if not files:
            inside = [one for folder in (path, *visible_folders(path)) for one in folder.iterdir()]
            needed = next(filter(None, (missing_reader(one.suffix) for one in inside)), "")
            raise BadInput(
                f"{name} holds no images that can be read"
                f" ({needed or ', '.join(sorted(endings())[:8]) + ', ...'})"
            )
        ids = [file.relative_to(path).as_posix() for file in files]
        return _files(path.name, files, ids, channels, progress, remedy)
    if path.suffix.lower() in TABLES:
        check_kind_of(name)
    remedy = None if remedy is None else ""  # without the file nothing would be left
    return _files(path.name, [path], [path.name], channels, progress, remedy)


def _files(
    called: str,
    files: list[Path],
    ids: list[str],
    channels: int,
    progress: Progress,
    remedy: str | None,
) -> GivenSamples:
    """Return images of files, which have no labels; broken ones are left out without a remedy."""
    for file in files:
        if file.is_dir():
            raise BadInput(f"{file} is a folder, not an image; give it by itself, not in a list")
    absolute = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100 (keeps links)
    root = Path(os.path.commonpath([file.parent for file in absolute]))
    items, notes = ImageFiles(absolute, root, channels, progress), []
    if remedy is None:
        problems = [items.problem(row) for row in range(len(files))]
        notes = [f"left out: {problem}" for problem in problems if problem]
        rows = np.array([row for row, one in enumerate(problems) if one is None], dtype=np.int64)
        items, ids = items.only(rows), [ids[row] for row in rows.tolist()]
    check_usable(items, len(items.paths), skip=remedy or "")

    def contents() -> list[str]:
        return contents_of(items, np.arange(len(ids)))

    arrays = {"ids": np.array(ids)}
    return GivenSamples(
        called,
        items.arrays,
        len(ids),
        "images",
        channels,
        contents,
        arrays,
        tuple(notes),
        files=tuple(items.paths),
    )


def _pictures(given: Any) -> list[Any]:
    """Return images one by one: of a single image a list of it."""
    if isinstance(given, Image.Image):
        return [given]
    if isinstance(given, np.ndarray):
        return [*given] if given.ndim == 4 else [given]
    if isinstance(given, Iterable) and not isinstance(given, bytes | dict | set):
        return list(given)
    raise BadInput(
        f"images are given as {type(given).__name__}; give a path, a list of paths, a folder,"
        " kind:path, a PIL image, or uint8 pixels of shape (height, width, 3)"
    )


def _rows(given: Any, width: int) -> GivenSamples:
    """Return features, which are rows of the width that the model takes."""
    numbers = isinstance(given, np.ndarray) and given.dtype.kind in "fiu"
    try:
        x = given if numbers else np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError):
        x = np.empty(0)
    if x.ndim != 2 or len(x) == 0 or x.shape[1] != width:
        got = (
            f"shape {given.shape}"
            if isinstance(given, np.ndarray)
            else f"{type(given).__name__} of {len(given)}"
            if isinstance(given, Sequence)
            else type(given).__name__
        )
        raise BadInput(f"this model takes rows of {width} numbers, at least one; got {got}")
    z = check_finite(x, IN_MEMORY)
    rows = Features(z).arrays
    return GivenSamples(IN_MEMORY, rows, len(z), "vectors", width, lambda: digests_of_rows(z))
