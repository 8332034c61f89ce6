"""Shared by the loaders of published data sets: finding the files, checking them against the
official counts, and making a data set of them.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from assay.data.dataset import Dataset, Labels, Marks, relation_notes
from assay.data.image_files import ImageFiles
from assay.data.paths import check_inside
from assay.data.relations import Relations
from assay.data.sources.archives import is_archive, unpack
from assay.errors import BadInput, reason_of
from assay.files import read_lines
from assay.progress import Progress, silent
from assay.protocols import Modality

NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the system where there is no folder of a name, and can be none."""


@dataclass(frozen=True)
class Release:
    """A data set as its publishers give it out.

    Args:
        name: the kind in `kind:path`.
        home: page of the publishers.
        archives: names of the files they give out, from the folder that holds them.
        layout: what lies where once those are unpacked.
        unpacking: the command that does it.
        counts: how many it has of what, in words for people.
    """

    name: str
    home: str
    archives: tuple[str, ...]
    layout: str
    unpacking: str
    counts: Mapping[str, int]

    def remedy(self) -> str:
        """Return in words where the data set comes from and how it is unpacked."""
        return (
            f"get {', '.join(self.archives)} from {self.home} and give that folder, or unpack there"
            f" with: {self.unpacking}"
        )

    def not_found(self, path: Path) -> BadInput:
        """Return the error for a `path` that holds nothing of the data set."""
        return BadInput(
            f"{self.name}:{path} does not hold the data set, which is {self.layout};"
            f" {self.remedy()}"
        )

    def check(self, where: Path, found: Mapping[str, int], more: str = "") -> None:
        """Raise `BadInput` unless as many of each were found `where` as there officially are;
        `more` names those that are wrong.
        """
        for what, count in found.items():
            expected = self.counts[what]
            if count != expected:
                wrong = f"{abs(count - expected):,} too {'few' if count < expected else 'many'}"
                raise BadInput(
                    f"{where} has {count:,} {what}, officially {expected:,}: {wrong}{more};"
                    f" {self.remedy()}"
                )


@dataclass(frozen=True)
class ListedImages:
    """Image files in any order: names, paths, class numbers from 0, and what else is known of
    each. The rows of the relations are numbers of images in this order.
    """

    ids: Sequence[str]
    paths: Sequence[Path]
    labels: Labels
    query: Marks | None = None
    gallery: Marks | None = None
    metadata: Mapping[str, Sequence[str]] = field(default_factory=dict)
    relations: Relations | None = None


def find_folder(
    path: Path, sign: str, archives: Sequence[str] = (), progress: Progress = silent
) -> Path | None:
    """Return the folder that holds `sign`: `path`, a folder in it, or either of them in an archive,
    which is unpacked for that. `path` may be the archive itself, whatever its name.
    """
    for start in _starts(path, archives, progress):
        if found := _folder_with(start, sign):
            return found
    return None


def find_root(path: Path, sign: str, release: Release, progress: Progress) -> Path:
    """Return the folder of the data set, which holds `sign`; `BadInput` where there is none."""
    root = find_folder(path.absolute(), sign, release.archives, progress)
    if root is None:
        raise release.not_found(path)
    return root


def _starts(path: Path, archives: Sequence[str], progress: Progress) -> Iterator[Path]:
    if path.is_file():
        if is_archive(path):
            yield unpack(path, progress)
        return
    yield path
    for name in archives:
        if (path / name).is_file():
            yield unpack(path / name, progress)


def _folder_with(start: Path, sign: str) -> Path | None:
    if (start / sign).exists():
        return start
    with os.scandir(start) as entries:
        folders = sorted(
            entry.name
            for entry in entries
            if entry.is_dir() and not entry.name.startswith((".", "__"))
        )
    found = [start / folder for folder in folders if (start / folder / sign).exists()]
    if len(found) > 1:
        raise BadInput(
            f"{start} holds the data set twice, in {found[0].name} and {found[1].name}; give one of"
            " the two"
        )
    return found[0] if found else None


