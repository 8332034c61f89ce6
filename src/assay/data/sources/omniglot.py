"""`omniglot:PATH`: Omniglot, handwritten characters of 50 alphabets, each drawn by 20 people.

Lake, Salakhutdinov, Tenenbaum: Human-level concept learning through probabilistic program induction
(2015), Science 350. images_background/ALPHABET/characterNN/CCCC_PP.png (105 x 105, 1 bit), where
CCCC numbers the character and PP the person. The official split is background for trainval and
evaluation for test. Without one of them the halves are made by class order. The two small
background sets share the Greek and Latin alphabets and are themselves a part of the background.
"""

import filecmp
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, datasets
from assay.data.paths import check_inside
from assay.data.sources.official import ListedImages, Release, find_folder, first_few, make_dataset
from assay.errors import BadInput
from assay.progress import Progress, silent


def _part(folder: str, classes: int) -> Release:
    return Release(
        name="omniglot",
        home="https://github.com/brendenlake/omniglot",
        archives=(f"{folder}.zip",),
        layout=(
            "images_background/ and images_evaluation/ (or images_background_small1/,"
            " images_background_small2/), each with ALPHABET/characterNN/*.png"
        ),
        unpacking=f"unzip {folder}.zip",
        counts={"classes": classes, "images": 20 * classes},
    )


PARTS = {
    "images_background": _part("images_background", 964),
    "images_background_small1": _part("images_background_small1", 136),
    "images_background_small2": _part("images_background_small2", 156),
    "images_evaluation": _part("images_evaluation", 659),
}
FILE = re.compile(r"(\d{4})_(\d{2})\.png")


@dataclass(frozen=True)
class Character:
    """A class: its number among all characters, its name, and its drawings by the number of the
    person who drew them.
    """

    number: str
    name: str
    drawings: dict[str, Path]


@datasets("omniglot:")
def load_omniglot(path: Path, progress: Progress = silent) -> Dataset:
    """Omniglot, 1,623 handwritten characters: images_background.zip and images_evaluation.zip, or
    one of them, or a small set.
    """
    roots = _find_parts(path.absolute(), progress)
    if not roots:
        raise PARTS["images_background"].not_found(path)
    evaluation = roots.pop("images_evaluation", None)
    if "images_background" in roots:
        roots = {"images_background": roots["images_background"]}
    background, notes = _merge([_read_part(folder, root) for folder, root in roots.items()])
    test = [] if evaluation is None else _read_part("images_evaluation", evaluation)
    characters = background + test
    samples = [
        (row, person) for row, character in enumerate(characters) for person in character.drawings
    ]
    images = ListedImages(
        ids=[
            f"{characters[row].name}/{characters[row].number}_{person}.png"
            for row, person in samples
        ],
        paths=[characters[row].drawings[person] for row, person in samples],
        labels=np.array([row for row, _ in samples], dtype=np.int64),
    )
    trainval = len(background) if background and test else None
    names = [character.name for character in characters]
    return make_dataset(
        "omniglot",
        images,
        names,
        trainval=trainval,
        modality="drawing",
        channels=1,
        notes=notes,
        progress=progress,
    )


def _find_parts(path: Path, progress: Progress) -> dict[str, Path]:
    """Return the folders of the parts that are there, by their official names."""
    if path.is_dir() and path.name in PARTS:
        return {path.name: path}
    found = {
        folder: find_folder(
            path,
            folder,
            (f"{folder}.zip", f"{folder.replace('images', 'omniglot')}.zip"),
            progress,
        )
        for folder in PARTS
    }
    return {folder: base / folder for folder, base in found.items() if base is not None}


def _read_part(folder: str, root: Path) -> list[Character]:
    """Read the characters of a part in the order of their numbers; `BadInput` if one is missing."""
    names = [
        f"{alphabet}/{character}"
        for alphabet in _folders(root)
        for character in _folders(root / alphabet)
    ]
    characters = [_read_character(root, name) for name in names]
    paths = [path for character in characters for path in character.drawings.values()]
    check_inside(root, paths)
    missing = [
        f"{character.name}/{character.number}_{person:02}.png"
        for character in characters
        for person in range(1, 21)
        if f"{person:02}" not in character.drawings
    ]
    found = {"classes": len(characters), "images": len(paths)}
    PARTS[folder].check(root, found, f": {first_few(missing)}" if missing else "")
    return sorted(characters, key=lambda character: character.number)


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def _read_character(root: Path, name: str) -> Character:
    drawings: dict[str, Path] = {}
    numbers = set()
    for file in sorted(
        path.name for path in (root / name).iterdir() if not path.name.startswith(".")
    ):
        match = FILE.fullmatch(file)
        if match is None:
            raise BadInput(
                f"{root / name / file} is not named like a drawing of Omniglot, such as"
                " 0108_01.png; remove it"
            )
        numbers.add(match[1])
        drawings[match[2]] = root / name / file
    if len(numbers) != 1:
        what = (
            f"drawings of {len(numbers)} characters, {' and '.join(sorted(numbers))}"
            if numbers
            else "no drawings"
        )
        raise BadInput(f"{root / name} has {what}; unpack the data set again")
    return Character(numbers.pop(), name, drawings)


def _merge(parts: list[list[Character]]) -> tuple[list[Character], list[str]]:
    """Return the characters of all parts in the order of their numbers, shared ones once."""
    merged: dict[str, Character] = {}
    shared = []
    for character in (character for part in parts for character in part):
        other = merged.setdefault(character.number, character)
        if other is not character:
            _check_the_same(other, character)
            shared.append(character.name)
    notes = (
        [f"{len(shared)} classes are in both small sets and are taken once: {first_few(shared)}"]
        if shared
        else []
    )
    return [merged[number] for number in sorted(merged)], notes


def _check_the_same(one: Character, other: Character) -> None:
    for person, path in one.drawings.items():
        twin = other.drawings.get(person)
        if one.name != other.name or twin is None or not filecmp.cmp(path, twin, shallow=False):
            raise BadInput(
                f"{path} and {twin or other.name} should be the same drawing; unpack the data set"
                " again"
            )
