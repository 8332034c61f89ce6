"""Checks of the test half: when the seal was opened, the scores of the stored vectors, the peek."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.arrays import read_arrays
from assay.devices import torch_threads
from assay.errors import failed_here
from assay.hashing import digest_file
from assay.metrics.metric import choose_metrics
from assay.npz import read_npy
from assay.records.ledger import Line, completing_line
from assay.records.lines import (
    PeekedRun,
    Reproduction,
    ReproductionScores,
    Seal,
    TestScores,
)
from assay.records.store import Store
from assay.records.study import StudyRecord, classes_file
from assay.run import HalfLabels, score_reproduction
from assay.run.testing import read_answers
from assay.study.announced import AnnouncedStudy

ORDER = ("preregistration", "trial", "selection", "reproduction", "seal", "test")
SAID = {"test": "a test score", "look": "a look at test", "peek": "a peek at test"}


TEST_SCORE = 1e-3
"""How far a test score may lie from the recorded one on another machine: 0.1 points."""


def check_order(lines: Sequence[Line]) -> Iterator[str]:
    """Yield where the kinds of lines are not in the order of the steps of a study."""
    kinds = [line.kind for line in lines]
    steps = [line for line in lines if line.kind in ORDER]
    for before, line in pairwise(steps):
        if ORDER.index(line.kind) < ORDER.index(before.kind):
            yield (
                f"ledger.jsonl: line {line.number + 1} ({line.kind}) comes after a {before.kind},"
                " where no study has it"
            )
            break
    for kind in ("preregistration", "peek"):
        if kinds.count(kind) > 1:
            yield f"ledger.jsonl has {kinds.count(kind)} lines of the kind {kind}"
    if kinds[0] != "preregistration":
        yield "ledger.jsonl does not begin with a preregistration"


def check_seal(lines: Sequence[Line]) -> Iterator[str]:
    """Yield where the seal was opened before the study was complete, or test scores precede it."""
    complete = completing_line(list(lines))
    opened = [line.number for line in lines if line.kind == "seal"]
    if opened and (complete is None or opened[0] < complete.number):
        yield "the seal was opened before selection and reproductions were complete"
    elif complete and any(
        isinstance(entry := lines[number].entry("ledger.jsonl"), Seal)
        and entry.receipt != complete.hash
        for number in opened
    ):
        yield "the seal was opened with the receipt of something else"
    if len(opened) > 1:
        yield f"the seal was opened {len(opened)} times"
    early = [
        line for line in lines if line.kind in SAID and (not opened or line.number < opened[0])
    ]
    if early:
        yield (
            f"{SAID[early[0].kind]} precedes the opening of the seal (ledger.jsonl, line"
            f" {early[0].number + 1})"
        )


def check_scores(store: Store, record: StudyRecord) -> Iterator[str]:
    """Yield test scores that the stored vectors and the labels of the test half do not give."""
    if record.seal is None or not record.tests:
        return
    labels = store.answers(record.seal.test)
    name = labels.relative_to(store.root).as_posix()
    if not labels.exists():
        yield f"{name}: the labels of the test half are missing"
        return
    answers = read_answers(labels)
    if answers is None or answers.fingerprint != record.seal.labels:
        yield f"{name}: the labels of the test half were altered"
        return
    each, cores = record.announced.budget.reproductions, os.cpu_count() or 1
    places = [divmod(count, each) for count in range(len(record.tests))]
    workers = min(cores, len(places))

    def problems(place: tuple[int, int], test: TestScores) -> list[str]:
        return list(_scores_of(store, record, place, test, answers))

    # torch computes outside of Python's lock, with one number of threads for the whole process
    with torch_threads(max(1, cores // workers)), ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(problems, places, record.tests))
    for (search, number), own in zip(places, found, strict=True):
        where = f"search {search}, " if search else ""
        yield from (f"{where}reproduction {number}: {problem}" for problem in own)


def _scores_of(
    store: Store,
    record: StudyRecord,
    place: tuple[int, int],
    test: TestScores,
    answers: HalfLabels,
) -> Iterator[str]:
    assert record.seal is not None
    half = record.seal.test
    keys = [
        entry.key for entry in record.reproductions if (entry.search, entry.reproduction) == place
    ]
    said = test.search, test.reproduction, test.test, list(test.runs), len(test.vectors)
    if said != (*place, half, keys, len(keys)):
        yield "its test scores are those of other runs"
        return
    paths = {key: store.test_vectors(key, half) for key in keys}
    missing = [key for key, path in paths.items() if not path.exists()]
    if missing:
        yield f"run {missing[0][:12]}: test/{paths[missing[0]].name} is missing"
        return
    hashes = dict(zip(keys, test.vectors, strict=True))
    altered = [key for key, path in paths.items() if digest_file(path) != hashes[key]]
    if altered:
        yield (
            f"run {altered[0][:12]}: its test vectors, test/{paths[altered[0]].name}, were altered"
        )
        return
    protocol = AnnouncedStudy(record.announced).run_protocol
    try:
        vectors = [read_npy(path) for path in paths.values()]
    except ValueError as error:
        if failed_here(error):
            raise
        yield f"its test vectors are no array: {error}"
        return
    if any(one.ndim != 2 or len(one) != len(answers.y) for one in vectors):
        yield "its test vectors are not those of the samples of the test half"
        return
    again, by_class = score_reproduction(
        vectors, answers, protocol.dim, protocol.metrics, protocol.similarity
    )
    recorded = test.to_json()
    wrong = [
        name
        for name, value in again.to_json().items()
        if not (agree(value, recorded[name]) and agree(recorded[name], value))
    ]
    if wrong:
        yield f"its test scores ({wrong[0]}) are not what its vectors give"
    yield from _classes(classes_file(store.study(record.key), *place), test.classes, by_class)


def _classes(path: Path, hashed: str, expected: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the scores of single classes are not the recorded file, or not of the vectors."""
    name = f"{path.parent.name}/{path.name}"
    if not path.exists():
        yield f"{name} is missing"
    elif digest_file(path) != hashed:
        yield f"{name} was altered"
    else:
        found = read_arrays(path, name, list(expected))
        if not all(
            np.allclose(found[array], values, rtol=0, atol=1e-9)
            for array, values in expected.items()
        ):
            yield f"{name} is not what its vectors give"