def read_words(path: Path, columns: int, skip: int = 0) -> list[list[str]]:
    """Read lines of `columns` words each, after the first `skip` lines."""
    try:
        lines = list(read_lines(path))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read: {reason_of(error)}; unpack the data set again"
        ) from None
    rows = []
    for number, line in enumerate(lines[skip:], skip + 1):
        words = line.split()
        if words and len(words) != columns:
            raise BadInput(
                f"line {number} of {path} has {len(words)} words, not {columns}:"
                f" {line.strip()[:80]!a}; unpack the data set again"
            )
        if words:
            rows.append(words)
    return rows


def to_numbers(words: Sequence[str], where: Path) -> Labels:
    """Return words as whole numbers."""
    try:
        return np.array([int(word) for word in words], dtype=np.int64)
    except ValueError as error:
        raise BadInput(
            f"{where} has a word where a number belongs ({error}); unpack the data set again"
        ) from None


def check_unique(words: Sequence[str], where: Path) -> None:
    """Raise `BadInput` where a word is listed twice."""
    seen: set[str] = set()
    for word in words:
        if word in seen:
            raise BadInput(f"{where} lists {word} twice; unpack the data set again")
        seen.add(word)


def locate(base: Path, names: Sequence[str], release: Release) -> tuple[list[Path], list[str]]:
    """Return the paths of the listed files, and notes on files that are in no list; `BadInput`
    where a file is missing or lies outside `base`.
    """
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise BadInput(
                f"{release.name}: the list names {name!a}, which leads out of {base};"
                f" {release.remedy()}"
            )
    missing, extra = _compare_with_disk(base, names)
    if missing:
        raise missing_images(base, missing, len(names), release)
    paths = [base / name for name in names]
    check_inside(base, paths)
    return paths, (
        [f"{len(extra)} files left out that are not in the official list: {first_few(extra)}"]
        if extra
        else []
    )


def _compare_with_disk(base: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names that are no file below `base`, and the files beside them that are not among
    the names. Each folder is read once, no file is looked at.
    """
    listed: dict[str, set[str]] = defaultdict(set)
    for name in names:
        folder, _, file = name.rpartition("/")
        listed[folder].add(file)
    missing, extra = [], []
    for folder, wanted in listed.items():
        there = files_in(base / folder)
        prefix = f"{folder}/" if folder else ""
        missing += [prefix + file for file in wanted - there]
        extra += [prefix + file for file in there - wanted if folder and not file.startswith(".")]
    return sorted(missing), sorted(extra)


def files_in(folder: Path) -> set[str]:
    """Return the names of the files in a folder; none where there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
        return set()


def missing_images(base: Path, missing: Sequence[str], listed: int, release: Release) -> BadInput:
    """Return the error for listed images that are not there."""
    return BadInput(
        f"{base} lacks {len(missing):,} of {listed:,} images: {first_few(missing)};"
        f" {release.remedy()}"
    )


def first_few(names: Sequence[str]) -> str:
    """Return the first three of the names.

    >>> first_few(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def make_dataset(
    name: str,
    images: ListedImages,
    class_names: Sequence[str],
    *,
    trainval: int | None = None,
    modality: Modality = "photo",
    channels: int = 3,
    notes: Sequence[str] = (),
    official: bool = True,
    progress: Progress = silent,
) -> Dataset:
    """Make a data set of image files, sorted by class and name: the order of the list does not
    matter.
    """
    labels = images.labels.tolist()
    order = np.array(
        sorted(range(len(labels)), key=lambda row: (labels[row], images.ids[row])), dtype=np.int64
    )
    paths = [images.paths[row] for row in order]
    given = images.relations
    made = Dataset(
        name=name,
        modality=modality,
        labels=images.labels[order],
        class_names=tuple(class_names),
        ids=[images.ids[row] for row in order],
        items=ImageFiles(
            paths, Path(os.path.commonpath({path.parent for path in paths})), channels, progress
        ),
        notes=tuple(notes),
        trainval=trainval,
        query=None if images.query is None else images.query[order],
        gallery=None if images.gallery is None else images.gallery[order],
        metadata={
            column: [words[row] for row in order] for column, words in images.metadata.items()
        },
        official=official,
        relations=None if given is None else given.within(order).ordered(),
    )
    return replace(made, notes=(*made.notes, *relation_notes(made)))
