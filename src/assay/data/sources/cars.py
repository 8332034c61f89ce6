"""`cars:PATH`: Cars196.

Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained Categorization (2013), 3dRR
workshop at ICCV. It was given out twice. First as car_ims/000001.jpg with cars_annos.mat, which
lists all images; later as cars_train/ and cars_test/ with devkit/cars_train_annos.mat,
cars_test_annos_withlabels.mat and cars_meta.mat. Metric learning takes the first half of the
classes for trainval, whichever folder their images are in (Oh Song et al. 2016,
arxiv.org/abs/1511.06452).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.sources.official import (
    ListedImages,
    Release,
    check_unique,
    find_folder,
    locate,
    make_dataset,
    to_numbers,
)
from assay.errors import BadInput, reason_of
from assay.files import regular
from assay.progress import Progress, silent

CARS_RELEASE = Release(
    name="cars",
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    archives=("car_ims.tgz", "cars_annos.mat"),
    layout=(
        "cars_annos.mat and car_ims/000001.jpg ..., or devkit/ with cars_train_annos.mat,"
        " cars_test_annos_withlabels.mat and cars_meta.mat beside cars_train/ and cars_test/"
        " (car_devkit.tgz, cars_train.tgz, cars_test.tgz)"
    ),
    unpacking="tar -xzf car_ims.tgz",
    counts={
        "classes": 196,
        "images": 16_185,
        "classes in trainval": 98,
        "images in trainval": 8_054,
    },
)
FOLDERS = ("car_ims", "cars_train", "cars_test", "devkit")
LATER = (("cars_train", "cars_train_annos.mat"), ("cars_test", "cars_test_annos_withlabels.mat"))


NamesAndClasses = tuple[Path, list[str], list[str]]
"""The folder above the images, their names in it, and their class numbers from 1."""


@datasets("cars:")
def load_cars(path: Path, progress: Progress = silent) -> Dataset:
    """Cars196, 196 models of cars: the folder of car_ims.tgz and cars_annos.mat, or of the later
    devkit; the first 98 classes are trainval.
    """
    place = (
        path.absolute() if path.is_dir() and path.name not in FOLDERS else path.absolute().parent
    )
    class_names, parts = _listing(place, path, progress)
    ids: list[str] = []
    paths: list[Path] = []
    numbers: list[str] = []
    notes: list[str] = []
    for base, names, classes in parts:
        found, left_out = locate(base, names, CARS_RELEASE)
        for column, more in ((ids, names), (paths, found), (numbers, classes), (notes, left_out)):
            column.extend(more)  # type: ignore[arg-type]
    check_unique(ids, place)
    labels = to_numbers(numbers, place) - 1
    trainval = CARS_RELEASE.counts["classes in trainval"]
    counts = {
        "images": len(ids),
        "classes": len(np.unique(labels)),
        "images in trainval": int((labels < trainval).sum()),
    }
    CARS_RELEASE.check(place, {"classes": len(class_names)})
    CARS_RELEASE.check(place, counts)
    if labels.min() < 0 or labels.max() >= len(class_names):
        raise BadInput(
            f"{place}: classes are not numbered from 1 to {len(class_names)};"
            f" {CARS_RELEASE.remedy()}"
        )
    images = ListedImages(ids, paths, labels)
    return make_dataset(
        "cars", images, class_names, trainval=trainval, notes=notes, progress=progress
    )


def _listing(
    place: Path, path: Path, progress: Progress
) -> tuple[list[str], list[NamesAndClasses]]:
    """Return class names and images of the edition that is at `place`."""
    lists = find_folder(place, "cars_annos.mat")
    meta = _find_list(place, "cars_meta.mat", progress)
    images = None
    if lists:
        images = _base(lists, "car_ims", progress) or _base(place, "car_ims", progress)
    if lists and images:
        content = _read(lists / "cars_annos.mat", ("annotations", "class_names"))
        names, classes = _columns(content, lists / "cars_annos.mat", ("relative_im_path", "class"))
        return _words(content["class_names"]), [(images, names, classes)]
    if meta:
        return _words(_read(meta, ("class_names",))["class_names"]), list(
            _later_parts(place, progress)
        )
    if lists:
        raise BadInput(
            f"{place} has cars_annos.mat but neither car_ims/ nor car_ims.tgz;"
            f" {CARS_RELEASE.remedy()}"
        )
    raise CARS_RELEASE.not_found(path)


def _later_parts(place: Path, progress: Progress) -> Iterator[NamesAndClasses]:
    for folder, name in LATER:
        file = _find_list(place, name, progress)
        if file is None:
            raise BadInput(
                f"{place} has cars_meta.mat but no {name}, without which half of the labels are"
                f" unknown; get it from {CARS_RELEASE.home}"
            )
        base = _base(place, folder, progress)
        if base is None:
            raise BadInput(
                f"{place} has {name} but neither {folder}/ nor {folder}.tgz; get it from"
                f" {CARS_RELEASE.home}"
            )
        names, classes = _columns(_read(file, ("annotations",)), file, ("fname", "class"))
        yield base, [f"{folder}/{image}" for image in names], classes


def _find_list(place: Path, name: str, progress: Progress) -> Path | None:
    folder = find_folder(place, name, ("car_devkit.tgz", "cars_devkit.tgz"), progress)
    return None if folder is None else folder / name


def _base(place: Path, folder: str, progress: Progress) -> Path | None:
    """Return the folder that holds the folder of the images, which some copies have inside another
    of the same name.
    """
    found = find_folder(place, folder, (f"{folder}.tgz",), progress)
    return found / folder if found and (found / folder / folder).is_dir() else found


def _read(path: Path, names: Sequence[str]) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(str(regular(path)), squeeze_me=True)
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise BadInput(
            f"{path} cannot be read as a MATLAB file: {reason_of(error)}; {CARS_RELEASE.remedy()}"
        ) from None
    missing = [name for name in names if name not in content]
    if missing:
        raise BadInput(f"{path} has no {missing[0]}; {CARS_RELEASE.remedy()}")
    return content


def _columns(
    content: dict[str, Any], path: Path, fields: tuple[str, str]
) -> tuple[list[str], list[str]]:
    table = np.atleast_1d(content["annotations"])
    missing = [field for field in fields if field not in (table.dtype.names or ())]
    if missing:
        raise BadInput(
            f"the annotations of {path} have no field {missing[0]}; {CARS_RELEASE.remedy()}"
        )
    return _words(table[fields[0]]), _words(table[fields[1]])


def _words(cells: Any) -> list[str]:
    return [str(cell) for cell in np.atleast_1d(cells).tolist()]
