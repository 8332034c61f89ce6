"""The search: same questions after a restart, failed trials told as the worst so far, better than
guessing; and guessing.
"""

import pytest
import torch
from scipy import stats

from assay.space import Choice, Integer, Real, Space
from assay.study.search import TrialResult, _inside, ask, quasi_random, uniform

SPACE = Space(margin=Real(0, 2), scale=Real(0.01, 100, log=True), bins=Integer(2, 256))
DEFAULTS = {"margin": 0.1, "scale": 9.0, "bins": 10}


def inside(space, parameters):
    return set(parameters) == set(space) and all(
        (
            value in range_.options
            if isinstance(range_, Choice)
            else range_.low <= value <= range_.high
        )
        for value, range_ in ((parameters[name], space[name]) for name in space)
    )


def search(space, objective, trials, seed, defaults, startup=2, search="bayesian"):
    told = []
    for _ in range(trials):
        parameters = ask(space, told, defaults, startup, seed, search)
        told.append(TrialResult(parameters, objective(parameters)))
    return told


def bowl(parameters):
    return -((parameters["margin"] - 1.3) ** 2)


def test_trial_0_is_the_defaults():
    assert ask(SPACE, [], DEFAULTS, 2, seed=1) == DEFAULTS


@pytest.mark.parametrize("seed", range(5))
def test_every_question_lies_in_the_space(seed):
    told = search(SPACE, bowl, 6, seed, DEFAULTS)
    assert all(inside(SPACE, trial.parameters) for trial in told)
    assert isinstance(told[4].parameters["bins"], int)


def test_a_restarted_search_asks_the_same_questions():
    first = search(SPACE, bowl, 5, 7, DEFAULTS)
    assert search(SPACE, bowl, 5, 7, DEFAULTS) == first
    assert search(SPACE, bowl, 5, 8, DEFAULTS) != first


def test_the_number_of_threads_of_the_caller_changes_no_question():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = search(SPACE, bowl, 6, 3, DEFAULTS)
        torch.set_num_threads(2)
        assert search(SPACE, bowl, 6, 3, DEFAULTS) == one
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_startup_points_are_one_low_discrepancy_sequence():
    """Each half and each quarter of every range is visited in turn."""
    points = [quasi_random(Space(margin=Real(0, 2)), index, seed=3)["margin"] for index in range(8)]
    for width in (2, 4, 8):
        assert sorted(int(point / 2 * width) for point in points[:width]) == list(range(width))


def test_a_failed_trial_is_told_as_the_worst_completed_value():
    """So the question is the same as if that value had come of it."""
    trials = [(0.6, 0.5), (1.0, None), (1.4, 0.49)]
    space = Space(margin=Real(0, 2))
    failed = [TrialResult({"margin": margin}, value) for margin, value in trials]
    as_worst = [
        TrialResult({"margin": margin}, 0.49 if value is None else value)
        for margin, value in trials
    ]
    as_zero = [
        TrialResult({"margin": margin}, 0.0 if value is None else value) for margin, value in trials
    ]
    assert ask(space, failed, {"margin": 0.1}, 2, 1) == ask(space, as_worst, {"margin": 0.1}, 2, 1)
    assert ask(space, failed, {"margin": 0.1}, 2, 1) != ask(space, as_zero, {"margin": 0.1}, 2, 1)


def test_where_all_have_failed_the_search_goes_on_at_random():
    space = Space(margin=Real(0, 2))
    told = [TrialResult({"margin": 0.1}, None)] * 4
    assert ask(space, told, {"margin": 0.1}, 2, 1) == quasi_random(space, 3, 1)


def test_a_default_outside_the_range_is_tried_and_does_not_break_the_search():
    told = search(Space(margin=Real(0, 2)), bowl, 5, 1, {"margin": 5.0})
    assert told[0].parameters == {"margin": 5.0}
    assert all(trial.parameters["margin"] <= 2 for trial in told[1:])


def test_what_lies_outside_its_range_is_told_at_the_nearest_end():
    outside = {Real(0, 2): (-1.0, 5.0), Real(0.01, 100, log=True): (1e-9, 1e9)}
    for range_, (below, above) in (*outside.items(), (Integer(2, 256), (1, 300))):
        assert _inside(range_, below) == pytest.approx(range_.low)
        assert _inside(range_, above) == pytest.approx(range_.high)
    assert [_inside(Integer(2, 256), value) for value in (2, 77, 256)] == [2, 77, 256]
    assert _inside(Choice(("soft", "hard")), "hard") == "hard"


def test_choices_are_searched_too():
    space = Space(kind=Choice(("soft", "hard")), margin=Real(0, 2))
    told = search(
        space, lambda p: bowl(p) + (p["kind"] == "hard"), 8, 1, {"kind": "soft", "margin": 0.1}
    )
    assert all(inside(space, trial.parameters) for trial in told)
    assert max(told, key=lambda trial: trial.value).parameters["kind"] == "hard"


@pytest.mark.parametrize("seed", range(3))
def test_ten_trials_come_closer_to_the_optimum_than_ten_quasi_random_ones(seed):
    space = Space(margin=Real(0, 2))
    found = max(trial.value for trial in search(space, bowl, 10, seed, {"margin": 0.1}))
    guessed = max(bowl(quasi_random(space, index, seed)) for index in range(10))
    assert found >= guessed
    assert found > -1e-4


# --- Random search ---


def test_a_random_search_begins_with_the_defaults_too():
    assert ask(SPACE, [], DEFAULTS, 2, seed=1, search="random") == DEFAULTS


def test_a_random_question_depends_on_seed_and_number_alone():
    one = search(SPACE, bowl, 8, 7, DEFAULTS, startup=2, search="random")
    other = search(SPACE, lambda parameters: None, 8, 7, DEFAULTS, startup=5, search="random")
    assert [trial.parameters for trial in one] == [trial.parameters for trial in other]
    assert one != search(SPACE, bowl, 8, 8, DEFAULTS, search="random")


def test_random_questions_are_spread_evenly_over_every_range_on_its_search_scale():
    space = Space(
        kind=Choice(("soft", "hard")),
        margin=Real(0, 2),
        scale=Real(0.01, 100, log=True),
        bins=Integer(1, 4),
    )
    drawn = [uniform(space, number, seed=3) for number in range(1, 1001)]
    assert all(inside(space, parameters) for parameters in drawn)
    for name in ("margin", "scale"):
        shares = [space[name].share(parameters[name]) for parameters in drawn]
        assert stats.kstest(shares, "uniform").pvalue > 0.01
    assert 450 < sum(parameters["kind"] == "hard" for parameters in drawn) < 550
    assert {parameters["bins"] for parameters in drawn} == {1, 2, 3, 4}


def test_the_parameters_of_a_random_question_are_drawn_independently():
    drawn = [uniform(SPACE, number, seed=3) for number in range(1, 1001)]
    margins, bins = ([parameters[name] for parameters in drawn] for name in ("margin", "bins"))
    assert stats.spearmanr(margins, bins).pvalue > 0.01
    assert stats.spearmanr(margins[1:], margins[:-1]).pvalue > 0.01
