"""`assay status`: what is done, failed, running and left, of a bench that runs and of one that is
dead; nothing is written.
"""

import json
import os
import re
import shutil
import socket
from dataclasses import asdict, replace

import pytest

from assay.hashing import pretty
from assay.records.ledger import Ledger
from assay.records.origin import SweepPoint
from assay.records.progress import Board, StudyState, TimeLeft, read_progress
from assay.records.run import Timing
from assay.records.store import Store
from assay.status import CLOCKS, status_of
from entries import announcement, budget, reproduction, run_entry, scored, seal, selection, trial

FOLDS, SECONDS = 4, 30.0
HASH = "ab" * 32


def run_in(store, name):
    """A finished run with its clock; its entry in a ledger."""
    key = f"{abs(hash(name)):064x}"[-64:]
    folder = store.run(key)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    timing = Timing(SECONDS, "2026-01-01T00:00:00+00:00", "here", "x86_64")
    (folder / "timing.json").write_text(json.dumps(timing.to_json()))
    return run_entry(key, 0.3)


def study_in(
    store,
    method,
    *,
    tried=0,
    reproduced=0,
    tested=0,
    trials=3,
    reproductions=2,
    pruned=0,
    sweep=None,
    key=None,
    baseline=False,
):
    """A study that has got so far; its key."""
    key = key or f"{len(store.studies()):064x}"
    ledger = Ledger(store.study(key) / "ledger.jsonl")
    own = budget(trials=trials, reproductions=reproductions, folds=FOLDS)
    announced = announcement(method, data="birds", own_budget=own, sweep=sweep)
    ledger.record(replace(announced, method=replace(announced.method, baseline=baseline)))
    for number in range(tried):
        few = number >= tried - pruned
        runs = [run_in(store, (key, "trial", number, fold)) for fold in range(1 if few else FOLDS)]
        ledger.record(trial(number, None if few else 0.3 + number / 100, runs=runs))
    if tried == trials:
        ledger.record(selection(0 if trials else None))
    for number in range(reproduced):
        run = run_in(store, (key, "reproduction", number))
        ledger.record(reproduction(*divmod(number, FOLDS), key=run.key))
    if tested:
        ledger.record(seal())
    for number in range(tested):
        ledger.record(scored(number))
    return key


def driven(store):
    """As if this process drove the store."""
    (store.root / "driver.json").write_text(
        json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
    )


def board(store, *states, left=None, workers=2, longer=False):
    Board(store).post(states, left and TimeLeft(left, longer), workers)


def state_of(store, called, *arguments, **more):
    """What the driver says of the study that is called so."""
    return StudyState(
        next(one.study for one in status_of(store).studies if one.method == called),
        called,
        *arguments,
        **more,
    )


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "store")


def states(store):
    return {study.method: study.state for study in status_of(store).studies}


# --- what is said ---------------------------------------------------------------------------------


def test_each_study_is_told_by_its_ledger(store):
    study_in(store, "searching", tried=2)
    study_in(store, "reproducing", tried=3)
    study_in(store, "scoring", tried=3, reproduced=8, tested=1)
    study_in(store, "done", tried=3, reproduced=8, tested=2)
    driven(store)
    assert states(store) == {
        "searching": "searching, trial 3 of 3",
        "reproducing": "reproducing",
        "scoring": "scoring the test half",
        "done": "done",
    }
    found = {study.method: (study.done, study.total) for study in status_of(store).studies}
    assert found == {
        "searching": (8, 20),
        "reproducing": (12, 20),
        "scoring": (20, 20),
        "done": (20, 20),
    }
    assert (status_of(store).done, status_of(store).total) == (60, 80)


def test_a_study_whose_driver_is_dead_has_stopped(store):
    study_in(store, "triplet", tried=1)
    assert states(store) == {"triplet": "stopped while searching, trial 2 of 3"}


def test_a_study_that_the_driver_does_not_name_is_not_under_way(store):
    study_in(store, "triplet", tried=1)
    study_in(store, "contrastive", tried=1)
    board(store, state_of(store, "contrastive", 3, 20, stage="search", trial=1, done=4))
    driven(store)
    assert states(store) == {
        "triplet": "stopped while searching, trial 2 of 3",
        "contrastive": "searching, trial 2 of 3",
    }


