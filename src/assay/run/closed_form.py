"""Heads in closed form, and how one run of a baseline can stand for the runs of all folds.

A head in closed form is fitted to the features of a trunk that is not trained, on the samples that
its run trains on. A baseline is the trunk before training: its features as they are (`as_is`), or
reduced by a PCA that is fitted on trainval. Where the trunk starts from random weights, each fold
has a run with its own seed and `dim` components, as a trained method has. Where the trunk is
pretrained, or there is no head to fit, nothing depends on fold or seed, and one run stands for all
folds:

- its fold is None, and it is validated on every fold (`folds_of_run`): its scores are the means;
- its PCA has `folds * dim` components, as many as the models of all folds have together
  (`components_of`). Its vectors are scored whole where the vectors of all folds are concatenated;
- components are nested, so the first `dim` of them are the vector of a single model
  (`single_vectors`, `single_model`).
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.dataset import Rows
from assay.data.packs import View
from assay.data.splits import Fold, folds_of_labels
from assay.devices import seed_torch
from assay.embedding import normalise_for, outputs
from assay.hashing import derive
from assay.heads import HeadShape
from assay.methods import fitter_of, methods
from assay.metrics import evaluate
from assay.model import Architecture, Model, untrained_model
from assay.protocols import Similarity
from assay.records.lines import RunStatus, Scores
from assay.records.run import Checkpoint, ImageCounts, Run
from assay.train import NOTHING_FOUND, Fit, mean_scores, with_counts


def folds_of_run(run: Run, view: View) -> list[Fold]:
    """Return the fold of a run; all folds if the run stands for all."""
    folds = folds_of_labels(view.y, run.protocol.folds, view.relations)
    return folds if run.fold is None else [folds[run.fold]]


def components_of(run: Run) -> int:
    """Return the width of a run's head, if there are as many features: a baseline that stands for
    all folds has that of their models side by side.
    """
    stands_for_all = run.fold is None and methods[run.method].baseline
    return run.protocol.dim * (run.protocol.folds if stands_for_all else 1)


def single_vectors(z: Tensor, dim: int, similarity: Similarity = "cosine") -> Tensor:
    """Return the vectors of a single model as they are compared: `dim` numbers, or all if 0.

    Only the vectors of a run that stands for all folds are wider than that.
    """
    return normalise_for(z[:, : dim or None], similarity)


def single_model(model: Model, dim: int) -> Model:
    """Return the model whose vectors are those of a single model, see `single_vectors`."""
    if dim == 0 or model.architecture.dim <= dim:
        return model
    head = nn.Linear(model.trunk.features, dim)
    with torch.no_grad():
        head.weight.copy_(model.head.get_parameter("weight")[:dim])
        head.bias.copy_(model.head.get_parameter("bias")[:dim])
    model.head, model.architecture = head, replace(model.architecture, dim=dim)
    return model


def fit_closed_form(run: Run, view: View) -> Fit:
    """Return the trunk before training with a head in closed form, validated; epoch 0 is its only
    checkpoint.

    A baseline is fitted on all of trainval, any other head on the samples that its run trains on.
    """
    folds, similarity = folds_of_run(run, view), run.protocol.similarity
    baseline = methods[run.method].baseline
    model, features = fit_head(run, view, np.arange(len(view.y)) if baseline else folds[0].train)
    with torch.no_grad():
        z = single_vectors(model.head(features), run.protocol.dim, similarity)
    finite = bool(torch.isfinite(z).all())
    parts = [fold.validation for fold in folds]
    scores = (
        mean_scores(
            [with_counts(evaluate(z[part], view.y[part], similarity=similarity)) for part in parts]
        )
        if finite
        else NOTHING_FOUND
    )
    found = fitted(model, scores, "finished" if finite else "diverged")
    validated = sum(map(len, parts))
    found.images = ImageCounts(refreshed=len(view.y) - validated, validated=validated)
    return found


def fitted(model: Model, scores: Scores, status: RunStatus = "finished") -> Fit:
    """Return a model that was not trained by steps as the result of a training."""
    checkpoint = Checkpoint(0, None, scores)
    return Fit(model.architecture, [checkpoint], checkpoint, model.state(), status)


def fit_head(run: Run, view: View, train: Rows) -> tuple[Model, Tensor]:
    """Return the model of a run with a head that is fitted on these rows, and the features of all
    samples.
    """
    protocol, device, method = run.protocol, torch.device(run.environment.device), run.method
    seed_torch(derive(run.seed, "model"))
    model = untrained_model(Architecture.under(protocol, view.inputs), protocol.weights).to(device)
    features = model.norm(outputs(model.trunk, view.x, model.architecture.size, device))
    fit = fitter_of(methods[method], run.parameters)
    if fit is not None:
        y = torch.from_numpy(np.asarray(view.y[train]))
        with torch.no_grad():
            layer = fit(features[train], y, components_of(run))
        shape = HeadShape((layer.out_features,), bias=layer.bias is not None)
        model.head, model.architecture = layer, model.architecture.with_head(shape)
    return model, features
