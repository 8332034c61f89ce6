"""Training: one loop, read in one sitting."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from assay.data.augment import augment, to_tensor
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


def fit(
    model: Model,
    parts: Parts,
    train: View,
    validation: View,
    protocol: Protocol,
    batch: tuple[int, int],
    seed: int,
    device: torch.device,
) -> Fit:
    """Train until the epochs or the patience run out; the best checkpoint is that of the highest validation MAP@R.

    Epoch 0, before any training, counts as a checkpoint. A loss or an embedding that is not finite ends the training
    as `diverged`.
    """
    model.to(device)
    parts.loss.to(device)
    optimisers = make_optimisers(model, parts, protocol)
    batches = draw_batches(train, protocol, batch, seed)
    scores = _validate(model, validation, device)
    first = Checkpoint(0, None, scores or NOTHING_FOUND)
    result = Fit([first], first, model.state(), "finished" if scores else "diverged")
    if scores is None:
        return result
    losses: list[float] = []
    for epoch in range(1, protocol.epochs + 1):
        model.train()
        losses += [step(model, parts, optimisers, *next(batches), device) for _ in range(protocol.iterations)]
        finite = math.isfinite(sum(losses))
        if finite and epoch % protocol.validate_every and epoch != protocol.epochs:
            continue
        scores = _validate(model, validation, device) if finite else None
        if scores is None:
            result.status = "diverged"
            break
        checkpoint = Checkpoint(epoch, sum(losses) / len(losses), scores)
        losses = []
        result.history.append(checkpoint)
        if checkpoint.validation["map_at_r"] > result.best.validation["map_at_r"]:
            result.best, result.weights = checkpoint, model.state()
        elif epoch - result.best.epoch >= protocol.patience:
            break
    return result


def step(
    model: Model, parts: Parts, optimisers: list[torch.optim.Optimizer], x: Tensor, y: Tensor, device: torch.device
) -> float:
    """One training step on a batch; the loss it had."""
    z, y = model(x.to(device)), y.to(device)
    mined = parts.miner(z.detach(), y) if parts.miner else None
    value = parts.loss(z, y, mined)
    for optimiser in optimisers:
        optimiser.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    for optimiser in optimisers:
        optimiser.step()
    return value.item()


def make_optimisers(model: Model, parts: Parts, protocol: Protocol) -> list[torch.optim.Optimizer]:
    """One for trunk and head, one for the method's own weights where it has some; those it names are not decayed."""
    common = protocol.optimiser
    own = dict(parts.loss.named_parameters())
    unknown = sorted(set(parts.loss.undecayed) - set(own))
    if unknown:
        raise ValueError(
            f"{type(parts.loss).__name__}.undecayed names {unknown[0]!r}, but its weights are {', '.join(own) or 'none'}"
        )
    undecayed = [own.pop(name) for name in parts.loss.undecayed]
    groups = [
        [{"params": list(model.parameters()), "lr": parts.lr}],
        [
            {"params": list(own.values()), "lr": parts.weights_lr},
            {"params": undecayed, "lr": parts.weights_lr, "weight_decay": 0.0},
        ],
    ]
    return [
        torch.optim.RMSprop(group, momentum=common.momentum, weight_decay=common.weight_decay, foreach=True)
        for group in ([part for part in one if part["params"]] for one in groups)
        if group
    ]


def draw_batches(train: View, protocol: Protocol, batch: tuple[int, int], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented batches for ever; labels are numbered from 0 over the classes of this fold."""
    labels = renumber(train.y)
    draw = torch.Generator().manual_seed(derive(seed, "augment"))
    for indices in samplers[protocol.sampler](labels, batch, derive(seed, "batches")):
        x = augment(to_tensor(train.x[indices]), protocol.augment, draw)
        yield x, torch.from_numpy(labels[indices])


def _validate(model: Model, validation: View, device: torch.device) -> dict[str, float] | None:
    """Scores of the validation classes; None where an embedding is not finite."""
    z = embed(model, validation.x, device)
    return summary(evaluate(z, validation.y)) if torch.isfinite(z).all() else None


def summary(scores: Scores) -> dict[str, float]:
    """Means, and how many queries they are over."""
    return {**scores, "queries": scores.queries, "skipped": scores.skipped}
