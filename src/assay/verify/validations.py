"""Validation scores of trained runs, computed again from their stored weights.

So weights that were exchanged are found without training, as long as the scores stayed.
"""

from collections.abc import Collection
from concurrent.futures import as_completed

from assay.engines import Engine
from assay.progress import Progress
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run import Validation
from assay.study.conditions import Conditions
from assay.verify.finding import Finding
from assay.verify.rerun import SAME_WEIGHTS, TOLERANCE

TITLE = "validated again"


def check_validations(
    store: Store,
    record: StudyRecord,
    conditions: Conditions,
    engine: Engine,
    progress: Progress,
    *,
    same: Collection[str],
) -> Finding:
    """Return whether the weights of each reproduction give its validation score.

    Args:
        store: with the runs; it is only read.
        record: of a method that is trained.
        conditions: of its study.
        engine: where the runs are validated.
        progress: is called with the number of runs that are done.
        same: keys of the runs whose test vectors came out here as the same bytes, so that this
            machine computes as theirs did. The others have the tolerance for other weights, since a
            close neighbour may be another one.
    """
    what = f"{record.title}: {TITLE}"
    here = conditions.environment
    if record.announced.environment.images != here.images:
        trusted = f"that the weights of {record.title} give their validation scores"
        return Finding(what, note="not compared: another decoder of images", trusted=trusted)
    view = str(conditions.place(conditions.trainval, progress))
    place = str(store.root), view, here.threads, here.device, conditions.imports
    entries = {entry.key: entry for entry in record.reproductions}
    waiting = {engine.submit(Validation(key, *place)): key for key in entries}
    apart: dict[str, tuple[float, float]] = {}
    close = frozenset[str]() if conditions.resolved.compile else frozenset(same)
    for done, future in enumerate(as_completed(waiting), start=1):
        key, found = waiting[future], future.result()
        said = entries[key].validation["map_at_r"]
        if not abs(found - said) <= (SAME_WEIGHTS if key in close else TOLERANCE):
            apart[key] = said, found
        progress(f"{record.method}: {TITLE}", done, len(waiting))
    if not apart:
        return Finding(what)
    first = min(apart)
    said, found = apart[first]
    return Finding(
        what,
        f"run {first[:12]}: validation MAP@R is recorded as {said:.6f}, its weights give"
        f" {found:.6f} ({len(apart)} of {len(entries)} runs)",
    )
