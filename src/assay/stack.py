"""Training of several heads at once, on vectors: the folds of a trial as one batched computation.

A step of a small head is all overhead: a hundred operations on little tensors. Stacked, the folds share them. The loss of the
stack and its gradient are traced once into a flat list of tensor operations (`torch.vmap` over the method's own loss), which is
then played back for every step. Shapes: S stacked heads, N batch, D width of a vector.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from assay.data.dataset import Labels
from assay.data.views import View, renumber
from assay.methods import Parts
from assay.model import Model
from assay.protocol import Protocol
from assay.samplers import samplers
from assay.seeds import derive
from assay.train import Fit, Judge, Kept, Savepoint, State, iterations_of, make_optimisers
from assay.train.optimisers import Rates
from assay.train.state import (
    restore_chance,
    restore_optimisers,
    restore_tensors,
    state_of_chance,
    state_of_optimisers,
    state_of_tensors,
)

CPU = torch.device("cpu")
Gradients = Callable[..., list[Tensor]]
"""From a batch, its labels and the stacked weights to the losses (S,) and the gradient of each weight."""


@dataclass(frozen=True)
class Apprentice:
    """One of the heads: what it trains with and on.

    Args:
        model: a head on vectors.
        parts: loss and miner.
        train: rows of the view.
        validation: the samples to validate on.
        seed: of its batches.
    """

    model: Model
    parts: Parts
    train: Labels
    validation: View
    seed: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the loss's own weights: what must agree among heads that are stacked."""
        return tuple(tuple(weight.shape) for weight in self.parts.loss.parameters())


def can_stack(apprentice: Apprentice, device: torch.device) -> bool:
    """Whether this is a head on vectors, trained by a method of Assay's own.

    Those losses and miners are functions of their arguments alone; another's may count its calls or draw numbers of its own,
    which a trace would not see.
    """
    loss, miner = apprentice.parts.loss, apprentice.parts.miner
    own = all(type(part).__module__.startswith("assay.") for part in (loss, miner) if part is not None)
    on_vectors = apprentice.model.architecture.trunk == "identity" and device == CPU
    return on_vectors and own and not list(loss.buffers())


def fit_stacked(
    apprentices: Sequence[Apprentice],
    view: View,
    protocol: Protocol,
    batch: tuple[int, int],
    kept: Sequence[Kept] = (),
    savepoint: Savepoint | None = None,
) -> list[Fit] | None:
    """Train all of them, each on the batches that `fit` would draw for it; None where the loss cannot be traced.

    Their weights, those of their losses included, have the same shapes, and their epochs the same number of steps. `kept` is
    given the weights of every validation of each head. Where the savepoint holds a state, they go on from there.
    """
    stack = _Stack(apprentices)
    gradients = stack.trace(*next(_draw(apprentices, view, protocol, batch)))
    if gradients is None:
        return None
    optimisers = make_optimisers(list(stack.heads.values()), stack.losses, apprentices[0].parts, protocol)
    before = savepoint.load() if savepoint else None
    judges = [
        Judge(
            model=one.model,
            network=one.model,
            validation=one.validation,
            protocol=protocol,
            device=CPU,
            kept=kept[number] if kept else None,
            before=before.part(f"judge{number}") if before else None,
        )
        for number, one in enumerate(apprentices)
    ]
    torch.manual_seed(derive(apprentices[0].seed, "stack"))
    past = stack.restore(optimisers, before) if before else 0
    iterations = iterations_of(protocol, len(apprentices[0].train), batch)
    batches = _draw(apprentices, view, protocol, batch, past * iterations)
    epochs = protocol.length.epochs
    rates = Rates(optimisers, protocol, epochs * iterations)
    for epoch in range(past + 1, epochs + 1):
        if all(judge.done for judge in judges):
            break
        values = []
        for number in range(iterations):
            rates.set((epoch - 1) * iterations + number)
            values.append(stack.step(gradients, optimisers, *next(batches)))
        for judge, losses in zip(judges, torch.stack(values, dim=1).tolist(), strict=True):
            judge.after(epoch, losses)
        if savepoint and all(judge.rests for judge in judges) and not all(judge.done for judge in judges):
            savepoint.save(partial(stack.state, optimisers, judges, epoch))
    return [judge.fit for judge in judges]


