"""`sop:PATH`: Stanford Online Products.

Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding
(2016), arxiv.org/abs/1511.06452. Stanford_Online_Products/Ebay_train.txt and Ebay_test.txt list
image, class, super class and path; they are the split. Folders are super classes (bicycle_final,
...), which become the metadata column `category`.
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

SOP_RELEASE = Release(
    name="sop",
    home="https://cvgl.stanford.edu/projects/lifted_struct/",
    archives=("Stanford_Online_Products.zip",),
    layout=(
        "Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and bicycle_final/*.JPG ..."
    ),
    unpacking="unzip Stanford_Online_Products.zip",
    counts={
        "classes": 22_634,
        "images": 120_053,
        "classes in trainval": 11_318,
        "images in trainval": 59_551,
    },
)


@datasets("sop:")
def load_sop(path: Path, progress: Progress = silent) -> Dataset:
    """Stanford Online Products, 22,634 products: Stanford_Online_Products.zip, its folder, or
    unpacked; official split.
    """
    root = find_root(path, "Ebay_train.txt", SOP_RELEASE, progress)
    train, test = (
        read_words(root / name, 4, skip=1) for name in ("Ebay_train.txt", "Ebay_test.txt")
    )
    rows = train + test
    numbers = to_numbers([words[1] for words in rows], root)
    in_train, in_test = np.unique(numbers[: len(train)]), np.unique(numbers[len(train) :])
    shared = np.intersect1d(in_train, in_test)
    if len(shared):
        raise BadInput(
            f"{root}: class {shared[0]} is in both Ebay_train.txt and Ebay_test.txt;"
            f" {SOP_RELEASE.remedy()}"
        )
    classes = np.concatenate([in_train, in_test])
    found = {"images": len(rows), "classes": len(classes)}
    SOP_RELEASE.check(
        root, found | {"classes in trainval": len(in_train), "images in trainval": len(train)}
    )
    ids = [words[3] for words in rows]
    check_unique(ids, root)
    paths, notes = locate(root, ids, SOP_RELEASE)
    place = {number: row for row, number in enumerate(classes.tolist())}
    labels = np.array([place[number] for number in numbers.tolist()])
    metadata = {"category": [_category(words[3]) for words in rows]}
    return make_dataset(
        "sop",
        ListedImages(ids, paths, labels, metadata=metadata),
        [str(number) for number in classes],
        trainval=len(in_train),
        notes=notes,
        progress=progress,
    )


def _category(path: str) -> str:
    """Return the super class, which is the name of the folder.

    >>> _category("bicycle_final/111085122871_0.JPG")
    'bicycle'
    """
    return path.partition("/")[0].removesuffix("_final")
