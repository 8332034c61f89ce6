"""Losses against pytorch-metric-learning's, forward and backward, as ratios in one run; and their
memory in large batches.

python benchmarks/losses.py [speed | memory] [--losses NAME,...]

Speed: one thread, 128 dimensions, 4 samples of each class, max(100, batch / 4) classes, batches of
32, 112 and 256. The two libraries take turns of up to 20 calls, and a time is the best of many.
Memory: each loss in a process of its own, its peak beyond what the process held after a batch of
32.
"""

import argparse
import math
import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.losses import losses

DIM, PER_CLASS = 128, 4
BATCHES = {32: 2.5, 112: 4.0, 256: 7.5}
"""Batch sizes, and how many times as fast the losses must be there in the geometric mean."""
NOISE = 1.05
LIMIT = 1024
"""Megabytes of extra memory at the largest batch."""
LARGE = (512, 1024, 2048)
SECONDS = 0.5
"""For each loss of each library at each batch size."""

TURN = 20
"""Calls in a row of one library, as in a training loop; one where a call is long."""

Loss = Callable[[Tensor, Tensor], Tensor]


def rivals(classes: int) -> dict[str, Any]:
    """The losses of pytorch-metric-learning that ours correspond to, by our names."""
    from pytorch_metric_learning import losses as pml
    from pytorch_metric_learning.reducers import MeanReducer
    from pytorch_metric_learning.regularizers import SparseCentersRegularizer, ZeroMeanRegularizer

    warnings.filterwarnings("ignore", module="pytorch_metric_learning")
    return {
        "contrastive": pml.ContrastiveLoss(pos_margin=0, neg_margin=0.5),
        "triplet": pml.TripletMarginLoss(margin=0.1),
        "triplet_mean": pml.TripletMarginLoss(margin=0.2, reducer=MeanReducer()),
        "nt_xent": pml.NTXentLoss(temperature=0.07),
        "proxy_nca": pml.ProxyNCALoss(classes, DIM, softmax_scale=9),
        "margin": pml.MarginLoss(margin=0.2, beta=1.2, learn_beta=True),
        "margin_per_class": pml.MarginLoss(
            margin=0.2, beta=1.2, learn_beta=True, num_classes=classes
        ),
        "normalized_softmax": pml.NormalizedSoftmaxLoss(classes, DIM, temperature=0.05),
        "cosface": pml.CosFaceLoss(classes, DIM, margin=0.35, scale=64),
        "arcface": pml.ArcFaceLoss(classes, DIM, margin=28.6, scale=64),
        "sphereface": pml.SphereFaceLoss(classes, DIM, margin=4, scale=30),
        "fastap": pml.FastAPLoss(num_bins=10),
        "snr_contrastive": pml.SignalToNoiseRatioContrastiveLoss(
            pos_margin=0,
            neg_margin=0.9,
            embedding_regularizer=ZeroMeanRegularizer(),
            embedding_reg_weight=0.1,
        ),
        "multi_similarity": pml.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        "soft_triple": pml.SoftTripleLoss(
            classes,
            DIM,
            centers_per_class=10,
            la=20,
            gamma=0.1,
            margin=0.01,
            weight_regularizer=SparseCentersRegularizer(classes, 10),
            weight_reg_weight=0.2,
        ),
        "lifted": pml.LiftedStructureLoss(neg_margin=1, pos_margin=0),
        "lifted_generalized": pml.GeneralizedLiftedStructureLoss(neg_margin=1, pos_margin=0),
        "n_pairs": pml.NPairsLoss(),
        "angular": pml.AngularLoss(alpha=45),
        "ranked_list": pml.RankedListLoss(margin=0.4, Tn=10, imbalance=0.5, alpha=1.2, Tp=0),
        "tuplet_margin": pml.TupletMarginLoss(margin=5.73, scale=64),
        "circle": pml.CircleLoss(m=0.4, gamma=80),
        "proxy_anchor": pml.ProxyAnchorLoss(classes, DIM, margin=0.1, alpha=32),
        "histogram": pml.HistogramLoss(n_bins=100),
        "supcon": pml.SupConLoss(temperature=0.1),
        "smooth_ap": pml.SmoothAPLoss(temperature=0.01),
    }


def ours(name: str, classes: int) -> Loss:
    """A loss of Assay, ready for use."""
    loss = losses[name]()
    loss.setup(DIM, classes)
    return loss


def draw_batch(size: int) -> tuple[Tensor, Tensor]:
    """Random embeddings, 4 of each class."""
    z = torch.randn(size, DIM, generator=torch.Generator().manual_seed(size))
    return z.requires_grad_(), torch.arange(size) // PER_CLASS


