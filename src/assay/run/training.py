"""From runs to finished run folders: build the models, train them, place the results in a store."""

import math
import os
import platform
import socket
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from assay.data.dataset import Rows
from assay.data.packs import View, read_pack
from assay.data.splits import folds_of_labels
from assay.devices import PeakMemory, seed_torch, torch_threads
from assay.embedding import embed_samples
from assay.errors import DISK_FULL, remedy_of_full
from assay.files import sync_folder
from assay.hashing import derive, digest, pretty
from assay.methods import build_method, import_parts, methods
from assay.metrics.metric import choose_metrics
from assay.model import (
    Architecture,
    Model,
    pack_model,
    untrained_model,
    with_trunk,
)
from assay.records.run import CHECKPOINTS, WEIGHTS, Run, RunResult, Timing
from assay.records.store import Keep, Store
from assay.run.closed_form import (
    fit_closed_form,
    fit_head,
    fitted,
    folds_of_run,
    single_vectors,
)
from assay.run.results import history_of, result_of
from assay.run.shares import ShareFile
from assay.run.testing import HalfLabels
from assay.train import (
    SAVE_AFTER,
    CannotBeTraced,
    CheckpointFolder,
    Fit,
    HeadStack,
    OneNetwork,
    OnEpoch,
    ResumeFile,
    Stepper,
    Trainee,
    can_stack,
    fit,
    floats_of,
    ignore_epoch,
    mean_scores,
    stack_key,
    training_labels,
)
from assay.workers import Needs


@dataclass(frozen=True)
class Training:
    """The task of computing runs of one method; done when their folders stand in the store.

    Runs on vectors share a task and are computed as a stack; runs on images are a task each. Runs
    that are in the store already are left out, which does not change what the others give.

    Args:
        runs: to compute.
        store: root of the run store.
        view: folder of the view of trainval.
        imports: the user's own files.
        keep: which weights stay; a finished run that lacks some of them is computed again.
        save_after: seconds of training after which the state is saved, to resume from after a kill.
        channels: of the images; a frozen trunk, whose features the view has, is counted for them.
    """

    runs: tuple[Run, ...]
    store: str
    view: str
    imports: tuple[str, ...] = ()
    keep: Keep = "best"
    save_after: float = SAVE_AFTER
    channels: int = 3

    @property
    def needs(self) -> Needs:
        """Cores, GPUs and imports that the task needs."""
        environment = self.runs[0].environment
        return Needs(environment.threads, int(environment.device == "cuda"), self.imports)

    def __call__(self) -> None:
        """Compute the runs that are not in the store, and place them there."""
        store = Store(Path(self.store))
        missing = [run for run in self.runs if not store.has_run(run.key, self.keep)]
        if not missing:
            return
        import_parts(self.imports)
        started, clock = datetime.now(UTC), time.perf_counter()
        memory = PeakMemory(self.runs[0].environment.device)
        workspace = Workspace(store, self.keep, self.save_after, ShareFile(store, self.runs))
        view = read_pack(Path(self.view))
        with torch_threads(self.runs[0].environment.threads):
            fits = compute(missing, view, workspace)
        timing = Timing(
            seconds=(workspace.spent + time.perf_counter() - clock) / len(missing),
            started=started.isoformat(timespec="seconds"),
            host=socket.gethostname(),
            machine=platform.machine(),
            peak_memory=memory.bytes,
        )
        for run, found in zip(missing, fits, strict=True):
            result = result_of(run, found, view, self.channels)
            with _naming_the_run(store, run):
                _place(store, run, found, result, timing, self.keep)
        for run in self.runs:
            store.drop_partial(run.key)
            store.share(run.key).unlink(missing_ok=True)


