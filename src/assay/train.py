"""Training: one loop, read in one sitting."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.data.augment import CPU, augment
from assay.data.views import View, renumber
from assay.embed import embed
from assay.methods import Parts
from assay.metrics import Scores, evaluate
from assay.model import Model
from assay.protocol import Protocol
from assay.samplers import samplers
from assay.seeds import derive

Status = Literal["finished", "diverged"]
NOTHING_FOUND = {"precision_at_1": 0.0, "r_precision": 0.0, "map_at_r": 0.0, "queries": 0, "skipped": 0}
"""What a network that gives no finite embedding finds."""


@dataclass(frozen=True)
class Checkpoint:
    """One validation: after which epoch, the mean loss since the one before, and the scores."""

    epoch: int
    loss: float | None
    validation: dict[str, float]


@dataclass
class Fit:
    """What training left: every validation, the best one and its weights."""

    history: list[Checkpoint]
    best: Checkpoint
    weights: dict[str, Tensor]
    status: Status = "finished"


Told = Callable[[int, float, Checkpoint | None], None]
"""Hears of each epoch that has ended: its number, its mean loss, and the validation where there was one."""


def nobody(epoch: int, loss: float, checkpoint: Checkpoint | None) -> None:
    """Listens to nothing."""


class Judge:
    """Validates a network as its training goes on, and keeps what was best: the checkpoint of the highest validation MAP@R.

    Epoch 0, before any training, counts as a checkpoint. A loss or an embedding that is not finite ends the training as
    `diverged`; `done` says that it has ended, so or because patience ran out.
    """

    def __init__(
        self, model: Model, network: nn.Module, validation: View, protocol: Protocol, device: torch.device, told: Told = nobody
    ) -> None:
        self._model, self._network, self._validation = model, network, validation
        self._protocol, self._device, self._told = protocol, device, told
        self._losses: list[float] = []
        scores = self._validate()
        first = Checkpoint(0, None, scores or NOTHING_FOUND)
        self.fit = Fit([first], first, model.state(), "finished" if scores else "diverged")
        self.done = scores is None

    def after(self, epoch: int, losses: list[float]) -> None:
        """Hear of an epoch that has ended; validate where it is time to."""
        if self.done:
            return
        self._losses += losses
        finite = math.isfinite(sum(self._losses))
        if finite and epoch % self._protocol.validate_every and epoch != self._protocol.epochs:
            self._told(epoch, sum(losses) / len(losses), None)
            return
        scores = self._validate() if finite else None
        if scores is None:
            self.fit.status, self.done = "diverged", True
        else:
            self._record(Checkpoint(epoch, sum(self._losses) / len(self._losses), scores))

    def _record(self, checkpoint: Checkpoint) -> None:
        self._losses = []
        self.fit.history.append(checkpoint)
        if checkpoint.validation["map_at_r"] > self.fit.best.validation["map_at_r"]:
            self.fit.best, self.fit.weights = checkpoint, self._model.state()
        self.done = checkpoint.epoch - self.fit.best.epoch >= self._protocol.patience
        self._told(checkpoint.epoch, checkpoint.loss or 0.0, checkpoint)

    def _validate(self) -> dict[str, float] | None:
        """Scores of the validation classes; None where an embedding is not finite."""
        z = embed(self._network, self._validation.x, self._model.architecture.size, self._device)
        return summary(evaluate(z, self._validation.y)) if torch.isfinite(z).all() else None


def fit(
    model: Model,
    parts: Parts,
    train: View,
    validation: View,
    protocol: Protocol,
    batch: tuple[int, int],
    seed: int,
    device: torch.device,
    told: Told = nobody,
) -> Fit:
    """Train until the epochs or the patience run out."""
    network = prepare(model, protocol, device)
    parts.loss.to(device)
    optimisers = optimisers_of(model, parts, protocol)
    batches = draw_batches(train, protocol, batch, seed, device)
    judge = Judge(model, network, validation, protocol, device, told)
    for epoch in range(1, protocol.epochs + 1):
        if judge.done:
            break
        set_training(model, protocol)
        judge.after(
            epoch, [step(network, parts, optimisers, *next(batches), protocol, device) for _ in range(protocol.iterations)]
        )
    return judge.fit


def prepare(model: Model, protocol: Protocol, device: torch.device) -> nn.Module:
    """The model on its device, compiled where the protocol wants it; the same weights."""
    model.to(device)
    return cast("nn.Module", torch.compile(model)) if protocol.compile else model


def set_training(model: Model, protocol: Protocol) -> None:
    """Training mode. Frozen batch normalisation goes by its running statistics and leaves them; its affine weights train."""
    model.train()
    if protocol.frozen == "batchnorm":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


def step(
    network: nn.Module,
    parts: Parts,
    optimisers: list[torch.optim.Optimizer],
    x: Tensor,
    y: Tensor,
    protocol: Protocol,
    device: torch.device,
) -> float:
    """One training step on a batch; the loss it had."""
    with torch.autocast(device.type, torch.bfloat16, enabled=protocol.autocast and device.type == "cuda"):
        z, y = network(x.to(device)), y.to(device)
    mined = parts.miner(z.detach(), y) if parts.miner else None
    value = parts.loss(z, y, mined)
    for optimiser in optimisers:
        optimiser.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    for optimiser in optimisers:
        optimiser.step()
    return value.item()


def optimisers_of(model: Model, parts: Parts, protocol: Protocol) -> list[torch.optim.Optimizer]:
    """Those of one model and its method."""
    return make_optimisers(list(model.parameters()), dict(parts.loss.named_parameters()), parts, protocol)


def make_optimisers(
    weights: Sequence[Tensor], own: Mapping[str, Tensor], parts: Parts, protocol: Protocol
) -> list[torch.optim.Optimizer]:
    """One for the weights of trunk and head, one for the method's own where it has some; those it names are not decayed."""
    common, undecayed = protocol.optimiser, parts.loss.undecayed
    unknown = sorted(set(undecayed) - set(own))
    if unknown:
        raise ValueError(
            f"{type(parts.loss).__name__}.undecayed names {unknown[0]!r}, but its weights are {', '.join(own) or 'none'}"
        )
    decayed = [weight for name, weight in own.items() if name not in undecayed]
    groups = [
        [{"params": list(weights), "lr": parts.lr}],
        [
            {"params": decayed, "lr": parts.weights_lr},
            {"params": [own[name] for name in undecayed], "lr": parts.weights_lr, "weight_decay": 0.0},
        ],
    ]
    return [
        torch.optim.RMSprop(group, momentum=common.momentum, weight_decay=common.weight_decay, foreach=True)
        for group in ([part for part in one if part["params"]] for one in groups)
        if group
    ]


def draw_batches(
    train: View, protocol: Protocol, batch: tuple[int, int], seed: int, device: torch.device = CPU
) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented batches for ever; labels are numbered from 0 over the classes of this fold."""
    labels = renumber(train.y)
    draw = torch.Generator().manual_seed(derive(seed, "augment"))
    for indices in samplers[protocol.sampler](labels, batch, derive(seed, "batches")):
        x = augment(train.x[indices], protocol.augment, protocol.size or 0, draw, device)
        yield x, torch.from_numpy(labels[indices])


def summary(scores: Scores) -> dict[str, float]:
    """Means, and how many queries they are over."""
    return {**scores, "queries": scores.queries, "skipped": scores.skipped}
