"""Where the time of training goes: a quick run on glyphs, ResNet50 on photos, heads on features.

python benchmarks/training.py [glyphs|resnet50|features]...

glyphs: one thread, as ratios to `bare`, forward and backward of trunk and head on a fixed batch
summed to a scalar. resnet50: all threads, 224 pixels, batches of 32, against the loop that a user
of pytorch-metric-learning would write: torchvision's network in its contiguous layout, PIL
transforms in a DataLoader with one worker for each core, Adam (ours: RMSprop). Ours reads the pack,
theirs the JPEGs; both train everything, batch normalisation included, from random weights.
features: one thread, 10,000 x 384, a head of 64 dimensions, batches of 8 x 4, against their
MetricLossOnly trainer.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from assay.data import load, splits
from assay.data.augment import augment, centre
from assay.data.dataset import Pixels
from assay.data.packs import View
from assay.data.splits import folds
from assay.devices import keep_freed_memory
from assay.heads import HeadShape
from assay.methods import assemble, defaults, methods
from assay.metrics import evaluate
from assay.model import Architecture, Model
from assay.protocols import Batch, FirstStep, Protocol, ResolvedProtocol, protocols, resolve
from assay.records.keys import Environment
from assay.records.run import Run
from assay.run import compute
from assay.train import OneNetwork, Trainee, draw_batches
from assay.trunks import trunk_facts

ROUNDS, STEPS = 8, 15
CPU = torch.device("cpu")
FEATURES = ("contrastive", "triplet", "multi_similarity", "normalized_softmax")


def seconds(work: Callable[[], object], steps: int = STEPS) -> float:
    """Mean of a round of calls."""
    start = time.perf_counter()
    for _ in range(steps):
        work()
    return (time.perf_counter() - start) / steps


def best_of(works: dict[str, Callable[[], object]], rounds: int, steps: int) -> dict[str, float]:
    """The best round of each, taken in turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work, steps))
    return best


def training_step(
    name: str, model: Model, train: View, protocol: ResolvedProtocol
) -> Callable[[], object]:
    """Return a function that draws a batch and takes a training step on it."""
    method = methods[name]
    parts = assemble(method, defaults(method, protocol), protocol)
    classes = len(np.unique(train.y))
    parts.loss.setup(protocol.dim, classes)
    batch = protocol.batch_for(method.batch, classes)
    trainee = Trainee(model, parts, train, np.arange(len(train.y)), train, seed=0)
    network = OneNetwork(protocol, batch, CPU)
    network.open(1, STEPS)
    network.add(0, trainee, done=0)
    batches = draw_batches(trainee.y, protocol.sampler, batch, seed=0)
    return lambda: network.step({0: next(batches)})


def glyphs() -> None:
    torch.set_num_threads(1)
    dataset = load("glyphs")
    protocol = resolve(protocols["quick"], dataset.modality, trunk_facts)
    trainval, _ = splits.of(dataset, protocol)
    fold = folds(trainval, protocol.folds)[0]
    pixels = cast("Pixels", trainval.arrays(FirstStep("square", 28)))
    view = View(pixels, trainval.y)
    train, validation = view.rows(fold.train), view.rows(fold.validation)
    model = Model(Architecture("conv", 1, 28, protocol.dim))
    x, draw = centre(pixels[:32], 28), torch.Generator().manual_seed(0)
    works: dict[str, Callable[[], object]] = {
        "bare": lambda: model(x).sum().backward(),
        "contiguous layout": _contiguous(x),
        "draw and augment a batch": lambda: augment(
            pixels[np.arange(32)], protocol.augment, 28, draw
        ),
    }
    works |= {f"step of {name}": training_step(name, model, train, protocol) for name in FEATURES}
    best = best_of(works, ROUNDS, STEPS)
    print("| work, batch of 32 at 28 pixels, one thread | ms | ratio to bare |")
    print("| --- | --- | --- |")
    for name, time_ in best.items():
        print(f"| {name} | {1000 * time_:.2f} | {time_ / best['bare']:.2f} |")
    _validation(model, validation, best["bare"])


