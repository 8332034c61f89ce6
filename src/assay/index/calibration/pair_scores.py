"""Scores of pairs of validation samples. Shapes: N samples, D dims."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.index.calibration.limits import Floats
from assay.protocols import Similarity

Whole = NDArray[np.int64]

STEPS = 1 << 19
"""Steps of rounded scores between 0 and 1; a threshold lies half a step below them, so that the
rounding of another library changes nothing.
"""


@dataclass(frozen=True)
class PairScores:
    """Scores of pairs of vectors, rounded, so that equal ones are equal whatever the order of sums.

    They are those of an index: the cosine, minus the Euclidean distance, or minus the number of
    bits that differ. Rounded scores are numbered from the lowest that there can be.

    A distance d has no upper end, and one outlier may lie far from all others. So d / (d + usual)
    is rounded, where `usual` is the usual distance from the middle: it tells small and large
    distances apart.

    Args:
        z_ND: the vectors, prepared.
        norms_N: their squared lengths, for distances; None: products are enough.
        usual: the usual distance; 0 for other similarities.
        step: difference of two rounded scores.
        lowest: the lowest score, in steps.
        bins: number of rounded scores.
    """

    z_ND: NDArray[Any]
    norms_N: Floats | None
    usual: float
    step: float
    lowest: int
    bins: int

    def __len__(self) -> int:
        return len(self.z_ND)

    @classmethod
    def of(cls, z_ND: NDArray[Any], similarity: Similarity) -> Self:
        """Return the scores of embeddings; rows of uint8 are packed bits."""
        if similarity == "hamming":
            packed = z_ND if z_ND.dtype == np.uint8 else np.packbits(z_ND > 0, axis=1)
            signs = np.unpackbits(packed, axis=1).astype(np.float32) * 2 - 1
            return cls(signs, None, 0.0, 1.0, -signs.shape[1], signs.shape[1] + 1)
        z_ND = z_ND.astype(np.float64)
        if not np.isfinite(z_ND).all():
            raise BadInput("the embeddings hold NaN or infinity; calibrate a model that works")
        if similarity == "cosine":
            lengths_N1 = np.linalg.norm(z_ND, axis=1, keepdims=True)
            unit_ND = z_ND / np.where(lengths_N1 > 0, lengths_N1, 1)
            return cls(unit_ND, None, 0.0, 1 / STEPS, -STEPS, 2 * STEPS + 1)
        z_ND = z_ND - np.median(z_ND, axis=0)
        norms_N = np.square(z_ND).sum(axis=1)
        away_N = np.sqrt(norms_N)
        usual = float(np.median(away_N)) or float(away_N.max()) or 1.0
        usual = float(2.0 ** np.ceil(np.log2(usual)))
        return cls(z_ND, norms_N, usual, 1 / STEPS, -STEPS, STEPS + 1)

    def between(self, rows: slice | Whole, columns: slice | Whole) -> Whole:
        """Return the rounded scores of some pairs, from 0."""
        product = self.z_ND[rows] @ self.z_ND[columns].T
        if self.step == 1.0 and self.norms_N is None:
            scores = (product - self.z_ND.shape[1]) / 2
        elif self.norms_N is None:
            scores = product
        else:
            squares = self.norms_N[rows][:, None] + self.norms_N[columns] - 2 * product
            away = np.sqrt(np.maximum(squares, 0))
            scores = -away / (away + self.usual)
        found = np.rint(scores / self.step).astype(np.int64) - self.lowest
        return np.asarray(np.clip(found, 0, self.bins - 1))

    def thresholds(self, bins: Whole) -> Floats:
        """Return the scores that lie half a step below rounded ones."""
        scores = np.asarray((bins + self.lowest - 0.5) * self.step, dtype=np.float64)
        if self.norms_N is None:
            return scores
        farthest = 2.5 * float(np.sqrt(self.norms_N.max())) + self.usual
        ends = scores <= -1
        return np.where(ends, -farthest, scores / np.where(ends, 1, 1 + scores) * self.usual)
