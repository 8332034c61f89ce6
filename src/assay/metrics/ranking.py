"""Every query's list of references, as hits and misses.

Shapes: Q queries, R references, K ranks, P pairs.

Lists are never all in memory: queries are looked up in groups whose lists fit, and only their
scores are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.neighbours import Vectors, nearest, target_ranks, vector_similarities
from assay.neighbours.candidates import PAIRS, exact_scores
from assay.neighbours.search import available
from assay.neighbours.similarity import WhichCount, standing
from assay.progress import Progress

LIST_ENTRIES = 1 << 23
"""Entries of lists in memory at once, unless the gallery itself holds more numbers."""

FAR_ENOUGH = 32
"""Ranks that are searched for the first hit; beyond them, its rank is counted."""


@dataclass(frozen=True)
class Ranking:
    """Queries that are looked up in a gallery.

    Args:
        queries: vectors (Q, D).
        gallery: vectors (R, D); the same object as `queries` where all samples look for one
            another.
        query_y: class numbers (Q,).
        gallery_y: class numbers (R,).
        own: each query's own place in the gallery (Q,), -1 where it is not there.
        counts: which references count for a query, all if None.
        similarity: how vectors are compared.
        progress: called with the stage, the pairs compared so far and their total, for each group
            of queries.
    """

    queries: Vectors
    gallery: Vectors
    query_y: Tensor
    gallery_y: Tensor
    own: Tensor
    counts: WhichCount | None
    similarity: str
    progress: Progress

    @cached_property
    def total(self) -> Tensor:
        """Number of references of its class that each query has (Q,), without itself."""
        if self.counts is None:
            in_class = torch.bincount(self.gallery_y, minlength=self._classes)
            return in_class[self.query_y] - (self.own >= 0).long()
        found = torch.zeros_like(self.query_y)
        for query_P, _ in self._relevant_pairs(
            torch.arange(len(self.query_y), device=found.device)
        ):
            found.index_add_(0, query_P, torch.ones_like(query_P))
        return found

    @property
    def most(self) -> int:
        """Number of references that a list can hold."""
        return available(len(self.gallery), self.own)

    def lists(self, ranks_Q: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield groups of queries with their hits in rank order (n, K); K covers their `ranks_Q`.

        Together the groups cover every query. Where most lists are short, these are found in one
        pass, in which each product serves both sides, and the few longer lists in passes of their
        own.
        """
        budget = max(LIST_ENTRIES, len(self.gallery) * self.gallery.dim // 4)
        order = ranks_Q.argsort(stable=True)
        lengths = ranks_Q[order]
        fits = int((len(order) * lengths <= budget).sum())
        if fits > len(order) // 2:
            yield order[:fits], self._hits(None, int(lengths[fits - 1]))[order[:fits]]
            order, lengths = order[fits:], lengths[fits:]
        while len(order):
            count = max(
                1,
                int(
                    (torch.arange(1, len(order) + 1, device=order.device) * lengths <= budget).sum()
                ),
            )
            yield order[:count], self._hits(order[:count], int(lengths[count - 1]))
            order, lengths = order[count:], lengths[count:]

    def count_to_first_hits(self, first_Q: Tensor) -> Tensor:
        """Return the rank (Q,) of each query's first hit, 0 where there is none.

        A rank that no list reached is given as 0 and is counted here.
        """
        far = ((first_Q == 0) & (self.total > 0)).nonzero()[:, 0]
        if len(far):
            first_Q[far] = target_ranks(
                Vectors(self.queries, chosen=far),
                self.gallery,
                self._best_relevant(far),
                self.own[far],
                similarity=self.similarity,
                counts=self._counts_of(far),
                progress=self.progress,
            )
        return first_Q

    @property
    def _classes(self) -> int:
        return int(max(self.query_y.max(), self.gallery_y.max())) + 1

    def _hits(self, rows: Tensor | None, k: int) -> Tensor:
        """Return hits (n, k) of some queries, or of all."""
        queries = self.queries if rows is None else Vectors(self.queries, chosen=rows)
        own = self.own if rows is None else self.own[rows]
        found = nearest(
            queries,
            self.gallery,
            min(k, available(len(self.gallery), own)),
            None if bool((own < 0).all()) else own,
            similarity=self.similarity,
            counts=self._counts_of(rows),
            progress=self.progress,
        )
        y = self.query_y if rows is None else self.query_y[rows]
        hits = (self.gallery_y[found] == y[:, None]) & (found >= 0)
        return F.pad(hits, (0, k - hits.shape[1]))

    def _counts_of(self, rows: Tensor | None) -> WhichCount | None:
        """Return the rule of what counts, for a part of the queries by their places in it."""
        counts = self.counts
        return (
            counts
            if counts is None or rows is None
            else lambda query, reference: counts(rows[query], reference)
        )

    def _relevant_pairs(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each of these queries with each reference of its class that counts, in parts."""
        by_class = self.gallery_y.argsort(stable=True)
        sizes = torch.bincount(self.gallery_y, minlength=self._classes)
        starts = sizes.cumsum(0) - sizes
        order = rows[sizes[self.query_y[rows]].argsort(stable=True)]
        begin = 0
        while begin < len(order):
            widths = sizes[self.query_y[order[begin:]]]
            count = max(1, int((widths.cumsum(0) * self.gallery.dim <= PAIRS).sum()))
            query_P = order[begin : begin + count].repeat_interleave(widths[:count])
            before = widths[:count].cumsum(0) - widths[:count]
            rank_P = torch.arange(len(query_P), device=rows.device) - before.repeat_interleave(
                widths[:count]
            )
            reference_P = by_class[starts[self.query_y[query_P]] + rank_P]
            stands_P = standing(query_P, reference_P, self.own[query_P], self.counts)
            yield query_P[stands_P], reference_P[stands_P]
            begin += count

    def _best_relevant(self, rows: Tensor) -> Tensor:
        """Return the most similar reference of its class for each query, ties by lower index."""
        compared = vector_similarities[self.similarity](self.queries, self.gallery)
        score = torch.full(
            (len(self.query_y),), -torch.inf, dtype=torch.float64, device=rows.device
        )
        best = torch.full_like(self.query_y, len(self.gallery))
        for query_P, reference_P in self._relevant_pairs(
            rows
        ):  # all references of a query come together
            score_P = exact_scores(compared, query_P, reference_P)
            score.scatter_reduce_(0, query_P, score_P, "amax")
            leads_P = score_P == score[query_P]
            best.scatter_reduce_(0, query_P[leads_P], reference_P[leads_P], "amin")
        return best[rows]
