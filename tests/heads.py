"""Heads on vectors: samples to train on, the runs of a trial, and the training of one model."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from assay.data.packs import View, write_vectors
from assay.data.splits import folds_of_labels
from assay.methods import BuiltMethod, defaults, methods
from assay.model import Model
from assay.protocols import Batch, Optimiser, Protocol, ResolvedProtocol, resolve
from assay.records.keys import Environment
from assay.records.run import Run
from assay.train import Fit, OneNetwork, OnEpoch, ResumeFile, Trainee, fit, ignore_epoch
from assay.trunks import trunk_facts

PROTOCOL = resolve(
    Protocol(
        "test.v1",
        dim=6,
        batch=Batch((6, 4), (12, 2)),
        optimiser=Optimiser(lr=1e-3),
        iterations=4,
        epochs=2,
        validate_every=1,
        patience=100,
    ),
    "features",
    trunk_facts,
)
CPU = torch.device("cpu")
HERE = Environment("cpu", 1, torch.__version__, "source")


def vectors(classes: int = 16, per_class: int = 6, dim: int = 10) -> View:
    """Classes that differ in three directions."""
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), per_class)
    x = draw.normal(size=(len(y), dim))
    x[:, :3] = 1.5 * draw.normal(size=(classes, 3))[y] + 0.5 * x[:, :3]
    return View(x.astype(np.float32), y)


VIEW = vectors()


def runs_of(
    name: str, protocol: ResolvedProtocol = PROTOCOL, view: View = VIEW, seed: int = 100
) -> list[Run]:
    """The folds of a trial of the method at its defaults."""
    method = methods[name]
    fewest = min(
        len(np.unique(view.y[fold.train])) for fold in folds_of_labels(view.y, protocol.folds)
    )
    batch = protocol.batch_for(method.batch, fewest)
    parameters = defaults(method, protocol)
    return [
        Run(protocol, "view", name, "source", parameters, batch, fold, seed + fold, HERE)
        for fold in range(protocol.folds)
    ]


def fit_one(
    model: Model,
    parts: BuiltMethod,
    train: View,
    validation: View,
    protocol: ResolvedProtocol,
    batch: tuple[int, int],
    seed: int,
    on_epoch: OnEpoch = ignore_epoch,
    resume_file: ResumeFile | None = None,
) -> Fit:
    """Train one model on all of a view, with autograd."""
    rows = np.arange(len(train.y))
    one = Trainee(model, parts, train, rows, validation, seed, on_epoch)
    [found] = fit([one], OneNetwork(protocol, batch, CPU), resume_file)
    return found


def place(folder: Path, view: View) -> None:
    """Put the view where a task reads it."""
    write_vectors(
        folder,
        SimpleNamespace(
            y=view.y,
            query=None,
            gallery=None,
            relations=view.relations,
            fingerprint="made",
            is_test=False,
            reader="made",
        ),
        view.x,
    )
