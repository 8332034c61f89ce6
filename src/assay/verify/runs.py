"""Checks of runs and models: each run that a ledger names is there, is the run of its place and is
intact; each model that a study handed over is that of its best run as a whole, trunk included, and
its card is the one that the study gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from assay.data.origin import MADE_BY, FeaturesOrigin
from assay.errors import BadInput, failed_here
from assay.files import names_in
from assay.hashing import digest_file
from assay.model import read_model_folder
from assay.protocols import ResolvedProtocol
from assay.records.codec import LISTS, RESTORE, differing_fields
from assay.records.lines import RunEntry
from assay.records.run import (
    CARD,
    HISTORY_DIFFERS,
    MODEL_FILES,
    REMAKE,
    WEIGHTS,
    Checkpoint,
    ModelCard,
    Run,
    RunResult,
    check_run,
    read_card,
    read_history,
)
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run.finished import FinishedRun
from assay.space import Value
from assay.study.announced import AnnouncedStudy, Stage
from assay.study.models import REWRITE, best_run, card_of, name_of_model
from assay.study.trunk_of_features import name_trunk
from assay.train import is_out_of_patience
from assay.verify.budgets import BudgetCheck, inputs_of
from assay.verify.finding import Finding, guarded, outcome
from assay.verify.looks import check_contents_of_model


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
    inputs = inputs_of(store, record)
    reproductions = [place for place in placed_runs(record) if place.stage == "reproduction"]
    for entry, place in zip(record.reproductions, reproductions, strict=True):
        said = (entry.search, entry.reproduction, entry.fold)
        if said != (place.search, place.number, place.fold):
            yield f"{place} is missing in the ledger"
    for place in placed_runs(record):
        key = place.entry.key
        if place.stage == "reproduction" and not (store.run(key) / WEIGHTS).exists():
            yield f"run {key[:12]} ({place}): {WEIGHTS} is missing"
        for problem in _check_place(store, study, place, inputs):
            yield f"run {key[:12]} ({place}): {problem}"


def _check_place(
    store: Store, study: AnnouncedStudy, place: PlacedRun, inputs: int | None
) -> Iterator[str]:
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
    history = read_history(folder)
    unlike = list(_check_history(history, result, study))
    yield from unlike
    if history and not (wrong or unlike):
        check = BudgetCheck(folder, study.announced, run, result, history, inputs)
        yield from check.problems()


def _check_history(
    history: Sequence[Checkpoint], result: RunResult, study: AnnouncedStudy
) -> Iterator[str]:
    """Yield what is wrong with the validations of a run: when they were, and which was the best."""
    protocol = study.protocol
    # no further than the file goes: a forged number of epochs would fill the memory
    due = [*range(0, result.last_epoch + 1, protocol.validate_every)[: len(history) + 1]]
    if protocol.epochs <= result.last_epoch and protocol.epochs % protocol.validate_every:
        due.append(protocol.epochs)
    if result.last_epoch > protocol.epochs:
        yield f"result.json has epoch {result.last_epoch}, the protocol ends at {protocol.epochs}"
    if [checkpoint.epoch for checkpoint in history] != due:
        yield "history.jsonl was altered: its epochs are not those of the protocol"
    best = max(history, key=lambda checkpoint: checkpoint.validation["map_at_r"], default=None)
    chosen = (result.best_epoch, result.validation)
    if best is not None and (best.epoch, best.validation) != chosen:
        yield "history.jsonl was altered: its best validation is not the result"
    if history and study.announced.method.head == "linear":
        yield from check_end(history, protocol, diverged=result.status == "diverged")


def check_end(
    history: Sequence[Checkpoint], protocol: ResolvedProtocol, *, diverged: bool
) -> Iterator[str]:
    """Yield where training went on, or ended, other than epochs and patience of the protocol say.

    A training that diverged ends after any validation.
    """
    best, ended = history[0], False
    for number, checkpoint in enumerate(history):
        if ended:
            yield (
                f"history.jsonl goes on after epoch {history[number - 1].epoch}, where the patience"
                f" of {protocol.patience} epochs had run out"
            )
            return
        best = max(best, checkpoint, key=lambda one: one.validation["map_at_r"])
        ended = number > 0 and is_out_of_patience(checkpoint.epoch, best.epoch, protocol.patience)
    last = history[-1].epoch
    if not (ended or diverged or last >= protocol.epochs):
        yield (
            f"history.jsonl ends at epoch {last}, before the {protocol.epochs} epochs or the"
            f" patience of {protocol.patience} of the protocol had run out"
        )


# --- models ---


def check_models(store: Store, records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each model folder of the store, and for each that a study should have."""
    by_key = {record.key: record for record in records}
    by_name = {name_of_model(record): record for record in records}
    for folder in store.models():
        check = partial(_check_folder, folder, by_name, by_key)
        yield guarded(f"models/{folder.name}", check)
    for name, record in by_name.items():
        if record.complete and not store.model(name).exists():
            yield Finding(f"models/{name}", note=f"missing; {REWRITE}", incomplete=True)


