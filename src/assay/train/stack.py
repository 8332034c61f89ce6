"""Training steps of many heads on vectors at the same time, as one batched computation.

A step of a small head is all overhead: a hundred operations on small tensors. Stacked heads share
these operations. The loss of the stack and its gradient are traced once into a flat list of tensor
operations (`torch.vmap` over the method's own loss), which then runs at every step. Real numbers
that the heads differ in, such as margins, are tensors with an entry for each head. What a run gives
does not depend on the heads it is stacked with, to the bit.

Shapes: S stacked heads, N batch, D width of a vector, K width of an embedding.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from assay.bank import Bank
from assay.data.augment import CPU
from assay.data.dataset import Labels, Rows
from assay.hashing import digest
from assay.methods import BuiltMethod
from assay.protocols import ResolvedProtocol
from assay.samplers import samplers
from assay.samplers.sampler import bank_of, check_pattern
from assay.train.batches import draw_batches, iterations_of, plan_batches, sampler_of
from assay.train.lists import Drawn, draw_lists
from assay.train.optimisers import Group, groups_of, make_optimiser, set_rates
from assay.train.pattern import labels_of_all_batches
from assay.train.resume import SavedState, own_attributes, weights_of
from assay.train.stack_arithmetic import product, with_rows_apart
from assay.train.trainee import Trainee

MOST_HEADS = 16
"""Heads that are trained at the same time at most: more of them share no more."""

FEWEST_HEADS = 8
"""Heads that are trained at the same time at least: with fewer, much of a step is overhead."""

CACHE_BYTES = 3 << 20
"""Bytes of weights that are trained at the same time: with the optimiser's own tensors, more do
not fit into the caches.
"""

SMALLEST_STACK = 4
"""Places from which on it costs more to trace again for fewer than it saves."""

Gradients = Callable[..., list[Tensor]]
"""From embeddings, labels, floats and the loss's weights to the losses (S,) and the gradients of
embeddings and weights.
"""


class CannotBeTraced(Exception):
    """The loss depends on values, draws numbers, or cannot be stacked."""


def can_stack(trainee: Trainee, device: torch.device) -> bool:
    """Return whether this is a head on vectors, trained by a method of Assay's own.

    Assay's losses and miners are functions of their arguments, but for those that remember past
    batches. A user's own may count its calls or draw numbers, which a trace would not see. The
    optimiser of a stack does not begin anew after the first epochs.
    """
    loss, miner = trainee.method.loss, trainee.method.miner
    own = all(
        type(part).__module__.startswith("assay.") for part in (loss, miner) if part is not None
    )
    head = trainee.model.architecture
    plain = head.bias and not head.dropout and not loss.head_first
    on_vectors = head.trunk == "identity" and device == CPU
    return on_vectors and plain and own and not loss.remembers and loss.compares != "seen"


def stack_key(trainee: Trainee, protocol: ResolvedProtocol, batch: tuple[int, int]) -> Hashable:
    """Return all that heads must agree on to share a stack.

    These are the shapes of the loss's own weights and buffers, the steps of an epoch, and what loss
    and miner hold beside real numbers.
    """
    shapes = tuple(tuple(held.shape) for held in weights_of(trainee.method.loss).values())
    held = _held(trainee.method).items()
    others = {name: value for name, value in held if type(value) is not float}
    return shapes, iterations_of(protocol, len(trainee.train), batch), digest(others)


def floats_of(method: BuiltMethod) -> dict[str, float]:
    """Return the real numbers that loss and miner hold, such as margins."""
    return {name: value for name, value in _held(method).items() if type(value) is float}


def _held(method: BuiltMethod) -> dict[str, Any]:
    owners = {"loss": method.loss, "miner": method.miner}
    return {
        f"{owner}.{name}": value
        for owner, part in owners.items()
        if part is not None
        for name, value in own_attributes(part).items()
    }


def count_places(trainee: Trainee) -> int:
    """Return how many heads like this one are trained at the same time."""
    fitting = CACHE_BYTES // sum(weight.nbytes for weight in _weights(trainee).values())
    return max(FEWEST_HEADS, min(MOST_HEADS, fitting))


@dataclass
class _Member:
    """A head in a place of the stack, and the number of steps it has taken."""

    trainee: Trainee
    place: int
    done: int


class HeadStack:
    """A stepper of heads that have the same `stack_key`, on the CPU.

    Args:
        first: one of the heads.
        protocol: of the training.
        batch: classes x images per class.
        floats_differ: whether the heads may differ in the real numbers of loss and miner, which
            are then tensors with an entry for each head; else they are constants of the trace.
        width: heads that are trained at the same time; None: as many as fit into the caches.
    """

    device = CPU
    can_be_saved = True

    def __init__(
        self,
        first: Trainee,
        protocol: ResolvedProtocol,
        batch: tuple[int, int],
        floats_differ: bool = True,
        width: int | None = None,
    ) -> None:
        self.protocol, self.batch, self.width = protocol, batch, width or count_places(first)
        self._first, self._floats_differ = first, floats_differ
        x_ND = torch.from_numpy(np.array(first.view.x[:]))  # views are memory-mapped and read-only
        with torch.no_grad():
            self._x_ND = first.model.norm(x_ND)
        self._sampler = sampler_of(first.method, protocol)
        self._labels_N = labels_of_all_batches(first, self._sampler, batch)

    def open(self, places: int, steps: int) -> None:
        """Make empty places and trace a step; raise `CannotBeTraced` if that is not possible."""
        self.places, self._steps = places, steps
        self._members: dict[int, _Member] = {}
        self._optimiser: torch.optim.Optimizer | None = None
        self._weights = _StackedWeights(self._first, places, self._floats_differ)
        one = self._first
        rows, labels = self._example()
        if self._labels_N is not None and one.listed is None:
            check_pattern(self._sampler, labels, self.batch)
        example = self._gather([one.train[rows]] * places, [labels] * places)
        self._gradients = self._weights.trace(*example)

    def _example(self) -> Drawn:
        """Return a batch to trace a step with; a planner gets the vectors as their embeddings."""
        one = self._first
        if one.listed is not None:
            return next(draw_lists(one.listed, self.batch[0], one.seed))
        if bank_of(samplers[self._sampler]) is None:
            return next(draw_batches(one.y, self._sampler, self.batch, one.seed))
        z_ND = F.normalize(self._x_ND[torch.from_numpy(one.train)])
        bank, draw = Bank(z_ND, torch.from_numpy(one.y)), np.random.default_rng(one.seed)
        [rows] = plan_batches(self._sampler, bank, self.batch, 1, draw)
        return Drawn(rows, one.y[rows])

    def add(self, number: int, trainee: Trainee, done: int) -> nn.Module:
        """Put a head into an empty place: its weights become a part of the stack."""
        taken = {member.place for member in self._members.values()}
        place = min(set(range(self.places)) - taken)
        self._members[number] = _Member(trainee, place, done)
        self._weights.put(place, trainee)
        self._optimiser = None
        return trainee.model

    def remove(self, number: int) -> None:
        """Give a head weights of its own again."""
        trainee = self._members.pop(number).trainee
        for held in (_weights(trainee) | _buffers(trainee)).values():
            held.data = held.data.clone()
        self._optimiser = None

    def step(self, batches: Mapping[int, Drawn]) -> dict[int, float]:
        """Gather the vectors of the batches, and take a step of all heads on them."""
        if self._optimiser is None:
            self._optimiser = self._after_a_change()
        set_rates(self._optimiser, self.protocol.optimiser.schedule, self._steps)
        rows = [self._members[one].trainee.train[batches[one][0]] for one in self._numbers]
        labels = [batches[one][1] for one in self._numbers]
        losses = self._weights.step(self._gradients, self._optimiser, *self._gather(rows, labels))
        for member in self._members.values():
            member.done += 1
        return {number: losses[member.place] for number, member in self._members.items()}

    def outputs(self, number: int) -> Tensor:
        """Return the embeddings of the last batch of a head."""
        return self._weights.embedded[self._members[number].place]

    def state(self, number: int) -> SavedState:
        """Return the weights of a head and its loss, and what the optimiser has gathered."""
        return self._weights.state(self._members[number].place)

    def restore(self, number: int, state: SavedState) -> None:
        """Set a head, its loss and the optimiser's tensors for it to a saved state."""
        self._weights.restore(self._members[number].place, state)
        self._optimiser = None

    def _gather(self, rows: Sequence[Rows], labels: Sequence[Labels]) -> tuple[Tensor, Tensor]:
        """Return the batches (S, N, D) and their labels (S, N), or (N,) if all are the same."""
        rows_SN = np.stack(rows)
        x_XD = self._x_ND.index_select(0, torch.from_numpy(rows_SN.ravel()))
        x_SND = x_XD.view(*rows_SN.shape, -1)
        if self._labels_N is not None:
            return x_SND, self._labels_N
        return x_SND, torch.from_numpy(np.stack(labels))

    def _after_a_change(self) -> torch.optim.Optimizer:
        """Use fewer places if half of them are empty; return an optimiser of the heads there are.

        It has a group for each learning rate, and if they follow a schedule for each number of
        steps taken. An empty place is computed with the batch of the first head.
        """
        if self.places > SMALLEST_STACK and len(self._members) <= self.places // 2:
            moved = [(number, one, self.state(number)) for number, one in self._members.items()]
            self.open(len(moved), self._steps)
            for number, one, state in moved:
                self.add(number, one.trainee, one.done)
                self.restore(number, state)
        places = dict.fromkeys(range(self.places), next(iter(self._members)))
        places |= {member.place: number for number, member in self._members.items()}
        self._numbers = list(places.values())
        scheduled = self.protocol.optimiser.schedule != "constant"
        merged: dict[Hashable, Group] = {}
        for member in self._members.values():
            head, own = self._weights.at(member.place)
            for group in groups_of(head, own, member.trainee.method, self.protocol, member.done):
                key = group["lr"], group.get("weight_decay"), scheduled and group["done"]
                merged.setdefault(key, {**group, "params": []})["params"] += group["params"]
        optimiser = make_optimiser(list(merged.values()), self.protocol.optimiser)
        optimiser.state.update(self._weights.gathered)
        self._weights.gathered = optimiser.state
        return optimiser


