"""Miniatures of published data sets, in the official layout, in folders and in archives."""

import csv
import hashlib
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from assay.data.sources import cars, cub, inshop, landmarks, omniglot, sop

CLASSES, TRAINVAL, IMAGES = 20, 11, 3
"""Not halves, so that an official split differs from them."""


def jpg(seed: int) -> bytes:
    stream = BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(
        stream, "JPEG"
    )
    return stream.getvalue()


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def samples() -> list[tuple[int, int]]:
    """Yield class and image, from 0."""
    return [(label, image) for label in range(CLASSES) for image in range(IMAGES)]


def make_cub(folder: Path) -> None:
    root = folder / "CUB_200_2011"
    species = [f"{label + 1:03}.Bird_{chr(ord('z') - label)}" for label in range(CLASSES)]
    files = [
        f"{species[label]}/{species[label][4:]}_{image + 1:04}_{796000 + label}.jpg"
        for label, image in samples()
    ]
    for row, file in enumerate(files):
        put(root / "images" / file, jpg(row))
    put(root / "images.txt", "".join(f"{row} {file}\n" for row, file in enumerate(files, 1)))
    put(
        root / "image_class_labels.txt",
        "".join(f"{row} {label + 1}\n" for row, (label, _) in enumerate(samples(), 1)),
    )
    put(
        root / "classes.txt",
        "".join(f"{number} {name}\n" for number, name in enumerate(species, 1)),
    )
    put(
        root / "train_test_split.txt",
        "".join(f"{row} {row % 2}\n" for row in range(1, len(files) + 1)),
    )
    put(root / "README", "The Caltech-UCSD Birds-200-2011 Dataset\n")
    put(folder / "attributes.txt", "1 has_bill_shape::curved_(up_or_down)\n")


