"""The time left: by iterations, and it never rises."""

import itertools
import math
from types import SimpleNamespace

import pytest

from assay.cli.show import time_left
from assay.records.progress import StudyState, TimeLeft
from assay.records.store import Store
from assay.run import compute
from assay.run.shares import SHARE_EVERY, ShareFile, SharesOfTasks
from assay.run.training import Workspace
from assay.study.bench import _RunningStudy
from assay.study.countdown import LONGER, Countdown
from heads import VIEW, runs_of


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def shown(paces, total=1000.0):
    """Return the times left that are shown while `paces` (iterations, seconds) pass."""
    clock, done = Clock(), 0.0
    countdown, found = Countdown(clock), []
    for iterations, seconds in paces:
        clock.now += seconds
        done += iterations
        found.append(countdown.left(done, total - done))
    return found


def test_nothing_is_known_before_the_first_iteration():
    assert shown([(0, 5.0)]) == [None]
    assert time_left(None) == ""


def test_at_an_even_pace_the_time_left_is_exact_and_falls_with_the_clock():
    found = shown([(100, 10.0)] * 10)
    assert [left.seconds for left in found] == pytest.approx([90.0 - 10 * i for i in range(10)])
    assert not any(left.longer for left in found)


@pytest.mark.parametrize(
    "paces",
    [
        [(100, 10.0)] * 3 + [(10, 60.0)] * 20,
        [(1, 10.0), (300, 1.0), (1, 40.0), (300, 2.0), (2, 90.0)],
        [(100, 10.0), (0, 300.0), (0, 300.0), (100, 1.0)],
    ],
    ids=["slower and slower", "up and down", "a stop"],
)
def test_the_time_left_never_rises(paces):
    seconds = [left.seconds for left in shown(paces)]
    assert seconds == sorted(seconds, reverse=True)


def test_work_that_turns_out_longer_says_so_and_names_the_least():
    """The estimate doubles: what was shown is kept, as the least that is left."""
    before, after = shown([(500, 10.0), (10, 20.0)])
    assert before == TimeLeft(10.0)
    assert after == TimeLeft(10.0, longer=True)
    assert time_left(after) == ", longer than expected, at least 10 s left"


def test_a_small_delay_is_no_news():
    _, after = shown([(500, 10.0), (10, 10.0 * (LONGER - 1))])
    assert not after.longer


def test_it_goes_by_iterations_not_by_runs():
    """One of two runs is done, and it was the short one: nine tenths are left."""
    clock = Clock()
    countdown = Countdown(clock)
    clock.now += 10.0
    assert countdown.left(100.0, 900.0) == TimeLeft(90.0)


# --- how far a task is ---


def test_a_task_tells_which_share_of_its_iterations_is_done(tmp_path):
    store, clock = Store.create(tmp_path), Clock()
    runs = [SimpleNamespace(key=f"{number}" * 64) for number in range(4)]
    file, shares = ShareFile(store, runs, clock), SharesOfTasks(store, clock)
    assert shares.now() == {}
    note = file.of_next(1)
    note(0.5)
    assert shares.now() == {}, "read at most once a second"
    clock.now += SHARE_EVERY
    assert shares.now() == {runs[0].key: pytest.approx(0.125)}
    file.ended(1)
    note = file.of_next(3)
    clock.now += SHARE_EVERY
    note(1 / 3)
    assert shares.now() == {runs[0].key: pytest.approx(0.5)}
    store.share(runs[0].key).write_text("")  # being written
    clock.now += SHARE_EVERY
    assert shares.now() == {}


@pytest.mark.parametrize("name", ["triplet_sampled", "triplet"])
def test_an_attempt_to_train_runs_as_a_stack_counts_none_of_them(name, tmp_path):
    """Runs that cannot be stacked are tried as a stack first, up to twice."""
    seen, runs, store = [], runs_of(name), Store.create(tmp_path)

    class Heard(ShareFile):
        def of_next(self, runs):
            note = super().of_next(runs)

            def heard(share):
                note(share)
                seen.append(float(path.read_text()))

            return heard

    path, clock = store.share(runs[0].key), itertools.count(step=SHARE_EVERY)
    file = Heard(store, runs, lambda: next(clock))
    compute(runs, VIEW, Workspace(store, "best", math.inf, file))
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    assert 1 / 2 in seen


def test_no_time_is_left_where_more_was_done_than_there_is():
    assert shown([(1200, 10.0)]) == [TimeLeft(0.0)]


def test_only_what_this_session_has_done_counts_and_runs_under_way_do():
    """Ten runs of 100 iterations; two of them share a task that was half done when it was found."""
    study = SimpleNamespace(
        steps=lambda: iter(()),
        design=SimpleNamespace(iterations_of_run=100),
        state=StudyState("key", "triplet", trials=1, total=10),
    )
    running = _RunningStudy(study, None, None)
    running._tasks = {"a": 2}
    assert running.work({}) == (0.0, 1000.0)
    assert running.work({"a": 0.5, "of another study": 0.9}) == (0.0, 900.0)
    assert running.work({"a": 0.75}) == (50.0, 850.0)
    study.state.stage = "failed"
    assert running.work({"a": 0.75}) == (50.0, 0.0)
