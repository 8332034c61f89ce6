"""Which scores are accepted as matches, and how sure a match is, for the images of an index."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.index.calibration import Calibration, Gallery

MOSTLY = 0.95
"""Share of the images that have to have a class before the sizes of classes count."""


def gallery_of(
    images: int, sizes: Sequence[int], calibration: Calibration | None
) -> Gallery | None:
    """Return how many images a query is compared with, and how many of them show the same thing.

    What `assay calibrate --images --same` said counts; else the latter is the mean size of the
    classes. None where it is not known: there are no classes, or not for most images.

    Args:
        images: images of the index.
        sizes: images of each class.
        calibration: the calibration, where there is one.
    """
    same = None
    if calibration is not None and calibration.asked is not None:
        images, same = calibration.asked.images or images, calibration.asked.same
    if same is None and sizes and sum(sizes) >= MOSTLY * images:
        same = sum(sizes) / len(sizes)
    return Gallery(images, min(same, images - 0.5)) if images and same is not None else None


@dataclass(frozen=True)
class Acceptance:
    """Which scores are accepted, and how sure a match is.

    Args:
        root: the folder of the index, for messages.
        calibration: the calibration; None: there is none.
        gallery: the images that a query is compared with; None: it is not known how many of them
            show what a query shows.
    """

    root: Path
    calibration: Calibration | None
    gallery: Gallery | None

    def least_score(
        self, score: float | None, precision: float | None, *, itself: bool = False
    ) -> float:
        """Return the least score of a match; infinity where no score reaches the precision.

        `itself`: the query is an image of the index, which is no match of its own.
        """
        if score is not None and not math.isfinite(score):
            raise BadInput(f"the least score is {score}, which is no score; give a number")
        least = -np.inf if score is None else score
        if precision is None:
            return least
        if self.calibration is None:
            raise BadInput(
                f"{self.root} is not calibrated, so no score is known to give a precision of"
                f" {precision:g}; run `assay calibrate {self.root} --data DATA` first"
            )
        if self.gallery is None:
            raise BadInput(
                f"{self.root} has no class for most of its images, so it is not known how many of"
                f" them show what a query shows; say it with `assay calibrate {self.root} --data"
                " DATA --same N`, or name a column when indexing: --label COLUMN"
            )
        gallery = _others(self.gallery) if itself else self.gallery
        if gallery is None:
            return np.inf
        found = self.calibration.threshold_for_precision(precision, gallery)
        return max(least, np.inf if found is None else found.score)

    def confidence(
        self, scores: NDArray[np.float64], *, itself: bool = False
    ) -> NDArray[np.float64] | None:
        """Return how likely matches of these scores are right; None where that is not known."""
        if self.calibration is None or self.gallery is None:
            return None
        gallery = _others(self.gallery) if itself else self.gallery
        if gallery is None:
            return np.zeros_like(scores)
        return self.calibration.confidence(scores, gallery)


def _others(gallery: Gallery) -> Gallery | None:
    """Return the gallery without the query itself; None where nothing else is of its class."""
    same = gallery.same - 1
    return Gallery(gallery.images - 1, same) if same > 0 else None
