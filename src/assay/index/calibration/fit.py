"""From labelled vectors to a calibration. Shapes: N samples, D dims."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import BadInput
from assay.index.calibration.calibration import (
    FEWEST_CLASSES,
    Calibrated,
    Calibration,
    TooFew,
)
from assay.index.calibration.curve import curve_of
from assay.index.calibration.pairs import compare_pairs
from assay.progress import Progress, silent
from assay.version import __version__


def calibrate(
    z: ArrayLike,
    y: ArrayLike,
    of: Calibrated,
    *,
    contents: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Calibration:
    """Calibrate from labelled vectors of classes that the model was not trained on.

    Raise `BadInput` where there are fewer than 10 classes of two different images.

    Args:
        z: embeddings (N, D) as an index stores them; rows of uint8 are packed bits.
        y: labels (N,), compared by equality.
        of: the model, the similarity and the data.
        contents: hash of the content of each image. Of copies of one class, one stays: copies of a
            query are found too easily. Copies in two classes are left out, since a label is wrong.
        progress: called with a stage, the steps done and their total.
    """
    z, y = np.asarray(z), np.asarray(y)
    if z.ndim != 2 or y.shape != (len(z),) or len(contents or z) != len(z):
        raise BadInput(
            f"embeddings of shape {z.shape}, labels of shape {y.shape}: give a label, and a hash if"
            " any, for each of (N, D) embeddings"
        )
    kept = np.arange(len(z)) if contents is None else without_copies(y, contents)
    sizes = np.unique(y[kept], return_counts=True)[1]
    several = int((sizes > 1).sum())
    if several < FEWEST_CLASSES:
        raise TooFew(
            f"{of.data} has {several} class{'es' * (several != 1)} with two different images in"
            f" {of.split}; limits over fewer than {FEWEST_CLASSES} classes mean nothing: give more"
            " classes"
        )
    pairs = compare_pairs(z[kept], y[kept], of.similarity, progress)
    return Calibration(
        of=of,
        classes=several,
        singles=len(sizes) - several,
        images=len(kept),
        copies=len(z) - len(kept),
        same_pairs=pairs.pairs[0],
        other_pairs=pairs.pairs[1],
        same=float((sizes - 1).mean()),
        curve=curve_of(pairs),
        written_by=__version__,
    )


def without_copies(y: ArrayLike, contents: Sequence[str]) -> NDArray[np.int64]:
    """Return the rows of images that are no copies: the first of one class, none of several.

    >>> without_copies(["ant", "ant", "ant", "bee", "cat"], ["1", "1", "2", "3", "3"])
    array([0, 2])
    """
    labels: dict[str, set[object]] = {}
    first: dict[str, int] = {}
    for row, (label, content) in enumerate(zip(np.asarray(y).tolist(), contents, strict=True)):
        labels.setdefault(content, set()).add(label)
        first.setdefault(content, row)
    kept = [row for content, row in first.items() if len(labels[content]) == 1]
    return np.array(sorted(kept), dtype=np.int64)
