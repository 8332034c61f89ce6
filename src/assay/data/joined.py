"""Both halves of a data set as one view, for a training on all classes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from assay.data.dataset import Labels, Pixels, Samples
from assay.data.packs import Images, View


@dataclass(frozen=True)
class JoinedImages:
    """Images of two packs, one after the other; none is read before it is asked for.

    Args:
        first: the images that come first.
        second: the others.
    """

    first: Images
    second: Images

    @property
    def channels(self) -> int:
        """Channels of each image."""
        return self.first.channels

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, rows: Labels | slice) -> Samples:
        """Return images (n, H, W, C) where all have one shape, else a list of (H, W, C)."""
        numbers = np.arange(len(self))[rows]
        later = numbers >= len(self.first)
        parts = self.first[numbers[~later]], self.second[numbers[later] - len(self.first)]
        found: list[Pixels] = [np.empty(0, dtype=np.uint8)] * len(numbers)
        for places, part in zip((~later, later), parts, strict=True):
            for place, image in zip(np.flatnonzero(places).tolist(), part, strict=True):
                found[place] = image
        return np.stack(found) if len({image.shape for image in found}) == 1 else found

    def __iter__(self) -> Iterator[Pixels]:
        yield from self.first
        yield from self.second


def join_views(first: View, second: View) -> View:
    """Return the samples of two views as one; the classes of the second follow those of the first.

    Marks of queries and gallery are left out: in training all samples are alike.
    """
    y = np.concatenate([first.y, second.y + int(first.y.max()) + 1])
    if isinstance(first.x, np.ndarray) and isinstance(second.x, np.ndarray):
        return View(np.concatenate([first.x, second.x]), y)
    assert not isinstance(first.x, np.ndarray) and not isinstance(second.x, np.ndarray)
    return View(JoinedImages(first.x, second.x), y)
