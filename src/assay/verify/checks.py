"""All checks of a store, one after the other."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from assay.errors import BadInput
from assay.files import read_json
from assay.records.benches import read_bench
from assay.records.ledger import Line, read
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.verify.finding import Finding
from assay.verify.preregistration import check_conditions, check_preregistration
from assay.verify.runs import check_models, check_runs
from assay.verify.scores import check_looks, check_order, check_peek, check_scores, check_seal
from assay.verify.search import (
    ask_again,
    asked_by_model,
    check_selection,
    check_trials,
    ran_here,
    versions_unlike_here,
)
from assay.verify.tables import check_tables

Check = Callable[[], Iterable[str]]


def verify(store: Store, anchor: str | None = None) -> Iterator[Finding]:
    """Yield the findings of every study, then of benches, conditions, models and tables.

    What studies share is checked only where no study has a problem.

    `anchor` is a preregistration hash announced beforehand; some study of the store must have it.
    """
    keys = store.studies()
    if not keys:
        yield Finding(f"store {store.root}", "no study has been begun")
    sound = bool(keys)
    for key in keys:
        for finding in verify_study(store, key):
            sound = sound and not finding.problem
            yield finding
    if anchor is not None:
        yield _anchor(store, anchor)
    if not sound:
        return
    yield from _benches(store)
    records = study_records(store)
    yield from check_conditions(records)
    yield from check_models(store, records)
    yield from check_tables(store)


def _benches(store: Store) -> Iterator[Finding]:
    """Yield a finding for each declared bench.

    A study that was never begun is a note, not a problem.
    """
    begun = set(store.studies())
    for key in store.benches():
        what = f"bench {key[:12]}"
        try:
            bench = read_bench(store, key)
        except BadInput as error:
            yield Finding(what, str(error))
            continue
        missing = [
            name
            for name, study in zip(bench.methods, bench.studies, strict=True)
            if study not in begun
        ]
        note = f"declared but not begun: {', '.join(missing)}" if missing else ""
        wrong = bool(bench.after) != (bench.look > 1)
        yield Finding(
            what,
            f"benches/{key}.json was altered: look {bench.look} does not follow" if wrong else "",
            note=note,
        )


def verify_study(store: Store, key: str) -> Iterator[Finding]:
    """Yield the findings of one study: the ledger's chain, then the ledger against the runs."""
    folder = store.study(key)
    try:
        lines = read(folder / "ledger.jsonl")
        record = StudyRecord.of(key, lines) if lines else None
    except (BadInput, KeyError, TypeError, OSError) as error:
        known = isinstance(error, BadInput | OSError)
        yield Finding(
            f"study {key[:12]}: ledger chain", str(error) if known else _unlike_a_study(error)
        )
        return
    if record is None:
        yield Finding(f"study {key[:12]}: begun, nothing recorded yet")
        return
    checks: dict[str, Check] = {
        "ledger chain": lambda: check_order(lines),
        "preregistration": lambda: check_preregistration(store, record),
        "study.json": lambda: _study_file(folder, record, lines),
        "runs": lambda: check_runs(store, record),
        "trials": lambda: check_trials(record),
        "selection": lambda: check_selection(record),
        "seal": lambda: check_seal(lines),
        "test scores": lambda: check_scores(store, record),
        "looks at test": lambda: (*check_looks(record), *check_peek(store, record)),
    }
    sound = True
    for what, check in checks.items():
        finding = Finding(f"{record.title}: {what}", "; ".join(_problems_of(check)))
        sound = sound and not finding.problem
        yield finding
    if sound and record.trials:
        yield _search(store, record, f"{record.title}: trials asked again")


def _problems_of(check: Check) -> list[str]:
    """Return the problems that a check yields; an unreadable record is one."""
    found = []
    try:
        for problem in check():
            found.append(problem)
    except (BadInput, OSError) as error:
        found.append(str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        found.append(_unlike_a_study(error))
    return found


def _unlike_a_study(error: Exception) -> str:
    return (
        f"ledger.jsonl was altered: it is not the ledger of a study ({type(error).__name__}:"
        f" {error})"
    )


def _study_file(folder: Path, record: StudyRecord, lines: list[Line]) -> Iterator[str]:
    """Yield a problem unless `study.json` equals the ledger, or the ledger without its last lines.

    A driver that was killed has not written the last lines to `study.json`.
    """
    path = folder / "study.json"
    if not path.exists():
        if record.complete:
            yield "study.json is missing"
        return
    try:
        written = read_json(path)
    except (ValueError, TypeError, OSError):
        written = {}
    if written not in (
        StudyRecord.of(record.key, lines[:count]).to_json() for count in range(len(lines), 0, -1)
    ):
        yield "study.json does not say what the ledger says"


def _search(store: Store, record: StudyRecord, what: str) -> Finding:
    """Return whether the search asks for the same trials again, where it can be expected to."""
    unlike = versions_unlike_here(record.announced)
    if unlike:
        return Finding(what, note=f"not asked again: {unlike}")
    other = ask_again(record)
    if other is None:
        return Finding(what)
    number, difference = other
    if asked_by_model(record.announced, number) and not ran_here(store, record):
        return Finding(
            what,
            note=(
                f"trial {number}: {difference}; a model may give other last digits on another"
                " machine, and none of the runs was computed here"
            ),
        )
    return Finding(what, f"ledger.jsonl, trial {number}: {difference}")


def _anchor(store: Store, anchor: str) -> Finding:
    """Return whether some study was announced with this hash.

    A ledger whose chain is broken does not count.
    """
    announced = []
    for key in store.studies():
        with suppress(BadInput):
            announced += [line.hash for line in read(store.study(key) / "ledger.jsonl")[:1]]
    return Finding(
        f"anchor {anchor[:12]}",
        "" if anchor in announced else "no study here was announced with this preregistration hash",
    )
