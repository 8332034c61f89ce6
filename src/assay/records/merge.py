"""Merging: runs, studies, labels and models of several stores in one, each checked first.

Equal keys mean equal runs and equal studies. Where two stores differ in one of them, the merge is
refused.
"""

import filecmp
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.errors import BadInput
from assay.files import new_folder, read_json, write_atomically
from assay.hashing import canonical, digest_file, pretty
from assay.progress import Progress, silent
from assay.records.benches import DeclaredBench, read_bench
from assay.records.codec import differing_fields
from assay.records.labels import labels_fingerprint, read_test_labels
from assay.records.ledger import LOOKS, Line, hash_of, read
from assay.records.run import CHECKPOINTS, check_run
from assay.records.store import Store, place_file
from assay.records.study import StudyRecord, classes_file, write_record

Ledgers = Mapping[str, list[Line]]
"""The lines of each study of a store."""

CLOCK = "timing.json"
"""The one file in which equal runs may differ: how long they took, and where."""


@dataclass(frozen=True)
class Contribution:
    """How much came from one store.

    Args:
        store: folder of the store.
        runs: number of runs that no store before it had.
        studies: number of studies with lines that no store before it had.
        models: number of models that no store before it had.
    """

    store: Path
    runs: int
    studies: int
    models: int


@dataclass(frozen=True)
class Merged:
    """A merged store.

    Args:
        out: its folder.
        contributions: how much came from each of the others.
        runs: number of runs that it has now.
        studies: number of studies that it has now.
    """

    out: Path
    contributions: tuple[Contribution, ...]
    runs: int
    studies: int


def merge(stores: Sequence[Path], out: Path, progress: Progress = silent) -> Merged:
    """Merge the stores into the one at `out`, which may be new, one of them, or another store.

    Everything is checked before anything is copied. Killed at any time and called again it ends
    with the same bytes: runs come before the ledgers that name them, each whole or not at all.
    """
    others = [
        Store(path)
        for path in dict.fromkeys(path.resolve() for path in stores)
        if path != out.resolve()
    ]
    target = Store.create(out)
    with target.driving():
        everyone = [target, *others]
        for store in everyone:
            _refuse_links(store)
        ledgers = [_ledgers(store) for store in everyone]
        for number, (store, own) in enumerate(zip(everyone, ledgers, strict=True)):
            progress("stores checked", number, len(everyone))
            _check(store, own)
        _check_agreement(everyone, ledgers)
        contributions = [
            _take(store, own, target, progress)
            for store, own in zip(others, ledgers[1:], strict=True)
        ]
    return Merged(out, tuple(contributions), len(_runs(target)), len(_ledgers(target)))


def _ledgers(store: Store) -> Ledgers:
    """Return the lines of each study, their chains checked; a study without a line is left out."""
    found = {key: read(store.study(key) / "ledger.jsonl") for key in store.studies()}
    return {key: lines for key, lines in found.items() if lines}


# --- checks ------------------------------------------------------------------------------


def _refuse_links(store: Store) -> None:
    """Raise `BadInput` where a file or folder of a store is a link, which may lead anywhere."""
    for folder, folders, files in os.walk(store.root):
        for name in (*folders, *files):
            path = Path(folder) / name
            if path.is_symlink():
                raise BadInput(
                    f"{path} is a link to {path.readlink()}; a store that is merged holds its own"
                    " files: replace the link by what it leads to, or leave this store out"
                )


def _check(store: Store, ledgers: Ledgers) -> None:
    """Raise `BadInput` where a file of a store was altered."""
    problems = [
        *(
            f"{store.run(key)}: {problem}"
            for key in _runs(store)
            if (problem := check_run(store.run(key)))
        ),
        *(
            problem
            for key, lines in ledgers.items()
            for problem in _unsupported(
                store, StudyRecord.of(key, lines, str(store.study(key) / "ledger.jsonl"))
            )
        ),
    ]
    if problems:
        raise BadInput(
            f"{problems[0]}; `assay verify {store.root}` says what else is wrong. Restore it, or"
            " leave this store out"
        )


