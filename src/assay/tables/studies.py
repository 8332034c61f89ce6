"""Studies as tables take them: which may share a table, which count, and in which order."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.errors import reason_of
from assay.hashing import digest, shortened
from assay.metric_names import expand
from assay.npz import read_npz
from assay.records.benches import AS_IS
from assay.records.codec import RESTORE, BadRecord
from assay.records.lines import Preregistration
from assay.records.run import RunBudget, read_budget
from assay.records.store import Store
from assay.records.study import StudyRecord, classes_file
from assay.tables.family import is_baseline

Vector = NDArray[np.float64]


def newest(records: Iterable[StudyRecord]) -> tuple[list[StudyRecord], list[StudyRecord]]:
    """Return the latest study of each method, and the studies that these replace.

    The latest is the last study that has ended, with any later study under way.
    """
    by_method: dict[str, list[StudyRecord]] = {}
    for record in sorted(records, key=generation_of, reverse=True):
        by_method.setdefault(record.method, []).append(record)
    standing, replaced = [], []
    for generations in by_method.values():
        count = 1 + next(
            (number for number, record in enumerate(generations) if has_ended(record)), 0
        )
        standing += generations[:count]
        replaced += generations[count:]
    return standing, replaced


def by_year(record: StudyRecord) -> tuple[bool, bool, float, str]:
    """Return the sort key of a study.

    The unchanged vectors come first, then other baselines, methods by year, methods without a year.
    """
    trained = not is_baseline(record.method, record)
    return trained, record.method != AS_IS, year_of(record) or math.inf, record.method


def conditions(record: StudyRecord) -> tuple[str, ...]:
    """Return everything that must agree within a table."""
    announced = record.announced
    return (
        announced.protocol.fingerprint,
        announced.data.trainval,
        digest(announced.environment),
        str(announced.origin),
    )


def metrics_of(announced: Preregistration) -> list[str]:
    """Return the metrics of the test half that a preregistration names; a family by its members."""
    return expand(announced.protocol.resolved.metrics)


def file_name(announced: Preregistration, tested: Sequence[StudyRecord], protocol: str) -> str:
    """Return data, halves, protocol and environment in letters that any file system accepts."""
    half = tested[0].seal.test[:8] if tested and tested[0].seal else "untested"
    where = digest(announced.environment)[:8]
    words = f"{announced.data.name}-{announced.data.trainval[:8]}-{half}-{protocol}-{where}"
    return as_file_name(words)


def as_file_name(words: str) -> str:
    """Return words as the beginning of a file's name.

    >>> as_file_name("folder:birds under quick.v2")
    'folder-birds-under-quick-v2'
    """
    return shortened(re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-"))


def generation_of(record: StudyRecord) -> int:
    """Return how often the study was started again before this one."""
    return int(record.announced.generation)


def has_ended(record: StudyRecord) -> bool:
    """Return whether the study is final: all test scores exist, or all trials diverged."""
    return (record.complete and record.seal is not None) or record.failed


def year_of(record: StudyRecord) -> int | None:
    """Return the year of the method's paper."""
    paper = record.announced.method.paper
    return int(paper.year) if paper else None


def budgets_of(store: Store, record: StudyRecord) -> dict[str, RunBudget]:
    """Return what the runs of a study cost by their keys, where that was counted."""
    found = {entry.key: read_budget(store.run(entry.key)) for entry in record.run_entries()}
    return {key: budget for key, budget in found.items() if budget is not None}


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


def class_scores(store: Store, records: Iterable[StudyRecord]) -> dict[str, ClassScores]:
    """Return the mean over the reproductions of each study, by its key; a study of which a
    reproduction has no file is left out.
    """
    found = {record.key: _mean_over_reproductions(store, record) for record in records}
    return {key: scores for key, scores in found.items() if scores is not None}


def _mean_over_reproductions(store: Store, record: StudyRecord) -> ClassScores | None:
    folder = store.study(record.key)
    files = [classes_file(folder, test.search, test.reproduction) for test in record.tests]
    if not files or not all(file.is_file() for file in files):
        return None
    found = []
    for file in files:
        try:
            arrays, _ = read_npz(file, ["queries", "separated", "concatenated"])
            found.append(ClassScores(**arrays))
        except (ValueError, TypeError) as error:
            raise BadRecord(f"{file} cannot be read ({reason_of(error)}){RESTORE}") from None
    return ClassScores(
        found[0].queries,
        np.mean([one.separated for one in found], axis=0),
        np.mean([one.concatenated for one in found], axis=0),
    )
