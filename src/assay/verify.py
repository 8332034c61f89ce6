"""Is this store what it says? Recompute all that can be recomputed from what lies below it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.answers import score
from assay.canonical import digest, digest_file, plain
from assay.errors import BadInput
from assay.files import read_json
from assay.ledger import Line, completing_line, read
from assay.model import WEIGHTS
from assay.seeds import derive
from assay.store import Store
from assay.study import StudyRecord
from assay.study.arena import read_answers
from assay.tables import RENDERERS, comparisons, render, tables_of

Place = tuple[str, int, int | None, Any]
"""Where a run stands in a study: stage, number, fold, parameters."""


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, and what is wrong with it (empty where nothing is)."""

    what: str
    problem: str = ""


def verify(store: Store, anchor: str | None = None) -> Iterator[Finding]:
    """Every check of every study as it is made, then the tables where all studies hold.

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
    if not sound:
        return
    if anchor is not None:
        yield _anchor(store, anchor)
    yield from _tables(store)


def verify_study(store: Store, key: str) -> Iterator[Finding]:
    """The ledger's chain, then everything that the ledger says against what the runs say."""
    folder = store.study(key)
    try:
        lines = read(folder / "ledger.jsonl")
    except BadInput as error:
        yield Finding(f"study {key[:12]}: ledger chain", str(error))
        return
    if not lines:
        yield Finding(f"study {key[:12]}: begun, nothing recorded yet")
        return
    record = StudyRecord.of(key, lines)
    checks: dict[str, Iterable[str]] = {
        "ledger chain": (),
        "study.json": _study_file(folder, record, lines),
        "runs": _runs(store, record),
        "trials and selection": _selection(record),
        "seal": _seal(lines),
        "test scores": _test_scores(store, record),
        "looks at test": _looks(record),
    }
    for what, problems in checks.items():
        yield Finding(f"{record.method} on {record.announced['data']['name']}: {what}", "; ".join(problems))


def _study_file(folder: Path, record: StudyRecord, lines: list[Line]) -> Iterator[str]:
    """`study.json` is the ledger in other words; it may lag behind a killed driver by the last lines, never differ."""
    if not (folder / "study.json").exists():
        if record.complete:
            yield "study.json is missing"
        return
    written = {"looks": [], **read_json(folder / "study.json")}  # a study of before there were looks has none
    if written not in [plain(StudyRecord.of(record.key, lines[:count])) for count in range(len(lines), 0, -1)]:
        yield "study.json does not say what the ledger says"


def _runs(store: Store, record: StudyRecord) -> Iterator[str]:
    """Each run that the ledger names is there, is the run that belongs in that place, and has the result it had."""
    folds = _folds(record)
    for trial in record.trials:
        for fold, entry in zip(folds, trial["runs"], strict=False):
            yield from _run(store, record, entry, ("trial", trial["trial"], fold, trial["parameters"]))
    for number, entry in enumerate(record.reproductions):
        reproduction, fold = divmod(number, len(folds))
        if (entry["reproduction"], entry["fold"]) != (reproduction, folds[fold]):
            yield f"reproduction {reproduction}, fold {folds[fold]} is missing"
        chosen = record.selection["parameters"] if record.selection else None
        yield from _run(store, record, entry, ("reproduction", reproduction, folds[fold], chosen))
        if not (store.run(entry["key"]) / WEIGHTS).exists():
            yield f"run {entry['key'][:12]}: model.safetensors is missing"


def _folds(record: StudyRecord) -> Sequence[int | None]:
    """The folds of a trial or reproduction; a fixed baseline has none."""
    budget = record.announced["budget"]
    return range(budget["folds"]) if budget["reproduction_runs"] == budget["reproductions"] * budget["folds"] else [None]


def _run(store: Store, record: StudyRecord, entry: dict[str, Any], place: Place) -> Iterator[str]:
    folder, name = store.run(entry["key"]), f"run {entry['key'][:12]}"
    missing = [file for file in ("result.json", "config.json", "history.jsonl") if not (folder / file).exists()]
    if missing:
        yield f"{name}: {missing[0]} is missing"
        return
    result, config = read_json(folder / "result.json"), read_json(folder / "config.json")
    if digest_file(folder / "result.json") != entry["result"]:
        yield f"{name}: result.json was altered"
    if any(entry[field] != result[field] for field in ("status", "validation", "best_epoch")):
        yield f"{name}: the ledger does not say what its result says"
    weights = folder / WEIGHTS
    if weights.exists() and digest_file(weights) != result["weights"]:
        yield f"{name}: model.safetensors was altered"
    if digest(config) != entry["key"]:
        yield f"{name}: config.json was altered"
    if any(config[field] != value for field, value in _expected(record, place).items()):
        yield f"{name} is not the run of {place[0]} {place[1]}, fold {place[2]}"


def _expected(record: StudyRecord, place: Place) -> dict[str, Any]:
    """What the configuration of the run in this place must say."""
    stage, number, fold, parameters = place
    announced = record.announced
    trainval = announced["data"]["trainval"]
    return {
        "method": record.method,
        "source": announced["method"]["source"],
        "batch": announced["method"]["batch"],
        "parameters": parameters,
        "trainval": trainval,
        "fold": fold,
        "seed": derive(announced["protocol"]["resolved"]["seed"], trainval, stage, number, fold),
        "environment": announced["environment"],
    }


