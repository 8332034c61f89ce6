"""Calibration checked on held-out classes: of matches accepted at a wanted precision of 0.95, the
fraction that is right.

python benchmarks/calibration.py [--data glyphs omniglot synthetic] [--splits 40]
    [--omniglot /work/shared/data]

A small network is trained on half of the classes (about two minutes each). The other half, which it
has never seen, is split at random, again and again: on one part it is calibrated, in the other,
matches are accepted from the threshold on, each image looked up in all others of its gallery. A
gallery has all the classes of that part, or only 20 or 5 of them: one calibration serves all. The
synthetic data are noisy points around class centres; there the classes are new in each round.

- answered: share of splits with a threshold; in the others the classes are too few to show the
  precision, or no threshold reaches it;
- right: fraction of accepted matches that are right, the mean over splits with its 95% interval
  over the classes of one split;
- below: share of the answered splits with a fraction below the wanted one. Held-out classes vary
  too, so that it lies above the 2.5% of a cautious threshold and the 50% of an estimate.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data import Dataset, load
from assay.evaluation import EvaluatedModel
from assay.index.calibration import Calibrated, Calibration, Choice, Gallery, TooFew, calibrate
from assay.protocols import customise, protocols
from assay.stats.intervals import Floats, Interval, bootstrap
from assay.study import design_bench, train_one

WANTED = 0.95
OF = Calibrated("benchmark", "cosine", "float32", "benchmark", "half of the unseen classes")
SETTINGS = "folds=2", "trunk=conv", "validate_every=2", "patience=50"
EPOCHS = {"glyphs": 24, "omniglot": 60}
SMALL = {"omniglot": 5}
"""Classes of a small gallery, where 20 are too many for so weak a model."""
CHOICES: tuple[Choice, Choice] = ("cautious", "estimate")


@dataclass(frozen=True)
class Unseen:
    """Embeddings of classes that a model was not trained on."""

    z: Floats
    y: NDArray[Any]


def trained(data: Dataset, epochs: int, folder: Path) -> Unseen:
    """Train on half of the classes; return the embeddings of the others."""
    whole = replace(data, trainval=len(data.class_names) - 2)  # two classes stay sealed
    protocol = customise(protocols["quick"], [*SETTINGS, f"epochs={epochs}"])
    (design,) = design_bench(whole, ["normalized_softmax"], protocol, "cpu", ())
    train_one(design, (), folder)
    model, trainval = EvaluatedModel.of(folder), design.conditions.trainval
    parts = model.parts(trainval, model.validation(trainval, 2), lambda *_: None)
    ((z, y),) = [(np.asarray(part.z, dtype=float), np.asarray(part.y)) for part in parts]
    return Unseen(z, y)


def omniglot(archives: Path, folder: Path) -> Dataset:
    """Load the two small background sets; raise `FileNotFoundError` where they are not there."""
    for number in (1, 2):
        archive = archives / f"omniglot_background_small{number}.zip"
        if not archive.exists():
            raise FileNotFoundError(2, "there is no such file", str(archive))
        shutil.unpack_archive(archive, folder)
    return load(f"omniglot:{folder}")


def rounds_of(unseen: Unseen, splits: int, share: float) -> Iterator[tuple[Unseen, Unseen]]:
    """Yield classes to calibrate on and as many others, again and again."""
    names, draw = np.unique(unseen.y), np.random.default_rng(0)
    count = int(len(names) * share)
    for _ in range(splits):
        order = draw.permutation(names)
        for_one, other = (
            np.isin(unseen.y, some) for some in (order[:count], order[count : 2 * count])
        )
        yield (
            Unseen(unseen.z[for_one], unseen.y[for_one]),
            Unseen(unseen.z[other], unseen.y[other]),
        )


def synthetic(splits: int, classes: int) -> Iterator[tuple[Unseen, Unseen]]:
    """Yield new classes of 8 points around centres in 32 dimensions, some narrow and some wide."""

    def classes_of(draw: np.random.Generator) -> Unseen:
        y = np.repeat(np.arange(classes), 8)
        spread = 0.9 * np.exp(0.3 * draw.normal(size=classes))[y]
        centres = draw.normal(size=(classes, 32))[y]
        return Unseen(centres + spread[:, None] * draw.normal(size=centres.shape), y)

    for number in range(splits):
        draw = np.random.default_rng(number)
        yield classes_of(draw), classes_of(draw)


def shuffled(unseen: Unseen) -> NDArray[Any]:
    """Return the names of the classes in random order."""
    return np.asarray(np.random.default_rng(0).permutation(np.unique(unseen.y)))


@dataclass(frozen=True)
class Accepted:
    """Matches accepted on held-out classes, by the class of the query."""

    right: Floats
    every: Floats
    pairs: Floats

    @property
    def fraction(self) -> Interval:
        """The fraction that is right, with its interval over classes."""
        some = self.every > 0
        return bootstrap(self.right[some], self.every[some])


def accept(held_out: Unseen, classes: int, score: float) -> Accepted:
    """Accept matches in galleries of so many of the held-out classes each, drawn at random.

    Neighbours by name would be more alike than the classes that calibrate: letters of one alphabet.
    """
    names = shuffled(held_out)
    totals: list[Floats] = []
    for start in range(0, len(names) - classes + 1, classes):
        rows = np.isin(held_out.y, names[start : start + classes])
        z, y = held_out.z[rows], held_out.y[rows]
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        same = y[:, None] == y
        taken = z @ z.T >= score
        np.fill_diagonal(same, val=False)
        np.fill_diagonal(taken, val=False)
        of_class = (y[:, None] == np.unique(y)).T.astype(float)
        totals.append(
            of_class @ np.stack([(taken & same).sum(1), taken.sum(1), same.sum(1)], axis=1)
        )
    right, every, pairs = np.concatenate(totals).T
    return Accepted(right, every, pairs)


def gallery_of(held_out: Unseen, classes: int) -> Gallery:
    """Return the gallery of so many classes, as their images are looked up in all others."""
    size = len(held_out.y) / len(np.unique(held_out.y))
    return Gallery(classes * size - 1, size - 1)


def check(name: str, rounds: Callable[[], Iterator[tuple[Unseen, Unseen]]]) -> None:
    """Print a row for each gallery and choice, and how right confidences are."""
    found: list[tuple[Calibration, Unseen]] = [
        (calibrate(one.z, one.y, OF), other) for one, other in rounds()
    ]
    many = len(np.unique(found[0][1].y))
    small = min(SMALL.get(name, 20), many)
    for classes in dict.fromkeys((small, min(20, many), many)):
        for choice in CHOICES:
            print_row(name, found, classes, choice)
    print_confidences(name, found, small)


def print_row(
    name: str, found: list[tuple[Calibration, Unseen]], classes: int, choice: Choice
) -> None:
    fractions, recalls, spans = [], [], []
    for calibration, held_out in found:
        try:
            threshold = calibration.threshold_for_precision(
                WANTED, gallery_of(held_out, classes), choice
            )
        except TooFew:
            continue
        if threshold is None:
            continue
        accepted = accept(held_out, classes, threshold.score)
        if accepted.every.sum() == 0:
            continue
        interval = accepted.fraction
        fractions.append(interval.mean)
        recalls.append(accepted.right.sum() / accepted.pairs.sum())
        spans.append((interval.low or 0.0, interval.high or 1.0))
    start = f"{name:28} {found[0][0].classes:4} {classes:8} {choice:9}"
    start += f" {len(fractions) / len(found):8.0%}"
    if not fractions:
        print(start)
        return
    low, high = np.mean(spans, axis=0)
    below = np.mean(np.array(fractions) < WANTED)
    print(
        f"{start}  {np.mean(fractions):.3f} [{low:.3f}, {high:.3f}] {below:6.0%}"
        f" {np.mean(recalls):8.1%}",
        flush=True,
    )


def print_confidences(name: str, found: list[tuple[Calibration, Unseen]], classes: int) -> None:
    """Print how many matches of each confidence are right, over all splits."""
    edges = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    sums = np.zeros((len(edges) - 1, 3))
    for calibration, held_out in found:
        names = shuffled(held_out)[:classes]
        rows = np.isin(held_out.y, names)
        z, y = held_out.z[rows], held_out.y[rows]
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        one, other = np.triu_indices(len(y), 1)
        sure = calibration.confidence((z @ z.T)[one, other], gallery_of(held_out, classes))
        place = np.clip(np.searchsorted(edges, sure, side="right") - 1, 0, len(sums) - 1)
        for column, values in enumerate((np.ones(len(one)), sure, y[one] == y[other])):
            sums[:, column] += np.bincount(place, weights=values, minlength=len(sums))
    for low, high, (count, sure, right) in zip(edges[:-1], edges[1:], sums, strict=True):
        if count:
            print(
                f"  {name}: confidence {low:.1f} to {high:.1f}: mean {sure / count:.3f}, right"
                f" {right / count:.3f}, {count / len(found):,.0f} matches a split"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    names = ["synthetic", "glyphs", "omniglot"]
    parser.add_argument("--data", nargs="*", choices=names, default=names)
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--omniglot", type=Path, default=Path("/work/shared/data"))
    options = parser.parse_args()
    print(
        f"{'held-out classes of':28} {'from':>4} {'gallery':>8} {'choice':9} {'answered':>8}"
        f"  {'right':20} {'below':>6} {'found':>8}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.data:
            if name == "synthetic":
                for classes in (40, 100):
                    check(name, lambda classes=classes: synthetic(options.splits, classes))  # type: ignore[misc]
                continue
            try:
                data = (
                    load(name)
                    if name == "glyphs"
                    else omniglot(options.omniglot, Path(temporary) / "characters")
                )
            except FileNotFoundError as error:
                print(f"{name}: skipped, for {error.filename} is not there (--omniglot FOLDER)")
                continue
            unseen = trained(data, EPOCHS[name], Path(temporary) / name)
            check(name, lambda unseen=unseen: rounds_of(unseen, options.splits, 0.5))  # type: ignore[misc]


if __name__ == "__main__":
    main()
