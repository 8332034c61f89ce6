"""Embeddings of samples: computed by a model, kept in a file, and cut into parts to be searched."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from assay.data import Dataset, datasets, splits
from assay.data import load as load_data
from assay.data.arrays import check_vectors, decode_labels, pack_arrays, read_arrays
from assay.data.dataset import Half, Labels
from assay.data.image_files import ImageFiles
from assay.data.images import endings
from assay.data.load import check_usable
from assay.data.seal import Reason, everything
from assay.data.sources.features import label_arrays
from assay.embedding import Embedder, Read, check_kind, load
from assay.errors import BadInput
from assay.evaluation.evaluated_model import EmbeddedPart
from assay.files import regular, write_atomically
from assay.neighbours import Vectors
from assay.progress import Progress, silent
from assay.protocols import Protocol, SampleKind, Similarity, kind_of
from assay.trunks import find

OPTIONAL_ARRAYS = {
    "query": ("b", "booleans"),
    "gallery": ("b", "booleans"),
    "ids": ("iuU", "integers or strings"),
}
"""Arrays that an .npz may hold beside z and y: numpy's letters for their kinds, and the kinds in
words.
"""

Array = NDArray[Any]


@dataclass(frozen=True)
class Embeddings:
    """Embeddings with what is known of their samples.

    Args:
        z: embeddings (N, D); an .npy is memory-mapped.
        y: labels (N,), if known.
        ids: names of the samples (N,), if known.
        query: mask (N,) of the samples that are looked up at the test; None: all.
        gallery: mask (N,) of the samples that queries are looked up in; None: all.
        classes: names of the classes that the numbers in `y` stand for, in class order.
        trainval: number of classes of the official trainval half, where the data have one.
        pretrained_on: the data that the model was pretrained on, if known.
        similarity: how the embeddings are compared.
        called: name of the embeddings in messages.
    """

    z: Array
    y: Array | None = None
    ids: Array | None = None
    query: Array | None = None
    gallery: Array | None = None
    classes: Array | None = None
    trainval: Array | None = None
    pretrained_on: str | None = None
    similarity: Similarity = "cosine"
    called: str = "the embeddings"

    def __len__(self) -> int:
        return len(self.z)

    def save(self, path: str | Path) -> None:
        """Write the arrays as an .npz, which `features:` and `assay evaluate` read."""
        names = "z", "y", "classes", "ids", "query", "gallery", "trainval", "pretrained_on"
        arrays = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        write_atomically(Path(path), pack_arrays(arrays))

    def whole(self) -> EmbeddedPart:
        """Return all rows as one part, with their own labels."""
        assert self.y is not None
        return self._part(
            "all", np.arange(len(self.z)), self.y, self.ids, [self.query, self.gallery]
        )

    def parts(
        self, dataset: Dataset, data: str, protocol: Protocol, which: Literal["fold", "test"]
    ) -> Iterator[EmbeddedPart]:
        """Yield the validation part of each fold, or the test half.

        Row i must be sample i of the data set, which `data` names. Labels, ids and, at the test,
        roles are those of the data.
        """
        if len(self.z) != len(dataset):
            raise BadInput(
                f"{self.called} has {len(self.z)} rows, {data} has {len(dataset)} samples; row i"
                f" must be sample i, in the order in which `assay data splits {data}` lists them"
            )
        trainval, sealed = splits.of(dataset, protocol)
        if which == "test":
            half: Half = sealed.hand_out(Reason.FOREIGN_LOOK)
            chosen = {"test": np.arange(len(half.y))}
        else:
            half, folds = trainval, splits.folds(trainval, protocol.folds)
            chosen = {f"fold {number}": fold.validation for number, fold in enumerate(folds)}
        labels, ids = np.array(half.class_names)[half.y], np.array(half.ids)
        for name, rows in chosen.items():
            roles = [None if mask is None else mask[rows] for mask in (half.query, half.gallery)]
            yield self._part(name, half.places[rows], labels[rows], ids[rows], roles)

    def _part(
        self,
        name: str,
        rows: Labels,
        y: Array,
        ids: Array | None,
        roles: Sequence[Array | None],
    ) -> EmbeddedPart:
        """Return these rows, with labels, ids, and masks of queries and gallery."""
        query, gallery = roles
        used = slice(None) if query is None or gallery is None else query | gallery
        self._check_finite(rows[used])
        named = None if ids is None else ids.tolist()
        return EmbeddedPart(name, self.z[_as_slice(rows)], y, named, query, gallery)

    def _check_finite(self, rows: Labels) -> None:
        """Raise `BadInput` with the number of a bad row in the file, which later checks lack."""
        bad = Vectors(self.z, chosen=torch.from_numpy(rows)).not_finite()
        if bad:
            others = (
                f" (and {len(bad) - 1} other row{'s' * (len(bad) > 2)})" if len(bad) > 1 else ""
            )
            raise BadInput(
                f"{self.called}: row {bad[0]} of z{others} is NaN or infinite; fix or remove it"
            )


def _as_slice(rows: Labels) -> slice | Labels:
    """Return a slice where the rows are neighbours: it leaves a memory-mapped file on the disk."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


# --- from a file ----------------------------------------------------------------------------------