def _selection(record: StudyRecord) -> Iterator[str]:
    """Trials are numbered without a gap, their means are those of their folds, the best finished one was selected."""
    values: list[float | None] = []
    if record.trials and record.trials[0]["parameters"] != record.announced["method"]["defaults"]:
        yield "trial 0 is not the method's defaults"
    for number, trial in enumerate(record.trials):
        if trial["trial"] != number:
            yield f"trial {number} is missing"
        values.append(_mean_of_folds(trial))
        if trial["map_at_r"] != values[-1]:
            yield f"trial {number}: its MAP@R is not the mean of its folds"
    if record.selection is None:
        return
    if len(record.trials) != record.announced["budget"]["trials"]:
        yield f"{len(record.trials)} trials, {record.announced['budget']['trials']} were announced"
    finished = [value for value in values if value is not None]
    best = values.index(max(finished)) if finished else None
    if record.selection["trial"] != best:
        yield f"trial {record.selection['trial']} was selected, trial {best} is the best"
    elif best is not None and record.selection["parameters"] != record.trials[best]["parameters"]:
        yield "the selected parameters are not those of the selected trial"


def _mean_of_folds(trial: dict[str, Any]) -> float | None:
    runs = trial["runs"]
    if any(run["status"] == "diverged" for run in runs):
        return None
    return float(sum(run["validation"]["map_at_r"] for run in runs) / len(runs))


def _seal(lines: list[Line]) -> Iterator[str]:
    """The seal was opened after selection and all reproductions, and no test score stands before it."""
    complete = completing_line(lines)
    opened = [line.number for line in lines if line.kind == "seal"]
    said = {"test": "a test score", "look": "a look at test"}
    if opened and (complete is None or opened[0] < complete.number):
        yield "the seal was opened before selection and reproductions were complete"
    elif complete and any(lines[number].body["receipt"] != complete.hash for number in opened):
        yield "the seal was opened with the receipt of something else"
    if len(opened) > 1:
        yield f"the seal was opened {len(opened)} times"
    early = [line for line in lines if line.kind in said and (not opened or line.number < opened[0])]
    if early:
        yield f"{said[early[0].kind]} precedes the opening of the seal (line {early[0].number + 1})"


def _test_scores(store: Store, record: StudyRecord) -> Iterator[str]:
    """Test scores come again from the stored vectors and the labels of the test half."""
    if record.seal is None or not record.tests:
        return
    dim = record.announced["protocol"]["resolved"]["dim"]
    labels = store.answers(record.seal["test"])
    if not labels.exists():
        yield "the labels of the test half are missing"
        return
    answers = read_answers(labels)
    if answers is None or answers.fingerprint != record.seal["labels"]:
        yield "the labels of the test half were altered"
        return
    for number, test in enumerate(record.tests):
        keys = [entry["key"] for entry in record.reproductions if entry["reproduction"] == number]
        if (test["reproduction"], test["test"], test["runs"]) != (number, record.seal["test"], keys):
            yield f"test scores {number} are not those of reproduction {number}"
            continue
        paths = [store.test_vectors(key, record.seal["test"]) for key in test["runs"]]
        missing = [path for path in paths if not path.exists()]
        if missing:
            yield f"reproduction {test['reproduction']}: {missing[0]} is missing"
        elif [digest_file(path) for path in paths] != test["vectors"]:
            yield f"reproduction {test['reproduction']}: its test vectors were altered"
        elif not _agree(score([np.load(path) for path in paths], answers, dim), test):
            yield f"reproduction {test['reproduction']}: its test scores do not come out of its vectors"


def _looks(record: StudyRecord) -> Iterator[str]:
    """Each look is at a run of this study."""
    for number, look in enumerate(record.looks):
        if look.get("run") not in record.runs:
            yield f"look {number + 1} is at run {str(look.get('run'))[:12]}, which is not of this study"


def _agree(again: dict[str, dict[str, float]], test: dict[str, Any], tolerance: float = 1e-9) -> bool:
    pairs = [(value, test[setting][name]) for setting, scores in again.items() for name, value in scores.items()]
    return all(abs(value - said) <= tolerance for value, said in pairs)


def _anchor(store: Store, anchor: str) -> Finding:
    found = [key for key in store.studies() if read(store.study(key) / "ledger.jsonl")[0].hash == anchor]
    return Finding(f"anchor {anchor[:12]}", "" if found else "no study here was announced with this preregistration hash")


def _tables(store: Store) -> Iterator[Finding]:
    """Each table that the report wrote is, byte for byte, what the studies give."""
    folder = store.root / "report" / "tables"
    if not folder.exists():
        return
    if not (store.root / "report" / "studies.json").exists():
        yield Finding("report", "studies.json, which says what its tables cover, is missing; write it again with `assay report`")
        return
    covered = read_json(store.root / "report" / "studies.json")
    newer = [key for key in store.studies() if key not in covered]
    if newer:
        yield Finding(f"the report does not cover {len(newer)} studies yet; `assay report` writes it again")
    expected = {
        f"{comparison.slug}-{table.name}.{form}": render(table, form)
        for comparison in comparisons(store, covered)
        for table in tables_of(comparison)
        for form in RENDERERS
    }
    for path in sorted(folder.iterdir()):
        if path.name not in expected:
            yield Finding(f"table {path.name}", "no study here gives this table")
        elif path.read_text(encoding="utf-8") != expected[path.name]:
            yield Finding(f"table {path.name}", "does not say what the studies say; run `assay report` after looking into it")
        else:
            yield Finding(f"table {path.name}")
