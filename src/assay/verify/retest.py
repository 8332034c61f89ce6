"""Test vectors and scores of a store, computed again from its weights and the data.

Test vectors lie in the store, so the other checks take them on trust: whoever owns the store can
write others and make scores, ledgers and report agree. Here the test half is embedded again.
"""

import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.engines import Engine, TaskFailed
from assay.errors import BadInput
from assay.files import regular
from assay.methods import import_parts
from assay.metrics.metric import choose_metrics
from assay.progress import Progress, silent
from assay.records.keys import Environment
from assay.records.ledger import SealError, receipt_of
from assay.records.lines import ReproductionScores, TestScores
from assay.records.run import Run
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run import HalfLabels, TestEmbedding, Unsealed, score_reproduction
from assay.study.announced import AnnouncedStudy
from assay.study.conditions import Conditions
from assay.verify.finding import Finding
from assay.verify.rerun import (
    Designs,
    differences_of_environment,
    other_data,
    readable_records,
)
from assay.verify.scores import agree

COSINE = 1e-4
"""How far 1 - cosine of a test vector and the stored one may lie from 0 on another machine."""

TEST_SCORE = 1e-3
"""How far a test score may lie from the recorded one on another machine: 0.1 points."""

TITLE = "test half embedded again"

FILE_ERRORS = (BadInput, SealError, TaskFailed, OSError, ValueError, AttributeError)
"""Errors from files of the store that are missing or no such files at all."""


def retest(
    store: Store,
    engine: Engine,
    data: str | None = None,
    imports: Sequence[str] = (),
    only: Collection[str] | None = None,
    progress: Progress = silent,
) -> Iterator[Finding]:
    """Embed the test half again with the stored weights; compare vectors, labels and scores.

    Nothing is taken from the cache: the test half is packed from the data. The store itself is only
    read. Yield a finding for each study whose test half was scored.

    Args:
        store: whose studies.
        engine: where the tasks execute; opened for them and closed at the end.
        data: where the data lie, if not where their name says.
        imports: the user's own files.
        only: keys of the runs to embed with; None: all reproductions. Scores are compared where all
            runs of a reproduction are among them.
        progress: is called with the number of runs that are done.
    """
    import_parts(imports)
    designs = Designs(data, imports)
    scored = [
        record
        for record in readable_records(store)
        if record.tests and any(_chosen(only, entry.key) for entry in record.reproductions)
    ]
    ours = [record for record in scored if designs.has_data_of(record)]
    if scored and not ours:
        raise BadInput(other_data(data or scored[0].announced.data.name, scored[0]))
    for record in scored:
        if record not in ours:
            note = f"not computed again: {data or record.announced.data.name} is not its data"
            yield Finding(f"{record.title}: {TITLE}", note=note, skipped=True)
    with tempfile.TemporaryDirectory(prefix="assay-retest-") as folder, engine:
        for record in ours:
            conditions = designs.conditions(record)
            try:
                yield _retest_study(store, record, conditions, engine, Path(folder), only, progress)
            except FILE_ERRORS as error:
                yield Finding(f"{record.title}: {TITLE}", str(error))


def _chosen(only: Collection[str] | None, key: str) -> bool:
    return only is None or key in only


