"""Calibration of a model, or of an index, on classes that its model was not trained on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data import Dataset, load, splits
from assay.embedder import Embedder
from assay.embedder import load as load_model
from assay.errors import BadInput
from assay.evaluation import EvaluatedModel, looking
from assay.evaluation.look import LookedAt
from assay.index.calibration.calibration import (
    AskedGallery,
    Calibrated,
    Calibration,
)
from assay.index.calibration.fit import calibrate, without_copies
from assay.index.encoder import print_of
from assay.index.manifest import CALIBRATION, MODELS, is_index, read_manifest
from assay.index.scoring import prepare
from assay.progress import Progress, silent
from assay.protocols import Protocol, Similarity, protocols
from assay.records.benches import AS_IS
from assay.records.halves import prints_of

OTHER = (
    "; give data with --data whose classes the model was not trained on, or a model of `assay"
    " train`, which holds out a fold"
)
"""End of a message about data that a model may not be calibrated on."""


@dataclass(frozen=True)
class ModelToCalibrate:
    """A model, or an index, that can be calibrated.

    Args:
        name: how it was given.
        embedder: the model.
        similarity: how its vectors are compared.
        stored: numbers of a stored vector: float32, float16 or bits.
        folder: where the calibration goes; None: it is a pretrained trunk, which has no folder.
        is_index: whether it is an index.
    """

    name: str
    embedder: Embedder
    similarity: Similarity
    stored: str
    folder: Path | None
    is_index: bool

    @classmethod
    def of(cls, what: str | Path, device: str = "auto") -> "ModelToCalibrate":
        """Return the index or the model folder at this path, or the trunk of this name."""
        path = Path(what)
        if is_index(path):
            found = read_manifest(path)
            model = load_model(path / MODELS / found.model.print, device)
            return cls(str(what), model, found.similarity, found.precision, path, True)
        model = load_model(what, device)
        stored = "bits" if model.similarity == "hamming" else "float32"
        return cls(str(what), model, model.similarity, stored, model.folder, False)

    @property
    def evaluated(self) -> EvaluatedModel:
        """The model with what is known of the classes that it was trained on."""
        found = EvaluatedModel.of(self.embedder)
        card = self.embedder.card
        if card.get("method") == AS_IS:  # handed over by a study, and nothing of it was trained
            return replace(found, classes=frozenset(), trainval=None)
        untrained = "trunk" in card and "method" not in card
        return replace(found, classes=frozenset()) if untrained else found

    def as_stored(self, z: Any) -> NDArray[Any]:
        """Return embeddings as they are stored."""
        return prepare(z, self.similarity, np.float16 if self.stored == "float16" else np.float32)


@dataclass(frozen=True)
class Validation:
    """Samples of classes that a model was not trained on.

    Args:
        z: their embeddings, as they are stored.
        y: names of their classes.
        contents: hashes of their content.
        data: name of the data set.
        split: the part of it, in words.
        notes: sentences that a reader should know, such as where a look at a test half is recorded.
    """

    z: NDArray[Any]
    y: NDArray[Any]
    contents: tuple[str, ...]
    data: str
    split: str
    notes: tuple[str, ...] = ()

    def without_copies(self) -> "Validation":
        """Return the samples that are no copies of others."""
        kept = without_copies(self.y, self.contents)
        contents = tuple(self.contents[row] for row in kept.tolist())
        return replace(self, z=self.z[kept], y=self.y[kept], contents=contents)


def validation_of(
    model: ModelToCalibrate,
    data: str | Dataset,
    *,
    protocol: str | Protocol = "quick",
    progress: Progress = silent,
) -> Validation:
    """Embed the samples of a data set that may calibrate a model; the test half is not touched.

    They are those of the fold that the model held out, where it was trained on these data, else of
    all folds of the trainval half. Raise `BadInput` where the model was trained on their classes,
    or nobody knows.
    """
    dataset, name = (data, data.name) if isinstance(data, Dataset) else (load(data, progress), data)
    chosen = protocols[protocol] if isinstance(protocol, str) else protocol
    trainval, sealed = splits.of(dataset, chosen)
    evaluated = model.evaluated
    evaluated.check_input(trainval)
    evaluated.check_unseen(trainval, sealed, name, test=False)
    own = evaluated.was_trained_on(trainval)
    if own and evaluated.fold is None:
        raise BadInput(
            f"{model.name} was trained on all classes of {name}, and held out none{OTHER}"
        )
    rows = evaluated.validation(trainval, chosen.folds)
    every = np.concatenate([*rows.values()])
    classes = np.array(trainval.class_names)[trainval.y]
    _check_classes(model.name, evaluated, name, {str(one) for one in classes[every]})
    contents = trainval.contents(every)
    at = LookedAt(dataset.name, prints_of(contents), trainval.fingerprint)
    with looking(evaluated.looker(trainval), at) as look:
        parts = list(evaluated.parts(trainval, rows, progress))
        notes = look.record({}, model.similarity, len(every))
    return Validation(
        model.as_stored(np.concatenate([np.asarray(part.z) for part in parts])),
        classes[every],
        tuple(contents),
        name,
        f"{next(iter(rows))} of {evaluated.folds}, which the model held out"
        if own
        else "the trainval half, which the model was not trained on",
        tuple(notes),
    )


def _check_classes(called: str, evaluated: EvaluatedModel, data: str, classes: set[str]) -> None:
    """Raise `BadInput` where the model was trained on some of the classes, or nobody knows."""
    if evaluated.classes is None:
        raise BadInput(
            f"it is not known which classes {called} was trained on, so none is known to be new to"
            f" it{OTHER}"
        )
    seen = sorted(evaluated.classes & classes)
    if seen:
        raise BadInput(
            f"{called} was trained on {len(seen)} of the {len(classes)} classes of {data}, such as"
            f" {seen[0]!r}: their matches are better than those of new classes{OTHER}"
        )


def calibrate_model(
    model: ModelToCalibrate,
    validation: Validation,
    asked: AskedGallery | None = None,
    progress: Progress = silent,
) -> Calibration:
    """Calibrate a model, or an index, and write `calibration.json` into its folder.

    `asked` is what the user said of the gallery, which a search then goes by.
    """
    of = Calibrated(
        print_of(model.embedder), model.similarity, model.stored, validation.data, validation.split
    )
    found = calibrate(
        validation.z, validation.y, of, contents=validation.contents, progress=progress
    )
    found = replace(found, asked=asked)
    if model.folder is not None:
        found.write(model.folder / CALIBRATION)
    return found
