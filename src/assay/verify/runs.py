"""Checks of runs and models: each run that a ledger names is there, is the run of its place and is
intact; each model that a study handed over has the weights of its run, and a card that agrees with
the study.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError

from assay.errors import BadInput
from assay.hashing import digest_file
from assay.model import read_model
from assay.records.codec import BadRecord, differing_fields
from assay.records.lines import RunEntry, Scores, Setting
from assay.records.run import (
    CARD,
    HISTORY_DIFFERS,
    WEIGHTS,
    ModelCard,
    Run,
    RunResult,
    check_run,
    read_history,
)
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run.finished import FinishedRun
from assay.space import Value
from assay.study.announced import AnnouncedStudy, Stage
from assay.verify.finding import Finding


@dataclass(frozen=True)
class PlacedRun:
    """A run in its place in a study.

    Args:
        stage: trial or reproduction.
        search: number of the search.
        number: number of the trial or reproduction.
        fold: fold that is validated.
        parameters: parameters of the method.
        entry: the run as the ledger has it.
    """

    stage: Stage
    search: int
    number: int
    fold: int | None
    parameters: Mapping[str, Value]
    entry: RunEntry

    def __str__(self) -> str:
        search = f"search {self.search}, " if self.search else ""
        fold = f", fold {self.fold}" if self.fold is not None else ""
        return f"{search}{self.stage} {self.number}{fold}"


def placed_runs(record: StudyRecord) -> Iterator[PlacedRun]:
    """Yield every run of a study in the order of its ledger, in the place that it has there."""
    study = AnnouncedStudy(record.announced)
    for trial in record.trials:
        folds = study.folds_of_trials(trial.search)
        for fold, entry in zip(folds, trial.runs, strict=False):
            yield PlacedRun("trial", trial.search, trial.trial, fold, trial.parameters, entry)
    chosen = {selection.search: selection.parameters or {} for selection in record.selections}
    for count, entry in enumerate(record.reproductions):
        place, position = divmod(count, len(study.folds))
        search, number = divmod(place, record.announced.budget.reproductions)
        parameters = chosen.get(search, {})
        yield PlacedRun("reproduction", search, number, study.folds[position], parameters, entry)


def check_runs(store: Store, record: StudyRecord) -> Iterator[str]:
    """Yield what is wrong with the runs that a study names."""
    study = AnnouncedStudy(record.announced)
    reproductions = [place for place in placed_runs(record) if place.stage == "reproduction"]
    for entry, place in zip(record.reproductions, reproductions, strict=True):
        said = (entry.search, entry.reproduction, entry.fold)
        if said != (place.search, place.number, place.fold):
            yield f"{place} is missing in the ledger"
    for place in placed_runs(record):
        key = place.entry.key
        if place.stage == "reproduction" and not (store.run(key) / WEIGHTS).exists():
            yield f"run {key[:12]} ({place}): {WEIGHTS} is missing"
        for problem in _check_place(store, study, place):
            yield f"run {key[:12]} ({place}): {problem}"


def _check_place(store: Store, study: AnnouncedStudy, place: PlacedRun) -> Iterator[str]:
    folder, entry = store.run(place.entry.key), place.entry
    problem = check_run(folder)
    result_file = folder / "result.json"
    if result_file.exists() and digest_file(result_file) != entry.result:
        problem = "result.json was altered" + (f"; {problem}" if problem else "")
    elif problem == HISTORY_DIFFERS:
        problem = None
        yield "history.jsonl was altered"
    if problem is not None:
        yield problem
        return
    result, run = RunResult.read(result_file), Run.read(folder / "config.json")
    fields = ("status", "validation", "best_epoch", "last_epoch", "training")
    if any(getattr(entry, field) != getattr(result, field) for field in fields):
        yield "the ledger does not say what its result says"
    found = run.to_json()
    own = study.run(place.stage, place.search, place.number, place.fold, place.parameters)
    wrong = [field for field, value in own.to_json().items() if found.get(field) != value]
    if not wrong and own.key != entry.key:
        yield f"the ledger names it {entry.key}, and its key is {own.key}"
    if wrong:
        yield f"this is not the run of {place}: config.json has another {wrong[0]}"
    history, protocol = read_history(folder), study.protocol
    due = [
        epoch
        for epoch in range(result.last_epoch + 1)
        if epoch % protocol.validate_every == 0 or epoch == protocol.epochs
    ]
    if [checkpoint.epoch for checkpoint in history] != due:
        yield "history.jsonl was altered: its epochs are not those of the protocol"
    best = max(history, key=lambda checkpoint: checkpoint.validation["map_at_r"], default=None)
    chosen = (result.best_epoch, result.validation)
    if best is not None and (best.epoch, best.validation) != chosen:
        yield "history.jsonl was altered: its best validation is not the result"


# --- models ---


def check_models(store: Store, records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each model folder of the store."""
    by_key = {record.key: record for record in records}
    for folder in sorted(path for path in (store.root / "models").glob("*") if path.is_dir()):
        yield Finding(f"models/{folder.name}", "; ".join(_model(folder, by_key)))


def _model(folder: Path, records: dict[str, StudyRecord]) -> Iterator[str]:
    try:
        card = ModelCard.read(folder / CARD)
    except BadRecord as error:
        yield str(error)
        return
    record = records.get(card.study or "")
    if record is None:
        yield f"{CARD} names a study that is not in the store"
        return
    yield from _card(card, record)
    try:
        FinishedRun.of_model(folder, read_model(folder / WEIGHTS))
    except (BadInput, OSError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        yield str(error)


def _card(card: ModelCard, record: StudyRecord) -> Iterator[str]:
    """Yield where the card of a model contradicts its study."""
    entry = next((entry for entry in record.reproductions if entry.key == card.run), None)
    if entry is None:
        yield f"{CARD} names a run that is no reproduction of its study"
        return
    if not record.complete:
        yield f"{CARD} names a study that has not ended"
        return
    scores = record.test_of(entry)
    tested: Mapping[Setting, Scores] = {
        "separated": scores.separated,
        "concatenated": scores.concatenated,
    }
    expected = replace(
        card,
        method=record.trained_method,
        search=entry.search,
        searches=record.searches,
        preregistration=record.preregistration,
        parameters=(record.selection.parameters if record.selection else None) or {},
        validation=entry.validation,
        test=tested,
    )
    wrong = differing_fields(card.to_json(), expected.to_json())
    if wrong:
        yield f"{CARD} does not say what its study says ({wrong[0]})"
