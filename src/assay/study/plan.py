"""What a bench would cost, before it is begun: runs, time and disk."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from assay.data.dataset import Labels
from assay.data.splits import TrainVal
from assay.data.views import View
from assay.embed import embed
from assay.methods import assemble, defaults
from assay.model import Architecture, Model
from assay.protocol import Protocol
from assay.study.design import Design
from assay.train import draw_batches, make_optimisers, step

STEPS = 12


@dataclass(frozen=True)
class Plan:
    """Runs per method, and an estimate of the whole from a dozen timed steps on this CPU; test scoring is not in it."""

    runs: dict[str, int]
    batch: dict[str, tuple[int, int]]
    workers: int
    seconds: float
    bytes: int

    @property
    def total(self) -> int:
        """Runs of all methods."""
        return sum(self.runs.values())


def plan(designs: Sequence[Design], workers: int) -> Plan:
    """Time a few steps of the first trained method and count up."""
    arena = designs[0].arena
    protocol, trainval = arena.resolved, arena.trainval
    seconds, size = _measure(protocol, trainval, designs)
    trained = [design for design in designs if design.trials]
    work = sum(design.runs for design in trained) * seconds
    kept = sum((design.reproductions + bool(design.trials)) * len(design.folds) for design in designs)
    vectors = sum(design.reproductions * len(design.folds) for design in designs) * len(trainval.y) * protocol.dim * 4
    return Plan(
        runs={design.method.name: design.runs for design in designs},
        batch={design.method.name: design.batch for design in designs},
        workers=workers,
        seconds=work / min(workers, max(1, len(trained)) * protocol.folds),
        bytes=kept * size + vectors + 2 * len(trainval.y) * _bytes_per_sample(protocol, trainval),
    )


def _measure(protocol: Protocol, trainval: TrainVal, designs: Sequence[Design]) -> tuple[float, int]:
    """Seconds of one full run, and bytes of a model."""
    assert protocol.size is not None
    model = Model(Architecture(protocol.trunk, trainval.inputs, protocol.size, protocol.dim))
    weights = sum(parameter.numel() for parameter in model.parameters()) * 4
    design = next((design for design in designs if design.trials), None)
    if design is None:
        return 0.0, weights
    classes, _ = design.batch
    rows: Labels = np.flatnonzero(trainval.y < classes)
    sample = View(trainval.some(rows, protocol.size), trainval.y[rows])
    parts = assemble(design.method, defaults(design.method, protocol), protocol)
    parts.loss.setup(protocol.dim, classes)
    device = torch.device("cpu")
    optimisers, batches = make_optimisers(model, parts, protocol), draw_batches(sample, protocol, design.batch, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(protocol.threads)
    try:
        model.train()
        training = _seconds(lambda: step(model, parts, optimisers, *next(batches), device))
        looking = _seconds(lambda: embed(model, sample.x, device)) / len(rows)
    finally:
        torch.set_num_threads(threads)
    validations = 1 + protocol.epochs // protocol.validate_every
    validated = len(trainval.y) / protocol.folds
    return protocol.epochs * protocol.iterations * training + validations * validated * looking, weights


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _bytes_per_sample(protocol: Protocol, trainval: TrainVal) -> int:
    assert protocol.size is not None
    return trainval.inputs * (protocol.size**2 if protocol.size else 4)
