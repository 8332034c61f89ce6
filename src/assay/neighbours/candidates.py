"""From products to the k nearest references of each query, in their exact order.

Shapes: Q queries, R references, W places, P pairs, U distinct references.

Every query has W > k places for the references that can still be among its k nearest. A product
enters if it exceeds the query's bound: the k-th largest lower end so far, a value that at least k
references are sure to reach. When no place is left, the bound is raised, and candidates below it
leave. References are offered in the order of their index, so a reference that only ties with the
bound has lost to the k before it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.hashing import digest_bytes
from assay.neighbours.similarity import VectorSimilarity, WhichCount, standing
from assay.neighbours.tiles import ProductPanel, Transposed
from assay.neighbours.vectors import Vectors, slices

NONE = torch.iinfo(torch.int32).max
"""Index that stands for no reference; it sorts after all others."""

PAIRS = 1 << 19
"""Numbers of pairs that are compared exactly at once: bounds memory."""

PLACES = 1 << 18
"""Places that are sorted at once: bounds memory."""


def places_for(k: int) -> int:
    """Return how many places a query has."""
    return k + max(48, k // 2)


class Candidates:
    """Places for the candidates of some queries.

    Args:
        ids: indices (Q,) of the queries.
        k: how many references are wanted for each query.
        compared: the similarity.
        dtype: precision of the products.
        counts: which references count for a query, all if None.
    """

    def __init__(
        self,
        ids: Tensor,
        k: int,
        compared: VectorSimilarity,
        dtype: torch.dtype,
        counts: WhichCount | None,
    ) -> None:
        self.ids, self.k, self.compared, self.counts = ids, k, compared, counts
        shape = (len(ids), places_for(k))
        self.value = torch.full(shape, -torch.inf, dtype=dtype, device=ids.device)
        self.index = torch.full(shape, NONE, dtype=torch.int32, device=ids.device)
        self.filled = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        self.bound = torch.full((len(ids),), -torch.inf, dtype=dtype, device=ids.device)
        self.lost = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    def offer(self, rows: slice, offered: ProductPanel | Transposed) -> None:
        """Take products of the queries at `rows` with references of higher index than before."""
        if bool((torch.isneginf(self.bound[rows]) | self._crowded(rows, offered)).any()):
            offered = self._raise_bounds_by(rows, offered)
            crowded_Q = self._crowded(rows, offered)  # this precision cannot order their candidates
            self.lost[rows] |= crowded_Q
            self.bound[rows] = self.bound[rows].masked_fill(crowded_Q, torch.inf)
        query_P, reference_P, value_P = offered.above(self.bound[rows])
        query_P = query_P + rows.start
        if self.counts is not None and len(query_P):
            kept_P = self.counts(self.ids[query_P], reference_P)
            query_P, reference_P, value_P = query_P[kept_P], reference_P[kept_P], value_P[kept_P]
        self._place(rows, query_P, reference_P, value_P)

    def settle(self) -> Tensor:
        """Return the k nearest (Q, k) of each query, -1 where fewer count.

        Rows of `lost` queries mean nothing.
        """
        self.value[self.lost], self.index[self.lost] = -torch.inf, NONE
        settled = torch.empty(len(self.ids), self.k, dtype=torch.long, device=self.ids.device)
        for rows in slices(len(self.ids), max(1, PLACES // self.value.shape[1])):
            settled[rows] = nearest_first(
                self.compared, self.ids[rows], self.value[rows], self.index[rows].long(), self.k
            )
        return settled

    def _crowded(self, rows: slice, offered: ProductPanel | Transposed) -> Tensor:
        """Return whether more groups have an entry above the bound (Q,) than there are places."""
        return offered.groups_above(self.bound[rows]) > self.value.shape[1]

    def _raise_bounds_by(
        self, rows: slice, offered: ProductPanel | Transposed
    ) -> ProductPanel | Transposed:
        """Raise bounds by the offered products alone, if there are enough of them.

        Returns the offer without products that do not count.
        """
        if self.counts is not None and isinstance(offered, ProductPanel):
            last = len(self.compared.references) - 1
            offered = offered.keep(
                self.counts(self.ids[None, rows, None], offered.columns.clamp(max=last))
            )
        reached_Q = offered.reached_by(self.k)
        if reached_Q is not None:
            lower_Q = reached_Q - self.compared.widest_gap(self.ids[rows], self.bound.dtype)
            # The k references that reach the value are themselves offered now, so a reference that
            # ties with them may come before them.
            below_Q = torch.nextafter(lower_Q, lower_Q.new_tensor(-torch.inf)).minimum(
                lower_Q - torch.finfo(lower_Q.dtype).tiny
            )
            self.bound[rows] = torch.maximum(self.bound[rows], below_Q)
        return offered

    def _place(self, rows: slice, query_P: Tensor, reference_P: Tensor, value_P: Tensor) -> None:
        """Put pairs, sorted by query, into free places; raise bounds where places are too few."""
        if not len(query_P):
            return
        new_Q = torch.bincount(query_P - rows.start, minlength=rows.stop - rows.start)
        wanted_Q, width = self.filled[rows] + new_Q, self.value.shape[1]
        if bool((wanted_Q <= width).all()):
            self._write(rows, query_P, reference_P, value_P, new_Q)
            return
        # When the places of one query are full, those of many others nearly are: raising their
        # bounds together is cheaper.
        self._raise_bounds((wanted_Q > (self.k + width) // 2).nonzero()[:, 0] + rows.start)
        kept_P = value_P > self.bound[query_P]
        query_P, reference_P, value_P = query_P[kept_P], reference_P[kept_P], value_P[kept_P]
        new_Q = torch.bincount(query_P - rows.start, minlength=rows.stop - rows.start)
        if bool((self.filled[rows] + new_Q <= width).all()):
            self._write(rows, query_P, reference_P, value_P, new_Q)
            return
        middle = (int(reference_P.min()) + int(reference_P.max()) + 1) // 2
        for half_P in (reference_P < middle, reference_P >= middle):
            half_P &= value_P > self.bound[query_P]
            self._place(rows, query_P[half_P], reference_P[half_P], value_P[half_P])

    def _write(
        self, rows: slice, query_P: Tensor, reference_P: Tensor, value_P: Tensor, new_Q: Tensor
    ) -> None:
        before_Q = new_Q.cumsum(0) - new_Q
        rank_P = torch.arange(len(query_P), device=query_P.device) - before_Q[query_P - rows.start]
        place_P = self.filled[query_P] + rank_P
        self.value[query_P, place_P] = value_P
        self.index[query_P, place_P] = reference_P.int()
        self.filled[rows] += new_Q

    def _raise_bounds(self, chosen: Tensor) -> None:
        """Raise the bounds of the chosen queries and free the places of candidates below them."""
        value_QW, index_QW = self.value[chosen], self.index[chosen]
        gap_QW = gaps(self.compared, self.ids[chosen], index_QW, self.value.dtype)
        bound_Q = (value_QW - gap_QW).topk(self.k, dim=1, sorted=False).values.amin(1)
        stays_QW = (value_QW > bound_Q[:, None]) | self._first_of_ties(
            value_QW, index_QW, gap_QW, bound_Q
        )
        row_P, place_P = stays_QW.nonzero(as_tuple=True)
        new_place_P = (stays_QW.cumsum(1) - 1)[row_P, place_P]
        self.value[chosen], self.index[chosen] = -torch.inf, NONE
        self.value[chosen[row_P], new_place_P] = value_QW[row_P, place_P]
        self.index[chosen[row_P], new_place_P] = index_QW[row_P, place_P]
        self.filled[chosen] = stays_QW.sum(1)
        self.lost[chosen] |= stays_QW.all(1)
        self.bound[chosen] = bound_Q.maximum(self.bound[chosen]).masked_fill(
            self.lost[chosen], torch.inf
        )

    def _first_of_ties(
        self, value_QW: Tensor, index_QW: Tensor, gap_QW: Tensor, bound_Q: Tensor
    ) -> Tensor:
        """Return exact products that tie with the bound: as many as are missing to k, by index."""
        tied_QW = (value_QW == bound_Q[:, None]) & (gap_QW == 0) & (index_QW != NONE)
        if not bool(tied_QW.any()):
            return tied_QW
        missing_Q = self.k - (value_QW > bound_Q[:, None]).sum(1)
        in_order_QW = index_QW.masked_fill(~tied_QW, NONE).sort(dim=1).values
        last_Q = in_order_QW.gather(1, (missing_Q - 1).clamp(min=0)[:, None])
        return tied_QW & (index_QW <= last_Q) & (missing_Q > 0)[:, None]


# --- The exact order of candidates ---


def nearest_first(
    compared: VectorSimilarity, ids: Tensor, value_QW: Tensor, index_QW: Tensor, k: int
) -> Tensor:
    """Return the k nearest (Q, k) of the candidates, -1 where there are fewer.

    Candidates whose gaps overlap are compared exactly, then by index; all others are in order
    already.

    Args:
        compared: the similarity.
        ids: indices (Q,) of the queries.
        value_QW: products, -inf where there is no candidate.
        index_QW: indices of the references, NONE where there is no candidate.
        k: how many candidates are wanted.
    """
    lower_QW, order_QW = (value_QW - gaps(compared, ids, index_QW, value_QW.dtype)).sort(
        dim=1, descending=True
    )
    value_QW, index_QW = value_QW.gather(1, order_QW), index_QW.gather(1, order_QW)
    highest_after_QW = value_QW.flip(1).cummax(1).values.flip(1)[:, 1:]
    # whether a candidate is apart from the one before it, and from the one after it
    apart_QW = F.pad(highest_after_QW < lower_QW[:, :-1], (1, 1), value=True)
    run_QW = apart_QW[:, :-1].cumsum(1, dtype=torch.int32)
    unsure_QW = ~(apart_QW[:, :-1] & apart_QW[:, 1:]) & (index_QW != NONE)
    unsure_QW &= run_QW <= run_QW[:, k - 1, None]  # after the k-th it does not matter
    touched = unsure_QW.any(1).nonzero()[:, 0]
    if len(touched):
        width = int(unsure_QW.any(0).nonzero().max()) + 1
        index_QW[touched, :width] = _resolve(
            compared,
            ids[touched],
            value_QW[touched, :width],
            index_QW[touched, :width],
            run_QW[touched, :width],
            unsure_QW[touched, :width],
        )
    best = index_QW[:, :k]
    return best.masked_fill(best == NONE, -1)


def gaps(compared: VectorSimilarity, ids: Tensor, index_QW: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gaps of the candidates; any number where there is no candidate."""
    return compared.gap(
        ids[:, None], index_QW.clamp(max=len(compared.references) - 1).long(), dtype
    )


