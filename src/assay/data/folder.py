"""`folder:PATH`: one folder per class, with images in it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from assay.canonical import digest_file
from assay.data.dataset import Dataset, Labels, Pixels
from assay.data.images import read_image, square
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
            return np.stack(list(pool.map(lambda index: square(read_image(self.paths[index]), size), indices.tolist())))

    def digest(self, index: int) -> str:
        """Hash of the file's bytes."""
        return self._digests[index]


def load_folder(path: Path) -> Dataset:
    """One folder per class, classes in the order of their names; folders inside a class are not entered.

    Every image is read once, so that a broken one is named before any work begins, whichever half it belongs to.
    """
    if not path.is_dir():
        raise BadInput(f"folder:{path} is a file; give the folder that holds one folder per class")
    folders = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    images = {folder: _images_in(folder) for folder in folders}
    classes = [folder for folder in folders if images[folder]]
    if not classes:
        raise BadInput(f"folder:{path} holds no folder with images in it; it needs one folder per class")
    paths = [image for folder in classes for image in images[folder]]
    return Dataset(
        name=f"folder:{path.resolve().name}",
        look="photo",
        labels=np.repeat(np.arange(len(classes)), [len(images[folder]) for folder in classes]),
        class_names=tuple(folder.name for folder in classes),
        ids=[f"{image.parent.name}/{image.name}" for image in paths],
        items=ImageFiles(paths),
        notes=tuple(f"{folder.name}: no images in it, left out" for folder in folders if not images[folder]),
    )


def _images_in(folder: Path) -> list[Path]:
    endings = Image.registered_extensions()
    files = (child for child in folder.iterdir() if child.is_file() and not child.name.startswith("."))
    return sorted(child for child in files if child.suffix.lower() in endings)


def _checked_digest(path: Path) -> str:
    read_image(path)
    return digest_file(path)