def struct_array(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Make an array that MATLAB saves as a 1 x N struct array."""
    return np.array(
        [tuple(row.values()) for row in rows], dtype=[(name, object) for name in rows[0]]
    )[None]


BOX = {
    "bbox_x1": np.uint16(39),
    "bbox_y1": np.uint8(116),
    "bbox_x2": np.uint16(569),
    "bbox_y2": np.uint16(375),
}
CAR_NAMES = np.array(
    [f"Maker Model {chr(ord('z') - label)} {2000 + label}" for label in range(CLASSES)],
    dtype=object,
)[None]


def make_cars(folder: Path) -> None:
    rows = []
    for row, (label, image) in enumerate(samples(), 1):
        put(folder / "car_ims" / f"{row:06}.jpg", jpg(row))
        place = {"relative_im_path": f"car_ims/{row:06}.jpg"}
        rows.append(place | BOX | {"class": np.uint8(label + 1), "test": np.uint8(image % 2)})
    savemat(
        folder / "cars_annos.mat", {"annotations": struct_array(rows), "class_names": CAR_NAMES}
    )


def make_later_cars(folder: Path) -> None:
    (folder / "devkit").mkdir()
    for part, lists in (
        ("train", "cars_train_annos.mat"),
        ("test", "cars_test_annos_withlabels.mat"),
    ):
        chosen = [label for label, image in samples() if (image == 0) == (part == "test")]
        order = random.Random(part).sample(chosen, len(chosen))
        rows = [
            BOX | {"class": np.uint8(label + 1), "fname": f"{row:05}.jpg"}
            for row, label in enumerate(order, 1)
        ]
        for number, row in enumerate(rows):
            put(folder / f"cars_{part}" / row["fname"], jpg(number + 1000 * len(part)))
        savemat(folder / "devkit" / lists, {"annotations": struct_array(rows)})
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": CAR_NAMES})


def make_sop(folder: Path) -> None:
    root = folder / "Stanford_Online_Products"
    kinds = ("toaster", "bicycle", "sofa")
    lists = {
        "train": ["image_id class_id super_class_id path"],
        "test": ["image_id class_id super_class_id path"],
    }
    for row, (label, image) in enumerate(samples(), 1):
        file = f"{kinds[label % 3]}_final/{111085122871 + label}_{image}.JPG"
        put(root / file, jpg(row))
        lists["train" if label < TRAINVAL else "test"].append(
            f"{row} {label + 1} {label % 3 + 1} {file}"
        )
    for part, lines in lists.items():
        put(root / f"Ebay_{part}.txt", "".join(f"{line}\n" for line in lines))


def make_inshop(folder: Path) -> None:
    root = folder / "In-shop Clothes Retrieval Benchmark"
    lines = []
    for row, (label, image) in enumerate(samples()):
        item, views = f"id_{label + 1:08}", ("01_1_front.jpg", "01_2_side.jpg", "02_4_full.jpg")
        file = f"img/{('WOMEN', 'MEN')[label % 2]}/Tees_Tanks/{item}/{views[image]}"
        part = "train" if label < TRAINVAL else ("query", "gallery", "gallery")[image]
        put(root / "Img" / file, jpg(row))
        lines.append(f"{file:<70} {item} {part}\n")
    put(
        root / "Eval" / "list_eval_partition.txt",
        f"{len(lines)}\nimage_name item_id evaluation_status\n{''.join(lines)}",
    )
    put(root / "README.txt", "In-shop Clothes Retrieval Benchmark\n")


def image_id(part: str, number: int) -> str:
    return hashlib.sha256(f"{part} {number}".encode()).hexdigest()[:16]


QUERIES = {0: (0, 1), 1: (1, 0), 2: (2,), 3: (3, 4), 4: (4, 5), 5: None, 6: (6,)}
"""Index images that each query of the miniature should find; two share a part of their lists, one
is ignored.
"""

INDEX = 10


def make_landmarks(folder: Path) -> None:
    root = folder / "google-landmark"
    train = [
        (1000 - 7 * label, [image_id("train", 10 * label + image) for image in range(IMAGES)])
        for label in range(CLASSES)
    ]
    index = [image_id("index", number) for number in range(INDEX)]
    wanted = {"train": [image for _, images in train for image in images], "index": index}
    wanted["test"] = [image_id("test", number) for number in QUERIES]
    for part, images in wanted.items():
        for number, image in enumerate(images):
            put(
                root / part / image[0] / image[1] / image[2] / f"{image}.jpg",
                jpg(number + 100 * len(part)),
            )
    solution = [[image_id("test", query), *_relevant(found)] for query, found in QUERIES.items()]
    write_csv(
        root / "train_clean.csv",
        ["landmark_id", "images"],
        [[number, " ".join(images)] for number, images in train],
    )
    write_csv(root / "index.csv", ["id"], [[image] for image in index])
    write_csv(root / "retrieval_solution_v2.1.csv", ["id", "images", "Usage"], solution)


def _relevant(found: tuple[int, ...] | None) -> list[str]:
    return (
        ["None", "Ignored"]
        if found is None
        else [" ".join(image_id("index", number) for number in found), "Public"]
    )


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return path


def make_omniglot(folder: Path) -> None:
    make_omniglot_part(
        folder, "images_background", {"Greek": range(1, 7), "Atemayar": range(7, 12)}
    )
    make_omniglot_part(
        folder, "images_evaluation", {"Tengwar": range(12, 18), "Angelic": range(18, 21)}
    )


def make_omniglot_part(folder: Path, part: str, alphabets: Mapping[str, Sequence[int]]) -> None:
    for alphabet, numbers in alphabets.items():
        for place, number in enumerate(numbers, 1):
            for person in range(1, 21):
                pixels = np.random.default_rng(100 * number + person).random((9, 9)) < 0.8
                stream = BytesIO()
                Image.fromarray(pixels).save(stream, "PNG")
                put(
                    folder
                    / part
                    / alphabet
                    / f"character{place:02}"
                    / f"{number:04}_{person:02}.png",
                    stream.getvalue(),
                )


@dataclass(frozen=True)
class Miniature:
    """A miniature: how it is made, where its unpacked folder is, and how it is packed.

    Args:
        kind: in `kind:path`.
        make: lays it out in a folder, as the archives do when they are unpacked there.
        root: the unpacked folder itself.
        archives: by name, the folder they are unpacked in and what they hold there.
        counts: what takes the place of the official ones.
    """

    kind: str
    make: Callable[[Path], None]
    root: str
    archives: Mapping[str, tuple[str, tuple[str, ...]]]
    counts: Mapping[str, int]

    def pack(self, unpacked: Path, target: Path) -> Path:
        """Write the archives into `target`, and beside them the files that are in none."""
        for name, (base, members) in self.archives.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            pack(target / name, unpacked / base, members)
        packed = [
            unpacked / base / member
            for base, members in self.archives.values()
            for member in members
        ]
        for path in sorted(unpacked.rglob("*")):
            if path.is_file() and not any(path.is_relative_to(member) for member in packed):
                put(target / path.relative_to(unpacked), path.read_bytes())
        return target


COUNTS = {
    "classes": CLASSES,
    "images": CLASSES * IMAGES,
    "classes in trainval": TRAINVAL,
    "images in trainval": TRAINVAL * IMAGES,
    "queries": CLASSES - TRAINVAL,
    "gallery images": 2 * (CLASSES - TRAINVAL),
}
GOOGLE = "google-landmark"
MINIATURES = {
    "cub": Miniature(
        "cub",
        make_cub,
        "CUB_200_2011",
        {"CUB_200_2011.tgz": ("", ("attributes.txt", "CUB_200_2011"))},
        COUNTS,
    ),
    "cars": Miniature("cars", make_cars, "car_ims", {"car_ims.tgz": ("", ("car_ims",))}, COUNTS),
    "later cars": Miniature(
        "cars",
        make_later_cars,
        "cars_train",
        {
            "cars_train.tgz": ("", ("cars_train",)),
            "cars_test.tgz": ("", ("cars_test",)),
            "car_devkit.tgz": ("", ("devkit",)),
        },
        COUNTS,
    ),
    "sop": Miniature(
        "sop",
        make_sop,
        "Stanford_Online_Products",
        {"Stanford_Online_Products.zip": ("", ("Stanford_Online_Products",))},
        COUNTS,
    ),
    "inshop": Miniature(
        "inshop",
        make_inshop,
        "In-shop Clothes Retrieval Benchmark",
        {
            "In-shop Clothes Retrieval Benchmark/Img/img.zip": (
                "In-shop Clothes Retrieval Benchmark/Img",
                ("img",),
            ),
        },
        COUNTS,
    ),
    "landmarks": Miniature(
        "landmarks",
        make_landmarks,
        GOOGLE,
        {
            f"{GOOGLE}/{part}/images_{number:03}.tar": (f"{GOOGLE}/{part}", tuple(letters))
            for part in ("train", "index", "test")
            for number, letters in enumerate(("01234567", "89abcdef"))
        },
        {
            "classes in trainval": CLASSES,
            "images in trainval": CLASSES * IMAGES,
            "gallery images": INDEX,
            "queries, ignored ones among them": len(QUERIES),
        },
    ),
    "omniglot": Miniature(
        "omniglot",
        make_omniglot,
        "images_background",
        {f"{part}.zip": ("", (part,)) for part in ("images_background", "images_evaluation")},
        {
            "images_background": 11,
            "images_evaluation": 9,
            "images_background_small1": 5,
            "images_background_small2": 4,
        },
    ),
}


def pack(archive: Path, base: Path, members: Sequence[str]) -> None:
    """Write an archive of these files and folders below `base`, with members for folders."""
    there = [base / member for member in members if (base / member).exists()]
    paths = [path for start in there for path in (start, *sorted(start.rglob("*")))]
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for path in paths:
                target.write(path, path.relative_to(base).as_posix())
        return
    with tarfile.open(archive, "w:gz" if archive.suffix == ".tgz" else "w") as tar:
        for path in paths:
            tar.add(path, path.relative_to(base).as_posix(), recursive=False)


def shrink(patch: pytest.MonkeyPatch, name: str) -> None:
    """Make the loader expect the miniature's counts."""
    mini = MINIATURES[name]
    if mini.kind == "omniglot":
        parts = {part: omniglot._part(part, classes) for part, classes in mini.counts.items()}
        patch.setattr(omniglot, "PARTS", parts)
        return
    module: Any = {"cub": cub, "cars": cars, "sop": sop, "inshop": inshop, "landmarks": landmarks}[
        mini.kind
    ]
    constant = f"{mini.kind.upper()}_RELEASE"
    patch.setattr(module, constant, replace(getattr(module, constant), counts=mini.counts))


def copy_shuffled(source: Path, target: Path, seed: int = 0) -> Path:
    """Copy a folder, creating the files in another order."""
    paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
    for path in random.Random(seed).sample(paths, len(paths)):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return target
