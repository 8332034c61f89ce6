"""Shape of an embedding space, without any search (Roth et al. 2020, arxiv.org/abs/2002.08473).

Shapes: N samples, D dimensions, C classes present. Everything is computed from u = z / |z|, in
float64, in one pass over blocks of rows. A zero vector stays zero, so that its cosine distance to
every other vector is 1. Classes are compared by equality only: class numbers without samples do not
matter.
"""

import math
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.metrics.metric import metric
from assay.neighbours.vectors import Vectors, unit_rows

EPSILON = torch.finfo(torch.float64).eps


@metric("pi_intra", "vectors")
def pi_intra(z: ArrayLike | Tensor | Vectors, y: Tensor) -> float:
    """Mean cosine distance within a class, then over classes: how tightly classes are packed.

    pi_intra = 1/C sum_c  1/(n_c (n_c - 1)) sum_{i != j in c} (1 - u_i . u_j), by
    sum_{i != j} u_i . u_j = |sum_i u_i|^2 - sum_i |u_i|^2.

    Classes of one sample have no distance and are left out (the authors' code gives them the
    distance of another class). NaN where no class has two samples.

    >>> pi_intra([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [1.0, 1.0]], torch.tensor([0, 0, 1, 1]))
    0.5
    """
    return _intra(_add_up(z, y))


@metric("pi_inter", "vectors")
def pi_inter(z: ArrayLike | Tensor | Vectors, y: Tensor) -> float:
    """Mean cosine distance between the normalised means of classes: how far classes are apart.

    pi_inter = 1/(C (C - 1)) sum_{c != d} (1 - m_c . m_d)
    with m_c = sum_{i in c} u_i / |sum_{i in c} u_i|.

    A class whose vectors cancel out has no direction: its m is 0. NaN for fewer than two classes.

    >>> pi_inter([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [-5.0, 0.0]], torch.tensor([0, 0, 1, 2]))
    1.3333333333333333
    """
    return _inter(_add_up(z, y))


@metric("pi_ratio", "vectors")
def pi_ratio(z: ArrayLike | Tensor | Vectors, y: Tensor) -> float:
    """How tight classes are against how far apart: pi_intra / pi_inter.

    Where all classes point the same way (pi_inter = 0) it is infinite, and NaN if nothing varies
    within them either: a collapsed space has no ratio (the authors' code divides by 1e-8). NaN
    where pi_intra or pi_inter is NaN.

    >>> z = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    >>> round(pi_ratio(z, torch.tensor([0, 0, 1, 1])), 4)
    0.2372
    """
    sums = _add_up(z, y)
    intra, inter = _intra(sums), _inter(sums)
    if inter == 0:
        return math.inf if intra > 0 else math.nan
    return intra / inter


@metric("spectral_decay", "vectors")
def spectral_decay(
    z: ArrayLike | Tensor | Vectors, y: Tensor | None = None, *, dropped: int = 0
) -> float:
    """How unevenly variance is spread over directions: 0 if all D are used alike, infinite if one
    is not used.

    rho = KL(uniform || p) = sum_i 1/n log((1/n) / p_i),  p_i = s_i / sum_j s_j
    over the n = D - `dropped` smallest singular values s of u, not centred. This is the logarithm
    of their arithmetic mean over their geometric mean.

    The smallest singular values dominate this divergence. So all D of them are computed (the
    authors' code takes a truncated SVD, which drops the smallest), and from a QR factorisation,
    because a Gram matrix would lose their digits. Values below eps max(N, D) s_1 are rounding
    errors and count as 0: a direction that is not used. With fewer samples than dimensions there
    are always some.

    Args:
        z: embeddings (N, D), any norm.
        y: not used; every metric of vectors is called with labels.
        dropped: how many of the largest singular values to leave out (the paper's m - 1).

    >>> spectral_decay([[1.0, 0.0], [0.0, 2.0]]), spectral_decay([[1.0, 0.0], [2.0, 0.0]])
    (0.0, inf)
    """
    vectors = _finite(z)
    if not 0 <= dropped < vectors.dim:
        raise ValueError(
            f"dropped = {dropped} of {vectors.dim} singular values; it lies in"
            f" 0..{vectors.dim - 1}, so that one is left"
        )
    s_D = _singular_values(vectors)
    kept = s_D[dropped:]
    if kept[-1] <= EPSILON * max(len(vectors), vectors.dim) * s_D[0]:
        return math.inf
    return max(0.0, float(kept.mean().log() - kept.log().mean()))


