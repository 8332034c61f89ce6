"""A step of a loss with a memory of past batches beside the loss alone, in one run.

python benchmarks/cross_batch_memory.py

One thread, 64 dimensions, a batch of 8 classes x 4 samples, a full memory of 10,000 embeddings of
500 classes; for triplets also of 50 classes, since they compare every positive pair with the whole
memory. The losses take turns, and a time is the best of many.
"""

import time
from typing import Any

import torch

from assay.losses import losses

BATCH, DIM, MEMORY, STEPS = 32, 64, 10_000, 30
INNER = {
    "xbm_contrastive": "contrastive",
    "xbm_triplet": "triplet",
    "xbm_margin": "margin",
    "xbm_multi_similarity": "multi_similarity",
}


def with_full_memory(name: str, classes: int) -> Any:
    """Return a loss whose warm-up is over and whose memory is full of random unit vectors."""
    loss: Any = losses[name](warmup=0.0, memory=1.0)
    loss.setup(DIM, classes)
    loss.prepare(MEMORY, DIM)
    draw = torch.Generator().manual_seed(0)
    loss.embeddings.copy_(torch.nn.functional.normalize(torch.randn(MEMORY, DIM, generator=draw)))
    loss.labels.copy_(torch.arange(MEMORY) % classes)
    loss.enqueued.fill_(MEMORY)
    return loss


def time_steps(name: str, classes: int) -> tuple[float, float]:
    """Return the milliseconds of the fastest step with the memory, and of the loss alone."""
    alone: Any = losses[INNER[name]]()
    alone.setup(DIM, classes)
    ready = [with_full_memory(name, classes), alone]
    z = torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = torch.arange(BATCH) // 4
    taken: list[list[float]] = [[], []]
    for _ in range(STEPS):
        for loss, times in zip(ready, taken, strict=True):
            z.grad = None
            before = time.perf_counter()
            loss(z, y).backward()
            times.append(1e3 * (time.perf_counter() - before))
    return min(taken[0]), min(taken[1])


def main() -> None:
    torch.set_num_threads(1)
    print("| method | classes of the memory | with memory, ms | alone, ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for name, classes in [*((name, 500) for name in INNER), ("xbm_triplet", 50)]:
        own, alone = time_steps(name, classes)
        print(f"| {name} | {classes} | {own:.2f} | {alone:.2f} | {own / alone:.0f} |")


if __name__ == "__main__":
    main()
