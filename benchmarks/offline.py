"""What it costs to plan batches from the memory bank, as a ratio to a training step of a head.

python benchmarks/offline.py [SAMPLER]...

One thread; 60,000 vectors of 128 numbers, a head of 128 dimensions, batches of 28 x 4; a plan of
one pass. The step is that of triplet on one head that is trained alone, with the balanced sampler.
Times are the best of several, in turns. Memory: each plan in a process of its own, its peak beyond
what the process held with the bank.
"""

import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from training import best_of, training_step

from assay.bank import Bank
from assay.data.packs import View
from assay.embedding import outputs
from assay.heads import HeadShape
from assay.model import Architecture, untrained_model
from assay.protocols import Batch, protocols, resolve
from assay.samplers import samplers
from assay.samplers.sampler import Planner, bank_of
from assay.trunks import trunk_facts

SAMPLES, DIM, BATCH, ROUNDS = 60_000, 128, (28, 4), 3
COUNT = SAMPLES // (BATCH[0] * BATCH[1])
CLASSES = (1_000, 12_000)


def write_vectors(path: Path, classes: int) -> None:
    """Write unit vectors around the centres of classes of equal size."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, DIM, generator=draw)
    noise = torch.randn(SAMPLES, DIM, generator=draw)
    np.save(path, F.normalize(0.6 * centres[torch.arange(SAMPLES) % classes] + noise).numpy())


def read_bank(path: Path, classes: int) -> Bank:
    return Bank(torch.from_numpy(np.load(path)), torch.arange(SAMPLES) % classes)


def plan(name: str, bank: Bank) -> None:
    planner: Planner = samplers[name]  # type: ignore[assignment]
    planner(bank, BATCH, COUNT, np.random.default_rng(0))


def extra_memory(name: str, path: Path, classes: int) -> float:
    """Return by how many megabytes the peak of this process grows with a plan."""
    torch.set_num_threads(1)
    bank = read_bank(path, classes)
    plan(name, Bank(bank.z[:1000].clone(), bank.y[:1000] % 100))
    before = peak()
    plan(name, bank)
    return peak() - before


def peak() -> float:
    """Return the largest memory of this process so far, in megabytes.

    `getrusage` would count that of the process which started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def works(bank: Bank) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a training step of a head, and the embedding of all samples by it."""
    protocol = replace(protocols["quick"], dim=DIM, batch=Batch(BATCH, (112, 1)))
    resolved = resolve(protocol, "features", trunk_facts)
    model = untrained_model(Architecture.under(resolved, DIM, HeadShape((DIM,))), "none")
    view = View(bank.z.numpy(), bank.y.numpy())
    embed = partial(outputs, model, view.x, 0, torch.device("cpu"))
    return training_step("triplet", model, view, resolved), embed


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or [name for name in samplers if bank_of(samplers[name])]
    with tempfile.TemporaryDirectory() as folder:
        paths = {classes: Path(folder) / f"{classes}.npy" for classes in CLASSES}
        for classes, path in paths.items():
            write_vectors(path, classes)
        banks = {classes: read_bank(path, classes) for classes, path in paths.items()}
        step, embed = works(banks[CLASSES[0]])

        def one_pass() -> None:
            for _ in range(COUNT):
                step()

        timed: dict[str, Callable[[], object]] = {"step": one_pass, "embed": embed}
        cases = [(name, classes) for name in names for classes in CLASSES]
        timed |= {
            f"{name} {classes}": partial(plan, name, banks[classes]) for name, classes in cases
        }
        best = best_of(timed, ROUNDS, 1)
        print(f"| a pass of {COUNT} batches | ms for each batch | ratio to the step | extra MB |")
        print("| --- | --- | --- | --- |")
        show("training steps of triplet on a head", best["step"], best["step"], "")
        show("embedding all samples once", best["embed"], best["step"], "")
        for name, classes in cases:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                extra = pool.apply(extra_memory, (name, paths[classes], classes))
            time_ = best[f"{name} {classes}"]
            show(f"`{name}`, {classes:,} classes", time_, best["step"], f"{extra:.0f}")


def show(what: str, time_: float, step: float, extra: str) -> None:
    print(f"| {what} | {1000 * time_ / COUNT:.2f} | {time_ / step:.2f} | {extra} |")


if __name__ == "__main__":
    main()
