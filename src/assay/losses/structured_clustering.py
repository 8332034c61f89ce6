"""Structured clustering. Shapes: N batch, D dims, C classes, K clusters, J candidates for a medoid,
G groups of samples.

The medoids are chosen on the CPU, in double precision and without gradient. Numbers within `TIE` of
the least are equal, and the first of equals is chosen: a result does not depend on rounding.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import distances
from assay.registry import Paper
from assay.space import Real, Space, above

ROUNDS = 5
"""Rounds of refinement at most."""

TIE = 1e-9
"""Difference below which two distances, or two sums of them, are equal."""

FARTHEST = 3.0
"""Distance, for the search, of an embedding that is not a number: unit vectors are at most 2 apart.
"""

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


@losses("structured_clustering")
class StructuredClustering(Loss):
    """Wants the classes to be a better clustering than any that does not match them, by a margin.

    A clustering is a set S of medoids, as many as there are classes in the batch. A sample belongs
    to its nearest medoid (a medoid to itself), which gives the clusters a(S).
        F(S) = -sum_i min_{s in S} d_is,  F~ = -sum_c min_{j in c} sum_{i in c} d_ij
        [ max_S ( F(S) + g (1 - NMI(a(S), y)) ) - F~ ]+
        NMI = I(a; y) / sqrt(H(a) H(y)),  0 where an entropy is 0
    The maximum is approximated: medoids are added greedily, then exchanged inside their clusters.
    The gradient goes through F(S) and F~ only.

    Args:
        gamma: margin of a clustering that has nothing in common with the classes (g).
    """

    compares = "batch"
    paper = Paper("Deep Metric Learning via Facility Location", 2017, "arxiv.org/abs/1612.01213")
    departures = ("the first of equal candidates is chosen, those within 1e-9 counting as equal",)

    def __init__(self, *, gamma: float = 1.0) -> None:
        super().__init__()
        self.gamma = above(0, "gamma", gamma)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        if not len(z):
            return z.sum()
        d_NN = distances(z, z)
        z_ND, y_N = z.detach().cpu().double(), y.cpu().numpy()
        apart_NN = np.nan_to_num(distances(z_ND, z_ND).numpy(), nan=FARTHEST)
        agreement = Agreement(y_N)
        medoids_K = refine(apart_NN, agreement, self.gamma, choose(apart_NN, agreement, self.gamma))
        cluster_N = assign(apart_NN, medoids_K)
        (nmi,) = agreement.nmi(cluster_N, np.zeros((1, len(z)), dtype=np.bool_))
        to_found, to_own = (
            d_NN.gather(1, torch.from_numpy(medoid_N).to(z.device)[:, None]).sum()
            for medoid_N in (medoids_K[cluster_N], medoids_of_classes(apart_NN, y_N))
        )
        return (to_own - to_found + self.gamma * (1 - float(nmi))).clamp(min=0)


class Agreement:
    """Agreement of the classes with clusterings of the same samples."""

    def __init__(self, y_N: NDArray[Any]) -> None:
        names_C, self.y_N = np.unique(y_N, return_inverse=True)
        self.classes, count = len(names_C), len(y_N)
        self.log_count = np.log(count)
        # n log n / N, for the n samples of a cell
        self.share = np.arange(count + 1) * np.log(np.arange(count + 1).clip(min=1)) / count
        self.entropy = self.log_count - self.share[np.bincount(self.y_N)].sum()

    def nmi(self, cluster_N: Ints, is_taken_JN: Bools) -> Floats:
        """Return the NMI of the classes with each of J clusterings (J,).

        The clusterings are one, in which a candidate has taken samples into a new cluster.
        """
        taken = is_taken_JN.nonzero()
        cell_N = np.unique(cluster_N * self.classes + self.y_N, return_inverse=True)[1]
        of_cells_J, of_clusters_J = (
            self.share[np.bincount(group_N) - count_taken(group_N, taken, len(is_taken_JN))].sum(1)
            for group_N in (cell_N, cluster_N)
        )
        taken_JC = count_taken(self.y_N, taken, len(is_taken_JN))
        joint_J = self.log_count - of_cells_J - self.share[taken_JC].sum(1)
        entropy_J = self.log_count - of_clusters_J - self.share[taken_JC.sum(1)]
        squared_J = entropy_J * self.entropy
        has_both_J = squared_J > TIE
        information_J = entropy_J + self.entropy - joint_J
        found_J: Floats = has_both_J * information_J / np.sqrt(np.where(has_both_J, squared_J, 1))
        return found_J


def count_taken(group_N: Ints, taken: tuple[Ints, ...], count: int) -> Ints:
    """Return how many samples of each of G groups each candidate has taken (J, G)."""
    groups = group_N.max() + 1
    rows, columns = taken
    cells = np.bincount(rows * groups + group_N[columns], minlength=count * groups)
    return cells.reshape(count, groups)


def choose(d_NN: Floats, agreement: Agreement, gamma: float) -> Ints:
    """Return medoids (K,), one for each class: each the best addition to those before it."""
    medoids: list[int] = []
    nearest_N, cluster_N = np.full(len(d_NN), np.inf), np.zeros(len(d_NN), dtype=np.intp)
    for k in range(agreement.classes):
        is_taken_NN = d_NN < nearest_N - TIE
        np.fill_diagonal(is_taken_NN, True)
        cost_N = np.minimum(d_NN, nearest_N).sum(1)
        cost_N -= gamma * (1 - agreement.nmi(cluster_N, is_taken_NN))
        cost_N[medoids] = np.inf
        best = int(first_least(cost_N))
        medoids.append(best)
        nearest_N = np.minimum(nearest_N, d_NN[best])
        cluster_N = np.where(is_taken_NN[best], k, cluster_N)
    return np.array(medoids, dtype=np.intp)


def refine(d_NN: Floats, agreement: Agreement, gamma: float, medoids_K: Ints) -> Ints:
    """Return medoids after rounds in which each cluster in turn takes its best member as medoid.

    Who is a member stays fixed within a round. The NMI is that of the clusters that the candidate
    and the other medoids would have. After a round without an exchange, the next would be the same.
    """
    medoids_K = medoids_K.copy()
    for _ in range(ROUNDS):
        member_N, before_K = assign(d_NN, medoids_K), medoids_K.copy()
        for k in range(len(medoids_K)):
            candidates_J = np.flatnonzero(member_N == k)
            nmi_J = agreement.nmi(*exchange(d_NN, medoids_K, k, candidates_J))
            cost_J = d_NN[np.ix_(candidates_J, candidates_J)].sum(1) - gamma * (1 - nmi_J)
            medoids_K[k] = candidates_J[first_least(cost_J)]
        if (medoids_K == before_K).all():
            break
    return medoids_K


def exchange(d_NN: Floats, medoids_K: Ints, k: int, candidates_J: Ints) -> tuple[Ints, Bools]:
    """Return the clusters of the medoids but k (N,), and whom candidates in its place take (J, N).

    A candidate takes itself, and no other medoid.
    """
    d_KN = d_NN[medoids_K]
    d_KN[k] = np.inf
    cluster_N = first_least(d_KN)
    reach_N = d_KN.min(0) + np.where(k < cluster_N, TIE, -TIE)
    others_K = np.delete(np.arange(len(medoids_K)), k)
    cluster_N[medoids_K[others_K]], reach_N[medoids_K[others_K]] = others_K, -np.inf
    is_taken_JN = d_NN[candidates_J] < reach_N
    is_taken_JN[np.arange(len(candidates_J)), candidates_J] = True
    return cluster_N, is_taken_JN


def assign(d_NN: Floats, medoids_K: Ints) -> Ints:
    """Return the cluster of each sample (N,): that of the nearest medoid; a medoid's own."""
    cluster_N = first_least(d_NN[medoids_K])
    cluster_N[medoids_K] = np.arange(len(medoids_K))
    return cluster_N


def medoids_of_classes(d_NN: Floats, y_N: NDArray[Any]) -> Ints:
    """Return for each sample the member of its class that is nearest to the class (N,)."""
    same_NN = y_N[:, None] == y_N
    within_N = np.where(same_NN, d_NN, 0).sum(1)
    return first_least(np.where(same_NN, within_N[:, None], np.inf))


def first_least(cost: Floats) -> Ints:
    """Return the place of the first along the leading dimension that is within `TIE` of the least.

    >>> int(first_least(np.array([0.5, 0.2 + 1e-12, 0.2])))
    1
    """
    found: Ints = (cost <= cost.min(0) + TIE).argmax(0)
    return found


methods.add(
    Method(
        "structured_clustering",
        StructuredClustering,
        space=Space(gamma=Real(0.01, 10, log=True)),
        about="the classes as a clustering, against the best one that does not match them",
    )
)