def test_what_was_given_up_is_not_waited_for(store):
    study_in(store, "triplet", tried=3, pruned=2)
    assert [(study.done, study.total) for study in status_of(store).studies] == [(6, 14)]


def test_a_fixed_baseline_has_one_run(store):
    ledger = Ledger(store.study(HASH) / "ledger.jsonl")
    own = budget(trials=0, folds=FOLDS, reproduction_runs=1)
    ledger.record(announcement("pretrained", own_budget=own))
    assert [(study.done, study.total) for study in status_of(store).studies] == [(0, 1)]


def test_all_trials_diverged_is_a_failure_for_good(store):
    ledger = Ledger(store.study(study_in(store, "triplet", tried=2)) / "ledger.jsonl")
    for line in list(ledger.lines):
        ledger.record(line.entry())
    ledger.record(selection(None, parameters=None))
    (study,) = status_of(store).studies
    assert (study.state, study.ended, study.done, study.total) == (
        "failed: all trials of a search diverged",
        True,
        8,
        8,
    )


def test_why_a_study_failed_is_what_its_driver_said(assay, store):
    study_in(store, "triplet", tried=1)
    error = "Traceback (most recent call last):\n  File ...\nRuntimeError: no memory\n"
    board(store, state_of(store, "triplet", 3, 20, stage="failed", trial=1, done=4, error=error))
    (study,) = status_of(store).studies
    assert (study.state, study.ended, study.error) == (
        "failed: RuntimeError: no memory",
        False,
        error,
    )
    assert "failed: RuntimeError: no memory" in assay("status", store.root)[1]


def test_runs_that_are_not_in_the_ledger_yet_are_counted_by_what_the_driver_said(store):
    study_in(store, "triplet", tried=3)
    board(store, state_of(store, "triplet", 3, 20, stage="reproductions", done=17))
    assert [(study.done, study.total) for study in status_of(store).studies] == [(17, 20)]


def test_what_a_driver_said_is_of_the_study_that_it_named(store):
    old, new = study_in(store, "triplet", tried=1), study_in(store, "triplet", tried=2)
    board(store, StudyState(new, "triplet", 3, 20, stage="failed", error="no memory"))
    found = {study.study: study.error for study in status_of(store).studies}
    assert found == {old: None, new: "no memory"}


def test_points_of_a_sweep_stand_under_their_base_in_the_order_of_their_values(assay, store):
    other = study_in(store, "contrastive", tried=3, reproduced=8, tested=2)
    base = study_in(store, "triplet", tried=3, reproduced=8, tested=2, key="f" * 64)
    points = {
        value: study_in(
            store,
            "triplet",
            trials=0,
            sweep=SweepPoint("dim", value, ("64", "8", "16"), base, "quick.v1"),
        )
        for value in ("8", "16", "64")
    }
    found = [study.study for study in status_of(store).studies]
    assert found == [other, base, points["64"], points["8"], points["16"]]
    out = assay("status", store.root)[1]
    assert [line.split("   ")[0] for line in out.splitlines() if "triplet, dim" in line] == [
        f"  triplet, dim={value}" for value in (64, 8, 16)
    ]


def test_a_study_of_a_sweep_is_known_by_its_value(store):
    base = study_in(store, "triplet", tried=3, reproduced=8, tested=2)
    sweep = SweepPoint("dim", "8", ("8",), base, "quick.v1")
    point = study_in(store, "triplet", trials=0, sweep=sweep)
    board(store, state_of(store, "triplet, dim=8", 0, 8, stage="reproductions", done=5))
    assert {study.study: study.done for study in status_of(store).studies} == {base: 20, point: 5}


def test_a_broken_ledger_is_told_and_hides_nothing_else(assay, store):
    study_in(store, "triplet", tried=1)
    broken = store.study(study_in(store, "contrastive", tried=1)) / "ledger.jsonl"
    broken.write_text("{}\n")
    code, out, _ = assay("status", store.root)
    assert code == 0
    assert "line 1 is not a ledger line" in out and "stopped while searching, trial 2 of 3" in out


# --- who drives, and how long ---------------------------------------------------------------------