class Workspace:
    """Files of unfinished runs in a store: their states, and the weights of their validations.

    Args:
        store: where the runs will be placed.
        keep: which weights stay.
        save_after: seconds of training after which the state is saved.
        share_file: tells how far the runs are.
    """

    def __init__(self, store: Store, keep: Keep, save_after: float, share_file: ShareFile) -> None:
        self._store, self._keep, self._save_after = store, keep, save_after
        self.share_file = share_file
        self._resume_files: list[ResumeFile] = []

    @property
    def spent(self) -> float:
        """Seconds that resumed runs had been trained before."""
        return sum(file.spent for file in self._resume_files)

    def checkpoints(
        self, runs: Sequence[Run], architecture: Architecture
    ) -> list[CheckpointFolder]:
        """Return a folder of each run for the weights of its validations; none if not kept."""
        if self._keep != "all":
            return []
        folders = [self._store.partial(run.key) / CHECKPOINTS for run in runs]
        return [CheckpointFolder(folder, architecture) for folder in folders]

    def resume_file(
        self, runs: Sequence[Run], checkpoints: Sequence[CheckpointFolder]
    ) -> ResumeFile:
        """Return the file for the state of runs that are trained together.

        It lies with the last of them, which is placed last.
        """
        path = self._store.partial(runs[-1].key) / "state.safetensors"
        key = digest([[run.key for run in runs], self._keep])
        self._resume_files.append(ResumeFile(path, key, checkpoints, self._save_after))
        return self._resume_files[-1]


# --- Computing ---


def compute(runs: Sequence[Run], view: View, workspace: Workspace | None = None) -> list[Fit]:
    """Compute runs of one method; return their results in order.

    Heads on vectors are trained as a stack where that is possible. With a workspace, a training
    that was killed resumes.
    """
    if methods[runs[0].method].loss is None:
        fits = [_fit_closed_form(run, view, workspace) for run in runs]
    else:
        fits = _train(runs, view, workspace)
    for run, found in zip(runs, fits, strict=True):
        if run.protocol.training_metrics:
            found.training = _training_scores(run, view, found)
    return fits


def train_alone(
    run: Run,
    view: Path,
    inputs: int,
    on_epoch: OnEpoch = ignore_epoch,
    resume_file: ResumeFile | None = None,
) -> tuple[Model, Fit]:
    """Compute one run without a store; return its best model and the course of its training.

    `inputs` are the channels of the images, or the width of the vectors, that the model takes.
    """
    pack = read_pack(view)
    if methods[run.method].loss is None:
        return _with_trunk(run, fit_closed_form(run, pack), inputs)
    trainee = replace(make_trainee(run, pack), on_epoch=on_epoch)
    return _train_one(run, trainee, inputs, resume_file)


def train_on_all(
    run: Run,
    view: View,
    epochs: int,
    inputs: int,
    on_epoch: OnEpoch = ignore_epoch,
    resume_file: ResumeFile | None = None,
) -> tuple[Model, Fit]:
    """Train the model of a run on all samples of a view for so many epochs, without validation.

    A head in closed form is fitted on all of them.
    """
    rows = np.arange(len(view.y))
    if methods[run.method].loss is None:
        return _with_trunk(run, fitted(fit_head(run, view, rows)[0], {}), inputs)
    trainee = _trainee(run, view, rows, view.rows(rows[:0]))
    trainee = replace(trainee, on_epoch=on_epoch, epochs=epochs)
    return _train_one(run, trainee, inputs, resume_file)


def _train_one(
    run: Run, trainee: Trainee, inputs: int, resume_file: ResumeFile | None
) -> tuple[Model, Fit]:
    device = torch.device(run.environment.device)
    [found] = fit([trainee], OneNetwork(run.protocol, run.batch, device), resume_file)
    return _with_trunk(run, found, inputs)


def _with_trunk(run: Run, found: Fit, inputs: int) -> tuple[Model, Fit]:
    """Return the model of a result with its trunk, and the result."""
    model = Model(found.architecture)
    model.load_state_dict(found.weights)
    return with_trunk(model, run.protocol, inputs), found


