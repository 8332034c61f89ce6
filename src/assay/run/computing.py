"""From a run to what its training gives: models, stacked where that can be, and the baseline."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay.data.dataset import Labels
from assay.data.packs import View, read_pack
from assay.data.splits import Fold, folds_of_labels
from assay.embedding import embed_samples, fit_pca, outputs
from assay.hashing import derive, digest
from assay.methods import assemble, methods
from assay.metrics import evaluate
from assay.metrics.metric import choose_metrics
from assay.model import Architecture, Model, begin, with_trunk
from assay.run.run import Run
from assay.run.scoring import HalfLabels, mean_scores, single_vectors
from assay.run.workspace import Workspace
from assay.train import Checkpoint, Fit, OnEpoch, fit, iterations_of, silent, summary
from assay.train.heads import Trainee, can_stack
from assay.train.stack import fit_stacked

Computed = tuple[Architecture, Fit]


def compute(runs: Sequence[Run], view: View, workspace: Workspace | None = None) -> list[Computed]:
    """Models and what came of their training, stacked where that can be; the workspace keeps what a kill
    must not cost.
    """
    if methods[runs[0].method].loss is None:
        computed = [_compute_baseline(run, view, workspace) for run in runs]
    else:
        fits = _compute_stacked(runs, view, workspace)
        architecture = Architecture.under(runs[0].protocol, view.inputs)
        computed = [
            (
                architecture,
                fits[number] if number in fits else _compute_alone(run, view, workspace=workspace),
            )
            for number, run in enumerate(runs)
        ]
    for run, (architecture, found) in zip(runs, computed, strict=True):
        if run.protocol.training_metrics:
            found.training = _training_scores(run, view, architecture, found.weights)
    return computed


def train_alone(
    run: Run, view: Path, inputs: int, told: OnEpoch | None = None
) -> tuple[Model, Fit]:
    """Compute a run by itself, without a store: its best model, for images of `inputs` channels or
    vectors; and how it went.
    """
    opened = read_pack(view)
    fitted = _compute_alone(run, opened, told or silent)
    model = Model(Architecture.under(run.protocol, opened.inputs))
    model.load_state_dict(fitted.weights)
    return with_trunk(model, run.protocol, inputs), fitted


def make_trainee(run: Run, view: View, validated: dict[int | None, View] | None = None) -> Trainee:
    """A run's model before training, its parts and its data, from the run's seed.

    `validated` keeps the samples of each fold that is validated, so that the runs of a stack share
    them.
    """
    assert run.fold is not None
    fold = folds_of_labels(view.y, run.protocol.folds)[run.fold]
    torch.manual_seed(derive(run.seed, "model"))
    model = begin(Architecture.under(run.protocol, view.inputs), run.protocol.weights)
    torch.manual_seed(derive(run.seed, "method"))
    parts = assemble(methods[run.method], run.parameters, run.protocol)
    parts.loss.setup(run.protocol.dim, len(np.unique(view.y[fold.train])))
    kept = {} if validated is None else validated
    if run.fold not in kept:
        kept[run.fold] = view.rows(fold.validation)
    return Trainee(model, parts, fold.train, kept[run.fold], run.seed)


def _compute_stacked(
    runs: Sequence[Run], view: View, workspace: Workspace | None
) -> dict[int, Fit]:
    """Those of the runs that can be trained as a stack, by their numbers: all where the method can
    be traced, else none.
    """
    if Architecture.under(runs[0].protocol, view.inputs).trunk != "identity":
        return {}
    validated: dict[int | None, View] = {}
    first = make_trainee(runs[0], view, validated)
    if not can_stack(first, torch.device(runs[0].environment.device)):
        return {}
    trainees = [first, *(make_trainee(run, view, validated) for run in runs[1:])]
    lengths = [
        iterations_of(run.protocol, len(one.train), run.batch)
        for run, one in zip(runs, trainees, strict=True)
    ]
    alike = [
        (one.shapes, steps, digest(one.switches))
        for one, steps in zip(trainees, lengths, strict=True)
    ]
    fits: dict[int, Fit] = {}
    for numbers in _equal(alike):
        found = _fit_some(runs, trainees, numbers, view, workspace, turnable=True)
        for same in (
            _equal([tuple(one.dials.values()) for one in trainees], numbers)
            if found is None
            else ()
        ):
            constant = _fit_some(runs, trainees, same, view, workspace, turnable=False)
            if constant is None:
                break
            fits |= constant
        fits |= found or {}
    return fits


def _fit_some(
    runs: Sequence[Run],
    trainees: Sequence[Trainee],
    numbers: Sequence[int],
    view: View,
    workspace: Workspace | None,
    turnable: bool,
) -> dict[int, Fit] | None:
    """Train some of the runs as a stack; None where the method cannot be traced."""
    own, protocol = [runs[number] for number in numbers], runs[0].protocol
    shelves = workspace.shelves(own, trainees[0].model.architecture) if workspace else []
    found = fit_stacked(
        [trainees[number] for number in numbers],
        view,
        protocol,
        runs[0].batch,
        [checkpoint_folder.keep for checkpoint_folder in shelves],
        workspace.savepoint(own, shelves) if workspace else None,
        turnable=turnable,
    )
    return None if found is None else dict(zip(numbers, found, strict=True))


def _equal(values: Sequence[Hashable], among: Sequence[int] | None = None) -> list[list[int]]:
    """The numbers, all or those among some, by equal values, in the order of their first ones."""
    groups: dict[Hashable, list[int]] = {}
    for number in range(len(values)) if among is None else among:
        groups.setdefault(values[number], []).append(number)
    return list(groups.values())


def _compute_alone(
    run: Run, view: View, told: OnEpoch = silent, workspace: Workspace | None = None
) -> Fit:
    own, device = make_trainee(run, view), torch.device(run.environment.device)
    shelves = workspace.shelves([run], own.model.architecture) if workspace else []
    return fit(
        model=own.model,
        parts=own.parts,
        train=view.rows(own.train),
        validation=own.validation,
        protocol=run.protocol,
        batch=run.batch,
        seed=run.seed,
        device=device,
        told=told,
        kept=shelves[0].keep if shelves else None,
        savepoint=workspace.savepoint([run], shelves) if workspace else None,
    )


def _compute_baseline(run: Run, view: View, workspace: Workspace | None) -> Computed:
    """The trunk before training, its features as they are or reduced by a PCA fitted on trainval.

    Where one run stands for all folds, the PCA has as many components as the models of all folds
    have dimensions.
    """
    device = torch.device(run.environment.device)
    protocol = run.protocol
    torch.manual_seed(derive(run.seed, "model"))
    wanted = protocol.dim * (protocol.folds if run.fold is None else 1)
    model = begin(Architecture.under(protocol, view.inputs, wanted), protocol.weights).to(device)
    features = model.norm(outputs(model.trunk, view.x, model.architecture.size, device))
    width = min(wanted, features.shape[1], len(features) - 1)
    if width:
        model.head = fit_pca(features, width)
    architecture = replace(model.architecture, dim=width)
    z = single_vectors(model.head(features), protocol.dim, protocol.similarity).detach()
    validated = [fold.validation for fold in _folds(run, view)]
    scores = mean_scores(
        [
            summary(evaluate(z[rows], view.y[rows], similarity=protocol.similarity))
            for rows in validated
        ]
    )
    checkpoint, weights = Checkpoint(0, None, scores), model.state()
    for checkpoint_folder in workspace.shelves([run], architecture) if workspace else ():
        checkpoint_folder.keep(0, weights)
    return architecture, Fit([checkpoint], checkpoint, weights)


def _folds(run: Run, view: View) -> list[Fold]:
    """The fold of the run; all of them where a deterministic baseline needs none."""
    folds = folds_of_labels(view.y, run.protocol.folds)
    return folds if run.fold is None else [folds[run.fold]]


def _training_scores(
    run: Run, view: View, architecture: Architecture, weights: dict[str, Tensor]
) -> dict[str, float]:
    """What the protocol asks of the embeddings of the training samples; a deterministic baseline
    has the mean over folds.
    """
    model = Model(architecture)
    model.load_state_dict(weights)
    model.to(torch.device(run.environment.device))
    return mean_scores(
        [_scores_of_rows(run, view, model, fold.train) for fold in _folds(run, view)]
    )


def _scores_of_rows(run: Run, view: View, model: Model, rows: Labels) -> dict[str, float]:
    metrics, similarity = run.protocol.training_metrics, run.protocol.similarity
    samples, device = view.rows(rows), torch.device(run.environment.device)
    z = embed_samples(model, samples.x, model.architecture.size, device, similarity)
    z = single_vectors(z, run.protocol.dim, similarity)
    labels = [chosen.label for chosen in choose_metrics(metrics)]
    found = (
        HalfLabels(samples.y).score(z, metrics, similarity)
        if torch.isfinite(z).all()
        else dict.fromkeys(labels, math.nan)
    )
    return {label: found[label] for label in labels}
