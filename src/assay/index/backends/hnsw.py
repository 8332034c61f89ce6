"""A graph of near neighbours that a search walks along, by faiss.

Efficient and robust approximate nearest neighbor search using Hierarchical Navigable Small World
graphs, Malkov and Yashunin 2018, arxiv.org/abs/1603.09320.

- A filter makes a walk longer. Few allowed rows are found faster by comparing all of them: then the
  search is exact.
- Equal rows are one node: many copies of an image would link to each other alone, and no walk would
  leave them. Copies of a node are found with it.
- Nodes that no walk can reach, since no links lead to them, are listed when the graph is built, and
  compared with each query in addition.

Shapes: N stored rows, M nodes, Q queries, C candidates, E copies.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from assay.index.approximate import (
    NEAREST,
    PORTION,
    check_whole,
    library,
    metric_of,
    one_thread,
    padded,
    read_rows,
    read_structure,
    search_in,
    selector,
    write_structure,
)
from assay.index.backends.backend import Earlier, Mask, Rows, StoredVectors, backends
from assay.index.manifest import DamagedIndex
from assay.index.scan import Scan
from assay.index.structures import check_graph
from assay.npz import write_npy
from assay.progress import Progress
from assay.protocols import Similarity

GRAPH, NODES, COPIES, UNREACHABLE = "graph.faiss", "nodes.npy", "copies.npy", "unreachable.npy"

STAGE = "building the graph"

GATHERED, SCANNED = 14, 117
"""Rows that exact search compares in the time that a walk takes for one node of its effort: allowed
rows one by one, and all rows in their order (measured).
"""

SIDES: tuple[Literal["left"], Literal["right"]] = "left", "right"


@dataclass(frozen=True)
class _Opened:
    """An opened graph.

    Args:
        graph: faiss's index of the nodes.
        row_M: the row of each node, rising.
        copies_E2: node and row of each copy, rising.
        unreachable: rows of nodes that no walk can reach, and their copies, rising.
        scan: exact search.
    """

    graph: Any
    row_M: Rows
    copies_E2: Rows
    unreachable: Rows
    scan: Scan

    def allowed_nodes(self, allowed: Mask) -> Mask:
        """Return which nodes have an allowed row."""
        node_M = allowed[self.row_M]
        node_E, row_E = self.copies_E2.T
        node_M[node_E[allowed[row_E]]] = True
        return node_M

    def with_copies(self, node_QC: Rows, row_QC: Rows, k: int, allowed: Mask | None) -> Rows:
        """Return allowed rows of the nodes, and up to k copies, of the nearest nodes first."""
        if not len(self.copies_E2):
            return row_QC
        node_E, row_E = self.copies_E2.T
        if allowed is not None:
            row_QC[~allowed[row_QC]] = -1
            node_E, row_E = node_E[allowed[row_E]], row_E[allowed[row_E]]
        first_QC, last_QC = (np.searchsorted(node_E, node_QC, side) for side in SIDES)
        if (first_QC == last_QC).all():
            return row_QC
        copies = [
            np.concatenate([row_E[a : min(b, a + k)] for a, b in zip(first, last, strict=True)])[:k]
            for first, last in zip(first_QC, last_QC, strict=True)
        ]
        return np.concatenate([row_QC, padded(copies)], axis=1)

    def with_unreachable(
        self, queries: NDArray[Any], row_QC: Rows, k: int, allowed: Mask | None
    ) -> Rows:
        """Return the rows and the nearest of those that no walk can reach; no row at all where the
        walk ended before it had found k of them.
        """
        others = self.unreachable
        if allowed is not None:
            others = others[allowed[others]]
        if not len(others):
            return row_QC
        short_Q = (row_QC >= 0).sum(axis=1) < k
        row_QC[np.isin(row_QC, others)] = -1  # a search may begin at one
        found = np.concatenate([row_QC, self.scan.nearest_of(queries, k, others)], axis=1)
        found[short_Q] = -1
        return found


@backends("hnsw")
@dataclass(frozen=True)
class Hnsw:
    """Walk along a graph of near neighbours (HNSW, by faiss): fast, and most of them are found.

    Args:
        links: links of a node, twice as many in the lowest layer.
        construction: effort by which the links of a new node are looked for.
    """

    links: int = 32
    construction: int = 64

    name: ClassVar[str] = "hnsw"
    is_exact: ClassVar[bool] = False
    similarities: ClassVar[tuple[Similarity, ...]] = ("cosine", "euclidean")
    efforts: ClassVar[tuple[int, ...]] = (16, 32, 64, 128, 256, 512, 1024)
    is_remote: ClassVar[bool] = False

    _opened: _Opened | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("links", self.links, 4, 256)
        check_whole("construction", self.construction, 8, 4096)

    def build(
        self,
        folder: Path,
        vectors: StoredVectors,
        alive: Mask | None,
        earlier: Earlier | None,
        progress: Progress,
    ) -> None:
        """Write the graph of all rows, or extend the earlier one.

        Rows that are not alive become nodes too, which walks pass through: few of them cost little.
        One thread builds it, so that rows added in the same portions make the same graph.
        """
        row_M, copies_E2 = _distinct(vectors)
        if earlier is None:
            graph = self._begin(vectors)
        else:
            graph = self._read(earlier.folder, vectors, int(np.searchsorted(row_M, earlier.rows)))
        # A file does not keep the state of the generator of levels.
        graph.hnsw.rng = library().RandomGenerator(12345 + graph.ntotal)
        with one_thread():
            for start in range(graph.ntotal, len(row_M), PORTION):
                graph.add(vectors.read(row_M[start : start + PORTION]))
                progress(STAGE, graph.ntotal, len(row_M))
        write_structure(graph, folder / GRAPH)
        write_npy(folder / NODES, row_M)
        write_npy(folder / COPIES, copies_E2)
        lost = _unreachable(graph)
        copies = copies_E2[np.isin(copies_E2[:, 0], lost), 1]
        write_npy(folder / UNREACHABLE, np.sort(np.concatenate([row_M[lost], copies])))

    def open(self, folder: Path, vectors: StoredVectors) -> Self:
        """Return the graph, memory-mapped, ready to search from several threads at once."""
        row_M, unreachable = (
            read_rows(folder / name, len(vectors)) for name in (NODES, UNREACHABLE)
        )
        copies_E2 = read_rows(folder / COPIES, len(vectors), (-1, 2))
        node_E = copies_E2[:, 0]
        if not _rises(row_M, 1) or not _rises(node_E) or (node_E >= len(row_M)).any():
            raise DamagedIndex(f"{folder / NODES} or {COPIES} was altered")
        graph = self._read(folder, vectors, len(row_M), mapped=True)
        found = _Opened(graph, row_M, copies_E2, unreachable, Scan(vectors))
        opened = replace(self)
        object.__setattr__(opened, "_opened", found)
        return opened

    def candidates(
        self, queries: NDArray[Any], k: int, allowed: Mask | None, effort: int | None
    ) -> Rows:
        """Return rows (Q, C) that may be among the k nearest allowed ones."""
        assert self._opened is not None, "open it first"
        opened, scan = self._opened, self._opened.scan
        total = len(scan.vectors)
        count = total if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, count)
        visited = (effort or self.efforts[-1]) * max(1, k / NEAREST) * total / max(1, count)
        if count <= GATHERED * visited or total <= SCANNED * visited:
            return scan.nearest(queries, k, allowed)
        node_M = None if allowed is None or count == total else opened.allowed_nodes(allowed)
        asked = library().SearchParametersHNSW(
            efSearch=math.ceil(visited), sel=None if node_M is None else selector(node_M)
        )
        node_QC = search_in(opened.graph, np.asarray(queries, dtype=np.float32), k, asked)
        found = np.where(node_QC >= 0, opened.row_M[node_QC], -1)
        found = opened.with_copies(node_QC, found, k, allowed)
        return opened.with_unreachable(queries, found, k, allowed)

    def close(self) -> None:
        """Let go of the graph's file."""
        object.__setattr__(self, "_opened", None)

    def discard(self, folder: Path, kept: Path | None) -> None:
        """Do nothing: it keeps nothing outside of the index."""

    def _begin(self, vectors: StoredVectors) -> Any:
        faiss = library()
        if vectors.rows.dtype == np.float16:
            kind = faiss.ScalarQuantizer.QT_fp16
            graph = faiss.IndexHNSWSQ(vectors.width, kind, self.links, metric_of(vectors))
        else:
            graph = faiss.IndexHNSWFlat(vectors.width, self.links, metric_of(vectors))
        graph.hnsw.efConstruction = self.construction
        return graph

    def _read(
        self, folder: Path, vectors: StoredVectors, rows: int, *, mapped: bool = False
    ) -> Any:
        faiss = library()
        half = vectors.rows.dtype == np.float16
        check_graph(folder / GRAPH, vectors.width, metric_of(vectors), rows, half=half)
        kind = faiss.IndexHNSWSQ if half else faiss.IndexHNSWFlat
        return read_structure(folder / GRAPH, kind, mapped=mapped)


