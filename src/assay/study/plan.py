"""What a bench would cost, before it is begun: runs, time and disk."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from assay.data.dataset import Labels, Pixels
from assay.data.packs import View, expected_bytes
from assay.devices import torch_threads
from assay.embedding import embed_samples
from assay.heads import HeadShape
from assay.methods import build_method, defaults, samplers
from assay.model import Architecture, count_numbers, untrained_model
from assay.protocols import FirstStep, Protocol
from assay.protocols.protocol import LISTED
from assay.samplers.sampler import bank_of
from assay.study.conditions import Conditions
from assay.study.design import Design
from assay.train import (
    Batches,
    OneNetwork,
    Trainee,
    iterations_of,
    sampler_of,
    times_embedded,
    training_labels,
)
from assay.trunks import build

STEPS, FEWEST = 12, 2


@dataclass(frozen=True)
class Plan:
    """Runs per method, and an estimate of the whole from a dozen timed steps on this CPU; test
    scoring is not in it.

    `budget` says in words what the runs of a searched method are, `reference` names the method that
    all are compared with.
    """

    budget: str
    runs: dict[str, int]
    batch: dict[str, tuple[int, int]]
    reference: str | None
    workers: int
    seconds: float
    bytes: int

    @property
    def total(self) -> int:
        """Runs of all methods."""
        return sum(self.runs.values())


def plan(designs: Sequence[Design], workers: int, reference: str | None = None) -> Plan:
    """Time a few steps of the first trained method and count up."""
    conditions = designs[0].conditions
    protocol, trainval = conditions.resolved, conditions.trainval
    rows = _rows_of_sample(conditions, max(FEWEST, *(design.batch[0] for design in designs)))
    view, reading = _sample(conditions, rows)
    seconds, size = _measure(conditions, view, designs)
    trained = [design for design in designs if design.iterations_of_run]
    work = sum(design.runs for design in trained) * seconds
    kept = sum(
        design.budget.searches
        * (design.budget.reproductions * len(design.study.folds) + design.budget.trial_folds)
        for design in designs
    )
    wide = (
        build(conditions.resolved.trunk, trainval.inputs).features
        if any(design.dim == 0 for design in designs)
        else 0
    )
    numbers = sum(
        design.budget.searches
        * design.budget.reproductions
        * len(design.study.folds)
        * (design.dim or wide)
        for design in designs
    )
    vectors = numbers * len(trainval.y) * 4
    return Plan(
        budget=budget_in_words(protocol),
        runs={design.name: design.runs for design in designs},
        batch={design.name: design.batch for design in designs},
        reference=reference,
        workers=workers,
        seconds=work / min(workers, max(1, len(trained)) * protocol.folds)
        + 2 * len(trainval.y) * reading,
        bytes=round(kept * size + vectors + 2 * _bytes(conditions, view)),
    )


def budget_in_words(protocol: Protocol) -> str:
    """Return in words what a searched method costs under a protocol.

    >>> budget_in_words(Protocol("p.v1", searches=4, trials=6, trial_folds=2, reproductions=1))
    '4 searches, each 6 trials on 2 of 4 folds and 1 reproduction on 4 folds'
    """
    if protocol.trials == 0:
        return (
            f"nothing is searched; {protocol.searches * protocol.reproductions} reproductions on"
            f" {protocol.folds} folds"
        )
    each = f"{protocol.trials} trials on {protocol.folds_of_a_trial} of {protocol.folds} folds"
    again = (
        f"{protocol.reproductions} reproduction{'s' * (protocol.reproductions != 1)} on"
        f" {protocol.folds} folds"
    )
    return f"{protocol.searches} search{'es' * (protocol.searches != 1)}, each {each} and {again}"


def _rows_of_sample(conditions: Conditions, size: int) -> Labels:
    """Return the rows of trainval that a few steps are timed on: those of the first classes, or of
    the first listed pairs or triplets.
    """
    trainval = conditions.trainval
    if conditions.resolved.supervision in LISTED:
        assert trainval.relations is not None
        rows: Labels = np.unique(trainval.relations.samples[:size])
        return rows
    return np.flatnonzero(trainval.y < size)


def _sample(conditions: Conditions, rows: Labels) -> tuple[View, float]:
    """Return the view of a few samples, and the seconds per sample to make it."""
    protocol, trainval = conditions.resolved, conditions.trainval
    start = time.perf_counter()
    squares = FirstStep(
        "square", protocol.first_step.side
    )  # as much work as images that keep their shapes
    x = (
        conditions.frozen_trunk.compute(trainval, rows)
        if protocol.frozen == "trunk"
        else cast("Pixels", trainval.some(rows, squares))
    )
    listed = None if trainval.relations is None else trainval.relations.within(rows)
    return View(x, trainval.y[rows], relations=listed), (time.perf_counter() - start) / len(rows)


def _measure(conditions: Conditions, sample: View, designs: Sequence[Design]) -> tuple[float, int]:
    """Return the seconds of one run, and the bytes of a model."""
    protocol, device = conditions.resolved, torch.device("cpu")
    design = next((design for design in designs if design.iterations_of_run), None)
    if design is None:
        usual = Architecture.under(protocol, sample.inputs, HeadShape((protocol.dim,)))
        return 0.0, 4 * count_numbers(untrained_model(usual, protocol.weights))
    known = protocol.supervision
    classes = 1 + int(training_labels(sample.y, known).max())
    parameters = defaults(design.method, protocol)
    method, shape = build_method(design.method, parameters, protocol, classes)
    model = untrained_model(Architecture.under(protocol, sample.inputs, shape), protocol.weights)
    method.loss.prepare(len(sample.y), model.trunk.features)
    trainee = Trainee(model, method, sample, np.arange(len(sample.y)), sample, 0, supervision=known)
    network = OneNetwork(protocol, design.batch, device)
    before = method.loss.head_first * iterations_of(protocol, len(sample.y), design.batch)
    network.open(1, before + STEPS)
    network.add(0, trainee, done=before)  # steps of the head alone would take less time

    def embed() -> Tensor:
        return embed_samples(model, sample.x, model.architecture.size, device)

    batches = Batches(trainee, model, protocol, design.batch, device)
    with torch_threads(protocol.threads):
        looking = _seconds(embed) / len(sample.y)
        start = time.perf_counter()
        first = batches.draw()  # with the plan of many batches, if they are planned
        planning = (time.perf_counter() - start) / batches.planned
        network.step({0: first})
        training = planning + _seconds(lambda: network.step({0: batches.draw()}))
    validations = 1 + protocol.epochs // protocol.validate_every
    validated = len(conditions.trainval.y) / protocol.folds
    trained = len(conditions.trainval.y) - round(validated)
    steps = protocol.epochs * iterations_of(protocol, trained, design.batch)
    bank = bank_of(samplers[sampler_of(method, protocol)])
    refreshed = trained * times_embedded(method.loss, bank, protocol, trained, design.batch, steps)
    seconds = steps * training + (validations * validated + refreshed) * looking
    return seconds, 4 * count_numbers(model)


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _bytes(conditions: Conditions, sample: View) -> float:
    """Return the bytes of trainval as runs read it."""
    if conditions.on_vectors:
        return len(conditions.trainval.y) * sample.inputs * 4
    return expected_bytes(
        conditions.trainval, conditions.resolved.first_step, conditions.resolved.form
    )
