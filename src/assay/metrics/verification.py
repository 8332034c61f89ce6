"""Same class or not, decided by a similarity: ROC AUC, EER and TAR at FAR over all pairs.

Shapes: R rows and K columns of a tile of pairs, D dimensions, B bins, L lanes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.metrics.metric import metric
from assay.neighbours.vectors import Vectors, slices, unit_rows
from assay.progress import Progress

STEPS = 1 << 19
"""Bins between similarity 0 and 1. There are centres at -1, 0 and 1, so that rounding does not
separate equal values there.
"""
BINS = 2 * STEPS + 1
PAIRS_TILE = 1024
PAIRS_PANEL = 8 * PAIRS_TILE
"""Rows that stay in memory while columns are read, so that each column is normalised only once for
all of them.
"""
LANES = 8
"""The most threads that count at a time, each on its own copy of the bins."""
INT32_MAX = torch.iinfo(torch.int32).max


@dataclass(frozen=True, eq=False, repr=False)
class Verification:
    """Histograms over similarity of pairs of one class and pairs of two classes.

    A threshold t accepts the pairs of similarity >= t. TAR(t) is the share accepted of the positive
    pairs, FAR(t) of the negative ones, FRR = 1 - TAR. Thresholds lie 2^-19 = 1.9e-6 of cosine
    apart, and pairs between two of them are tied. Everything is NaN where there are no positive or
    no negative pairs.

    >>> Verification(torch.tensor([0, 1, 0, 3]), torch.tensor([4, 4, 2, 0]))
    Verification(roc_auc 0.9000, eer 0.2308; 4 positives, 10 negatives)
    """

    positives_B: Tensor
    negatives_B: Tensor

    @cached_property
    def positives(self) -> int:
        """Number of pairs of one class."""
        return int(self.positives_B.sum())

    @cached_property
    def negatives(self) -> int:
        """Number of pairs of two classes."""
        return int(self.negatives_B.sum())

    @cached_property
    def roc_auc(self) -> float:
        """Area under TAR over FAR: P(s_positive > s_negative) + 1/2 P(s_positive = s_negative)."""
        if not self.positives or not self.negatives:
            return math.nan
        return float(torch.trapezoid(self._tar, self._far))

    @cached_property
    def eer(self) -> float:
        """Equal error rate: FAR(t) where it equals FRR(t), interpolated between thresholds."""
        if not self.positives or not self.negatives:
            return math.nan
        excess = self._far - (1 - self._tar)
        after = int(torch.searchsorted(excess, 0.0))
        low, high = excess[after - 1], excess[after]
        return float(torch.lerp(self._far[after - 1], self._far[after], -low / (high - low)))

    def tar_at_far(self, far: float) -> float:
        """Return the largest share of the positives that a threshold of FAR(t) <= `far` accepts.

        NaN with fewer than 1 / `far` negatives: no negative could be accepted, and any smaller
        `far` would give the same.

        >>> found = Verification(torch.tensor([0, 1, 0, 3]), torch.tensor([4, 4, 2, 0]))
        >>> found.tar_at_far(0.1), found.tar_at_far(0.6), found.tar_at_far(0.01)
        (0.75, 1.0, nan)
        """
        if not 0 < far <= 1:
            raise ValueError(f"a false accept rate lies in (0, 1], got {far}")
        if not self.positives or not self.negatives or 1 / self.negatives > far:
            return math.nan
        return float(self._tar[self._far <= far][-1])

    @cached_property
    def _tar(self) -> Tensor:
        return _accepted(self.positives_B)

    @cached_property
    def _far(self) -> Tensor:
        return _accepted(self.negatives_B)

    def __repr__(self) -> str:
        counts = f"{self.positives} positives, {self.negatives} negatives"
        return f"Verification(roc_auc {self.roc_auc:.4f}, eer {self.eer:.4f}; {counts})"


def verification(
    z: ArrayLike | Tensor | Vectors,
    y: Tensor,
    gallery: ArrayLike | Tensor | Vectors | None = None,
    gallery_y: Tensor | None = None,
    *,
    own: Tensor | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare all pairs by cosine, a tile at a time; only their histograms are kept.

    Without a gallery, the pairs are i < j of `z`; with one, every row of `z` with every row of the
    gallery but itself. A zero vector has similarity 0 to all.

    Cosine only: Euclidean distance of unit vectors, sqrt(2 - 2 cos), ranks pairs alike, and scores
    that depend on the norms have no range known beforehand, hence no resolution that could be
    stated.

    Args:
        z: embeddings (N, D), any norm.
        y: class numbers (N,), compared by equality.
        gallery: embeddings to compare with.
        gallery_y: their class numbers.
        own: each row's own place in the gallery (N,), -1 where it is not there; None where none is.
        progress: called after each tile with the stage "pairs", the tiles done and their total.

    >>> verification([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.9, 0.8]], torch.tensor([0, 0, 1, 1]))
    Verification(roc_auc 0.7500, eer 0.5000; 2 positives, 4 negatives)
    """
    if (gallery is None) != (gallery_y is None):
        raise ValueError(
            "a gallery needs its labels, and labels their gallery: give both, or neither"
        )
    rows = _Sorted(Vectors(z), y)
    columns = (
        rows
        if gallery is None or gallery_y is None
        else _Sorted(Vectors(gallery, rows.vectors.device), gallery_y)
    )
    if rows.vectors.dim != columns.vectors.dim:
        raise ValueError(
            f"queries of {rows.vectors.dim} dimensions cannot be compared with a gallery of"
            f" {columns.vectors.dim}"
        )
    all_pairs, positive = _Histogram(rows.vectors.device), _Histogram(rows.vectors.device)
    total = _number_of_tiles(rows, columns)
    for done, tile in enumerate(_tiles(rows, columns), start=1):
        _count(tile, all_pairs, positive)
        if progress is not None:
            progress("pairs", done, total)
    positives_B = positive.total()
    return Verification(
        _without_itself(positives_B, rows.vectors, own), all_pairs.total() - positives_B
    )