def read_embeddings(path: Path, labels: Path | None, *, needs_labels: bool) -> Embeddings:
    """Read an .npz, or an .npy with its labels in another .npy; nothing is unpickled."""
    called = str(path)
    if path.suffix.lower() == ".npz":
        needed = ["z", "y"] if needs_labels else ["z"]
        arrays = read_arrays(path, called, needed, list(OPTIONAL_ARRAYS))
    else:
        arrays = {"z": _read_array(path, "r")}
        arrays |= {} if labels is None else {"y": _read_array(labels, None)}
    check_vectors(arrays["z"], called)
    rows = len(arrays["z"])
    for name, (kinds, wanted) in OPTIONAL_ARRAYS.items():
        found = arrays.get(name)
        if found is not None and (found.dtype.kind not in kinds or found.shape != (rows,)):
            raise BadInput(
                f"{path}: {name} is {found.dtype} of shape {found.shape}; it must be {wanted} of"
                f" shape ({rows},)"
            )
    if "y" in arrays:
        arrays["y"] = decode_labels(arrays["y"], rows, str(labels or path))
    return Embeddings(**arrays, called=called)  # type: ignore[arg-type]


def _read_array(path: Path, mapped: Literal["r"] | None) -> Array:
    """Read the array of an .npy; `mapped` is numpy's memory-map mode."""
    try:
        array = np.load(regular(path), mmap_mode=mapped, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive; call it .npz")
    except Exception as error:  # a corrupt file can fail anywhere in numpy
        raise BadInput(f"{path} cannot be read as an .npy of a plain array: {error}") from None
    return array


# --- by a model -----------------------------------------------------------------------------------


def embed(
    model: str | Path | Embedder,
    images: str | Path | Dataset | Sequence[Any] | Array,
    *,
    device: str = "auto",
    weights_file: str | Path | None = None,
    progress: Progress = silent,
) -> Embeddings:
    """Embed images, or a whole data set with its labels and official split.

    Args:
        model: a model folder, a pretrained trunk by its name (`lite0`, any name of timm's), or a
            model that `assay.load` has loaded.
        images: a folder of class folders, a folder of images, an image file, `kind:path` of
            `assay list datasets`, a `Dataset`, a list of image files or of pixels (height, width,
            3), or rows of features (N, width).
        device: auto, cpu or cuda.
        weights_file: weights of a trunk given by its name, instead of its own.
        progress: called with the stage, the steps done and their total.

    >>> import assay
    >>> found = assay.embed("lite0", [np.zeros((40, 40, 3), dtype=np.uint8)])
    >>> found.z.shape
    (1, 1280)
    """
    if isinstance(images, str | Path | Dataset):
        samples = _find_samples(images, progress)
        embedder = _load(model, device, samples.inputs, weights_file)
        architecture = embedder.model.architecture
        takes, inputs = find(architecture.trunk).takes, architecture.inputs
        check_kind(str(model), takes, inputs, samples.kind, samples.inputs)
        z, arrays = embedder.embed_read(samples.read, samples.count, progress), samples.arrays
    else:
        embedder = _load(model, device, 3, weights_file)
        named = all(isinstance(image, str | Path) for image in images)
        z, arrays = embedder.embed(images), {"ids": np.array([*map(str, images)])} if named else {}
    pretrained_on = embedder.card.get("pretrained_on") or None
    return Embeddings(z, **arrays, pretrained_on=pretrained_on, similarity=embedder.similarity)


def _load(
    model: str | Path | Embedder, device: str, inputs: int, weights_file: str | Path | None
) -> Embedder:
    if not isinstance(model, Embedder):
        return load(model, device, inputs=inputs, weights_file=weights_file)
    if weights_file is not None:
        raise BadInput(f"the model is loaded and has its weights; leave out {weights_file}")
    return model


@dataclass(frozen=True)
class _Samples:
    """Samples to embed: how they are read, and the arrays that go into the file beside z."""

    read: Read
    count: int
    kind: SampleKind
    inputs: int
    arrays: dict[str, Any]


def _find_samples(images: str | Path | Dataset, progress: Progress) -> _Samples:
    """Return the samples of a data set, of class folders, or of images without classes."""
    if isinstance(images, Dataset):
        half = everything(images)
        arrays = label_arrays(images)
        return _Samples(half.some, len(images), kind_of(half.modality), half.inputs, arrays)
    name, path = str(images), Path(images)
    kind, colon, _ = name.partition(":")
    if name in datasets or (colon and f"{kind}:" in datasets):
        return _find_samples(load_data(name, progress), progress)
    if not path.exists():
        raise BadInput(
            f"there is no {name}; give a folder or file of images, or kind:path of `assay list"
            " datasets`"
        )
    if path.is_file():
        files, root = [path], path.parent
    else:
        files, root = _images_in(path), path
        if any(_images_in(child) for child in path.iterdir() if child.is_dir()):
            return _find_samples(load_data(f"folder:{name}", progress), progress)
    if not files:
        raise BadInput(
            f"{name} holds no images that can be read ({', '.join(sorted(endings())[:8])}, ...)"
        )
    items = ImageFiles(files, root, progress=progress)
    check_usable(items, len(files))
    ids = np.array([file.relative_to(root).as_posix() for file in files])
    return _Samples(items.arrays, len(files), "images", items.inputs, {"ids": ids})


def _images_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in endings())
