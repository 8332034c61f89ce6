"""A model with what it has seen: a finished run's, that of a model folder, or a pretrained trunk;
and data as it sees them.
"""

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
from assay.embedding import (
    as_compared,
    batch_of,
    check_kind,
    choose_device,
    embed_samples,
    load,
    torch_threads,
)
from assay.model import Model
from assay.progress import Progress
from assay.protocols import Kind, Similarity, kind_of
from assay.trunks import find


@dataclass(frozen=True)
class Part:
    """Embeddings that are searched among themselves.

    Args:
        name: of the part: `all`, `fold 0`, `test`.
        z: embeddings.
        y: their labels.
        ids: their names, row numbers if None.
        queries: mask of those that are looked up, all if None.
        gallery: mask of those that they are looked up in, all if None.
    """

    name: str
    z: Any
    y: Any
    ids: Sequence[Any] | None = None
    queries: Any = None
    gallery: Any = None


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that embeds samples of a data set.

    Args:
        called: how it was asked for.
        build: makes it for images of so many channels, or vectors of such a width.
        takes: what its trunk takes.
        inputs: channels or width that it was made for; None: images of any that its trunk takes.
        trainval: fingerprint of the half that it has seen, if any.
        fold: the fold of it that was held out; None: it was trained on none of it.
        folds: into how many that half was split.
        threads: torch threads to compute with.
        dim: the first so many dimensions are the embedding; None: all.
        classes: names of the classes that it was trained on; None: they are not known.
        similarity: how its embeddings are compared.
    """

    called: str
    build: Callable[[int], Model]
    takes: Kind
    inputs: int | None
    trainval: str | None = None
    fold: int | None = None
    folds: int | None = None
    threads: int = 1
    dim: int | None = None
    classes: frozenset[str] | None = None
    similarity: Similarity = "cosine"

    @classmethod
    def of(cls, name: str) -> "EvaluatedModel":
        """The model of a model folder, or the pretrained trunk of this name."""
        loaded = load(name)
        kind, card = find(loaded.model.architecture.trunk), loaded.card
        threads = len(os.sched_getaffinity(0))
        if not Path(name).is_dir():
            return cls(
                called=name,
                build=lambda inputs: load(name, inputs=inputs).model,
                takes=kind.takes,
                inputs=None,
                threads=threads,
                classes=frozenset(),
            )
        return cls(
            called=name,
            build=lambda inputs: loaded.model,
            takes=kind.takes,
            inputs=loaded.model.architecture.inputs,
            trainval=card.get("trainval"),
            fold=card.get("fold"),
            folds=card.get("folds"),
            threads=threads,
            classes=frozenset(card["classes"]) if "classes" in card else None,
            similarity=loaded.similarity,
        )

    def was_trained_on(self, trainval: TrainVal) -> bool:
        """Whether this is the very half that the model has seen; of another it may still have seen
        some, see `classes_seen`.
        """
        return self.trainval == trainval.fingerprint

    def classes_seen(self, half: Half) -> int | None:
        """How many classes of a half are called as classes that the model was trained on; None: it
        cannot be told.
        """
        return None if self.classes is None else len(self.classes.intersection(half.class_names))

    def check_input(self, half: Half) -> None:
        """Raise `BadInput` where the model cannot take the samples."""
        inputs = half.inputs if self.inputs is None else self.inputs
        check_kind(self.called, self.takes, inputs, kind_of(half.modality), half.inputs)

    def validation(self, trainval: TrainVal, count: int, progress: Progress) -> Iterator[Part]:
        """The folds of trainval that the model has not been trained on: all `count` of other data,
        one of its own.
        """
        own = self.was_trained_on(trainval)
        held_out = self.fold if own else None
        for number, fold in enumerate(folds(trainval, (own and self.folds) or count)):
            if held_out in (None, number):
                yield self.part(f"fold {number}", trainval, fold.validation, progress)

    def part(self, name: str, half: Half, rows: Labels, progress: Progress) -> Part:
        """These samples of a half, embedded."""
        ids = half.ids
        labels = np.array(half.class_names)[half.y[rows]]
        marks = [None if mark is None else mark[rows] for mark in (half.query, half.gallery)]
        return Part(
            name,
            self._embed(name, half, rows, progress),
            labels,
            [ids[row] for row in rows.tolist()],
            *marks,
        )

    def _embed(self, name: str, half: Half, rows: Labels, progress: Progress) -> Tensor:
        """Return embeddings as they are compared, of a run as the run itself made them: in its
        batches, with its threads.
        """
        device = torch.device(choose_device("auto"))
        model = self.build(half.inputs).to(device)
        size, step = model.architecture.size, model.architecture.first_step
        many, parts = batch_of(size), []
        with torch_threads(self.threads):
            for start in range(0, len(rows), many):
                parts.append(
                    embed_samples(
                        model,
                        half.some(rows[start : start + many], step),
                        size,
                        device,
                        self.similarity,
                    )
                )
                progress(f"{name}, embedding", min(start + many, len(rows)), len(rows))
        return as_compared(torch.cat(parts)[:, : self.dim], self.similarity)
