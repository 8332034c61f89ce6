"""Where the time of a quick run on glyphs goes, as ratios to the bare network.

python benchmarks/training.py

One thread. `bare` is forward and backward of trunk and head on a fixed batch, summed to a scalar: no data, no loss, no
optimiser. Everything else is measured in the same process, alternating, best of several rounds.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from assay.data import load, splits
from assay.data.augment import augment, to_tensor
from assay.data.splits import folds
from assay.data.views import View
from assay.methods import assemble, defaults, methods
from assay.metrics import evaluate
from assay.model import Architecture, Model
from assay.protocol import resolve
from assay.protocols import protocols
from assay.train import draw_batches, make_optimisers, step

ROUNDS, STEPS = 8, 15


def seconds(work: Callable[[], object]) -> float:
    """Mean of a round of calls."""
    start = time.perf_counter()
    for _ in range(STEPS):
        work()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    dataset = load("glyphs")
    protocol = resolve(protocols["quick"], dataset.look)
    trainval, _ = splits.of(dataset, protocol)
    fold = folds(trainval, protocol.folds)[0]
    view = View(trainval.arrays(28), trainval.y)
    train = view.rows(fold.train)
    validation = view.rows(fold.validation)
    model = Model(Architecture("conv", 1, 28, protocol.dim))
    x = to_tensor(train.x[:32])
    draw = torch.Generator().manual_seed(0)
    works: dict[str, Callable[[], object]] = {
        "bare": lambda: model(x).sum().backward(),
        "contiguous layout": _contiguous(x),
        "draw and augment a batch": lambda: augment(to_tensor(train.x[np.arange(32)]), protocol.augment, draw),
    }
    for name in ("contrastive", "triplet", "multi_similarity", "normalized_softmax"):
        works[f"step of {name}"] = _training_step(name, model, train, device)
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    print("| work, batch of 32 at 28 pixels, one thread | ms | ratio to bare |")
    print("| --- | --- | --- |")
    for name, time_ in best.items():
        print(f"| {name} | {1000 * time_:.2f} | {time_ / best['bare']:.2f} |")
    _validation(model, validation, best["bare"])


def _training_step(name: str, model: Model, train: View, device: torch.device) -> Callable[[], object]:
    protocol = resolve(protocols["quick"], "drawing")
    method = methods[name]
    parts = assemble(method, defaults(method, protocol), protocol)
    classes = len(np.unique(train.y))
    parts.loss.setup(protocol.dim, classes)
    optimisers = make_optimisers(model, parts, protocol)
    batches = draw_batches(train, protocol, protocol.batch_for(method.batch, classes), seed=0)
    return lambda: step(model, parts, optimisers, *next(batches), device)


def _contiguous(x: torch.Tensor) -> Callable[[], object]:
    """The same network without channels_last."""
    plain = Model(Architecture("conv", 1, 28, 64)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def work() -> None:
        features = plain.trunk.blocks(2 * x - 1).mean((2, 3))
        plain.head(features).sum().backward()

    return work


def _validation(model: Model, validation: View, bare: float) -> None:
    from assay.embed import embed

    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        evaluate(embed(model, validation.x, torch.device("cpu")), validation.y)
        times.append(time.perf_counter() - start)
    print(f"| one validation ({len(validation.y)} images) | {1000 * min(times):.0f} | {min(times) / bare:.1f} |")


if __name__ == "__main__":
    main()
