"""Agreement of classes with clusters: two labelings of the same points, whatever their labels.

Everything is computed from the contingency table, which says how many points each pair of clusters
shares. Only cells that are not empty are held: 11,316 classes against as many clusters cost no more
memory than the points.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from assay.metrics.labels import AnyLabels
from assay.metrics.metric import metric


@metric("nmi", "clusters")
def nmi(a: AnyLabels, b: AnyLabels) -> float:
    """Normalised mutual information, arithmetic (Manning et al. 2008, section 16.3,
    nlp.stanford.edu/IR-book).

    NMI = I(a; b) / ((H(a) + H(b)) / 2).  1.0 where both split the points alike, even into a single
    cluster; else 0.0 where one of them has a single cluster. It rises with the number of clusters
    even for random labels: see `ami`.

    >>> round(nmi(["cat", "cat", "dog", "dog"], [0, 0, 1, 2]), 4)
    0.8
    """
    table = _table(a, b)
    return (
        1.0
        if table.is_match
        else table.information() / ((_entropy(table.a) + _entropy(table.b)) / 2)
    )


@metric("nmi_geometric", "clusters")
def nmi_geometric(a: AnyLabels, b: AnyLabels) -> float:
    """Normalised mutual information, geometric (Strehl and Ghosh 2002, Eq. 2,
    jmlr.org/papers/v3/strehl02a).

    NMI = I(a; b) / sqrt(H(a) H(b)).  1.0 where both split the points alike, even into a single
    cluster; else 0.0 where one of them has a single cluster. Never below `nmi`.

    >>> round(nmi_geometric(["cat", "cat", "dog", "dog"], [0, 0, 1, 2]), 4)
    0.8165
    """
    table = _table(a, b)
    if table.is_match:
        return 1.0
    mean = sqrt(_entropy(table.a) * _entropy(table.b))
    return table.information() / mean if mean else 0.0


@metric("ami", "clusters")
def ami(a: AnyLabels, b: AnyLabels) -> float:
    """Mutual information adjusted for chance (Vinh et al. 2010, jmlr.org/papers/v11/vinh10a).

    AMI = (I(a; b) - E) / ((H(a) + H(b)) / 2 - E),  E the mean of I over all labelings with clusters
    of these sizes. Near 0 for random labels, below 0 for worse. 1.0 where both split the points
    alike, even into a single cluster; else 0.0 where one of them has a single cluster.

    >>> round(ami(["cat", "cat", "dog", "dog"], [0, 0, 1, 2]), 4)
    0.5714
    """
    table = _table(a, b)
    if table.is_match:
        return 1.0
    expected = _expected_information(table)
    return (table.information() - expected) / (
        (_entropy(table.a) + _entropy(table.b)) / 2 - expected
    )


@metric("f1", "clusters")
def pairwise_f1(a: AnyLabels, b: AnyLabels) -> float:
    """F1 over pairs of points (Manning et al. 2008, section 16.3, nlp.stanford.edu/IR-book).

    F1 = 2PR / (P + R) = 2 both / (in a + in b),  P = both / in b,  R = both / in a,  where "in a"
    counts the pairs that share a label of a, "both" those that share one of either. 1.0 where all
    points are alone in both labelings.

    >>> round(pairwise_f1(["cat", "cat", "dog", "dog"], [0, 0, 1, 2]), 4)
    0.6667
    """
    table = _table(a, b)
    return 1.0 if table.is_match else 2 * _pairs(table.joint) / (_pairs(table.a) + _pairs(table.b))


@dataclass(frozen=True)
class _Contingency:
    """Sizes of the clusters of a and of b, and row, column and points of each cell with points."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    joint: NDArray[np.int64]

    @property
    def is_match(self) -> bool:
        return len(self.a) == len(self.b) == len(self.joint)

    def information(self) -> float:
        """Return I = sum_ij n_ij / N log(N n_ij / (a_i b_j)), never below 0."""
        total = int(self.a.sum())
        ratio = total * self.joint / (self.a[self.rows] * self.b[self.columns])
        return max(0.0, float(self.joint / total @ np.log(ratio)))


def _table(a: AnyLabels, b: AnyLabels) -> _Contingency:
    i, j = _numbers(a), _numbers(b)
    if len(i) != len(j) or not len(i):
        raise ValueError(
            f"{len(i)} labels against {len(j)}; each point needs one of either, and there must be a"
            " point"
        )
    cells, joint = np.unique(i * (j.max() + 1) + j, return_counts=True)
    rows, columns = np.divmod(cells, j.max() + 1)
    return _Contingency(np.bincount(i), np.bincount(j), rows, columns, joint)


def _numbers(labels: AnyLabels) -> NDArray[np.int64]:
    """Return class numbers of labels, which are equal only in their own type: no id is rounded."""
    if isinstance(labels, list | tuple):
        numbers: dict[object, int] = {}
        return np.array(
            [numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64
        )
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1:
        raise ValueError(f"labels have shape (N,), got {values.shape}")
    return np.unique(values, return_inverse=True)[1]


def _entropy(sizes: NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares @ np.log(shares)))


def _pairs(sizes: NDArray[np.int64]) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


def _expected_information(table: _Contingency) -> float:
    """Return the mean of I over all labelings with clusters of these sizes.

    E = sum_ij sum_n n / N log(N n / (a_i b_j)) p(n),  p hypergeometric,
    n from max(1, a_i + b_j - N) to min(a_i, b_j).

    Clusters of the same size share their terms. Distinct sizes add up to at most N, so there are at
    most sqrt(2N) of them, and a row of terms, for one size in a and all sizes in b, is no longer
    than N.
    """
    total = int(table.a.sum())
    log_factorial = gammaln(np.arange(total + 1) + 1.0)
    sizes, times = np.unique(table.b, return_counts=True)
    expected = 0.0
    for a, rows in zip(*np.unique(table.a, return_counts=True), strict=True):
        low = np.maximum(1, a + sizes - total)
        counts = np.minimum(a, sizes) - low + 1
        b, columns = np.repeat(sizes, counts), np.repeat(times, counts)
        n = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts - low, counts)
        ways = (
            log_factorial[a]
            + log_factorial[b]
            + log_factorial[total - a]
            + log_factorial[total - b]
            - log_factorial[total]
        )
        ways -= (
            log_factorial[n]
            + log_factorial[a - n]
            + log_factorial[b - n]
            + log_factorial[total - a - b + n]
        )
        expected += float(
            rows * (columns * (n / total) * np.log(total * n / (a * b)) @ np.exp(ways))
        )
    return expected