def step(loss: Loss, z: Tensor, y: Tensor) -> None:
    """Forward and backward."""
    z.grad = None
    loss(z, y).backward()  # type: ignore[no-untyped-call]


def best_of_turns(works: list[Callable[[], None]]) -> list[float]:
    """Least seconds of each, taking turns until their time is up."""
    for work in works:
        work()
    best, start, rounds = [math.inf] * len(works), time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - start < SECONDS * len(works):
        for number, work in enumerate(works):
            for _ in range(TURN):
                before = time.perf_counter()
                work()
                taken = time.perf_counter() - before
                best[number] = min(best[number], taken)
                if taken > SECONDS / 10:
                    break
        rounds += 1
    return best


def measure_speed(chosen: list[str]) -> None:
    torch.set_num_threads(1)
    print(
        "| loss | "
        + " | ".join(f"batch {size}: ours, ms | theirs, ms | ratio" for size in BATCHES)
        + " |"
    )
    print("| --- |" + " --- | --- | --- |" * len(BATCHES))
    ratios: dict[int, list[float]] = {size: [] for size in BATCHES}
    for name in (name for name in rivals(100) if name in chosen):
        cells = []
        for size in BATCHES:
            classes = max(100, size // PER_CLASS)
            z, y = draw_batch(size)
            mine, theirs = ours(name, classes), rivals(classes)[name]
            own, other = best_of_turns([lambda: step(mine, z, y), lambda: step(theirs, z, y)])  # noqa: B023
            ratios[size].append(other / own)
            flag = "" if own <= NOISE * other else " **slower**"
            cells.append(f"{own * 1e3:.3f} | {other * 1e3:.3f} | {other / own:.2f}{flag}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    means = {
        size: math.exp(sum(map(math.log, found)) / len(found)) for size, found in ratios.items()
    }
    print(
        "| geometric mean | "
        + " | ".join(f" | at least {BATCHES[size]} | {means[size]:.2f}" for size in BATCHES)
        + " |"
    )


def resident() -> float:
    """Megabytes of this process."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096 / 2**20


def peak_beyond(work: Callable[[], None]) -> float:
    """Megabytes that the work needs at its peak beyond what the process holds now."""
    before, highest, done = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.0005):
            highest[0] = max(highest[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(highest[0], resident()) - before


def measure_one(name: str, size: int, answer: Any) -> None:
    torch.set_num_threads(2)
    loss = ours(name, max(100, size // PER_CLASS))
    step(loss, *draw_batch(32))
    z, y = draw_batch(size)
    start = time.perf_counter()
    extra = peak_beyond(lambda: step(loss, z, y))
    answer.send((extra, time.perf_counter() - start))


def in_own_process(name: str, size: int) -> tuple[float, float]:
    """Megabytes and seconds of a step."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure_one, args=(name, size, sender))
    process.start()
    sender.close()
    found: tuple[float, float] = (
        receiver.recv()
    )  # EOFError if the process died, of memory for instance
    process.join()
    return found


def measure_memory(chosen: list[str]) -> None:
    print(
        "\n| loss | "
        + " | ".join(f"MB at {size}" for size in LARGE)
        + f" | ms at {LARGE[-1]} | growth of the last doubling |"
    )
    print("| --- |" + " --- |" * (len(LARGE) + 2))
    for name in (name for name in chosen if losses[name].compares != "classes"):
        found = [in_own_process(name, size) for size in LARGE]
        megabytes = [extra for extra, _ in found]
        flag = "" if megabytes[-1] < LIMIT else " **too much**"
        cells = " | ".join(f"{extra:.0f}" for extra in megabytes)
        print(
            f"| {name} | {cells}{flag} | {found[-1][1] * 1e3:.0f} |"
            f" {megabytes[-1] / max(megabytes[-2], 1):.1f} |",
            flush=True,
        )
    print(f"At most {LIMIT} MB, and growth of at most 4, that of pairs x batch.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"speed": measure_speed, "memory": measure_memory}
    parser.add_argument("part", nargs="?", choices=list(parts), help="both if left out")
    parser.add_argument("--losses", help="comma-separated; all if left out")
    arguments = parser.parse_args()
    chosen = (
        [name for name in arguments.losses.split(",") if losses[name]]
        if arguments.losses
        else list(losses)
    )
    for part in [arguments.part] if arguments.part else parts:
        parts[part](chosen)


if __name__ == "__main__":
    main()
