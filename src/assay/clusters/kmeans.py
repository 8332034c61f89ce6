"""K-means. Shapes: N points, D dimensions, K clusters, M some of them;
n and m those of one tile.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.hashing import derive

TILE = 1024
"""Points, and centres, whose similarities are held at once: 4 MB stay in the cache and bound the
memory.
"""

BLOCK = 4096
"""Points whose coordinates are held at once in float64."""


@dataclass(frozen=True)
class Clustering:
    """A cluster for each point.

    Args:
        labels: numbers of the clusters (N,), 0 to k - 1.
        inertia: sum over points of the squared distance to the mean of their cluster.
        iterations: rounds of moving centres and reassigning points that the best start took.
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
    progress: Callable[[int, int], None] | None = None,
) -> Clustering:
    """The best of several runs of Lloyd's algorithm (Lloyd 1982, doi.org/10.1109/TIT.1982.1056489).

    Seeks the least  inertia = sum_i |z_i - c(label_i)|^2,  c the means of the clusters. Each start
    takes k random points as centres, no two alike while there are that many. A cluster left empty
    gets the point farthest from its own centre; only if fewer than k points are distinct do some
    stay empty. The result depends on z, k, starts, iterations and seed alone, on one machine with
    one number of threads.

    Args:
        z: points (N, D); normalise them first to cluster by cosine.
        k: number of clusters; for `nmi` and the like, the number of classes among these very
            points.
        starts: runs, of which the one of least inertia is kept, the first among equals.
        iterations: at most so many rounds in each start.
        seed: of the random choice of centres.
        progress: told the rounds done and their total, after each; a start that has converged
            counts as all its rounds.

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
        def tell(done: int) -> None:
            if progress:
                progress(start * iterations + done, starts * iterations)

        rows_K = _random_rows(twin_N, k, derive("kmeans", seed, start)).to(z.device)
        return _lloyd(z_ND, z_ND[rows_K], iterations, tell)

    return min(map(run, range(starts)), key=lambda found: found.inertia)


def _about_their_mean(z: Tensor) -> Tensor:
    """Points moved to the origin, where squares lose the fewest digits; float64 stays, all else
    becomes float32.
    """
    z_ND = z if z.dtype == torch.float64 else z.float()
    return z_ND - z_ND.mean(0, dtype=torch.float64).to(z_ND.dtype)


def _random_rows(twin_N: Tensor, k: int, seed: int) -> Tensor:
    """As many rows as k, a second one of the same twin number only once each number has
    been taken.
    """
    shuffled_N = torch.randperm(len(twin_N), generator=torch.Generator().manual_seed(seed))
    places_N = torch.arange(len(twin_N))
    first = places_N.new_full((int(twin_N.max()) + 1,), len(twin_N)).scatter_reduce_(
        0, twin_N[shuffled_N], places_N, "amin"
    )
    is_first_N = torch.zeros(len(twin_N), dtype=torch.bool).index_fill_(0, first, True)
    return torch.cat([shuffled_N[is_first_N], shuffled_N[~is_first_N]])[:k]


def _lloyd(
    z_ND: Tensor, centres_KD: Tensor, iterations: int, tell: Callable[[int], None]
) -> Clustering:
    state = _Lloyd(z_ND, centres_KD)
    for done in range(1, iterations + 1):
        is_changed = state.step()
        tell(done if is_changed else iterations)
        if not is_changed:
            break
    return Clustering(state.labels_N, state.inertia(), done, converged=not is_changed)


class _Lloyd:
    """One start of Lloyd's algorithm, made fast by leaving out the comparisons that cannot change a
    label.

    The nearest centre is that of the greatest  s = z.c - |c|^2 / 2.  A centre that stays where it
    is lost to the point's own centre before; it cannot win now unless the own centre has moved
    away. So most points meet only the centres that have moved (Kaukoranta et al. 2000, IEEE
    Transactions on Image Processing 9(8)), and those are soon few.
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
        """Move the centres, reassign the points; whether a label has changed."""
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
        """Centres of the touched points become the means of their clusters; the numbers of those
        that moved.
        """
        sums_KD = torch.zeros_like(self.centres_KD, dtype=torch.float64)
        for rows in _blocks(self.touched[self.labels_N[self.touched].argsort(stable=True)], BLOCK):
            # Segments are summed in the order of their rows, which index_add does not promise on a
            # GPU.
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
        """The s of each touched point and its own centre, and how much more another's must be: what
        rounding may add to it.
        """
        for rows in _blocks(self.touched, BLOCK):
            z_nD, c_nD = self.z_ND[rows], self.centres_KD[self.labels_N[rows]]
            squares_n = c_nD.square().sum(1)
            self.own_N[rows] = (z_nD * c_nD).sum(1) - squares_n / 2
            self.slack_N[rows] = (
                4 * torch.finfo(z_nD.dtype).eps * (z_nD.square().sum(1) + squares_n)
            )

    def reassign(self, points: Tensor, clusters_M: Tensor) -> None:
        """Give each of `points` to the most similar of `clusters_M` if that is nearer than
        its own.
        """
        c_MD = self.centres_KD[clusters_M]
        offset_M = c_MD.square().sum(1) / -2
        columns = list(zip(*(_blocks(x, TILE) for x in (clusters_M, c_MD, offset_M)), strict=True))
        # Few centres leave room for more points: one large product costs less than many small ones.
        height = TILE * max(1, min(16, TILE // max(1, len(clusters_M))))
        for rows in _blocks(points, height):
            z_nD, own_n, labels_n = self.z_ND[rows], self.own_N[rows], self.labels_N[rows]
            best_n = bar_n = own_n + self.slack_N[rows]
            for clusters_m, c_mD, offset_m in columns:
                s_nm = torch.addmm(offset_m, z_nD, c_mD.T)
                top_n = s_nm.amax(1)
                # Few rows find a better centre in a given tile, and amax takes a twentieth of the
                # time of argmax.
                better = (top_n > best_n).nonzero().squeeze(1)
                best_n = best_n.maximum(top_n)
                labels_n[better] = clusters_m[s_nm[better].argmax(1)]
            self.own_N[rows] = torch.where(best_n > bar_n, best_n, own_n)
            self.labels_N[rows] = labels_n

    def fill_empty(self) -> None:
        """Each empty cluster gets one of the points farthest from their centres, never the last of
        another cluster.
        """
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
        blocks = zip(_blocks(self.z_ND, BLOCK), _blocks(self.labels_N, BLOCK), strict=True)
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
    """Consecutive parts of at most `size` rows; none of none, where `torch.split` gives one that is
    empty.
    """
    return torch.split(x, size) if len(x) else ()
