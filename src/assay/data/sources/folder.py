"""`folder:PATH`: one folder per class, with images in it."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.image_files import ImageFiles
from assay.data.images import endings
from assay.data.paths import check_inside
from assay.data.sources.official import first_few
from assay.errors import BadInput
from assay.progress import Progress, silent


@datasets("folder:")
def load_folder(path: Path, progress: Progress = silent) -> Dataset:
    """Images, one folder per class, classes in the order of their names; folders inside a class are
    not entered.

    Names are taken in Unicode's composed form (NFC), so that a copy on another file system is the
    same data set. Every image is checked once, whichever half it belongs to.
    """
    if not path.is_dir():
        raise BadInput(f"folder:{path} is a file; give the folder that holds one folder per class")
    folders = _in_order(
        child for child in path.iterdir() if child.is_dir() and not _is_hidden(child)
    )
    files = {folder: _files_in(folder) for folder in folders}
    images = {
        folder: [file for file in files[folder] if file.suffix.lower() in endings()]
        for folder in folders
    }
    classes = [folder for folder in folders if images[folder]]
    if not classes:
        raise BadInput(
            f"folder:{path} holds no folder with images in it; it needs one folder per class"
        )
    paths = [image for folder in classes for image in images[folder]]
    for image in paths:
        _check_name(image)
    for names in (classes, *(images[folder] for folder in classes)):
        _check_distinct(names)
    check_inside(path, paths)
    first = len(classes) // 2  # class of the test half
    trained = [folder for folder in folders if folder not in classes[first:]]
    left_out = [*_beside(path), *_empty(folders, images), *_left_out(trained, images, "")]
    of_test = _left_out(classes[first:], images, " of the test half")
    return Dataset(
        name=f"folder:{path.resolve().name}",
        modality="photo",
        labels=np.repeat(np.arange(len(classes)), [len(images[folder]) for folder in classes]),
        class_names=tuple(_composed(folder) for folder in classes),
        ids=[f"{_composed(image.parent)}/{_composed(image)}" for image in paths],
        items=ImageFiles(paths, path, progress=progress),
        notes=(*left_out, *of_test),
        left_out=tuple(left_out),
    )


def _composed(path: Path) -> str:
    return unicodedata.normalize("NFC", path.name)


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by the composed name, then by the name on disk."""
    return sorted(paths, key=lambda path: (_composed(path), path.name))


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _files_in(folder: Path) -> list[Path]:
    return _in_order(
        child for child in folder.iterdir() if not child.is_dir() and not _is_hidden(child)
    )


def _check_distinct(paths: list[Path]) -> None:
    """Raise `BadInput` where two of the paths, which are in order, have one composed name."""
    for one, other in pairwise(paths):
        if _composed(one) == _composed(other):
            raise BadInput(
                f"{one} and {other.name!a} beside it have one name, written in two ways of Unicode;"
                " rename one"
            )


def _empty(folders: list[Path], images: dict[Path, list[Path]]) -> list[str]:
    return [
        f"{_shown(folder.name)}: no images in it, left out"
        for folder in folders
        if not images[folder]
    ]


def _beside(path: Path) -> list[str]:
    """Return notes on what lies beside the class folders."""
    beside = _in_order(path.iterdir())
    hidden = [child for child in beside if _is_hidden(child)]
    files = [_shown(child.name) for child in beside if not _is_hidden(child) and not child.is_dir()]
    notes = (
        [f"{_many(len(hidden), 'hidden file or folder', 'hidden files and folders')} left out"]
        if hidden
        else []
    )
    return (
        [
            *notes,
            f"{_many(len(files), 'file')} beside the class folders left out: {first_few(files)}",
        ]
        if files
        else notes
    )


def _left_out(folders: list[Path], images: dict[Path, list[Path]], where: str) -> list[str]:
    """Return notes on how much in these folders is not an image of a class."""
    inside = [child for folder in folders for child in folder.iterdir()]
    hidden = sum(map(_is_hidden, inside))
    nested = [
        _shown(f"{_composed(child.parent)}/{_composed(child)}")
        for child in inside
        if child.is_dir() and not _is_hidden(child)
    ]
    read = {image for folder in folders for image in images[folder]}
    files = (
        child
        for child in inside
        if child not in read and not child.is_dir() and not _is_hidden(child)
    )
    others = Counter(_shown(file.suffix or file.name) for file in files)
    notes = [
        f"{_many(count, 'file')}{where} left out, no {'image' if count == 1 else 'images'} that can"
        f" be read: {ending}"
        for ending, count in sorted(others.items())
    ]
    if nested:
        notes.append(
            f"{_many(len(nested), 'folder')} inside classes{where} left out:"
            f" {first_few(sorted(nested))}"
        )
    if hidden:
        notes.append(
            f"{_many(hidden, 'hidden file or folder', 'hidden files and folders')} in"
            f" classes{where} left out"
        )
    return notes


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _shown(name: str) -> str:
    """Return a file name that can be printed, whatever its bytes are."""
    return name.encode(errors="backslashreplace").decode()


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"the file name {str(path)!a} is not UTF-8; rename it") from None
