"""Validation during training: which checkpoint is kept, and when training ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from assay.embedding import embed_samples
from assay.hashing import plain
from assay.metrics import Scores, evaluate
from assay.model import Architecture, count_numbers
from assay.protocols import ResolvedProtocol
from assay.records.lines import RunStatus
from assay.records.run import Checkpoint, ImageCounts
from assay.train.resume import SavedState
from assay.train.trainee import Trainee

NOTHING_FOUND: dict[str, float] = {
    "precision_at_1": 0.0,
    "r_precision": 0.0,
    "map_at_r": 0.0,
    "queries": 0,
    "skipped": 0,
}
"""Scores of a network whose embeddings are not finite."""


def is_out_of_patience(epoch: int, best_epoch: int, patience: int) -> bool:
    """Return whether training ends at the validation of this epoch, since none was better for long.

    >>> is_out_of_patience(epoch=13, best_epoch=3, patience=10)
    True
    """
    return epoch - best_epoch >= patience


@dataclass
class Fit:
    """The result of a training.

    Args:
        architecture: of the model.
        history: every validation.
        best: the validation with the highest MAP@R, the first of equals.
        weights: of the model at `best`.
        status: whether it ended by itself, or because a number was not finite.
        training: scores of the training samples, if the protocol asks for them.
        trained: numbers that the training steps change.
        images: images that went through the network.
    """

    architecture: Architecture
    history: list[Checkpoint]
    best: Checkpoint
    weights: dict[str, Tensor]
    status: RunStatus = "finished"
    training: dict[str, float] = field(default_factory=dict)
    trained: int = 0
    images: ImageCounts = field(default_factory=ImageCounts)


class Validator:
    """Validates a model during its training and keeps the checkpoint of the highest MAP@R.

    Epoch 0, before any training, counts as a checkpoint. A loss or an embedding that is not finite
    ends the training as `diverged`.

    Args:
        trainee: the model with its validation samples and callbacks.
        network: the model, or the model compiled.
        protocol: of the training.
        device: of the network.
        saved: state of a validator to go on from.
    """

    fit: Fit
    done: bool
    """Whether training has diverged or its patience has run out."""

    def __init__(
        self,
        trainee: Trainee,
        network: nn.Module,
        protocol: ResolvedProtocol,
        device: torch.device,
        saved: SavedState | None = None,
    ) -> None:
        self._trainee, self._network = trainee, network
        self._protocol, self._device = protocol, device
        self._losses: list[float] = []
        if saved is None:
            self._begin()
        else:
            self._resume(saved)

    def count(self, trained: int, refreshed: int) -> None:
        """Take note of the images of all steps so far, and of those embedded for the bank."""
        self.fit.images = replace(self.fit.images, trained=trained, refreshed=refreshed)

    def after(self, epoch: int, losses: list[float]) -> None:
        """Take note of an epoch that has ended; validate if it is time to."""
        if self.done:
            return
        self._losses += losses
        finite, protocol = math.isfinite(sum(self._losses)), self._protocol
        if finite and epoch % protocol.validate_every and epoch != protocol.epochs:
            self._trainee.on_epoch(epoch, sum(losses) / len(losses), None)
            return
        scores = self._validate() if finite else None
        if finite:
            validated = self.fit.images.validated + len(self._trainee.validation.y)
            self.fit.images = replace(self.fit.images, validated=validated)
        if scores is None:
            self.fit.status, self.done = "diverged", True
        else:
            self._record(Checkpoint(epoch, sum(self._losses) / len(self._losses), scores))

    def state(self) -> SavedState:
        """Return all that is needed to go on from the last validation."""
        values = {
            "history": plain(self.fit.history),
            "best": self.fit.history.index(self.fit.best),
            "status": self.fit.status,
            "done": self.done,
            "images": plain(self.fit.images),
        }
        return SavedState(self.fit.weights, values)

    def _begin(self) -> None:
        model, scores = self._trainee.model, self._validate()
        first = Checkpoint(0, None, scores or NOTHING_FOUND)
        status: RunStatus = "finished" if scores else "diverged"
        self.fit = Fit(model.architecture, [first], first, model.state(), status)
        self.fit.trained = self._trained_numbers()
        self.fit.images = ImageCounts(validated=len(self._trainee.validation.y))
        self.done = scores is None
        if self._trainee.on_validation:
            self._trainee.on_validation(0, self.fit.weights)

    def _resume(self, saved: SavedState) -> None:
        history = [Checkpoint(**entry) for entry in saved.values["history"]]
        self.fit = Fit(
            self._trainee.model.architecture,
            history,
            history[saved.values["best"]],
            dict(saved.tensors),
            saved.values["status"],
            trained=self._trained_numbers(),
            images=ImageCounts(**saved.values["images"]),
        )
        self.done = saved.values["done"]
        self._compile_again()

    def _trained_numbers(self) -> int:
        """Return how many numbers the steps change: of model and loss, but for frozen ones."""
        return count_numbers(self._trainee.model, self._trainee.method.loss)

    def _compile_again(self) -> None:
        """Compile for the shapes of a validation first, as in the training that was killed."""
        if self._protocol.compile:
            self._validate()

    def _record(self, checkpoint: Checkpoint) -> None:
        self._losses = []
        self.fit.history.append(checkpoint)
        weights = self._trainee.model.state
        if checkpoint.validation["map_at_r"] > self.fit.best.validation["map_at_r"]:
            self.fit.best, self.fit.weights = checkpoint, weights()
        if self._trainee.on_validation:
            self._trainee.on_validation(checkpoint.epoch, weights())
        epochs = checkpoint.epoch, self.fit.best.epoch
        self.done = is_out_of_patience(*epochs, self._protocol.patience)
        self._trainee.on_epoch(checkpoint.epoch, checkpoint.loss or 0.0, checkpoint)

    def _validate(self) -> dict[str, float] | None:
        """Return the scores of the validation samples, None if an embedding is not finite."""
        similarity, samples = self._protocol.similarity, self._trainee.validation
        size = self._trainee.model.architecture.size
        z = embed_samples(self._network, samples.x, size, self._device, similarity)
        if not torch.isfinite(z).all():
            return None
        return with_counts(evaluate(z, samples.y, similarity=similarity))


class FixedLength(Validator):
    """Ends a training after the trainee's number of epochs and keeps its last weights.

    Nothing is validated. A loss that is not finite ends the training as `diverged`.
    """

    def after(self, epoch: int, losses: list[float]) -> None:
        """Take note of an epoch that has ended."""
        mean = sum(losses) / len(losses)
        if not math.isfinite(mean):
            self.fit.status, self.done = "diverged", True
            self.fit.history.append(Checkpoint(epoch, None, {}))
        elif epoch == self._trainee.epochs:
            self.fit.best = Checkpoint(epoch, mean, {})
            self.fit.history.append(self.fit.best)
            self.fit.weights, self.done = self._trainee.model.state(), True
        self._trainee.on_epoch(epoch, mean, None)

    def _begin(self) -> None:
        model, first = self._trainee.model, Checkpoint(0, None, {})
        self.fit = Fit(model.architecture, [first], first, model.state())
        self.done = False

    def _compile_again(self) -> None:
        """Do nothing: there are no samples to validate."""


def validator_of(
    trainee: Trainee,
    network: nn.Module,
    protocol: ResolvedProtocol,
    device: torch.device,
    saved: SavedState | None = None,
) -> Validator:
    """Return what ends the training of a trainee: its validation, or its number of epochs."""
    kind = Validator if trainee.epochs is None else FixedLength
    return kind(trainee, network, protocol, device, saved)


def with_counts(scores: Scores) -> dict[str, float]:
    """Return the means, and how many queries they are over."""
    return {**scores, "queries": scores.queries, "skipped": scores.skipped}


def mean_scores(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each score over folds; counts stay whole numbers where they agree."""
    means = {name: sum(part[name] for part in scores) / len(scores) for name in scores[0]}
    return {
        name: int(value) if name in ("queries", "skipped") and value == int(value) else value
        for name, value in means.items()
    }
