"""Studies with untyped lines, for readers that have not been converted to `assay.records.study` yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.records.ledger import Line, read
from assay.records.store import Store


@dataclass(frozen=True)
class StudyRecord:
    """What a ledger says, by kind of line.

    Args:
        key: the study's key in the store.
        announced: the preregistration: protocol, data, method, space, budget, versions.
        preregistration: hash of that line, printed when the study began.
        trials: every finished trial, each with the number of its search, in order.
        selections: the choice of each search, in the order of the searches; empty before all
            searches have ended.
        reproductions: every finished reproduction run, each with the number of its search, in
            order.
        seal: the opening of the test half, None before it.
        tests: test scores of each reproduction of each search, in order.
        looks: every later look at the test half, in order.
        peek: test scores of checkpoints and trials that were not chosen, where they were kept; for
            the price of peeking only.
    """

    key: str
    announced: dict[str, Any]
    preregistration: str
    trials: list[dict[str, Any]]
    selections: list[dict[str, Any]]
    reproductions: list[dict[str, Any]]
    seal: dict[str, Any] | None
    tests: list[dict[str, Any]]
    looks: list[dict[str, Any]] = field(default_factory=list)
    peek: dict[str, Any] | None = None

    @classmethod
    def of(cls, key: str, lines: Sequence[Line]) -> "StudyRecord":
        """The record that these lines make."""
        by_kind: dict[str, list[Any]] = {}
        for line in lines:
            by_kind.setdefault(line.kind, []).append(line.body)
        return cls(
            key=key,
            announced=by_kind["preregistration"][0],
            preregistration=lines[0].hash,
            trials=by_kind.get("trial", []),
            selections=by_kind.get("selection", []),
            reproductions=by_kind.get("reproduction", []),
            seal=by_kind.get("seal", [None])[0],
            tests=by_kind.get("test", []),
            looks=by_kind.get("look", []),
            peek=by_kind.get("peek", [None])[0],
        )

    @property
    def method(self) -> str:
        """Name of the method studied."""
        return str(self.announced["method"]["name"])

    @property
    def searches(self) -> int:
        """How many independent searches were announced; 1 where nothing is searched."""
        return int(self.announced["budget"]["searches"])

    @property
    def searched(self) -> bool:
        """Whether parameters were searched, not given."""
        return int(self.announced["budget"]["trials"]) > 0

    @property
    def complete(self) -> bool:
        """Whether every promised reproduction of every search has its test scores."""
        return len(self.tests) == self.searches * int(self.announced["budget"]["reproductions"])

    @property
    def failed(self) -> bool:
        """Whether a search ended with nothing to select: every trial of it diverged."""
        return self.searched and any(selection["trial"] is None for selection in self.selections)

    @property
    def runs(self) -> set[str]:
        """Keys of all its runs, of trials and reproductions."""
        return {run["key"] for trial in self.trials for run in trial["runs"]} | {
            run["key"] for run in self.reproductions
        }

    @property
    def selection(self) -> dict[str, Any] | None:
        """The choice of the search that validates best, whose parameters are handed on; None before
        all is reproduced.

        Best by mean validation MAP@R over the search's reproductions and all folds, the first among
        equals.
        """
        if self.failed or len(self.reproductions) < int(
            self.announced["budget"]["reproduction_runs"]
        ):
            return None
        by_search: list[list[float]] = [[] for _ in range(self.searches)]
        for entry in self.reproductions:
            by_search[entry["search"]].append(float(entry["validation"]["map_at_r"]))
        means = [sum(values) / len(values) if values else 0.0 for values in by_search]
        return self.selections[means.index(max(means))]

    def test_of(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The test scores of the reproduction that a run belongs to."""
        return next(
            test
            for test in self.tests
            if all(test[name] == entry[name] for name in ("search", "reproduction"))
        )

    def scores(self, setting: str, metric: str) -> list[float]:
        """A test score of each reproduction of each search, in order; setting is concatenated or
        separated.
        """
        return [float(test[setting][metric]) for test in self.tests]

    def by_search(self, setting: str, metric: str) -> list[list[float]]:
        """The test scores of the reproductions, search by search."""
        found: list[list[float]] = [[] for _ in range(self.searches)]
        for test in self.tests:
            found[test["search"]].append(float(test[setting][metric]))
        return found

    def units(self, setting: str, metric: str) -> list[float]:
        """The independent values that intervals rest on: the mean of each search, or each
        reproduction of the only one.
        """
        if self.searches == 1:
            return self.scores(setting, metric)
        return [sum(values) / len(values) for values in self.by_search(setting, metric)]


def study_records(store: Store) -> list[StudyRecord]:
    """Every study of a store that has got as far as its preregistration."""
    return [
        record for key in store.studies() if (record := read_record(store.study(key))) is not None
    ]


def read_record(folder: Path) -> StudyRecord | None:
    """The record of the study in this folder, None where its ledger has no line yet."""
    lines = read(folder / "ledger.jsonl")
    return StudyRecord.of(folder.name, lines) if lines else None
