"""Model folders: the winner of a study handed over, and a single model trained for its own sake."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.data.splits import TrainVal, folds
from assay.errors import BadInput
from assay.files import DRAFT, read_bytes
from assay.hashing import shortened
from assay.methods import read_parameters
from assay.methods.parameters import outside_search
from assay.model import write_model_folder
from assay.progress import Progress, Say, say_nothing, silent
from assay.records.codec import BadRecord
from assay.records.lines import Preregistration, Reproduction, Scores
from assay.records.run import (
    LOOKS_FILE,
    MODEL_FILES,
    REMAKE,
    TEST_CONTENTS,
    TRAINED_ON,
    WEIGHTS,
    ModelCard,
    Run,
    read_card,
)
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run import single_model, train_alone
from assay.run.finished import FinishedRun
from assay.study.design import Design
from assay.study.trunk_of_features import with_trunk_of_features
from assay.study.tryout import try_parameters
from assay.train import SAVE_AFTER, OnEpoch, ResumeFile, ignore_epoch

REWRITE = "run the same command again: it writes the model from its run"
"""The remedy for a model folder of a study that is missing or damaged."""


def hand_over(design: Design, record: StudyRecord, store: Store, say: Say) -> None:
    """Write the model folder of a finished study, unless it exists or the run's weights are gone.

    The model is that of `best_run`. The content hashes of the test half go with it, so that a look
    at the half is noticed wherever the folder is taken. `say` is called with what was found of the
    trunk of features, and with a card of an existing folder that cannot be read.
    """
    folder = store.model(name_of_model(record))
    chosen = best_run(record)
    if folder.exists():
        _say_if_damaged(folder, say)
        return
    if not (store.run(chosen.key) / WEIGHTS).exists():
        return
    run = FinishedRun.at(store.run(chosen.key))
    trainval = design.conditions.trainval
    card = card_of(record, chosen, run.run, classes_of(trainval, run.run.fold, run.folds))
    model = single_model(run.model(trainval.inputs), design.dim)
    card, model = with_trunk_of_features(design, card, model, say)
    contents = read_bytes(store.contents(record.test_of(chosen).test))
    write_model_folder(folder, model, card.to_json(), {TEST_CONTENTS: contents})


def _say_if_damaged(folder: Path, say: Say) -> None:
    """Report a card that cannot be read; the folder stays as it is, since it may be evidence."""
    try:
        read_card(folder)
    except BadRecord as error:
        say(f"{str(error).replace(REMAKE, '')}; remove this folder and {REWRITE}")


def train_one(
    design: Design,
    settings: Sequence[str],
    out: Path,
    *,
    fold: int = 0,
    seed: int = 0,
    replace_model: bool = False,
    say: Say = say_nothing,
    progress: Progress = silent,
    on_epoch: OnEpoch = ignore_epoch,
    save_after: float = SAVE_AFTER,
) -> ModelCard:
    """Train one model on all folds of trainval but one, write it to `out`, and return its card.

    The fold that is left out chooses the checkpoint. If it is killed, the same command continues. A
    model folder that is there is replaced only where `replace_model` says so. `say` is called with
    what was found of the trunk of features, and where a parameter is outside its search space.
    """
    check_out(out, replace_model)
    conditions = design.conditions
    if design.method.baseline:
        raise BadInput(
            f"{design.method.name} is not trained; `assay embed` takes a pretrained trunk by its"
            " name"
        )
    if not 0 <= fold < conditions.resolved.folds:
        raise BadInput(
            f"--fold {fold}: the protocol has folds 0 to {conditions.resolved.folds - 1}"
        )
    parameters = read_parameters(design.method, design.protocol, settings)
    if settings:
        try_parameters(design, parameters)
        for text in outside_search(design.method, design.protocol, parameters):
            say(text)
    run = design.study.run("trial", 0, seed, fold, parameters)
    view = conditions.place(conditions.trainval, progress)
    with resuming(out, run.key, save_after) as resume_file:
        model, fit = train_alone(run, view, conditions.trainval.inputs, on_epoch, resume_file)
    classes = classes_of(conditions.trainval, run.fold, run.protocol.folds)
    card = _card(design.preregistration, run, fit.best.validation, classes)
    card = replace(card, status=fit.status, epoch=fit.best.epoch)
    card, model = with_trunk_of_features(design, card, model, say)
    write_model_folder(out, model, card.to_json(), replace=replace_model)
    return card


@contextmanager
def resuming(out: Path, key: str, after: float) -> Iterator[ResumeFile]:
    """Yield the file `OUT.partial` from which the training with this key resumes after a kill.

    The file is removed when the training has ended.
    """
    path = out.with_name(f"{out.name}.partial")
    yield ResumeFile(path, key, after=after)
    with suppress(OSError):
        path.unlink()


def check_out(out: Path, replace_model: bool) -> None:
    """Raise `BadInput` where no model folder could be made in the end; call it before slow work.

    Only a model folder is replaced, and none with looks at a test half: the record would be lost.
    """
    if out.exists() and not replace_model:
        raise BadInput(f"{out} is there already; give another --out, or replace it with --force")
    held = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if LOOKS_FILE in held:
        raise BadInput(
            f"{out} holds {LOOKS_FILE}, a record of looks, which would be lost; give another --out"
        )
    strange = held - {*MODEL_FILES, TRAINED_ON}
    if strange or (out.exists() and not out.is_dir()):
        other = f"holds {min(strange)}" if strange else "is no folder"
        raise BadInput(f"{out} {other}, and --force replaces only a model; give another --out")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        tempfile.TemporaryDirectory(dir=above, prefix=DRAFT).cleanup()
    except OSError:
        raise BadInput(f"--out {out}: nothing can be made in {above}; give another --out") from None


def name_of_model(record: StudyRecord) -> str:
    """Return the name of the folder of a study's model."""
    words = f"{record.announced.data.name}-{record.method}-{record.key[:8]}"
    return shortened(re.sub(r"[^A-Za-z0-9_]+", "-", words).strip("-"))


