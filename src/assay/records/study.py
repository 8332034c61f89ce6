"""A study as its ledger says it: `study.json` is this, and no other source is read."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from assay.files import write_atomically
from assay.hashing import digest_file, pretty
from assay.protocols import ResolvedProtocol
from assay.records.codec import RESTORE, BadRecord, Document
from assay.records.ledger import Line, read
from assay.records.lines import (
    Look,
    Peek,
    PeekedRun,
    PeekedTrial,
    Preregistration,
    Reproduction,
    RunEntry,
    Seal,
    Selection,
    Setting,
    TestScores,
    Trial,
)
from assay.records.reported import Extent
from assay.records.store import Store

MOST = 10_000
"""Searches, trials of a search, reproductions or folds above which no protocol goes."""


@dataclass(frozen=True, kw_only=True)
class StudyRecord(Document):
    """A ledger by kind of line.

    Args:
        key: the study's key in the store.
        announced: the preregistration.
        preregistration: hash of that line, printed when the study began.
        trials: every finished trial of every search, in order.
        selections: the choice of each search; empty before all searches have ended.
        reproductions: every finished run of every reproduction, in order.
        seal: the opening of the test half, None before it.
        tests: test scores of each reproduction of each search, in order.
        looks: every later look at the test half, in order.
        peek: test scores of checkpoints and trials that were not chosen, where they were kept.
    """

    key: str
    announced: Preregistration
    preregistration: str
    trials: tuple[Trial, ...]
    selections: tuple[Selection, ...]
    reproductions: tuple[Reproduction, ...]
    seal: Seal | None
    tests: tuple[TestScores, ...]
    looks: tuple[Look, ...]
    peek: Peek | None

    @classmethod
    def of(cls, key: str, lines: Sequence[Line], where: str = "ledger.jsonl") -> "StudyRecord":
        """Return the record that these lines make; `BadRecord` names the line that is none."""
        entries = [line.entry(where) for line in lines]
        if not entries or not isinstance(entries[0], Preregistration):
            raise BadRecord(f"{where} does not begin with a preregistration")
        _check_size(entries[0], where)
        return cls(
            key=key,
            announced=entries[0],
            preregistration=lines[0].hash,
            trials=tuple(entry for entry in entries if isinstance(entry, Trial)),
            selections=tuple(entry for entry in entries if isinstance(entry, Selection)),
            reproductions=tuple(entry for entry in entries if isinstance(entry, Reproduction)),
            seal=next((entry for entry in entries if isinstance(entry, Seal)), None),
            tests=tuple(entry for entry in entries if isinstance(entry, TestScores)),
            looks=tuple(entry for entry in entries if isinstance(entry, Look)),
            peek=next((entry for entry in entries if isinstance(entry, Peek)), None),
        )

    # --- the announcement

    @property
    def method(self) -> str:
        """Name of the method studied."""
        return self.announced.method.name

    @property
    def called(self) -> str:
        """Name of the study in progress: the method, and the value in a sweep."""
        point = self.announced.sweep
        return self.method if point is None else f"{self.method}, {point.field}={point.value}"

    @property
    def title(self) -> str:
        """Method and data set, in words."""
        return f"{self.method} on {self.announced.data.name}"

    @property
    def resolved(self) -> ResolvedProtocol:
        """The protocol without any `auto`."""
        return self.announced.protocol.resolved

    @property
    def trained_method(self) -> str:
        """The method that was trained: of a control twin, the one that it is a twin of."""
        return self.announced.twin_of or self.method

    @property
    def searches(self) -> int:
        """Number of independent searches announced; 1 where nothing is searched."""
        return self.announced.budget.searches

    @property
    def searched(self) -> bool:
        """Whether parameters are searched."""
        return self.announced.budget.trials > 0

    # --- how far it is

    @property
    def complete(self) -> bool:
        """Whether every promised reproduction of every search has its test scores."""
        return len(self.tests) == self.searches * self.announced.budget.reproductions

    @property
    def failed(self) -> bool:
        """Whether a search ended with nothing to select: every trial of it diverged."""
        return self.searched and any(selection.trial is None for selection in self.selections)

    @property
    def ended(self) -> bool:
        """Whether the study is over: complete, or failed for good."""
        return self.complete or self.failed

    # --- its runs and scores

    def run_entries(self) -> Iterator[RunEntry]:
        """Yield all its runs in order, those of trials and those of reproductions."""
        for trial in self.trials:
            yield from trial.runs
        yield from self.reproductions

    @property
    def runs(self) -> set[str]:
        """Keys of all its runs, of trials and reproductions."""
        return {entry.key for entry in self.run_entries()}

    def trials_of(self, search: int) -> list[Trial]:
        """Return the trials of one search, in order."""
        return [trial for trial in self.trials if trial.search == search]

    @property
    def selection(self) -> Selection | None:
        """The choice of the search that validates best; None before all is reproduced.

        Best by mean validation MAP@R over the search's reproductions and all folds, the first among
        equals.
        """
        if self.failed or len(self.reproductions) < self.announced.budget.reproduction_runs:
            return None
        by_search: list[list[float]] = [[] for _ in range(self.searches)]
        for entry in self.reproductions:
            by_search[entry.search].append(entry.validation["map_at_r"])
        means = [sum(values) / len(values) if values else 0.0 for values in by_search]
        return self.selections[means.index(max(means))]

    def test_of(self, entry: Reproduction) -> TestScores:
        """Return the test scores of the reproduction that a run belongs to."""
        place = entry.search, entry.reproduction
        return next(test for test in self.tests if (test.search, test.reproduction) == place)

    def scores(self, setting: Setting, metric: str) -> list[float]:
        """Return a test score of each reproduction of each search, in order."""
        return [test.scores(setting)[metric] for test in self.tests]

    def by_search(self, setting: Setting, metric: str) -> list[list[float]]:
        """Return the test scores of the reproductions, search by search."""
        found: list[list[float]] = [[] for _ in range(self.searches)]
        for test in self.tests:
            found[test.search].append(test.scores(setting)[metric])
        return found

    def units(self, setting: Setting, metric: str) -> list[float]:
        """Return the independent values that intervals rest on.

        They are the mean of each search, or each reproduction of the only search.
        """
        if self.searches == 1:
            return self.scores(setting, metric)
        return [sum(values) / len(values) for values in self.by_search(setting, metric)]


def _check_size(announced: Preregistration, where: str) -> None:
    """Raise `BadRecord` where so much was announced that going through it would not end."""
    for name in ("searches", "trials", "reproductions", "folds"):
        for part in (announced.budget, announced.protocol.resolved):
            if getattr(part, name) > MOST:
                raise BadRecord(
                    f"{where}, line 1 (preregistration): it announces {getattr(part, name)} {name},"
                    f" more than {MOST}: it was altered{RESTORE}"
                )


def classes_file(folder: Path, search: int, reproduction: int) -> Path:
    """Return the file with the test scores of single classes of one reproduction.

    `folder` is that of the study.
    """
    return folder / "classes" / f"{search}-{reproduction}.npz"


def study_records(store: Store, extent: Extent | None = None) -> list[StudyRecord]:
    """Return every study of a store that has got as far as its preregistration.

    With an extent, return them as they were when the store had got that far.
    """
    counts = dict.fromkeys(store.studies()) if extent is None else extent.studies
    return [
        record
        for key, count in counts.items()
        if (record := read_record(store.study(key), count)) is not None
    ]


def readable_records(store: Store) -> list[StudyRecord]:
    """Return the studies whose ledgers can be read; `verify` reports the others and why."""
    found = []
    for key in store.studies():
        with suppress(Exception):  # whatever fails here says nothing of the other studies
            found.append(read_record(store.study(key)))
    return [record for record in found if record is not None]


def read_record(folder: Path, count: int | None = None) -> StudyRecord | None:
    """Return the record of the study in this folder, None where its ledger has no line yet.

    With `count`, only so many lines of the ledger are read.
    """
    path = folder / "ledger.jsonl"
    lines = read(path)[:count]
    return StudyRecord.of(folder.name, lines, str(path)) if lines else None


def write_record(folder: Path, lines: Sequence[Line]) -> StudyRecord:
    """Write `study.json`, the ledger in the form that people and reports read."""
    record = StudyRecord.of(folder.name, lines, str(folder / "ledger.jsonl"))
    write_atomically(folder / "study.json", pretty(record.to_json()))
    return record


def peek_of(
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
