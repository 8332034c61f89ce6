"""Training steps of one network with autograd: any model, any method, any device."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.data.augment import augment
from assay.hashing import derive
from assay.methods import BuiltMethod, Seen
from assay.model import Model
from assay.protocols import ResolvedProtocol
from assay.train.batches import iterations_of
from assay.train.lists import Drawn
from assay.train.optimisers import optimiser_of, set_rates
from assay.train.resume import (
    SavedState,
    beside_weights,
    optimiser_state,
    random_state,
    restore_optimiser,
    restore_random_state,
    restore_tensors,
    tensors_state,
    weights_of,
)
from assay.train.trainee import Trainee


class OneNetwork:
    """A stepper of one network, on images or vectors.

    Args:
        protocol: of the training.
        batch: classes x images per class.
        device: where it is trained.
    """

    width = 1

    def __init__(
        self, protocol: ResolvedProtocol, batch: tuple[int, int], device: torch.device
    ) -> None:
        self.protocol, self.batch, self.device = protocol, batch, device

    @property
    def can_be_saved(self) -> bool:
        """Whether training has changed weights and generators only.

        A user's loss may count its calls or fill a memory of its own: such a training begins anew
        after a kill.
        """
        return self._beside is not None and beside_weights(self._trainee.method) == self._beside

    def open(self, places: int, steps: int) -> None:
        """Remember the number of steps, which the learning rates follow."""
        assert places == 1
        self._steps = steps

    def add(self, number: int, trainee: Trainee, done: int) -> nn.Module:
        """Move model and loss to the device; return the network, compiled if that is asked for."""
        self._trainee, self._beside = trainee, beside_weights(trainee.method)
        self._x = trainee.view.rows(trainee.train).x
        self._crops = torch.Generator().manual_seed(derive(trainee.seed, "augment"))
        model = trainee.model.to(self.device)
        model.eval()  # as validation leaves it; the next step changes that
        # a loss that sees features asks the model for them, past its compiled form
        compiles = self.protocol.compile and trainee.method.loss.compares != "seen"
        self._network = cast("nn.Module", torch.compile(model)) if compiles else model
        trainee.method.loss.to(self.device)
        self._optimiser = optimiser_of(model, trainee.method, self.protocol, done)
        epoch = iterations_of(self.protocol, len(trainee.train), self.batch)
        self._done, self._trunk_after = done, trainee.method.loss.head_first * epoch
        return self._network

    def remove(self, number: int) -> None:
        """Do nothing: the model was trained in place."""

    def step(self, batches: Mapping[int, Drawn]) -> dict[int, float]:
        """Read and augment the samples of the batch, and take a step on them."""
        [(number, (indices, labels))] = batches.items()
        protocol, device, one = self.protocol, self.device, self._trainee
        trains_trunk = self._done >= self._trunk_after
        begins_anew = self._done == self._trunk_after > 0
        if begins_anew:
            self._optimiser = optimiser_of(one.model, one.method, protocol, self._done)
        if begins_anew or not one.model.training:
            set_training(one.model, protocol)
            if not trains_trunk:
                one.model.trunk.eval()
        set_rates(self._optimiser, protocol.optimiser.schedule, self._steps)
        x = augment(self._x[indices], protocol.augment, protocol.size, self._crops, device)
        passes = self._done * len(indices) / len(one.train)
        self._done += 1
        taken = ReadBatch(x, torch.from_numpy(labels), torch.from_numpy(indices), passes)
        value, self._z = step(
            self._network, one.method, self._optimiser, taken, protocol, device, trains_trunk
        )
        return {number: value}

    def outputs(self, number: int) -> Tensor:
        """Return what the network gave for the last batch."""
        return self._z

    def state(self, number: int) -> SavedState:
        """Return weights and buffers, what the optimiser has gathered, and the generators."""
        one = self._trainee
        return SavedState.join(
            {
                "model": tensors_state(weights_of(one.model)),
                "loss": tensors_state(weights_of(one.method.loss)),
                "optimiser": optimiser_state(self._optimiser),
                "random": random_state(self.device, self._crops),
            }
        )

    def restore(self, number: int, state: SavedState) -> None:
        """Set weights, optimiser and generators to a saved state."""
        restore_tensors(weights_of(self._trainee.model), state.part("model"))
        restore_tensors(weights_of(self._trainee.method.loss), state.part("loss"))
        restore_optimiser(self._optimiser, state.part("optimiser"))
        restore_random_state(self.device, self._crops, state.part("random"))


def set_training(model: Model, protocol: ResolvedProtocol) -> None:
    """Set the model to training mode.

    Frozen batch normalisation uses its running statistics and does not update them; its affine
    weights are trained.
    """
    model.train()
    if protocol.frozen == "batchnorm":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


class ReadBatch(NamedTuple):
    """A batch that was read, as a step takes it.

    Args:
        x: samples, augmented.
        y: labels.
        rows: numbers of the samples among the training samples of the fold.
        passes: passes over the training samples that were made before.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    passes: float


def step(
    network: nn.Module,
    method: BuiltMethod,
    optimiser: torch.optim.Optimizer,
    batch: ReadBatch,
    protocol: ResolvedProtocol,
    device: torch.device,
    trains_trunk: bool = True,
) -> tuple[float, Tensor]:
    """Take one training step on a batch; return the loss before the step, and the embeddings.

    Weights of a trunk that is not trained get no gradient, so the optimiser leaves them out.
    """
    autocast = torch.autocast(
        device.type, torch.bfloat16, enabled=protocol.autocast and device.type == "cuda"
    )
    y, model = batch.y.to(device), cast("Model", network)
    with autocast:
        if method.loss.compares == "seen" or not trains_trunk:
            with torch.set_grad_enabled(trains_trunk):
                x = model.features(batch.x.to(device))
            z = model.embed_features(x)
        else:
            z = network(batch.x.to(device))
    if method.loss.compares == "seen":
        rows = batch.rows.to(device)
        value = method.loss.see(Seen(z, y, x, rows, batch.passes, model.embed_features))
    else:
        mined = method.miner(z.detach(), y) if method.miner else None
        value = method.loss(z, y, mined)
    optimiser.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return value.item(), z.detach()