def _contiguous(x: torch.Tensor) -> Callable[[], object]:
    """The same network without channels_last."""
    plain = Model(Architecture("conv", 1, 28, 64)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    flat = x.contiguous(memory_format=torch.contiguous_format)

    def work() -> None:
        features = plain.trunk.blocks(2 * flat - 1).mean((2, 3))
        plain.head(features).sum().backward()

    return work


def _validation(model: Model, validation: View, bare: float) -> None:
    from assay.embedding import embed_samples

    time_ = min(
        seconds(lambda: evaluate(embed_samples(model, validation.x, 28, CPU), validation.y), 1)
        for _ in range(ROUNDS)
    )
    print(
        f"| one validation ({len(validation.y)} images) | {1000 * time_:.0f} | {time_ / bare:.1f} |"
    )


RESNET = Protocol(
    name="benchmark.v1", trunk="resnet50", weights="none", frozen="nothing",
    size=224, resize="short", stored=256, dim=128,
)  # fmt: skip


def resnet50() -> None:
    """Each loop in a process of its own, taking turns: what one does to the memory does not touch
    the other.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASSAY_CACHE"] = f"{folder}/cache"
        _photos(Path(folder) / "photos")
        rows = []
        for _ in range(2):
            rows.append(
                {
                    loop: _in_process(loop, f"{folder}/photos")
                    for loop in ("theirs", "ours", "compiled")
                }
            )
    best = {loop: min(row[loop] for row in rows) for loop in rows[0]}
    print(
        f"| training ResNet50 at 224, batch 32, {len(os.sched_getaffinity(0))} threads | images/s |"
        " ratio |"
    )
    print("| --- | --- | --- |")
    named = {
        "theirs": "plain loop with pytorch-metric-learning",
        "ours": "Assay",
        "compiled": "Assay, --set compile=true",
    }
    for loop, time_ in best.items():
        print(f"| {named[loop]} | {32 / time_:.2f} | {best['theirs'] / time_:.2f} |")


def _photos(folder: Path) -> None:
    """A few hundred JPEGs are enough to time a step."""
    sys.path.insert(0, str(Path(__file__).parent))
    from data import photo

    draw = np.random.default_rng(0)
    for number in range(32):
        (folder / f"class{number:02d}").mkdir(parents=True)
        for image in range(6):
            photo(draw).save(folder / f"class{number:02d}" / f"{image}.jpg", quality=90)


def _in_process(loop: str, folder: str) -> float:
    """Seconds of a step."""
    done = subprocess.run(
        [sys.executable, __file__, loop, folder], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def our_loop(folder: str, compiled: bool) -> float:
    from assay.data.packs import place_pack, read_pack
    from assay.model import untrained_model

    keep_freed_memory()
    dataset = load(f"folder:{folder}")
    protocol = resolve(replace(RESNET, compile=compiled), dataset.modality, trunk_facts)
    trainval, _ = splits.of(dataset, protocol)
    view = read_pack(place_pack(trainval, protocol.first_step))
    model = untrained_model(Architecture.under(protocol, 3, HeadShape((protocol.dim,))), "none")
    return _median_step(training_step("contrastive", model, view, protocol))


def their_loop(folder: str) -> float:
    """What the examples of pytorch-metric-learning do."""
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.samplers import MPerClassSampler

    from assay.trunks.torchvision import import_torchvision

    import_torchvision()
    from torchvision import datasets, models, transforms

    transform = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.RandomResizedCrop(224, scale=(0.16, 1)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    photos = datasets.ImageFolder(folder, transform)
    sampler = MPerClassSampler(photos.targets, 4, length_before_new_iter=32 * 100)
    loader = torch.utils.data.DataLoader(
        photos, 32, sampler=sampler, num_workers=len(os.sched_getaffinity(0)), drop_last=True
    )
    network = models.resnet50(weights=None)
    network.fc = torch.nn.Linear(network.fc.in_features, 128)
    optimiser, loss = torch.optim.Adam(network.parameters(), lr=1e-5), ContrastiveLoss()
    batches = iter(loader)

    def one() -> None:
        x, y = next(batches)
        optimiser.zero_grad()
        loss(network(x), y).backward()
        optimiser.step()

    return _median_step(one)


def _median_step(work: Callable[[], object]) -> float:
    work()  # the first one compiles and allocates
    return float(np.median([seconds(work, 1) for _ in range(4)]))


def features() -> None:
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(500), 20)
    x = (draw.normal(size=(500, 384))[y] + draw.normal(size=(10_000, 384))).astype(np.float32)
    view = View(x, y)
    print("| steps a second on 10,000 x 384 features, one thread | steps/s | to their trainer |")
    print("| --- | --- | --- |")
    theirs = max(_their_trainer(x, y) for _ in range(3))
    print(f"| pytorch-metric-learning, MetricLossOnly, contrastive | {theirs:.0f} | 1 |")
    for name in FEATURES:
        ours = max(_our_steps(name, view) for _ in range(3))
        print(f"| Assay, {name}, four folds as one stack | {ours:.0f} | {ours / theirs:.1f} |")
    alone = max(_our_steps("contrastive", view, alone=True) for _ in range(3))
    print(f"| Assay, contrastive, one fold alone | {alone:.0f} | {alone / theirs:.1f} |")


def _our_steps(name: str, view: View, alone: bool = False) -> float:
    """Training steps a second of the four folds of a trial, without validation: the slope between a
    short and a longer run.
    """

    def took(iterations: int) -> float:
        quick = replace(
            protocols["quick"], batch=Batch(), iterations=iterations, epochs=1, validate_every=1
        )
        protocol = resolve(quick, "features", trunk_facts)
        here = Environment("cpu", 1, torch.__version__, "")
        runs = [
            Run(
                protocol,
                "",
                name,
                "",
                defaults(methods[name], protocol),
                protocol.batch.shape(methods[name].batch),
                fold,
                0,
                here,
            )
            for fold in range(4)
        ]
        start = time.perf_counter()
        for group in [[run] for run in runs] if alone else [runs]:
            compute(group, view)
        return time.perf_counter() - start

    short, long = 50, 1050
    took(short)  # the first one imports and traces
    return 4 * (long - short) / (took(long) - took(short))


def _their_trainer(
    x: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    y: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> float:
    import logging

    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.samplers import MPerClassSampler
    from pytorch_metric_learning.trainers import MetricLossOnly

    logging.disable(logging.INFO)
    head, iterations = torch.nn.Linear(384, 64), 500
    trainer = MetricLossOnly(
        models={"trunk": torch.nn.Identity(), "embedder": head},
        optimizers={
            "embedder_optimizer": torch.optim.RMSprop(
                head.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4
            )
        },
        batch_size=32,
        loss_funcs={"metric_loss": ContrastiveLoss()},
        dataset=torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        sampler=MPerClassSampler(y, 4, length_before_new_iter=32 * iterations),
        dataloader_num_workers=0,
        iterations_per_epoch=iterations,
    )
    start = time.perf_counter()
    trainer.train(num_epochs=1)
    return iterations / (time.perf_counter() - start)


PARTS = {"glyphs": glyphs, "resnet50": resnet50, "features": features}
LOOPS = {
    "ours": lambda folder: our_loop(folder, False),
    "compiled": lambda folder: our_loop(folder, True),
    "theirs": their_loop,
}


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in LOOPS:
        print(LOOPS[sys.argv[1]](sys.argv[2]))
        return
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
        print()


if __name__ == "__main__":
    main()