@metric("roc_auc", "pairs")
def roc_auc(pairs: Verification) -> float:
    """How often a pair of one class is more similar than a pair of two classes."""
    return pairs.roc_auc


@metric("eer", "pairs")
def eer(pairs: Verification) -> float:
    """Equal error rate: the share of pairs of two classes that are accepted, at the threshold that
    rejects the same share of pairs of one class.
    """
    return pairs.eer


@metric("tar_at_far", "pairs")
def tar_at_far(pairs: Verification, far: float) -> float:
    """Share of the pairs of one class accepted while at most this share of the pairs of two is."""
    return pairs.tar_at_far(far)


def _without_itself(positives_B: Tensor, vectors: Vectors, own: Tensor | None) -> Tensor:
    """Return the histogram without pairs of a row with itself.

    These are the most similar pairs of all, or at similarity 0 for a zero vector.
    """
    if own is None:
        return positives_B
    alive = sum(
        int((block.any(1) & (own[rows] >= 0)).sum()) for rows, block in vectors.blocks(None)
    )
    from_the_top_B = (positives_B.flip(0).cumsum(0) - alive).clamp(min=0)
    others_B = from_the_top_B.diff(prepend=from_the_top_B.new_zeros(1)).flip(0)
    others_B[STEPS] -= int((own >= 0).sum()) - alive
    return others_B


class _Sorted:
    """Samples sorted by class: then few tiles hold pairs of one class; the others are skipped."""

    def __init__(self, vectors: Vectors, y: Tensor) -> None:
        if y.shape != (len(vectors),):
            raise ValueError(
                f"{len(vectors)} embeddings but labels of shape {tuple(y.shape)}; each embedding"
                " needs one"
            )
        vectors.check_finite("embeddings")
        self.vectors = vectors
        self.y, self.order = y.to(vectors.device).sort(stable=True)

    def __len__(self) -> int:
        return len(self.y)

    def read(self, which: slice) -> tuple[Tensor, Tensor]:
        """Return unit vectors, normalised in float64, and their classes."""
        return unit_rows(self.vectors.read(self.order[which], torch.float64)).float(), self.y[which]


