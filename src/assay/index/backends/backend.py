"""What an index asks of a back end, and the stored vectors that all back ends share.

Shapes: N stored rows, Q queries, C candidates, K matches, D dims, B bytes of packed bits.

A back end only finds candidates. `assay.index.scoring` computes the scores of their matches from the
stored vectors, so that a match has one score whichever back end found it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from assay.progress import Progress
from assay.protocols import Similarity
from assay.registry import Registry

Rows = NDArray[np.int64]
"""Numbers of stored rows; -1 stands for none."""

Mask = NDArray[np.bool_]
"""Which stored rows may be found (N,)."""

BLOCK = 1 << 22
"""Numbers that are read at once: bounds memory."""


@dataclass(frozen=True)
class StoredVectors:
    """The vectors of an index, which are never changed.

    Args:
        rows: (N, D) float32 or float16, of unit length where they are compared by cosine; or (N, B)
            packed bits (`numpy.packbits(z > 0, axis=1)`) where they are compared by Hamming
            distance. Memory-mapped where they come from a file.
        similarity: cosine, euclidean or hamming.
    """

    rows: NDArray[Any]
    similarity: Similarity

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """Numbers, or bytes of packed bits, in a row."""
        return int(self.rows.shape[1])

    def blocks(self, start: int = 0) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows from `start` on some at a time, each block with its place: floats as
        float32, packed bits as they are.
        """
        size = max(1, BLOCK // self.width)
        for first in range(start, len(self), size):
            place = slice(first, min(first + size, len(self)))
            yield place, self.read(place)

    def read(self, which: slice | Rows) -> NDArray[Any]:
        """Return some rows: floats as float32, packed bits as they are."""
        found = self.rows[which]
        return found if found.dtype == np.uint8 else np.asarray(found, dtype=np.float32)


class Backend(Protocol):
    """A structure over stored vectors that finds candidates for the nearest rows.

    It is a frozen dataclass of its settings when it is declared, `Hnsw(links=32)`; `build` writes
    its files, and `open` returns a copy that can search.
    """

    name: ClassVar[str]

    is_exact: ClassVar[bool]
    """Whether candidates are the nearest rows themselves, in their exact order."""

    similarities: ClassVar[tuple[Similarity, ...]]
    """Similarities by which it can search."""

    efforts: ClassVar[tuple[int, ...]]
    """How hard a search may try, from the least to the most; empty where there is no choice. The
    least effort that reaches the wanted recall is measured after each build.
    """

    def build(
        self,
        folder: Path,
        vectors: StoredVectors,
        alive: Mask | None,
        before: Path | None,
        known: int,
        progress: Progress,
    ) -> None:
        """Write the files of the structure into an empty folder.

        Args:
            folder: the folder.
            vectors: all rows.
            alive: which rows may ever be found; None: all. Others may be left out, and should be.
            before: folder of a structure with the same settings over the first `known` rows, which
                may be extended instead of building all of it again; None: there is none.
            known: number of rows that the structure in `before` has.
            progress: called with the stage, the rows done and their total.
        """

    def open(self, folder: Path, vectors: StoredVectors) -> Self:
        """Return the structure in a folder, ready to search from several threads at once."""

    def candidates(
        self, queries: NDArray[Any], k: int, allowed: Mask | None, effort: int | None
    ) -> Rows:
        """Return rows (Q, C) that may be among the k nearest of each query, -1 where there are
        fewer.

        Only rows that are alive and allowed come back, none twice in a row. They may be too few, in
        any order, and more than k: scores decide. Queries are prepared as the stored vectors are.
        """

    def close(self) -> None:
        """Give back what `open` holds: files, connections."""

    def discard(self, folder: Path, kept: Path | None) -> None:
        """Remove what the structure in `folder` keeps outside of the index, as a server does.

        Called before the folder of a version that nobody needs any more is removed; `kept` is the
        folder of the present version's structure, whose part must stay.
        """


backends = Registry[type[Backend]]("back end")
"""Back ends by name, chosen by `--backend`."""
