"""Scores of single test classes, as the study recorded them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.records.store import Store
from assay.records.study import StudyRecord, classes_file

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassScores:
    """Sums of MAP@R over the queries of each test class, averaged over the runs of a study.

    Args:
        queries: number of queries of each class that count.
        separated: sums for single models.
        concatenated: sums for concatenated ones.
    """

    queries: Vector
    separated: Vector
    concatenated: Vector


def class_scores(store: Store, record: StudyRecord) -> ClassScores | None:
    """Return the mean over a study's reproductions; None where a reproduction has no file."""
    folder = store.study(record.key)
    files = [classes_file(folder, test.search, test.reproduction) for test in record.tests]
    if not files or not all(file.is_file() for file in files):
        return None
    found = [_read(file) for file in files]
    return ClassScores(
        found[0].queries,
        np.mean([one.separated for one in found], axis=0),
        np.mean([one.concatenated for one in found], axis=0),
    )


def _read(file: Path) -> ClassScores:
    with np.load(file, allow_pickle=False) as arrays:
        return ClassScores(arrays["queries"], arrays["separated"], arrays["concatenated"])
