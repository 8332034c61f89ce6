"""Validation as training goes on: which checkpoint is kept, and when training ends."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from assay.data.packs import View
from assay.embedding import embed_samples
from assay.hashing import plain
from assay.metrics import Scores, evaluate
from assay.model import Model
from assay.protocols import ResolvedProtocol
from assay.train.state import State

Status = Literal["finished", "diverged"]
NOTHING_FOUND = {
    "precision_at_1": 0.0,
    "r_precision": 0.0,
    "map_at_r": 0.0,
    "queries": 0,
    "skipped": 0,
}
"""What a network that gives no finite embedding finds."""


@dataclass(frozen=True)
class Checkpoint:
    """One validation: after which epoch, the mean loss since the one before, and the scores."""

    epoch: int
    loss: float | None
    validation: dict[str, float]


@dataclass
class Fit:
    """What training left: every validation, the best one and its weights; scores of the training
    samples if asked for.
    """

    history: list[Checkpoint]
    best: Checkpoint
    weights: dict[str, Tensor]
    status: Status = "finished"
    training: dict[str, float] = field(default_factory=dict)


OnEpoch = Callable[[int, float, Checkpoint | None], None]
"""Hears of each epoch that has ended: its number, its mean loss, and the validation where there was
one.
"""

Kept = Callable[[int, dict[str, Tensor]], None]
"""Is given the weights of each validation, with its epoch."""


def silent(epoch: int, loss: float, checkpoint: Checkpoint | None) -> None:
    """Listens to nothing."""


class Validator:
    """Validates a network as its training goes on, and keeps what was best: the checkpoint of the
    highest validation MAP@R.

    Epoch 0, before any training, counts as a checkpoint. A loss or an embedding that is not finite
    ends the training as `diverged`; `done` says that it has ended, so or because patience ran out.
    `before` is the state of a validator whose training was killed: this one goes on from there.
    """

    fit: Fit
    done: bool

    def __init__(
        self,
        model: Model,
        network: nn.Module,
        validation: View,
        protocol: ResolvedProtocol,
        device: torch.device,
        told: OnEpoch = silent,
        kept: Kept | None = None,
        before: State | None = None,
    ) -> None:
        self._model, self._network, self._validation = model, network, validation
        self._protocol, self._device, self._told, self._kept = protocol, device, told, kept
        self._losses: list[float] = []
        if before is None:
            self._begin()
        else:
            self._go_on(before)

    @property
    def rests(self) -> bool:
        """Whether nothing has happened since the last validation."""
        return self.done or not self._losses

    def after(self, epoch: int, losses: list[float]) -> None:
        """Hear of an epoch that has ended; validate where it is time to."""
        if self.done:
            return
        self._losses += losses
        finite, protocol = math.isfinite(sum(self._losses)), self._protocol
        if finite and epoch % protocol.validate_every and epoch != protocol.epochs:
            self._told(epoch, sum(losses) / len(losses), None)
            return
        scores = self._validate() if finite else None
        if scores is None:
            self.fit.status, self.done = "diverged", True
        else:
            self._record(Checkpoint(epoch, sum(self._losses) / len(self._losses), scores))

    def state(self) -> State:
        """All that it would have to know to go on from the last validation."""
        best = self.fit.history.index(self.fit.best)
        said = {
            "history": plain(self.fit.history),
            "best": best,
            "status": self.fit.status,
            "done": self.done,
        }
        return State(self.fit.weights, said)

    def _begin(self) -> None:
        scores = self._validate()
        first = Checkpoint(0, None, scores or NOTHING_FOUND)
        self.fit = Fit([first], first, self._model.state(), "finished" if scores else "diverged")
        self.done = scores is None
        if self._kept:
            self._kept(0, self.fit.weights)

    def _go_on(self, before: State) -> None:
        history = [Checkpoint(**entry) for entry in before.said["history"]]
        self.fit = Fit(
            history, history[before.said["best"]], dict(before.tensors), before.said["status"]
        )
        self.done = before.said["done"]
        if self._protocol.compile:
            self._validate()  # torch compiles for the shapes it has met, in the order in which it met them

    def _record(self, checkpoint: Checkpoint) -> None:
        self._losses = []
        self.fit.history.append(checkpoint)
        if checkpoint.validation["map_at_r"] > self.fit.best.validation["map_at_r"]:
            self.fit.best, self.fit.weights = checkpoint, self._model.state()
        if self._kept:
            self._kept(checkpoint.epoch, self._model.state())
        self.done = checkpoint.epoch - self.fit.best.epoch >= self._protocol.patience
        self._told(checkpoint.epoch, checkpoint.loss or 0.0, checkpoint)

    def _validate(self) -> dict[str, float] | None:
        """Scores of the validation classes; None where an embedding is not finite."""
        similarity = self._protocol.similarity
        z = embed_samples(
            self._network,
            self._validation.x,
            self._model.architecture.size,
            self._device,
            similarity,
        )
        return (
            summary(evaluate(z, self._validation.y, similarity=similarity))
            if torch.isfinite(z).all()
            else None
        )


def summary(scores: Scores) -> dict[str, float]:
    """Means, and how many queries they are over."""
    return {**scores, "queries": scores.queries, "skipped": scores.skipped}