def _check_agreement(stores: Sequence[Store], ledgers: Sequence[Ledgers]) -> None:
    """Raise `BadInput` where two stores have something different under one name."""
    folders: dict[str, Path] = {}
    studies: dict[str, tuple[list[Line], Path]] = {}
    for store, own in zip(stores, ledgers, strict=True):
        for folder in [*map(store.run, _runs(store)), *_models(store)]:
            _compare(folders.setdefault(folder.name, folder), folder)
        for key, lines in own.items():
            place = store.study(key) / "ledger.jsonl"
            known, known_place = studies.get(key, (lines, place))
            studies[key] = (_both(known, lines, known_place, place), known_place)


def _runs(store: Store) -> list[str]:
    return sorted(path.parent.name for path in store.root.glob("runs/*/*/result.json"))


def _models(store: Store) -> list[Path]:
    return sorted(path for path in store.root.glob("models/*") if path.is_dir())


def _unsupported(store: Store, record: StudyRecord) -> Iterator[str]:
    """Yield a problem for each file that is not the one whose hash the ledger has."""
    ledger = store.study(record.key) / "ledger.jsonl"
    for entry in record.run_entries():
        path = store.run(entry.key) / "result.json"
        if not path.exists() or digest_file(path) != entry.result:
            yield f"{path} is missing or not what {ledger} says"
    for test in record.tests:
        path = classes_file(store.study(record.key), test.search, test.reproduction)
        if not path.exists() or digest_file(path) != test.classes:
            yield f"{path} is missing or not what {ledger} says"
        for key, hashed in zip(test.runs, test.vectors, strict=True):
            path = store.test_vectors(key, test.test)
            if not path.exists() or digest_file(path) != hashed:
                yield f"{path} is missing or not what {ledger} says"
    if record.seal is not None:
        path = store.answers(record.seal.test)
        labels = read_test_labels(path)
        if labels is None or labels_fingerprint(labels) != record.seal.labels:
            yield f"{path} is missing or not what {ledger} says"


def _compare(here: Path, there: Path) -> None:
    """Raise `BadInput` where two folders of one name hold different files of one name."""
    for path in _files(here):
        other = there / path
        if (
            path.name != CLOCK
            and other.exists()
            and not filecmp.cmp(here / path, other, shallow=False)
        ):
            raise BadInput(
                f"{here / path} and {other} should be the same and are"
                f" not{_difference(here / path, other)}; Assay does not choose between them: leave"
                " out one of the stores, or remove that folder from the one that is wrong"
            )


def _difference(here: Path, there: Path) -> str:
    """Return which fields of two JSON documents differ, in words."""
    if here.suffix != ".json":
        return ""
    names = differing_fields(read_json(here), read_json(there))
    return f" (different: {', '.join(names)})"


def _files(folder: Path) -> list[Path]:
    """Return the relative paths of all files below a folder, in order."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


# --- studies --------------------------------------------------------------------------------------


def _both(ours: list[Line], theirs: list[Line], our_place: Path, their_place: Path) -> list[Line]:
    """Return one ledger of two that agree as far as both go; other looks come last."""
    for mine, other in zip(_story(ours), _story(theirs), strict=False):
        if (mine.kind, mine.body) != (other.kind, other.body):
            raise BadInput(
                f"{our_place} and {their_place} are two studies under one key: line"
                f" {mine.number + 1} of the one and line {other.number + 1} of the other differ"
                f" ({_words(mine, other)}); Assay does not choose between them: leave out one of"
                " the stores, or remove the study's folder from the one that is wrong"
            )
    base, rest = (theirs, ours) if len(_story(theirs)) > len(_story(ours)) else (ours, theirs)
    known = {_look(line) for line in base}
    united = list(base)
    for line in rest:
        if line.kind in LOOKS and _look(line) not in known:
            united.append(_linked(line, united[-1]))
    return united


def _story(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that a study records itself, which are all but looks."""
    return [line for line in lines if line.kind not in LOOKS]


