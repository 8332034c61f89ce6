"""`features:F.npz`: vectors that come ready made, from a foundation model or any other source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.canonical import digest_bytes
from assay.data.dataset import Dataset, Labels, Vectors
from assay.errors import BadInput

LARGEST = 1e15
"""Above it the squares of a vector's entries may no longer add up in single precision."""


class Features:
    """Rows of one array in memory."""

    def __init__(self, z: Vectors) -> None:
        self.z = z
        self.inputs = z.shape[1]

    def arrays(self, indices: Labels, size: int) -> Vectors:
        """The rows; vectors have no size in pixels."""
        return self.z[indices]

    def digest(self, index: int) -> str:
        """Hash of the row's bytes."""
        return digest_bytes(self.z[index].tobytes())


def load_features(path: Path) -> Dataset:
    """An .npz with `z` (N, D) numbers and `y` (N,) labels, integers or strings; classes in sorted order."""
    called = f"features:{path}"
    arrays = read_arrays(path, called, ["z", "y"])
    z = arrays["z"]
    check_vectors(z, called)
    words = read_labels(arrays["y"], len(z), called)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is named below
        vectors = np.ascontiguousarray(z, dtype=np.float32)
    bad = np.flatnonzero(~(np.abs(vectors) < LARGEST).all(axis=1))
    if len(bad):
        raise BadInput(
            f"{called}: row {bad[0]} of z has a value that is NaN, infinite or above {LARGEST:g} ({len(bad)} such rows)"
        )
    classes, labels = np.unique(words, return_inverse=True)
    return Dataset(
        name=f"features:{path.name}",
        look="features",
        labels=labels.astype(np.int64),
        class_names=tuple(str(name) for name in classes.tolist()),
        ids=_ids(labels, [str(name) for name in classes.tolist()]),
        items=Features(vectors),
    )


def check_vectors(z: NDArray[Any], called: str) -> None:
    """Raise `BadInput`, with the file as it is `called`, unless `z` is real numbers of shape (N, D)."""
    if z.ndim != 2 or z.shape[1] == 0 or not np.issubdtype(z.dtype, np.number) or np.issubdtype(z.dtype, np.complexfloating):
        raise BadInput(f"{called}: z is {z.dtype} of shape {z.shape}; it must be real numbers of shape (N, D)")


def read_labels(y: NDArray[Any], rows: int, called: str) -> NDArray[Any]:
    """Integers or words, bytes read as the words they spell; `BadInput` unless there is one for each of the rows of z."""
    if y.shape != (rows,):
        raise BadInput(f"{called}: y has shape {y.shape}; z has {rows} rows, so y must have shape ({rows},)")
    if y.dtype.kind not in "iuSU":
        raise BadInput(f"{called}: y is {y.dtype}; labels are integers or strings")
    try:
        words: NDArray[Any] = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
        if words.dtype.kind == "U":
            np.char.encode(words, "utf-8")
    except UnicodeError:
        raise BadInput(f"{called}: a label of y is not UTF-8; save labels as text or integers") from None
    return words


def _ids(labels: Labels, class_names: list[str]) -> list[str]:
    """Class and number in it: a name that rows of other classes cannot change."""
    seen = [0] * len(class_names)
    ids = []
    for label in labels.tolist():
        ids.append(f"{class_names[label]}/{seen[label]}")
        seen[label] += 1
    return ids


def read_arrays(path: Path, called: str, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz by name, nothing unpickled; `BadInput` names the file as it is `called`."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            missing = [name for name in needed if name not in archive]
            if missing:
                has = ", ".join(archive.files) or "nothing"
                raise BadInput(f"{called} has no array {missing[0]!r} (it has {has}); save it with np.savez(path, z=..., y=...)")
            arrays = {name: archive[name] for name in (*needed, *optional) if name in archive}
            strange = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
            if strange:
                raise ValueError(f"{strange[0]} is not an array")
            return arrays
    except BadInput:
        raise
    except Exception as error:  # a spoilt archive can fail anywhere in zip, zlib or numpy
        if "Object arrays" in str(error):
            raise BadInput(f"{called} holds Python objects; save labels as text or integers, such as y.astype(str)") from None
        raise BadInput(f"{called} cannot be read as an .npz of plain arrays: {error}") from None