def _retest_study(
    store: Store,
    record: StudyRecord,
    conditions: Conditions,
    engine: Engine,
    folder: Path,
    only: Collection[str] | None,
    progress: Progress,
) -> Finding:
    """Compare the test vectors and scores of a study with those computed again."""
    assert record.seal is not None
    what = f"{record.title}: {TITLE}"
    receipt = receipt_of(store.study(record.key) / "ledger.jsonl")
    half = conditions.test.open(receipt)
    labels = HalfLabels.of(half)
    found = (half.fingerprint, labels.fingerprint, len(half.class_names), len(half.y))
    seal = record.seal
    if found != (seal.test, seal.labels, seal.classes, seal.samples):
        return Finding(
            what,
            f"the test half of {conditions.data.name} is not the one that was scored (fingerprint"
            f" {half.fingerprint[:12]}, in the ledger {seal.test[:12]}): its samples or labels are"
            " others",
        )
    scratch = Store.create(folder / "store")
    test = Unsealed(
        store=str(store.root),
        view=str(conditions.place(half, progress, folder)),
        fingerprint=half.fingerprint,
        receipt=receipt,
        trainval=conditions.trainval.fingerprint,
        threads=record.resolved.threads,
        device=conditions.device,
        imports=conditions.imports,
        into=str(scratch.root),
    )
    keys = [entry.key for entry in record.reproductions if _chosen(only, entry.key)]
    waiting = [engine.submit(TestEmbedding(key, test)) for key in dict.fromkeys(keys)]
    for done, future in enumerate(as_completed(waiting), start=1):
        future.result()
        progress(f"{record.method}: {TITLE}", done, len(waiting))
    here = conditions.environment
    compared = [_compare_vectors(store, scratch, half.fingerprint, key, here) for key in keys]
    problems = [problem for problem, _ in compared if problem]
    for count, entry in enumerate(record.tests):
        if not problems and all(key in keys for key in entry.runs):
            again = _score_again(scratch, record, entry, labels)
            problems += [f"reproduction {count}: {again}"] if again else []
    if problems:
        return Finding(what, problems[0])
    exact = sum(same for _, same in compared)
    rest = f", {len(keys) - exact} within tolerance" if exact < len(keys) else ""
    return Finding(what, note=f"{exact} of {len(keys)} runs the same bytes{rest}")


def _compare_vectors(
    store: Store, scratch: Store, test: str, key: str, here: Environment
) -> tuple[str, bool]:
    """Return the problem with a run's stored test vectors, and whether they are the same bytes."""
    stored, again = (
        np.load(regular(place.test_vectors(key, test)), allow_pickle=False)
        for place in (store, scratch)
    )
    where = f"run {key[:12]}: test/{test[:12]}... "
    if stored.shape != again.shape or stored.dtype != again.dtype:
        return f"{where}has other vectors than its weights give ({stored.shape})", False
    if stored.tobytes() == again.tobytes():
        return "", True
    run = Run.read(store.run(key) / "config.json")
    unlike = differences_of_environment(store.run(key), run, replace(run, environment=here))
    differ = (stored != again).any(axis=1)
    one, other = stored[differ].astype(np.float64), again[differ].astype(np.float64)
    lengths = np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        turned = 1 - (one * other).sum(axis=1) / (lengths[0] * lengths[1])
        longer = np.abs(lengths[0] / lengths[1] - 1)
    off = float(np.nan_to_num(np.maximum(turned, longer), nan=np.inf).max(initial=0))
    if off <= COSINE and unlike:
        return "", False
    why = "" if unlike else ", on the same machine and with the same versions"
    return f"{where}are not the vectors that its weights give (off by {off:.2g}{why})", False


def _score_again(
    scratch: Store, record: StudyRecord, entry: TestScores, labels: HalfLabels
) -> str | None:
    """Return how recorded test scores differ from those of the vectors computed again."""
    protocol = AnnouncedStudy(record.announced).run_protocol
    vectors = [np.load(scratch.test_vectors(key, entry.test)) for key in entry.runs]
    again, _ = score_reproduction(
        vectors, labels, protocol.dim, protocol.metrics, protocol.similarity
    )
    by_clusters = {
        one.label
        for one in choose_metrics(protocol.metrics)
        if one.metric.source == "clusters"  # k-means may end elsewhere after the last digit
    }
    recorded, computed = (_by_setting(scores) for scores in (entry, again))
    if recorded.keys() != computed.keys():
        return "it has the scores of another number of folds"
    for setting, scores in recorded.items():
        for name, value in scores.items():
            found = computed[setting].get(name, "none")
            if name not in by_clusters and not agree(found, value, TEST_SCORE):
                return f"{setting} {name} is recorded as {value}, the weights give {found}"
    return None


def _by_setting(scores: ReproductionScores) -> dict[str, dict[str, float | str]]:
    """Return the scores of a reproduction as JSON has them, NaN as a word."""
    written = scores.to_json()
    folds = {f"fold {number}": fold for number, fold in enumerate(written["folds"])}
    return {name: written[name] for name in ("concatenated", "separated")} | folds
