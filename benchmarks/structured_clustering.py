"""A step of structured clustering beside one of triplet, forward and backward, in one run.

python benchmarks/structured_clustering.py

One thread, 64 dimensions, 24 classes x 5 samples. The embeddings are random, or near the means of
their classes as late in training. The losses take turns, and a time is the best of many.
"""

import time

import torch
from torch import Tensor

from assay.losses import losses

CLASSES, PER_CLASS, DIM = 24, 5, 64
STEPS = 100
LIMIT = 20
"""Milliseconds that a step may take."""

SPREADS = {"random": None, "half trained": 1.0, "trained": 0.3}
"""How far samples are from the mean of their class, in units of the means' spread."""


def draw_batch(spread: float | None) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    z = torch.randn(len(y), DIM, generator=draw)
    if spread is not None:
        z = torch.randn(CLASSES, DIM, generator=draw)[y] + spread * z
    return z.requires_grad_(), y


def time_steps(names: list[str], z: Tensor, y: Tensor) -> list[float]:
    """Return the milliseconds of the fastest step of each loss."""
    ready = [losses[name]() for name in names]
    taken: list[list[float]] = [[] for _ in names]
    for _ in range(STEPS):
        for loss, times in zip(ready, taken, strict=True):
            z.grad = None
            before = time.perf_counter()
            loss(z, y).backward()  # type: ignore[no-untyped-call]
            times.append(1e3 * (time.perf_counter() - before))
    return [min(times) for times in taken]


def main() -> None:
    torch.set_num_threads(1)
    print("| embeddings | structured_clustering, ms | triplet, ms | ratio |")
    print("| --- | --- | --- | --- |")
    for name, spread in SPREADS.items():
        own, other = time_steps(["structured_clustering", "triplet"], *draw_batch(spread))
        flag = "" if own <= LIMIT else " **too slow**"
        print(f"| {name} | {own:.2f}{flag} | {other:.2f} | {own / other:.1f} |")


if __name__ == "__main__":
    main()
