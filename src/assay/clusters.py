"""K-means. Shapes: N points, D dimensions, K clusters, M some clusters; n, m those of one tile."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.hashing import derive
from assay.progress import Progress

POINTS_TILE = 1024
"""Points, and centres, whose similarities are computed at once: 4 MB, which fit in the cache."""

POINTS_BLOCK = 4096
"""Points whose coordinates are in float64 at once."""


@dataclass(frozen=True)
class Clustering:
    """A cluster for each point.

    Args:
        labels: numbers of the clusters (N,), 0 to k - 1.
        inertia: sum over points of the squared distance to the mean of their cluster.
        iterations: rounds of moving centres and reassigning points in the best start.
        converged: whether its last round changed nothing.
    """

    labels: Tensor
    inertia: float
    iterations: int
    converged: bool


def kmeans(
    z: Tensor,
    k: int,
    *,
    starts: int = 5,
    iterations: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Clustering:
    """Return the best of several runs of Lloyd's algorithm.

    Lloyd 1982, doi.org/10.1109/TIT.1982.1056489. It looks for the smallest
    inertia = sum_i |z_i - c(label_i)|^2,  c the means of the clusters. Each start takes k random
    points as centres, all different if there are that many. An empty cluster gets the point
    farthest from its own centre; clusters stay empty only if fewer than k points are distinct. The
    result depends on z, k, starts, iterations and seed alone, on one machine with one number of
    threads.

    Args:
        z: points (N, D); normalise them first to cluster by cosine.
        k: number of clusters; for `nmi` and the like, the number of classes among these points.
        starts: runs; the one with the smallest inertia is kept, the first among equals.
        iterations: the most rounds in each start.
        seed: seed of the random choice of centres.
        progress: called after each round with the stage "k-means", the rounds done and their total;
            a start that has converged counts as all its rounds.

    >>> kmeans(torch.tensor([[0.0, 0.0], [0.0, 2.0], [9.0, 0.0], [9.0, 2.0]]), 2).inertia
    4.0
    """
    if not 1 <= k <= len(z):
        raise ValueError(f"{k} clusters of {len(z)} points; choose from 1 to {len(z)}")
    if starts < 1 or iterations < 1:
        raise ValueError(f"{starts} starts of {iterations} iterations; each needs at least 1")
    bad = len(z) - int(z.isfinite().all(1).sum())
    if bad:
        raise ValueError(
            f"{bad} of {len(z)} points are NaN or infinite; remove them before clustering"
        )
    z_ND = _about_their_mean(z.detach())
    twin_N = torch.unique(z_ND, dim=0, return_inverse=True)[1].cpu()

    def run(start: int) -> Clustering:
        def report(done: int) -> None:
            if progress:
                progress("k-means", start * iterations + done, starts * iterations)

        rows_K = _random_rows(twin_N, k, derive("kmeans", seed, start)).to(z.device)
        return _lloyd(z_ND, z_ND[rows_K], iterations, report)

    return min(map(run, range(starts)), key=lambda found: found.inertia)


def _about_their_mean(z: Tensor) -> Tensor:
    """Return points moved to the origin, where squares lose the fewest digits.

    float64 stays; every other type becomes float32.
    """
    z_ND = z if z.dtype == torch.float64 else z.float()
    return z_ND - z_ND.mean(0, dtype=torch.float64).to(z_ND.dtype)


def _random_rows(twin_N: Tensor, k: int, seed: int) -> Tensor:
    """Return k random rows; a second row of the same twin number only after all numbers."""
    shuffled_N = torch.randperm(len(twin_N), generator=torch.Generator().manual_seed(seed))
    places_N = torch.arange(len(twin_N))
    first = places_N.new_full((int(twin_N.max()) + 1,), len(twin_N)).scatter_reduce_(
        0, twin_N[shuffled_N], places_N, "amin"
    )
    is_first_N = torch.zeros(len(twin_N), dtype=torch.bool).index_fill_(0, first, True)
    return torch.cat([shuffled_N[is_first_N], shuffled_N[~is_first_N]])[:k]


def _lloyd(
    z_ND: Tensor, centres_KD: Tensor, iterations: int, report: Callable[[int], None]
) -> Clustering:
    state = _Lloyd(z_ND, centres_KD)
    for done in range(1, iterations + 1):
        is_changed = state.step()
        report(done if is_changed else iterations)
        if not is_changed:
            break
    return Clustering(state.labels_N, state.inertia(), done, converged=not is_changed)


class _Lloyd:
    """One start of Lloyd's algorithm, without the comparisons that cannot change a label.

    The nearest centre has the greatest  s = z.c - |c|^2 / 2.  A centre that has not moved lost to
    the point's own centre before; it cannot win now unless the own centre has moved away. So most
    points are compared only with centres that have moved (Kaukoranta et al. 2000, IEEE Transactions
    on Image Processing 9(8)), and soon these are few.
    """

    def __init__(self, z_ND: Tensor, centres_KD: Tensor) -> None:
        self.z_ND, self.centres_KD = z_ND, centres_KD
        self.every_point, self.every_cluster = (
            torch.arange(len(x), device=z_ND.device) for x in (z_ND, centres_KD)
        )
        self.labels_N = torch.zeros_like(self.every_point)
        self.own_N = z_ND.new_full((len(z_ND),), -torch.inf)
        self.slack_N = torch.zeros_like(self.own_N)
        self.touched = self.every_point
        self.reassign(self.every_point, self.every_cluster)
        self.fill_empty()

    def step(self) -> bool:
        """Move the centres, reassign the points; return whether a label has changed."""
        labels_N, own_N = self.labels_N.clone(), self.own_N.clone()
        moved_M = self.move_centres()
        self.compare_with_own()
        is_farther_N = self.own_N < own_N
        self.reassign(self.every_point[is_farther_N], self.every_cluster)
        self.reassign(self.every_point[~is_farther_N], moved_M)
        self.fill_empty()
        is_changed_N = self.labels_N != labels_N
        is_touched_K = torch.zeros_like(self.every_cluster, dtype=torch.bool)
        is_touched_K[torch.cat([self.labels_N[is_changed_N], labels_N[is_changed_N]])] = True
        self.touched = self.every_point[is_touched_K[self.labels_N]]
        return bool(is_changed_N.any())

    def move_centres(self) -> Tensor:
        """Move the centres of the touched points to the means; return the centres that moved."""
        sums_KD = torch.zeros_like(self.centres_KD, dtype=torch.float64)
        for rows in _blocks(
            self.touched[self.labels_N[self.touched].argsort(stable=True)], POINTS_BLOCK
        ):
            # Segments are summed in the order of their rows; on a GPU, index_add promises none.
            sizes_K = self.labels_N[rows].bincount()
            clusters = sizes_K.nonzero().squeeze(1)
            sums_KD[clusters] += torch.segment_reduce(
                self.z_ND[rows].double(), "sum", lengths=sizes_K[clusters]
            )
        clusters_M: Tensor = torch.unique(self.labels_N[self.touched])
        means_MD = (sums_KD[clusters_M] / self.sizes()[clusters_M, None]).to(self.z_ND.dtype)
        has_moved_M = (means_MD != self.centres_KD[clusters_M]).any(1)
        self.centres_KD[clusters_M] = means_MD
        return clusters_M[has_moved_M]

    def compare_with_own(self) -> None:
        """Compute s of each touched point with its own centre, and what rounding may add to s."""
        for rows in _blocks(self.touched, POINTS_BLOCK):
            z_nD, c_nD = self.z_ND[rows], self.centres_KD[self.labels_N[rows]]
            squares_n = c_nD.square().sum(1)
            self.own_N[rows] = (z_nD * c_nD).sum(1) - squares_n / 2
            self.slack_N[rows] = (
                4 * torch.finfo(z_nD.dtype).eps * (z_nD.square().sum(1) + squares_n)
            )

    def reassign(self, points: Tensor, clusters_M: Tensor) -> None:
        """Give each of `points` to the nearest of `clusters_M` if it is nearer than its own."""
        c_MD = self.centres_KD[clusters_M]
        offset_M = c_MD.square().sum(1) / -2
        columns = list(
            zip(*(_blocks(x, POINTS_TILE) for x in (clusters_M, c_MD, offset_M)), strict=True)
        )
        # Few centres leave room for more points: one large product costs less than many small ones.
        height = POINTS_TILE * max(1, min(16, POINTS_TILE // max(1, len(clusters_M))))
        for rows in _blocks(points, height):
            z_nD, own_n, labels_n = self.z_ND[rows], self.own_N[rows], self.labels_N[rows]
            best_n = bar_n = own_n + self.slack_N[rows]
            for clusters_m, c_mD, offset_m in columns:
                s_nm = torch.addmm(offset_m, z_nD, c_mD.T)
                top_n = s_nm.amax(1)
                # Few rows find a better centre in a tile, and amax is 20 times faster than argmax.
                better = (top_n > best_n).nonzero().squeeze(1)
                best_n = best_n.maximum(top_n)
                labels_n[better] = clusters_m[s_nm[better].argmax(1)]
            self.own_N[rows] = torch.where(best_n > bar_n, best_n, own_n)
            self.labels_N[rows] = labels_n

    def fill_empty(self) -> None:
        """Give each empty cluster a point far from its centre, never the last of its cluster."""
        sizes_K = self.sizes()
        empty = self.every_cluster[sizes_K == 0]
        if not len(empty):
            return
        apart_N = self.squared_distances()
        farthest_N = apart_N.argsort(descending=True, stable=True)
        last_K = torch.zeros_like(sizes_K).scatter_reduce_(
            0, self.labels_N[farthest_N], self.every_point, "amax"
        )
        rounding_N = (
            len(self.z_ND) * torch.finfo(torch.float64).eps * self.z_ND.norm(dim=1)
        ).square()
        is_free_N = (apart_N > rounding_N)[farthest_N]
        is_free_N[last_K[sizes_K > 0]] = False
        moving = farthest_N[is_free_N][: len(empty)]
        self.labels_N[moving] = empty[: len(moving)]

    def sizes(self) -> Tensor:
        return self.labels_N.bincount(minlength=len(self.centres_KD))

    def squared_distances(self) -> Tensor:
        blocks = zip(
            _blocks(self.z_ND, POINTS_BLOCK), _blocks(self.labels_N, POINTS_BLOCK), strict=True
        )
        return torch.cat(
            [
                (z_nD.double() - self.centres_KD[labels_n]).square().sum(1)
                for z_nD, labels_n in blocks
            ]
        )

    def inertia(self) -> float:
        self.move_centres()
        return float(self.squared_distances().sum())


def _blocks(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """Return consecutive parts of at most `size` rows.

    Without rows there are no parts, where `torch.split` returns an empty one.
    """
    return torch.split(x, size) if len(x) else ()
