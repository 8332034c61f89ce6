"""Back ends of an image index: exact search against the bare product, approximate against exact.

python benchmarks/index.py [PART ...] [--rows 1000000] [--quick] [--milvus]
parts: product graph random sides open whole; all if none is named

Works that are compared take turns in one run, and the best of several rounds counts, so that other
work on the machine meets all of them: ratios are worth more than times. One thread, vectors of 128
numbers, k = 10, cosine. Vectors are random ones, or clustered as embeddings are: class centres in
random directions, 100 samples of each, which lie apart from it in random directions too, so that
two of a class have a cosine of about 0.7. Queries are new samples, none of which is in the index. A
search is timed from the prepared query to scored rows. Open and memory are those of a new process,
after its imports, with the files in the page cache.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when numpy and faiss are imported

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from turns import best_of

from assay.index import Index, Wanted, update
from assay.index.backends import Backend, StoredVectors, backends
from assay.index.backends.exact import Exact
from assay.index.recall import measure
from assay.index.scan import Scan, nearest_by
from assay.index.scoring import prepare
from assay.npz import read_npy
from assay.progress import silent

DIM, K, OF_A_CLASS, APART, WANTED = 128, 10, 100, 0.65, 0.95
QUERIES, SINGLE = 1000, 100
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Built:
    """A back end that was built and opened."""

    backend: Backend
    vectors: StoredVectors
    folder: Path
    seconds: float

    @property
    def megabytes(self) -> float:
        """Size of its files."""
        return sum(path.stat().st_size for path in self.folder.iterdir()) / 1e6

    def search(self, queries: NDArray[Any], effort: int | None) -> NDArray[np.int64]:
        """Rows of the matches, scored."""
        return nearest_by(self.backend, self.scan, queries, K, None, effort)[0]

    @cached_property
    def scan(self) -> Scan:
        """Exact search of the same vectors."""
        return Scan(self.vectors)

    def one_by_one(self, queries: NDArray[Any], effort: int | None) -> NDArray[np.int64]:
        """Rows of the matches of each query by itself."""
        parts = [self.search(queries[row : row + 1], effort) for row in range(len(queries))]
        return np.concatenate(parts)


def clustered(count: int, seed: int, rows: int) -> Floats:
    """Samples of the classes that an index of so many rows has."""
    classes = max(1, rows // OF_A_CLASS)
    centres = np.random.default_rng(99).standard_normal((classes, DIM), dtype=np.float32)
    draw = np.random.default_rng(seed)
    x = APART * draw.standard_normal((count, DIM), dtype=np.float32)
    x += centres[draw.integers(0, classes, count)]
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def random(count: int, seed: int, rows: int) -> Floats:
    """Unit vectors in random directions."""
    x = np.random.default_rng(seed).standard_normal((count, DIM), dtype=np.float32)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


KINDS = {"clustered": clustered, "random": random}


def stored(folder: Path, kind: str, rows: int) -> StoredVectors:
    """Vectors of a file, memory-mapped as an index has them."""
    path = folder / f"{kind}-{rows}.npy"
    if not path.exists():
        np.save(path, KINDS[kind](rows, 0, rows))
    return StoredVectors(read_npy(path, mapped=True), "cosine")


def built(folder: Path, name: str, vectors: StoredVectors, label: str) -> Built:
    own = folder / label
    own.mkdir()
    backend = backends[name]()
    start = time.perf_counter()
    backend.build(own, vectors, None, None, silent)
    seconds = time.perf_counter() - start
    return Built(backend.open(own, vectors), vectors, own, seconds)


def bare_product(vectors: StoredVectors, queries: Floats, block: int) -> None:
    """All products, a block at a time into one buffer, and nothing done with them."""
    out = np.empty((len(queries), block), dtype=np.float32)
    for start in range(0, len(vectors), block):
        rows = vectors.read(slice(start, start + block))
        np.matmul(queries, rows.T, out=out[:, : len(rows)])


def product(folder: Path, rows: int, rounds: int) -> None:
    """Exact search against the bare product of the same blocks."""
    for kind in KINDS:
        vectors = stored(folder, kind, rows)
        exact = Exact().open(folder, vectors)
        queries = KINDS[kind](QUERIES, 1, rows)
        for count, block, must in ((QUERIES, 1 << 10, "at most 1.5x"), (1, 1 << 16, "")):
            works: dict[str, Callable[[], object]] = {
                "ours": partial(exact.candidates, queries[:count], K, None, None),
                "bare": partial(bare_product, vectors, queries[:count], block),
            }
            times = best_of(works, rounds if count > 1 else 5 * rounds)
            ratio = times["ours"] / times["bare"]
            bare = f"{1e3 * times['bare']:,.1f}"
            row(
                f"exact, {count:,} in {rows:,} {kind}",
                f"{1e3 * times['ours']:,.1f} ms",
                f"{ratio:.2f}x the bare product ({bare} ms)",
                must,
            )


def graph(folder: Path, kind: str, sizes: Sequence[int], rounds: int) -> None:
    """HNSW against exact search, one query at a time."""
    for rows in sizes:
        vectors = stored(folder, kind, rows)
        hnsw = built(folder, "hnsw", vectors, f"hnsw-{kind}-{rows}")
        exact = Built(Exact().open(folder, vectors), vectors, folder, 0)
        queries = KINDS[kind](SINGLE, 1, rows)
        effort, recall = least_effort(hnsw, queries, exact.search(queries, None))
        few = queries[: max(5, min(SINGLE, 10_000_000 // rows))]
        times = best_of(
            {
                "hnsw": partial(hnsw.one_by_one, queries, effort),
                "exact": partial(exact.one_by_one, few, None),
            },
            rounds,
        )
        ms, slow = 1e3 * times["hnsw"] / len(queries), 1e3 * times["exact"] / len(few)
        quality = measure(hnsw.backend, vectors, None)
        said = f"effort {effort}: recall@10 {recall:.3f} of new queries"
        must = "at least 20x" if kind == "clustered" else ""
        row(
            f"hnsw, 1 in {rows:,} {kind}",
            f"{ms:.3f} ms",
            f"{slow / ms:.0f}x as fast as exact ({slow:.2f} ms); {said}",
            must if recall >= WANTED else f"{must} (recall missed)",
        )
        row(
            "",
            f"{hnsw.seconds:,.0f} s",
            f"to build; {hnsw.megabytes:,.0f} MB on disk; measured by itself: effort"
            f" {quality.effort}, recall@10 {quality.recall_at_10:.3f}, finds itself"
            f" {quality.finds_itself:.3f}",
            "",
        )


def least_effort(
    found_by: Built, queries: NDArray[Any], truth: NDArray[np.int64]
) -> tuple[int | None, float]:
    """The least effort with the wanted recall, and its recall; else the largest."""
    effort, recall = None, 0.0
    for effort in found_by.backend.efforts or (None,):
        recall = recall_of(found_by.search(queries, effort), truth)
        if recall >= WANTED:
            break
    return effort, recall


def recall_of(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    return float((found[:, :, None] == truth[:, None]).any(axis=1).mean())


def sides(folder: Path, rows: int, rounds: int, milvus: bool) -> None:
    """All back ends side by side."""
    vectors = stored(folder, "clustered", rows)
    queries = clustered(SINGLE, 1, rows)
    truth = Built(Exact().open(folder, vectors), vectors, folder, 0).search(queries, None)
    half = StoredVectors(prepare(vectors.rows, "cosine", np.float16), "cosine")
    bits = StoredVectors(prepare(vectors.rows, "hamming"), "hamming")
    searched = {
        "exact": ("exact", vectors),
        "exact, float16": ("exact", half),
        "hnsw": ("hnsw", vectors),
        "hnsw, float16": ("hnsw", half),
        "ivfpq": ("ivfpq", vectors),
        "bits (of the same numbers)": ("bits", bits),
    }
    if milvus:
        searched["milvus, a file"] = ("milvus", vectors)
    found_by, asked, tried = {}, {}, {}
    works: dict[str, Callable[[], object]] = {}
    for label, (name, own) in searched.items():
        found_by[label] = built(folder, name, own, f"side {label}")
        asked[label] = prepare(queries, own.similarity) if name == "bits" else queries
        tried[label] = least_effort(found_by[label], asked[label], truth)
        works[label] = partial(found_by[label].one_by_one, asked[label], tried[label][0])
    times = best_of(works, rounds)
    for label, one in found_by.items():
        effort, recall = tried[label]
        disk = one.megabytes + one.vectors.rows.nbytes / 1e6
        by = "" if effort is None else f" at effort {effort}"
        row(
            f"{label}, 1 in {rows:,} clustered",
            f"{1e3 * times[label] / len(queries):.3f} ms",
            f"recall@10 {recall:.3f}{by}; built in {one.seconds:.1f} s; {disk:.0f} MB on disk with"
            " the vectors",
            "",
        )
        one.backend.close()


def cold(folder: Path, rows: int) -> None:
    """Opening in a new process, and its memory."""
    vectors = stored(folder, "clustered", rows)
    for name in ("exact", "hnsw", "ivfpq"):
        own = folder / f"{name}-clustered-{rows}"
        seconds = built(folder, name, vectors, own.name).seconds if not own.exists() else None
        context = multiprocessing.get_context("spawn")
        receive, send = context.Pipe()
        path = folder / f"clustered-{rows}.npy"
        process = context.Process(target=_open, args=(send, name, str(own), str(path)))
        process.start()
        opening, first, grown, mapped = receive.recv()
        process.join()
        row(
            f"{name}: open {rows:,} in a new process",
            f"{opening:.3f} s",
            f"then the first search {1e3 * first:.1f} ms; after 100 searches {grown:.0f} MB of its"
            f" own and {mapped:.0f} MB of mapped files"
            + ("" if seconds is None else f"; built in {seconds:,.0f} s"),
            "under 1 s",
        )


def _open(send: Any, name: str, folder: str, path: str) -> None:
    queries = random(SINGLE, 1, 0)
    if name != "exact":
        import faiss  # noqa: F401 (imports are told apart)
    before = _memory()
    start = time.perf_counter()
    vectors = StoredVectors(read_npy(Path(path), mapped=True), "cosine")
    backend = backends[name]().open(Path(folder), vectors)
    opened = time.perf_counter()
    effort = backend.efforts[2] if backend.efforts else None
    found_by = Built(backend, vectors, Path(folder), 0)
    found_by.search(queries[:1], effort)
    first = time.perf_counter()
    found_by.one_by_one(queries, effort)
    after = _memory()
    send.send((opened - start, first - opened, after[0] - before[0], after[1] - before[1]))


def whole(folder: Path, rows: int) -> None:
    """An index with its catalog: made, brought up to date, opened by a new process."""
    vectors = folder / "whole.npz"
    np.savez(vectors, z=clustered(rows, 0, rows), y=np.arange(rows) % 1000)
    out = folder / "whole.index"
    for what in ("make an index of", "run it again, with nothing new, on"):
        start = time.perf_counter()
        found = update(out, "as_is", str(vectors), Wanted()).manifest
        bytes_ = sum(one.bytes for one in found.files.values())
        row(
            f"exact: {what} {rows:,} vectors with a class",
            f"{time.perf_counter() - start:.0f} s",
            f"{bytes_ / 1e6:,.0f} MB on disk",
            "",
        )
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe()
    os.sync()
    dropped = _drop_page_cache()
    process = context.Process(target=_open_whole, args=(send, str(out)))
    process.start()
    opening, first, filtered = receive.recv()
    process.join()
    row(
        f"exact: open that index, {'nothing of it in the page cache' if dropped else 'warm'}",
        f"{opening:.3f} s",
        f"then the first search {first:.2f} s, one among 1 of 1,000 classes {filtered:.3f} s",
        "under 1 s",
    )


def _drop_page_cache() -> bool:
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def _open_whole(send: Any, path: str) -> None:
    queries = random(2, 1, 0)
    start = time.perf_counter()
    index = Index.open(path)
    opened = time.perf_counter()
    index.search_vectors(queries[:1])
    first = time.perf_counter()
    index.search_vectors(queries[1:], where={"class": ["7"]})
    send.send((opened - start, first - opened, time.perf_counter() - first))


def _memory() -> tuple[float, float]:
    """MB that this process holds: its own, and of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    own, mapped = (int(found[name].split()[0]) / 1e3 for name in ("RssAnon", "RssFile"))
    return own, mapped


def row(work: str, time_: str, measured: str, must: str) -> None:
    print(f"| {work} | {time_} | {measured} | {must} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--milvus", action="store_true", help="milvus-lite beside the others")
    asked = parser.parse_args()
    rows, rounds = (asked.rows // 10, 1) if asked.quick else (asked.rows, 3)
    sizes = sorted({rows // 10, rows})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parts: dict[str, Callable[[], None]] = {
            "product": partial(product, folder, rows, rounds),
            "graph": partial(graph, folder, "clustered", sizes, rounds),
            "open": partial(cold, folder, rows),
            "whole": partial(whole, folder, rows),
            "sides": partial(sides, folder, rows // 10, rounds, asked.milvus),
            "random": partial(graph, folder, "random", sizes, rounds),
        }
        print("| work | time | measured | must be |\n| --- | --- | --- | --- |")
        for part in asked.parts or parts:
            parts[part]()


if __name__ == "__main__":
    main()
