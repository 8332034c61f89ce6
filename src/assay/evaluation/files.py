"""Files of embeddings, as they are or by the parts of a data set; heavy imports, so commands import
it inside.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from assay.data import Dataset, splits
from assay.data.arrays import check_vectors, read_arrays, read_labels
from assay.data.dataset import Half, Labels
from assay.data.seal import Reason
from assay.errors import BadInput
from assay.evaluation.model import EmbeddedPart
from assay.neighbours import Vectors
from assay.protocols import Protocol

OPTIONAL = {
    "query": ("b", "booleans"),
    "gallery": ("b", "booleans"),
    "ids": ("iuU", "integers or strings"),
}
"""Arrays that an .npz may hold beside z and y: the kinds that numpy calls what they are made of,
and what people do.
"""

Array = NDArray[Any]


@dataclass(frozen=True)
class Embeddings:
    """The arrays of a file, checked against one another.

    Args:
        path: of the file.
        z: embeddings (N, D); of an .npy, memory-mapped.
        y: labels (N,), where the file has them and they are wanted.
        roles: boolean masks (N,) by name: `query`, `gallery`, those that there are.
        ids: names of the rows (N,), if any.
    """

    path: Path
    z: Array
    y: Array | None
    roles: dict[str, Array]
    ids: Array | None

    def whole(self) -> EmbeddedPart:
        """All rows, with the file's own labels."""
        assert self.y is not None
        return self._part("all", np.arange(len(self.z)), self.y, self.ids, self.roles)

    def parts(
        self, dataset: Dataset, called: str, protocol: Protocol, which: Literal["fold", "test"]
    ) -> Iterator[EmbeddedPart]:
        """The validation part of each fold, or the test half, with the labels, ids and, for the
        test, roles of the data.
        """
        if len(self.z) != len(dataset):
            raise BadInput(
                f"{self.path} has {len(self.z)} rows, {called} has {len(dataset)} samples;"
                f" row i must be sample i, in the order in which `assay data splits {called}` lists"
                " them"
            )
        trainval, sealed = splits.of(dataset, protocol)
        if which == "test":
            half: Half = sealed.look(Reason.FOREIGN_LOOK)
            chosen = {"test": np.arange(len(half.y))}
        else:
            half, folds = trainval, splits.folds(trainval, protocol.folds)
            chosen = {f"fold {number}": fold.validation for number, fold in enumerate(folds)}
        labels, ids = np.array(half.class_names)[half.y], np.array(half.ids)
        marks = {"query": half.query, "gallery": half.gallery}
        for name, rows in chosen.items():
            roles = {role: mask[rows] for role, mask in marks.items() if mask is not None}
            yield self._part(name, half.places[rows], labels[rows], ids[rows], roles)

    def _part(
        self, name: str, rows: Labels, y: Array, ids: Array | None, roles: Mapping[str, Array]
    ) -> EmbeddedPart:
        """Return these rows of the file, with labels, ids and roles of each."""
        used = roles["query"] | roles["gallery"] if len(roles) == 2 else slice(None)
        self._check_finite(rows[used])
        named = None if ids is None else ids.tolist()
        return EmbeddedPart(
            name, self.z[_as_slice(rows)], y, named, roles.get("query"), roles.get("gallery")
        )

    def _check_finite(self, rows: Labels) -> None:
        """Name a row by its number in the file, which what comes later does not know."""
        bad = Vectors(self.z, chosen=torch.from_numpy(rows)).not_finite()
        if bad:
            others = (
                f" (and {len(bad) - 1} other row{'s' * (len(bad) > 2)})" if len(bad) > 1 else ""
            )
            raise BadInput(
                f"{self.path}: row {bad[0]} of z{others} is NaN or infinite; remove or fix it"
            )


def read_embeddings(path: Path, labels: Path | None, *, needs_labels: bool) -> Embeddings:
    """The embeddings of an .npz, or of an .npy with its labels in another one; nothing is
    unpickled.
    """
    called = str(path)
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path, called, ["z", "y"] if needs_labels else ["z"], list(OPTIONAL))
    else:
        arrays = {"z": _load(path, "r")} | ({} if labels is None else {"y": _load(labels, None)})
    check_vectors(arrays["z"], called)
    rows = len(arrays["z"])
    for name in [name for name in OPTIONAL if name in arrays]:
        (kinds, wanted), found = OPTIONAL[name], arrays[name]
        if found.dtype.kind not in kinds or found.shape != (rows,):
            raise BadInput(
                f"{path}: {name} is {found.dtype} of shape {found.shape}; it must be {wanted} of"
                f" shape ({rows},)"
            )
    return Embeddings(
        path=path,
        z=arrays["z"],
        y=read_labels(arrays["y"], rows, str(labels or path)) if "y" in arrays else None,
        roles={role: arrays[role] for role in ("query", "gallery") if role in arrays},
        ids=arrays.get("ids"),
    )


def _load(path: Path, mapped: Literal["r"] | None) -> Array:
    """The array of an .npy; `mapped` is numpy's memory-map mode."""
    try:
        array = np.load(path, mmap_mode=mapped, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive; call it .npz")
    except Exception as error:  # a spoilt file can fail anywhere in numpy
        raise BadInput(f"{path} cannot be read as an .npy of a plain array: {error}") from None
    return array


def _as_slice(rows: Labels) -> slice | Labels:
    """A slice where the rows are neighbours: it leaves a memory-mapped file where it is."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
