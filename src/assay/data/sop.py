"""`sop:PATH`: Stanford Online Products.

Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding
(2016), arxiv.org/abs/1511.06452. Stanford_Online_Products/Ebay_train.txt and Ebay_test.txt list
image, class, super class and path; they are the split. Folders are super classes (bicycle_final,
...), which become the metadata column `category`.
"""

from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset
from assay.data.official import (
    Official,
    Rows,
    as_numbers,
    assemble,
    below,
    check_once,
    read_words,
    root_of,
)
from assay.errors import BadInput

SOP = Official(
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


def load_sop(path: Path) -> Dataset:
    """Stanford Online Products, 22,634 products: Stanford_Online_Products.zip, its folder, or
    unpacked; official split.
    """
    root = root_of(path, "Ebay_train.txt", SOP)
    train, test = (
        read_words(root / name, 4, skip=1) for name in ("Ebay_train.txt", "Ebay_test.txt")
    )
    rows = train + test
    numbers = as_numbers([words[1] for words in rows], root)
    in_train, in_test = np.unique(numbers[: len(train)]), np.unique(numbers[len(train) :])
    shared = np.intersect1d(in_train, in_test)
    if len(shared):
        raise BadInput(
            f"{root}: class {shared[0]} is in both Ebay_train.txt and Ebay_test.txt; {SOP.remedy()}"
        )
    classes = np.concatenate([in_train, in_test])
    found = {"images": len(rows), "classes": len(classes)}
    SOP.check(
        root, found | {"classes in trainval": len(in_train), "images in trainval": len(train)}
    )
    ids = [words[3] for words in rows]
    check_once(ids, root)
    paths, notes = below(root, ids, SOP)
    place = {number: row for row, number in enumerate(classes.tolist())}
    labels = np.array([place[number] for number in numbers.tolist()])
    metadata = {"category": [_category(words[3]) for words in rows]}
    samples = Rows(ids, paths, labels, metadata=metadata)
    return assemble(
        "sop", samples, [str(number) for number in classes], trainval=len(in_train), notes=notes
    )


def _category(path: str) -> str:
    """The super class as its folder calls it.

    >>> _category("bicycle_final/111085122871_0.JPG")
    'bicycle'
    """
    return path.partition("/")[0].removesuffix("_final")
