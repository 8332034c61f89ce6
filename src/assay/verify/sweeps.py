"""Checks of sweeps: a point has the value that it is called by, and differs from its base in that
setting alone; all values are there.
"""

from collections.abc import Iterator, Sequence

from assay.protocols import customise, protocols
from assay.protocols.changes import settings_by_path
from assay.records.origin import SelectedBy, SweepPoint
from assay.records.study import StudyRecord
from assay.verify.finding import Finding
from assay.verify.settings import differing_settings, unexplained_settings

BESIDE = ("space", "exceptions", "given")
"""Parts of a protocol that no `--set` changes, the same at all points of a sweep."""


def check_sweep(record: StudyRecord, point: SweepPoint, base: StudyRecord | None) -> Iterator[str]:
    """Yield where a point of a sweep has another value, other parameters or other data.

    `base` is the study whose parameters it has; None where that is not in the store.
    """
    setting, modality = f"{point.field}={point.value}", record.announced.data.modality
    if record.announced.origin != SelectedBy(point.base):
        yield (
            f"preregistration: the parameters of this sweep are not those of its base"
            f" {point.base[:12]}"
        )
    if point.value not in point.values:
        yield (
            f"preregistration: {point.value} is not among the values of the sweep over"
            f" {point.field}"
        )
    declared = customise(record.resolved.declared, [setting])
    if differing_settings(declared, record.resolved, modality):
        yield f"preregistration: the protocol of this point of the sweep does not have {setting}"
    if base is not None:
        called = f"preregistration: the base {base.key[:12]} of the sweep"
        yield from (f"{called} {problem}" for problem in _check_base(record, base, point))


def _check_base(record: StudyRecord, base: StudyRecord, point: SweepPoint) -> Iterator[str]:
    """Yield where the base of a point is no base, or differs in more than the swept setting."""
    ours, theirs = record.announced, base.announced
    if theirs.sweep is not None:
        yield "is itself a point of a sweep"
    if theirs.data.trainval != ours.data.trainval:
        yield "worked on other data"
    if problem := protocols.misnamed(point.protocol, theirs.protocol.fingerprint):
        yield f"does not have the protocol that this point names: {problem}"
    own = [path for path in settings_by_path(base.resolved) if _belongs_to(path, point.field)]
    others = unexplained_settings(base.resolved, record.resolved, own, ours.data.modality)
    before, here = base.resolved, record.resolved
    others += [name for name in BESIDE if getattr(before, name) != getattr(here, name)]
    if others:
        yield f"has another {others[0]} than this point, and only {point.field} may differ"
    declared = protocols.declared(theirs.protocol.name, theirs.protocol.settings)
    if declared is not None:
        expected = customise(declared, [f"{point.field}={point.value}"])
        if expected.fingerprint != ours.protocol.fingerprint:
            yield f"differs from this point in more than {point.field}"


def _belongs_to(path: str, field: str) -> bool:
    """Return whether a setting is a field or a part of it.

    >>> _belongs_to("batch.embedding", "batch"), _belongs_to("trial_folds", "trial")
    (True, False)
    """
    return f"{path}.".startswith(f"{field}.")


def find_absent_points(records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each sweep of a method of which values are not in the store."""
    there: dict[SweepPoint, set[str]] = {}
    titles = {}
    for record in records:
        if (point := record.announced.sweep) is not None:
            sweep = SweepPoint(point.field, "", point.values, point.base, point.protocol)
            there.setdefault(sweep, set()).add(point.value)
            titles[sweep] = record.title
    for sweep, values in there.items():
        absent = [value for value in sweep.values if value not in values]
        if absent:
            yield Finding(
                f"{titles[sweep]}: sweep over {sweep.field}",
                note=f"announced and absent: {sweep.field}={', '.join(absent)}; run the same"
                " command again to continue",
                incomplete=True,
            )