def check_peek(store: Store, record: StudyRecord) -> Iterator[str]:
    """Yield where a peek is not at this study's checkpoints or contradicts its test scores."""
    if record.peek is None:
        return
    if record.seal is None or record.peek.test != record.seal.test:
        yield "the peek is at another test half than the study's"
    entries, own = record.peek.epochs, record.reproductions
    if [entry.run for entry in entries] != [entry.key for entry in own]:
        yield "the peek is not at the runs of the reproductions"
        return
    for said, entry in zip(entries, own, strict=True):
        for problem in _checkpoints_of(store, record, said, entry):
            yield f"the peek at run {said.run[:12]}: {problem}"
    tried = [
        (trial.search, trial.trial, trial.map_at_r, len(trial.runs)) for trial in record.trials
    ]
    peeked = record.peek.trials
    if [
        (trial.search, trial.trial, trial.validation, len(trial.test)) for trial in peeked
    ] != tried:
        yield "the peek does not say of the trials what the study says of them"


def _checkpoints_of(
    store: Store, record: StudyRecord, peeked: PeekedRun, entry: Reproduction
) -> Iterator[str]:
    """Yield where a peek at a run is not at its own checkpoints, or contradicts the test scores."""
    place = (entry.search, entry.reproduction, entry.fold, entry.best_epoch)
    if (peeked.search, peeked.reproduction, peeked.fold, peeked.chosen) != place:
        yield f"it has epoch {peeked.chosen} as the chosen one, the run has {entry.best_epoch}"
    kept = store.checkpoints(peeked.run)
    if kept and set(kept) != set(peeked.test):
        yield "its scores are not those of the checkpoints that are kept"
    for epoch, path in kept.items():
        if digest_file(path) != peeked.weights.get(epoch):
            yield f"checkpoints/{path.name} was altered"
    folds = record.test_of(entry).folds if record.complete else ()
    position = entry.fold or 0
    if position < len(folds) and not agree(
        peeked.test.get(peeked.chosen, "none"), folds[position]["map_at_r"]
    ):
        yield "its score of the chosen epoch is not the test score of the run"


def agree(again: Any, said: Any, tolerance: float = 1e-9) -> bool:
    """Return whether scores that were computed again equal all of the recorded ones.

    >>> agree({"nmi": 0.5, "folds": ["inf"]}, {"nmi": 0.5, "folds": ["inf"]})
    True
    >>> agree({"nmi": 0.5}, {"nmi": 0.6})
    False
    """
    if isinstance(said, Mapping):
        return isinstance(again, Mapping) and all(
            name in again and agree(again[name], said[name], tolerance) for name in said
        )
    if isinstance(said, list):
        return (
            isinstance(again, list)
            and len(again) == len(said)
            and all(map(partial(agree, tolerance=tolerance), again, said))
        )
    if isinstance(said, str) or isinstance(again, str):
        return bool(again == said)
    return bool(abs(again - said) <= tolerance)


def score_again(
    scratch: Store, record: StudyRecord, entry: TestScores, labels: HalfLabels
) -> str | None:
    """Return how recorded test scores differ from those of the vectors computed again."""
    protocol = AnnouncedStudy(record.announced).run_protocol
    vectors = [read_npy(scratch.test_vectors(key, entry.test)) for key in entry.runs]
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
