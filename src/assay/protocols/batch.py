"""Shapes of training batches, classes x images per class."""

from dataclasses import dataclass
from typing import Literal

from assay.errors import BadInput

BatchKind = Literal["embedding", "classification", "pairs", "episodes"]
"""Shapes of training batch: for methods that compare samples, for methods that compare with class
weights, for methods that need two samples of each class, and for those that compare half of a
class's samples with the other half.
"""

LARGEST_BATCH = 32_768
"""Images of a batch. Losses compare all pairs: 4 GB for each matrix of this batch."""


@dataclass(frozen=True)
class Batch:
    """Shapes of a training batch, classes x images per class; None is `auto`.

    Args:
        embedding: for methods that compare samples.
        classification: for methods that compare samples with class weights.
    """

    embedding: tuple[int, int] | None = (8, 4)
    classification: tuple[int, int] | None = (32, 1)

    def of_size(self, images: int, setting: str) -> "Batch":
        """Return batches of exactly `images` images, with about as many per class as these have.

        `images_per_class` chooses the number per class; where these are `auto`, the usual one is
        that of `Batch()`. `setting` is for the message of a `BadInput`.

        >>> Batch(embedding=(24, 5), classification=(60, 2)).of_size(16, "batch=16")
        Batch(embedding=(4, 4), classification=(8, 2))
        """
        if images < 2:
            raise BadInput(f"--set {setting}: a batch holds at least 2 images; set it larger")
        if images > LARGEST_BATCH:
            raise BadInput(
                f"--set {setting}: a batch holds at most {LARGEST_BATCH} images; set it smaller"
            )
        shapes = {}
        for kind, default in vars(Batch()).items():
            usual = (getattr(self, kind) or default)[1]
            per_class = images_per_class(images, usual, least=2 if kind == "embedding" else 1)
            shapes[kind] = images // per_class, per_class
        return Batch(**shapes)


def images_per_class(images: int, usual: int, least: int) -> int:
    """Return the number of images of each class in a batch of `images` images.

    It divides `images`. It is the usual number if that does, else the largest below the usual one,
    else the smallest above. With `least=2`, for methods that compare samples, a number other than
    the usual one leaves at least two classes with two images each, so that a batch has positives
    and negatives. A prime number of images cannot be divided so: they are all of one class then.

    >>> [images_per_class(size, usual=5, least=2) for size in (2, 4, 8, 16, 32, 120)]
    [2, 2, 4, 4, 4, 5]
    >>> [images_per_class(size, usual=4, least=2) for size in (6, 25, 49, 7)]
    [3, 5, 7, 7]
    >>> [images_per_class(size, usual=2, least=1) for size in (2, 9, 128)]
    [2, 1, 2]
    """
    if images % usual == 0:
        return usual
    divisors = [one for one in range(least, images // least + 1) if images % one == 0]
    smallest = min(divisors, default=images)
    return max((one for one in divisors if one < usual), default=smallest)
