"""Miniature data and benches: a few classes, few steps, seconds."""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import assay
from assay.protocols import (
    Modality,
    Protocol,
    ResolvedProtocol,
    SampleKind,
    TrunkFacts,
    customise,
    protocols,
    resolve,
)
from options import set_options

CLASSES, IMAGES, SIDE = 17, 4, 16
MINI_AT_ITS_RATE = (
    "folds=2", "searches=1", "search=bayesian", "trials=2", "trial_folds=auto", "startup=1",
    "reproductions=2", "iterations=2", "epochs=2", "validate_every=1", "dim=8", "size=16",
)  # fmt: skip
"""Settings of a miniature of `quick`, which hardly learns anything in so few steps."""

MINI = (*MINI_AT_ITS_RATE, "optimiser.lr=0.01")
"""The same at a rate at which some runs keep a trained checkpoint."""


def random_trunk(name: str) -> TrunkFacts:
    """A trunk of any name, which takes what its name says and has no weights of its own."""
    takes: SampleKind = "vectors" if name == "identity" else "images"
    return TrunkFacts(takes, side=None, smallest=1, find_weights=lambda wanted: "none")


def resolved(protocol: Protocol, modality: Modality = "photo") -> ResolvedProtocol:
    """The protocol for any trunk."""
    return resolve(protocol, modality, random_trunk)


QUICK = resolved(protocols["quick"])


def draw_class(number: int, draw: np.random.Generator) -> np.ndarray:
    """Return a stripe pattern of the class with noise on it."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    angle = np.pi * number / CLASSES
    wave = np.sin((rows * np.cos(angle) + columns * np.sin(angle)) * 1.3)
    grey = 127 + 90 * wave + draw.normal(0, 20, (SIDE, SIDE))
    return np.repeat(grey.clip(0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def make_folder(root: Path, classes: int = CLASSES) -> Path:
    """Write a folder for each class; the last class has a single image."""
    draw = np.random.default_rng(0)
    for number in range(classes):
        folder = root / f"class{number:02d}"
        folder.mkdir(parents=True)
        for image in range(1 if number == classes - 1 else IMAGES):
            Image.fromarray(draw_class(number, draw)).save(folder / f"{image}.png")
    return root


def make_features(path: Path, classes: int = 16, noise: float = 0.7, seed: int = 0) -> Path:
    """Write an .npz of vectors, 5 around the centre of each class."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), 5)
    np.savez(
        path, z=draw.normal(size=(classes, 12))[y] + noise * draw.normal(size=(len(y), 12)), y=y
    )
    return path


def bench_command(data: str, out: Path, methods: str, *settings: str) -> list[str]:
    """Return the words of a miniature bench in a process of its own."""
    words = ["--data", data, "--out", str(out), "--methods", methods, "--engine", "inline"]
    words += set_options((*MINI, *settings))
    return [sys.executable, "-m", "assay", "bench", *words]


BENCHED = ("triplet", "normalized_softmax", "untrained")


def bench_on(engine, folder: Path, store: Path) -> None:
    """Bench three methods on the folder, and write the report."""
    small = customise(protocols["quick"], MINI)
    assay.bench(f"folder:{folder}", BENCHED, small, store, device="cpu", engine=engine)


def snapshot(store: Path, *, tested: bool = True) -> dict[str, object]:
    """Return all that must be the same bytes: studies, ledgers without the clock, runs, tables.

    `tested` says whether to include what depends on the test half.
    """
    found: dict[str, object] = {}
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        if (
            name.startswith("runs/")
            and path.is_file()
            and path.name != "timing.json"
            and (tested or "/test/" not in name)
        ):
            found[name] = path.read_bytes()
        elif path.name == "ledger.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept = [line for line in lines if tested or line["kind"] not in ("seal", "test")]
            found[name] = [
                {key: value for key, value in line.items() if key != "at"} for line in kept
            ]
        elif tested and (path.name == "study.json" or path.parent.name == "tables"):
            found[name] = path.read_bytes()
    return found
