"""The heads of a stack: their weights as one tensor, the samples that they train on, and their
traced loss.

Shapes: S stacked heads, N batch, D width of a vector, K width of an embedding.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from assay.data.dataset import Labels
from assay.data.packs import View, renumber
from assay.hashing import derive
from assay.methods import Parts
from assay.model import Model
from assay.protocols import ResolvedProtocol
from assay.samplers import samplers
from assay.train import State, iterations_of
from assay.train.rows import product, with_rows_apart
from assay.train.state import own_attributes

CPU = torch.device("cpu")

Gradients = Callable[..., list[Tensor]]
"""From embeddings, labels, dials and the loss's weights to the losses (S,) and the gradients of
embeddings and weights.
"""


@dataclass(frozen=True)
class Trainee:
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
        """The shapes of the loss's own weights, which agree among heads that are stacked."""
        return tuple(tuple(weight.shape) for weight in self.parts.loss.parameters())

    @property
    def dials(self) -> dict[str, float]:
        """The real numbers that loss and miner hold: entries of a tensor in a stack."""
        return {name: value for name, value in self._settings.items() if type(value) is float}

    @property
    def switches(self) -> dict[str, Any]:
        """All else that loss and miner hold, which agrees among heads that are stacked."""
        return {name: value for name, value in self._settings.items() if type(value) is not float}

    @property
    def _settings(self) -> dict[str, Any]:
        miner = self.parts.miner
        held = {f"loss.{name}": value for name, value in own_attributes(self.parts.loss).items()}
        return held | (
            {f"miner.{name}": value for name, value in vars(miner).items()} if miner else {}
        )


def can_stack(trainee: Trainee, device: torch.device) -> bool:
    """Whether this is a head on vectors, trained by a method of Assay's own.

    Those losses and miners are functions of their arguments alone; another's may count its calls or
    draw numbers of its own, which a trace would not see.
    """
    loss, miner = trainee.parts.loss, trainee.parts.miner
    own = all(
        type(part).__module__.startswith("assay.") for part in (loss, miner) if part is not None
    )
    on_vectors = trainee.model.architecture.trunk == "identity" and device == CPU
    return on_vectors and own and not list(loss.buffers())


class CannotBeTraced(Exception):
    """The loss depends on values, draws numbers, or cannot be stacked."""


class Source:
    """The batches of all runs, from vectors that are in memory once.

    A loss without weights for classes cannot tell which classes are in a batch, and balanced
    batches have their images class by class: it gets the same labels (N,) every time, which leaves
    nothing in it that depends on values.
    """

    def __init__(
        self,
        trainees: Sequence[Trainee],
        view: View,
        protocol: ResolvedProtocol,
        shape: tuple[int, int],
    ) -> None:
        first = trainees[0]
        self._apprentices, self._protocol, self._shape = trainees, protocol, shape
        self.iterations = iterations_of(protocol, len(first.train), shape)
        x_ND = torch.from_numpy(
            np.array(view.x[:])
        )  # a copy: views are memory-mapped and read-only
        with torch.no_grad():
            self._x_ND = first.model.norm(x_ND)
        self._labels = [renumber(view.y[one.train]) for one in trainees]
        classes = int(self._labels[0].max()) + 1
        same = protocol.sampler == "balanced" and not _knows_classes(first.parts, classes)
        self._pattern = torch.arange(shape[0]).repeat_interleave(shape[1]) if same else None

    def draw(self, number: int, epochs: int = 0) -> Iterator[tuple[Labels, Labels]]:
        """Places in the view and labels of the batches of a run, those of the first epochs left
        out.
        """
        one, labels = self._apprentices[number], self._labels[number]
        drawn = samplers[self._protocol.sampler](labels, self._shape, derive(one.seed, "batches"))
        return (
            (one.train[rows], labels[rows])
            for rows in islice(drawn, epochs * self.iterations, None)
        )

    def gather(self, drawn: Sequence[tuple[Labels, Labels] | None]) -> tuple[Tensor, Tensor]:
        """The batches (S, N, D) and their labels (S, N), or (N,) where all are the same; an empty
        place gets any other's.
        """
        some = next(one for one in drawn if one is not None)
        rows_SN = np.stack([(one or some)[0] for one in drawn])
        x_SND = self._x_ND.index_select(0, torch.from_numpy(rows_SN.ravel())).view(
            *rows_SN.shape, -1
        )
        if self._pattern is not None:
            return x_SND, self._pattern
        return x_SND, torch.from_numpy(np.stack([(one or some)[1] for one in drawn]))


