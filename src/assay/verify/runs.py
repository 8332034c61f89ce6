"""Each run that a ledger names: there, the run that belongs in that place,
with the result it had.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.files import read_json
from assay.hashing import digest, digest_file
from assay.protocols import ResolvedProtocol
from assay.records.keys import run_seed
from assay.records.run import CHECKPOINTS, WEIGHTS
from assay.records.store import Store
from assay.records.untyped import StudyRecord
from assay.verify.announced import folds_of, folds_of_trials, run_protocol


@dataclass(frozen=True)
class Place:
    """Where a run stands in a study.

    Args:
        stage: trial or reproduction.
        search: that it belongs to.
        number: of the trial or reproduction.
        fold: that is validated.
        parameters: of the method.
        entry: what the ledger says of the run.
    """

    stage: Literal["trial", "reproduction"]
    search: int
    number: int
    fold: int | None
    parameters: dict[str, Any]
    entry: dict[str, Any]

    def __str__(self) -> str:
        search = f"search {self.search}, " if self.search else ""
        return f"{search}{self.stage} {self.number}" + (
            f", fold {self.fold}" if self.fold is not None else ""
        )


def places(record: StudyRecord) -> Iterator[Place]:
    """Every run of a study, in the order of its ledger."""
    for trial in record.trials:
        folds = folds_of_trials(record.announced, trial["search"])
        for fold, entry in zip(folds, trial["runs"], strict=False):
            yield Place("trial", trial["search"], trial["trial"], fold, trial["parameters"], entry)
    chosen = {selection["search"]: selection["parameters"] for selection in record.selections}
    folds_tested, each = (
        folds_of(record.announced),
        int(record.announced["budget"]["reproductions"]),
    )
    for count, entry in enumerate(record.reproductions):
        place, position = divmod(count, len(folds_tested))
        search, number = divmod(place, each)
        yield Place(
            "reproduction", search, number, folds_tested[position], chosen.get(search, {}), entry
        )


def check_runs(store: Store, record: StudyRecord) -> Iterator[str]:
    """All that the store keeps of the study's runs."""
    protocol = run_protocol(record.announced)
    for place in places(record):
        if place.stage == "reproduction":
            said = tuple(place.entry[name] for name in ("search", "reproduction", "fold"))
            if said != (place.search, place.number, place.fold):
                yield f"{place} is missing in the ledger"
            if not (store.run(place.entry["key"]) / WEIGHTS).exists():
                yield f"run {place.entry['key'][:12]} ({place}): {WEIGHTS} is missing"
        for problem in _run(store, record, protocol, place):
            yield f"run {place.entry['key'][:12]} ({place}): {problem}"


def _run(
    store: Store, record: StudyRecord, protocol: ResolvedProtocol, place: Place
) -> Iterator[str]:
    folder, entry = store.run(place.entry["key"]), place.entry
    documents: dict[str, Any] = {}
    for name, read in (
        ("result.json", read_json),
        ("config.json", read_json),
        ("history.jsonl", _read_lines),
    ):
        try:
            documents[name] = read(folder / name)
        except FileNotFoundError:
            yield f"{name} is missing"
            return
        except (OSError, ValueError):
            yield f"{name} was altered: it cannot be read"
            return
    result, config, history = documents.values()
    if digest_file(folder / "result.json") != entry["result"]:
        yield "result.json was altered"
    if any(
        entry.get(field) != result.get(field)
        for field in ("status", "validation", "best_epoch", "last_epoch", "training")
    ):
        yield "the ledger does not say what its result says"
    if digest(config) != entry["key"]:
        yield "config.json was altered"
    wrong = [
        field
        for field, value in _expected(record, protocol, place).items()
        if config.get(field) != value
    ]
    if wrong:
        yield f"this is not the run of {place}: config.json has another {wrong[0]}"
    if "history" in result and digest_file(folder / "history.jsonl") != result["history"]:
        yield "history.jsonl was altered"
    yield from _history(history, result, protocol)
    yield from _weights(folder, history, result)


def _read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _expected(record: StudyRecord, protocol: ResolvedProtocol, place: Place) -> dict[str, Any]:
    """What the configuration of the run in this place must say."""
    announced = record.announced
    trainval = announced["data"]["trainval"]
    return {
        "method": announced.get("twin_of", record.method),
        "source": announced["method"]["source"],
        "batch": announced["method"]["batch"],
        "protocol": {**protocol.training, "folds": protocol.folds},
        "parameters": place.parameters,
        "trainval": trainval,
        "fold": place.fold,
        "seed": run_seed(
            protocol.seed,
            trainval,
            place.stage,
            place.search,
            place.number,
            place.fold,
            "twin_of" in announced,
        ),
        "environment": announced["environment"],
    }


def _history(
    history: list[Any], result: Mapping[str, Any], protocol: ResolvedProtocol
) -> Iterator[str]:
    """The validations stand at the epochs that the protocol says, and the first best of them is the
    result.
    """
    if not history:
        yield "history.jsonl was altered: it is empty"
        return
    best = max(history, key=lambda checkpoint: float(checkpoint["validation"]["map_at_r"]))
    last = int(result["last_epoch"])
    due = [
        epoch
        for epoch in range(last + 1)
        if epoch % protocol.validate_every == 0 or epoch == protocol.epochs
    ]
    if [checkpoint["epoch"] for checkpoint in history] != due:
        yield "history.jsonl was altered: its epochs are not those of the protocol"
    if (best["epoch"], best["validation"]) != (result["best_epoch"], result["validation"]):
        yield "history.jsonl was altered: its best validation is not the result"


def _weights(folder: Path, history: list[Any], result: Mapping[str, Any]) -> Iterator[str]:
    """The weights are those that the result holds the hash of; where every checkpoint was kept, the
    best is one of them.
    """
    weights, kept = folder / WEIGHTS, folder / CHECKPOINTS
    if weights.exists() and digest_file(weights) != result["weights"]:
        yield f"{WEIGHTS} was altered"
    if not kept.exists():
        return
    expected = {f"{checkpoint['epoch']}.safetensors" for checkpoint in history}
    strange = sorted(expected ^ {path.name for path in kept.iterdir()})
    best = kept / f"{result['best_epoch']}.safetensors"
    if strange:
        yield (
            f"{CHECKPOINTS}/{strange[0]} is"
            f" {'missing' if strange[0] in expected else 'not of this run'}"
        )
    if best.exists() and digest_file(best) != result["weights"]:
        yield f"{CHECKPOINTS}/{best.name} was altered: it is not the chosen model"
