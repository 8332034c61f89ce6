"""The nearest rows of queries, among those that pass a filter. Shapes: Q queries, K matches."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.index.backends import Backend, Mask, Rows, StoredVectors
from assay.index.catalog import Catalog
from assay.index.scan import Scan, nearest_by
from assay.index.scoring import Scores
from assay.progress import Progress, silent

AT_ONCE = 1024
"""Queries that are searched between two reports of progress."""

REMEMBERED = 1 << 26
"""Bytes of masks of filters that are kept."""

_Filter = tuple[tuple[str, tuple[str, ...]], ...]

Where = Mapping[str, Sequence[str]]
"""Which images may be found: by column of metadata, the words of which an image has one."""


class Nearest(NamedTuple):
    """The nearest rows of queries, best first.

    Args:
        rows: numbers of rows (Q, K); -1 where there are no more.
        scores: their scores (Q, K).
    """

    rows: Rows
    scores: Scores

    def without(self, row: int) -> "Nearest":
        """Return all but one row, or but the last where that row is not among them; of one query.

        >>> Nearest(np.array([[4, 2, 7]]), np.array([[3.0, 2.0, 1.0]])).without(2).rows
        array([[4, 7]])
        """
        assert len(self.rows) == 1
        places = np.flatnonzero(self.rows[0] == row)
        left_out = int(places[0]) if len(places) else self.rows.shape[1] - 1
        kept = np.arange(self.rows.shape[1]) != left_out
        return Nearest(self.rows[:, kept], self.scores[:, kept])


class Searcher:
    """Finds the nearest rows by a back end, and exactly where that finds too few.

    Args:
        vectors: the stored vectors.
        alive: which rows may ever be found; None: all.
        catalog: tells which rows pass a filter.
        backend: an opened back end.
        effort: how hard it tries.
    """

    def __init__(
        self,
        vectors: StoredVectors,
        alive: Mask | None,
        catalog: Catalog,
        backend: Backend,
        effort: int | None,
    ) -> None:
        self.vectors, self.alive, self.catalog = vectors, alive, catalog
        self.backend, self.effort = backend, effort
        self._scan = Scan(vectors)
        self._passing: OrderedDict[_Filter, Mask] = OrderedDict()
        self._turn = threading.Lock()

    def nearest(
        self,
        queries: NDArray[Any],
        k: int,
        where: Where | None = None,
        progress: Progress = silent,
    ) -> Nearest:
        """Return the k nearest rows that pass a filter, or all where fewer do.

        `progress` is called with the stage, the queries done and their total.
        """
        allowed = self.allowed(where)
        k = min(k, len(self.vectors) if allowed is None else int(allowed.sum()))
        rows, scores = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k))
        for start in range(0, len(queries) if k else 0, AT_ONCE):
            place = slice(start, min(start + AT_ONCE, len(queries)))
            rows[place], scores[place] = nearest_by(
                self.backend, self._scan, queries[place], k, allowed, self.effort
            )
            progress("searching", place.stop, len(queries))
        return Nearest(rows, scores)

    def allowed(self, where: Where | None) -> Mask | None:
        """Return which rows may be found; None: all of them."""
        wanted = tuple((column, tuple(words)) for column, words in sorted((where or {}).items()))
        if not wanted:
            return self.alive
        with self._turn:
            if wanted in self._passing:
                self._passing.move_to_end(wanted)
                return self._passing[wanted]
        found = self._rows_that_pass(dict(wanted))
        with self._turn:
            self._passing[wanted] = found
            while len(self._passing) * len(self.vectors) > REMEMBERED:
                self._passing.popitem(last=False)
        return found

    def _rows_that_pass(self, where: Where) -> Mask:
        allowed = self.catalog.where(where, len(self.vectors))
        if self.alive is not None:
            allowed &= self.alive
        allowed.flags.writeable = False
        return allowed
