"""Checks of a store: recompute what follows from its runs, and repeat some runs."""

from assay.verify.checks import verify, verify_study
from assay.verify.designs import Designs
from assay.verify.finding import Finding
from assay.verify.rerun import TOLERANCE, Outcome, Repeated, device_of_runs, rerun
from assay.verify.retest import COSINE, retest
from assay.verify.scores import TEST_SCORE

__all__ = [
    "COSINE",
    "TEST_SCORE",
    "TOLERANCE",
    "Designs",
    "Finding",
    "Outcome",
    "Repeated",
    "device_of_runs",
    "rerun",
    "retest",
    "verify",
    "verify_study",
]
