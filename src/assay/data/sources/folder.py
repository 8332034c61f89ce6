"""`folder:PATH`: one folder per class, with images in it."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.image_files import ImageFiles
from assay.data.images import endings, missing_reader
from assay.data.paths import check_inside
from assay.data.sources.official import first_few
from assay.errors import BadInput
from assay.progress import Progress, silent

PARTS = ("train", "trainval", "training", "val", "valid", "validation", "test", "testing")
"""Names of folders that are parts of a data set rather than classes."""

TABLE = "name their paths and labels in a table: (a .csv with the columns path and label)"


@datasets("folder:")
def load_folder(path: Path, progress: Progress = silent) -> Dataset:
    """Images, one folder per class, classes in the order of their names; folders inside a class are
    not entered.

    Names are taken in Unicode's composed form (NFC), so that a copy on another file system is the
    same data set. Every image is checked once, whichever half it belongs to.
    """
    if not path.is_dir():
        raise BadInput(f"folder:{path} is a file; give the folder that holds one folder per class")
    folders = visible_folders(path)
    images = {folder: images_in(folder) for folder in folders}
    classes = [folder for folder in folders if images[folder]]
    if not classes or _are_parts(folders):
        raise _wrong_layout(path, folders, images)
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


def _are_parts(folders: Sequence[Path]) -> bool:
    """Return whether the folders are train, test and the like rather than classes."""
    return len(folders) > 1 and all(folder.name.lower() in PARTS for folder in folders)


def _wrong_layout(path: Path, folders: list[Path], images: dict[Path, list[Path]]) -> BadInput:
    """Return the error for a folder without class folders: what it holds instead, and what to do
    about it.
    """
    found, of_path = f"folder:{path}", len(images_in(path))
    inner = {
        folder: [child for child in visible_folders(folder) if images_in(child)]
        for folder in folders
        if not images[folder]
    }
    nested = {folder: classes for folder, classes in inner.items() if classes}
    if _are_parts(folders):
        return _parts_for_classes(path, folders, nested)
    if of_path:
        return BadInput(
            f"{found} holds {_many(of_path, 'image')} and no class folders; put the images of each"
            f" class into a folder of its own, or {TABLE}"
        )
    if len(nested) == 1:
        [(only, classes)] = nested.items()
        return BadInput(
            f"{found} holds no images, but its folder {_shown(only.name)} holds"
            f" {_many(len(classes), 'folder')} with images; give folder:{only}"
        )
    if nested:
        folder, classes = next(iter(nested.items()))
        example = f"{_shown(folder.name)}/{_shown(classes[0].name)}"
        return BadInput(
            f"{found} holds images two levels down, as in {example}, and folders inside a class are"
            f" not entered; move folders such as {example} up into {path}, or {TABLE}"
        )
    files = [file for folder in (path, *folders) for file in _files_in(folder)]
    needed = next(filter(None, (missing_reader(file.suffix) for file in files)), None)
    reason = f": {needed}" if needed else "; it needs one folder per class"
    return BadInput(f"{found} holds no folder with images in it{reason}")


def _parts_for_classes(path: Path, parts: list[Path], nested: dict[Path, list[Path]]) -> BadInput:
    """Return the error for a folder of train, test and the like."""
    found = f"folder:{path} holds {', '.join(_shown(part.name) for part in parts)}"
    if not nested:
        return BadInput(
            f"{found}, which are no classes, and no class folders in them; put the images of each"
            f" class into a folder of its own, or {TABLE}"
        )
    names = [{_composed(child) for child in classes} for classes in nested.values()]
    shared = set.intersection(*names) if len(names) > 1 else set()
    split = "" if shared else ", or keep these parts by a table: with the column split"
    return BadInput(
        f"{found}, with class folders in them"
        + (f" ({_many(len(shared), 'class', 'classes')} in each)" if shared else "")
        + "; Assay splits by class, so that the test is on classes that were never trained on:"
        f" put all images of a class into one folder of {path}{split}, or give one part alone,"
        f" such as folder:{next(iter(nested))}"
    )


def visible_folders(path: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden, in order."""
    return _in_order(child for child in path.iterdir() if child.is_dir() and not _is_hidden(child))


def images_in(folder: Path) -> list[Path]:
    """Return the images that lie in a folder itself, in order; hidden files are none."""
    read = endings()
    return [file for file in _files_in(folder) if file.suffix.lower() in read]


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
        f" be read: {ending}{f'; {needed}' if (needed := missing_reader(ending)) else ''}"
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
