"""Training of many heads at once, on vectors: runs of one method as one batched computation.

A step of a small head is all overhead: a hundred operations on little tensors. Stacked, the heads
share them. The loss of the stack and its gradient are traced once into a flat list of tensor
operations (`torch.vmap` over the method's own loss), which is then played back for every step.
Numbers that the runs differ in, such as margins, are tensors with an entry for each head. A head
that has ended leaves its place to the next run. What becomes of a run does not depend on what it is
stacked with, to the bit. Shapes: S stacked heads, N batch, D width of a vector, K width of an
embedding.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.data.dataset import Labels
from assay.data.packs import View
from assay.protocols import ResolvedProtocol
from assay.train import Fit, Kept, Savepoint, State, Validator
from assay.train.heads import CPU, CannotBeTraced, Source, Stack, Trainee
from assay.train.optimisers import groups_of, make_optimiser, share_of_rate

WIDEST = 16
"""Heads that are trained at once at most: more of them share no more."""

NARROWEST = 8
"""Heads that are trained at once at least: with fewer, much of a step is overhead."""

CACHED = 3 << 20
"""Bytes of weights that are trained at once: with what an optimiser keeps of them, more do not fit
into the caches.
"""

FEWEST = 4
"""Places below which fewer of them save less than it takes to record a step anew."""


def fit_stacked(
    trainees: Sequence[Trainee],
    view: View,
    protocol: ResolvedProtocol,
    batch: tuple[int, int],
    kept: Sequence[Kept] = (),
    savepoint: Savepoint | None = None,
    width: int | None = None,
    turnable: bool = True,
) -> list[Fit] | None:
    """Train the heads, each on the batches that `fit` would draw for it; return None where the loss
    cannot be traced.

    Their class weights have the same shapes, their epochs the same number of steps, their losses
    the same switches. `kept` is given the weights of every validation of each head. Where the
    savepoint holds a state, they go on from there.

    Args:
        trainees: the heads.
        view: what they are trained on.
        protocol: of all of them.
        batch: classes x images per class.
        kept: for each head, what is given the weights of every validation.
        savepoint: where the state is left from time to time.
        width: how many are trained at once; the others wait. Where not given, as many as fit into
            the caches.
        turnable: whether dials are tensors; else they are constants, and agree among the heads.
    """
    try:
        places = min(len(trainees), width or count_places(trainees[0]))
        course = _Course(
            trainees,
            Source(trainees, view, protocol, batch),
            protocol,
            kept,
            places,
            turnable,
        )
        course.begin(savepoint.load() if savepoint else None)
    except CannotBeTraced:
        return None
    while not course.ended:
        course.train_an_epoch()
        if savepoint and course.rests and not course.ended:
            savepoint.save(course.state)
    return [validator.fit for _, validator in sorted(course.judges.items())]


def count_places(trainee: Trainee) -> int:
    """Return how many heads like this one are trained at once."""
    weights = [*trainee.model.head.parameters(), *trainee.parts.loss.parameters()]
    fitting = CACHED // sum(weight.nbytes for weight in weights)
    return max(NARROWEST, min(WIDEST, fitting))


@dataclass
class _Row:
    """A run under way in a place of the stack."""

    number: int
    batches: Iterator[tuple[Labels, Labels]]
    epoch: int = 0


class _Course:
    """The runs: those that wait, those under way in the places of a stack, and what came of the
    others.

    Runs begin together with the others' validations, so that at every validation all of the state
    is weights.
    """

    def __init__(
        self,
        trainees: Sequence[Trainee],
        source: Source,
        protocol: ResolvedProtocol,
        kept: Sequence[Kept],
        width: int,
        turnable: bool,
    ) -> None:
        self._apprentices, self._source, self._protocol, self._kept = (
            trainees,
            source,
            protocol,
            kept,
        )
        self._width, self._turnable = width, turnable
        self._schedule = protocol.optimiser.schedule
        self.judges: dict[int, Validator] = {}
        self._passed = self._since = 0

    def begin(self, before: State | None) -> None:
        """Take up the first runs, or those that were under way; raise `CannotBeTraced` where the
        loss cannot be stacked.
        """
        under_way = (
            before.said["rows"]
            if before
            else [{"number": number, "epoch": 0} for number in range(self._width)]
        )
        begun = before.said["begun"] if before else []
        self.judges = {number: self._judge(number, before) for number in begun}
        self._waiting = deque(
            number for number in range(len(self._apprentices)) if number not in begun
        )
        self._open([one["number"] for one in under_way])
        for place, one in enumerate(under_way):
            if before and one["number"] is not None:
                self.rows[place] = _Row(
                    one["number"], self._source.draw(one["number"], one["epoch"]), one["epoch"]
                )
                self._stack.put(place, self._apprentices[one["number"]])
                self._stack.restore(place, before.part(f"row{place}"))
        self._settle(rebuild=True)

    @property
    def ended(self) -> bool:
        """Whether no run is left."""
        return not any(self.rows) and not self._waiting

    @property
    def rests(self) -> bool:
        """Whether nothing has happened since the last validations."""
        return self._passed % self._protocol.validate_every == 0

    def train_an_epoch(self) -> None:
        """One epoch of all runs under way; then those that have ended make place for others."""
        values = []
        for step in range(self._source.iterations):
            self._set_rates(step)
            values.append(self._stack.step(self._gradients, self._optimiser, *self._batch()))
        losses = torch.stack(values, dim=1).tolist()
        for row, own in zip(self.rows, losses, strict=True):
            if row is not None and not self._is_over(row):
                row.epoch += 1
                self.judges[row.number].after(row.epoch, own)
        self._passed, self._since = self._passed + 1, self._since + 1
        if self.rests or all(row is None or self._is_over(row) for row in self.rows):
            self._passed = 0
            self._settle()

    def state(self) -> State:
        """All that changes, after validations."""
        rows = [
            {"number": row and row.number, "epoch": row.epoch if row else 0} for row in self.rows
        ]
        weights = {
            f"row{place}": self._stack.state(place) for place, row in enumerate(self.rows) if row
        }
        judges = {
            f"validator{number}": validator.state() for number, validator in self.judges.items()
        }
        return State.of({**weights, **judges}, rows=rows, begun=list(self.judges))

    def _is_over(self, row: _Row) -> bool:
        return self.judges[row.number].done or row.epoch == self._protocol.epochs

    def _settle(self, rebuild: bool = False) -> None:
        """Give the places of runs that have ended to those that wait; go on with fewer places where
        half of them are empty.
        """
        for place, row in enumerate(self.rows):
            if row is not None and self._is_over(row):
                self._stack.take_out(place)
                self.rows[place] = row = None
                rebuild = True
            while row is None and self._waiting:
                row = self.rows[place] = self._next(place)
                rebuild = True
        left = [place for place, row in enumerate(self.rows) if row]
        if left and len(self.rows) > FEWEST and len(left) <= len(self.rows) // 2:
            self._shrink(left)
        elif left and rebuild:
            self._optimiser = self._make_optimiser()

    def _next(self, place: int) -> _Row | None:
        """The run that has waited longest, in its place;
        None where it has ended before it began.
        """
        number = self._waiting.popleft()
        self._stack.put(place, self._apprentices[number])
        self.judges[number] = validator = self._judge(number)
        return None if validator.done else _Row(number, self._source.draw(number))

    def _open(self, numbers: Sequence[int | None]) -> None:
        """Make a stack with so many places, all empty, and record a step of it."""
        self.rows: list[_Row | None] = [None] * len(numbers)
        self._stack = Stack(self._apprentices[0], len(numbers), self._turnable)
        self._gradients = self._stack.trace(self._source)

    def _shrink(self, left: Sequence[int]) -> None:
        """Move the runs under way to a stack of their own."""
        wide, rows = self._stack, [self.rows[place] for place in left]
        self._open([row.number for row in rows if row])
        for place, (before, row) in enumerate(zip(left, rows, strict=True)):
            assert row is not None
            self.rows[place] = row
            state = wide.state(before)
            self._stack.put(place, self._apprentices[row.number])
            self._stack.restore(place, state)
        self._optimiser = self._make_optimiser()

    def _judge(self, number: int, before: State | None = None) -> Validator:
        one = self._apprentices[number]
        return Validator(
            model=one.model,
            network=one.model,
            validation=one.validation,
            protocol=self._protocol,
            device=CPU,
            kept=self._kept[number] if self._kept else None,
            before=before.part(f"validator{number}") if before else None,
        )

    def _batch(self) -> tuple[Tensor, Tensor]:
        return self._source.gather([next(row.batches) if row else None for row in self.rows])

    def _make_optimiser(self) -> torch.optim.Optimizer:
        """One for all runs under way, with a group for each learning rate."""
        merged: dict[tuple[Any, ...], dict[str, Any]] = {}
        for place, row in enumerate(self.rows):
            if row is None:
                continue
            weights, own = self._stack.weights(place)
            for group in groups_of(
                weights, own, self._apprentices[row.number].parts, self._protocol
            ):
                key = (
                    group["lr"],
                    group.get("weight_decay"),
                    None if self._schedule == "constant" else row.epoch,
                )
                entry = merged.setdefault(
                    key, {**group, "params": [], "rate": group["lr"], "epoch": row.epoch}
                )
                entry["params"] += group["params"]
        self._since = 0
        optimiser = make_optimiser(list(merged.values()), self._protocol.optimiser)
        optimiser.state.update(self._stack.gathered)
        self._stack.gathered = optimiser.state
        return optimiser

    def _set_rates(self, step: int) -> None:
        """Set the learning rates of the next step, each by how far its runs are."""
        if self._schedule == "constant":
            return
        steps = self._protocol.epochs * self._source.iterations
        for group in self._optimiser.param_groups:
            done = (group["epoch"] + self._since) * self._source.iterations + step
            group["lr"] = group["rate"] * share_of_rate(self._schedule, done, steps)
