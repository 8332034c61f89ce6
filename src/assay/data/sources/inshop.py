"""`inshop:PATH`: In-Shop Clothes Retrieval, a benchmark of DeepFashion.

Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich
Annotations (2016), CVPR. Eval/list_eval_partition.txt names each image's item and its part: train,
or query and gallery of the test. Images are in img/, from Img/img.zip.
"""

from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.sources.official import (
    ListedImages,
    Release,
    check_unique,
    find_folder,
    locate,
    make_dataset,
    read_words,
)
from assay.errors import BadInput
from assay.files import read_lines
from assay.progress import Progress, silent

INSHOP_RELEASE = Release(
    name="inshop",
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    archives=("Eval/list_eval_partition.txt", "Img/img.zip"),
    layout=(
        "Eval/list_eval_partition.txt and Img/img/WOMEN/..., Img/img/MEN/... (both also without"
        " Eval/ and Img/)"
    ),
    unpacking="cd Img && unzip img.zip",
    counts={
        "classes": 7_982,
        "images": 52_712,
        "classes in trainval": 3_997,
        "images in trainval": 25_882,
        "queries": 14_218,
        "gallery images": 12_612,
    },
)
LISTS = ("Eval/list_eval_partition.txt", "list_eval_partition.txt", "Anno/list_eval_partition.txt")
PARTITION = ("train", "query", "gallery")


@datasets("inshop:")
def load_inshop(path: Path, progress: Progress = silent) -> Dataset:
    """In-Shop Clothes Retrieval, 7,982 items: the folder of Eval/ and Img/; official split, with
    query and gallery.
    """
    root, listed = _find_list(path)
    rows = read_words(listed, 3, skip=2)
    strange = [words for words in rows if words[2] not in PARTITION]
    if strange:
        raise BadInput(
            f"{listed}: {strange[0][0]} is in part {strange[0][2]!a},"
            f" not in {', '.join(PARTITION)};"
            f" {INSHOP_RELEASE.remedy()}"
        )
    _check_first_line(listed, len(rows))
    in_train = sorted({item for _, item, part in rows if part == "train"})
    in_test = sorted({item for _, item, part in rows if part != "train"})
    shared = sorted({*in_train} & {*in_test})
    if shared:
        raise BadInput(
            f"{listed}: item {shared[0]} is both in train and in the test half;"
            f" {INSHOP_RELEASE.remedy()}"
        )
    ids = [name for name, _, _ in rows]
    check_unique(ids, listed)
    parts = np.array([part for _, _, part in rows])
    query, gallery = parts == "query", parts == "gallery"
    classes = [*in_train, *in_test]
    found = {
        "images": len(rows),
        "classes": len(classes),
        "images in trainval": int((parts == "train").sum()),
    }
    found |= {
        "classes in trainval": len(in_train),
        "queries": int(query.sum()),
        "gallery images": int(gallery.sum()),
    }
    INSHOP_RELEASE.check(listed, found)
    paths, notes = locate(_find_images(root, progress), ids, INSHOP_RELEASE)
    place = {item: row for row, item in enumerate(classes)}
    labels = np.array([place[item] for _, item, _ in rows])
    return make_dataset(
        "inshop",
        ListedImages(ids, paths, labels, query, gallery),
        classes,
        trainval=len(in_train),
        notes=notes,
        progress=progress,
    )


def _find_list(path: Path) -> tuple[Path, Path]:
    """Return the folder of the data set and its list; where `path` is a file, the folder is one of
    the two above it.
    """
    starts = (
        [path.absolute()]
        if path.is_dir()
        else [path.absolute().parent, path.absolute().parent.parent]
    )
    for start in starts:
        for name in LISTS:
            if root := find_folder(start, name):
                return root, root / name
    raise INSHOP_RELEASE.not_found(path)


def _find_images(root: Path, progress: Progress) -> Path:
    found = find_folder(root, "img", ("Img/img.zip", "img.zip"), progress)
    if found is None:
        raise BadInput(
            f"{root} has the list of images but neither Img/img/ nor Img/img.zip;"
            f" {INSHOP_RELEASE.remedy()}"
        )
    return found


def _check_first_line(listed: Path, rows: int) -> None:
    first = next(read_lines(listed), "").strip()
    if not first:
        raise BadInput(f"{listed} is empty; {INSHOP_RELEASE.remedy()}")
    if first != str(rows):
        raise BadInput(
            f"{listed} says on its first line that it has {first} rows but has {rows};"
            f" {INSHOP_RELEASE.remedy()}"
        )
