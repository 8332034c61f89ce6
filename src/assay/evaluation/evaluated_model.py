"""A model to evaluate, with the fold and the classes that it was trained on."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.data.dataset import Half, Labels
from assay.data.splits import TrainVal, folds
from assay.devices import choose_device, torch_threads
from assay.embedding import (
    Embedder,
    batch_of,
    check_kind,
    embed_samples,
    load,
)
from assay.model import Model
from assay.progress import Progress
from assay.protocols import SampleKind, Similarity, kind_of
from assay.records.run import CARD
from assay.run import single_vectors
from assay.run.finished import FinishedRun
from assay.trunks import find


@dataclass(frozen=True)
class EmbeddedPart:
    """Embeddings that are searched among themselves.

    Args:
        name: name of the part: `all`, `fold 0`, `test`.
        z: embeddings.
        y: labels.
        ids: names of the rows; their numbers if None.
        queries: mask of the rows that are looked up; all if None.
        gallery: mask of the rows that they are looked up in; all if None.
    """

    name: str
    z: Any
    y: Any
    ids: Sequence[Any] | None = None
    queries: Any = None
    gallery: Any = None


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that embeds samples of a data set: of a run, a model folder, or a pretrained trunk.

    Args:
        called: the name that it was given by.
        build: makes the model for images of so many channels, or vectors of such a width.
        takes: kind of samples that its trunk takes.
        inputs: channels or width that it was made for; None: any that its trunk takes.
        trainval: fingerprint of the half that it was trained on, if any.
        fold: the fold of that half that was held out; None: it was trained on none of it.
        folds: number of folds that the half was split into.
        threads: torch threads to compute with.
        dim: number of leading dimensions that are the embedding; None: all.
        classes: names of the classes that it was trained on; None: they are not known.
        similarity: how its embeddings are compared.
        folder: its model folder, if any.
        run: the run that it is of, where it was given as a run.
    """

    called: str
    build: Callable[[int], Model]
    takes: SampleKind
    inputs: int | None
    trainval: str | None = None
    fold: int | None = None
    folds: int | None = None
    threads: int = 1
    dim: int | None = None
    classes: frozenset[str] | None = None
    similarity: Similarity = "cosine"
    folder: Path | None = None
    run: FinishedRun | None = None

    @classmethod
    def of(cls, model: str | Path | Embedder) -> "EvaluatedModel":
        """Return the model of a finished run, of a model folder, or the trunk of this name."""
        if not isinstance(model, Embedder):
            path = Path(model)
            if path.exists() and not (path / CARD).exists():
                return cls.of_run(FinishedRun.at(path))
            if not path.exists():
                return cls.of_trunk(str(model))
            model = load(path)
        architecture, card = model.model.architecture, model.card
        trained = model.folder is not None
        classes = card.get("classes", None if trained else ())
        return cls(
            called=str(model.folder or card["trunk"]),
            build=lambda inputs: model.model,
            takes=find(architecture.trunk).takes,
            inputs=architecture.inputs,
            trainval=card.get("trainval"),
            fold=card.get("fold"),
            folds=card.get("folds"),
            threads=len(os.sched_getaffinity(0)),
            classes=None if classes is None else frozenset(classes),
            similarity=model.similarity,
            folder=model.folder,
        )

    @classmethod
    def of_trunk(cls, name: str) -> "EvaluatedModel":
        """Return the pretrained trunk of this name, for samples of any number of channels."""
        load(name)  # raises before any data are read
        return cls(
            called=name,
            build=lambda inputs: load(name, inputs=inputs).model,
            takes=find(name).takes,
            inputs=None,
            threads=len(os.sched_getaffinity(0)),
            classes=frozenset(),
        )

    @classmethod
    def of_run(cls, run: FinishedRun) -> "EvaluatedModel":
        """Return the model of a run, with the number of threads that the run computed with."""
        protocol = run.protocol
        frozen = protocol.frozen == "trunk"
        return cls(
            called=str(run.folder),
            build=run.model,
            takes=find(protocol.trunk).takes,
            inputs=None if frozen else run.trained.architecture.inputs,
            trainval=run.run.trainval,
            fold=run.run.fold,
            folds=run.folds,
            threads=run.run.environment.threads,
            dim=protocol.dim or None,
            similarity=protocol.similarity,
            run=run,
        )

    def recorded_run(self) -> FinishedRun | None:
        """Return the run on whose study's record a look at the test half goes; None: no study's."""
        if self.run is not None or self.folder is None:
            return self.run
        return FinishedRun.of_model(self.folder, self.build(0))

    def was_trained_on(self, trainval: TrainVal) -> bool:
        """Return whether the model was trained on exactly this half.

        It may still have seen some of another half, see `classes_seen`.
        """
        return self.trainval == trainval.fingerprint

    def classes_seen(self, half: Half) -> int | None:
        """Return how many class names of a half the model was trained on; None: not known."""
        return None if self.classes is None else len(self.classes.intersection(half.class_names))

    def check_input(self, half: Half) -> None:
        """Raise `BadInput` where the model cannot take the samples."""
        inputs = half.inputs if self.inputs is None else self.inputs
        check_kind(self.called, self.takes, inputs, kind_of(half.modality), half.inputs)

    def validation(
        self, trainval: TrainVal, count: int, progress: Progress
    ) -> Iterator[EmbeddedPart]:
        """Yield the folds of trainval that the model was not trained on.

        Of the half that it was trained on, that is the fold that was held out; of other data, all
        of `count` folds.
        """
        own = self.was_trained_on(trainval)
        held_out = self.fold if own else None
        for number, fold in enumerate(folds(trainval, (own and self.folds) or count)):
            if held_out in (None, number):
                yield self.part(f"fold {number}", trainval, fold.validation, progress)

    def part(self, name: str, half: Half, rows: Labels, progress: Progress) -> EmbeddedPart:
        """Return these samples of a half, embedded."""
        ids = half.ids
        return EmbeddedPart(
            name,
            self._embed(name, half, rows, progress),
            np.array(half.class_names)[half.y[rows]],
            [ids[row] for row in rows.tolist()],
            *(None if mark is None else mark[rows] for mark in (half.query, half.gallery)),
        )

    def _embed(self, name: str, half: Half, rows: Labels, progress: Progress) -> Tensor:
        """Return the embeddings as they are compared.

        A model of a run computes as the run itself did: in its batches, with its threads.
        """
        device = torch.device(choose_device("auto"))
        model = self.build(half.inputs).to(device)
        size, step = model.architecture.size, model.architecture.first_step
        many, parts = batch_of(size), []
        with torch_threads(self.threads):
            for start in range(0, len(rows), many):
                samples = half.some(rows[start : start + many], step)
                parts.append(embed_samples(model, samples, size, device, self.similarity))
                progress(f"{name}, embedding", min(start + many, len(rows)), len(rows))
        return single_vectors(torch.cat(parts), self.dim or 0, self.similarity)
