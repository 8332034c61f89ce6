"""Exact search over all stored vectors, by any similarity."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from assay.index.backends.backend import Earlier, Mask, Rows, StoredVectors, backends
from assay.index.scan import Scan
from assay.progress import Progress
from assay.protocols import Similarity


@backends("exact")
@dataclass(frozen=True)
class Exact:
    """Compare a query with every stored vector: always right, and there is nothing to build."""

    name: ClassVar[str] = "exact"
    is_exact: ClassVar[bool] = True
    similarities: ClassVar[tuple[Similarity, ...]] = ("cosine", "euclidean", "hamming")
    efforts: ClassVar[tuple[int, ...]] = ()
    is_remote: ClassVar[bool] = False

    _scan: Scan | None = field(default=None, init=False, repr=False, compare=False)

    def build(
        self,
        folder: Path,
        vectors: StoredVectors,
        alive: Mask | None,
        earlier: Earlier | None,
        progress: Progress,
    ) -> None:
        """Write nothing: the stored vectors are all that is needed."""

    def open(self, folder: Path, vectors: StoredVectors) -> Self:
        """Return the back end, ready to search from several threads at once."""
        opened = replace(self)
        object.__setattr__(opened, "_scan", Scan(vectors))
        return opened

    def candidates(
        self, queries: NDArray[Any], k: int, allowed: Mask | None, effort: int | None
    ) -> Rows:
        """Return the nearest rows (Q, K) themselves, best first."""
        assert self._scan is not None, "open it first"
        return self._scan.nearest(queries, k, allowed)

    def close(self) -> None:
        """Do nothing: no file is open."""

    def discard(self, folder: Path, kept: Path | None) -> None:
        """Do nothing: it keeps nothing outside of the index."""
