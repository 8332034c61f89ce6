"""What an index asks of a back end.

Shapes: N stored rows, Q queries, C candidates, K matches, D dims, B bytes of packed bits.

A back end only finds candidates. `assay.index.scoring` computes the scores of matches from the
stored vectors, so that a match has one score whichever back end found it.
"""

from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from numpy.typing import NDArray

from assay.index.vectors import Mask, Rows, StoredVectors
from assay.progress import Progress
from assay.protocols import Similarity
from assay.registry import Registry

__all__ = ["Backend", "Mask", "Rows", "StoredVectors", "backends"]


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
            alive: which rows may ever be found; None: all. Others may be left out.
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

        Only allowed rows come back, none twice for a query; `allowed` leaves out rows that are not
        alive, and is None where all rows are alive and allowed. They may be too few, in
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
