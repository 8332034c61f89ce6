"""What samplers add to a training step: drawing or planning a batch, and the memory bank.

python benchmarks/samplers.py [--samplers NAME,...]

60,000 training samples of 12,000 classes, embeddings of 128 dimensions, batches of 56 classes x 2;
one thread. The steps are of contrastive with one network, on random samples: ResNet18 at 224
pixels, `conv` at 28, and a head on features of 384 dimensions, trained alone. What a sampler adds
is a batch drawn or planned, the rows of the bank that the batch replaces, and its share of
embedding all samples: a kept bank is embedded once in a training, counted over three passes, as
short as `quick.v2` trains; a fresh bank once in a pass. Memory is the peak of a training's
`Batches` in a process of its own, beyond what the process held before: the bank, how it is made, an
epoch's plan and what is saved.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from evaluation import clustered, extra_memory
from numpy.typing import NDArray

from assay.bank import Bank
from assay.data.packs import View
from assay.embedding import outputs
from assay.methods import assemble, defaults, methods
from assay.model import Architecture, Model
from assay.protocols import Protocol, ResolvedProtocol, resolve
from assay.samplers import samplers
from assay.samplers.sampler import Planner, Sampler, bank_of
from assay.train import Batches, OneNetwork, Trainee, iterations_of
from assay.trunks import trunk_facts

SAMPLES, CLASSES, DIM, BATCH = 60_000, 12_000, 128, (56, 2)
PER_BATCH = BATCH[0] * BATCH[1]
PASSES = 3
MOST_TIME, MOST_MEMORY = 20, 200
"""Percent of a step of ResNet18, and megabytes, that a sampler may add."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Step:
    """Seconds of a training step, and of embedding as many samples as a batch has."""

    training: float
    embedding: float


def protocol_of(trunk: str, sampler: str = "balanced") -> ResolvedProtocol:
    size = {"resnet18": 224, "conv": 28}.get(trunk)
    made = Protocol(
        "benchmark.v1", trunk=trunk, size=size, weights="none", frozen="nothing", dim=DIM,
        sampler=sampler, iterations=None,
    )  # fmt: skip
    return resolve(made, "photo" if size else "features", trunk_facts)


def trainee_of(protocol: ResolvedProtocol, view: View) -> Trainee:
    method, inputs = methods["contrastive"], np.asarray(view.x[:1]).shape[-1]
    model = Model(Architecture(protocol.trunk, inputs, protocol.size, DIM))
    parts = assemble(method, defaults(method, protocol), protocol)
    return Trainee(model, parts, view, np.arange(len(view.y)), view, seed=0)


def random_view(trunk: str) -> View:
    """As many samples as a batch has."""
    draw, y = np.random.default_rng(0), np.repeat(np.arange(BATCH[0]), BATCH[1])
    if trunk == "identity":
        return View(draw.normal(size=(PER_BATCH, 384)).astype(np.float32), y)
    side = {"resnet18": 256, "conv": 28}[trunk]
    return View(draw.integers(0, 256, size=(PER_BATCH, side, side, 3), dtype=np.uint8), y)


