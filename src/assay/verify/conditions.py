"""Checks of equal conditions: studies in one comparison have the same settings, budgets and common
space.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from assay.hashing import digest
from assay.records.study import StudyRecord
from assay.verify.finding import Finding

SHARED = (
    "searches",
    "search",
    "trials",
    "trial_folds",
    "smallest_difference",
    "startup",
    "prune",
    "reproductions",
    "folds",
    "seed",
    "metrics",
    "space",
    "threads",
)
"""Settings that no exception for a method touches without being named in it."""


def check_conditions(records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each group of studies.

    A group has one protocol, the same data and the same environment.
    """
    groups: dict[tuple[str, str, str], list[StudyRecord]] = {}
    for record in records:
        announced = record.announced
        conditions = (
            announced.protocol.fingerprint,
            announced.data.trainval,
            digest(announced.environment),
        )
        groups.setdefault(conditions, []).append(record)
    for group in groups.values():
        announced = group[0].announced
        what = (
            f"{announced.data.name} under {announced.protocol.name}: equal conditions"
            f" of {len(group)} studies"
        )
        yield Finding(what, "; ".join(_unequal(group)))


def _unequal(group: Sequence[StudyRecord]) -> Iterator[str]:
    first = group[0]
    for other in group[1:]:
        ours, theirs = _settings(first), _settings(other)
        excepted = _exceptions(first) | _exceptions(other)
        compared = [
            name for name in ({*ours, *theirs} if not excepted else SHARED) if name not in excepted
        ]
        wrong = sorted(name for name in compared if ours.get(name) != theirs.get(name))
        if wrong:
            yield (
                f"{first.method} and {other.method} were studied under one protocol with different"
                f" values of {wrong[0]}"
            )


def _settings(record: StudyRecord) -> dict[str, Any]:
    return record.resolved.to_json()


def _exceptions(record: StudyRecord) -> set[str]:
    """Return the fields of the protocol that it sets apart for this method."""
    own = record.resolved.exceptions.get(record.trained_method, {})
    return {setting.partition(".")[0] for setting in own}
