"""What an index asks of a back end.

Shapes: N stored rows, Q queries, C candidates, K matches, D dims, B bytes of packed bits.

A back end only finds candidates. `assay.index.scoring` computes the scores of matches from the
stored vectors, so that a match has one score whichever back end found it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from numpy.typing import NDArray

from assay.index.vectors import Mask, Rows, StoredVectors
from assay.progress import Progress
from assay.protocols import Similarity
from assay.registry import Registry

__all__ = ["Backend", "Earlier", "Mask", "Rows", "StoredVectors", "backends"]


@dataclass(frozen=True)
class Earlier:
    """A structure with the same settings over the first rows of an index.

    Args:
        folder: its folder.
        rows: how many rows it was built over.
    """

    folder: Path
    rows: int


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

    @property
    def is_remote(self) -> bool:
        """Whether it can only be opened by a call to a server."""

    def build(
        self,
        folder: Path,
        vectors: StoredVectors,
        alive: Mask | None,
        earlier: Earlier | None,
        progress: Progress,
    ) -> None:
        """Write the files of the structure into an empty folder.

        Args:
            folder: the folder.
            vectors: all rows.
            alive: which rows may ever be found; None: all. Others may be left out.
            earlier: a structure that may be extended instead of building all of it again; None:
                there is none.
            progress: called with the stage, the rows done and their total.
        """

    def open(self, folder: Path, vectors: StoredVectors) -> Self:
        """Return the structure in a folder, ready to search from several threads at once.

        Raise `DamagedIndex` where a file is missing or damaged, and before a library reads what it
        should not: an index may be a stranger's.
        """

    def candidates(
        self, queries: NDArray[Any], k: int, allowed: Mask | None, effort: int | None
    ) -> Rows:
        """Return rows (Q, C) that may be among the k nearest of each query, -1 where there are
        fewer.

        Only allowed rows come back, none twice for a query; `allowed` leaves out rows that are not
        alive, and is None where all rows are alive and allowed. They may be in any order, and more
        than k: scores decide. A query for which they are fewer than k is searched exactly by the
        caller, `assay.index.scan.nearest_by`. Queries are prepared as the stored vectors are.
        """

    def close(self) -> None:
        """Give back what `open` holds: files, connections."""

    def discard(self, folder: Path, kept: Path | None) -> None:
        """Remove what the structure in `folder` keeps outside of the index, as a server does.

        Called before the folder of a version that nobody needs any more is removed; `kept` is the
        folder of the present version's structure, whose part must stay. Raise `BadInput` where a
        server does not answer, or stops answering.
        """


backends = Registry[type[Backend]]("back end")
"""Back ends by name, chosen by `--backend`."""
