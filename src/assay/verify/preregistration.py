"""Checks of what was announced: a preregistration lies under its key and its parts follow from one
another, and studies that are compared have equal conditions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from assay.hashing import digest
from assay.protocols import (
    PROSE,
    RANDOM_WEIGHTS,
    SAME_FOR_ALL,
    Protocol,
    SettingValue,
    protocols,
    published_name,
    with_settings,
)
from assay.published import best_parameters
from assay.records.lines import AnnouncedProtocol, Preregistration
from assay.records.origin import GivenParameters, Published, SelectedBy
from assay.records.store import Store
from assay.records.study import StudyRecord, read_record
from assay.space import Value
from assay.study.announced import AnnouncedStudy
from assay.study.reproduce import PUBLISHED_BY, data_of
from assay.verify.finding import Finding
from assay.verify.settings import differing_settings, unexplained_settings
from assay.verify.sweeps import check_sweep, find_absent_points
from assay.version import __version__

SHARED = (*SAME_FOR_ALL, "space", "given", "exceptions")
"""Settings that are compared where an exception for a method may have changed others with it."""


def check_preregistration(store: Store, record: StudyRecord) -> Iterator[str]:
    """Yield what is wrong with an announcement.

    The study lies under the key that the announcement gives, its predecessor is there, budget and
    space follow from the protocol, and given parameters from their origin.
    """
    announced, study = record.announced, AnnouncedStudy(record.announced)
    generation = announced.generation
    protocol = announced.protocol
    declared = protocols.declared(protocol.name, protocol.settings)
    if problem := protocols.misnamed(protocol.name, protocol.fingerprint):
        yield f"preregistration: the protocol: {problem}"
    elif published_name(protocol.name) != published_name(record.resolved.name):
        yield (
            f"preregistration: the protocol is called {protocol.name}, and its settings"
            f" {record.resolved.name}"
        )
    elif declared is not None:
        yield from _other_than_declared(protocol, declared)
        if announced.versions.assay == __version__:
            yield from _other_prose(record, declared)
    if study.key(generation) != record.key:
        yield (
            f"studies/{record.key[:12]} does not hold the study that its preregistration announces"
        )
    if generation and _other(store, study.key(generation - 1)) is None:
        yield (
            f"this is study number {generation + 1} of its kind, and the one before it was removed"
            " from the store"
        )
    expected = asdict(study.budget)
    for name, value in asdict(announced.budget).items():
        if value != expected[name]:
            yield (
                f"preregistration: {value} {name} were announced, the protocol says"
                f" {expected[name]}"
            )
    if study.protocol.folds < 1:
        yield f"preregistration: {study.protocol.folds} folds were announced, a study has some"
    if announced.budget.trials:
        for name, range_ in study.protocol.space.items():
            if announced.space.get(name) != range_:
                yield (
                    f"preregistration: the search space has another range for {name} than the"
                    " protocol"
                )
    yield from _contradictions(announced)
    if announced.given is not None:
        yield from _check_given(store, record, announced.given)
    if announced.sweep is not None:
        base = _other(store, announced.sweep.base)
        yield from check_sweep(record, announced.sweep, base)


def _contradictions(announced: Preregistration) -> Iterator[str]:
    """Yield where two parts of an announcement, made from one source, are not equal."""
    weights = announced.weights.digest if announced.weights else RANDOM_WEIGHTS
    versions, environment = announced.versions, announced.environment
    for what, said, other in (
        ("hash of its weights", weights, announced.protocol.resolved.weights),
        ("source of Assay", versions.source, environment.source),
        ("version of torch", versions.torch, environment.torch),
    ):
        if said != other:
            yield f"preregistration: the {what} is {said[:12]} and, elsewhere in it, {other[:12]}"


def _other_than_declared(announced: AnnouncedProtocol, declared: Protocol) -> Iterator[str]:
    """Yield what was announced of a protocol and does not follow from its declared settings."""
    for name in ("name", "fingerprint", "question"):
        if getattr(announced, name) != getattr(declared, name):
            yield (
                f"preregistration: the {name} {getattr(announced, name)} of the protocol is not"
                f" that of its settings ({', '.join(announced.settings) or 'none were changed'})"
            )


def _other_prose(record: StudyRecord, declared: Protocol) -> Iterator[str]:
    """Yield where the name and the words of a protocol are not those of the declared one."""
    own = declared.exceptions.get(record.trained_method, {})
    expected = with_settings(declared, own)
    for name in PROSE:
        if getattr(record.resolved, name) != getattr(expected, name):
            yield (
                f"preregistration: the {name} of the protocol is {getattr(record.resolved, name)},"
                f" that of {declared.name} is {getattr(expected, name)}"
            )


def _check_given(store: Store, record: StudyRecord, given: GivenParameters) -> Iterator[str]:
    """Yield where given parameters are not those that the other study selected or a paper has."""
    if isinstance(given.origin, SelectedBy):
        other = _other(store, given.origin.study)
        if other is None:
            return
        if other.selection is None or other.selection.parameters != given.parameters:
            yield (
                f"preregistration: its parameters are not those that study {other.key[:12]}"
                " selected"
            )
        if other.method != record.method:
            yield f"preregistration: its parameters were selected for {other.method}"
    elif isinstance(given.origin, Published):
        yield from _check_published(record, given.parameters, given.origin)


def _check_published(
    record: StudyRecord, given: Mapping[str, Value], origin: Published
) -> Iterator[str]:
    """Yield where parameters are not those of the paper, with defaults for what it left out."""
    data = data_of(record.announced.protocol.name)
    if origin.paper != PUBLISHED_BY:
        yield (
            f"preregistration: its parameters are said to be published by {origin.paper}, and those"
            f" that Assay runs again are by {PUBLISHED_BY}"
        )
    if origin.data != data:
        yield (
            f"preregistration: its parameters are said to be published for {origin.data},"
            f" and the protocol is that of {data}"
        )
        return
    published = best_parameters(record.method, data)
    if published is None and given:
        yield f"preregistration: no parameters of {record.method} were published for {data}"
    own_defaults = not record.resolved.given.get(record.method)
    defaults = record.announced.method.defaults if own_defaults else {}
    expected: dict[str, Value] = {**defaults, **(published or {})}
    for name, value in expected.items():
        if given.get(name) != value:
            which = "the value" if name in (published or {}) else "the default of what was not"
            yield f"preregistration: {name}={given.get(name)} is not {which} published for {data}"
            return
    if added := sorted({*given} - {*record.announced.method.defaults, *expected}):
        yield f"preregistration: no {added[0]} of {record.method} was published for {data}"


def origin_that_is_absent(store: Store, record: StudyRecord) -> str:
    """Return in words that the study which selected the parameters is not in the store."""
    origin = record.announced.origin
    if not isinstance(origin, SelectedBy) or _other(store, origin.study) is not None:
        return ""
    return (
        f"its parameters are said to be those that study {origin.study[:12]} selected, which is not"
        " in this store"
    )


def _other(store: Store, key: str) -> StudyRecord | None:
    """Return another study of the store, None where it is not there."""
    return read_record(store.study(key)) if (store.study(key) / "ledger.jsonl").exists() else None


# --- equal conditions ---


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
    yield from find_absent_points(records)


def _unequal(group: Sequence[StudyRecord]) -> Iterator[str]:
    """Yield settings in which studies differ, and that no exception of their protocol explains."""
    first, *others = sorted(group, key=lambda record: len(_exceptions(record)))
    modality = first.announced.data.modality
    for record in group:
        own = _exceptions(record)
        declared = with_settings(record.resolved.declared, own)
        if own and (wrong := differing_settings(declared, record.resolved, modality)):
            yield f"{record.method} was studied without the exception made for it, {wrong[0]}"
    for other in others:
        excepted = {*_exceptions(first), *_exceptions(other)}
        ours, theirs = first.resolved.to_json(), other.resolved.to_json()
        compared = SHARED if excepted else sorted({*ours, *theirs} - {*PROSE})
        wrong = [name for name in compared if ours.get(name) != theirs.get(name)]
        if excepted:
            wrong += unexplained_settings(first.resolved, other.resolved, excepted, modality)
        if wrong:
            yield (
                f"{first.method} and {other.method} were studied under one protocol with different"
                f" values of {wrong[0]}"
            )


def _exceptions(record: StudyRecord) -> Mapping[str, SettingValue]:
    """Return the settings that the protocol sets apart for this method."""
    return record.resolved.exceptions.get(record.trained_method, {})
