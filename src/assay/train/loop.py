"""The training loop: one or more models, one way to draw batches, two ways to take a step.

A stepper takes the steps: `OneNetwork` of any model with autograd, `HeadStack` of many heads on
vectors at the same time. The loop draws the batches, validates, stops early and saves the state.

The way of a batch: `ResolvedProtocol.batch_for` gives its shape, classes x images per class
(called by `Design.batch`, kept in `Run.batch`); `make_trainee` (run/training.py) takes the rows of
the fold; `Batches` (train/batches.py) asks the sampler for rows; the stepper gathers and augments
these samples and embeds them; `Loss.__call__` normalises the embeddings and compares them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from assay.protocols import ResolvedProtocol
from assay.train.batches import Batches, iterations_of
from assay.train.lists import Drawn
from assay.train.resume import ResumeFile, SavedState
from assay.train.trainee import Trainee
from assay.train.validation import Fit, Validator, validator_of


class Stepper(Interface):
    """Takes the training steps of some models, each known by its number.

    Attributes:
        protocol: of the training.
        batch: classes x images per class.
        device: of the models.
        width: models that it trains at the same time at most.
    """

    protocol: ResolvedProtocol
    batch: tuple[int, int]
    device: torch.device
    width: int

    @property
    def can_be_saved(self) -> bool:
        """Whether `state` holds all that training has changed."""

    def open(self, places: int, steps: int) -> None:
        """Make room for this many models, each to be trained for at most this many steps."""

    def add(self, number: int, trainee: Trainee, done: int) -> nn.Module:
        """Take in a model that has taken `done` steps; return the network to validate."""

    def remove(self, number: int) -> None:
        """Let a model go, with its weights as they are now."""

    def step(self, batches: Mapping[int, Drawn]) -> dict[int, float]:
        """Take a step of each model on its batch; return the losses before the step."""

    def outputs(self, number: int) -> Tensor:
        """Return what the network gave for the batch of the last step, detached."""

    def state(self, number: int) -> SavedState:
        """Return all that changes of a model and its method in training."""

    def restore(self, number: int, state: SavedState) -> None:
        """Set a model and its method to a saved state."""


def ignore_share(share: float) -> None:
    """Take no note of how far a training is."""


def fit(
    trainees: Sequence[Trainee],
    stepper: Stepper,
    resume_file: ResumeFile | None = None,
    on_share: Callable[[float], None] = ignore_share,
) -> list[Fit]:
    """Train each model until its epochs or its patience run out; return the results in order.

    A trainee may have a number of epochs of its own, after which it ends without validation.

    All models have equally many steps in an epoch. Those for which the stepper has no room wait
    until others have ended. If the file holds the state of a killed training, go on from there.
    `on_share` is called at the start and after each epoch with the share of iterations done.
    """
    queue = _Queue(trainees, stepper, resume_file.load() if resume_file else None)
    on_share(queue.share)
    while queue.active:
        queue.end_epoch([queue.step() for _ in range(queue.iterations)])
        on_share(queue.share)
        if resume_file and queue.active and queue.just_validated and stepper.can_be_saved:
            resume_file.save(queue.state)
    return [validator.fit for _, validator in sorted(queue.validators.items())]


@dataclass
class _Active:
    """The batches of a model in training, and how many epochs it has behind it."""

    batches: Batches
    epoch: int


class _Queue:
    """The trainees of a `fit` by number: some wait, some are in training, some have ended.

    A model begins only right after the validations of the others: then a state is nothing but
    weights, generators and results.
    """

    def __init__(
        self, trainees: Sequence[Trainee], stepper: Stepper, saved: SavedState | None
    ) -> None:
        self._trainees, self._stepper = trainees, stepper
        self._epochs, self._every = stepper.protocol.epochs, stepper.protocol.validate_every
        self.iterations = iterations_of(stepper.protocol, len(trainees[0].train), stepper.batch)
        self.active: dict[int, _Active] = {}
        self.validators: dict[int, Validator] = {}
        self._since_validation = 0
        begun: list[int] = saved.values["begun"] if saved else []
        self._waiting = deque(number for number in range(len(trainees)) if number not in begun)
        epochs: dict[int, int] = dict(saved.values["epochs"]) if saved else {}
        self._room = len(epochs) if saved else min(len(trainees), stepper.width)
        stepper.open(self._room, self._epochs * self.iterations)
        for number in begun:
            self._begin(number, saved, epochs.get(number))
        self._replace_ended()

    @property
    def just_validated(self) -> bool:
        """Whether no step was taken since the last validations."""
        return self._since_validation == 0

    @property
    def share(self) -> float:
        """Share of the iterations that are done, or no longer needed."""
        ended = len(self.validators) - len(self.active)
        epochs = sum(run.epoch for run in self.active.values())
        return (ended + epochs / self._epochs) / (len(self.validators) + len(self._waiting))

    def step(self) -> dict[int, float]:
        """Take a step of each model on its next batch; return the losses before the step."""
        drawn = {number: run.batches.draw() for number, run in self.active.items()}
        losses = self._stepper.step(drawn)
        for number, run in self.active.items():
            if run.batches.keeps_bank:
                run.batches.take_in(drawn[number].rows, self._stepper.outputs(number))
        return losses

    def end_epoch(self, losses: Sequence[Mapping[int, float]]) -> None:
        """Validate if it is time to; models that wait then take the places of ended ones."""
        for number, run in self.active.items():
            if not self._has_ended(number):  # else the steps were taken for others of its stack
                run.epoch += 1
                self.validators[number].count(run.batches.drawn, run.batches.embedded)
                self.validators[number].after(run.epoch, [step[number] for step in losses])
        self._since_validation += 1
        if self._since_validation == self._every or all(
            self._has_ended(number) for number in self.active
        ):
            self._since_validation = 0
            self._replace_ended()

    def state(self) -> SavedState:
        """Return all that is needed to go on from the validations that were just made."""
        models = {f"model{number}": self._stepper.state(number) for number in self.active}
        models |= {f"batches{number}": run.batches.state() for number, run in self.active.items()}
        results = {f"validator{number}": one.state() for number, one in self.validators.items()}
        epochs = [[number, run.epoch] for number, run in self.active.items()]
        return SavedState.join(models | results, epochs=epochs, begun=list(self.validators))

    def _has_ended(self, number: int) -> bool:
        return self.validators[number].done or self.active[number].epoch == self._epochs

    def _replace_ended(self) -> None:
        for number in [number for number in self.active if self._has_ended(number)]:
            self._stepper.remove(number)
            del self.active[number]
        while self._waiting and len(self.active) < self._room:
            self._begin(self._waiting.popleft())

    def _begin(self, number: int, saved: SavedState | None = None, epoch: int | None = 0) -> None:
        """Begin or resume the training of a model after this epoch; None: it had ended."""
        one, stepper, protocol = self._trainees[number], self._stepper, self._stepper.protocol
        before = saved.part(f"validator{number}") if saved else None
        if epoch is None:
            self.validators[number] = validator_of(one, one.model, protocol, stepper.device, before)
            return
        done = epoch * self.iterations
        network = stepper.add(number, one, done)
        self.validators[number] = validator_of(one, network, protocol, stepper.device, before)
        if saved:
            stepper.restore(number, saved.part(f"model{number}"))
        if self.validators[number].done:
            stepper.remove(number)
        else:
            drawn = saved.part(f"batches{number}") if saved else None
            batches = Batches(one, network, protocol, stepper.batch, stepper.device, done, drawn)
            self.active[number] = _Active(batches, epoch)