def make_trainee(run: Run, view: View, validated: dict[int | None, View] | None = None) -> Trainee:
    """Build the model, the loss and the miner of a run from its seed, and choose its samples.

    `validated` keeps the validation samples of each fold, which the runs of a stack share.
    """
    assert run.fold is not None
    fold = folds_of_labels(view.y, run.protocol.folds, view.relations)[run.fold]
    kept = {} if validated is None else validated
    if run.fold not in kept:
        kept[run.fold] = view.rows(fold.validation)
    return _trainee(run, view, fold.train, kept[run.fold])


def _trainee(run: Run, view: View, train: Rows, validation: View) -> Trainee:
    """Build the model, the loss and the miner of a run from its seed."""
    protocol = run.protocol
    seed_torch(derive(run.seed, "method"))
    classes = 1 + int(training_labels(view.y[train], protocol.supervision).max())
    method, shape = build_method(methods[run.method], run.parameters, protocol, classes)
    seed_torch(derive(run.seed, "model"))
    model = untrained_model(Architecture.under(protocol, view.inputs, shape), protocol.weights)
    method.loss.prepare(len(train), model.trunk.features)
    return Trainee(
        model, method, view, train, validation, run.seed, supervision=protocol.supervision
    )


def _train(runs: Sequence[Run], view: View, workspace: Workspace | None) -> list[Fit]:
    """Train the runs that can be stacked together, and the others one after the other."""
    fits = _train_stacked(runs, view, workspace)
    for number, run in enumerate(runs):
        if number not in fits:
            stepper = OneNetwork(run.protocol, run.batch, torch.device(run.environment.device))
            [fits[number]] = _fit([run], [make_trainee(run, view)], stepper, workspace)
    return [fits[number] for number in range(len(runs))]


def _train_stacked(runs: Sequence[Run], view: View, workspace: Workspace | None) -> dict[int, Fit]:
    """Train those of the runs that can be stacked; return their results by number.

    Some methods can be traced only if margins and the like are constants. Of these, runs that agree
    in them are stacked.
    """
    protocol, batch, device = runs[0].protocol, runs[0].batch, runs[0].environment.device
    if Architecture.under(protocol, view.inputs).trunk != "identity":
        return {}  # before any model is built
    validated: dict[int | None, View] = {}
    first = make_trainee(runs[0], view, validated)
    if not can_stack(first, torch.device(device)):
        return {}
    trainees = [first, *(make_trainee(run, view, validated) for run in runs[1:])]

    def train(numbers: Sequence[int], floats_differ: bool) -> dict[int, Fit]:
        stepper = HeadStack(trainees[numbers[0]], protocol, batch, floats_differ)
        own = [trainees[number] for number in numbers]
        found = _fit([runs[number] for number in numbers], own, stepper, workspace)
        return dict(zip(numbers, found, strict=True))

    fits: dict[int, Fit] = {}
    keys = [stack_key(one, protocol, batch) for one in trainees]
    floats = [tuple(floats_of(one.method).values()) for one in trainees]
    for numbers in _equal(range(len(runs)), keys):
        try:
            fits |= train(numbers, floats_differ=True)
        except CannotBeTraced:
            for same in _equal(numbers, floats):
                try:
                    fits |= train(same, floats_differ=False)
                except CannotBeTraced:
                    break  # neither can the others: they differ in numbers only
    return fits


def _equal(numbers: Iterable[int], values: Sequence[Hashable]) -> list[list[int]]:
    """Return the numbers in groups of equal values."""
    groups: dict[Hashable, list[int]] = {}
    for number in numbers:
        groups.setdefault(values[number], []).append(number)
    return list(groups.values())


def _fit(
    runs: Sequence[Run],
    trainees: Sequence[Trainee],
    stepper: Stepper,
    workspace: Workspace | None,
) -> list[Fit]:
    """Train models together, with their files in the workspace."""
    if workspace is None:
        return fit(trainees, stepper)
    folders = workspace.checkpoints(runs, trainees[0].model.architecture)
    if folders:
        pairs = zip(trainees, folders, strict=True)
        trainees = [replace(one, on_validation=folder.keep) for one, folder in pairs]
    share = workspace.share_file.of_next(len(runs))
    fits = fit(trainees, stepper, workspace.resume_file(runs, folders), share)
    workspace.share_file.ended(len(runs))
    return fits


