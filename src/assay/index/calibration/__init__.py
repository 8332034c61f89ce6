"""Thresholds that can be trusted, and a confidence for each match, from validation pairs."""

from assay.index.calibration.calibration import (
    AskedGallery,
    Calibrated,
    Calibration,
    Choice,
    Gallery,
    Limits,
    Threshold,
    TooFew,
)
from assay.index.calibration.curve import Curve
from assay.index.calibration.fit import calibrate
from assay.index.manifest import CALIBRATION

__all__ = [
    "CALIBRATION",
    "AskedGallery",
    "Calibrated",
    "Calibration",
    "Choice",
    "Curve",
    "Gallery",
    "Limits",
    "Threshold",
    "TooFew",
    "calibrate",
]
