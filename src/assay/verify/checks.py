"""All checks of a store, one after the other."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.files import read_json
from assay.records.ledger import Line, read
from assay.records.looks import LookIndex
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.verify.benches import check_anchors, check_benches
from assay.verify.finding import Check, Finding, guarded, of_error, outcome
from assay.verify.looks import (
    check_contents,
    check_looks,
    count_looks,
    find_indexed_looks,
)
from assay.verify.preregistration import (
    check_conditions,
    check_preregistration,
    origin_that_is_absent,
)
from assay.verify.problems import check_same_problems
from assay.verify.report import check_report
from assay.verify.runs import check_models, check_runs
from assay.verify.scores import check_order, check_peek, check_scores, check_seal
from assay.verify.search import check_asked, check_selection, check_trials

WRITTEN_AGAIN = "missing; run the same bench or merge again: it writes it from the ledger"
"""The note on a `study.json` that is not there."""


def verify(
    store: Store, anchors: Sequence[str] = (), index: LookIndex | None = None
) -> Iterator[Finding]:
    """Yield the findings of every study, then of benches, conditions, models and report.

    What studies share is checked only where no study has a problem.

    `anchors` are hashes of benches that were published beforehand. `index` is the index of looks,
    by default that of the user.
    """
    keys = store.studies()
    if not keys:
        note = "no study has been begun; run the same command again to begin"
        yield Finding(f"store {store.root}", note=note, incomplete=True)
    sound = True
    for key in keys:
        for finding in verify_study(store, key):
            sound = sound and finding.holds
            yield finding
    if not sound:
        note = "not looked for: first see what is wrong above"
        yield from (Finding(f"anchor {hash_[:12]}", note=note, skipped=True) for hash_ in anchors)
        return
    records = study_records(store)
    for finding in check_benches(store, records):
        sound = sound and finding.holds
        yield finding
    yield from check_anchors(store, anchors, records)
    if not sound:
        return
    yield from check_conditions(records)
    yield from check_same_problems(records)
    yield from find_indexed_looks(store, records, index or LookIndex())
    yield from check_models(store, records)
    yield from check_report(store)


def verify_study(store: Store, key: str) -> Iterator[Finding]:
    """Yield the findings of one study: the ledger's chain, then the ledger against the runs."""
    folder = store.study(key)
    try:
        lines = read(folder / "ledger.jsonl")
        record = StudyRecord.of(key, lines) if lines else None
    except Exception as error:  # whatever fails here says nothing of the other studies
        yield of_error(f"study {key[:12]}: ledger chain", error)
        return
    if record is None:
        note = "begun, nothing recorded yet; run the same command again to continue"
        yield Finding(f"study {key[:12]}", note=note, incomplete=True)
        return
    checks: dict[str, Check] = {
        "ledger chain": lambda: check_order(lines),
        "preregistration": lambda: check_preregistration(store, record),
        "study.json": lambda: _study_file(folder, record, lines),
        "runs": lambda: check_runs(store, record),
        "trials": lambda: check_trials(record),
        "selection": lambda: check_selection(record),
        "seal": lambda: (*check_seal(lines), *check_contents(store, record)),
        "test scores": lambda: check_scores(store, record),
        "looks at test": lambda: (*check_looks(record), *check_peek(store, record)),
    }
    missing = record.ended and not (folder / "study.json").exists()
    notes = {"study.json": WRITTEN_AGAIN * missing, "looks at test": count_looks(record)}
    sound = True
    for what, check in checks.items():
        found = Finding(
            f"{record.title}: {what}",
            note=notes.get(what, ""),
            incomplete=missing and what == "study.json",
        )
        finding = outcome(check, found)
        sound = sound and finding.holds
        yield finding
    if not record.ended:
        yield Finding(record.title, note=_how_far(record), incomplete=True)
    if absent := origin_that_is_absent(store, record):
        yield Finding(record.title, note=absent, incomplete=True)
    if sound and record.trials:
        yield guarded(f"{record.title}: trials asked again", lambda: check_asked(record))


def _how_far(record: StudyRecord) -> str:
    """Return in words how far a study is that has not ended."""
    budget = record.announced.budget
    return (
        f"not finished: {len(record.trials)} of {budget.searches * budget.trials} trials,"
        f" {len(record.reproductions)} of {budget.reproduction_runs} runs of reproductions,"
        f" {len(record.tests)} of {budget.searches * budget.reproductions} test scores; run the"
        " same command again to continue"
    )


def _study_file(folder: Path, record: StudyRecord, lines: list[Line]) -> Iterator[str]:
    """Yield a problem where `study.json` is there and equals neither the ledger nor the ledger
    without its last lines.

    A driver that was killed has not written the last lines to `study.json`, a merge no such file.
    """
    path = folder / "study.json"
    if not path.exists():
        return
    try:
        written = read_json(path)
    except (ValueError, TypeError):
        written = {}
    if written not in (
        StudyRecord.of(record.key, lines[:count]).to_json() for count in range(len(lines), 0, -1)
    ):
        yield "study.json does not say what the ledger says"
