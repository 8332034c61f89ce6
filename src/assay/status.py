"""How far the studies of a store are: their ledgers, what the driver last posted, unfinished runs.

Nothing is written. Of the runs only a few `timing.json` are read, and only where no driver is at
work and the time left must be estimated.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.errors import BadInput
from assay.records.ledger import read
from assay.records.progress import StudyState, read_progress
from assay.records.run import read_timing
from assay.records.store import Store
from assay.records.study import StudyRecord

CLOCKS = 40
"""Number of finished runs of a study whose times an estimate reads."""


@dataclass(frozen=True)
class Standing:
    """How far one study is.

    Args:
        study: its key.
        method: name of the method, with the value where it is a point of a sweep.
        data: name of the data set.
        protocol: name of the protocol.
        base: key of the study whose parameters it runs, where it is a point of a sweep.
        trials: finished trials of all searches.
        trials_announced: trials of all searches when it is done.
        best: highest mean validation MAP@R of a trial so far.
        reproduction_runs: finished runs of reproductions.
        reproduction_runs_announced: runs of reproductions when it is done.
        done: finished runs, by its ledger and its driver.
        total: runs in all; a trial that is given up takes fewer than announced.
        state: its state in words.
        ended: whether nothing is left to do: it is done, or failed for good.
        error: the whole error where it failed.
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
        driver: process that drives it; None: there is none.
        silent: seconds since a driver last posted its progress; None: none has.
        done: finished runs.
        total: runs in all.
        under_way: keys of unfinished runs that can be resumed.
        workers: number of processes of the last driver; None: not known.
        seconds_left: seconds until all is done, by the driver's estimate or by the times of the
            finished runs; None: not known.
        longer: whether the driver's work takes longer than was expected.
        studies: each study, points of a sweep after their base.
    """

    driver: str | None
    silent: float | None
    done: int
    total: int
    under_way: tuple[str, ...]
    workers: int | None
    seconds_left: float | None
    longer: bool
    studies: tuple[Standing, ...]


def status_of(store: Store) -> Status:
    """Return how far a store and its studies are."""
    driver, board = store.driver(), read_progress(store)
    posted = {state.study: state for state in board.studies} if board else {}
    records: dict[str, StudyRecord] = {}
    begun: dict[str, str] = {}
    unread: list[Standing] = []
    for key in store.studies():
        path = store.study(key) / "ledger.jsonl"
        try:
            if lines := read(path):
                records[key], begun[key] = StudyRecord.of(key, lines, str(path)), lines[0].at
            else:
                unread.append(_nothing_known(key, "begun, nothing recorded yet", ended=False))
        except BadInput as error:
            unread.append(_nothing_known(key, str(error), ended=True))
    driven = set() if driver is None else set(posted) or {*store.studies()}
    studies = [_standing(record, posted.get(key), key in driven) for key, record in records.items()]
    workers = board.workers if board else len(os.sched_getaffinity(0))
    return Status(
        driver=driver,
        silent=max(0.0, time.time() - board.at) if board else None,
        done=sum(study.done for study in studies),
        total=sum(study.total for study in studies),
        under_way=tuple(
            folder.name
            for folder in sorted((store.root / "partial").glob("*/*"))
            if not store.has_run(folder.name)
        ),
        workers=board.workers if board else None,
        seconds_left=(board.seconds_left if board else None)
        if driver
        else _estimate(store, records, studies, workers),
        longer=bool(driver and board and board.longer),
        studies=tuple(_in_order(records, begun, [*unread, *studies])),
    )


def _standing(record: StudyRecord, posted: StudyState | None, driven: bool) -> Standing:
    """Return how far a study is by its ledger, and after that by what its driver posted."""
    budget = record.announced.budget
    trials = budget.searches * budget.trials
    saved = sum(budget.trial_folds - len(trial.runs) for trial in record.trials)
    total = trials * budget.trial_folds + budget.reproduction_runs - saved
    done, ended = len(list(record.run_entries())), record.ended
    error = posted.error if posted else None
    values = [trial.map_at_r for trial in record.trials if trial.map_at_r is not None]
    point = record.announced.sweep
    return Standing(
        study=record.key,
        method=record.called,
        data=record.announced.data.name,
        protocol=record.announced.protocol.name,
        base=point.base if point else None,
        trials=len(record.trials),
        trials_announced=trials,
        best=max(values, default=None),
        reproduction_runs=len(record.reproductions),
        reproduction_runs_announced=budget.reproduction_runs,
        done=done if ended else min(max(done, posted.done if posted else 0), total),
        total=done if ended else total,
        state=_state(record, error, driven),
        ended=ended,
        error=None if ended else error,
    )


def _state(record: StudyRecord, error: str | None, driven: bool) -> str:
    """Return the state of a study in words."""
    if record.complete:
        looks = len(record.looks)
        return f"done, {looks} look{'s' * (looks != 1)} at test" if looks else "done"
    if record.failed:
        return "failed: all trials of a search diverged"
    if error:
        return f"failed: {last_line(error)}"
    tried, announced = len(record.trials), record.searches * record.announced.budget.trials
    doing = (
        "scoring the test half"
        if record.seal
        else f"searching, trial {tried + 1} of {announced}"
        if tried < announced
        else "reproducing"
    )
    return doing if driven else f"stopped while {doing}"


def _nothing_known(key: str, state: str, ended: bool) -> Standing:
    return Standing(key, key[:12], "", "", None, 0, 0, None, 0, 0, 0, 0, state, ended)


def last_line(text: str) -> str:
    r"""Return the last line of a traceback, which says what happened.

    >>> last_line("Traceback (most recent call last):\n  ...\nValueError: too few\n")
    'ValueError: too few'
    """
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _estimate(
    store: Store, records: Mapping[str, StudyRecord], studies: Sequence[Standing], workers: int
) -> float | None:
    """Return the seconds that the runs that are left would take.

    A method without a finished run takes as long as the others that are trained do on average.
    """
    left = {study.study: study.total - study.done for study in studies if not study.ended}
    if not any(left.values()):
        return None
    seconds = {key: _seconds(store, records[key]) for key in left}
    if not any(seconds.values()):
        trained = {
            key: record
            for key, record in records.items()
            if not record.announced.method.baseline or key in left
        }
        seconds = {key: _seconds(store, record) for key, record in trained.items()}
    known = [second for each in seconds.values() for second in each]
    if not known:
        return None
    usual = sum(known) / len(known)
    means = {key: sum(each) / len(each) if each else usual for key, each in seconds.items()}
    return sum(left[key] * means[key] for key in left) / workers


def _seconds(store: Store, record: StudyRecord) -> list[float]:
    """Return how long the study's last runs took."""
    keys = [entry.key for entry in record.run_entries()][-CLOCKS:]
    return [timing.seconds for key in keys if (timing := read_timing(store.run(key)))]


def _in_order(
    records: Mapping[str, StudyRecord], begun: Mapping[str, str], studies: Sequence[Standing]
) -> Iterator[Standing]:
    """Yield studies as they were begun, data set by data set.

    Points of a sweep come after their base, in the order of their values.
    """

    def order(study: Standing) -> tuple[str, ...]:
        return study.data, study.protocol, begun.get(study.study, ""), study.method

    def place(study: Standing) -> tuple[str, int]:
        point = records[study.study].announced.sweep
        return (point.field, point.values.index(point.value)) if point else ("", 0)

    known = {study.study for study in studies}
    for study in sorted((one for one in studies if one.base not in known), key=order):
        yield study
        yield from sorted((one for one in studies if one.base == study.study), key=place)
