"""Evaluation against the bare matrix product, pytorch-metric-learning and scikit-learn, as ratios
in one run.

python benchmarks/evaluation.py [ROW ...]     rows: sop512 sop128 cub memmap kmeans growth; all if
none is named

Times are the best of several rounds in which the rivals take turns. Memory is what a process of its
own needs at its peak beyond what it held before. The bare product is tiles of 1,024 x 1,024 into
one buffer, and nothing done with them: what any exact search must at least do, unless it halves the
work. pytorch-metric-learning is asked for as many neighbours as the largest class needs (its
"max_bin_count"), by faiss and by its own product; asked for all, as it is by default, it takes far
longer.
"""

import argparse
import ctypes
import logging
import multiprocessing
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from turns import best_of

import assay
from assay.clusters import kmeans
from assay.metrics.clustering import nmi

TILE = 1024
Work = Callable[[], object]


def clustered(samples: int, classes: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors around class centres, in random order, hard enough that MAP@R is far from 0 and
    1.
    """
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(samples)[torch.randperm(samples, generator=draw)] % classes
    noise = 1.5 * torch.randn(samples, dim, generator=draw)
    z = torch.randn(classes, dim, generator=draw)[y] + noise
    return torch.nn.functional.normalize(z, dim=1), y


def bare_product(
    queries: Tensor | np.ndarray[Any, Any], references: Tensor | np.ndarray[Any, Any]
) -> None:
    """All products, a tile at a time, thrown away."""
    tile = torch.empty(TILE, TILE)
    for column in range(0, len(references), TILE):
        right = torch.as_tensor(references[column : column + TILE])
        for row in range(0, len(queries), TILE):
            left = torch.as_tensor(queries[row : row + TILE])
            torch.mm(left, right.T, out=tile[: len(left), : len(right)])


def pml(z: Tensor, y: Tensor, knn: Any) -> dict[str, float]:
    """The three metrics by pytorch-metric-learning's calculator."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=knn,
    )
    return dict(calculator.get_accuracy(z, y))


def pml_settings() -> dict[str, Any]:
    """Its ways to find neighbours on a CPU that fit in memory."""
    import faiss
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN, FaissKNN

    return {
        "faiss": FaissKNN(index_init_fn=faiss.IndexFlatIP),
        "its own product, 1,024 at a time": CustomKNN(CosineSimilarity(), batch_size=1024),
    }


def extra_memory(prepare: Callable[..., Work], *arguments: object) -> float:
    """MB at the peak of a work beyond what its process held before it, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe()
    process = context.Process(target=_measure, args=(send, prepare, *arguments))
    process.start()
    extra: float = receive.recv()
    process.join()
    return extra


def _measure(send: Any, prepare: Callable[..., Work], *arguments: object) -> None:
    work = prepare(*arguments)
    ctypes.CDLL(None).malloc_trim(0)  # what preparing has left free would hide what the work takes
    before = peak = _anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, _anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    send.send((peak - before) / 1024)


def _anonymous() -> int:
    """What this process holds in kB, without pages of files, which the system keeps as long as it
    likes.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def our_work(samples: int, classes: int, dim: int) -> Work:
    z, y = clustered(samples, classes, dim)
    return lambda: assay.evaluate(z, y)


def pml_work(samples: int, classes: int, dim: int, setting: str) -> Work:
    z, y = clustered(samples, classes, dim)
    return partial(pml, z, y, pml_settings()[setting])


def gallery_work(path: str, classes: int, queries: int) -> Work:
    gallery = np.load(path, mmap_mode="r")
    gallery_y = torch.arange(len(gallery)) % classes
    z, y = clustered(queries, classes, gallery.shape[1], seed=1)
    return lambda: assay.evaluate(z, y, ["map_at_100"], gallery=(gallery, gallery_y))


def one_set(
    name: str, size: tuple[int, int, int], rounds: int, most: float | None, faster: float | None
) -> None:
    """P@1, RP and MAP@R of one set against the bare product and, if it is to be so many times
    faster, the calculator.
    """
    z, y = clustered(*size)
    settings = pml_settings() if faster else {}
    works: dict[str, Work] = {
        "ours": lambda: assay.evaluate(z, y),
        "bare": lambda: bare_product(z, z),
    }
    times = best_of(
        works | {setting: partial(pml, z, y, knn) for setting, knn in settings.items()}, rounds
    )
    title = f"{name}: {size[0]:,} x {size[2]}, {size[1]:,} classes; P@1, RP, MAP@R"
    ratio = f"{times['ours'] / times['bare']:.2f}x the bare product ({times['bare']:.2f} s)"
    row(title, times["ours"], ratio, "" if most is None else f"at most {most}x")
    row(
        "",
        None,
        f"{extra_memory(our_work, *size):.0f} MB extra",
        "" if most is None else "under 200 MB",
    )
    for setting in settings:
        factor = f"we are {times[setting] / times['ours']:.1f}x as fast"
        memory = extra_memory(pml_work, *size, setting)
        row(
            f"pytorch-metric-learning, {setting}",
            times[setting],
            f"{factor}; {memory:,.0f} MB extra",
            f"at least {faster}x",
        )
    if settings:
        _agree(assay.evaluate(z, y), pml(z, y, next(iter(settings.values()))))


