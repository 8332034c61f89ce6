"""`landmarks:PATH`: Google Landmarks v2, retrieval.

Weyand, Araujo, Cao, Sim: Google Landmarks Dataset v2 (2020), arxiv.org/abs/2004.01804.
train_clean.csv lists the images of each landmark for training, index.csv the gallery,
retrieval_solution_v2.1.csv the images that each query should find. Image ID is at
train/I/D/_/ID.jpg, by its first three characters, and likewise below index/ and test/.

The solution gives each query a list of images; a data set here has classes. Index images that are
listed by exactly the same queries are one class, and a query whose list is one such class belongs
to it. Images that no query lists are one class of distractors. A query whose list takes more than
one class has no label and is left out, as are queries that the solution marks as ignored.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.paths import check_inside
from assay.data.sources.archives import unpack
from assay.data.sources.official import (
    ListedImages,
    Release,
    check_unique,
    files_in,
    make_dataset,
    missing_images,
    to_numbers,
)
from assay.errors import BadInput, reason_of
from assay.files import read_lines
from assay.progress import Progress, silent

LANDMARKS_RELEASE = Release(
    name="landmarks",
    home="https://github.com/cvdfoundation/google-landmark",
    archives=(
        "train_clean.csv",
        "index.csv",
        "retrieval_solution_v2.1.csv",
        "train|index|test/images_000.tar ...",
    ),
    layout=(
        "train_clean.csv, index.csv, retrieval_solution_v2.1.csv and"
        " {train,index,test}/a/b/c/abc....jpg"
    ),
    unpacking=(
        "for part in train index test; do (cd $part && for f in images_*.tar; do tar -xf $f; done);"
        " done"
    ),
    counts={
        "classes in trainval": 81_313,
        "images in trainval": 1_580_470,
        "gallery images": 761_757,
        "queries, ignored ones among them": 117_577,
    },
)
TRAIN, INDEX, SOLUTION = "train_clean.csv", "index.csv", "retrieval_solution_v2.1.csv"
LIST_FOLDERS = (".", "train", "index", "test", "metadata", "ground_truth")
DISTRACTORS = "distractors"
ID = re.compile(r"[0-9A-Za-z_-]{3,}")
LONGEST_FIELD = 10_000_000
"""Characters of the longest field: the images of a landmark may exceed the csv module's limit."""


@dataclass(frozen=True)
class Grouped:
    """The test half: names of the classes, the class of each index image, and the class of each
    query that has one.
    """

    class_names: list[str]
    index: dict[str, int]
    queries: dict[str, int]
    notes: list[str]


@datasets("landmarks:")
def load_landmarks(path: Path, progress: Progress = silent) -> Dataset:
    """Google Landmarks v2, 81,313 landmarks: the folder of train_clean.csv, index.csv, the solution
    v2.1 and the images.
    """
    root, lists = _find_lists(path.absolute())
    landmarks, train = _read_train(lists[TRAIN])
    index = [row["id"] for row in _read(lists[INDEX], ("id",))]
    _check_ids(index, lists[INDEX])
    solution = _read(lists[SOLUTION], ("id", "images", "Usage"))
    _check_ids([row["id"] for row in solution], lists[SOLUTION])
    found = {
        "classes in trainval": len(landmarks),
        "images in trainval": len(train),
        "gallery images": len(index),
    }
    LANDMARKS_RELEASE.check(root, found | {"queries, ignored ones among them": len(solution)})
    grouped = group(index, [row for row in solution if row["Usage"] != "Ignored"])
    ignored = sum(row["Usage"] == "Ignored" for row in solution)
    notes = [f"{ignored} queries left out that the solution marks as ignored"] if ignored else []
    usage = {row["id"]: row["Usage"].lower() for row in solution}
    parts = [
        ("train", train),
        ("index", _shifted(grouped.index, landmarks)),
        ("test", _shifted(grouped.queries, landmarks)),
    ]
    images = _list_images(root, parts, usage, progress)
    class_names = [*landmarks, *grouped.class_names]
    return make_dataset(
        "landmarks",
        images,
        class_names,
        trainval=len(landmarks),
        notes=[*notes, *grouped.notes],
        progress=progress,
    )


def group(index: Sequence[str], queries: Sequence[dict[str, str]]) -> Grouped:
    """Group index images that are listed by exactly the same queries into classes, and label the
    queries whose list is one class.

    >>> found = group(["a", "b", "c"], [{"id": "q", "images": "a b"}])
    >>> found.class_names, found.queries
    (['index/a', 'distractors'], {'q': 0})
    """
    listing: dict[str, list[int]] = defaultdict(list)
    for number, query in enumerate(queries):
        for image in sorted(set(query["images"].split())):
            listing[image].append(number)
    unknown = sorted(listing.keys() - set(index))
    if unknown:
        raise BadInput(
            f"{SOLUTION} lists {len(unknown)} images that {INDEX} does not have, such as"
            f" {unknown[0]}; {LANDMARKS_RELEASE.remedy()}"
        )
    members: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for image in sorted(listing):
        members[tuple(listing[image])].append(image)
    label_of = {key: label for label, key in enumerate(members)}
    labels = {image: label_of[key] for key, images in members.items() for image in images}
    taken = {
        query["id"]: sorted({labels[image] for image in query["images"].split()})
        for query in queries
    }
    class_names = [f"index/{images[0]}" for images in members.values()]
    if len(labels) < len(index):
        class_names.append(DISTRACTORS)
    return Grouped(
        class_names,
        {image: labels.get(image, len(members)) for image in index},
        {query: found[0] for query, found in taken.items() if len(found) == 1},
        _notes([len(found) for found in taken.values()]),
    )


