"""The training loop."""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.data.packs import View
from assay.methods import Parts
from assay.model import Model
from assay.protocols import ResolvedProtocol
from assay.train.batches import augmentation, draw_batches, iterations_of
from assay.train.optimisers import Rates, optimisers_of
from assay.train.savepoint import Savepoint
from assay.train.state import (
    State,
    beside_weights,
    restore_chance,
    restore_optimisers,
    restore_tensors,
    state_of_chance,
    state_of_optimisers,
    state_of_tensors,
    weights_of,
)
from assay.train.validation import Fit, Kept, OnEpoch, Validator, silent


def fit(
    model: Model,
    parts: Parts,
    train: View,
    validation: View,
    protocol: ResolvedProtocol,
    batch: tuple[int, int],
    seed: int,
    device: torch.device,
    told: OnEpoch = silent,
    kept: Kept | None = None,
    savepoint: Savepoint | None = None,
) -> Fit:
    """Train until the epochs or the patience run out, from where the savepoint was left if it holds
    a state.
    """
    network = prepare(model, protocol, device)
    parts.loss.to(device)
    course = _Course(
        model, parts, optimisers_of(model, parts, protocol), augmentation(seed), device
    )
    before = savepoint.load() if savepoint else None
    validator = Validator(
        model,
        network,
        validation,
        protocol,
        device,
        told,
        kept,
        before.part("validator") if before else None,
    )
    past = course.restore(before) if before else 0
    iterations = iterations_of(protocol, len(train.y), batch)
    batches = draw_batches(train, protocol, batch, seed, device, course.draw, past * iterations)
    epochs = protocol.epochs
    rates = Rates(course.optimisers, protocol, epochs * iterations)
    for epoch in range(past + 1, epochs + 1):
        if validator.done:
            break
        set_training(model, protocol)
        losses = []
        for number in range(iterations):
            rates.set((epoch - 1) * iterations + number)
            losses.append(step(network, parts, course.optimisers, *next(batches), protocol, device))
        validator.after(epoch, losses)
        if savepoint and validator.rests and not validator.done and course.is_visible:
            savepoint.save(partial(course.state, epoch, validator))
    return validator.fit


class _Course:
    """Everything that changes in a training, apart from its validator."""

    def __init__(
        self,
        model: Model,
        parts: Parts,
        optimisers: list[torch.optim.Optimizer],
        draw: torch.Generator,
        device: torch.device,
    ) -> None:
        self.optimisers, self.draw = optimisers, draw
        self._parts, self._device = parts, device
        self._modules = {"model": model, "loss": parts.loss}
        self._beside = beside_weights(parts)

    @property
    def is_visible(self) -> bool:
        """Whether weights and generators are all that has changed, so that a state holds all of it.

        A user's loss may count its calls or fill a memory of its own; its training begins anew
        after a kill.
        """
        return self._beside is not None and beside_weights(self._parts) == self._beside

    def state(self, epoch: int, validator: Validator) -> State:
        """After this epoch, which has been validated."""
        modules = {
            name: state_of_tensors(weights_of(module)) for name, module in self._modules.items()
        }
        others = {
            "optimisers": state_of_optimisers(self.optimisers),
            "chance": state_of_chance(self._device, self.draw),
            "validator": validator.state(),
        }
        return State.of({**modules, **others}, epoch=epoch)

    def restore(self, state: State) -> int:
        """Be as it was then; the epoch."""
        for name, module in self._modules.items():
            restore_tensors(weights_of(module), state.part(name))
        restore_optimisers(self.optimisers, state.part("optimisers"))
        restore_chance(self._device, state.part("chance"), self.draw)
        return int(state.said["epoch"])


def prepare(model: Model, protocol: ResolvedProtocol, device: torch.device) -> nn.Module:
    """The model on its device, compiled where the protocol wants it; the same weights."""
    model.to(device)
    return cast("nn.Module", torch.compile(model)) if protocol.compile else model


def set_training(model: Model, protocol: ResolvedProtocol) -> None:
    """Training mode. Frozen batch normalisation goes by its running statistics and leaves them; its
    affine weights train.
    """
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
    protocol: ResolvedProtocol,
    device: torch.device,
) -> float:
    """One training step on a batch; the loss it had."""
    with torch.autocast(
        device.type, torch.bfloat16, enabled=protocol.autocast and device.type == "cuda"
    ):
        z, y = network(x.to(device)), y.to(device)
    mined = parts.miner(z.detach(), y) if parts.miner else None
    value = parts.loss(z, y, mined)
    for optimiser in optimisers:
        optimiser.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    for optimiser in optimisers:
        optimiser.step()
    return value.item()
