"""`index.json`, which says which version of an index is the present one, and what it is made of.

INDEX/
  index.json            the present version: replaced in one step, so that a reader sees the old
                        state or the new one
  versions/v000003/     files of a version, never changed: vectors.npy, catalog.sqlite,
                        alive.npy, and those of the back end under backend/
  models/<print>/       the model, a model folder
  calibration.json      thresholds, where the model was calibrated
  .pending/             vectors that an interrupted update had computed
  .lock                 held by the one process that writes
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np

from assay.errors import BadInput
from assay.files import write_atomically
from assay.hashing import digest, digest_file, pretty
from assay.index.recall import Quality
from assay.protocols import SampleKind, Similarity
from assay.records.codec import BadRecord, Record, read_document
from assay.space import Value

INDEX_FORMAT = 1
"""Number of the format of an index. Another number is refused."""

MANIFEST = "index.json"
VERSIONS, MODELS, PENDING = "versions", "models", ".pending"
VECTORS, ALIVE, CATALOG, BACKEND = "vectors.npy", "alive.npy", "catalog.sqlite", "backend"
CALIBRATION, LOCK = "calibration.json", ".lock"

Precision = Literal["float32", "float16", "bits"]
"""Numbers of a stored vector; bits are their signs, eight to a byte."""

MAKE_AGAIN = "; make the index again: assay index MODEL IMAGES --out INDEX --rebuild"
"""End of a message about an index that cannot be used."""


class DamagedIndex(BadInput):
    """An index whose files are missing, damaged or of another format; what is wrong with it is
    followed by the remedy.
    """

    def __init__(self, problem: str, remedy: str = MAKE_AGAIN) -> None:
        super().__init__(f"{problem}{remedy}")


@dataclass(frozen=True)
class FileSum(Record):
    """Size and SHA-256 of a file of a version."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class IndexedModel(Record):
    """The model that embedded the images.

    Args:
        name: how it was given: a model folder, or the name of a trunk.
        print: SHA-256 of its weights and architecture.
        takes: images or vectors.
        similarity: how its embeddings are compared.
        inputs: channels of the images, or width of the vectors, that it takes.
        dim: numbers of an embedding.
        about: method, data and the like, in words.
    """

    name: str
    print: str
    takes: SampleKind
    similarity: Similarity
    inputs: int
    dim: int
    about: str


