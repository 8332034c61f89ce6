"""The batches of a training, in order: from a sampler, planned from the memory bank, or drawn from
listed pairs or triplets (train/lists.py).

The memory bank holds all training samples as the model embeds them. It is made where the sampler or
the loss asks for one, and serves both:

- a sampler with a kept bank (`coreset`) has it embedded once, before training; each step then
  replaces the rows of its batch by what it computed, augmented and in training mode; all batches of
  an epoch are planned at its start;
- a sampler with a fresh bank (`offline_hard`), or a loss that is refreshed, has the whole bank
  embedded again every so many steps; the batches up to the next time are planned then.

What a training needs in order to resume is the rows of a kept bank and the plan: a refreshed loss
keeps what it needs in its buffers.

Shapes: N training samples, D dims.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from assay.bank import Bank
from assay.data.dataset import Labels, Rows
from assay.embedding import normalise_for, outputs
from assay.errors import BadInput
from assay.hashing import derive
from assay.heads import joined
from assay.methods import BuiltMethod, Loss
from assay.model import Model
from assay.protocols import ResolvedProtocol
from assay.samplers import samplers
from assay.samplers.sampler import BankKind, Planner, Sampler, bank_of, size_of_batch
from assay.train.lists import Drawn, draw_lists
from assay.train.resume import SavedState
from assay.train.trainee import Trainee


def sampler_of(method: BuiltMethod, protocol: ResolvedProtocol) -> str:
    """Return the name of the sampler that draws the batches of a method."""
    return method.sampler or protocol.sampler


def iterations_of(protocol: ResolvedProtocol, samples: int, batch: tuple[int, int]) -> int:
    """Return the training steps of an epoch over this many samples.

    The protocol gives their number, or an epoch is one pass. A pass over few samples would end
    before there is anything to validate, so it has at least `shortest_epoch` steps.

    >>> from dataclasses import replace
    >>> from assay.protocols import Protocol, resolve
    >>> from assay.trunks import trunk_facts
    >>> one_pass = resolve(Protocol("p.v1", iterations=None), "features", trunk_facts)
    >>> iterations_of(one_pass, 100, (8, 4))
    3
    >>> iterations_of(replace(one_pass, shortest_epoch=50), 100, (8, 4))
    50
    """
    if protocol.iterations is not None:
        return protocol.iterations
    return max(protocol.shortest_epoch, samples // (batch[0] * batch[1]))


def steps_of_passes(passes: float, samples: int, batch: tuple[int, int]) -> int:
    """Return the training steps of so many passes over the samples, at least one.

    >>> steps_of_passes(1, 100, (8, 4)), steps_of_passes(0.5, 100, (8, 4))
    (3, 2)
    """
    return max(1, round(passes * samples / (batch[0] * batch[1])))


def times_embedded(
    loss: Loss,
    bank: BankKind | None,
    protocol: ResolvedProtocol,
    samples: int,
    batch: tuple[int, int],
    steps: int,
) -> int:
    """Return how often all training samples are embedded for the bank in so many steps.

    That is before each step at which the loss is refreshed or a sampler with a fresh bank plans; a
    kept bank is embedded once. `loss` plans no batches itself.
    """
    at: set[int] = set()
    if loss.refreshes:
        at |= {*range(0, steps, steps_of_passes(loss.every, samples, batch))}
    if bank == "fresh":
        at |= {*range(0, steps, protocol.refresh or steps_of_passes(1, samples, batch))}
    if bank == "kept":
        at |= {*range(min(steps, 1))}
    return len(at)


def draw_batches(
    labels: Labels, sampler: str, batch: tuple[int, int], seed: int, start: int = 0
) -> Iterator[Drawn]:
    """Yield endless batches from a sampler that needs no bank, without the first `start`.

    `labels` are those of the training samples, numbered from 0. No sample is read: the stepper
    gathers the samples of its batch.
    """
    draw: Sampler = samplers[sampler]  # type: ignore[assignment]
    for rows in islice(draw(labels, batch, derive(seed, "batches")), start, None):
        check_rows(rows, f"the sampler {sampler}", len(labels))
        yield Drawn(rows, labels[rows])
    raise BadInput(f"the sampler {sampler} has ended; it must draw batches without end")


def plan_batches(
    sampler: str, bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
) -> Rows:
    """Return `count` batches as a sampler plans them from a bank."""
    plan: Planner = samplers[sampler]  # type: ignore[assignment]
    size, samples = size_of_batch(plan, batch), len(bank.y)
    return check_plan(
        plan(bank, batch, count, draw), f"the sampler {sampler}", count, size, samples
    )


class Batches:
    """The batches of one training.

    Args:
        trainee: the model and its samples.
        network: the model, or the model compiled.
        protocol: of the training.
        batch: classes x images per class.
        device: of the network.
        done: steps that were taken before.
        saved: the state to go on from.
    """

    embedded: int
    """Samples that were embedded for the bank so far."""

    drawn: int
    """Samples of all batches so far."""

    def __init__(
        self,
        trainee: Trainee,
        network: nn.Module,
        protocol: ResolvedProtocol,
        batch: tuple[int, int],
        device: torch.device,
        done: int = 0,
        saved: SavedState | None = None,
    ) -> None:
        self._trainee, self._network, self._device = trainee, network, device
        self._protocol, self._batch, self._done = protocol, batch, done
        self._loss = trainee.method.loss
        self._name = sampler_of(trainee.method, protocol)
        samples = len(trainee.train)
        listed = trainee.listed
        self._kind = bank_of(samplers[self._name]) if listed is None else None
        one_pass = steps_of_passes(1, samples, batch)
        kept = self._kind == "kept"
        epoch = iterations_of(protocol, samples, batch)
        self._planned_every = epoch if kept else protocol.refresh or one_pass
        self._refreshed_every = steps_of_passes(self._loss.every, samples, batch)
        self._z: Tensor | None = None
        self._plan: _Plan | None = None
        self.embedded = self.drawn = 0
        self._taken = done  # batches of a sampler that plans none
        if saved is not None:
            self._z, plan = saved.tensors.get("bank"), saved.tensors.get("plan")
            if plan is not None:
                self._plan = _Plan(plan.numpy(), saved.values["first"])
            self.embedded, self.drawn = saved.values["embedded"], saved.values["drawn"]
            self._taken = saved.values["taken"]
        self._batches: Iterator[Drawn] = iter(())
        if listed is not None:
            self._batches = draw_lists(listed, batch[0], trainee.seed, self._taken)
        elif self._kind is None:
            self._batches = draw_batches(trainee.y, self._name, batch, trainee.seed, self._taken)

    @property
    def planned(self) -> int:
        """Batches that were planned together with the last one; 1 where none are planned."""
        return 1 if self._plan is None else len(self._plan.rows)

    @property
    def keeps_bank(self) -> bool:
        """Whether `take_in` is to be called with the embeddings of each batch."""
        return self._kind == "kept"

    def draw(self) -> Drawn:
        """Return the next batch; refresh the loss and plan batches before it if it is time to."""
        step = self._done
        if self._plan is not None and step == self._plan.first + len(self._plan.rows):
            self._plan = None
        fresh: Bank | None = None
        if self._loss.refreshes and step % self._refreshed_every == 0:
            fresh = self._bank()
            self._loss.refresh(fresh, self._generator("refresh", step // self._refreshed_every))
            planned = self._planned_by_loss(fresh, step)
            if planned is not None:
                self._plan = planned
        if self._kind and self._plan is None:
            self._plan = self._planned(fresh, step)
        self._done += 1
        if self._plan is None:
            batch = next(self._batches)
            self._taken += 1
        else:
            rows = self._plan.rows[step - self._plan.first]
            batch = Drawn(rows, self._trainee.y[rows])
        self.drawn += len(batch.rows)
        return batch

    def take_in(self, rows: Rows, outputs_ND: Tensor) -> None:
        """Replace rows of a kept bank by what the network has just given for them.

        Of a sample that a batch holds more than once, the last embedding stays.
        """
        assert self._z is not None
        architecture = self._trainee.model.architecture
        z_ND = outputs_ND
        if architecture.parts:
            z_ND = joined(z_ND, architecture.parts, architecture.part_weights)
        # several threads would write the same row in no definite order
        last = len(rows) - 1 - np.unique(rows[::-1], return_index=True)[1]
        self._z[torch.from_numpy(rows[last])] = self._as_kept(z_ND)[torch.from_numpy(last)]

    def state(self) -> SavedState:
        """Return all that is needed to go on after the steps so far."""
        tensors = {} if self._z is None or not self.keeps_bank else {"bank": self._z.clone()}
        values = {"embedded": self.embedded, "drawn": self.drawn, "taken": self._taken}
        if self._plan is not None:
            tensors["plan"] = torch.from_numpy(np.ascontiguousarray(self._plan.rows)).clone()
            values["first"] = self._plan.first
        return SavedState(tensors, values)

    def _bank(self) -> Bank:
        """Embed all training samples again, as in a validation: without augmentation."""
        one, model = self._trainee, self._trainee.model
        samples, size = one.view.rows(one.train).x, model.architecture.size
        if self._loss.bank_features:
            x = outputs(_Features(model), samples, size, self._device)
            with torch.no_grad():
                z = model.embed_features(x.to(self._device)).cpu()
        else:
            x, z = None, outputs(self._network, samples, size, self._device)
        self.embedded += len(z)
        self._z = self._as_kept(z)
        return Bank(self._z.clone(), self._labels, x)

    def _as_kept(self, z_ND: Tensor) -> Tensor:
        z = normalise_for(z_ND.detach().float().cpu(), self._protocol.similarity)
        return torch.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0)

    def _planned(self, fresh: Bank | None, step: int) -> "_Plan":
        """Return the batches up to the next time that the sampler plans."""
        if fresh is None:
            known = self.keeps_bank and self._z is not None
            fresh = (
                Bank(self._z.clone(), self._labels)
                if known and self._z is not None
                else self._bank()
            )
        number, passed = divmod(step, self._planned_every)
        draw, count = self._generator("batches", number), self._planned_every - passed
        return _Plan(plan_batches(self._name, fresh, self._batch, count, draw), step)

    def _planned_by_loss(self, bank: Bank, step: int) -> "_Plan | None":
        count = self._refreshed_every
        draw = self._generator("batches of the loss", step // count)
        rows = self._loss.batches(bank, self._batch, count, draw)
        if rows is None:
            return None
        name, size = f"{type(self._loss).__name__}.batches", self._batch[0] * self._batch[1]
        return _Plan(check_plan(rows, name, count, size, len(self._trainee.train)), step)

    @property
    def _labels(self) -> Tensor:
        """A copy of the labels, so that no planner can change those of the training."""
        return torch.from_numpy(np.array(self._trainee.y))

    def _generator(self, purpose: str, number: int) -> np.random.Generator:
        return np.random.default_rng(derive(self._trainee.seed, purpose, number))


class _Plan(NamedTuple):
    """Batches that were planned: rows (count, B), and the step that the first of them is for."""

    rows: Rows
    first: int


class _Features(nn.Module):
    """A model up to its head."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def forward(self, x: Tensor) -> Tensor:
        return self._model.features(x)


def check_plan(plan: object, who: str, count: int, size: int, samples: int) -> Rows:
    """Return planned batches; raise `BadInput` unless they are `count` batches of `size` rows."""
    wanted = (
        f"a plan is a numpy array of {count} batches x {size} rows, whole numbers below {samples}"
    )
    if not isinstance(plan, np.ndarray):
        raise BadInput(f"{who} planned a {type(plan).__name__}; {wanted}")
    if plan.shape != (count, size) or not np.issubdtype(plan.dtype, np.integer):
        raise BadInput(
            f"{who} planned an array of shape {plan.shape} and type {plan.dtype}; {wanted}"
        )
    check_rows(plan, who, samples)
    return plan.astype(np.int64, copy=False)


def check_rows(rows: Rows, who: str, samples: int) -> None:
    """Raise `BadInput` for a row that is none of the training samples."""
    outside = rows[(rows < 0) | (rows >= samples)]
    if len(outside):
        raise BadInput(
            f"{who} drew row {outside.flat[0]}, and the training samples have rows 0 to"
            f" {samples - 1}"
        )
