"""What images cost: decoding against the pack, packing on one core and on all, opening a pack for
the first time and again, augmentation against a training step.

python benchmarks/data.py [FOLDER]

Two thousand photo-like JPEGs (noise of all scales, about 500 x 375 pixels) are made in FOLDER, a
temporary one where none is given. Pack and JPEGs are both in the page cache when they are read.
Everything is measured in this process, alternating, best of several rounds; packing is one round
each, in a process bound to its cores.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from assay.data import content, load, splits
from assay.data.augment import augment
from assay.data.image_files import SETTLED
from assay.data.packs import View, place_pack, read_pack
from assay.heads import HeadShape
from assay.methods import assemble, defaults, methods
from assay.model import Architecture, Model
from assay.protocols import Augment, FirstStep, Protocol, resolve
from assay.train import ReadBatch, optimiser_of, step
from assay.trunks import trunk_facts

CLASSES, IMAGES, BATCH, SIZE, ROUNDS = 100, 20, 32, 227, 5
STEP = FirstStep("short", 256)
PROTOCOL = resolve(
    Protocol(
        name="benchmark.v1",
        trunk="resnet50",
        weights="none",
        frozen="batchnorm",
        size=SIZE,
        resize="short",
        stored=256,
        augment=Augment(area=(0.16, 1.0), aspect=(3 / 4, 4 / 3), flip=0.5, rotation=0.0, shear=0.0),
    ),
    "photo",
    trunk_facts,
)


def photo(draw: np.random.Generator) -> Image.Image:
    """Noise at all scales, the coarse ones stronger, as in natural images."""
    width, height = (500, 375) if draw.random() < 0.7 else (375, 500)
    pixels = np.zeros((height, width, 3), dtype=np.float32)
    for power in range(1, 8):
        cells = draw.normal(0, 1, (2**power, 2**power, 3)).astype(np.float32)
        layers = [
            Image.fromarray(cells[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            for channel in range(3)
        ]
        pixels += np.stack([np.asarray(layer) for layer in layers], axis=2) * 60 / power
    return Image.fromarray((128 + pixels).clip(0, 255).astype(np.uint8))


def make_photos(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for number in range(CLASSES):
        (folder / f"class{number:03d}").mkdir(parents=True, exist_ok=True)
        for image in range(IMAGES):
            path = folder / f"class{number:03d}" / f"{image:02d}.jpg"
            if not path.exists():
                photo(draw).save(path, quality=90)


def seconds(work: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def packing(folder: Path, cores: set[int]) -> float:
    """Seconds to pack trainval with these cores, the files checked and the processes started
    before.
    """
    code = (
        "import os, sys, time; os.sched_setaffinity(0, {cores}); from pathlib import Path\nfrom"
        " assay.data import load, splits; from assay.protocols import FirstStep, Protocol\nfrom"
        " assay.data.packs import write_pack\nhalf, _ = splits.of(load('folder:{folder}'),"
        " Protocol('b.v1'))\nwrite_pack(Path('{out}') / 'first', half, FirstStep('square',"
        " 8))\nstart = time.perf_counter(); write_pack(Path('{out}') / 'pack', half,"
        " FirstStep('short', 256))\nprint(time.perf_counter() - start)"
    )
    with tempfile.TemporaryDirectory() as out:
        text = code.format(cores=cores, folder=folder, out=out)
        return float(
            subprocess.run(
                [sys.executable, "-c", text], capture_output=True, text=True, check=True
            ).stdout
        )


def opening(folder: Path) -> tuple[float, float]:
    """Seconds to open a pack for the first time in a process, which hashes all of it, and again.

    The files were written longer ago than `SETTLED`, as those of an earlier bench are.
    """
    time.sleep(2 * SETTLED)
    first = min(seconds(lambda: _open_anew(folder), 1) for _ in range(ROUNDS))
    return first, min(seconds(lambda: read_pack(folder), 1) for _ in range(ROUNDS))


def _open_anew(folder: Path) -> None:
    content._digest_once.cache_clear()
    read_pack(folder)


def decode_batch(paths: list[Path]) -> None:
    """What a loader without a pack does for every batch: open, decode, scale the short side."""
    for path in paths:
        with Image.open(path) as image:
            width, height = image.size
            scale = 256 / min(width, height)
            np.asarray(
                image.convert("RGB").resize(
                    (int(width * scale), int(height * scale)), Image.Resampling.BILINEAR
                )
            )


def read_batch(view: View, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    for image in view.x[rows]:
        np.array(image)  # a copy: a memory map reads nothing until it is looked at


def training_step() -> Callable[[], object]:
    """A step of ResNet50 on a batch that is there already."""
    torch.manual_seed(0)
    model = Model(Architecture.under(PROTOCOL, 3, HeadShape((PROTOCOL.dim,))))
    method = methods["contrastive"]
    parts = assemble(method, defaults(method, PROTOCOL), PROTOCOL)
    optimiser = optimiser_of(model, parts, PROTOCOL)
    x, y = torch.rand(BATCH, 3, SIZE, SIZE), torch.arange(8).repeat_interleave(4)
    batch = ReadBatch(x, y, torch.arange(BATCH), 0.0)
    return lambda: step(model, parts, optimiser, batch, PROTOCOL, torch.device("cpu"))


def main() -> None:
    temporary = tempfile.TemporaryDirectory()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary.name)
    os.environ.setdefault("ASSAY_CACHE", str(folder.parent / f"{folder.name}-cache"))
    make_photos(folder)
    half, _ = splits.of(load(f"folder:{folder}"), Protocol("b.v1"))
    pack = place_pack(half, STEP)
    view, paths = read_pack(pack), [folder / name for name in half.ids]
    large, (anew, again) = (pack / "pixels.bin").stat().st_size / 1e9, opening(pack)
    draw, torch_draw = np.random.default_rng(1), torch.Generator().manual_seed(0)
    cores = sorted(os.sched_getaffinity(0))
    one, every = packing(folder, {cores[0]}), packing(folder, set(cores))
    works: dict[str, Callable[[], object]] = {
        "decode and scale the JPEGs": lambda: decode_batch(
            [paths[row] for row in draw.integers(0, len(view.y), BATCH)]
        ),
        "read from the pack": lambda: read_batch(view, draw.integers(0, len(view.y), BATCH)),
        "read and augment": lambda: augment(
            view.x[draw.integers(0, len(view.y), BATCH)], PROTOCOL.augment, SIZE, torch_draw
        ),
        "training step of ResNet50": training_step(),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work, 1 if "step" in name else 5))
    decoding, reading, augmenting, training = best.values()
    print(f"| work, {BATCH} images, {torch.get_num_threads()} threads | ms | ratio |")
    print("| --- | --- | --- |")
    print(f"| decode the JPEGs, short side to 256 (one thread) | {1e3 * decoding:.0f} | 1 |")
    print(f"| read from the pack | {1e3 * reading:.1f} | {decoding / reading:.1f}x faster |")
    print(f"| training step of ResNet50 at {SIZE} | {1e3 * training:.0f} | 1 |")
    print(
        f"| read from the pack and augment | {1e3 * augmenting:.0f} |"
        f" {100 * augmenting / training:.1f}% of the step |"
    )
    print(f"| pack {len(view.y)} images on one core | {1e3 * one:.0f} | 1 |")
    print(f"| the same on {len(cores)} cores | {1e3 * every:.0f} | {one / every:.2f}x faster |")
    print(
        f"| open a pack of {large:.2f} GB for the first time in a process | {1e3 * anew:.0f} |"
        f" {large / anew:.2f} GB/s |"
    )
    print(f"| open it again in the same process | {1e3 * again:.1f} | |")


if __name__ == "__main__":
    main()