def test_the_time_left_of_a_running_bench_is_what_its_driver_reckons(assay, store):
    study_in(store, "triplet", tried=1)
    board(store, state_of(store, "triplet", 3, 20, done=4), left=3 * 3600.0)
    driven(store)
    out = assay("status", store.root)[1]
    assert f"running: process {os.getpid()} on {socket.gethostname()}\n" in out
    assert "4 of 20 runs done, about 3 h 00 min left" in out


def test_a_bench_that_takes_longer_than_expected_says_so(assay, store):
    study_in(store, "triplet", tried=1)
    board(store, state_of(store, "triplet", 3, 20, done=4), left=60.0, longer=True)
    driven(store)
    out = assay("status", store.root)[1]
    assert "4 of 20 runs done, longer than expected, at least 1 min 00 s left" in out
    assert json.loads(assay("status", store.root, "--json")[1])["longer"] is True


def test_a_driver_that_has_been_silent_for_long_is_told(assay, store):
    study_in(store, "triplet", tried=1)
    board(store, state_of(store, "triplet", 3, 20))
    said = json.loads(store.progress.read_text())
    store.progress.write_text(json.dumps({**said, "at": said["at"] - 300}))
    driven(store)
    assert re.search(
        r"running: process \d+ on .*, silent for 5 min 0\d s", assay("status", store.root)[1]
    )


def test_the_time_left_of_a_dead_bench_is_estimated_from_the_clocks_of_its_runs(assay, store):
    study_in(store, "triplet", tried=1)
    study_in(store, "contrastive")
    board(
        store,
        state_of(store, "triplet", 3, 20, done=4),
        state_of(store, "contrastive", 3, 20),
        left=1.0,
    )
    out = assay("status", store.root)[1]
    left = round((16 + 20) * SECONDS / 2 / 60)
    assert re.search(r"not running; its driver last reported \d+ s ago", out)
    assert (
        f"4 of 40 runs done, about {left} min 00 s with 2 workers once it is started again" in out
    )
    assert "to continue, run the same command again" in out


def test_a_method_without_a_finished_run_does_not_take_as_long_as_a_baseline(assay, store):
    study_in(store, "as_is", tried=3, reproduced=8, tested=2, baseline=True)
    study_in(store, "triplet")
    assert status_of(store).seconds_left is None


