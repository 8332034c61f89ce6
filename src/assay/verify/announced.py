"""What a study announced, read again: its protocol, its folds, and whether the parts of the
announcement go together.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.protocols import Protocol, ResolvedProtocol, customise
from assay.published import best_parameters
from assay.records.keys import study_key
from assay.records.lines import Preregistration
from assay.records.origin import Published, SelectedBy
from assay.records.store import Store
from assay.records.untyped import StudyRecord, read_record
from assay.study.design import drawn_folds
from assay.study.reproduce import data_of

Announced = Mapping[str, Any]


def read_protocol(announced: Announced) -> ResolvedProtocol:
    """Return the resolved protocol that a preregistration holds."""
    return ResolvedProtocol.from_json(announced["protocol"]["resolved"])


def folds_of(announced: Announced) -> Sequence[int | None]:
    """The folds of a reproduction; a fixed baseline has none."""
    budget = announced["budget"]
    reproductions = budget["searches"] * budget["reproductions"]
    return (
        range(budget["folds"])
        if budget["reproduction_runs"] == reproductions * budget["folds"]
        else [None]
    )


def folds_of_trials(announced: Announced, search: int) -> Sequence[int]:
    """The folds that the trials of a search are validated on."""
    return drawn_folds(
        read_protocol(announced), announced["data"]["trainval"], search, "twin_of" in announced
    )


def run_protocol(announced: Announced) -> ResolvedProtocol:
    """The protocol of the study's runs: without a head where the method has none."""
    protocol = read_protocol(announced)
    return protocol.without_head if announced["method"].get("head") == "none" else protocol


def prunes(announced: Announced) -> bool:
    """Whether hopeless trials are given up after their first fold; on vectors all folds are one
    task.
    """
    resolved = announced["protocol"]["resolved"]
    return (
        resolved.get("prune") is not None
        and announced["data"]["modality"] != "features"
        and resolved.get("frozen") != "trunk"
    )


def key_of(announced: Announced, generation: int) -> str:
    """The key that the study of this announcement has in a store."""
    said = Preregistration.from_json(announced, "ledger.jsonl, line 1 (preregistration)")
    return study_key(
        said.protocol.fingerprint,
        said.data.trainval,
        said.method.name,
        generation,
        said.given,
        said.sweep,
    )


def check_announcement(store: Store, record: StudyRecord) -> Iterator[str]:
    """The study lies where its announcement belongs, and budget and given parameters follow from
    protocol and source.
    """
    announced = record.announced
    generation = announced.get("generation", 0)
    if key_of(announced, generation) != record.key:
        yield (
            f"studies/{record.key[:12]} does not hold the study that its preregistration announces"
        )
    if (
        generation
        and not (store.study(key_of(announced, generation - 1)) / "ledger.jsonl").exists()
    ):
        yield (
            f"this is study number {generation + 1} of its kind, and the one before it was removed"
            " from the store"
        )
    yield from _budget(announced)
    if "given" in announced:
        yield from _given(store, record)
    if "sweep" in announced:
        yield from _sweep(store, record)


def _budget(announced: Announced) -> Iterator[str]:
    """A method has no other budget and no smaller space than the protocol says."""
    protocol, budget, space = read_protocol(announced), announced["budget"], announced["space"]
    single = folds_of(announced) == [None]
    fixed = single and (
        announced["weights"] is not None or announced["data"]["modality"] == "features"
    )
    searched = budget["trials"] > 0
    reproductions = 1 if fixed else protocol.reproductions * (1 if searched else protocol.searches)
    searches = protocol.searches if searched else 1
    expected = {
        "startup": [protocol.startup],
        "folds": [protocol.folds],
        "searches": [searches],
        "trials": _trials(announced, protocol),
        "trial_folds": [protocol.folds_of_a_trial if searched else 0],
        "reproductions": [reproductions],
        "reproduction_runs": [searches * reproductions * (1 if single else protocol.folds)],
    }
    for name, allowed in expected.items():
        if budget[name] not in allowed:
            yield (
                f"preregistration: {budget[name]} {name} were announced, the protocol says"
                f" {allowed[0]}"
            )
    if budget["trials"]:
        for name, range_ in protocol.space.describe().items():
            if space.get(name) != _listed(range_):
                yield f"preregistration: the search space lacks what the protocol says of {name}"


def _listed(range_: Mapping[str, object]) -> dict[str, object]:
    """A described range as JSON gives it back."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in range_.items()
    }


def _trials(announced: Announced, protocol: Protocol) -> list[int]:
    """How many trials the protocol allows: none where all is given, one or none (untrained) where
    nothing is searched.
    """
    if "given" in announced:
        return [0]
    return [protocol.trials] if announced["space"] else [min(1, protocol.trials), 0]


def _given(store: Store, record: StudyRecord) -> Iterator[str]:
    """Parameters that come from another study are the ones that it selected; published ones are as
    published.
    """
    given, origin = (
        record.announced["given"]["parameters"],
        record.announced["given"]["origin"],
    )
    if origin["kind"] == SelectedBy.kind:
        other = _other(store, origin["study"])
        if other is not None and (
            other.selection is None or other.selection["parameters"] != given
        ):
            yield (
                f"preregistration: its parameters are not those that study {other.key[:12]}"
                " selected"
            )
        if other is not None and other.method != record.method:
            yield f"preregistration: its parameters were selected for {other.method}"
        return
    data = data_of(record.announced["protocol"]["name"])
    published = best_parameters(record.method, data) or {}
    wrong = [name for name, value in published.items() if given.get(name) != value]
    if origin["kind"] == Published.kind and origin["data"] == data and wrong:
        yield (
            f"preregistration: {wrong[0]}={given.get(wrong[0])} is not the value published for"
            f" {data}"
        )


def _sweep(store: Store, record: StudyRecord) -> Iterator[str]:
    """The protocol has the value of the field that the sweep gives it, and the parameters are those
    of its base.
    """
    point, origin = record.announced["sweep"], record.announced["given"]["origin"]
    if origin != SelectedBy(point["base"]).to_json():
        yield (
            "preregistration: the parameters of this sweep are not those of its base"
            f" {point['base'][:12]}"
        )
    if point["value"] not in point["values"]:
        yield (
            f"preregistration: {point['value']} is not among the values of the sweep over"
            f" {point['field']}"
        )
    protocol, setting = (
        read_protocol(record.announced).declared,
        f"{point['field']}={point['value']}",
    )
    settled = point["field"] == "weights" or point["value"] == "auto"
    if not settled and customise(protocol, [setting]).fingerprint != protocol.fingerprint:
        yield f"preregistration: the protocol of this point of the sweep does not have {setting}"
    base = _other(store, point["base"])
    if (
        base is not None
        and base.announced["data"]["trainval"] != record.announced["data"]["trainval"]
    ):
        yield f"preregistration: the base {base.key[:12]} of the sweep worked on other data"


def _other(store: Store, key: str) -> StudyRecord | None:
    """Another study of the store, None where it is not there."""
    return read_record(store.study(key)) if (store.study(key) / "ledger.jsonl").exists() else None
