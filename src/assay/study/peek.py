"""The price of peeking: what the test half says to checkpoints and trials that nobody chose."""

from collections.abc import Sequence
from typing import Any

from assay.hashing import digest_file
from assay.records.store import Store
from assay.records.study import StudyRecord


def peek_body(
    record: StudyRecord, test: str, found: Sequence[dict[int, float]], store: Store
) -> dict[str, Any]:
    """The line of a peek: test MAP@R by epoch of each reproduction run, then of each trial's runs
    at their best epoch.
    """
    scored = iter(found)
    epochs = [
        {
            "search": entry["search"],
            "reproduction": entry["reproduction"],
            "fold": entry["fold"],
            "run": entry["key"],
            "chosen": entry["best_epoch"],
            "test": {str(epoch): value for epoch, value in next(scored).items()},
            "weights": {
                str(epoch): digest_file(path)
                for epoch, path in store.checkpoints(entry["key"]).items()
            },
        }
        for entry in record.reproductions
    ]
    trials = [
        {
            "search": trial["search"],
            "trial": trial["trial"],
            "validation": trial["map_at_r"],
            "test": [value for _ in trial["runs"] for value in next(scored).values()],
        }
        for trial in record.trials
    ]
    return {"test": test, "epochs": epochs, "trials": trials}
