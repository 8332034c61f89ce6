"""Checks of what a run cost, as its result says, against its announcement and its model.

How many samples a fold has follows from its validation, how many steps were taken from history and
protocol. Where the code of a method of Assay's own is that of the announcement, the method itself
says how many weights it has and how often it embeds its training samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from assay.errors import BadInput
from assay.methods import BuiltMethod, Loss, build_method, methods, source_of
from assay.model import (
    UNREADABLE,
    Architecture,
    architecture_at_test,
    count_numbers,
    has_frozen_trunk,
    read_architecture,
    size_of,
)
from assay.protocols.protocol import bits_of
from assay.records.keys import own_source
from assay.records.lines import Preregistration
from assay.records.run import WEIGHTS, Checkpoint, ImageCounts, Run, RunBudget, RunResult
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.samplers import samplers
from assay.samplers.sampler import bank_of, size_of_batch
from assay.train import iterations_of, sampler_of, times_embedded

CHANNELS = (3, 1)
"""Channels that images may have; a frozen trunk was counted for those of the data."""

Wrong = Iterator[tuple[str, object]]
"""Fields of a budget that cannot be what they are, and what they should be."""


def inputs_of(store: Store, record: StudyRecord) -> int | None:
    """Return the width of the vectors, or the channels of the images, that the models of a study
    take; None where the weights of none can be read.
    """
    paths = (store.run(entry.key) / WEIGHTS for entry in record.reproductions)
    try:
        return next((read_architecture(path).inputs for path in paths if path.exists()), None)
    except UNREADABLE:
        return None


@dataclass(frozen=True)
class BudgetCheck:
    """A finished run with all that its counts follow from.

    Args:
        folder: of the run.
        announced: preregistration of its study.
        run: all that determines it.
        result: its outcome.
        history: every validation, at least one.
        inputs: width of the vectors, or channels of the images, that its model takes.
    """

    folder: Path
    announced: Preregistration
    run: Run
    result: RunResult
    history: Sequence[Checkpoint]
    inputs: int | None

    def problems(self) -> Iterator[str]:
        """Yield where the budget in the result is not the one that the study gives."""
        budget = self.result.budget
        if budget is None:
            if self.announced.versions.source == own_source():
                yield "result.json has no budget, which this version of Assay always writes"
            return
        found = [*self._size(budget), *self._closed_form(budget), *self._images(budget.images)]
        for name, expected in {**dict(found), **dict(self._steps(budget.images))}.items():
            yield f"result.json has another budget.{name} than its study gives: {expected}"

    def _size(self, budget: RunBudget) -> Wrong:
        """Yield what is wrong with the sizes of model and embedding."""
        protocol, trained = self.run.protocol, self._architecture
        bits = bits_of(budget.dim, protocol.similarity)
        if budget.bits != bits:
            yield "bits", bits
        if trained is None:
            return
        frozen = has_frozen_trunk(protocol)
        sizes = [
            size_of(architecture_at_test(trained, protocol, channels))
            for channels in (CHANNELS if frozen else CHANNELS[:1])
        ]
        if budget.dim != sizes[0].dim:
            yield "dim", sizes[0].dim
        if budget.parameters not in [size.parameters for size in sizes]:
            yield "parameters", sizes[0].parameters
        least = size_of(trained).parameters
        if budget.shared != budget.parameters - least:
            yield "shared", sizes[0].parameters - least
        if self._by_steps:
            own = self._method
            due = least if own is None else least + count_numbers(own.loss)
            if budget.trained < due or (own is not None and budget.trained != due):
                yield "trained", due if own else f"at least {due}"

    def _closed_form(self, budget: RunBudget) -> Wrong:
        """Yield what is wrong where nothing is trained by steps: all samples are embedded once."""
        if self._by_steps:
            return
        if budget.trained:
            yield "trained", 0
        if budget.images.trained:
            yield "images.trained", 0
        if self._held_out is not None and budget.images.refreshed != self._in_training:
            yield "images.refreshed", self._in_training

    def _images(self, images: ImageCounts) -> Wrong:
        """Yield what is wrong with the counts that do not depend on the steps."""
        extracted = self._samples if has_frozen_trunk(self.run.protocol) else 0
        if images.extracted != extracted:
            yield "images.extracted", extracted
        if self._held_out is None:
            return
        folds = 1 if self.run.fold is not None else self.run.protocol.folds
        trained = folds * self._samples - self._held_out
        scored = trained if self.run.protocol.training_metrics else 0
        if images.scored != scored:
            yield "images.scored", scored
        # the validation that found a number that is not finite is not in the history
        times = [len(self.history), *([len(self.history) + 1] if self._diverged else [])]
        if images.validated not in [self._held_out * count for count in times]:
            yield "images.validated", self._held_out * times[0]

    def _steps(self, images: ImageCounts) -> Wrong:
        """Yield what is wrong with the counts of a training by steps, of a method of Assay's own.

        Samplers and losses of a user may take batches of another size.
        """
        method, protocol = self._method, self.run.protocol
        if method is None or self._held_out is None:
            return
        sampler = samplers[sampler_of(method, protocol)]
        size = size_of_batch(sampler, self.run.batch)
        iterations = iterations_of(protocol, self._in_training, self.run.batch)
        last = self.result.last_epoch
        latest = min(last + protocol.validate_every, protocol.epochs) if self._diverged else last
        if images.trained not in [epochs * iterations * size for epochs in range(last, latest + 1)]:
            yield "images.trained", last * iterations * size
            return
        if type(method.loss).batches is Loss.batches:
            bank, steps = bank_of(sampler), images.trained // size
            on = protocol, self._in_training, self.run.batch, steps
            times = times_embedded(method.loss, bank, *on)
            if images.refreshed != times * self._in_training:
                yield "images.refreshed", times * self._in_training
        elif images.refreshed % self._in_training:
            yield "images.refreshed", f"a multiple of {self._in_training}"

    @property
    def _by_steps(self) -> bool:
        return self.announced.method.head == "linear"

    @property
    def _diverged(self) -> bool:
        return self._by_steps and self.result.status == "diverged"

    @property
    def _samples(self) -> int:
        return self.announced.data.samples

    @property
    def _held_out(self) -> int | None:
        """Samples that are validated; None where no validation came to an end."""
        if self.run.fold is None:
            return self._samples
        scores = self.result.validation
        return int(scores["queries"] + scores["skipped"]) or None

    @property
    def _in_training(self) -> int:
        return self._samples - (self._held_out or 0)

    @cached_property
    def _architecture(self) -> Architecture | None:
        """What was trained: as the file of weights says, or else as the method does."""
        path, method = self.folder / WEIGHTS, self._method
        if path.exists():
            try:
                return read_architecture(path)
            except UNREADABLE:
                return None
        if self.inputs is None or method is None:
            return None
        shape = method.loss.head(self.run.protocol.dim)
        return Architecture.under(self.run.protocol, self.inputs, shape)

    @cached_property
    def _method(self) -> BuiltMethod | None:
        """The method as the run began to train it; None where its code here is another one."""
        run, method = self.run, methods.get(self.run.method)
        if method is None or method.loss is None or run.fold is None:
            return None
        sampler = samplers.get(method.sampler or run.protocol.sampler)
        own = all(
            getattr(part, "__module__", "").startswith("assay.") for part in (method.loss, sampler)
        )
        try:
            if not own or source_of(method, run.protocol) != self.announced.method.source:
                return None
        except BadInput:  # a trunk of the user that is not imported
            return None
        labels = np.array_split(np.arange(self.announced.data.classes), run.protocol.folds)
        classes = self.announced.data.classes - len(labels[run.fold])
        if run.protocol.supervision == "images":
            classes = self._in_training
        with torch.random.fork_rng(devices=[]):
            return build_method(method, run.parameters, run.protocol, classes)[0]