class _StackedWeights:
    """Weights of heads and of their losses, each kind one tensor with a row for each place.

    With them go their gradients, the floats of loss and miner, the buffers of the loss, and what an
    optimiser gathers. `embedded` are the embeddings of the last step.
    """

    embedded: Tensor

    def __init__(self, first: Trainee, places: int, floats_differ: bool) -> None:
        self._loss, self._miner = first.method.loss, first.method.miner
        # A trace begins with numbers that can occur: those of the first head in every place.
        self._all = {
            name: torch.empty(places, *weight.shape).copy_(weight.detach())
            for name, weight in _weights(first).items()
        }
        self._of_loss = [name for name in self._all if name.startswith("loss.")]
        self._buffers = {
            name: buffer.detach().repeat(places, *[1] * buffer.ndim)
            for name, buffer in _buffers(first).items()
        }
        floats = floats_of(first.method) if floats_differ else {}
        self._floats = {name: torch.full((places,), value) for name, value in floats.items()}
        self._slopes = {name: torch.zeros_like(weight) for name, weight in self._all.items()}
        self._rows = [
            {name: weight[place] for name, weight in self._all.items()} for place in range(places)
        ]
        for place, row in enumerate(self._rows):
            for name, weight in row.items():
                weight.grad = self._slopes[name][place]
        self.gathered: dict[Tensor, Any] = {}

    def put(self, place: int, trainee: Trainee) -> None:
        """Copy the weights of a head into a row, and make the head's own a view of it."""
        for name, weight in _weights(trainee).items():
            row = self._rows[place][name]
            row.copy_(weight.detach())
            weight.data = row
            self.gathered.pop(row, None)
        for name, buffer in _buffers(trainee).items():  # a refresh then fills the row
            buffer.data = self._buffers[name][place].copy_(buffer)
        floats = floats_of(trainee.method)
        for name, values in self._floats.items():
            values[place] = floats[name]

    def at(self, place: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the weights of the head in a place, and those of its loss by name."""
        row = self._rows[place]
        head = [weight for name, weight in row.items() if name.startswith("head.")]
        return head, {name.removeprefix("loss."): row[name] for name in self._of_loss}

    def trace(self, x_SND: Tensor, y: Tensor) -> Gradients:
        """Record the loss and its gradient as a list of operations.

        Raise `CannotBeTraced` if an operation depends on values or cannot be stacked.
        """
        held = [*self._of_loss, *self._buffers]
        names, floats = [name.removeprefix("loss.") for name in held], list(self._floats)

        def value(z_NK: Tensor, y_N: Tensor, *others: Tensor) -> Tensor:
            own = dict(zip(floats, others, strict=False))
            weights = dict(zip(names, others[len(floats) :], strict=True))
            with _holding(self._loss, self._miner, own):
                mined = self._miner(z_NK.detach(), y_N) if self._miner else None
                result: Tensor = functional_call(self._loss, weights, (z_NK, y_N, mined))
            return result

        def gradients(z_SNK: Tensor, y: Tensor, *others: Tensor) -> list[Tensor]:
            first, last = len(floats), len(others) - len(self._buffers)
            own, weights, buffers = others[:first], others[first:last], others[last:]
            leaves = [leaf.detach().requires_grad_() for leaf in (z_SNK, *weights)]
            dims = (0, 0 if y.ndim == 2 else None, *(0 for _ in others))
            values_S = torch.vmap(value, in_dims=dims, randomness="error")(
                leaves[0], y, *own, *leaves[1:], *buffers
            )
            slopes = torch.autograd.grad(values_S.sum(), leaves, materialize_grads=True)
            return [values_S.detach(), *slopes]

        # A second or two to import, which runs on images need not pay.
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        try:
            # Torch would make a mode of its own for each tensor, which takes half of the tracing.
            with _slow_ways_refused(), tracing(TracingContext(FakeTensorMode())):
                traced = make_fx(gradients)(self._embed(x_SND), y, *self._others())
        except (RuntimeError, NotImplementedError, UserWarning, TypeError) as error:
            raise CannotBeTraced from error
        return torch.no_grad()(with_rows_apart(traced).forward)

    @torch.no_grad()
    def step(
        self, gradients: Gradients, optimiser: torch.optim.Optimizer, x_SND: Tensor, y: Tensor
    ) -> list[float]:
        """Take one training step of all heads; return the losses before the step, by place."""
        self.embedded = self._embed(x_SND)
        values_S, slope_SNK, *slopes = gradients(self.embedded, y, *self._others())
        torch.sum(slope_SNK, dim=1, out=self._slopes["head.bias"])
        product(slope_SNK.transpose(1, 2), x_SND, out=self._slopes["head.weight"])
        for name, slope in zip(self._of_loss, slopes, strict=True):
            self._slopes[name].copy_(slope)
        optimiser.step()
        losses: list[float] = values_S.tolist()
        return losses

    def state(self, place: int) -> SavedState:
        """Return the weights and buffers in a place, and what the optimiser has gathered."""
        row = self._rows[place]
        tensors = {f"weight/{name}": weight.clone() for name, weight in row.items()}
        tensors |= {f"buffer/{name}": all_[place].clone() for name, all_ in self._buffers.items()}
        for name, weight in row.items():
            for kind, value in self.gathered.get(weight, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{kind}/{name}"] = value.clone()
        return SavedState(tensors)

    def restore(self, place: int, state: SavedState) -> None:
        """Set the weights in a place, and what was gathered on them, to a saved state."""
        for path, value in state.tensors.items():
            kind, name = path.split("/", 1)
            if kind == "buffer":
                self._buffers[name][place].copy_(value)
                continue
            weight = self._rows[place][name]
            if kind == "weight":
                weight.copy_(value)
            else:
                self.gathered.setdefault(weight, {})[kind] = value.clone()

    @torch.no_grad()
    def _embed(self, x_SND: Tensor) -> Tensor:
        z_SNK = product(x_SND, self._all["head.weight"].transpose(1, 2))
        return z_SNK + self._all["head.bias"][:, None]

    def _others(self) -> list[Tensor]:
        """Return what the traced operations take beside embeddings and labels."""
        weights = (self._all[name] for name in self._of_loss)
        return [*self._floats.values(), *weights, *self._buffers.values()]


def _weights(trainee: Trainee) -> dict[str, nn.Parameter]:
    """Return the weights of a head and of its loss by name."""
    modules = {"head": trainee.model.head, "loss": trainee.method.loss}
    return {
        f"{part}.{name}": weight
        for part, module in modules.items()
        for name, weight in module.named_parameters()
    }


def _buffers(trainee: Trainee) -> dict[str, Tensor]:
    """Return the buffers of a loss by name."""
    return {f"loss.{name}": buffer for name, buffer in trainee.method.loss.named_buffers()}


@contextmanager
def _holding(loss: nn.Module, miner: Any, floats: Mapping[str, Tensor]) -> Iterator[None]:
    """Let loss and miner hold these tensors inside, instead of their own numbers."""
    owners = {"loss": loss, "miner": miner}
    places = [(owners[path.partition(".")[0]], path.partition(".")[2]) for path in floats]
    before = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), value in zip(places, floats.values(), strict=True):
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), own in zip(places, before, strict=True):
            setattr(owner, name, own)


@contextmanager
def _slow_ways_refused() -> Iterator[None]:
    """Raise inside, every time, where torch can stack only by a loop.

    A loop is no faster than heads alone.
    """
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            yield
    finally:
        torch.set_warn_always(before)
