"""A model for new classes: trained on all classes with the parameters that a study chose.

A study keeps classes apart to compare methods on them. Its product is a model for classes that
nobody has seen, so in the end every class may teach it: those of the test half too, for nothing is
chosen or scored any more. The test half leaves the seal for this by the receipt of the study, and
the model's card and `trained_on.sha256` record it. Such a model has no test score of its own, and
`assay evaluate` refuses to make one up.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.data import Dataset, splits
from assay.data.dataset import Half
from assay.data.joined import join_views
from assay.data.packs import read_pack
from assay.devices import choose_device, torch_threads
from assay.errors import BadInput
from assay.hashing import digest, digest_bytes
from assay.methods import import_parts
from assay.model import write_model_folder
from assay.progress import Progress, Say, say_nothing, silent
from assay.protocols.protocol import LISTED
from assay.records.halves import pack_contents
from assay.records.ledger import SealError, read, receipt_of
from assay.records.run import TRAINED_ON, FinalTraining, ModelCard, Run, ScoreInterval
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.run import Unsealed, train_on_all
from assay.stats import t_interval
from assay.study.announced import AnnouncedStudy
from assay.study.conditions import Conditions
from assay.study.design import Design, design_of
from assay.study.models import check_out, resuming
from assay.study.trunk_of_features import with_trunk_of_features
from assay.train import SAVE_AFTER, OnEpoch, ignore_epoch


@dataclass(frozen=True)
class Finished:
    """A finished study whose parameters a final training can use.

    Args:
        store: the store that it is in.
        record: the study.
        dataset: its data.
    """

    store: Store
    record: StudyRecord
    dataset: Dataset

    @property
    def announced_at(self) -> str:
        """When the study was announced."""
        return read(self.store.study(self.record.key) / "ledger.jsonl")[0].at

    @property
    def epochs(self) -> int:
        """Epochs of a final training: the median of the best epochs of the reproductions.

        Of an even number it is the greater of the two in the middle.
        """
        return statistics.median_high(self.best_epochs)

    @property
    def best_epochs(self) -> tuple[int, ...]:
        """Best epoch of each run that reproduced the chosen parameters, in order."""
        chosen = self.record.selection
        assert chosen is not None
        entries = self.record.reproductions
        return tuple(one.best_epoch for one in entries if one.search == chosen.search)


def finished_studies(store: Store, dataset: Dataset) -> list[Finished]:
    """Return the studies of trained methods on these data that have all their test scores.

    Controls and points of sweeps are left out. Raise `BadInput` where there are none, with what
    there is instead.
    """
    trained = [
        record
        for record in study_records(store)
        if not record.announced.method.baseline
        and record.announced.twin_of is None
        and record.announced.sweep is None
    ]
    ours = [record for record in trained if _has_data(record, dataset)]
    if not ours:
        there = sorted({record.announced.data.name for record in trained})
        raise BadInput(
            f"no study of {store.root} was on {dataset.name} as it is now"
            f" ({'there are studies on ' + ', '.join(there) if there else 'it has none'}); give the"
            " data of the bench with --data"
        )
    complete = [record for record in ours if record.complete]
    if not complete:
        raise BadInput(
            f"no study of {store.root} on {dataset.name} has come to its test scores"
            f" ({', '.join(record.method for record in ours)}); run `assay bench` to its end first:"
            " until then the test half stays sealed"
        )
    return [Finished(store, record, dataset) for record in complete]


def _has_data(record: StudyRecord, dataset: Dataset) -> bool:
    try:
        trainval, _ = splits.of(dataset, record.resolved)
    except BadInput:
        return False
    return trainval.fingerprint == record.announced.data.trainval


def newest_of(finished: Sequence[Finished], method: str) -> Finished:
    """Return the study of this method that was announced last."""
    found = [one for one in finished if one.record.method == method]
    if not found:
        names = sorted({one.record.method for one in finished})
        raise BadInput(
            f"--method {method}: the store has no finished study of it on these data; it has those"
            f" of {', '.join(names)}"
        )
    return max(found, key=lambda one: one.announced_at)


def train_final(
    finished: Finished,
    out: Path,
    *,
    device: str = "auto",
    imports: Sequence[str] = (),
    replace_model: bool = False,
    say: Say = say_nothing,
    progress: Progress = silent,
    on_epoch: OnEpoch = ignore_epoch,
    save_after: float = SAVE_AFTER,
) -> ModelCard:
    """Train a model on trainval and the test half, write it to `out`, and return its card.

    The parameters are those that validated best in the study, and it is trained for as many epochs
    as the median of the best epochs of their reproductions. If it is killed, the same command
    continues. A model folder that is there is replaced only where `replace_model` says so. `say` is
    called with what was found of the trunk of features.
    """
    check_out(out, replace_model)
    _check_supervision(finished)
    design, epochs = _design(finished, device, imports), finished.epochs
    if not epochs and design.method.loss is not None:
        raise BadInput(
            f"{finished.record.method}: most runs of the study were best before any training (epoch"
            f" 0), so there is nothing to train; see {finished.store.root}/report"
        )
    test = _unseal(finished, design, progress)
    conditions, half = design.conditions, test.half
    run = _run(finished, design)
    view = join_views(read_pack(conditions.place(conditions.trainval, progress)), test.task.read())
    key = digest([run.key, half.fingerprint, epochs])
    with resuming(out, key, save_after) as resume_file, torch_threads(conditions.resolved.threads):
        model, fit = train_on_all(
            run, view, epochs, conditions.trainval.inputs, on_epoch, resume_file
        )
    if fit.status == "diverged":
        raise RuntimeError(
            f"{run.method}: training on all classes diverged in epoch {fit.history[-1].epoch}, so"
            " there is no model; train with a fold held out instead (without --final)"
        )
    contents = pack_contents((*conditions.trainval.contents(), *half.contents()))
    card = _card(finished, run, (*conditions.trainval.class_names, *half.class_names), contents)
    card, model = with_trunk_of_features(design, card, model, say)
    others = {TRAINED_ON: contents}
    write_model_folder(out, model, card.to_json(), others, replace=replace_model)
    return card


def _check_supervision(finished: Finished) -> None:
    """Raise `BadInput` where the test half has nothing that such a training is told."""
    told = finished.record.resolved.supervision
    if told in LISTED:
        raise BadInput(
            f"{finished.record.method}: it was trained on listed {told}, and those of the test half"
            " are left out, so that half has nothing to train on; train with a fold held out"
            f" instead (assay train --data ... --method {finished.record.method} --set"
            f" supervision={told}, without --final)"
        )


@dataclass(frozen=True)
class _Opened:
    """The test half, and the same for a task: with the receipt of the study."""

    half: Half
    task: Unsealed


def _unseal(finished: Finished, design: Design, progress: Progress) -> _Opened:
    """Open the seal with the receipt of the study; raise `BadInput` where that is not possible."""
    record, conditions = finished.record, design.conditions
    try:
        receipt = receipt_of(finished.store.study(record.key) / "ledger.jsonl")
        half = conditions.test.open(receipt)
    except SealError as error:
        raise BadInput(f"{error}; run `assay bench` to its end first") from None
    assert record.seal is not None, "a complete study has opened its seal"
    if half.fingerprint != record.seal.test:
        raise BadInput(
            f"the test half of {finished.dataset.name} is not the one that the study was scored on:"
            " samples or labels were added, removed or altered; give the data of the bench"
        )
    return _Opened(half, conditions.unsealed(finished.store.root, half, receipt, progress))


def _design(finished: Finished, device: str, imports: Sequence[str]) -> Design:
    """Return the design of the study, as its announcement has it, on this machine."""
    import_parts(imports)
    declared = finished.record.resolved.declared
    conditions = Conditions.open(finished.dataset, declared, choose_device(device), imports)
    return design_of(finished.record, conditions)


def _run(finished: Finished, design: Design) -> Run:
    """Return the training as a run: the study's, with a seed of its own, on this machine."""
    chosen = finished.record.selection
    assert chosen is not None and chosen.parameters is not None
    announced = AnnouncedStudy(finished.record.announced)
    run = announced.run("final", chosen.search, 0, None, chosen.parameters)
    return replace(run, source=design.source, environment=design.conditions.environment)