def exact_scores(compared: VectorSimilarity, query_P: Tensor, reference_P: Tensor) -> Tensor:
    """Return exact scores (P,) of any number of pairs, computed some at a time."""
    exact_P = torch.empty(len(query_P), dtype=torch.float64, device=query_P.device)
    for part in slices(len(query_P), max(1, PAIRS // compared.references.dim)):
        exact_P[part] = compared.exact(query_P[part], reference_P[part])
    return exact_P


def _resolve(
    compared: VectorSimilarity,
    ids: Tensor,
    value_QW: Tensor,
    index_QW: Tensor,
    run_QW: Tensor,
    unsure_QW: Tensor,
) -> Tensor:
    """Return indices sorted by run, then by falling exact score, then by index.

    Only unsure candidates need their exact score.
    """
    exact_QW = value_QW.double()
    rounded_QW = unsure_QW & (gaps(compared, ids, index_QW, value_QW.dtype) > 0)
    exact_QW[rounded_QW] = exact_scores(
        compared, ids[rounded_QW.nonzero()[:, 0]], index_QW[rounded_QW]
    )
    order_QW = index_QW.argsort(dim=1)
    order_QW = order_QW.gather(
        1, exact_QW.gather(1, order_QW).argsort(dim=1, descending=True, stable=True)
    )
    order_QW = order_QW.gather(1, run_QW.gather(1, order_QW).argsort(dim=1, stable=True))
    return index_QW.gather(1, order_QW)


# --- All pairs exactly, for queries with more ties than places ---


def exhaustive(
    compared: VectorSimilarity,
    ids: Tensor,
    k: int,
    exclude: Tensor | None,
    counts: WhichCount | None,
) -> Tensor:
    """Return the k nearest (Q, k) of the queries `ids`, -1 where fewer count.

    Equal references are compared once.
    """
    first_U, place_R = _distinct(compared.references)
    columns_R = torch.arange(len(place_R), device=ids.device)
    found = torch.empty(len(ids), k, dtype=torch.long, device=ids.device)
    for number, query in enumerate(ids):
        score_R = exact_scores(compared, query.expand(len(first_U)), first_U)[place_R]
        stands_R = standing(query, columns_R, None if exclude is None else exclude[query], counts)
        found[number] = _best(score_R.masked_fill(~stands_R, -torch.inf), k)
    return found


def _best(score_R: Tensor, k: int) -> Tensor:
    """Return indices of the k largest, ties by lower index, without sorting all."""
    least = score_R.topk(k).values[-1]
    certain = (score_R > least).nonzero()[:, 0]
    tied = (score_R == least).nonzero()[: k - len(certain), 0]
    chosen = torch.cat([certain, tied]).sort().values
    order = score_R[chosen].argsort(descending=True, stable=True)
    best = chosen[order]
    return best.masked_fill(torch.isneginf(score_R[best]), -1)


def _distinct(vectors: Vectors) -> tuple[Tensor, Tensor]:
    """Return the index of the first of each distinct row, and each row's place among these."""
    first: list[int] = []
    place = torch.empty(len(vectors), dtype=torch.long)
    seen: dict[str, int] = {}
    for rows, block in vectors.blocks(None):
        for index, row in enumerate(
            block.cpu().contiguous().view(torch.uint8).numpy(), start=rows.start
        ):
            place[index] = seen.setdefault(digest_bytes(row.tobytes()), len(first))
            if place[index] == len(first):
                first.append(index)
    return torch.tensor(first, device=vectors.device), place.to(vectors.device)