def _agree(ours: assay.Scores, theirs: dict[str, float]) -> None:
    pairs = {
        "precision_at_1": "precision_at_1",
        "r_precision": "r_precision",
        "map_at_r": "mean_average_precision_at_r",
    }
    gap = max(abs(ours[name] - theirs[their]) for name, their in pairs.items())
    row("largest difference of a score to its", None, f"{gap:.1e}", "")


def memory_mapped(queries: int = 1000, references: int = 762_000, dim: int = 512) -> None:
    """mAP@100 of queries in a gallery that stays on disk."""
    classes = references // 30
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gallery.npy")
        write_gallery(path, references, dim)
        z = clustered(queries, classes, dim, seed=1)[0]
        gallery = np.load(path, mmap_mode="r")
        works = {
            "ours": gallery_work(path, classes, queries),
            "bare": lambda: bare_product(z, gallery),
        }
        times = best_of(works, 3)
        ratio = f"{times['ours'] / times['bare']:.2f}x the bare product ({times['bare']:.2f} s)"
        title = f"{references:,} references x {queries:,} queries x {dim}, memory-mapped; mAP@100"
        row(title, times["ours"], ratio, "at most 1.4x")
        memory = extra_memory(gallery_work, path, classes, queries)
        row("", None, f"{memory:.0f} MB extra beyond the page cache", "under 200 MB")


def write_gallery(path: str, references: int, dim: int) -> None:
    gallery = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(references, dim))
    draw = torch.Generator().manual_seed(2)
    for start in range(0, references, 16384):
        part = gallery[start : start + 16384]
        part[:] = torch.randn(*part.shape, generator=draw).numpy()
    gallery.flush()


def clustering(samples: int = 60_502, classes: int = 11_316, dim: int = 128) -> None:
    """20 rounds of k-means from one random start against scikit-learn's."""
    from sklearn.cluster import KMeans

    z, y = clustered(samples, classes, dim)
    found: dict[str, Any] = {}

    def ours() -> None:
        found["ours"] = kmeans(
            z, classes, starts=1, iterations=20, seed=0, progress=_progress
        ).labels

    def theirs() -> None:
        found["theirs"] = (
            KMeans(classes, init="random", n_init=1, max_iter=20, random_state=0)
            .fit(z.numpy())
            .labels_
        )

    times = best_of({"ours": ours, "theirs": theirs}, 1)
    scores = {name: 100 * nmi(y.numpy(), np.asarray(labels)) for name, labels in found.items()}
    title = f"k-means, {classes:,} clusters of {samples:,} x {dim}, 20 rounds"
    row(
        title,
        times["ours"],
        f"{times['theirs'] / times['ours']:.1f}x as fast as scikit-learn ({times['theirs']:.1f} s)",
        "at least 1x",
    )
    row(
        "NMI",
        None,
        f"{scores['ours']:.2f}, scikit-learn's {scores['theirs']:.2f}",
        "within 0.5 points",
    )


def _progress(stage: str, done: int, total: int) -> None:
    print(
        f"\rk-means: round {done} of {total}",
        end="\n" if done == total else "",
        file=sys.stderr,
        flush=True,
    )


def growth(queries: int = 1000, dim: int = 128) -> None:
    """Time per query and reference as references grow."""
    z, y = clustered(queries, 1000, dim)
    for references in (10_000, 100_000, 1_000_000):
        gallery = torch.randn(references, dim, generator=torch.Generator().manual_seed(3))
        gallery_y = torch.arange(references) % (references // 10)
        works: dict[str, Work] = {
            "ours": partial(assay.evaluate, z, y, gallery=(gallery, gallery_y)),
            "bare": partial(bare_product, z, gallery),
        }
        times = best_of(works, 3)
        per_pair = 1e9 * times["ours"] / queries / references
        title = f"{queries:,} queries in {references:,} references x {dim}"
        row(
            title,
            times["ours"],
            f"{per_pair:.2f} ns a pair, {times['ours'] / times['bare']:.2f}x the bare product",
            "",
        )


ROWS: dict[str, Work] = {
    "sop512": partial(one_set, "SOP's size", (60_502, 11_316, 512), rounds=2, most=1.0, faster=4),
    "sop128": partial(
        one_set, "SOP's size", (60_502, 11_316, 128), rounds=3, most=1.4, faster=None
    ),
    "cub": partial(one_set, "CUB's size", (5_924, 100, 512), rounds=8, most=None, faster=3),
    "memmap": memory_mapped,
    "kmeans": clustering,
    "growth": growth,
}


def row(work: str, seconds: float | None, measured: str, must: str) -> None:
    print(
        f"| {work} | {'' if seconds is None else f'{seconds:.2f}'} | {measured} | {must} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(ROWS)}")
    chosen = parser.parse_args().rows or list(ROWS)
    logging.disable(logging.INFO)  # the calculator's own
    print("| work | seconds | measured | must be |")
    print("| --- | --- | --- | --- |")
    for name in chosen:
        ROWS[name]()


if __name__ == "__main__":
    main()
