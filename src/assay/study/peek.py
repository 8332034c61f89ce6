"""The price of peeking: test scores of checkpoints and trials that were not chosen."""

from collections.abc import Sequence

from assay.hashing import digest_file
from assay.records.lines import Peek, PeekedRun, PeekedTrial
from assay.records.store import Store
from assay.records.study import StudyRecord


def peek_at(
    record: StudyRecord, test: str, found: Sequence[dict[int, float]], store: Store
) -> Peek:
    """Return the line of a peek.

    `found` holds test MAP@R by epoch: of each run of each reproduction, then of each run of each
    trial at its best epoch.
    """
    scored = iter(found)
    epochs = [
        PeekedRun(
            search=entry.search,
            reproduction=entry.reproduction,
            fold=entry.fold,
            run=entry.key,
            chosen=entry.best_epoch,
            test=next(scored),
            weights={
                epoch: digest_file(path) for epoch, path in store.checkpoints(entry.key).items()
            },
        )
        for entry in record.reproductions
    ]
    trials = [
        PeekedTrial(
            search=trial.search,
            trial=trial.trial,
            validation=trial.map_at_r,
            test=tuple(value for _ in trial.runs for value in next(scored).values()),
        )
        for trial in record.trials
    ]
    return Peek(test, tuple(epochs), tuple(trials))