def test_less_than_a_second_is_not_called_0_s(assay, store, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SECONDS", 0.001)
    study_in(store, "triplet", tried=1)
    assert "runs done, less than a second once it is started" in assay("status", store.root)[1]


def test_without_a_clock_there_is_no_estimate(assay, store):
    study_in(store, "triplet")
    assert status_of(store).seconds_left is None
    assert "0 of 20 runs done\n" in assay("status", store.root)[1]


def test_a_finished_bench_has_nothing_left(assay, store):
    study_in(store, "triplet", tried=3, reproduced=8, tested=2)
    board(store, state_of(store, "triplet", 3, 20, done=20, stage="done"), left=0.0)
    out = assay("status", store.root)[1]
    assert out.startswith("not running\n20 of 20 runs done\n")
    assert "again" not in out


def test_runs_half_done_are_counted(assay, store):
    study_in(store, "triplet", tried=1)
    done = status_of(store).studies[0].study
    finished = Ledger(store.study(done) / "ledger.jsonl").lines[1].body["runs"][0]["key"]
    for key in ("cd" * 32, "ef" * 32, finished):
        store.partial(key).mkdir(parents=True)
    assert status_of(store).under_way == ("cd" * 32, "ef" * 32)
    assert "4 of 20 runs done, 2 half done" in assay("status", store.root)[1]


def test_a_spoilt_note_of_the_driver_counts_for_nothing(store):
    study_in(store, "triplet", tried=1)
    for text in ("", "{", "[]", "3"):
        store.progress.write_text(text)
        assert status_of(store).done == 4


# --- how it is told -------------------------------------------------------------------------------


def test_programs_get_all_of_it(assay, store):
    study_in(store, "triplet", tried=1)
    board(store, state_of(store, "triplet", 3, 20, done=4), left=60.0)
    driven(store)
    said = json.loads(assay("status", store.root, "--json")[1])
    expected = json.loads(json.dumps(asdict(status_of(store))))
    assert {name for name in said if said[name] != expected[name]} <= {"silent"}
    assert (said["done"], said["total"], said["seconds_left"], said["workers"]) == (4, 20, 60.0, 2)


def test_nothing_is_written_and_a_read_only_store_will_do(assay, store):
    study_in(store, "triplet", tried=1)
    paths = sorted([store.root, *store.root.rglob("*")])
    before = {path: path.stat().st_mtime_ns for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert assay("status", store.root)[0] == 0
        assert assay("status", store.root, "--watch")[0] == 0
        assert {
            path: path.stat().st_mtime_ns for path in sorted([store.root, *store.root.rglob("*")])
        } == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_few_runs_are_opened_however_many_there_are(store, monkeypatch):
    study_in(store, "triplet", tried=200, trials=300)
    study_in(store, "contrastive", tried=3, reproduced=8, tested=2)
    opened = []
    monkeypatch.setattr(
        "assay.records.codec.read_json",
        lambda path: opened.append(path) or json.loads(path.read_text()),
    )
    assert status_of(store).seconds_left is not None
    assert len([path for path in opened if path.name == "timing.json"]) == CLOCKS


@pytest.fixture
def bench_under_way(store, monkeypatch):
    """A bench that goes on at each wait: a trial, nothing, another trial, the end."""
    key = study_in(store, "triplet", tried=1)
    driven(store)

    def go_on(tried):
        def change():
            shutil.rmtree(store.study(key))
            shutil.rmtree(store.root / "runs")
            study_in(store, "triplet", tried=tried, key=key)

        return change

    steps = iter([go_on(2), lambda: None, go_on(3), (store.root / "driver.json").unlink])
    monkeypatch.setattr("assay.cli.stores.time.sleep", lambda _: next(steps)())
    return store


def test_watching_in_a_log_is_a_line_for_every_change_until_the_driver_has_ended(
    assay, bench_under_way
):
    code, out, _ = assay("status", bench_under_way.root, "--watch")
    assert code == 0
    assert out.splitlines() == [
        "4 of 20 runs done: triplet searching, trial 2 of 3",
        "8 of 20 runs done: triplet searching, trial 3 of 3",
        "12 of 20 runs done: triplet reproducing",
        (
            "not running: 12 of 20 runs done, about 2 min 00 s once it is started again: triplet"
            " stopped while reproducing"
        ),
    ]


def test_watching_for_programs_is_a_document_a_line(assay, bench_under_way):
    lines = assay("status", bench_under_way.root, "--watch", "--json")[1].splitlines()
    assert [json.loads(line)["done"] for line in lines] == [4, 8, 12, 12]


def test_watching_on_a_terminal_redraws_a_table(assay, bench_under_way, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda self: True))
    code, out, _ = assay("status", bench_under_way.root, "--watch")
    assert code == 0
    assert (
        "4 of 20 runs done" in out
        and "12 of 20 runs done, about 2 min 00 s once it is started again" in out
    )
    assert out.count("best validation MAP@R") >= 5


def test_watching_ends_with_ctrl_c(assay, store, monkeypatch):
    study_in(store, "triplet", tried=1)
    driven(store)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("assay.cli.stores.time.sleep", interrupt)
    assert assay("status", store.root, "--watch")[0] == 130


def test_a_store_without_a_study_says_so(assay, store):
    code, out, _ = assay("status", store.root)
    assert code == 0
    assert out.startswith("not running\nno study yet")
    assert json.loads(assay("status", store.root, "--json")[1])["studies"] == []


def test_an_announcement_that_is_being_written_is_no_study_yet(store):
    folder = store.study(HASH)
    folder.mkdir(parents=True)
    (folder / "ledger.jsonl").write_text('{"body": ')
    assert [study.state for study in status_of(store).studies] == ["begun, nothing recorded yet"]
    (folder / "study.json").write_text(pretty({}))
    assert status_of(store).total == 0


def test_posts_that_follow_at_once_are_left_out_but_for_the_last(store):
    board = Board(store)
    for left, last, expected in ((30.0, False, 30.0), (20.0, False, 30.0), (10.0, True, 10.0)):
        board.post((), TimeLeft(left), 2, last=last)
        assert read_progress(store).seconds_left == expected
