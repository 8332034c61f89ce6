"""Metrics of the whole embedding, by name: clustering, geometry, verification."""

from torch import Tensor

from assay.clusters import ami, nmi, nmi_geometric, pairwise_f1
from assay.metrics import geometry
from assay.metrics.metric import metric
from assay.metrics.verification import Verification
from assay.neighbours import Vectors

metric("nmi", "clusters")(nmi)
metric("nmi_geometric", "clusters")(nmi_geometric)
metric("ami", "clusters")(ami)
metric("f1", "clusters")(pairwise_f1)

metric("pi_intra", "vectors")(geometry.pi_intra)
metric("pi_inter", "vectors")(geometry.pi_inter)
metric("pi_ratio", "vectors")(geometry.pi_ratio)


@metric("spectral_decay", "vectors")
def spectral_decay(z: Vectors, y: Tensor) -> float:
    """How unevenly variance is spread over directions, from all singular values; infinite where one
    is dead.
    """
    return geometry.spectral_decay(z)


@metric("spectral_decay_2", "vectors")
def spectral_decay_2(z: Vectors, y: Tensor) -> float:
    """The same without the largest singular value, which mostly tells where the mean lies."""
    return geometry.spectral_decay(z, dropped=1)


@metric("roc_auc", "pairs")
def roc_auc(pairs: Verification) -> float:
    """How often a pair of one class is more similar than a pair of two."""
    return pairs.roc_auc


@metric("eer", "pairs")
def eer(pairs: Verification) -> float:
    """Equal error rate: where as many pairs of two classes are accepted as pairs of one are
    rejected, in shares.
    """
    return pairs.eer


@metric("tar_at_far", "pairs", values=(1e-2, 1e-3, 1e-4))
def tar_at_far(pairs: Verification, far: float) -> float:
    """Share of the pairs of one class accepted while at most this share of the pairs of two is."""
    return pairs.tar_at_far(far)
