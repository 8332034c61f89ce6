"""`features:F.npz`: vectors of a foundation model or of any other source."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import check_vectors, decode_labels, decode_words, read_arrays
from assay.data.dataset import Dataset, Labels, Marks, Vectors, datasets
from assay.data.origin import FeaturesOrigin
from assay.errors import BadInput
from assay.files import parse_json
from assay.hashing import digest_bytes
from assay.progress import Progress, silent
from assay.protocols import FirstStep

LARGEST_VALUE = 1e15
"""Above it the squares of a vector's entries may no longer add up in single precision."""

LARGEST_SIDE = 4096
"""Largest side of the images that the trunk behind a file of features may have taken."""

FURTHER_ARRAYS = (
    "classes", "ids", "trainval", "query", "gallery", "pretrained_on", "origin", "trained_on",
)  # fmt: skip


class Features:
    """Rows of one array in memory."""

    def __init__(self, z: Vectors) -> None:
        self.z = z
        self.inputs = z.shape[1]

    def arrays(self, indices: Labels, step: FirstStep) -> Vectors:
        """Return these rows; the step is for images."""
        return self.z[indices]

    def traces(self) -> Vectors:
        """Return the rows themselves."""
        return self.z

    def digest(self, index: int) -> str:
        """Return the hash of the row's bytes."""
        return self._digests[index]

    @cached_property
    def _digests(self) -> list[str]:
        return digests_of_rows(self.z)

    def problem(self, index: int) -> str | None:
        """Return None: rows that cannot be used are refused on loading."""
        return None


@datasets("features:")
def load_features(path: Path, progress: Progress = silent) -> Dataset:
    """An .npz with `z` (N, D) numbers and `y` (N,) labels, integers or strings; classes in sorted
    order.

    It may also hold `classes`, their names in class order (`y` is then numbers into it); `ids`, a
    name of each row; `trainval`, the number of classes of the official trainval half; `query` and
    `gallery`, marks of the rows that are looked up at the test, and of those they are looked up in;
    `pretrained_on`, in words the data that the model behind the vectors was trained on; and two
    that `assay embed` writes: `origin`, the trunk that made them, and `trained_on`, marks of the
    rows whose samples the model was trained on.
    """
    called = f"features:{path}"
    arrays = read_arrays(path, called, ["z", "y"], FURTHER_ARRAYS)
    check_vectors(arrays["z"], called)
    vectors = check_finite(arrays["z"], called)
    words = decode_labels(arrays["y"], len(vectors), called)
    labels, class_names = _numbered(words, arrays.get("classes"), called)
    return Dataset(
        name=f"features:{path.name}",
        modality="features",
        labels=labels,
        class_names=class_names,
        ids=_ids(arrays.get("ids"), labels, class_names, called),
        items=Features(vectors),
        trainval=_trainval(arrays.get("trainval"), len(class_names), called),
        query=_marks("query", arrays.get("query"), len(labels), called),
        gallery=_marks("gallery", arrays.get("gallery"), len(labels), called),
        pretrained_on=str(arrays["pretrained_on"]) if "pretrained_on" in arrays else None,
        origin=_origin(arrays["origin"], vectors, called) if "origin" in arrays else None,
        trained_on=_marks("trained_on", arrays.get("trained_on"), len(labels), called),
    )


def _origin(given: NDArray[Any], vectors: Vectors, called: str) -> FeaturesOrigin:
    """Return the trunk that made the vectors; `BadInput` where they were changed since."""
    leave_out = f"save {called} without the array origin, or write it again with `assay embed`"
    try:
        origin = FeaturesOrigin.from_json(parse_json(str(given).encode()), "origin")
    except (ValueError, BadInput) as error:
        raise BadInput(f"{called}: origin cannot be read ({error}); {leave_out}") from None
    usable = origin.inputs in (1, 3) and 0 < origin.size <= origin.stored <= LARGEST_SIDE
    if not usable:
        raise BadInput(
            f"{called}: origin says images of {origin.inputs} channels, scaled to {origin.stored}"
            f" and cut to {origin.size} pixels, which no trunk takes; {leave_out}"
        )
    if origin.vectors != digest_bytes(vectors.tobytes()):
        raise BadInput(
            f"{called}: z was changed since {origin.trunk} made it, so heads trained on it would"
            f" not fit that trunk; {leave_out}"
        )
    return origin


