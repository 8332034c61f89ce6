"""What follows from the data, computed again: test vectors and scores with the stored weights,
announcements, packs, problems of the test half, validation scores, baselines.

Test vectors lie in the store, so the other checks take them on trust: whoever owns the store can
write others and make scores, ledgers and report agree. Here the test half is embedded again.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from assay.data.packs import content_of
from assay.engines import Engine
from assay.errors import BadInput, failed_here
from assay.npz import read_npy
from assay.progress import Progress, silent
from assay.records.halves import fingerprint_of_contents
from assay.records.ledger import receipt_of
from assay.records.run import CARD, WEIGHTS, ModelCard, Run, RunResult
from assay.records.store import Store
from assay.records.study import StudyRecord, readable_records
from assay.run import HalfLabels, TestEmbedding
from assay.study.conditions import Conditions
from assay.study.models import classes_of
from assay.verify.announced_again import TITLE as ANNOUNCED
from assay.verify.announced_again import check_announced
from assay.verify.baselines import TITLE as BASELINE
from assay.verify.baselines import check_baseline
from assay.verify.designs import Designs
from assay.verify.finding import Finding, guarded, of_error, words_of
from assay.verify.problems import TITLE as PROBLEMS
from assay.verify.problems import compare_problems
from assay.verify.rerun import ANOTHER_PROCESSOR, differences_of_environment
from assay.verify.runs import PlacedRun, check_trunk, models_of, placed_runs
from assay.verify.scores import TEST_SCORE, score_again
from assay.verify.validations import TITLE as VALIDATED
from assay.verify.validations import check_validations

COSINE = 1e-4
"""How far 1 - cosine of a test vector and the stored one may lie from 0 on another machine."""

TITLE = "test half embedded again"
PACKED = "trainval packed again"
TRUNK = "weights of the trunk"


def retest(
    store: Store,
    engine: Engine,
    designs: Designs,
    only: Collection[str] | None = None,
    progress: Progress = silent,
) -> Iterator[Finding]:
    """Embed the test half again with the stored weights; compare vectors, labels and scores.

    Nothing is taken from the user's cache: both halves are packed from the data, and trunks have
    the weights of their source where that can be had. The store itself is only read. Yield findings
    for each study whose test half was scored; where all runs are embedded, also on what they were
    trained on, and on what every study on these data announced. What fails for a study says nothing
    of the others.

    Args:
        store: whose studies.
        engine: where the tasks execute; opened for them and closed at the end.
        designs: of the studies.
        only: keys of the runs to embed with; None: all reproductions. Scores are compared where all
            runs of a reproduction are among them.
        progress: is called with the number of runs that are done.
    """
    with tempfile.TemporaryDirectory(prefix="assay-retest-") as folder, engine:
        for record in readable_records(store):
            on = store, record, engine, designs, Path(folder), only, progress
            yield from _to_the_error(f"{record.title}: computed again", _check_study(*on))


def _to_the_error(what: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings, and last the error that ended them, if any."""
    try:
        yield from findings
    except Exception as error:
        yield of_error(what, error)


def _check_study(
    store: Store,
    record: StudyRecord,
    engine: Engine,
    designs: Designs,
    folder: Path,
    only: Collection[str] | None,
    progress: Progress,
) -> Iterator[Finding]:
    """Yield the findings on one study. Each check is guarded, so that the next one is made."""
    title = record.title
    scored = record.tests and any(_chosen(only, entry.key) for entry in record.reproductions)
    if not (scored or only is None):
        return
    if not designs.has_data_of(record):
        if scored:
            name = designs.data or record.announced.data.name
            note = f"not computed again: {name} is not its data"
            yield Finding(f"{title}: {TITLE}", note=note, skipped=True, trusted=_trusted(record))
        return
    if only is None:
        yield guarded(f"{title}: {ANNOUNCED}", partial(_announced, designs, record))
    if not scored:
        return
    if record.announced.weights is not None:
        weights = guarded(f"{title}: {TRUNK}", partial(_weights, designs, record))
        yield weights
        if weights.unchecked:
            return
    conditions, same = designs.conditions(record), set[str]()
    on = store, record, conditions, engine
    embedded = partial(_retest_study, *on, folder, only, progress, same.add)
    yield guarded(f"{title}: {TITLE}", embedded)
    if only is not None:
        return
    as_first = same == {entry.key for entry in record.reproductions}
    packed = partial(_retrace, store, record, conditions, progress, as_first=as_first)
    yield guarded(f"{title}: {PACKED}", packed)
    yield from _to_the_error(f"{title}: cards of its models", _check_cards(*on[:3]))
    if conditions.test.fingerprint != (record.seal and record.seal.test):
        return
    problems = partial(compare_problems, record, conditions, as_first=as_first)
    yield guarded(f"{title}: {PROBLEMS}", problems)
    if record.announced.method.baseline:
        scratch = Store.create(folder / "baselines")
        again = partial(check_baseline, store, record, designs, engine, scratch, progress)
        yield guarded(f"{title}: {BASELINE}", again)
    else:
        validated = partial(check_validations, *on, progress, same=same)
        yield guarded(f"{title}: {VALIDATED}", validated)