def _card(finished: Finished, run: Run, classes: tuple[str, ...], contents: bytes) -> ModelCard:
    record = finished.record
    chosen, announced = record.selection, record.announced
    assert chosen is not None and record.seal is not None
    metrics = [name for name in record.tests[0].separated if name not in ("queries", "skipped")]
    scores = {name: _interval(record, name) for name in metrics}
    return ModelCard(
        data=announced.data.name,
        trainval=run.trainval,
        classes=classes,
        fold=None,
        folds=run.protocol.folds,
        protocol=announced.protocol.name,
        method=run.method,
        parameters=run.parameters,
        seed=run.seed,
        pretrained_on=announced.weights.pretrained_on if announced.weights else None,
        weights=run.protocol.weights,
        validation={},
        environment=run.environment,
        study=record.key,
        preregistration=record.preregistration,
        search=chosen.search,
        searches=record.searches,
        epoch=finished.epochs,
        final=FinalTraining(
            test=record.seal.test,
            samples=digest_bytes(contents),
            epochs=finished.epochs,
            best_epochs=finished.best_epochs,
            scores=scores,
            note=_note(announced.data.name, scores["map_at_r"], record.searches),
        ),
    )


def _interval(record: StudyRecord, metric: str) -> ScoreInterval:
    found = t_interval(record.units("separated", metric))
    return ScoreInterval(found.mean, found.low, found.high, found.n)


def _note(data: str, found: ScoreInterval, searches: int) -> str:
    """Return what the study's scores say of a model that has none of its own."""
    over = f"{found.n} {'searches' if searches > 1 else 'reproductions'}"
    ends = "no interval from one value"
    if found.low is not None and found.high is not None:
        ends = f"95% interval {100 * found.low:.1f} to {100 * found.high:.1f} over {over}"
    return (
        f"This model has no test score: it was trained on every class of {data}. Single models that"
        " the study trained in the same way on fewer classes have a test MAP@R of"
        f" {100 * found.mean:.1f} ({ends})."
    )
