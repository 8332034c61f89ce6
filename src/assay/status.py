"""How far the studies of a store are, from outside: their ledgers, what the driver last said, and
what is half done.

Nothing is written, and no run is opened but a few of their clocks, where nobody drives and the time
left must be estimated.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.files import read_json
from assay.records.ledger import Line, read
from assay.records.store import Store

CLOCKS = 40
"""Finished runs of a study whose times are looked up for an estimate."""


@dataclass(frozen=True)
class Standing:
    """How far one study is.

    Args:
        study: its key.
        method: that is studied, with the value where it is a point of a sweep.
        data: name of the data set.
        protocol: name of the protocol.
        base: key of the study whose parameters it runs, where it is a point of a sweep.
        trials: of all searches, that have ended.
        trials_announced: how many there will be.
        best: highest mean validation MAP@R of a trial so far.
        reproduction_runs: that have ended.
        reproduction_runs_announced: how many there will be.
        done: runs finished, as far as anyone has said.
        total: runs in all; a trial that is given up takes fewer than was thought.
        state: in words.
        ended: whether nothing is left to do: it is done, or failed for good.
        error: why it failed, in full, where it did.
    """

    study: str
    method: str
    data: str
    protocol: str
    base: str | None
    trials: int
    trials_announced: int
    best: float | None
    reproduction_runs: int
    reproduction_runs_announced: int
    done: int
    total: int
    state: str
    ended: bool
    error: str | None = None


@dataclass(frozen=True)
class Status:
    """How far a store is.

    Args:
        driver: who drives it, None: nobody.
        silent: seconds since a driver last said something; None: none ever has.
        done: runs finished.
        total: runs in all.
        under_way: keys of runs that have left something to go on from after a kill.
        workers: processes that the last driver had at work; None: it is not known.
        seconds_left: until all is done, as the driver reckons, or else by the times of the finished
            runs; None: not known.
        studies: each of them, points of a sweep after their base.
    """

    driver: str | None
    silent: float | None
    done: int
    total: int
    under_way: tuple[str, ...]
    workers: int | None
    seconds_left: float | None
    studies: tuple[Standing, ...]


def status_of(store: Store) -> Status:
    """Where everything stands now."""
    driver, board = store.driver(), _board(store)
    ledgers = [_Ledger.of(store, key) for key in store.studies()]
    said = {state["study"]: state for state in board.get("studies", []) if "study" in state}
    driven = set() if driver is None else set(said) or {ledger.key for ledger in ledgers}
    studies = [ledger.standing(said.get(ledger.key), ledger.key in driven) for ledger in ledgers]
    workers = board.get("workers")
    left = (
        board.get("seconds_left")
        if driver
        else _estimate(store, ledgers, studies, workers or _cores())
    )
    at = board.get("at")
    return Status(
        driver=driver,
        silent=None if at is None else max(0.0, time.time() - at),
        done=sum(study.done for study in studies),
        total=sum(study.total for study in studies),
        under_way=tuple(_under_way(store)),
        workers=workers,
        seconds_left=left,
        studies=tuple(_in_order(ledgers, studies)),
    )


def _board(store: Store) -> dict[str, Any]:
    """What the driver last said; nothing where it never did."""
    try:
        return dict(read_json(store.progress))
    except (OSError, ValueError, TypeError):
        return {}


def _under_way(store: Store) -> Iterator[str]:
    for folder in sorted((store.root / "partial").glob("*/*")):
        if not store.has_run(folder.name):
            yield folder.name


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class _Ledger:
    """The ledger of a study, by kind of line; without any where it cannot be read."""

    key: str
    path: Path
    lines: Sequence[Line]
    problem: str | None = None

    @classmethod
    def of(cls, store: Store, key: str) -> "_Ledger":
        path = store.study(key) / "ledger.jsonl"
        try:
            return cls(key, path, read(path))
        except BadInput as error:
            return cls(key, path, [], str(error))

    def bodies(self, kind: str) -> list[Any]:
        return [line.body for line in self.lines if line.kind == kind]

    @property
    def announced(self) -> dict[str, Any]:
        return dict(self.lines[0].body)

    @property
    def point(self) -> dict[str, Any]:
        """Of a sweep; empty where it is part of none."""
        return dict(self.announced.get("sweep") or {}) if self.lines else {}

    @property
    def called(self) -> str:
        """As progress names the study."""
        name, point = str(self.announced["method"]["name"]), self.point
        return f"{name}, {point['field']}={point['value']}" if point else name

    @property
    def folds(self) -> int:
        """Runs of a reproduction; a fixed baseline has one for all folds."""
        budget = self.announced["budget"]
        return int(budget["reproduction_runs"]) // (
            int(budget["searches"]) * int(budget["reproductions"])
        )

    @property
    def trials_announced(self) -> int:
        """Trials of all searches."""
        return int(self.announced["budget"]["searches"]) * int(self.announced["budget"]["trials"])

    @property
    def announced_runs(self) -> int:
        budget = self.announced["budget"]
        return self.trials_announced * int(budget["trial_folds"]) + int(budget["reproduction_runs"])

    @property
    def runs(self) -> list[str]:
        """Keys of the runs that are recorded."""
        tried = [run["key"] for trial in self.bodies("trial") for run in trial["runs"]]
        return tried + [run["key"] for run in self.bodies("reproduction")]

    def standing(self, said: dict[str, Any] | None, driven: bool) -> Standing:
        """How far the study is by its ledger and, for what is not in there yet, by what its driver
        said.
        """
        if not self.lines:
            return _nothing_known(
                self.key, self.problem or "begun, nothing recorded yet", bool(self.problem)
            )
        said, trials, budget = said or {}, self.bodies("trial"), self.announced["budget"]
        saved = sum(int(budget["trial_folds"]) - len(trial["runs"]) for trial in trials)
        total, done = self.announced_runs - saved, len(self.runs)
        error = said.get("error")
        state, ended = self._state(said, driven)
        return Standing(
            study=self.key,
            method=self.called,
            data=str(self.announced["data"]["name"]),
            protocol=str(self.announced["protocol"]["name"]),
            base=self.point.get("base"),
            trials=len(trials),
            trials_announced=self.trials_announced,
            best=max(
                (trial["map_at_r"] for trial in trials if trial["map_at_r"] is not None),
                default=None,
            ),
            reproduction_runs=len(self.bodies("reproduction")),
            reproduction_runs_announced=int(budget["reproduction_runs"]),
            done=done if ended else min(max(done, int(said.get("done", 0))), total),
            total=done if ended else total,
            state=state,
            ended=ended,
            error=None if ended or error is None else str(error),
        )

    def _state(self, said: dict[str, Any], driven: bool) -> tuple[str, bool]:
        """In words, and whether nothing is left to do."""
        budget, selection = self.announced["budget"], self.bodies("selection")
        if len(self.bodies("test")) == int(budget["searches"]) * int(budget["reproductions"]):
            looks = len(self.bodies("look"))
            return (f"done, {looks} look{'s' * (looks != 1)} at test" if looks else "done"), True
        if budget["trials"] and any(choice["trial"] is None for choice in selection):
            return "failed: all trials of a search diverged", True
        if said.get("error"):
            return f"failed: {last_line(str(said['error']))}", False
        doing = self._doing()
        return doing if driven else f"stopped while {doing}", False

    def _doing(self) -> str:
        if self.bodies("seal"):
            return "scoring the test half"
        tried, announced = len(self.bodies("trial")), self.trials_announced
        return (
            f"searching, trial {tried + 1} of {announced}" if tried < announced else "reproducing"
        )


def _nothing_known(key: str, state: str, ended: bool) -> Standing:
    return Standing(key, key[:12], "", "", None, 0, 0, None, 0, 0, 0, 0, state, ended)


def last_line(text: str) -> str:
    r"""Of a traceback, the line that says what happened.

    >>> last_line("Traceback (most recent call last):\n  ...\nValueError: too few\n")
    'ValueError: too few'
    """
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _estimate(
    store: Store, ledgers: Sequence[_Ledger], studies: Sequence[Standing], workers: int
) -> float | None:
    """Seconds that the runs that are left would take; a method without a finished run takes what
    the others do on average.
    """
    left = {study.study: study.total - study.done for study in studies if not study.ended}
    if not any(left.values()):
        return None
    clocks = {ledger.key: _seconds(store, ledger) for ledger in ledgers if ledger.key in left}
    if not any(clocks.values()):
        clocks = {ledger.key: _seconds(store, ledger) for ledger in ledgers}
    known = [second for seconds in clocks.values() for second in seconds]
    if not known:
        return None
    usual = sum(known) / len(known)
    each = {
        key: sum(seconds) / len(seconds) if (seconds := clocks.get(key)) else usual for key in left
    }
    return sum(left[key] * each[key] for key in left) / workers


def _seconds(store: Store, ledger: _Ledger) -> list[float]:
    """How long the study's last runs took."""
    found = []
    for key in ledger.runs[-CLOCKS:]:
        try:
            found.append(float(read_json(store.run(key) / "timing.json")["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _in_order(ledgers: Sequence[_Ledger], studies: Sequence[Standing]) -> Iterator[Standing]:
    """As they were begun, data set by data set; points of a sweep after their base, in the order of
    their values.
    """
    by_key = {study.study: study for study in studies}
    begun = {ledger.key: ledger.lines[0].at if ledger.lines else "" for ledger in ledgers}
    places = {ledger.key: _value_place(ledger.point) for ledger in ledgers if ledger.point}

    def order(study: Standing) -> tuple[Any, ...]:
        return study.data, study.protocol, begun[study.study], study.method

    for study in sorted((one for one in studies if one.base not in by_key), key=order):
        yield study
        yield from sorted(
            (one for one in studies if one.base == study.study), key=lambda one: places[one.study]
        )


def _value_place(point: dict[str, Any]) -> tuple[str, int]:
    return str(point["field"]), list(point["values"]).index(point["value"])