def _rises(rows: Rows, least: int = 0) -> bool:
    """Return whether each of the numbers is above the last, by `least` or more."""
    return bool((np.diff(rows) >= least).all())


def _distinct(vectors: StoredVectors) -> tuple[Rows, Rows]:
    """Return the first row (M,) of each distinct vector, and node and row (E, 2) of its copies."""
    draw = np.random.default_rng(0)
    factors = draw.integers(1, 2**63, vectors.width, dtype=np.uint64) | np.uint64(1)
    hash_N = np.empty(len(vectors), dtype=np.uint64)
    for place, block in vectors.blocks():
        words = block.view(np.uint32).astype(np.uint64)
        hash_N[place] = np.multiply(words, factors, out=words).sum(axis=1)
    _, first_H, same_N = np.unique(hash_N, return_index=True, return_inverse=True)
    first_N = first_H[same_N]
    suspect = np.flatnonzero(first_N != np.arange(len(first_N)))
    for start in range(0, len(suspect), PORTION):  # equal hashes are no proof
        some = suspect[start : start + PORTION]
        other = (vectors.read(some) != vectors.read(first_N[some])).any(axis=1)
        first_N[some[other]] = some[other]
    row_M = np.flatnonzero(first_N == np.arange(len(first_N)))
    copy_E = np.flatnonzero(first_N != np.arange(len(first_N)))
    node_E = np.searchsorted(row_M, first_N[copy_E])
    order = np.argsort(node_E, kind="stable")
    return row_M, np.stack([node_E[order], copy_E[order]], axis=1)


def _unreachable(graph: Any) -> Rows:
    """Return the nodes that no links of the lowest layer lead to from any node of the others."""
    if not graph.ntotal:
        return np.empty(0, dtype=np.int64)
    to_array = library().vector_to_array
    width = graph.hnsw.nb_neighbors(0)
    first_M = to_array(graph.hnsw.offsets)[:-1].astype(np.int64)
    links = to_array(graph.hnsw.neighbors)
    reached_M = to_array(graph.hnsw.levels) > 1
    reached_M[graph.hnsw.entry_point] = True
    edge = np.flatnonzero(reached_M)
    while len(edge):
        found_M = np.zeros(len(reached_M), dtype=np.bool_)
        for start in range(0, len(edge), PORTION):
            part = first_M[edge[start : start + PORTION], None] + np.arange(width)
            found_M[links[part][links[part] >= 0]] = True
        edge = np.flatnonzero(found_M & ~reached_M)
        reached_M[edge] = True
    return np.flatnonzero(~reached_M)
