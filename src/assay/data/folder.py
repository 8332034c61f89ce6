"""`folder:PATH`: one folder per class, with images in it."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset
from assay.data.image_files import ImageFiles
from assay.data.images import endings
from assay.data.paths import check_inside
from assay.errors import BadInput


def load_folder(path: Path) -> Dataset:
    """Images, one folder per class, classes in the order of their names; folders inside a class are not entered.

    Names are taken in Unicode's composed form (NFC), so that a copy on another file system is the same data set. Every
    image is checked once, whichever half it belongs to.
    """
    if not path.is_dir():
        raise BadInput(f"folder:{path} is a file; give the folder that holds one folder per class")
    folders = _in_order(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    files = {folder: _files_in(folder) for folder in folders}
    images = {folder: [file for file in files[folder] if file.suffix.lower() in endings()] for folder in folders}
    classes = [folder for folder in folders if images[folder]]
    if not classes:
        raise BadInput(f"folder:{path} holds no folder with images in it; it needs one folder per class")
    paths = [image for folder in classes for image in images[folder]]
    for image in paths:
        _check_name(image)
    for names in (classes, *(images[folder] for folder in classes)):
        _check_distinct(names)
    check_inside(path, paths)
    return Dataset(
        name=f"folder:{path.resolve().name}",
        look="photo",
        labels=np.repeat(np.arange(len(classes)), [len(images[folder]) for folder in classes]),
        class_names=tuple(_composed(folder) for folder in classes),
        ids=[f"{_composed(image.parent)}/{_composed(image)}" for image in paths],
        items=ImageFiles(paths, path),
        notes=(*_empty(folders, images), *_left_out(folders, files, images)),
    )


def _composed(path: Path) -> str:
    return unicodedata.normalize("NFC", path.name)


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """By the composed name, and by the one on disk where two of those coincide."""
    return sorted(paths, key=lambda path: (_composed(path), path.name))


def _files_in(folder: Path) -> list[Path]:
    return _in_order(child for child in folder.iterdir() if not child.is_dir() and not child.name.startswith("."))


def _check_distinct(paths: list[Path]) -> None:
    """Of paths in order, so that two of one name stand side by side."""
    for one, other in pairwise(paths):
        if _composed(one) == _composed(other):
            raise BadInput(f"{one} and {other.name!a} beside it have one name, written in two ways of Unicode; rename one")


def _empty(folders: list[Path], images: dict[Path, list[Path]]) -> list[str]:
    return [f"{_shown(folder.name)}: no images in it, left out" for folder in folders if not images[folder]]


def _left_out(folders: list[Path], files: dict[Path, list[Path]], images: dict[Path, list[Path]]) -> list[str]:
    read = {image for found in images.values() for image in found}
    others = Counter(_shown(file.suffix or file.name) for folder in folders for file in files[folder] if file not in read)
    return [f"{count} files left out that are not images it reads: {ending}" for ending, count in sorted(others.items())]


def _shown(name: str) -> str:
    """A file name as it can be printed, whatever bytes it is made of."""
    return name.encode(errors="backslashreplace").decode()


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"the file name {str(path)!a} is not UTF-8; rename it") from None
