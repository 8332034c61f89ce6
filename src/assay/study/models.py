"""Model folders: the winner of a study handed over, and a single model trained for its own sake."""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.data.splits import folds
from assay.errors import BadInput
from assay.files import DRAFT
from assay.methods import read_parameters
from assay.model import write_model_folder
from assay.progress import Progress, silent
from assay.records.lines import Reproduction, Scores
from assay.records.run import CARD, WEIGHTS, ModelCard, Run
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run import single_model, train_alone
from assay.run.finished import FinishedRun
from assay.study.design import Design
from assay.train import OnEpoch, ignore_epoch


def hand_over(design: Design, record: StudyRecord, store: Store) -> None:
    """Write the model folder of a finished study, unless it exists or the weights were removed.

    The model is that of `_best`.
    """
    words = f"{record.announced.data.name}-{record.method}-{record.key[:8]}"
    folder = store.model(re.sub(r"[^A-Za-z0-9_]+", "-", words).strip("-"))
    chosen = _best(record)
    if (folder / CARD).exists() or not (store.run(chosen.key) / WEIGHTS).exists():
        return
    run = FinishedRun.at(store.run(chosen.key))
    tested = record.test_of(chosen)
    card = replace(
        _card(design, run.run, chosen.validation),
        study=record.key,
        preregistration=record.preregistration,
        search=chosen.search,
        searches=record.searches,
        reproduction=chosen.reproduction,
        run=chosen.key,
        test={"separated": tested.separated, "concatenated": tested.concatenated},
    )
    model = single_model(run.model(design.conditions.trainval.inputs), design.dim)
    write_model_folder(folder, model, card.to_json())


def train_one(
    design: Design,
    settings: Sequence[str],
    out: Path,
    *,
    fold: int = 0,
    seed: int = 0,
    progress: Progress = silent,
    on_epoch: OnEpoch = ignore_epoch,
) -> ModelCard:
    """Train one model on all folds of trainval but one, write it to `out`, and return its card.

    The fold that is left out chooses the checkpoint.
    """
    conditions = design.conditions
    if design.method.loss is None:
        raise BadInput(
            f"{design.method.name} is not trained; `assay embed` takes a pretrained trunk by its"
            " name"
        )
    _check_out(out)
    if not 0 <= fold < conditions.resolved.folds:
        raise BadInput(
            f"--fold {fold}: the protocol has folds 0 to {conditions.resolved.folds - 1}"
        )
    parameters = read_parameters(design.method, design.protocol, settings)
    run = design.study.run("trial", 0, seed, fold, parameters)
    view = conditions.place(conditions.trainval, progress)
    model, fit = train_alone(run, view, conditions.trainval.inputs, on_epoch)
    card = replace(_card(design, run, fit.best.validation), status=fit.status, epoch=fit.best.epoch)
    write_model_folder(out, model, card.to_json())
    return card


def _check_out(out: Path) -> None:
    """Raise `BadInput` where no model folder could be made in the end."""
    if out.exists():
        raise BadInput(f"{out} is there already; give another --out, or remove it")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        tempfile.TemporaryDirectory(dir=above, prefix=DRAFT).cleanup()
    except OSError:
        raise BadInput(f"--out {out}: nothing can be made in {above}; give another --out") from None


def _card(design: Design, run: Run, validation: Scores) -> ModelCard:
    """Return what a model is and where it comes from.

    It was trained on all classes but those of its fold; a run that stands for all folds on none.
    """
    weights, announced = design.conditions.weights, design.preregistration
    trainval, classes = design.conditions.trainval, []
    if run.fold is not None:
        rows = folds(trainval, design.protocol.folds)[run.fold].train
        classes = [trainval.class_names[label] for label in np.unique(trainval.y[rows]).tolist()]
    return ModelCard(
        data=announced.data.name,
        trainval=run.trainval,
        classes=tuple(classes),
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


def _best(record: StudyRecord) -> Reproduction:
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