@dataclass(frozen=True)
class Manifest(Record):
    """The present version of an index.

    Args:
        index: a random name that the index keeps.
        version: rises by one with each change.
        generation: rises when the rows are numbered anew.
        model: the model.
        images: how the images were given.
        root: folder that the ids of images are relative to; None: ids are no paths.
        similarity: how stored vectors are compared: as the model's, or hamming where only the signs
            are stored.
        precision: numbers of a stored vector.
        rows: stored vectors, those of removed images among them.
        count: images that can be found.
        backend: name of the back end.
        settings: its settings.
        quality: its recall, as measured when it was built; None: it is exact.
        columns: names of the columns of metadata.
        label: column with the class of an image, which `--classify` votes on; None: there is none.
        files: the files of the version, by their path in its folder.
        written_by: version of Assay.
    """

    kind: ClassVar[str] = "assay-index"

    index: str
    version: int
    generation: int
    model: IndexedModel
    images: str
    root: str | None
    similarity: Similarity
    precision: Precision
    rows: int
    count: int
    backend: str
    settings: Mapping[str, Value]
    quality: Quality | None
    columns: tuple[str, ...]
    label: str | None
    written_by: str
    files: Mapping[str, FileSum] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Folder of the version, in the folder of the index."""
        return folder_of(self.version)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored numbers; bits are packed into bytes."""
        return np.dtype("uint8" if self.precision == "bits" else self.precision)

    @property
    def width(self) -> int:
        """Numbers, or bytes of packed bits, in a stored row."""
        return -(-self.model.dim // 8) if self.precision == "bits" else self.model.dim

    def write(self, root: Path) -> None:
        """Make this the present version of the index."""
        document = {"kind": self.kind, "format": INDEX_FORMAT, **self.to_json()}
        write_atomically(root / MANIFEST, pretty(document | {"sha256": digest(document)}))


def folder_of(version: int) -> str:
    """Return the folder of a version, in the folder of the index.

    >>> folder_of(3)
    'versions/v000003'
    """
    return f"{VERSIONS}/v{version:06d}"


def is_index(folder: Path) -> bool:
    """Return whether a folder is an index."""
    return (folder / MANIFEST).is_file()


def read_manifest(root: Path) -> Manifest:
    """Read which version is the present one; raise `BadInput` where there is no index to read."""
    path = root / MANIFEST
    if not path.exists():
        begun = (root / PENDING).exists() or (root / VERSIONS).exists()
        raise BadInput(
            f"{root} is an index that was never finished; run its `assay index` command again,"
            " which continues it"
            if begun
            else f"{root} is not an index (no {MANIFEST} in it); give the folder that `assay index"
            " MODEL IMAGES --out INDEX` has made"
        )
    try:
        document = read_document(path, "")
    except BadRecord as error:
        raise DamagedIndex(str(error)) from None
    if not isinstance(document, Mapping) or document.get("kind") != Manifest.kind:
        raise DamagedIndex(f"{path} is not the {MANIFEST} of an index of Assay")
    found = document.get("format")
    if found != INDEX_FORMAT:
        newer = isinstance(found, int) and found > INDEX_FORMAT
        remedy = (
            "; a newer Assay wrote it: update Assay, or make it again with --rebuild"
            if newer
            else MAKE_AGAIN
        )
        raise DamagedIndex(
            f"{path} has format {found}; this version of Assay reads format {INDEX_FORMAT}", remedy
        )
    own = {name: value for name, value in document.items() if name != "sha256"}
    if document.get("sha256") != digest(own):
        raise DamagedIndex(f"{path} was altered: it does not have the hash it was written with")
    fields = {name: value for name, value in own.items() if name not in ("kind", "format")}
    try:
        manifest = Manifest.from_json(fields, str(path))
    except BadRecord as error:
        raise DamagedIndex(f"{error}") from None
    outside = [name for name in manifest.files if not _is_inside(name)]
    if outside or not re.fullmatch("[0-9a-f]{64}", manifest.model.print):
        raise DamagedIndex(f"{path} names files outside of the index: it was altered")
    return manifest


def _is_inside(name: str) -> bool:
    """Return whether the name of a file stays in the folder of its version."""
    parts = PurePosixPath(name).parts
    return bool(parts) and ".." not in parts and not name.startswith("/") and "\0" not in name


def sums_of(folder: Path) -> dict[str, FileSum]:
    """Return size and SHA-256 of all files in the folder of a version."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileSum(path.stat().st_size, digest_file(path))
        for path in paths
    }


def check_sizes(root: Path, manifest: Manifest) -> None:
    """Raise `BadInput` where a file of the version is missing or of another size."""
    folder = root / manifest.folder
    for name, known in manifest.files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != known.bytes:
            said = "is missing" if found is None else f"has {found:,} bytes, not {known.bytes:,}"
            raise DamagedIndex(f"{path} {said}: the index was altered")


def damaged_files(root: Path, manifest: Manifest) -> list[str]:
    """Return what is wrong with the files of the present version, by their hashes."""
    folder = root / manifest.folder
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    problems = [f"{folder / name} is not listed" for name in sorted(there - set(manifest.files))]
    needed = {VECTORS, ALIVE, CATALOG} - set(manifest.files)
    problems += [f"{root / MANIFEST} does not list {name}" for name in sorted(needed)]
    for name, known in manifest.files.items():
        path = root / manifest.folder / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif digest_file(path) != known.sha256:
            problems.append(f"{path} has other bytes than were written")
    return problems
