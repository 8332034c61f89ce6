"""Baselines of a store, computed again from what defines them: a trunk before training, and a PCA.

Nothing of a baseline is trained, so this takes no longer than to embed trainval. Otherwise a weak
baseline could be made up: weights that find nothing, with the vectors and scores that they give.
"""

from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import replace

from assay.engines import Engine
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.progress import Progress
from assay.records.run import WEIGHTS, Run, RunResult
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run import HalfLabels, TestEmbedding
from assay.study.conditions import Conditions
from assay.study.design import method_of
from assay.verify.designs import Designs
from assay.verify.finding import Finding
from assay.verify.rerun import (
    ANOTHER_PROCESSOR,
    SAME_WEIGHTS,
    TOLERANCE,
    Repetition,
    differences_of_environment,
    open_half,
    repetition_of,
)
from assay.verify.runs import placed_runs
from assay.verify.scores import TEST_SCORE, agree, score_again

TITLE = "baseline computed again"


def check_baseline(
    store: Store,
    record: StudyRecord,
    designs: Designs,
    engine: Engine,
    scratch: Store,
    progress: Progress,
) -> Finding:
    """Return whether the runs of a baseline are those that its definition gives.

    They are the same bytes, or their scores are the recorded ones within the tolerance for another
    machine. Where versions are others, another definition may have given others.

    Args:
        store: with the runs; it is only read.
        record: of the baseline.
        designs: of the studies.
        engine: where the runs are computed.
        scratch: the store that they are placed in.
        progress: is called with the number of runs that are done.
    """
    what = f"{record.title}: {TITLE}"
    try:
        method_of(record)
    except BadInput as error:  # it is in a file that was not imported here
        trusted = f"that the runs of {record.title} are those of its definition"
        return Finding(what, note=str(error), trusted=trusted)
    again = [repetition_of(record, one, designs, scratch, progress) for one in placed_runs(record)]
    waiting = [engine.submit(one.task) for one in again]
    for done, future in enumerate(as_completed(waiting), start=1):
        future.result()
        progress(f"{record.method}: {TITLE}", done, len(waiting))
    others = [one for one in again if not _same_bytes(store, scratch, one)]
    note = f"{len(again) - len(others)} of {len(again)} runs the same bytes"
    if not others:
        return Finding(what, note=note)
    unlike = _unlike(store, others[0])
    problem = _validated_otherwise(store, scratch, others) or _scored_otherwise(
        store, scratch, record, again, designs.conditions(record), engine, progress
    )
    if problem and unlike:
        trusted = f"that another version of Assay gives {record.title} its scores"
        return Finding(what, note=f"{problem}; {unlike}", trusted=trusted)
    why = f"scores within {100 * TEST_SCORE:.1f} points: {unlike or ANOTHER_PROCESSOR}"
    return Finding(what, problem, "" if problem else f"{note}, {len(others)} other bytes, {why}")


def _same_bytes(store: Store, scratch: Store, one: Repetition) -> bool:
    there, here = store.run(one.place.entry.key), scratch.run(one.run.key)
    names = (WEIGHTS, "result.json")
    return all(digest_file(there / name) == digest_file(here / name) for name in names)


def _unlike(store: Store, one: Repetition) -> str:
    """Return how the versions that computed a run differ from those here; empty if they do not."""
    stored = Run.read(store.run(one.place.entry.key) / "config.json")
    return "; ".join(differences_of_environment(stored, one.run))


def _validated_otherwise(store: Store, scratch: Store, others: Sequence[Repetition]) -> str:
    """Return which run has another validation score than its definition gives; empty if none."""
    for one in others:
        stored = RunResult.read(store.run(one.place.entry.key) / "result.json")
        computed = RunResult.read(scratch.run(one.run.key) / "result.json")
        tolerance = SAME_WEIGHTS if computed.weights == stored.weights else TOLERANCE
        there, here = stored.validation["map_at_r"], computed.validation["map_at_r"]
        if not agree(here, there, tolerance):
            return (
                f"run {one.place.entry.key[:12]} ({one.place}): validation MAP@R is recorded as"
                f" {there}, the trunk before training gives {here}"
            )
    return ""


def _scored_otherwise(
    store: Store,
    scratch: Store,
    record: StudyRecord,
    again: Sequence[Repetition],
    conditions: Conditions,
    engine: Engine,
    progress: Progress,
) -> str:
    """Return which test score is another than the definition gives; empty if none is."""
    half, test = open_half(store, record, conditions, scratch, progress)
    labels = HalfLabels.of(half)
    here = {one.place.entry.key: one.run.key for one in again}
    for count, entry in enumerate(record.tests):
        keys = tuple(here[key] for key in entry.runs)
        for future in [engine.submit(TestEmbedding(key, test)) for key in keys]:
            future.result()
        if differs := score_again(scratch, record, replace(entry, runs=keys), labels):
            return f"reproduction {count}, computed again: {differs}"
    return ""