class Stack:
    """Weights of heads and of their losses, each kind one tensor with a row for each place, their
    gradients and dials.
    """

    def __init__(self, first: Trainee, places: int, turnable: bool) -> None:
        self._loss, self._miner, self._places = first.parts.loss, first.parts.miner, places
        named = {**_named("head", first.model.head), **_named("loss", first.parts.loss)}
        self._all = {name: torch.zeros(places, *weight.shape) for name, weight in named.items()}
        self._slopes = {name: torch.zeros_like(weight) for name, weight in self._all.items()}
        self._dials = {name: torch.zeros(places) for name in first.dials} if turnable else {}
        self._rows = [
            {name: weight[place] for name, weight in self._all.items()} for place in range(places)
        ]
        for place, row in enumerate(self._rows):
            for name, weight in row.items():
                weight.grad = self._slopes[name][place]
        self._taught: list[Trainee | None] = [None] * places
        self.gathered: dict[Tensor, Any] = {}
        self._fill_with(first)

    def put(self, place: int, one: Trainee) -> None:
        """Give a place to a head: its weights become a part of the stack."""
        for name, weight in _weights(one).items():
            row = self._rows[place][name]
            row.copy_(weight.detach())
            weight.data = row
            self.gathered.pop(row, None)
        for name, values in self._dials.items():
            values[place] = one.dials[name]
        self._taught[place] = one

    def take_out(self, place: int) -> None:
        """Give the head in this place weights of its own again."""
        one = self._taught[place]
        assert one is not None
        for weight in _weights(one).values():
            weight.data = weight.data.clone()
        self._taught[place] = None

    def weights(self, place: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The weights in a place: those of the head, and the loss's own by name."""
        row = self._rows[place]
        heads = [weight for name, weight in row.items() if name.startswith("head.")]
        return heads, {
            name.removeprefix("loss."): weight
            for name, weight in row.items()
            if name.startswith("loss.")
        }

    def trace(self, source: Source) -> Gradients:
        """Record the loss and its gradient once; raise where an operation depends on values or
        cannot be stacked.
        """
        x_SND, y = source.gather([next(source.draw(0))] * self._places)
        names, dials = [name for name in self._all if name.startswith("loss.")], list(self._dials)

        def value(z_NK: Tensor, y_N: Tensor, *others: Tensor) -> Tensor:
            turned = dict(zip(dials, others, strict=False))
            weights = dict(
                zip(
                    [name.removeprefix("loss.") for name in names],
                    others[len(dials) :],
                    strict=True,
                )
            )
            with _turned(self._loss, self._miner, turned):
                mined = self._miner(z_NK.detach(), y_N) if self._miner else None
                result: Tensor = functional_call(self._loss, weights, (z_NK, y_N, mined))
            return result

        def gradients(z_SNK: Tensor, y: Tensor, *others: Tensor) -> list[Tensor]:
            turned, weights = others[: len(dials)], others[len(dials) :]
            leaves = [leaf.detach().requires_grad_() for leaf in (z_SNK, *weights)]
            dims = (0, 0 if y.ndim == 2 else None, *(0 for _ in others))
            values_S = torch.vmap(value, in_dims=dims, randomness="error")(
                leaves[0], y, *turned, *leaves[1:]
            )
            return [
                values_S.detach(),
                *torch.autograd.grad(values_S.sum(), leaves, materialize_grads=True),
            ]

        from torch.fx.experimental.proxy_tensor import (
            make_fx,
        )  # a second or two to import, which runs on images need not pay

        try:
            with _slow_ways_refused():
                traced = make_fx(gradients)(self._embed(x_SND), y, *self._others())
        except (RuntimeError, NotImplementedError, UserWarning, TypeError) as error:
            raise CannotBeTraced from error
        return torch.no_grad()(with_rows_apart(traced).forward)

    @torch.no_grad()
    def step(
        self, gradients: Gradients, optimiser: torch.optim.Optimizer, x_SND: Tensor, y: Tensor
    ) -> Tensor:
        """One training step of all heads; the losses (S,) they had."""
        values_S, slope_SNK, *slopes = gradients(self._embed(x_SND), y, *self._others())
        torch.sum(slope_SNK, dim=1, out=self._slopes["head.bias"])
        product(slope_SNK.transpose(1, 2), x_SND, out=self._slopes["head.weight"])
        for name, slope in zip(
            [name for name in self._all if name.startswith("loss.")], slopes, strict=True
        ):
            self._slopes[name].copy_(slope)
        optimiser.step()
        return values_S

    def state(self, place: int) -> State:
        """The weights in a place, and what an optimiser has gathered on them."""
        row = self._rows[place]
        tensors = {f"weight/{name}": weight.clone() for name, weight in row.items()}
        for name, weight in row.items():
            for kind, value in self.gathered.get(weight, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{kind}/{name}"] = value.clone()
        return State(tensors)

    def restore(self, place: int, state: State) -> None:
        """Put weights, and what was gathered on them, into a place."""
        for path, value in state.tensors.items():
            kind, name = path.split("/", 1)
            weight = self._rows[place][name]
            if kind == "weight":
                weight.copy_(value)
            else:
                self.gathered.setdefault(weight, {})[kind] = value.clone()

    @torch.no_grad()
    def _embed(self, x_SND: Tensor) -> Tensor:
        return (
            product(x_SND, self._all["head.weight"].transpose(1, 2))
            + self._all["head.bias"][:, None]
        )

    def _others(self) -> list[Tensor]:
        """What the recorded operations get beside embeddings and labels."""
        return [
            *self._dials.values(),
            *(weight for name, weight in self._all.items() if name.startswith("loss.")),
        ]

    def _fill_with(self, one: Trainee) -> None:
        """Put a head's weights into all places, so that a recording begins with numbers that can
        occur.
        """
        for name, weight in _weights(one).items():
            self._all[name].copy_(weight.detach())
        for name, values in self._dials.items():
            values.fill_(one.dials[name])


def _named(part: str, module: nn.Module) -> dict[str, nn.Parameter]:
    return {f"{part}.{name}": weight for name, weight in module.named_parameters()}


def _weights(one: Trainee) -> dict[str, nn.Parameter]:
    """The weights of the head and of the loss by name."""
    return {**_named("head", one.model.head), **_named("loss", one.parts.loss)}


@contextmanager
def _turned(loss: nn.Module, miner: Any, dials: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, loss and miner hold these instead of their own numbers."""
    owners = {"loss": loss, "miner": miner}
    places = [(owners[path.partition(".")[0]], path.partition(".")[2]) for path in dials]
    before = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), value in zip(places, dials.values(), strict=True):
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), own in zip(places, before, strict=True):
            setattr(owner, name, own)


@contextmanager
def _slow_ways_refused() -> Iterator[None]:
    """Raise inside, every time, where torch can only stack by a loop: that is no faster than heads
    alone.
    """
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            yield
    finally:
        torch.set_warn_always(before)


def _knows_classes(parts: Parts, classes: int) -> bool:
    """Whether the loss has something for each class."""
    return parts.loss.compares in ("classes", "anything") or any(
        weight.ndim and len(weight) == classes for weight in parts.loss.parameters()
    )
