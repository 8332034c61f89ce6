"""Lists of short codes, by faiss: the smallest structure, for indexes that outgrow the memory.

Product quantization for nearest neighbor search, Jegou, Douze and Schmid 2011,
doi.org/10.1109/TPAMI.2010.57.

Vectors are kept in lists by their nearest centre, as codes of a few bytes. A search reads the lists
of the nearest centres and returns several times as many candidates as matches are wanted: codes are
coarse, and the exact scores of the candidates decide.

Shapes: N stored rows, Q queries, C candidates.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.index.approximate import (
    NEAREST,
    PORTION,
    check_whole,
    library,
    metric_of,
    one_thread,
    read_structure,
    search_in,
    selector,
    write_structure,
)
from assay.index.backends.backend import Earlier, Mask, Rows, StoredVectors, backends
from assay.index.manifest import DamagedIndex
from assay.index.scan import Scan
from assay.index.structures import check_empty, check_lists, is_flat
from assay.progress import Progress
from assay.protocols import Similarity

LISTS = "lists.faiss"

TRAINED, MOST_TRAINED = 39, 64
"""Training rows of a centre: the least that faiss thinks enough, and as many as are used."""

FEW = TRAINED * 256
"""Rows below which the 256 centres of a byte cannot be trained: search is exact then."""

CANDIDATES, LEAST_CANDIDATES = 20, 200
"""Candidates of a match, and of a search."""

GATHERED = 0.05
"""Codes that are read in the time in which exact search compares a row, inverted (measured)."""


@dataclass(frozen=True)
class _Opened:
    """Opened lists.

    Args:
        lists: faiss's index; None: there are too few rows for lists.
        scan: exact search.
    """

    lists: Any
    scan: Scan


@backends("ivfpq")
@dataclass(frozen=True)
class IvfPq:
    """Read the nearest lists of short codes (IVF-PQ, by faiss): small, and less exact.

    With fewer than 9,984 rows there is nothing to gain, and search is exact.

    Args:
        lists: number of lists; 0: four times the square root of the number of rows.
        codes: bytes of a code, a divisor of the dimensions; 0: a quarter of them.
    """

    lists: int = 0
    codes: int = 0

    name: ClassVar[str] = "ivfpq"
    is_exact: ClassVar[bool] = False
    similarities: ClassVar[tuple[Similarity, ...]] = ("cosine", "euclidean")
    efforts: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    is_remote: ClassVar[bool] = False

    _opened: _Opened | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("lists", self.lists, 0, 1 << 20)
        check_whole("codes", self.codes, 0, 1 << 10)

    def build(
        self,
        folder: Path,
        vectors: StoredVectors,
        alive: Mask | None,
        earlier: Earlier | None,
        progress: Progress,
    ) -> None:
        """Write the lists of all rows that are alive, or extend the earlier ones.

        Lists are trained again where twice as many would be right for so many rows.
        """
        rows = np.arange(len(vectors)) if alive is None else np.flatnonzero(alive)
        faiss = library()
        wanted = self._lists_for(len(rows))
        if len(rows) < FEW:
            progress(f"fewer than {FEW:,} rows: nothing to build, search is exact", 1, 1)
            write_structure(faiss.IndexFlat(vectors.width), folder / LISTS)
            return
        lists: Any = None
        if earlier is not None:
            lists = _read(earlier.folder / LISTS, vectors, earlier.rows, mapped=False)
        with one_thread():
            if earlier and lists is not None and lists.nlist * 2 >= wanted:
                rows = rows[rows >= earlier.rows]
            else:
                lists = self._train(vectors, rows, wanted, progress)
            for start in range(0, len(rows), PORTION):
                some = rows[start : start + PORTION]
                lists.add_with_ids(vectors.read(some), some)
                progress("filling the lists", start + len(some), len(rows))
        write_structure(lists, folder / LISTS)

    def open(self, folder: Path, vectors: StoredVectors) -> Self:
        """Return the lists, memory-mapped, ready to search from several threads at once."""
        lists = _read(folder / LISTS, vectors, len(vectors), mapped=True)
        opened = replace(self)
        object.__setattr__(opened, "_opened", _Opened(lists, Scan(vectors)))
        return opened

    def candidates(
        self, queries: NDArray[Any], k: int, allowed: Mask | None, effort: int | None
    ) -> Rows:
        """Return rows (Q, C) that may be among the k nearest allowed ones."""
        assert self._opened is not None, "open it first"
        lists, scan = self._opened.lists, self._opened.scan
        total = len(scan.vectors)
        count = total if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, count)
        if not k or lists is None:
            return scan.nearest(queries, k, allowed)
        visited = (effort or self.efforts[-1]) * max(1, k / NEAREST) * total / count
        part = visited / lists.nlist
        if (count < total or k > NEAREST) and (part > 0.5 or count < GATHERED * part * total):
            return scan.nearest(queries, k, allowed)
        asked = library().SearchParametersIVF(
            nprobe=math.ceil(visited),
            sel=None if allowed is None or count == total else selector(allowed),
        )
        wanted = min(count, max(LEAST_CANDIDATES, CANDIDATES * k))
        x = np.asarray(queries, dtype=np.float32)
        return search_in(lists, x, wanted, asked)

    def close(self) -> None:
        """Let go of the file of the lists."""
        object.__setattr__(self, "_opened", None)

    def discard(self, folder: Path, kept: Path | None) -> None:
        """Do nothing: it keeps nothing outside of the index."""

    def _lists_for(self, rows: int) -> int:
        """Return the number of lists: as many as can be trained at most."""
        return max(1, min(self.lists or round(4 * math.sqrt(rows)), rows // TRAINED))

    def _train(self, vectors: StoredVectors, rows: Rows, wanted: int, progress: Progress) -> Any:
        faiss = library()
        progress("training the lists", 0, 1)
        metric = metric_of(vectors)
        flat = faiss.IndexFlat(vectors.width, metric)
        lists = faiss.IndexIVFPQ(flat, vectors.width, wanted, self._bytes(vectors), 8, metric)
        flat.this.disown()
        lists.own_fields = True
        most = max(MOST_TRAINED * wanted, FEW)
        if len(rows) > most:
            rows = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        lists.train(vectors.read(rows))
        progress("training the lists", 1, 1)
        return lists

    def _bytes(self, vectors: StoredVectors) -> int:
        """Return the bytes of a code."""
        fitting = [size for size in range(1, vectors.width + 1) if vectors.width % size == 0]
        if not self.codes:
            return max(size for size in fitting if size <= max(1, vectors.width // 4))
        if self.codes not in fitting:
            raise BadInput(
                f"codes={self.codes}: vectors of {vectors.width} numbers cannot be cut into so many"
                f" equal parts; choose one of {', '.join(map(str, fitting))}"
            )
        return self.codes


def _read(path: Path, vectors: StoredVectors, rows: int, *, mapped: bool) -> Any:
    """Return the lists in a file; None where it says that rows are too few for lists."""
    faiss = library()
    if is_flat(path):
        check_empty(path, vectors.width)
        return None
    check_lists(path, vectors.width, metric_of(vectors), rows)
    lists = read_structure(path, faiss.IndexIVFPQ, mapped=mapped)
    kind = type(faiss.downcast_InvertedLists(lists.invlists))
    if kind is not faiss.ArrayInvertedLists:
        raise DamagedIndex(f"{path} keeps its lists as {kind.__name__}: it was altered")
    return lists