class _Stack:
    """The weights of the heads and of their losses, each kind one tensor with a row for each head."""

    def __init__(self, apprentices: Sequence[Apprentice]) -> None:
        first = apprentices[0]
        self.model, self.loss, self.miner = first.model, first.parts.loss, first.parts.miner
        self.heads = _stacked([one.model for one in apprentices])
        self.losses = _stacked([one.parts.loss for one in apprentices])

    def trace(self, x_SND: Tensor, y: Tensor) -> Gradients | None:
        """Record the loss and its gradient once; None where an operation depends on values or cannot be stacked."""

        def value(x_ND: Tensor, y_N: Tensor, *weights: Tensor) -> Tensor:
            heads = dict(zip(self.heads, weights, strict=False))
            losses = dict(zip(self.losses, weights[len(heads) :], strict=True))
            z = functional_call(self.model, heads, (x_ND,))
            mined = self.miner(z.detach(), y_N) if self.miner else None
            result: Tensor = functional_call(self.loss, losses, (z, y_N, mined))
            return result

        def gradients(x_SND: Tensor, y: Tensor, *weights: Tensor) -> list[Tensor]:
            leaves = [weight.detach().requires_grad_() for weight in weights]
            dims = (0, 0 if y.ndim == 2 else None, *(0 for _ in leaves))
            values_S = torch.vmap(value, in_dims=dims, randomness="different")(x_SND, y, *leaves)
            return [values_S.detach(), *torch.autograd.grad(values_S.sum(), leaves, materialize_grads=True)]

        from torch.fx.experimental.proxy_tensor import make_fx  # a second or two to import, which runs on images need not pay

        try:
            with _slow_ways_refused():
                traced = make_fx(gradients)(x_SND, y, *self._weights())
        except (RuntimeError, NotImplementedError, UserWarning):
            return None
        traced.graph.eliminate_dead_code()
        traced.recompile()
        return torch.no_grad()(traced.forward)

    def step(self, gradients: Gradients, optimisers: Sequence[torch.optim.Optimizer], x_SND: Tensor, y: Tensor) -> Tensor:
        """One training step of all heads; the losses (S,) they had."""
        values_S, *slopes = gradients(x_SND, y, *self._weights())
        for weight, slope in zip(self._weights(), slopes, strict=True):
            weight.grad = slope.contiguous()  # a fused optimiser reads memory in order, whatever the strides say
        for optimiser in optimisers:
            optimiser.step()
        return values_S

    def state(self, optimisers: Sequence[torch.optim.Optimizer], judges: Sequence[Judge], epoch: int) -> State:
        """All that changes in the training of the stack, after this epoch, which has been validated."""
        parts = {
            "heads": state_of_tensors(self.heads),
            "losses": state_of_tensors(self.losses),
            "optimisers": state_of_optimisers(optimisers),
            "chance": state_of_chance(CPU),
        }
        return State.of({**parts, **{f"judge{number}": judge.state() for number, judge in enumerate(judges)}}, epoch=epoch)

    def restore(self, optimisers: Sequence[torch.optim.Optimizer], state: State) -> int:
        """Be as it was then; the epoch."""
        restore_tensors(self.heads, state.part("heads"))
        restore_tensors(self.losses, state.part("losses"))
        restore_optimisers(optimisers, state.part("optimisers"))
        restore_chance(CPU, state.part("chance"))
        return int(state.said["epoch"])

    def _weights(self) -> list[Tensor]:
        return [*self.heads.values(), *self.losses.values()]


@contextmanager
def _slow_ways_refused() -> Iterator[None]:
    """What torch can only stack by a loop, of which it warns, is no faster than the folds; it raises inside, every time."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            yield
    finally:
        torch.set_warn_always(before)


def _stacked(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The weights of the modules by name, one tensor for all; the modules' own become views of it."""
    stacked = {}
    for name, _ in modules[0].named_parameters():
        owners = [module.get_parameter(name) for module in modules]
        stacked[name] = torch.stack([owner.detach() for owner in owners])
        for owner, row in zip(owners, stacked[name], strict=True):
            owner.data = row
    return stacked


def _draw(
    apprentices: Sequence[Apprentice], view: View, protocol: Protocol, batch: tuple[int, int], start: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (S, N, D) for ever with their labels (S, N), the first `start` left out.

    A loss without weights for classes cannot tell which classes are in a batch, and balanced batches have their images class
    by class: it gets the same labels (N,) every time, which leaves nothing in it that depends on values.
    """
    x_ND = torch.from_numpy(np.array(view.x[:]))  # a copy: views are memory-mapped and read-only
    labels = [renumber(view.y[one.train]) for one in apprentices]
    drawn = [
        islice(samplers[protocol.sampler](own, batch, derive(one.seed, "batches")), start, None)
        for one, own in zip(apprentices, labels, strict=True)
    ]
    pattern = torch.arange(batch[0]).repeat_interleave(batch[1])
    same = protocol.sampler == "balanced" and not _knows_classes(apprentices[0].parts, int(labels[0].max()) + 1)
    while True:
        chosen = [next(batches) for batches in drawn]
        rows_SN = np.stack([one.train[rows] for one, rows in zip(apprentices, chosen, strict=True)])
        x_SND = x_ND.index_select(0, torch.from_numpy(rows_SN.ravel())).view(*rows_SN.shape, -1)
        yield (
            x_SND,
            pattern if same else torch.from_numpy(np.stack([own[rows] for own, rows in zip(labels, chosen, strict=True)])),
        )


def _knows_classes(parts: Parts, classes: int) -> bool:
    """Whether the loss has something for each class."""
    return parts.loss.compares in ("classes", "anything") or any(
        weight.ndim and len(weight) == classes for weight in parts.loss.parameters()
    )
