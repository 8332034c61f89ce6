"""`cub:PATH`: CUB-200-2011.

Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset (2011), Caltech
CNS-TR-2011-001. CUB_200_2011/images.txt and image_class_labels.txt list the images by number,
classes.txt the classes. Metric learning takes the first half of the classes, in their official
order, for trainval (Oh Song et al. 2016, arxiv.org/abs/1511.06452); the split into train and test
that comes with the data shares its classes and is not used.
"""

from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.sources.official import (
    ListedImages,
    Release,
    check_unique,
    find_root,
    locate,
    make_dataset,
    read_words,
    to_numbers,
)
from assay.errors import BadInput
from assay.progress import Progress, silent

CUB_RELEASE = Release(
    name="cub",
    home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    archives=("CUB_200_2011.tgz",),
    layout=(
        "CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt and"
        " images/001.Black_footed_Albatross/*.jpg"
    ),
    unpacking="tar -xzf CUB_200_2011.tgz",
    counts={
        "classes": 200,
        "images": 11_788,
        "classes in trainval": 100,
        "images in trainval": 5_864,
    },
)


@datasets("cub:")
def load_cub(path: Path, progress: Progress = silent) -> Dataset:
    """CUB-200-2011, 200 kinds of birds: CUB_200_2011.tgz, the folder it is in, or unpacked; first
    100 classes are trainval.
    """
    root = find_root(path, "image_class_labels.txt", CUB_RELEASE, progress)
    files = _column(root / "images.txt")
    numbers = _column(root / "image_class_labels.txt")
    names = _column(root / "classes.txt")
    _check_the_same_images(root, files, numbers)
    labels = to_numbers([numbers[image] for image in files], root / "image_class_labels.txt") - 1
    class_names = [
        names.get(str(number + 1), "") for number in range(CUB_RELEASE.counts["classes"])
    ]
    trainval = CUB_RELEASE.counts["classes in trainval"]
    found = {
        "images": len(files),
        "classes": len(np.unique(labels)),
        "images in trainval": int((labels < trainval).sum()),
    }
    CUB_RELEASE.check(root / "classes.txt", {"classes": len(names)})
    CUB_RELEASE.check(root, found)
    if labels.min() < 0 or labels.max() >= len(class_names) or "" in class_names:
        raise BadInput(
            f"{root}: classes are not numbered from 1 to {len(class_names)}; {CUB_RELEASE.remedy()}"
        )
    ids = [f"images/{file}" for file in files.values()]
    check_unique(ids, root / "images.txt")
    paths, notes = locate(root, ids, CUB_RELEASE)
    images = ListedImages(ids, paths, labels)
    return make_dataset(
        "cub", images, class_names, trainval=trainval, notes=notes, progress=progress
    )


def _column(path: Path) -> dict[str, str]:
    rows = read_words(path, 2)
    check_unique([number for number, _ in rows], path)
    return {row[0]: row[1] for row in rows}


def _check_the_same_images(root: Path, files: dict[str, str], numbers: dict[str, str]) -> None:
    for image in sorted(files.keys() ^ numbers.keys(), key=lambda word: (len(word), word)):
        has, lacks = ("images.txt", "image_class_labels.txt")[:: 1 if image in files else -1]
        raise BadInput(
            f"{root}: image {image} is in {has} but not in {lacks}; {CUB_RELEASE.remedy()}"
        )
