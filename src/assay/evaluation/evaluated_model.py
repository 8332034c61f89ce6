"""A model to evaluate, with the fold and the classes that it was trained on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.data.dataset import Half, Labels, Samples
from assay.data.seal import SealedTest
from assay.data.splits import TrainVal, folds
from assay.devices import choose_device, torch_threads
from assay.embedder import Embedder, check_kind, load
from assay.embedding import batch_of, embed_samples, normalise_for, read_and_embed
from assay.errors import BadInput
from assay.evaluation.look import Looker
from assay.features import FrozenTrunk, embed_features
from assay.files import read_bytes
from assay.hashing import digest_bytes
from assay.model import Architecture, Model
from assay.progress import Progress
from assay.protocols import FirstStep, SampleKind, Similarity, kind_of
from assay.records.run import CARD, TRAINED_ON
from assay.run import single_vectors
from assay.run.finished import FinishedRun
from assay.trunks import find


def samples_of_final(folder: Path | None, card: Mapping[str, Any]) -> frozenset[str]:
    """Return the content hashes of a model of all classes, none for any other model.

    Raise `BadInput` where their file is not the one that was written with the card.
    """
    final = card.get("final")
    if folder is None or final is None:
        return frozenset()
    path = folder / TRAINED_ON
    try:
        content = read_bytes(path)
        if digest_bytes(content) == final["samples"]:
            return frozenset(content.decode("ascii").split())
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise BadInput(
        f"{path} is not the list of samples that the model was trained on: it was removed or"
        " altered; restore it from a copy, or train the model again"
    )


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


def validation_rows(trainval: TrainVal, count: int) -> dict[str, Labels]:
    """Return the rows of trainval that each of `count` folds validates, by the fold's name."""
    return {f"fold {number}": fold.validation for number, fold in enumerate(folds(trainval, count))}


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
        threads: torch threads to compute with; of a run its own.
        dim: number of leading dimensions that are the embedding; None: all.
        classes: names of the classes that it was trained on; None: they are not known.
        similarity: how its embeddings are compared.
        folder: its model folder, if any.
        run: the run that it is of, where it was given as a run.
        weights: hash of the weights that its trunk started from; None: not known.
        images: fingerprint of the half of images whose features it was trained on, if any.
        samples: hashes of the content of all samples that it was trained on, where it was trained
            on all classes.
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
    weights: str | None = None
    images: str | None = None
    samples: frozenset[str] = frozenset()

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
            classes=None if classes is None else frozenset(classes),
            similarity=model.similarity,
            folder=model.folder,
            weights=card.get("weights"),
            images=card.get("images"),
            samples=samples_of_final(model.folder, card),
        )

    @classmethod
    def of_trunk(cls, name: str) -> "EvaluatedModel":
        """Return the pretrained trunk of this name, for samples of any number of channels."""
        card = load(name).card  # raises before any data are read
        return cls(
            called=name,
            build=lambda inputs: load(name, inputs=inputs).model,
            takes=find(name).takes,
            inputs=None,
            classes=frozenset(),
            weights=card["weights"],
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
            weights=protocol.weights,
        )

    @cached_property
    def recorded_run(self) -> FinishedRun | None:
        """The run on whose study's record a look at its test half goes; None: no study's.

        `BadInput` where the model does not have that run's weights.
        """
        if self.run is not None or self.folder is None:
            return self.run
        return FinishedRun.of_model(self.folder, self.build(0))

    def looker(self, half: Half) -> Looker:
        """Return what looks at samples where this model is evaluated on a half."""
        by = f"assay evaluate {self.called}"
        if self.run is not None:
            return Looker(by, None, self.run.store, self.run.key)
        if self.folder is None:
            return Looker(by)
        looker = Looker.of_folder(by, self.folder, lambda: self.recorded_run)
        if self.images is None or self._takes_features(half):
            return looker
        return replace(looker, images=self.images, features=self.trainval or "")

    def was_trained_on(self, trainval: TrainVal) -> bool:
        """Return whether the model was trained on exactly this half, or on features of it.

        It may still have seen some of another half, see `classes_seen`.
        """
        return trainval.fingerprint in (self.trainval, self.images or self.trainval)

    def check_unseen(self, trainval: TrainVal, sealed: SealedTest, data: str, test: bool) -> None:
        """Raise `BadInput` where a model of all classes was trained on some of the samples."""
        if not self.samples:
            return
        half = f"the {'test' if test else 'trainval'} half of {data}"
        if test:
            seen, count = sealed.count_in(self.samples), sealed.summary.samples
        else:
            contents = trainval.contents()
            seen, count = sum(hash_ in self.samples for hash_ in contents), len(contents)
        if self.was_trained_on(trainval):  # of the images, where it was trained on their features
            seen = count
        if seen:
            raise BadInput(
                f"{self.called} was trained on all classes, on {seen} of the {count} samples of"
                f" {half} too: a score there would say nothing of unseen classes. The scores that"
                f" the study gives such models are in its {CARD}; give other data"
            )

    def classes_seen(self, half: Half) -> int | None:
        """Return how many class names of a half the model was trained on; None: not known."""
        return None if self.classes is None else len(self.classes.intersection(half.class_names))

    def check_input(self, half: Half) -> None:
        """Raise `BadInput` where the model cannot take the samples."""
        if self._takes_features(half):
            return
        inputs = half.inputs if self.inputs is None else self.inputs
        check_kind(self.called, self.takes, inputs, kind_of(half.modality), half.inputs)

    def _takes_features(self, half: Half) -> bool:
        """Return whether the samples are features of the trunk that was joined to the head."""
        origin = half.origin
        if self.images is None or origin is None or origin.weights != self.weights:
            return False
        own = self.build(0).architecture
        bare = Architecture.of_features(origin)
        return own.with_head_of(bare) == bare

    def validation(self, trainval: TrainVal, count: int) -> dict[str, Labels]:
        """Return the rows of the folds of trainval that the model was not trained on, by name.

        Of the half that it was trained on, that is the fold that was held out; of other data, all
        of `count` folds.
        """
        own = self.was_trained_on(trainval)
        rows = validation_rows(trainval, (own and self.folds) or count)
        if not own or self.fold is None:
            return rows
        held_out = f"fold {self.fold}"
        return {held_out: rows[held_out]}

    def parts(
        self, half: Half, chosen: Mapping[str, Labels], progress: Progress
    ) -> Iterator[EmbeddedPart]:
        """Yield the chosen rows of a half by their names, embedded as they are compared."""
        embed, ids = self._embedding(half, progress), half.ids
        for name, rows in chosen.items():
            z = embed(name, rows)
            yield EmbeddedPart(
                name,
                z if self.run is None else single_vectors(z, self.dim or 0, self.similarity),
                np.array(half.class_names)[half.y[rows]],
                [ids[row] for row in rows.tolist()],
                *(None if mark is None else mark[rows] for mark in (half.query, half.gallery)),
            )

    def _embedding(self, half: Half, progress: Progress) -> Callable[[str, Labels], Tensor]:
        """Return what embeds the rows of a part of a half, by the part's name.

        The model is built, and its trunk hashed, once for all parts. A model of a run computes as
        the run itself did: in its batches, with its threads, and where the trunk is frozen, on its
        features. Any other computes as `assay embed` does.
        """
        device = torch.device(choose_device("auto"))
        model = self.build(half.inputs).to(device)
        size, step = model.architecture.size, model.architecture.first_step

        def embed_vectors(name: str, rows: Labels) -> Tensor:
            x = np.asarray(half.some(rows, step), dtype=np.float32)
            return embed_features(model, x, device, self.threads)

        def embed_images(name: str, rows: Labels) -> Tensor:
            def read(numbers: Labels, step: FirstStep) -> Samples:
                return half.some(rows[numbers], step)

            stage, whole = f"{name}, embedding", model.architecture
            z = read_and_embed(model, read, len(rows), whole, device, progress, stage)
            return normalise_for(z, self.similarity)

        def embed_as_run(name: str, rows: Labels) -> Tensor:
            many, parts = batch_of(size), []
            with torch_threads(self.threads):
                for start in range(0, len(rows), many):
                    samples = half.some(rows[start : start + many], step)
                    parts.append(embed_samples(model, samples, size, device, self.similarity))
                    progress(f"{name}, embedding", min(start + many, len(rows)), len(rows))
            return torch.cat(parts)

        if self._takes_features(half):
            return embed_vectors
        trunk = FrozenTrunk.of(model, self.weights, device.type)
        if trunk is not None:
            x = trunk.features(half, progress)
            return lambda name, rows: embed_features(model, x[rows], device, self.threads)
        return embed_images if self.run is None else embed_as_run