def _check_folder(
    folder: Path, by_name: Mapping[str, StudyRecord], by_key: Mapping[str, StudyRecord]
) -> Finding:
    what = f"models/{folder.name}"
    named = None if folder.name in by_name else _study_named_on(_card_in(folder))
    if folder.name not in by_name and named not in by_key:
        return Finding(what, note="no model of a study here")
    record = by_name.get(folder.name) or by_key[named or ""]
    strange = sorted({*names_in(folder)}.difference(MODEL_FILES))
    notes = [
        f"holds files that no study wrote: {', '.join(strange)}" if strange else "",
        f"a copy of {name_of_model(record)}" if folder.name not in by_name else "",
    ]
    found = Finding(what, note="; ".join(filter(None, notes)))
    finding = outcome(partial(_model, folder, record, by_key), found)
    return _with_remedy(finding) if folder.name in by_name else finding


def _with_remedy(finding: Finding) -> Finding:
    """Return the finding on the model folder of a study; where something is wrong with it, with
    how the folder is written again in place of other remedies.
    """
    if not finding.problem:
        return finding
    problem = finding.problem.replace(RESTORE.removesuffix(LISTS), "").replace(REMAKE, "")
    return replace(finding, problem=f"{problem}; remove this folder and {REWRITE}")


def _study_named_on(card: ModelCard | None) -> str | None:
    """Return the study whose model a card says it is; None for a model that is not scored, as
    those of `assay train` are, and where there is no card that can be read.
    """
    return None if card is None or card.run is None else card.study


def _card_in(folder: Path) -> ModelCard | None:
    """Return the card in a model folder; None where it is missing or damaged."""
    try:
        return ModelCard.read(folder / CARD)
    except (BadInput, OSError) as error:
        if failed_here(error):
            raise
        return None


def models_of(store: Store, record: StudyRecord) -> Iterator[tuple[Path, ModelCard]]:
    """Yield folder and card of a study's model and of its copies, where the card can be read."""
    for folder in store.models():
        card = _card_in(folder)
        own = folder.name == name_of_model(record) or _study_named_on(card) == record.key
        if own and card is not None:
            yield folder, card


def _model(folder: Path, record: StudyRecord, records: Mapping[str, StudyRecord]) -> Iterator[str]:
    card, document = ModelCard.read(folder / CARD), read_card(folder)
    if card.study != record.key:
        other = records.get(card.study or "")
        yield (
            f"{CARD} names a study that is not in the store"
            if other is None
            else f"it is the model of another study: {name_of_model(other)}"
        )
        return
    if not record.complete:
        yield f"{CARD} names a study that has not ended"
        return
    chosen = best_run(record)
    if card.run != chosen.key:
        yield f"{CARD} names another run than the best of its study, {chosen.key[:12]}"
        return
    model, _ = read_model_folder(folder)
    run = FinishedRun.of_model(folder, model)
    assert run is not None, "the card names a run, and the folder is in a store"
    own_card = card_of(record, chosen, run.run, card.classes)
    expected = _with_trunk_of(card, own_card, record, model.architecture.trunk).to_json()
    wrong = differing_fields({name: document.get(name) for name in expected}, expected)
    if wrong or (card.fold is None and card.classes):
        yield f"{CARD} does not say what its study says ({(wrong or ['classes'])[0]})"
    own = {*expected, "format", "architecture", "sha256"}
    if added := sorted(document.keys() - own):
        yield f"{CARD} has entries that no study wrote: {', '.join(added)}"
    yield from check_contents_of_model(folder, record)


def _with_trunk_of(
    card: ModelCard, expected: ModelCard, record: StudyRecord, trunk: str
) -> ModelCard:
    """Return the expected card with what a card may say of the trunk that made features.

    The features name it, so that takes the data (`check_trunk`). `trunk` is that of the model; that
    it has the weights on the card was checked.
    """
    named = MADE_BY.fullmatch(card.features or "")
    if named is None or record.announced.data.modality != "features":
        return expected
    expected = replace(expected, features=card.features)
    if card.images is None or named["trunk"] != trunk:
        return expected
    return replace(
        expected,
        weights=named["weights"],
        pretrained_on=record.announced.data.pretrained_on,
        images=card.images,
    )


def check_trunk(
    record: StudyRecord, card: ModelCard, origin: FeaturesOrigin | None
) -> Iterator[str]:
    """Yield where the card of a study's model does not name the trunk that made the features as the
    data do.
    """
    seen, whole = record.announced.data.pretrained_on, card.images is not None
    if card != name_trunk(card, origin, seen, whole=whole):
        yield f"{CARD} names another trunk than the one that made the features"