def _look(line: Line) -> tuple[str, str]:
    """Return what tells one look from another, wherever it is in a ledger.

    A peek is the same whenever it was taken.
    """
    return line.at if line.kind == "look" else "", canonical(line.body)


def _linked(line: Line, last: Line) -> Line:
    """Return the line as the next one of another ledger, with the time at which it was recorded."""
    number = last.number + 1
    return replace(
        line,
        number=number,
        previous=last.hash,
        hash=hash_of(number, line.kind, line.body, last.hash),
    )


def _words(mine: Line, other: Line) -> str:
    if mine.kind != other.kind:
        return f"a {mine.kind} and a {other.kind}"
    return f"{mine.kind}: {', '.join(differing_fields(mine.body, other.body))}"


# --- copies -------------------------------------------------------------------------------


def _take(store: Store, ledgers: Ledgers, target: Store, progress: Progress) -> Contribution:
    """Copy what the target lacks: runs, labels, then the ledgers that name them, then models."""
    keys = _runs(store)
    fresh = [key for key in keys if not target.has_run(key)]
    for number, key in enumerate(keys):
        progress(f"runs of {store.root}", number, len(keys))
        _take_run(store.run(key), target, key)
    for path in sorted(store.root.glob("answers/*.npz")):
        place_file(target.answers(path.stem), path.read_bytes())
    for key in store.benches():
        _take_bench(read_bench(store, key), target)
    for path in sorted(store.root.glob("studies/*/classes/*.npz")):
        place_file(target.root / path.relative_to(store.root), path.read_bytes())
    studies = sum([_take_study(key, lines, target) for key, lines in ledgers.items()])
    models = [folder for folder in _models(store) if not target.model(folder.name).exists()]
    for folder in models:
        with new_folder(target.model(folder.name)) as draft:
            _copy(folder, draft)
    return Contribution(store.root, len(fresh), studies, len(models))


def _take_bench(bench: DeclaredBench, target: Store) -> None:
    """Write the declaration of a bench; where both stores have it, that with the later look."""
    known = [read_bench(target, bench.key)] if bench.key in target.benches() else []
    latest = max([bench, *known], key=lambda one: (one.look, one.after))
    if latest not in known:
        write_atomically(target.bench(bench.key), pretty(latest.to_json()))


def _take_run(folder: Path, target: Store, key: str) -> None:
    """Copy a whole run, or the files of it that the target lacks."""
    if not target.has_run(key):
        with target.new_run(key) as draft:
            _copy(folder, draft)
        return
    if (folder / CHECKPOINTS).exists() and not target.has_run(key, "all"):
        with target.new_checkpoints(key) as draft:
            _copy(folder / CHECKPOINTS, draft)
    for path in _files(folder):
        if not (target.run(key) / path).exists():
            place_file(target.run(key) / path, (folder / path).read_bytes())


def _take_study(key: str, lines: list[Line], target: Store) -> bool:
    """Write the ledger of both stores together, and `study.json` from it.

    Return whether the target had fewer lines before.
    """
    folder = target.study(key)
    ledger = folder / "ledger.jsonl"
    known = read(ledger) if ledger.exists() else []
    united = _both(known, lines, ledger, ledger)
    if united != known:
        write_atomically(ledger, "".join(canonical(line) + "\n" for line in united))
    write_record(folder, united)
    return united != known


def _copy(folder: Path, draft: Path) -> None:
    """Copy the files of a folder into a draft; `BadInput` where one is removed meanwhile."""
    for path in _files(folder):
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(folder / path, draft / path)
        except FileNotFoundError:
            raise BadInput(
                f"{folder / path} was removed while it was copied; wait until no command writes"
                " to that store, then merge again"
            ) from None