def _trusted(record: StudyRecord) -> str:
    return f"that the stored test vectors and labels of {record.title} are its own"


def _announced(designs: Designs, record: StudyRecord) -> Finding:
    """Return whether a study announced what its method and its data give."""
    try:
        design, named = designs.announced(record)
    except BadInput as error:
        if failed_here(error):
            raise
        what = f"what {record.title} announced (it was not made again: {error})"
        return Finding(f"{record.title}: {ANNOUNCED}", note=str(error), trusted=what)
    return check_announced(record, design, named=named)


def _chosen(only: Collection[str] | None, key: str) -> bool:
    return only is None or key in only


def _weights(designs: Designs, record: StudyRecord) -> Finding:
    """Return whether the trunk started from the weights that the announcement names.

    Where these cannot be had here, nothing can be computed again, and nobody is accused.
    """
    weights = record.announced.weights
    assert weights is not None
    what = f"{record.title}: {TRUNK}"
    called = f"{weights.source} ({weights.digest[:12]})"
    try:
        provenance = designs.provenance_of_weights(record)
    except BadInput as error:
        if failed_here(error):
            raise
        note = f"could not be checked: {words_of(error)}"
        return Finding(what, note=note, unchecked=True, trusted=_trusted(record))
    if provenance == "contradicted":
        return Finding(
            what,
            f"the study began with weights that it calls {called}; that source has others. Its"
            " cache was altered, or the publisher replaced them",
        )
    if provenance == "on trust":
        return Finding(what, note=f"{called} taken from the cache by their hash, not from a source")
    return Finding(what)


def _retrace(
    store: Store,
    record: StudyRecord,
    conditions: Conditions,
    progress: Progress,
    *,
    as_first: bool,
) -> Finding:
    """Return whether the runs of a study worked on the samples of trainval as the data give them.

    `as_first` says whether this machine is seen to compute as those that computed the study.
    """
    content = content_of(conditions.place(conditions.trainval, progress))
    runs, what = list(placed_runs(record)), f"{record.title}: {PACKED}"
    views = [RunResult.read(store.run(one.entry.key) / "result.json").view for one in runs]
    other = [one for one, view in zip(runs, views, strict=True) if view != content]
    unlike = [_unlike(store, one, conditions, as_first=as_first) for one in other]
    altered = [one for one, reasons in zip(other, unlike, strict=True) if not reasons]
    if altered:
        return Finding(
            what,
            f"run {altered[0].entry.key[:12]} ({altered[0]}) worked on other samples or labels than"
            f" the data give ({len(altered)} of {len(runs)} runs): its cache was altered",
        )
    if not other:
        return Finding(what)
    count = f"{len(other)} of {len(runs)} runs"
    return Finding(
        what,
        note=f"{count} not compared: {'; '.join(unlike[0])}",
        trusted=f"that {count} of {record.title} worked on the samples and labels of the data",
    )


def _check_cards(store: Store, record: StudyRecord, conditions: Conditions) -> Iterator[Finding]:
    """Yield a finding for each model folder of a study whose card does not say what the data give:
    the classes that it was trained on, and the trunk.
    """
    for model, card in models_of(store, record):
        if problems := list(_check_card(record, card, conditions)):
            yield Finding(f"models/{model.name}", "; ".join(problems))


def _check_card(record: StudyRecord, card: ModelCard, conditions: Conditions) -> Iterator[str]:
    """Yield where the card of a study's model, or of a copy, does not say what the data give."""
    if card.classes != classes_of(conditions.trainval, card.fold, card.folds):
        yield f"{CARD} names other classes than the model was trained on"
    yield from check_trunk(record, card, conditions.trainval.origin)


