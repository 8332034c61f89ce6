"""`folder:PATH`: one folder per class, with images in it."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from assay.canonical import digest_bytes
from assay.data.dataset import Dataset, Labels, Pixels
from assay.data.images import decode, endings, square
from assay.errors import BadInput


class ImageFiles:
    """Image files, decoded when asked for."""

    inputs = 3

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        with ThreadPoolExecutor() as pool:
            self._digests = list(pool.map(_checked_digest, paths))

    def arrays(self, indices: Labels, size: int) -> Pixels:
        """Central squares of the images."""
        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(lambda index: self._square(index, size), indices.tolist())))

    def digest(self, index: int) -> str:
        """Hash of the file's bytes."""
        return self._digests[index]

    def _square(self, index: int, size: int) -> Pixels:
        content = _read(self.paths[index])
        if digest_bytes(content) != self._digests[index]:
            raise BadInput(f"{self.paths[index]} has changed since it was first read; leave the data alone while it is in use")
        return square(decode(content, self.paths[index]), size)


def load_folder(path: Path) -> Dataset:
    """Images, one folder per class, classes in the order of their names; folders inside a class are not entered.

    Every image is read once, so that a broken one is named before any work begins, whichever half it belongs to.
    """
    if not path.is_dir():
        raise BadInput(f"folder:{path} is a file; give the folder that holds one folder per class")
    folders = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    files = {folder: _files_in(folder) for folder in folders}
    images = {folder: [file for file in files[folder] if file.suffix.lower() in endings()] for folder in folders}
    classes = [folder for folder in folders if images[folder]]
    if not classes:
        raise BadInput(f"folder:{path} holds no folder with images in it; it needs one folder per class")
    paths = [image for folder in classes for image in images[folder]]
    for image in paths:
        _check_name(image)
    return Dataset(
        name=f"folder:{path.resolve().name}",
        look="photo",
        labels=np.repeat(np.arange(len(classes)), [len(images[folder]) for folder in classes]),
        class_names=tuple(folder.name for folder in classes),
        ids=[f"{image.parent.name}/{image.name}" for image in paths],
        items=ImageFiles(paths),
        notes=(*_empty(folders, images), *_left_out(folders, files, images)),
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not child.is_dir() and not child.name.startswith("."))


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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; mend or remove it") from None


def _checked_digest(path: Path) -> str:
    content = _read(path)
    decode(content, path)
    return digest_bytes(content)