@metric("spectral_decay_2", "vectors")
def spectral_decay_2(z: ArrayLike | Tensor | Vectors, y: Tensor | None = None) -> float:
    """Spectral decay without the largest singular value, which mostly tells where the mean lies."""
    return spectral_decay(z, dropped=1)


class _Sums(NamedTuple):
    """Sums over the unit vectors of each class: vectors, squared norms (1 or 0), their number."""

    u_CD: Tensor
    squares_C: Tensor
    counts_C: Tensor


def _add_up(z: ArrayLike | Tensor | Vectors, y: Tensor) -> _Sums:
    vectors = _finite(z)
    if y.shape != (len(vectors),):
        raise ValueError(
            f"{len(vectors)} embeddings but labels of shape {tuple(y.shape)}; each embedding"
            " needs one"
        )
    _, class_N, counts_C = torch.unique(
        y.to(vectors.device), return_inverse=True, return_counts=True
    )
    u_CD = torch.zeros(len(counts_C), vectors.dim, dtype=torch.float64, device=vectors.device)
    squares_C = torch.zeros(len(counts_C), dtype=torch.float64, device=vectors.device)
    for rows, block in vectors.blocks():
        u_BD = unit_rows(block)
        u_CD.index_add_(0, class_N[rows], u_BD)
        squares_C.index_add_(0, class_N[rows], u_BD.square().sum(1))
    return _Sums(u_CD, squares_C, counts_C)


def _intra(sums: _Sums) -> float:
    several = sums.counts_C > 1
    return float(
        _mean_distance(
            _Sums(sums.u_CD[several], sums.squares_C[several], sums.counts_C[several])
        ).mean()
    )


def _inter(sums: _Sums) -> float:
    if len(sums.counts_C) < 2:
        return math.nan
    directed = sums.u_CD.norm(dim=1) > _rounding(sums)
    means_CD = unit_rows(sums.u_CD) * directed[:, None]
    classes = torch.tensor([len(directed)], device=directed.device)
    return float(
        _mean_distance(_Sums(means_CD.sum(0, keepdim=True), directed.sum()[None], classes))
    )


def _mean_distance(sums: _Sums) -> Tensor:
    """Return the mean over pairs i != j of each class.

    It is exactly 0 where only rounding errors are left; else a collapsed space would have a ratio.
    """
    similarity_C = (sums.u_CD.square().sum(1) - sums.squares_C) / (
        sums.counts_C * (sums.counts_C - 1)
    )
    return torch.where(1 - similarity_C > _rounding(sums), 1 - similarity_C, 0)


def _rounding(sums: _Sums) -> Tensor:
    """Return a bound on the error of a sum whose terms are a few units in the last place off."""
    return 8 * EPSILON * sums.counts_C.clamp(min=sums.u_CD.shape[1])


def _singular_values(vectors: Vectors) -> Tensor:
    """Return all D singular values, largest first, from the triangle R of a QR factorisation.

    Rows are added block by block: R of the rows so far and the next block are factorised again.
    """
    r_DD = torch.zeros(vectors.dim, vectors.dim, dtype=torch.float64, device=vectors.device)
    for _, block in vectors.blocks():
        r_DD = torch.linalg.qr(torch.cat([r_DD, unit_rows(block)]), mode="r").R
    s_D: Tensor = torch.linalg.svdvals(r_DD)
    return s_D


def _finite(z: ArrayLike | Tensor | Vectors) -> Vectors:
    vectors = Vectors(z)
    vectors.check_finite("embeddings")
    return vectors
