"""The origin of vectors: the trunk that made a features file, as the file itself says."""

import re
from dataclasses import dataclass

from assay.protocols import Pooling, Resize
from assay.records.codec import Record

MADE_BY = re.compile(r"(?P<trunk>.+), weights (?P<weights>.+)")
"""What `FeaturesOrigin.made_by` says."""


@dataclass(frozen=True)
class FeaturesOrigin(Record):
    """The pretrained trunk that made the vectors of a file, and the images that it saw.

    Args:
        trunk: its name.
        weights: hash of its weights.
        inputs: channels of the images.
        size: side of the square input in pixels.
        pooling: how its maps became features.
        resize: how an image was scaled before the centre was cut out of it.
        stored: side of the scaled image.
        unit: whether the features were scaled to unit length.
        images: fingerprint of the trainval half of the images.
        source: the folder of class folders with the images; empty: not known.
        vectors: SHA-256 of the vectors as they were written.
    """

    trunk: str
    weights: str
    inputs: int
    size: int
    pooling: Pooling
    resize: Resize
    stored: int
    unit: bool
    images: str
    source: str
    vectors: str

    @property
    def made_by(self) -> str:
        """The trunk by its name and weights, which say the same on every machine."""
        return f"{self.trunk}, weights {self.weights}"
