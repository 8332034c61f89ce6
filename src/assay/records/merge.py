"""Merging: runs, studies, labels and models of several stores in one, each checked first.

Equal keys mean equal runs and equal studies. Where two stores differ in one of them, the merge is
refused.
"""

import filecmp
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from assay.errors import BadInput, reason_of
from assay.files import new_folder, read_bytes, read_json, regular, write_atomically
from assay.hashing import canonical, digest_file, pretty
from assay.progress import Progress, silent
from assay.records.benches import read_bench
from assay.records.codec import differing_fields
from assay.records.labels import labels_fingerprint, read_test_labels
from assay.records.ledger import LOOKS, Line, hash_of, read
from assay.records.lines import Seal
from assay.records.run import CARD, CHECKPOINTS, WEIGHTS, check_run, read_card
from assay.records.store import Store, place_file
from assay.records.study import StudyRecord, classes_file, write_record

Ledgers = Mapping[str, list[Line]]
"""The lines of each study of a store."""

CLOCK = "timing.json"
"""The one file in which equal runs may differ: how long they took, and where."""

OF_TRUNK = (CARD, WEIGHTS)
"""Files in which equal models may differ: with the trunk whose features they take, or without."""


@dataclass(frozen=True)
class Contribution:
    """How much came from one store.

    Args:
        store: folder of the store.
        runs: number of runs that no store before it had.
        studies: number of studies with lines that no store before it had.
        models: number of models that no store before it had, or not with the trunk whose features
            they take.
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
    new = not out.exists()
    others = [
        Store(path)
        for path in dict.fromkeys(path.resolve() for path in stores)
        if path != out.resolve()
    ]
    target = Store.create(out)
    with _kept_if_done(out, new=new), target.driving():
        everyone = [target, *others]
        for store in everyone:
            _refuse_strange_files(store)
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


@contextmanager
def _kept_if_done(out: Path, *, new: bool) -> Iterator[None]:
    """Remove a store that was made for a merge which is refused."""
    try:
        yield
    except BadInput:
        if new:
            shutil.rmtree(out)
        raise


def _ledgers(store: Store) -> Ledgers:
    """Return the lines of each study, their chains checked; a study without a line is left out."""
    found = {key: read(store.study(key) / "ledger.jsonl") for key in store.studies()}
    return {key: lines for key, lines in found.items() if lines}


# --- checks ------------------------------------------------------------------------------


def _refuse_strange_files(store: Store) -> None:
    """Raise `BadInput` where anything in a store is a link, which may lead anywhere, or a pipe or
    device.
    """
    for folder, folders, files in os.walk(store.root):
        for name in (*folders, *files):
            path = Path(folder) / name
            if path.is_symlink():
                raise BadInput(
                    f"{path} is a link to {path.readlink()}; a store that is merged holds its own"
                    " files: replace the link by what it leads to, or leave this store out"
                )
            try:
                regular(path)
            except OSError as error:
                raise BadInput(
                    f"{path} cannot be merged: {reason_of(error)}; remove it, or leave this store"
                    " out"
                ) from None


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
    halves: dict[str, tuple[tuple[str, str], Path]] = {}
    for store, own in zip(stores, ledgers, strict=True):
        for folder in map(store.run, _runs(store)):
            _compare(folders.setdefault(folder.name, folder), folder, [CLOCK])
        for folder in store.models():
            first = folders.setdefault(folder.name, folder)
            _compare(first, folder, OF_TRUNK if _has_trunk(first) != _has_trunk(folder) else [])
        for key, lines in own.items():
            place = store.study(key) / "ledger.jsonl"
            known, known_place = studies.get(key, (lines, place))
            studies[key] = (_both(known, lines, known_place, place), known_place)
            for seal in _seals([StudyRecord.of(key, lines)]):
                said = (seal.labels, seal.contents)
                other, other_place = halves.setdefault(seal.test, (said, place))
                if other != said:
                    raise BadInput(
                        f"{other_place} and {place} opened one test half and say that it has other"
                        " labels or samples; Assay does not choose between them: leave out one of"
                        " the stores"
                    )


def _runs(store: Store) -> list[str]:
    return sorted(path.parent.name for path in store.root.glob("runs/*/*/result.json"))


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
    for seal in _seals([record]):
        for path in _answers(store, seal):
            if not _holds(path, seal):
                yield f"{path} is missing or not what {ledger} says"


def _seals(records: Sequence[StudyRecord]) -> list[Seal]:
    """Return what the openings of test halves say of them, the same of several studies once."""
    seals = [record.seal for record in records if record.seal is not None]
    return list({(one.test, one.labels, one.contents): one for one in seals}.values())


def _answers(store: Store, seal: Seal) -> tuple[Path, Path]:
    """Return the files with the labels and with the content hashes of a test half."""
    return store.answers(seal.test), store.contents(seal.test)


def _holds(path: Path, seal: Seal) -> bool:
    """Return whether one of these files is there, and is the one that the seal names."""
    if path.suffix == ".npz":
        labels = read_test_labels(path)
        return labels is not None and labels_fingerprint(labels) == seal.labels
    return path.exists() and digest_file(path) == seal.contents


def _has_trunk(model: Path) -> bool:
    """Return whether a model has the trunk whose features its head was trained on.

    A machine without the weights of that trunk hands over the head alone.
    """
    return read_card(model).get("images") is not None


def _compare(here: Path, there: Path, besides: Sequence[str]) -> None:
    """Raise `BadInput` where two folders of one name hold different files of one name, `besides`
    those that may differ.
    """
    for path in _files(here):
        other = there / path
        if (
            path.name not in besides
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
    """Copy what the target lacks: runs, answers, then the ledgers that name them, then models.

    Of runs, test vectors, answers and scores of classes only those are copied that a ledger of the
    store names by their hash: a bench that comes later would take others for its own.
    """
    records = [StudyRecord.of(key, lines) for key, lines in ledgers.items()]
    vectors = _named_vectors(store, records)
    keys = sorted({entry.key for record in records for entry in record.run_entries()})
    fresh = [key for key in keys if not target.has_run(key)]
    for number, key in enumerate(keys):
        progress(f"runs of {store.root}", number, len(keys))
        _take_run(store.run(key), target, key, vectors)
    for seal in _seals(records):
        for path, other in zip(_answers(store, seal), _answers(target, seal), strict=True):
            if not _holds(other, seal):
                write_atomically(other, read_bytes(path))
    target.add_salts(store.salts)
    for hash_ in store.benches():
        bench = read_bench(store, hash_)
        place_file(target.bench(hash_), pretty(bench.to_json()).encode())
    for record in records:
        for test in record.tests:
            path = classes_file(store.study(record.key), test.search, test.reproduction)
            place_file(target.root / path.relative_to(store.root), read_bytes(path))
    studies = sum([_take_study(key, lines, target) for key, lines in ledgers.items()])
    models = [folder for folder in store.models() if _is_more(folder, target.model(folder.name))]
    for folder in models:
        place = target.model(folder.name)
        with new_folder(place, replace=True) as draft:
            for one in (place, folder):
                _copy(one, _files(one), draft)
    return Contribution(store.root, len(fresh), studies, len(models))


def _is_more(model: Path, known: Path) -> bool:
    """Return whether a model is not known, or only without the trunk whose features it takes."""
    return not known.exists() or (_has_trunk(model) and not _has_trunk(known))


def _named_vectors(store: Store, records: Sequence[StudyRecord]) -> set[Path]:
    """Return the files of test vectors that ledgers name."""
    return {
        store.test_vectors(key, test.test)
        for record in records
        for test in record.tests
        for key in test.runs
    }


def _take_run(folder: Path, target: Store, key: str, vectors: Collection[Path]) -> None:
    """Copy a whole run, or the files of it that the target lacks; of test vectors only these."""
    files = [path for path in _files(folder) if path.parts[0] != "test" or folder / path in vectors]
    if not target.has_run(key):
        with target.new_run(key) as draft:
            _copy(folder, files, draft)
        return
    if (folder / CHECKPOINTS).exists() and not target.has_run(key, "all"):
        with target.new_checkpoints(key) as draft:
            _copy(folder / CHECKPOINTS, _files(folder / CHECKPOINTS), draft)
    for path in files:
        if not (target.run(key) / path).exists():
            place_file(target.run(key) / path, read_bytes(folder / path, sys.maxsize))


def _take_study(key: str, lines: list[Line], target: Store) -> bool:
    """Write the ledger of both stores together, and `study.json` from it.

    Return whether the target had fewer lines before.
    """
    folder = target.study(key)
    ledger = folder / "ledger.jsonl"
    known = read(ledger) if ledger.exists() else []
    united = _both(known, lines, ledger, ledger)
    if united != known:
        (folder / "study.json").unlink(missing_ok=True)  # after a kill it would be of two ledgers
        write_atomically(ledger, "".join(canonical(line) + "\n" for line in united))
    write_record(folder, united)
    return united != known


def _copy(folder: Path, files: Sequence[Path], draft: Path) -> None:
    """Copy files of a folder into a draft; `BadInput` where one is removed meanwhile."""
    for path in files:
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(folder / path, draft / path)
        except FileNotFoundError:
            raise BadInput(
                f"{folder / path} was removed while it was copied; wait until no command writes"
                " to that store, then merge again"
            ) from None
