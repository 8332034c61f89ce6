"""Small models, photos and indexes for tests."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from assay.index.builder import Wanted, update
from assay.index.index import Index
from assay.model import Architecture, Model, write_model_folder
from miniature import draw_class

SIDE = 32


def make_model(folder: Path, seed: int = 0, similarity: str = "cosine", dim: int = 16) -> Path:
    """Write a model folder: a small convolutional trunk and a head with random weights."""
    torch.manual_seed(seed)
    architecture = Architecture("conv", 3, SIDE, dim, stored=SIDE, similarity=similarity)
    card = {"method": "none", "data": "nothing", "classes": [], "pretrained_on": "nothing"}
    write_model_folder(folder, Model(architecture).eval(), card)
    return folder


def draw(number: int, seed: int = 0) -> Image.Image:
    """Return a picture of a class: stripes in its direction, with noise that the seed chooses."""
    pixels = draw_class(number, np.random.default_rng([number, seed]))
    return Image.fromarray(pixels).resize((SIDE, SIDE))


def make_photos(root: Path, classes: int = 4, images: int = 3) -> Path:
    """Write photos/0/0.png and so on, a folder for each class."""
    for number in range(classes):
        (root / str(number)).mkdir(parents=True)
        for image in range(images):
            draw(number, image).save(root / str(number) / f"{image}.png")
    return root


def make_vectors(count: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def save_vectors(path: Path, z: np.ndarray, **more: object) -> Path:
    np.savez(path, z=z, **{name: np.array(value) for name, value in more.items()})
    return path


def index_of(out: Path, z: np.ndarray, **wanted: object) -> Index:
    """Index vectors as they are, and open the index."""
    update(out, "as_is", z, Wanted(**wanted))
    return Index.open(out)


def found_ids(found: object) -> list[str]:
    return [match.id for match in found.matches]


def state_of(path: Path) -> dict[str, tuple[str, bytes, tuple]]:
    """Return, for each image by id, its content, its stored vector and its words."""
    with Index.open(path) as index:
        entries = index.catalog.entries([row for row, _, _ in index.catalog.images()])
        return {
            one.id: (
                one.content,
                index.vectors.rows[row].tobytes(),
                tuple(sorted(one.words.items())),
            )
            for row, one in entries.items()
        }
