"""What a bench would cost, before it is begun: runs, time and disk."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from assay.data.augment import to_tensor
from assay.data.dataset import Labels
from assay.data.splits import TrainVal
from assay.methods import assemble, defaults
from assay.model import Architecture, Model
from assay.protocol import Protocol
from assay.study.design import Design

STEPS = 12
KEPT_TRIALS = 1


@dataclass(frozen=True)
class Plan:
    """Runs per method, and an estimate of the whole from a dozen timed training steps on this machine."""

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
    models = sum((design.reproductions + KEPT_TRIALS) * len(design.folds) for design in designs)
    vectors = sum(design.reproductions * len(design.folds) for design in designs) * len(trainval.y) * protocol.dim * 4
    return Plan(
        runs={design.method.name: design.runs for design in designs},
        batch={design.method.name: design.batch for design in designs},
        workers=workers,
        seconds=work / min(workers, max(1, len(trained)) * protocol.folds),
        bytes=models * size + vectors + 2 * len(trainval.y) * _bytes_per_sample(protocol, trainval),
    )


def _measure(protocol: Protocol, trainval: TrainVal, designs: Sequence[Design]) -> tuple[float, int]:
    """Seconds of one full run, and bytes of a model."""
    assert protocol.size is not None
    torch.set_num_threads(protocol.threads)
    model = Model(Architecture(protocol.trunk, trainval.inputs, protocol.size, protocol.dim))
    weights = sum(parameter.numel() for parameter in model.parameters()) * 4
    design = next((design for design in designs if design.trials), None)
    if design is None:
        return 0.0, weights
    x, y = _sample(trainval, protocol, design.batch)
    parts = assemble(design.method, defaults(design.method, protocol), protocol)
    parts.loss.setup(protocol.dim, int(y.max()) + 1)
    step = _seconds(lambda: parts.loss(model(x), y).backward())  # type: ignore[no-untyped-call]
    with torch.no_grad():
        look = _seconds(lambda: model(x)) / len(x)
    validations = 1 + protocol.epochs // protocol.validate_every
    validated = len(trainval.y) / protocol.folds
    return protocol.epochs * protocol.iterations * step + validations * validated * look, weights


def _sample(trainval: TrainVal, protocol: Protocol, batch: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    classes, per_class = batch
    count = classes * per_class
    rows: Labels = np.arange(count) % len(trainval.y)
    assert protocol.size is not None
    x = to_tensor(trainval.some(rows, protocol.size))
    return x, torch.arange(classes).repeat_interleave(per_class)


def _seconds(work: object) -> float:
    assert callable(work)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _bytes_per_sample(protocol: Protocol, trainval: TrainVal) -> int:
    assert protocol.size is not None
    return trainval.inputs * (protocol.size**2 if protocol.size else 4)
