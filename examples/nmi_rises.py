"""NMI rises as images per cluster fall, whatever the embedding is worth; AMI does not.

    python examples/nmi_rises.py            # about a minute
    python examples/nmi_rises.py --full     # some minutes: random vectors in the size of SOP, too

Two tables, in percent. Random vectors in the sizes of the usual test halves: they know nothing,
which AMI says and NMI does not. Then an untrained trunk on glyphs, with fewer and fewer images of
each class, under the true labels and under shuffled ones. The test half of glyphs stays sealed: the
first half of its classes will do.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

import assay
from assay.data import load
from assay.data.splits import of
from assay.embedding import embed_samples
from assay.model import Architecture, Model
from assay.protocols import FirstStep, protocols
from assay.records.keys import derive

SIZES = {"CUB": (5924, 100), "Cars196": (8131, 98), "a fifth of SOP": (12000, 2244)}
"""Images and classes of test halves; of SOP so many that a class has as many images as in the
whole.
"""

WHOLE_SOP = {"SOP": (60502, 11316)}
IMAGES_PER_CLASS = (10, 5, 3, 2)

Embedding = tuple[NDArray[np.float32], NDArray[np.int64]]


def random_vectors(images: int, classes: int) -> Embedding:
    """Vectors (images, 128) drawn without a look at their labels, the classes as equal in size as
    can be.
    """
    z = np.random.default_rng(0).standard_normal((images, 128), dtype=np.float32)
    return z, np.arange(images) % classes


def untrained_trunk() -> Embedding:
    """Glyphs of the trainval half by the `conv` trunk as it is before training."""
    trainval, _ = of(load("glyphs"), protocols["quick"])
    torch.manual_seed(derive(0, "model"))
    model = Model(Architecture("conv", trainval.inputs, size=28, dim=64))
    pixels = trainval.arrays(FirstStep("square", 28))
    return embed_samples(model, pixels, 28, torch.device("cpu")).numpy(), trainval.y


def only_some(embedding: Embedding, images_per_class: int) -> Embedding:
    """So many images of each class, drawn at random."""
    z, y = embedding
    shuffled = np.random.default_rng(0).permutation(len(y))
    chosen = [shuffled[y[shuffled] == number][:images_per_class] for number in np.unique(y)]
    rows = np.sort(np.concatenate(chosen))
    return z[rows], y[rows]


def nmi_and_ami(embedding: Embedding) -> list[float]:
    """Both, in percent."""
    scores = assay.evaluate(*embedding, ["nmi", "ami"], progress=tell)
    return [100 * scores["nmi"], 100 * scores["ami"]]


def of_random_vectors(sizes: dict[str, tuple[int, int]]) -> Iterator[list[float]]:
    """Images per class, NMI, AMI, for each size."""
    for images, classes in sizes.values():
        yield [images / classes, *nmi_and_ami(random_vectors(images, classes))]


def of_fewer_images(embedding: Embedding, numbers: Sequence[int]) -> Iterator[list[float]]:
    """NMI and AMI with the true labels and with shuffled ones,
    for each number of images per class.
    """
    for number in numbers:
        z, y = only_some(embedding, number)
        yield [*nmi_and_ami((z, y)), *nmi_and_ami((z, np.random.default_rng(0).permutation(y)))]


def tell(stage: str, done: int, total: int) -> None:
    """How far a stage is, where someone watches."""
    if sys.stderr.isatty():
        print(
            f"\r{stage} {done} of {total} ",
            end="\r" if done == total else "",
            file=sys.stderr,
            flush=True,
        )


def print_row(*cells: str | float) -> None:
    """A row of a Markdown table."""
    print(
        "|",
        " | ".join(cell if isinstance(cell, str) else f"{cell:.1f}" for cell in cells),
        "|",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--full", action="store_true", help="some minutes: random vectors in the size of SOP, too"
    )
    sizes = SIZES | (WHOLE_SOP if parser.parse_args(arguments).full else {})

    print_row("random vectors", "images", "classes", "images per class", "NMI", "AMI")
    print_row("---", *["---:"] * 5)
    for (name, (images, classes)), row in zip(sizes.items(), of_random_vectors(sizes), strict=True):
        print_row(name, f"{images:,}", f"{classes:,}", *row)
    print()

    print_row(
        "untrained trunk, images per class",
        "NMI",
        "AMI",
        "NMI, labels shuffled",
        "AMI, labels shuffled",
    )
    print_row("---", *["---:"] * 4)
    for number, row in zip(
        IMAGES_PER_CLASS, of_fewer_images(untrained_trunk(), IMAGES_PER_CLASS), strict=True
    ):
        print_row(str(number), *row)


if __name__ == "__main__":
    main()
