"""Untrained baselines, and how one run can stand for the runs of all folds.

A baseline is the trunk before training: its features as they are (`as_is`), or reduced by a PCA
that is fitted on trainval. Where the trunk starts from random weights, each fold has a run with
its own seed and `dim` components, as a trained method has. Where the trunk is pretrained, or there
is no head to fit, nothing depends on fold or seed, and one run stands for all folds:

- its fold is None, and it is validated on every fold (`folds_of_run`): its scores are the means;
- its PCA has `folds * dim` components, as many as the models of all folds have together
  (`components_of`). Its vectors are scored whole where the vectors of all folds are concatenated;
- components are nested, so the first `dim` of them are the vector of a single model
  (`single_vectors`, `single_model`).
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from assay.data.packs import View
from assay.data.splits import Fold, folds_of_labels
from assay.devices import seed_torch
from assay.embedding import normalise_for, outputs
from assay.hashing import derive
from assay.metrics import evaluate
from assay.model import Architecture, Model, untrained_model
from assay.protocols import Similarity
from assay.records.run import Checkpoint, Run
from assay.train import Fit, mean_scores, with_counts

SQUARE = 4096
"""Up to this many features the matrix of their covariances is small, also where samples are few."""


def folds_of_run(run: Run, view: View) -> list[Fold]:
    """Return the fold of a run; all folds if the run stands for all."""
    folds = folds_of_labels(view.y, run.protocol.folds)
    return folds if run.fold is None else [folds[run.fold]]


def components_of(run: Run) -> int:
    """Return how many principal components a baseline has, if there are as many features."""
    return run.protocol.dim * (run.protocol.folds if run.fold is None else 1)


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


def fit_pca(features_NF: Tensor, width: int) -> nn.Linear:
    """Return a linear layer that projects onto the `width` directions of largest variance.

    Features are centred first. Signs are fixed (the largest entry of a direction is positive), so
    that the same features give the same layer. Memory and time are those of the smaller of N and F:
    features that are many and more than the samples are not multiplied with one another. Shapes: N
    samples, F features, W directions.
    """
    exact_NF = features_NF.double()
    mean_F = exact_NF.mean(0)
    if len(mean_F) <= max(len(exact_NF), SQUARE):
        directions_FF = torch.linalg.eigh(
            torch.cov(exact_NF.T, correction=0).reshape(len(mean_F), -1)
        ).eigenvectors
        chosen_WF = directions_FF.flip(1)[:, :width].T
    else:
        exact_NF -= mean_F
        weights_NN = torch.linalg.eigh(exact_NF @ exact_NF.T).eigenvectors
        chosen_FW = exact_NF.T @ weights_NN.flip(1)[:, :width]
        chosen_WF = torch.linalg.qr(chosen_FW).Q.T  # of length 1, also where there is no variance
    largest_W1 = chosen_WF.gather(1, chosen_WF.abs().argmax(1, keepdim=True))
    chosen_WF = chosen_WF * largest_W1.sign()
    layer = nn.Linear(len(mean_F), len(chosen_WF))
    with torch.no_grad():
        layer.weight.copy_(chosen_WF)
        layer.bias.copy_(-(chosen_WF @ mean_F))
    return layer


def compute_baseline(run: Run, view: View) -> Fit:
    """Return the trunk before training with its PCA, validated; epoch 0 is its only checkpoint."""
    protocol, device = run.protocol, torch.device(run.environment.device)
    seed_torch(derive(run.seed, "model"))
    wanted = components_of(run)
    model = untrained_model(Architecture.under(protocol, view.inputs, wanted), protocol.weights).to(
        device
    )
    features = model.norm(outputs(model.trunk, view.x, model.architecture.size, device))
    width = min(wanted, features.shape[1], len(features) - 1)
    if width:
        model.head = fit_pca(features, width)
    z = single_vectors(model.head(features), protocol.dim, protocol.similarity).detach()
    scores = [
        with_counts(evaluate(z[rows], view.y[rows], similarity=protocol.similarity))
        for rows in (fold.validation for fold in folds_of_run(run, view))
    ]
    checkpoint = Checkpoint(0, None, mean_scores(scores))
    architecture = replace(model.architecture, dim=width)
    return Fit(architecture, [checkpoint], checkpoint, model.state())