def best(work: Callable[[], object], rounds: int, calls: int = 1) -> float:
    """Seconds of a call in the best round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def measure_step(trunk: str) -> Step:
    protocol, view = protocol_of(trunk), random_view(trunk)
    trainee = trainee_of(protocol, view)
    network = OneNetwork(protocol, BATCH, CPU)
    network.open(1, 100)
    network.add(0, trainee, done=0)
    batches = Batches(trainee, trainee.model, protocol, BATCH, CPU)
    rounds, calls = (2, 1) if trunk == "resnet18" else (5, 20)
    network.step({0: batches.draw()})  # the first one allocates
    training = best(lambda: network.step({0: batches.draw()}), rounds, calls)

    @torch.no_grad()
    def embed() -> None:
        outputs(trainee.model, view.x, trainee.model.architecture.size, CPU)

    embed()
    return Step(training, best(embed, rounds, calls))


def measure_batch(name: str) -> float:
    """Seconds of a batch of an epoch, drawn or planned."""
    z, y = clustered(SAMPLES, CLASSES, DIM)
    count = SAMPLES // PER_BATCH

    def draw() -> None:
        if bank_of(samplers[name]) is None:
            sampler: Sampler = samplers[name]  # type: ignore[assignment]
            for _ in islice(sampler(y.numpy(), BATCH, 0), count):
                pass
        else:
            planner: Planner = samplers[name]  # type: ignore[assignment]
            planner(Bank(z, y), BATCH, count, np.random.default_rng(0))

    return best(draw, rounds=2) / count


def all_batches(name: str) -> Batches:
    """The batches of a training on all samples, whose network is a linear head."""
    x, y = clustered(SAMPLES, CLASSES, DIM)
    protocol = protocol_of("identity", name)
    trainee = trainee_of(protocol, View(x.numpy(), y.numpy()))
    return Batches(trainee, trainee.model, protocol, BATCH, CPU)


def take_in(batches: Batches, rows: NDArray[np.int64]) -> None:
    batches.take_in(rows, torch.ones(len(rows), DIM))


def measure_update(name: str) -> float:
    """Seconds of replacing the rows of a batch; 0 where there are none to replace."""
    batches = all_batches(name)
    rows = batches.draw().rows
    return best(partial(take_in, batches, rows), 5, 200) if batches.keeps_bank else 0.0


def prepare_epoch(name: str) -> Callable[[], object]:
    """Return an epoch of batches, with what is saved at its end."""
    batches = all_batches(name)
    steps = iterations_of(protocol_of("identity", name), SAMPLES, BATCH)

    def work() -> None:
        for _ in range(steps):
            rows = batches.draw().rows
            if batches.keeps_bank:
                take_in(batches, rows)
        batches.state()

    return work


def report(name: str, steps: dict[str, Step]) -> None:
    kind, batch, update = bank_of(samplers[name]), measure_batch(name), measure_update(name)
    times_embedded = {None: 0.0, "kept": 1 / PASSES, "fresh": 1.0}[kind]
    shares = {
        trunk: 100 * (batch + update + times_embedded * step.embedding) / step.training
        for trunk, step in steps.items()
    }
    memory = extra_memory(prepare_epoch, name)
    passed = shares["resnet18"] <= MOST_TIME and memory < MOST_MEMORY
    cells = [
        name, kind or "", f"{1e3 * batch:.2f}", f"{1e3 * update:.2f}" if update else "",
        *(f"{share:.2f}%" if share < 10 else f"{share:.0f}%" for share in shares.values()),
        f"{memory:.0f}", "" if passed else "**too much**",
    ]  # fmt: skip
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samplers", help="comma-separated; all if left out")
    asked = parser.parse_args().samplers
    chosen = [name for name in asked.split(",") if samplers[name]] if asked else sorted(samplers)
    torch.set_num_threads(1)
    named = {"resnet18": "ResNet18 at 224", "conv": "`conv` at 28", "identity": "head on features"}
    steps = {trunk: measure_step(trunk) for trunk in named}
    print(f"| batch of {PER_BATCH} | ms of a training step | ms to embed as many |")
    print("| --- | --- | --- |")
    for trunk, step in steps.items():
        print(
            f"| {named[trunk]} | {1e3 * step.training:.2f} | {1e3 * step.embedding:.2f} |",
            flush=True,
        )
    adds = [f"adds to a step of {text}" for text in named.values()]
    columns = ["sampler", "bank", "ms a batch", "ms to update rows", *adds, "MB", ""]
    print(f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for name in chosen:
        report(name, steps)
    print(f"At most {MOST_TIME}% of a step of ResNet18, and under {MOST_MEMORY} MB.")


if __name__ == "__main__":
    main()