def card_of(
    record: StudyRecord, chosen: Reproduction, run: Run, classes: tuple[str, ...]
) -> ModelCard:
    """Return the card of the model of a study's run, which was trained on these classes."""
    tested = record.test_of(chosen)
    return replace(
        _card(record.announced, run, chosen.validation, classes),
        study=record.key,
        preregistration=record.preregistration,
        search=chosen.search,
        searches=record.searches,
        reproduction=chosen.reproduction,
        run=chosen.key,
        test={"separated": tested.separated, "concatenated": tested.concatenated},
    )


def _card(
    announced: Preregistration, run: Run, validation: Scores, classes: tuple[str, ...]
) -> ModelCard:
    """Return what a model is and where it comes from."""
    weights = announced.weights
    return ModelCard(
        data=announced.data.name,
        trainval=run.trainval,
        classes=classes,
        fold=run.fold,
        folds=run.protocol.folds,
        protocol=announced.protocol.name,
        method=run.method,
        parameters=run.parameters,
        seed=run.seed,
        pretrained_on=weights.pretrained_on if weights else None,
        weights=run.protocol.weights,
        validation=validation,
        environment=run.environment,
    )


def classes_of(trainval: TrainVal, fold: int | None, count: int) -> tuple[str, ...]:
    """Return the names of the classes that a run is trained on: all but those of its fold, or none
    where it stands for all folds.
    """
    if fold is None:
        return ()
    rows = folds(trainval, count)[fold].train
    return tuple(trainval.class_names[label] for label in np.unique(trainval.y[rows]).tolist())


def best_run(record: StudyRecord) -> Reproduction:
    """Return the run with the highest validation MAP@R of the best reproduction of the best search.

    Search and reproduction are the best by validation too; among equals the first is taken. The
    test score of this run is not what the study estimates, which is a mean over searches.
    """
    chosen = record.selection
    assert chosen is not None, "a model is handed over when all is reproduced"
    by_number: dict[int, list[Reproduction]] = {}
    for entry in record.reproductions:
        if entry.search == chosen.search:
            by_number.setdefault(entry.reproduction, []).append(entry)
    best = max(by_number.values(), key=lambda entries: sum(map(_validated, entries)) / len(entries))
    return max(best, key=_validated)


def _validated(entry: Reproduction) -> float:
    return entry.validation["map_at_r"]