@dataclass(frozen=True)
class _Tile:
    """Pairs of some rows with some columns; on the diagonal, only those above it."""

    u_RD: Tensor
    y_R: Tensor
    u_KD: Tensor
    y_K: Tensor
    on_diagonal: bool


def _tiles(rows: _Sorted, columns: _Sorted) -> Iterator[_Tile]:
    triangle = rows is columns
    for panel in slices(len(rows), PAIRS_PANEL):
        panel_u, panel_y = rows.read(panel)
        for across in slices(len(columns), PAIRS_TILE):
            if triangle and across.start < panel.start:
                continue
            u_KD, y_K = columns.read(across)
            for down in slices(len(panel_y), PAIRS_TILE):
                place = panel.start + down.start
                if not triangle or place <= across.start:
                    yield _Tile(
                        panel_u[down], panel_y[down], u_KD, y_K, triangle and place == across.start
                    )


def _number_of_tiles(rows: _Sorted, columns: _Sorted) -> int:
    down, across = math.ceil(len(rows) / PAIRS_TILE), math.ceil(len(columns) / PAIRS_TILE)
    return down * (down + 1) // 2 if rows is columns else down * across


def _count(tile: _Tile, all_pairs: "_Histogram", positive: "_Histogram") -> None:
    bins_RK = _bins(tile.u_RD, tile.u_KD)
    pairs_RK = torch.ones_like(bins_RK, dtype=torch.bool).triu(1) if tile.on_diagonal else None
    all_pairs.add(bins_RK.flatten() if pairs_RK is None else bins_RK.masked_select(pairs_RK))
    if tile.y_R[0] <= tile.y_K[-1] and tile.y_K[0] <= tile.y_R[-1]:
        same_RK = tile.y_R[:, None] == tile.y_K
        positive.add(bins_RK.masked_select(same_RK if pairs_RK is None else same_RK & pairs_RK))


def _bins(u_RD: Tensor, u_KD: Tensor) -> Tensor:
    """Return the bin of each similarity s: round(STEPS s) + STEPS.

    Scale and shift are part of the matrix product. Rounding may take s outside [-1, 1]; it is
    clamped to the outermost bins.
    """
    shift = u_RD.new_full((1, 1), STEPS + 0.5)
    return torch.addmm(shift, u_RD, u_KD.T, alpha=STEPS).clamp_(0, BINS - 1).long()


class _Histogram:
    """Counts of 32 bits in a lane for each thread, which stay in its cache.

    They are moved to 64 bits before they overflow.
    """

    def __init__(self, device: torch.device) -> None:
        self.done_B = torch.zeros(BINS, dtype=torch.int64, device=device)
        self.lanes_LB = torch.zeros(
            min(LANES, torch.get_num_threads()), BINS, dtype=torch.int32, device=device
        )
        self.one = torch.ones((), dtype=torch.int32, device=device)
        self.pending = 0

    def add(self, bins: Tensor) -> None:
        if self.pending + len(bins) > INT32_MAX:
            self._move()
        self.pending += len(bins)
        lanes = len(self.lanes_LB)
        each, rest = divmod(len(bins), lanes)
        self.lanes_LB.scatter_add_(1, bins[rest:].view(lanes, each), self.one.expand(lanes, each))
        self.lanes_LB[0].scatter_add_(0, bins[:rest], self.one.expand(rest))

    def total(self) -> Tensor:
        self._move()
        return self.done_B.cpu()

    def _move(self) -> None:
        self.done_B += self.lanes_LB.sum(0, dtype=torch.int64)
        self.lanes_LB.zero_()
        self.pending = 0


def _accepted(counts_B: Tensor) -> Tensor:
    """Return the share of pairs at or above each threshold, strictest first.

    The first threshold accepts no pair.
    """
    above = counts_B.flip(0).cumsum(0)
    return torch.cat([above.new_zeros(1), above]).double() / above[-1]