def _unlike(store: Store, place: PlacedRun, conditions: Conditions, *, as_first: bool) -> list[str]:
    """Return reasons for which the pack of a run may be another one here, with nothing altered.

    Images depend on the decoder alone, features of a trunk on the machine too.
    """
    here = conditions.environment
    run = Run.read(store.run(place.entry.key) / "config.json")
    if conditions.resolved.frozen == "trunk":
        unlike = differences_of_environment(run, replace(run, environment=here))
        return unlike or ([] if as_first else [ANOTHER_PROCESSOR])
    return [] if run.environment.images == here.images else ["another decoder of images"]


def _retest_study(
    store: Store,
    record: StudyRecord,
    conditions: Conditions,
    engine: Engine,
    folder: Path,
    only: Collection[str] | None,
    progress: Progress,
    seen_same: Callable[[str], None],
) -> Finding:
    """Compare the test vectors and scores of a study with those computed again.

    `seen_same` is called with the key of each run whose vectors came out as the same bytes.
    """
    assert record.seal is not None
    what = f"{record.title}: {TITLE}"
    receipt = receipt_of(store.study(record.key) / "ledger.jsonl")
    half = conditions.test.open(receipt)
    labels = HalfLabels.of(half)
    contents = fingerprint_of_contents(half.contents())
    found = (half.fingerprint, labels.fingerprint, contents, len(half.class_names), len(half.y))
    seal = record.seal
    if found != (seal.test, record.seal.labels, seal.contents, seal.classes, seal.samples):
        return Finding(
            what,
            f"the test half of {conditions.data.name} is not the one that was scored (fingerprint"
            f" {half.fingerprint[:12]}, in the ledger {seal.test[:12]}): its samples or labels are"
            " others",
        )
    scratch = Store.create(folder / "store")
    test = conditions.unsealed(store.root, half, receipt, progress, str(scratch.root))
    keys = [entry.key for entry in record.reproductions if _chosen(only, entry.key)]
    gone = [key for key in keys if not (store.run(key) / WEIGHTS).exists()]
    if gone:
        return Finding(what, f"run {gone[0][:12]}: {WEIGHTS} is missing")
    waiting = [engine.submit(TestEmbedding(key, test)) for key in dict.fromkeys(keys)]
    for done, future in enumerate(as_completed(waiting), start=1):
        future.result()
        progress(f"{record.method}: {TITLE}", done, len(waiting))
    compared = [_compare_vectors(store, scratch, half.fingerprint, key) for key in keys]
    others = [key for key, (_, same) in zip(keys, compared, strict=True) if not same]
    for key in {*keys}.difference(others):
        seen_same(key)
    problems = [problem for problem, _ in compared if problem]
    for count, entry in enumerate(record.tests):
        if not problems and all(key in keys for key in entry.runs):
            again = score_again(scratch, record, entry, labels)
            problems += [f"reproduction {count}: {again}"] if again else []
    if problems:
        return Finding(what, problems[0])
    note = f"{len(keys) - len(others)} of {len(keys)} runs the same bytes"
    if others:
        run = Run.read(store.run(others[0]) / "config.json")
        unlike = differences_of_environment(run, replace(run, environment=conditions.environment))
        why = "; ".join(unlike) or ANOTHER_PROCESSOR
        note += (
            f", {len(others)} other bytes within the tolerance (1 - cosine at most {COSINE}, scores"
            f" within {100 * TEST_SCORE:.1f} points, those by k-means not compared): {why}"
        )
    return Finding(what, note=note)


def _compare_vectors(store: Store, scratch: Store, test: str, key: str) -> tuple[str, bool]:
    """Return the problem with a run's stored test vectors, and whether they are the same bytes."""
    where, again = (
        f"run {key[:12]}: test/{test[:12]}... ",
        read_npy(scratch.test_vectors(key, test)),
    )
    try:
        stored = read_npy(store.test_vectors(key, test))
    except ValueError as error:
        if failed_here(error):
            raise
        return f"{where}cannot be read: {error}", False
    if stored.shape != again.shape or stored.dtype != again.dtype:
        return f"{where}has other vectors than its weights give ({stored.shape})", False
    if stored.tobytes() == again.tobytes():
        return "", True
    differ = (stored != again).any(axis=1)
    one, other = stored[differ].astype(np.float64), again[differ].astype(np.float64)
    lengths = np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        turned = 1 - (one * other).sum(axis=1) / (lengths[0] * lengths[1])
        longer = np.abs(lengths[0] / lengths[1] - 1)
    off = float(np.nan_to_num(np.maximum(turned, longer), nan=np.inf).max(initial=0))
    if off <= COSINE:
        return "", False
    return f"{where}are not the vectors that its weights give (off by {off:.2g})", False