def _notes(classes: list[int]) -> list[str]:
    none, many = sum(count == 0 for count in classes), sum(count > 1 for count in classes)
    notes = [f"{none} queries left out for which the solution lists no image"] if none else []
    if many:
        notes.append(
            f"{many} queries left out that share a part of their list with another query but not"
            " all of it: no single class says what they should find"
        )
    return notes


def _shifted(labels: dict[str, int], landmarks: list[str]) -> dict[str, int]:
    return {image: label + len(landmarks) for image, label in labels.items()}


def _find_lists(path: Path) -> tuple[Path, dict[str, Path]]:
    """Return the folder of the data set and its three lists; the folder may be in `path`, or above
    `path` where that is a file.
    """
    starts = [path] if path.is_dir() else [path.parent, path.parent.parent]
    inner = [
        child
        for child in sorted(starts[0].iterdir())
        if child.is_dir() and child.name not in LIST_FOLDERS
    ]
    for root in (*starts, *inner):
        found = {
            name: file for name in (TRAIN, INDEX, SOLUTION) if (file := _find_list(root, name))
        }
        missing = [name for name in (TRAIN, INDEX, SOLUTION) if name not in found]
        if found and missing:
            raise BadInput(f"landmarks:{root} has no {missing[0]}; {LANDMARKS_RELEASE.remedy()}")
        if found:
            return root, found
    raise LANDMARKS_RELEASE.not_found(path)


def _find_list(root: Path, name: str) -> Path | None:
    return next(
        (root / place / name for place in LIST_FOLDERS if (root / place / name).is_file()), None
    )


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a CSV that has these columns."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        rows = list(csv.DictReader(read_lines(path), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(
            f"{path} cannot be read as a table: {reason_of(error)}; {LANDMARKS_RELEASE.remedy()}"
        ) from None
    finally:
        csv.field_size_limit(limit)
    for number, row in enumerate(rows, 2):
        for column in columns:
            if row.get(column) is None:
                raise BadInput(
                    f"row {number} of {path} has no {column}; {LANDMARKS_RELEASE.remedy()}"
                )
    return rows


def _read_train(path: Path) -> tuple[list[str], dict[str, int]]:
    """Read the landmarks in the order of their numbers, and the class of each image."""
    rows = _read(path, ("landmark_id", "images"))
    numbers = to_numbers([row["landmark_id"] for row in rows], path)
    order = np.argsort(numbers, kind="stable").tolist()
    check_unique([row["landmark_id"] for row in rows], path)
    images = [rows[row]["images"].split() for row in order]
    _check_ids([image for some in images for image in some], path)
    return [str(numbers[row]) for row in order], {
        image: label for label, some in enumerate(images) for image in some
    }


def _check_ids(ids: Sequence[str], path: Path) -> None:
    for image in ids:
        if not ID.fullmatch(image):
            raise BadInput(
                f"{path} has {image!a} where the id of an image belongs;"
                f" {LANDMARKS_RELEASE.remedy()}"
            )
    check_unique(ids, path)


def _list_images(
    root: Path,
    parts: Sequence[tuple[str, dict[str, int]]],
    usage: dict[str, str],
    progress: Progress,
) -> ListedImages:
    ids = [f"{part}/{_place(image)}" for part, images in parts for image in images]
    names = np.repeat([part for part, _ in parts], [len(images) for _, images in parts])
    return ListedImages(
        ids=ids,
        paths=[
            path
            for part, images in parts
            for path in _find_images(root, part, list(images), progress)
        ],
        labels=np.array(
            [label for _, images in parts for label in images.values()], dtype=np.int64
        ),
        query=names == "test",
        gallery=names == "index",
        metadata={
            "usage": [
                usage[image] if part == "test" else "" for part, images in parts for image in images
            ]
        },
    )


def _place(image: str) -> str:
    return f"{image[0]}/{image[1]}/{image[2]}/{image}.jpg"


def _find_images(root: Path, part: str, ids: list[str], progress: Progress) -> list[Path]:
    """Return the path of each image; each folder is read once."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for image in ids:
        wanted[image[:3]].add(f"{image}.jpg")
    base_of: dict[str, Path] = {}
    for base in _bases(root, part, progress):
        for three, files in list(wanted.items()):
            there = files & files_in(base / three[0] / three[1] / three[2])
            base_of.update(dict.fromkeys(there, base))
            files -= there
            if not files:
                del wanted[three]
        if not wanted:
            break
    missing = sorted(
        f"{part}/{_place(file.removesuffix('.jpg'))}" for files in wanted.values() for file in files
    )
    if missing:
        raise missing_images(root, missing, len(ids), LANDMARKS_RELEASE)
    paths = [base_of[f"{image}.jpg"] / _place(image) for image in ids]
    below: dict[Path, list[Path]] = defaultdict(list)
    for image, path in zip(ids, paths, strict=True):
        below[base_of[f"{image}.jpg"]].append(path)
    for base, found in below.items():
        check_inside(base, found)
    return paths


def _bases(root: Path, part: str, progress: Progress) -> Iterator[Path]:
    """Yield folders that may hold a/b/c/abc....jpg; archives are unpacked after the folders."""
    yield root / part
    yield root
    for archive in sorted((root / part).glob("images_*.tar")):
        yield unpack(archive, progress)
