"""Milvus: a file through milvus-lite, or a server or cluster, by the same client (pymilvus).

A version of an index does not change, and milvus-lite locks its folder against other processes.
So the folder is copied when it is opened: many processes can read, and none writes to the version.

In a server, a structure is a collection. Rows that are added go into the same collection, and a
version finds the rows below its own number of rows only; so older versions stay as they were. A
copied index shares its collection with the original: build one of the two again with --rebuild.
"""

import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.index.approximate import check_whole
from assay.index.backends.backend import Earlier, Mask, Rows, StoredVectors, backends
from assay.index.manifest import DamagedIndex
from assay.index.milvus_client import (
    FEW,
    LEAST_WIDTH,
    LITE_FILE,
    METRICS,
    MOST_FOUND,
    MOST_WIDTH,
    PLACE,
    RECORD,
    WIDEST,
    Connection,
    Home,
    check_place,
    connect,
    connect_to_copy,
    is_address,
    is_named,
    width_of,
)
from assay.index.scan import Scan
from assay.progress import Progress
from assay.protocols import Similarity


@dataclass(frozen=True)
class _Opened:
    """A structure that is ready to search."""

    connection: "Connection"
    scan: Scan


@backends("milvus")
@dataclass(frozen=True)
class Milvus:
    """Milvus: for databases that outgrow one machine; milvus-lite, in a file, to try it out.

    A server searches an HNSW graph, or all packed bits. milvus-lite compares with all rows, because
    its graphs take longer to build and are not faster to search (100,000 rows: 55 s instead of 4 s,
    and 40 ms a query both ways); it does not have packed bits.

    Args:
        place: `http://host:port` or `https://host:port` of a server; or empty, or the name of a
            file that ends with .db, which is kept inside of the index. A token is taken from the
            environment variable ASSAY_MILVUS_TOKEN, where ASSAY_MILVUS_PLACE names this address.
        links: links of a node of the graph.
        construction: effort by which the links of a new node are looked for.
    """

    place: str = ""
    links: int = 16
    construction: int = 200

    name: ClassVar[str] = "milvus"
    is_exact: ClassVar[bool] = False
    similarities: ClassVar[tuple[Similarity, ...]] = ("cosine", "euclidean", "hamming")
    efforts: ClassVar[tuple[int, ...]] = (16, 32, 64, 128, 256, 512)

    _opened: _Opened | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_place(self.place)
        check_whole("links", self.links, 2, 128)
        check_whole("construction", self.construction, 8, 4096)

    @property
    def is_remote(self) -> bool:
        """Whether it is on a server, not in a file."""
        return is_address(self.place)

    def build(
        self,
        folder: Path,
        vectors: StoredVectors,
        alive: Mask | None,
        earlier: Earlier | None,
        progress: Progress,
    ) -> None:
        """Insert the rows that are alive: into the server's collection of the earlier structure,
        where it has exactly the rows that it should have; else into a new collection.
        """
        self._check(vectors)
        if earlier is not None and is_address(self.place):
            home, rows = Home.of(earlier.folder), earlier.rows
            if home.place == self.place:
                with connect(home, earlier.folder) as connection:
                    if connection.holds(home, rows) and not connection.count(f"row >= {rows}"):
                        added = connection.insert(vectors, alive, rows, progress)
                        replace(home, held=home.held + added).write(folder)
                        return
        home = Home(self.place or LITE_FILE, f"assay_{secrets.token_hex(8)}", 0)
        home.write(folder)  # first, so that the collection of a killed build can be found
        with connect(home, folder) as connection:
            try:
                connection.create(vectors)
                held = connection.insert(vectors, alive, 0, progress)
                connection.declare(self._structure(vectors.similarity))
            except BaseException:
                with suppress(BadInput):
                    connection.drop()
                raise
        replace(home, held=held).write(folder)

    def open(self, folder: Path, vectors: StoredVectors) -> Self:
        """Return the structure, connected, ready to search from several threads at once.

        A place that only the record names is never connected to: the index's settings, which a user
        sees, name the same.
        """
        home = Home.of(folder)
        if home.place != (self.place or LITE_FILE):
            raise DamagedIndex(
                f"{folder / RECORD} names another place than the settings of the index: it was"
                " altered"
            )
        connection = (connect if home.is_server else connect_to_copy)(home, folder)
        try:
            if not connection.holds(home, len(vectors)):
                raise DamagedIndex(
                    f"Milvus at {home.place} does not have the {home.held:,} rows of this index in"
                    f" its collection {home.collection}: it was removed or altered"
                )
        except BaseException:
            connection.close()
            raise
        opened = replace(self)
        object.__setattr__(opened, "_opened", _Opened(connection, Scan(vectors)))
        return opened

    def candidates(
        self, queries: NDArray[Any], k: int, allowed: Mask | None, effort: int | None
    ) -> Rows:
        """Return rows (Q, C) that may be among the k nearest allowed ones.

        Milvus takes 5 microseconds for each number in a filter. So no filter is sent: where few
        rows are allowed, search is exact; otherwise more rows are asked for, and those that are not
        allowed are dropped.
        """
        assert self._opened is not None, "open it first"
        scan, connection = self._opened.scan, self._opened.connection
        total = len(scan.vectors)
        count = total if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, count)
        wanted = k if count == total else math.ceil(1.2 * k * total / max(1, count)) + 10
        if wanted > MOST_FOUND or (count < total and count <= FEW) or not k:
            return scan.nearest(queries, k, allowed)
        width = (effort or self.efforts[-1]) * math.ceil(total / count)
        width = min(WIDEST, max(width, wanted))
        found = connection.search(queries, wanted, width, scan.vectors)
        if allowed is not None:
            found[~allowed[found] & (found >= 0)] = -1
        return found

    def close(self) -> None:
        """Close the connection, and remove the copy of the file."""
        if self._opened is not None:
            self._opened.connection.close()
            object.__setattr__(self, "_opened", None)

    def discard(self, folder: Path, kept: Path | None) -> None:
        """Drop the server's collection of a version, unless the present version has the same.

        It goes by what is written in the folder, whichever settings this back end has. Only a
        server that the present version has too, or that the user names in ASSAY_MILVUS_PLACE, is
        connected to. Raise `BadInput` for another one, and where the server does not answer, or
        stops answering.
        """
        if not (folder / RECORD).exists():
            return
        home = Home.of(folder)
        if not home.is_server:
            return
        present = Home.of(kept) if kept is not None and (kept / RECORD).exists() else None
        is_present = present is not None and present.place == home.place
        if is_present and present is not None and present.collection == home.collection:
            return
        if not is_present and not is_named(home.place):
            raise BadInput(
                f"{folder / RECORD} names the collection {home.collection} at {home.place}, which"
                f" this index does not use now: remove it by hand, or set {PLACE}={home.place} to"
                " have it removed"
            )
        with connect(home, folder) as connection:
            connection.drop()

    def _check(self, vectors: StoredVectors) -> None:
        """Raise `BadInput` for vectors that Milvus cannot hold."""
        if vectors.similarity == "hamming" and not is_address(self.place):
            raise BadInput(
                "milvus-lite cannot search packed bits; use --backend bits, or the address of a"
                " Milvus server"
            )
        width = width_of(vectors)
        if not LEAST_WIDTH <= width <= MOST_WIDTH:
            raise BadInput(
                f"Milvus holds vectors of {LEAST_WIDTH} to {MOST_WIDTH:,} numbers, and these have"
                f" {width:,}; use --backend exact"
            )

    def _structure(self, similarity: Similarity) -> dict[str, Any]:
        metric = METRICS[similarity]
        if similarity == "hamming":
            return {"index_type": "BIN_FLAT", "metric_type": metric, "params": {}}
        if not is_address(self.place):
            return {"index_type": "FLAT", "metric_type": metric, "params": {}}
        graph = {"M": self.links, "efConstruction": self.construction}
        return {"index_type": "HNSW", "metric_type": metric, "params": graph}