def check_finite(z: NDArray[Any], called: str) -> Vectors:
    """Return rows of numbers in single precision; `BadInput` with the first that has one which is
    not finite, or too large.
    """
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        vectors = np.ascontiguousarray(z, dtype=np.float32)
    bad = np.flatnonzero(~(np.abs(vectors) < LARGEST_VALUE).all(axis=1))
    if len(bad):
        raise BadInput(
            f"{called}: row {bad[0]} of z has a value that is NaN, infinite"
            f" or above {LARGEST_VALUE:g}"
            f" ({len(bad)} such row{'s' * (len(bad) > 1)}); fix or remove it"
        )
    return vectors


def _numbered(
    words: NDArray[Any], classes: NDArray[Any] | None, called: str
) -> tuple[Labels, tuple[str, ...]]:
    """Return the class numbers of the rows and the class names: those given, else the labels in
    sorted order.
    """
    if classes is None:
        found, labels = np.unique(words, return_inverse=True)
        return labels.astype(np.int64), tuple(str(name) for name in found.tolist())
    names = _names("classes", classes, called)
    if words.dtype.kind not in "iu":
        raise BadInput(
            f"{called}: y holds words; beside the names in classes it must hold their numbers,"
            " from 0"
        )
    outside = np.flatnonzero((words < 0) | (words >= len(names)))
    if len(outside):
        raise BadInput(
            f"{called}: row {outside[0]} of y is {words[outside[0]]}; "
            f"with {len(names)} classes it is between 0 and {len(names) - 1}"
        )
    labels = words.astype(np.int64)
    empty = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)
    if len(empty):
        raise BadInput(
            f"{called}: no row of y is {empty[0]}, so the class {names[empty[0]]!r} has no sample"
            f" ({len(empty)} such classes); leave them out of classes and number y anew"
        )
    return labels, names


def _names(name: str, values: NDArray[Any], called: str) -> tuple[str, ...]:
    """Return words that are all different; `BadInput` where they are not."""
    if values.ndim != 1 or values.dtype.kind not in "SU":
        raise BadInput(
            f"{called}: {name} is {values.dtype} of shape {values.shape}; it must be strings, one"
            " after the other"
        )
    words = tuple(str(word) for word in decode_words(name, values, called).tolist())
    twice = [word for word, times in Counter(words).items() if times > 1]
    if twice:
        raise BadInput(f"{called}: {name} holds {twice[0]!r} twice; they must all be different")
    return words


def _trainval(number: NDArray[Any] | None, classes: int, called: str) -> int | None:
    if number is None:
        return None
    if number.size != 1 or number.dtype.kind not in "iu":
        raise BadInput(
            f"{called}: trainval is {number.dtype} of shape {number.shape}; it is one integer, a"
            " number of classes"
        )
    count = int(number.item())
    if not 0 < count < classes:
        raise BadInput(
            f"{called}: trainval is {count}; of {classes} classes it has at least 1 and at most"
            f" {classes - 1}"
        )
    return count


def _marks(name: str, values: NDArray[Any] | None, rows: int, called: str) -> Marks | None:
    if values is None:
        return None
    if values.shape != (rows,) or values.dtype != np.bool_:
        raise BadInput(
            f"{called}: {name} is {values.dtype} of shape {values.shape}; it must be bool of shape"
            f" ({rows},)"
        )
    return values


def _ids(
    given: NDArray[Any] | None, labels: Labels, class_names: Sequence[str], called: str
) -> list[str]:
    """Return the given names of the rows, else each row's class and its number in the class, which
    rows of other classes cannot change.
    """
    if given is not None:
        names, rows = _names("ids", given, called), len(labels)
        if len(names) != rows:
            raise BadInput(
                f"{called}: ids has {len(names)} names; z has {rows} rows, so ids must have {rows}"
            )
        return list(names)
    seen = [0] * len(class_names)
    ids = []
    for label in labels.tolist():
        ids.append(f"{class_names[label]}/{seen[label]}")
        seen[label] += 1
    return ids


def digests_of_rows(z: NDArray[Any]) -> list[str]:
    """Return the hash of each row as `features:` holds it, in single precision."""
    with np.errstate(over="ignore"):
        return [digest_bytes(np.asarray(row, dtype=np.float32).tobytes()) for row in z]


def label_arrays(dataset: Dataset) -> dict[str, Any]:
    """Return the arrays of a features file that say how `load_features` labels and splits it, and
    what the model behind the samples has seen.
    """
    arrays = {
        "y": dataset.labels,
        "classes": np.array(dataset.class_names),
        "ids": np.array(list(dataset.ids)),
        "query": dataset.query,
        "gallery": dataset.gallery,
        "trainval": None if dataset.trainval is None else np.array(dataset.trainval),
        "pretrained_on": dataset.pretrained_on,
        "trained_on": dataset.trained_on,
    }
    return {name: array for name, array in arrays.items() if array is not None}