def _fit_closed_form(run: Run, view: View, workspace: Workspace | None) -> Fit:
    found = fit_closed_form(run, view)
    for folder in workspace.checkpoints([run], found.architecture) if workspace else ():
        folder.keep(0, found.weights)
    return found


def _training_scores(run: Run, view: View, found: Fit) -> dict[str, float]:
    """Return what the protocol asks of the embeddings of the training samples, and count them.

    A run that stands for all folds has the means over them.
    """
    metrics, similarity = run.protocol.training_metrics, run.protocol.similarity
    labels = [chosen.label for chosen in choose_metrics(metrics)]
    device, model = torch.device(run.environment.device), Model(found.architecture)
    model.load_state_dict(found.weights)
    model.to(device)
    scores = []
    for fold in folds_of_run(run, view):
        samples = view.rows(fold.train)
        scored = found.images.scored + len(samples.y)
        found.images = replace(found.images, scored=scored)
        z = embed_samples(model, samples.x, model.architecture.size, device, similarity)
        z = single_vectors(z, run.protocol.dim, similarity)
        own = dict.fromkeys(labels, math.nan)
        if torch.isfinite(z).all():
            own = HalfLabels(samples.y).score(z, metrics, similarity)
        scores.append({label: own[label] for label in labels})
    return mean_scores(scores)


# --- Placing ---


def _place(
    store: Store, run: Run, found: Fit, result: RunResult, timing: Timing, keep: Keep
) -> None:
    """Put the run's folder into the store; if it is there, add the checkpoints that it lacks."""
    if not store.has_run(run.key):
        with store.new_run(run.key) as folder:
            _write(folder, run, found, result, timing)
            if keep == "all":
                (folder / CHECKPOINTS).mkdir()
                _move_checkpoints(store, run, found, folder / CHECKPOINTS)
    elif not store.has_run(run.key, keep):
        _check_same(store, run, result)
        with store.new_checkpoints(run.key) as folder:
            _move_checkpoints(store, run, found, folder)


def _write(folder: Path, run: Run, found: Fit, result: RunResult, timing: Timing) -> None:
    (folder / WEIGHTS).write_bytes(pack_model(found.architecture, found.weights))
    (folder / "history.jsonl").write_text(history_of(found), encoding="utf-8")
    documents = {"config": run, "result": result, "timing": timing}
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(pretty(document.to_json()), encoding="utf-8")


def _move_checkpoints(store: Store, run: Run, found: Fit, folder: Path) -> None:
    """Move the weights of every validation from the workspace into the run's folder."""
    for checkpoint in found.history:
        name = f"{checkpoint.epoch}.safetensors"
        os.replace(store.partial(run.key) / CHECKPOINTS / name, folder / name)
    sync_folder(folder)


def _check_same(store: Store, run: Run, result: RunResult) -> None:
    """Raise if a run that was computed again differs from the one in the store."""
    again, stored = result.to_json(), store.result(run.key).to_json()
    differing = [name for name, value in stored.items() if again.get(name) != value]
    if differing:
        raise RuntimeError(
            f"run {run.key} was computed again for its checkpoints and came out with another"
            f" {differing[0]}; this machine does not give the results of the one that computed it,"
            " so its checkpoints cannot be added; use --keep-weights best, or another --out"
        )


@contextmanager
def _naming_the_run(store: Store, run: Run) -> Iterator[None]:
    """Add to an error of the disk which run could not be placed."""
    try:
        yield
    except OSError as error:
        remedy = remedy_of_full(error) if error.errno in DISK_FULL else "fix the disk"
        raise OSError(
            error.errno,
            f"a run of {run.method} is computed but cannot be placed in {store.root}"
            f" ({error.strerror}); {remedy}, then run the same command again",
        ) from error
