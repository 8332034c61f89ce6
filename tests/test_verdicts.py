"""Verdicts over replicated searches: identical methods are not told apart, and every word follows
from an interval.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.cli.show import print_result
from assay.hashing import pretty
from assay.records.benches import DeclaredBench
from assay.records.lines import Preregistration
from assay.records.reported import Extent
from assay.records.store import Store, place_file
from assay.records.study import StudyRecord
from assay.report import write_report
from assay.report.notices import notices_of
from assay.report.write import figures_of
from assay.stats import aa_difference, deviation
from assay.tables import (
    Comparison,
    answer,
    comparisons,
    control,
    covered,
    estimated,
    sentence,
    summary,
    tables_of,
)
from assay.tables.answer import disagreements
from assay.tables.family import BASELINES, family_of, pairs_before
from assay.tables.length import not_converged
from assay.tables.peeking import price
from assay.tables.searches import handed_on
from records import simulate, write_store

ONE_SEARCH = "at the parameters that one search found"
RANDOM_TRUNK = {
    "name": "made",
    "modality": "drawing",
    "trainval": "t" * 64,
    "classes": 20,
    "samples": 200,
}
SHAPE = (0.0, 0.5, -0.5, 1.0, -1.0)
"""Deviations of searches from their mean, in units of a spread that a test chooses."""


def rows_of(
    mean: float, spread: float, searches: int = 4, reproductions: int = 1
) -> list[list[float]]:
    """A row of scores for each search; the same rows for the same arguments, with this mean where
    `searches` is odd.
    """
    return [
        [mean + spread * SHAPE[s % 5] + 1e-4 * r for r in range(reproductions)]
        for s in range(searches)
    ]


def declare(*methods: str, studies: Sequence[str] = (), **other: Any) -> DeclaredBench:
    """A declared bench; the key of a study is the name of its method."""
    trained = tuple(name for name in methods if name not in BASELINES)
    settings = {
        "protocol": "f" * 64,
        "question": "q" * 64,
        "trainval": "t" * 64,
        "reference": None,
        "look": 1,
        "after": (),
        "test": "c" * 64,
        "previous": (),
    }
    keys = tuple(studies or methods)
    return DeclaredBench(
        studies=keys, announcements=keys, methods=methods, trained=trained, **(settings | other)
    )


def study(method: str, scores: Sequence[Any], **settings: Any) -> StudyRecord:
    fixed = method in BASELINES
    return simulate(
        method, scores, None if fixed else 2006, **({"trials": []} if fixed else {}), **settings
    )


def bench(
    means: Mapping[str, float], spread: float = 0.001, searches: int = 5, **settings: Any
) -> Comparison:
    """A fixed `as_is` and searched methods around these means."""
    return Comparison(
        tuple(
            study(name, [mean] if name == "as_is" else rows_of(mean, spread, searches), **settings)
            for name, mean in means.items()
        )
    )


def table(found: Comparison, name: str) -> Any:
    return next((one for one in tables_of(found) if one.name == name), None)


def with_concatenated(record: StudyRecord, values: Sequence[float]) -> StudyRecord:
    tests = tuple(
        replace(test, concatenated={"map_at_r": value})
        for test, value in zip(record.tests, values, strict=True)
    )
    return replace(record, tests=tests)


def map_only(record: StudyRecord) -> Preregistration:
    """The preregistration with MAP@R as the only metric."""
    protocol = record.announced.protocol
    resolved = replace(protocol.resolved, metrics=("map_at_r",))
    return replace(record.announced, protocol=replace(protocol, resolved=resolved))


def ended_at(last: Sequence[bool], searches: int = 5) -> list[dict[str, Any]]:
    """Reproduction runs, one for each search, some of which have their best epoch last."""
    return [
        {
            "search": s,
            "reproduction": 0,
            "fold": 0,
            "key": f"run{s}",
            "status": "finished",
            "validation": {"map_at_r": 0.5 + s / 100},
            "best_epoch": 10 if last[s % len(last)] else 6,
            "last_epoch": 10,
        }
        for s in range(searches)
    ]


# --- Doubting the answer ---


def test_identical_methods_are_rarely_told_apart() -> None:
    """4% of benches may; of 100, more than 11 have a chance of one in a thousand."""
    draw = np.random.default_rng(14)
    spreads = {"a": 0.002, "b": 0.002, "c": 0.02}
    wrong = 0
    for _ in range(100):
        records = [
            study(name, draw.normal(0.4, spread, (4, 1)).tolist(), metrics=("map_at_r",))
            for name, spread in spreads.items()
        ]
        wrong += bool(Comparison(tuple(records)).better("separated"))
    assert wrong <= 11


def test_a_method_and_its_copy_to_the_last_digit_are_equivalent() -> None:
    found = bench({"a": 0.4, "b": 0.4}, spread=0.0)
    (pair,) = found.differences("separated")
    assert (pair.verdict, pair.interval.low, pair.interval.high) == ("equivalent", 0, 0)
    assert sentence(found, pair) == "a and b are equivalent: within 1 point (0.0 to 0.0)"
    assert found.ranks("separated") == {"a": 1, "b": 1}
    assert table(found, "scores").best == frozenset()
    assert "b is equivalent to it, within 1 point" in answer(found).sentence
    assert tables_of(found)
    assert figures_of(found)


def test_a_few_equal_scores_are_no_certainty() -> None:
    found = bench({"as_is": 0.3, "a": 0.4}, spread=0.0)
    assert [one.verdict for one in found.differences("separated")] == ["undecided"]
    assert answer(found).use is None


def test_one_method_alone_has_a_score_and_no_verdict() -> None:
    found = bench({"a": 0.4})
    said = answer(found)
    assert said.sentence.startswith("a has a MAP@R of 40.00 ±")
    assert said.sentence.endswith("(single models); there is nothing to compare it with.")
    assert (said.use, said.alike, summary(found)) == (None, (), [])
    assert table(found, "differences-separated") is None
    assert table(found, "scores").rows[0][1] == "1"


def test_one_value_each_has_no_interval_and_settles_nothing() -> None:
    found = Comparison((study("a", [0.4]), study("b", [0.9])))
    (pair,) = found.differences("separated")
    assert (
        sentence(found, pair)
        == f"b and a: undecided, {ONE_SEARCH}; one value each has no interval; --set searches=4"
        " gives one"
    )
    assert answer(found).use is None
    assert found.ranks("separated") == {"a": 1, "b": 1}
    assert tables_of(found)


def test_where_all_is_undecided_no_method_is_named() -> None:
    found = bench({"a": 0.40, "b": 0.41, "c": 0.42}, spread=0.05)
    said = answer(found)
    assert said.sentence.startswith(
        "No method is shown to be the best: c has the highest MAP@R (42.00 ±"
    )
    assert "b and a are not shown to differ from it" in said.sentence
    assert (said.use, said.alike) == (None, ("b", "a"))
    assert set(found.ranks("separated").values()) == {1}


def test_without_test_scores_there_is_no_answer() -> None:
    record = study("a", rows_of(0.4, 0.001))
    assert (
        answer(Comparison((), (replace(record, tests=[]),))).sentence
        == "No answer: no method has test scores yet."
    )


# --- The answer ---


def test_the_answer_names_the_method_its_gain_and_the_methods_not_shown_to_differ() -> None:
    said = answer(bench({"as_is": 0.3, "a": 0.4, "b": 0.401, "c": 0.35}, spread=0.01))
    gain = (
        r"Use b: \+10\.1 points of MAP@R \(single models\) over as_is \(\d+\.\d to \d+\.\d\); a"
        r" is not shown to differ from it\."
    )
    assert re.fullmatch(gain, said.sentence)
    assert (said.use, said.over, said.alike) == ("b", "as_is", ("a",))
    assert said.disagreements == ()
    assert answer(bench({"a": 0.4, "b": 0.5})).sentence.endswith("; every other method is worse.")


def test_where_a_method_may_still_be_better_the_answer_is_undecided() -> None:
    said = answer(bench({"as_is": 0.40, "a": 0.404, "b": 0.35}, spread=0.02))
    assert said.sentence.startswith(
        "Undecided: no method is shown to be better than as_is by MAP@R (single models)"
    )
    assert re.search(
        r"a is not shown to differ from it \(\+0\.4 points, -\d\.\d to \d\.\d; \d+ searches of a"
        r" would find",
        said.sentence,
    )
    assert said.sentence.endswith("b is worse.")
    assert said.use is None
    once = answer(bench({"as_is": 0.40, "a": 0.5}, searches=1))
    assert once.sentence.startswith("Undecided: "), (
        "one value has no interval, and nothing is known"
    )


def test_where_no_method_can_be_better_by_enough_to_matter_the_user_keeps_what_there_is() -> None:
    said = answer(bench({"as_is": 0.40, "a": 0.401, "b": 0.35}, spread=0.0005))
    assert said.sentence.startswith(
        "Keep what you have: no method is shown to be better than as_is by MAP@R (single models)"
    )
    scores = {"as_is": [0.40, 0.401, 0.399], "a": [[0.35], [0.351], [0.349]]}
    random = {"data": RANDOM_TRUNK, "weights": None}
    trunk = answer(
        Comparison(tuple(study(name, values, announced=random) for name, values in scores.items()))
    )
    assert trunk.sentence.startswith("Use as_is: "), (
        "features of random weights are nothing that a user has"
    )


def test_problems_of_the_data_are_there_for_programs() -> None:
    flawed = {
        "data": {
            **RANDOM_TRUNK,
            "modality": "features",
            "problems": ["2 images of trainval with more than one label"],
        }
    }
    assert bench({"as_is": 0.3, "a": 0.4}, announced=flawed).problems == [
        "2 images of trainval with more than one label"
    ]


def test_a_gain_that_is_too_little_to_matter_is_no_reason_to_change() -> None:
    said = answer(bench({"as_is": 0.400, "a": 0.405}, spread=0.0005))
    assert re.match(
        r"Keep what you have: .* by enough to matter: a by 0\.5 points \(0\.\d to 0\.\d\)",
        said.sentence,
    )


def test_a_noisy_method_with_a_higher_mean_is_not_the_answer() -> None:
    noisy = study("noisy", rows_of(0.45, 0.2, 5))
    steady = study("steady", rows_of(0.42, 0.001, 5))
    said = answer(Comparison((study("as_is", [0.3]), steady, noisy)))
    assert said.use == "steady"
    assert "noisy is not shown to differ from it" in said.sentence


def test_without_as_is_another_baseline_is_the_yardstick_and_the_rest_are_not_compared() -> None:
    records = (
        study("pretrained", [0.3]),
        study("untrained", [0.1, 0.12]),
        study("a", rows_of(0.4, 0.01)),
    )
    found = Comparison(records)
    assert answer(found).over == "pretrained"
    assert {(one.first, one.second) for one in found.differences("separated")} == {
        ("a", "pretrained")
    }
    assert [row[:2] for row in table(found, "scores").rows] == [
        ["pretrained", "2"],
        ["untrained", ""],
        ["a", "1"],
    ]


def test_the_other_form_of_models_is_heard_where_it_says_something_else() -> None:
    one = with_concatenated(study("a", rows_of(0.4, 0.001, 5)), [0.30, 0.50, 0.31, 0.49, 0.40])
    fixed = with_concatenated(study("as_is", [0.3]), [0.38])
    found = Comparison(
        (replace(fixed, announced=map_only(fixed)), replace(one, announced=map_only(one)))
    )
    said = answer(found)
    assert said.use == "a"
    assert said.disagreements[0].startswith(
        "By concatenated models the answer is another one: Undecided: "
    )
    assert re.fullmatch(
        r"a is better than as_is \([\d.]+ to [\d.]+\) by single models, "
        r"a and as_is undecided \(-[\d.]+ to [\d.]+\) by concatenated models",
        said.disagreements[1],
    )
    assert table(found, "differences-separated").rows[0][4] == "undecided"


def test_opposite_forms_are_told() -> None:
    one = with_concatenated(study("a", rows_of(0.4, 0.001, 5)), [0.1, 0.101, 0.099, 0.1, 0.1])
    other = with_concatenated(study("b", rows_of(0.3, 0.001, 5)), [0.2, 0.201, 0.199, 0.2, 0.2])
    found = Comparison(
        (replace(one, announced=map_only(one)), replace(other, announced=map_only(other)))
    )
    (line,) = disagreements(found)
    assert line.startswith("a is better than b")
    assert "b is better than a" in line
    assert table(found, "differences-separated").rows[0][4] == "worse"


# --- Words ---


@pytest.mark.parametrize(
    ("spread", "gap", "words"),
    [
        (0.001, 0.05, r"b is better than a by 5\.0 points \(4\.\d to 5\.\d\)"),
        (
            0.0005,
            0.004,
            r"b is better than a by 0\.4 points \(0\.\d to 0\.\d\), too little to matter",
        ),
        (0.001, 0.0005, r"b and a are equivalent: within 1 point \(-0\.\d+ to 0\.\d+\)"),
        (
            0.02,
            0.01,
            r"b and a: undecided \(-\d\.\d to \d\.\d\); [\d,]+ searches of each would find a"
            r" difference of 1 point 4 times in 5 "
            r"\(--set searches=\d+\)",
        ),
    ],
)
def test_every_verdict_has_its_sentence(spread: float, gap: float, words: str) -> None:
    found = bench({"a": 0.4, "b": 0.4 + gap}, spread=spread)
    (pair,) = found.differences("separated")
    assert re.fullmatch(words, sentence(found, pair))


def test_as_many_searches_as_are_needed_are_not_asked_for_again() -> None:
    declared = [f"m{number}" for number in range(8)]
    records = [study(name, rows_of(mean, 0.0083, 25)) for name, mean in (("a", 0.4), ("b", 0.405))]
    found = Comparison(tuple(records), benches=(declare("a", "b", *declared),))
    (pair,) = found.differences("separated")
    assert pair.verdict == "undecided"
    assert sentence(found, pair).endswith(
        "; the 25 searches of each would find a difference of 1 point 4 times in 5"
    )


def test_the_declared_smallest_difference_decides() -> None:
    found = bench({"a": 0.4, "b": 0.42}, spread=0.001, resolved={"smallest_difference": 0.05})
    assert found.differences("separated")[0].verdict == "better, too little to matter"


def test_one_search_is_said_to_be_one_and_given_parameters_leave_nothing_out() -> None:
    scores = {"a": [0.40, 0.41, 0.42], "b": [0.60, 0.61, 0.62]}
    once = Comparison(tuple(study(name, values) for name, values in scores.items()))
    assert all(
        ONE_SEARCH in text
        for text in (*summary(once), answer(once).sentence, estimated(once), covered(once))
    )
    assert "the luck of the search is not covered" in covered(once)
    given = Comparison(tuple(study(name, values, trials=[]) for name, values in scores.items()))
    for text in (*summary(given), answer(given).sentence, estimated(given), covered(given)):
        assert "one search" not in text
    several = bench({"a": 0.4, "b": 0.5})
    assert (
        estimated(several)
        == "Estimated: the expected test score, over searches and training seeds, of this budget of"
        " search and then training."
    )
    assert not any(
        "one search" in text
        for text in (*summary(several), answer(several).sentence, covered(several))
    )
    assert estimated(several) in table(several, "scores").note


def test_given_parameters_are_reproduced_once_for_each_search_of_the_protocol() -> None:
    scores = {"a": [0.40, 0.44, 0.42, 0.41], "b": [0.41, 0.45, 0.40, 0.44]}
    found = Comparison(
        tuple(
            study(name, values, trials=[], resolved={"searches": 4})
            for name, values in scores.items()
        )
    )
    (pair,) = found.differences("separated")
    assert pair.needed is not None
    assert f"--set reproductions={-(-pair.needed // 4)})" in sentence(found, pair)


# --- The declared family ---


def test_methods_without_scores_count_among_the_declared_pairs() -> None:
    records = tuple(study(name, rows_of(0.4, 0.01)) for name in ("a", "b"))
    (pair,) = Comparison(records, benches=(declare("as_is", "a", "b", "c", "d"),)).differences(
        "separated"
    )
    (alone,) = Comparison(records).differences("separated")
    assert (pair.comparisons, alone.comparisons) == (6 + 4, 1)
    assert pair.interval.half is not None
    assert alone.interval.half is not None
    assert pair.interval.half > alone.interval.half


def test_a_view_keeps_the_family_s_pairs_and_spread() -> None:
    whole = bench({"as_is": 0.3, "a": 0.40, "b": 0.42, "c": 0.44, "d": 0.46}, spread=0.004)
    shown = whole.view(["a", "b", "as_is"])
    assert shown.methods == ["as_is", "a", "b"]
    inside = {(one.first, one.second): one for one in whole.differences("separated")}
    for pair in shown.differences("separated"):
        assert pair == inside[pair.first, pair.second]
        assert pair.comparisons == 10
    assert len(shown.differences("separated")) == 3
    assert shown.ranks("separated") == {"as_is": 3, "a": 2, "b": 1}
    assert answer(shown).use == "b"
    assert set(map(frozenset, shown.view(["a"]).family.pairs)) == set(
        map(frozenset, whole.family.pairs)
    )


def test_with_a_reference_each_method_is_compared_with_it_and_there_are_no_ranks() -> None:
    names = ["as_is", *(f"m{number:02d}" for number in range(11))]
    records = tuple(
        study(name, [0.2] if name == "as_is" else rows_of(0.3 + place / 50, 0.001, 3))
        for place, name in enumerate(names)
    )
    found = Comparison(records, benches=(declare(*names, reference="m05"),))
    pairs = found.differences("separated")
    assert len(pairs) == pairs[0].comparisons == 10 + 11
    assert all({"m05", "as_is"} & {pair.first, pair.second} for pair in pairs)
    assert found.ranks("separated") == {}, "most pairs are not compared"
    assert ("m10", "m00") in found.better("separated"), (
        "what is above the reference is above what is below it"
    )
    assert "4 methods" not in answer(found).sentence
    assert "were not compared with it" in answer(found).sentence
    assert "not shown to differ from it" not in answer(found).sentence
    assert len(Comparison(records, benches=(declare(*names),)).family.pairs) == 55 + 11


def test_a_bench_with_a_reference_keeps_the_pairs_of_one_without() -> None:
    records = [study(name, [0.3, 0.4]) for name in "abcd"]
    benches = [declare("a", "b", "c"), declare("a", "c", "d", reference="d", look=2, after=("a",))]
    found = family_of(records, benches)
    assert {frozenset(pair) for pair in found.pairs} == {
        frozenset(pair) for pair in ("ab", "ac", "bc", "ad", "bd", "cd")
    }


def test_a_method_that_is_added_later_pays_for_its_look() -> None:
    records = study("a", rows_of(0.4, 0.004)), study("b", rows_of(0.41, 0.004))
    found = Comparison(records, benches=(declare("a"), declare("a", "b", look=2, after=("a",))))
    (pair,) = found.differences("separated")
    (at_once,) = Comparison(records, benches=(declare("a", "b"),)).differences("separated")
    assert (pair.look, at_once.look) == (2, 1)
    assert pair.interval.half is not None
    assert at_once.interval.half is not None
    assert pair.interval.half > at_once.interval.half
    assert notices_of(found)[1:] == [
        (
            "b: declared after 1 study on the same question (look 2): its verdicts are at a"
            " stricter level, 0.995."
        ),
    ]


def test_a_bench_under_way_does_not_change_yet_what_the_finished_ones_say(tmp_path: Path) -> None:
    """A report and its verification see the same pairs, with or without a study under way."""
    begun = study("c", rows_of(0.4, 0.01))
    records = [
        *(study(name, rows_of(0.4, 0.01)) for name in ("a", "b")),
        replace(begun, tests=begun.tests[:1]),
    ]
    store = write_store(Store.create(tmp_path / "store"), records)
    for number, one in enumerate(
        (declare("a", "b"), declare("a", "b", "c", look=2, after=("a", "b")))
    ):
        place_file(store.bench(one.hash), pretty(one.to_json()).encode())
        (found,) = comparisons(store)
        now = Extent.of(store)
        ended = {key: lines for key, lines in now.studies.items() if key != begun.key}
        (covered_only,) = comparisons(store, replace(now, studies=ended))
        assert len(found.benches) == number + 1
        assert found.family == covered_only.family
        assert found.differences("separated") == covered_only.differences("separated")
        assert len(found.family.pairs) == 1
    write_store(store, [begun])
    (found,) = comparisons(store)
    assert len(found.family.pairs) == 3


def test_names_tell_what_a_method_without_a_study_is() -> None:
    found = family_of([study("a", [0.4, 0.5])], [declare("a", "as_is", "untrained", "a.twin", "b")])
    assert (found.methods, found.yardstick, found.twins) == (("a", "b"), "as_is", {"a.twin": "a"})
    assert {frozenset(pair) for pair in found.pairs} == {
        frozenset(pair) for pair in (("a", "b"), ("a", "as_is"), ("b", "as_is"), ("a.twin", "a"))
    }


def test_a_baseline_of_another_name_is_known_by_its_study() -> None:
    record = study("mine", [0.4, 0.5], trials=[])
    marked = replace(
        record,
        announced=replace(record.announced, method=replace(record.announced.method, baseline=True)),
    )
    assert family_of([marked, study("a", [0.4, 0.5])]).methods == ("a",)


# --- Controls ---


def test_several_searches_say_what_a_method_differs_by_from_itself() -> None:
    found = bench({"as_is": 0.3, "a": 0.4, "b": 0.5}, spread=0.01)
    spreads = [deviation(found.record(name).units("separated", "map_at_r")) for name in ("a", "b")]
    assert control(found) == [
        "Two independent searches of the same method differ by about"
        f" {100 * aa_difference(spreads):.2f} points of MAP@R on these data (root mean square over"
        f" methods; a {100 * aa_difference(spreads[:1]):.2f}, b"
        f" {100 * aa_difference(spreads[1:]):.2f})"
    ]
    assert control(Comparison((study("a", [0.4, 0.5, 0.6]),))) == []


def test_a_control_twin_is_compared_with_its_original_alone_and_never_the_answer() -> None:
    scores = {"a": 0.35, "b": 0.40, "b.twin": 0.41}
    records = [study("as_is", [0.3])] + [
        study(name, rows_of(mean, 0.003, 5), announced={"twin_of": "b"} if name == "b.twin" else {})
        for name, mean in scores.items()
    ]
    found = Comparison(tuple(records))
    assert len(found.family.pairs) == 1 + 2 + 1
    assert answer(found).use == "b"
    assert "b.twin" not in answer(found).sentence
    assert "b.twin" not in found.ranks("separated")
    assert re.match(
        r"Control: b\.twin is b with seeds of its own; b\.twin (and|is)", control(found)[1]
    )
    assert not any("twin" in line for line in summary(found))


def test_a_control_decides_nothing_between_other_methods() -> None:
    """A fourth method would make variances shrink, and with them the interval of a and b."""
    scores = {
        "a": [0.3822, 0.4189, 0.4312, 0.4309],
        "b": [0.3655, 0.3588, 0.3616, 0.3589],
        "c": [0.3557, 0.3579, 0.3604, 0.3573],
    }
    records = [
        study("as_is", [0.3]),
        *(study(name, [[one] for one in values]) for name, values in scores.items()),
    ]
    twin = study("c.twin", [[one + 0.001] for one in scores["c"]], announced={"twin_of": "c"})
    without, beside = Comparison(tuple(records)), Comparison((*records, twin))
    differences = [found.differences("separated") for found in (without, beside)]
    a_and_b = [
        next(one for one in found if {one.first, one.second} == {"a", "b"}) for found in differences
    ]
    assert [one.verdict for one in a_and_b] == ["undecided", "undecided"]
    assert a_and_b[1].interval.low < a_and_b[0].interval.low, (
        "one pair more is paid for, and nothing is gained"
    )


def test_extending_a_few_methods_of_a_bench_pays_for_all_its_pairs() -> None:
    names = [f"m{number}" for number in range(8)]
    first = declare("as_is", *names)
    second = declare(
        "as_is",
        "m0",
        "m1",
        studies=["as_is2", "m0b", "m1b"],
        look=2,
        after=first.studies,
        protocol="e" * 64,
    )
    assert pairs_before([first], [first, second]) == 0
    assert pairs_before([second], [first, second]) == 8 * 7 // 2 + 8
    with_reference = declare("as_is", *names, reference="m3")
    assert pairs_before([second], [with_reference, second]) == 7 + 8
    records = tuple(
        study(name, rows_of(mean, 0.003, 5)) for name, mean in (("m0", 0.40), ("m1", 0.41))
    )
    alone, extended = Comparison(records), Comparison(records, pairs_before=36)
    assert alone.pairs_paid_for == 1
    assert extended.pairs_paid_for == 36
    narrow, wide = (one.differences("separated")[0].interval for one in (alone, extended))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert "whichever of the 36 declared pairs" in table(extended, "differences-separated").note


# --- What it would take ---


def test_searches_that_all_gave_one_score_have_no_known_spread() -> None:
    found = bench({"as_is": 0.30, "a": 0.40}, spread=0.0)
    said = sentence(found, found.differences("separated")[0])
    assert "all searches gave the same score, so their spread is not known" in said
    assert answer(found).sentence.startswith("Undecided: ")


def test_after_two_searches_no_number_is_advised_that_rests_on_them() -> None:
    found = bench({"as_is": 0.30, "a": 0.31}, spread=0.02, searches=2)
    assert (
        "two searches hardly show a spread; begin with --set searches=4" in answer(found).sentence
    )


# --- Length of training ---


def test_runs_that_end_at_their_last_epoch_are_counted_and_told_beside_every_verdict() -> None:
    fast = study("fast", rows_of(0.4, 0.001, 5), reproductions=ended_at([False]))
    slow = study("slow", rows_of(0.5, 0.001, 5), reproductions=ended_at([True, False]))
    found = Comparison((study("as_is", [0.3]), fast, slow))
    assert [row[1:] for row in table(found, "length").rows] == [
        ["5", "0", "0%", "0", "6", "stopped by itself"],
        ["5", "3", "60%", "0", "10", "not converged"],
    ]
    for pair in found.differences("separated"):
        assert sentence(found, pair).endswith("; not converged: slow") == (
            "slow" in (pair.first, pair.second)
        )
    assert answer(found).sentence.endswith("; not converged: slow.")


def test_runs_that_kept_their_initial_weights_are_counted_and_told() -> None:
    untouched = [{**run, "best_epoch": 0} for run in ended_at([False])]
    found = Comparison(
        (study("as_is", [0.3]), study("a", rows_of(0.4, 0.001, 5), reproductions=untouched))
    )
    assert [row[1:] for row in table(found, "length").rows] == [
        ["5", "0", "0%", "5", "0", "mostly not trained"]
    ]
    assert answer(found).sentence.endswith("; most runs of a kept their initial weights.")


def test_many_methods_that_are_not_converged_are_counted_not_listed() -> None:
    names = [f"m{number}" for number in range(8)]
    slow = [study(name, rows_of(0.4, 0.001, 5), reproductions=ended_at([True])) for name in names]
    assert (
        "; not converged: 8 methods" in answer(Comparison((study("as_is", [0.3]), *slow))).sentence
    )


def test_one_run_of_ten_may_end_at_its_last_epoch() -> None:
    exactly = study("a", rows_of(0.4, 0.001, 10), reproductions=ended_at([True] + 9 * [False], 10))
    assert not not_converged(exactly)
    assert not_converged(
        study("a", rows_of(0.4, 0.001, 9), reproductions=ended_at([True] + 8 * [False], 9))
    )


def test_studies_that_do_not_say_where_runs_ended_have_no_table_of_it() -> None:
    assert table(bench({"a": 0.4, "b": 0.5}), "length") is None


# --- Where uncertainty comes from ---


def raw_sources(found: Comparison, method: str) -> dict[str, float | None]:
    return {
        str(row["source"]): row["deviation"]
        for row in table(found, "sources").raw
        if row["method"] == method
    }


def test_with_one_reproduction_search_and_seed_stand_together() -> None:
    found = Comparison((study("a", rows_of(0.4, 0.01), fold_noise=0.02),))
    assert table(found, "sources").columns == [
        "method",
        "search and seed together",
        "fold",
        "test classes",
    ]
    assert "the effects of search and seed cannot be separated" in table(found, "sources").note
    assert table(found, "sources").rows[0][-1] == "not recorded"
    assert raw_sources(found, "a")["fold"] == pytest.approx(0.02 * np.sqrt(4 / 3))


def test_with_several_reproductions_search_and_seed_stand_apart() -> None:
    draw = np.random.default_rng(0)
    scores = [
        [0.4 + shift + float(draw.normal(0, 0.01)) for _ in range(20)]
        for shift in (-0.1, 0.1, -0.05, 0.05)
    ]
    found = Comparison((study("a", scores),))
    sources = raw_sources(found, "a")
    assert set(sources) == {"search", "seed", "test classes"}
    assert sources["seed"] == pytest.approx(0.01, rel=0.3)
    assert sources["search"] == pytest.approx(0.091, rel=0.2)
    assert "sources" in figures_of(found)


def test_one_search_has_no_spread_over_searches() -> None:
    sources = raw_sources(Comparison((study("a", [0.40, 0.41, 0.42]),)), "a")
    assert sources == {"seed": pytest.approx(0.01), "test classes": None}


def test_scores_of_test_classes_are_read_from_the_store(tmp_path: Path) -> None:
    store = write_store(
        Store.create(tmp_path / "store"), [study("as_is", [0.3]), study("a", rows_of(0.4, 0.01, 3))]
    )
    queries, of_classes = np.array([10.0, 20.0, 30.0, 0.0]), np.array([0.3, 0.4, 0.5, 0.0])
    for name, shift, files in (("as_is", 0.0, 1), ("a", 0.1, 3)):
        folder = store.study(name) / "classes"
        folder.mkdir()
        for search in range(files):
            sums = queries * (of_classes + shift + 0.01 * (search - 1) * (files > 1))
            np.savez(folder / f"{search}-0.npz", queries=queries, separated=sums, concatenated=sums)
    (found,) = comparisons(store)
    error = raw_sources(found, "a")["test classes"]
    assert error == pytest.approx(raw_sources(found, "as_is")["test classes"])
    assert error is not None
    assert 0.02 < error < 0.08
    (row,) = table(found, "classes-separated").raw
    assert (row["difference"], row["low"]) == (pytest.approx(0.1), pytest.approx(0.1))
    (store.study("a") / "classes" / "2-0.npz").unlink()
    (fewer,) = comparisons(store)
    assert raw_sources(fewer, "a")["test classes"] is None
    assert table(fewer, "classes-separated") is None


# --- Searches, notices, prices ---


def test_parameters_and_trials_name_their_search() -> None:
    trials = [
        {
            "search": s,
            "trial": t,
            "status": "finished",
            "map_at_r": 0.5,
            "parameters": {"margin": 0.1},
            "runs": [],
        }
        for s in range(2)
        for t in range(2)
    ]
    found = Comparison(
        (study("a", rows_of(0.4, 0.01, 2), trials=trials, reproductions=ended_at([False], 2)),)
    )
    assert [row[:4] for row in table(found, "parameters").rows] == [
        ["a", "0", "margin", "0.1"],
        ["a", "1", "margin", "0.1"],
    ]
    assert [(row[1], row[2], row[-1]) for row in table(found, "trials").rows] == [
        ("0", "0", "selected"),
        ("0", "1", ""),
        ("1", "0", "selected"),
        ("1", "1", ""),
    ]
    assert "(number of the search: a 1); its score is not the one estimated" in handed_on(found)
    assert handed_on(found) in table(found, "parameters").note
    assert handed_on(Comparison((study("a", [0.3, 0.4]),))) == ""


def test_a_report_carries_what_is_wrong_with_the_data_and_how_images_are_changed() -> None:
    data = {"name": "birds", "trainval": "t" * 64, "classes": 10, "samples": 100}
    told = {"problems": ["3 images are in both halves."], "left_out": ["2 files were left out."]}
    augment = {
        "area": [0.16, 1.0],
        "aspect": [0.75, 1.25],
        "flip": 0.0,
        "rotation": 0.0,
        "shear": 0.0,
    }
    record = study(
        "a", [0.3, 0.4], resolved={"augment": augment}, announced={"data": {**data, **told}}
    )
    lines = notices_of(Comparison((record,)))
    assert lines[:2] == ["3 images are in both halves.", "2 files were left out."]
    assert (
        "Training images: crops of 16-100% of the area, width over height from 0.75 to 1.25; no"
        " mirror images." in lines
    )


def test_edges_are_counted_over_searches() -> None:
    edges = {"margin": {"end": "high", "bound": 2.0, "natural": False}}
    record = study("a", rows_of(0.4, 0.01, 3), edges=edges)
    inside = replace(record.selections[0], edges={})
    found = Comparison((replace(record, selections=(inside, *record.selections[1:])),))
    assert (
        "a: the chosen margin lies at the high end of its range (2) in 2 of 3 searches; a wider"
        " range might do better." in notices_of(found)
    )


def test_the_price_of_peeking_is_that_of_each_search() -> None:
    epochs = [
        {
            "search": s,
            "reproduction": 0,
            "fold": f,
            "run": "r",
            "chosen": 2,
            "test": {"2": 0.4, "4": 0.4 + 0.1 * (s + 1)},
        }
        for s in range(2)
        for f in range(2)
    ]
    trials = [
        {"search": s, "trial": t, "validation": 0.5, "test": [0.4 + 0.1 * t * s, 0.4 + 0.1 * t * s]}
        for s in range(2)
        for t in range(2)
    ]
    found = price(
        study("a", [[0.3], [0.5]], peek={"test": "e" * 64, "epochs": epochs, "trials": trials})
    )
    assert (found.epoch.mean, found.epoch.n) == (pytest.approx(0.15), 2)
    assert found.parameters is not None
    assert (found.parameters.mean, found.parameters.n) == (pytest.approx(0.05), 2)


# --- Console and page ---


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = bench({"as_is": 0.3, "a": 0.40, "b": 0.45}, spread=0.002, searches=4)
    written = write_store(
        Store.create(tmp_path_factory.mktemp("verdicts") / "store"), found.records
    )
    write_report(written)
    return written


def test_the_first_line_is_the_answer_and_the_last_the_report(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    page = store.root / "report" / "index.html"
    print_result(store.root, ("as_is", "a", "b"), page, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Use b: +15.0 points of MAP@R (single models) over as_is (")
    assert lines[-1] == f"report: {page}"
    assert any(line.startswith("b is better than a by 5.0 points (") for line in lines)
    assert any(
        line.startswith("Two independent searches of the same method differ by about")
        for line in lines
    )


def test_a_bench_prints_its_own_methods_at_the_level_of_the_family(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(store.root, ("as_is", "a"), store.root / "report" / "index.html", json=True)
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert {row["method"] for row in found["scores"]} == {"as_is", "a"}
    (pair,) = found["differences-separated"]
    assert pair["comparisons"] == 3
    assert (found["answer"]["use"], found["answer"]["over"], found["answer"]["setting"]) == (
        "a",
        "as_is",
        "separated",
    )
    assert found["answer"]["sentence"].startswith("Use a: ")


def test_the_page_begins_with_the_answer_and_says_what_it_covers(store: Store) -> None:
    text = (store.root / "report" / "index.html").read_text()
    body = text[text.index("<main>") :]
    assert body.index("Use b: +15.0 points") < body.index("<article")
    assert "over searches and training seeds, of this budget of search and then training" in body
    assert "Intervals cover the luck of the search and of the training seed." in body
    assert "Where uncertainty comes from" in body


def test_methods_that_did_not_end_are_told_after_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = study("a", rows_of(0.4, 0.01))
    store = write_store(Store.create(tmp_path / "store"), [replace(begun, tests=begun.tests[:1])])
    print_result(store.root, ("a",), tmp_path / "page", json=False)
    assert capsys.readouterr().out.splitlines() == [
        "No answer: no method has test scores yet.",
        "a: not finished",
        f"report: {tmp_path / 'page'}",
    ]


def test_a_shorter_view_does_not_call_the_best_of_the_rest_the_best() -> None:
    whole = bench({"as_is": 0.30, "a": 0.40, "b": 0.50, "c": 0.35})
    assert "every other method is worse" in answer(whole).sentence
    shown = whole.view([record.key for record in whole.records if record.method != "b"])
    assert answer(shown).sentence.startswith("Use a:")
    assert "b, not shown here, is better than it" in answer(shown).sentence


def test_a_method_with_one_value_is_no_constant_for_those_with_several() -> None:
    found = Comparison((study("a", rows_of(0.5, 0.01, 4)), study("b", [0.4])))
    assert found.differences("separated") == []


def test_a_pair_that_is_chosen_after_the_scores_were_seen_pays_for_it() -> None:
    names = [f"m{number:02d}" for number in range(12)]
    records = tuple(
        study(name, rows_of(0.3 + place / 500, 0.001)) for place, name in enumerate(names)
    )
    benches = (declare(*names, reference="m00"), declare("m01", "m11", "z", look=2, after=("m00",)))
    found = Comparison((*records, study("z", rows_of(0.2, 0.001))), benches=benches)
    looks = {frozenset((one.first, one.second)): one.look for one in found.differences("separated")}
    assert looks[frozenset(("m01", "m11"))] == 2
    assert looks[frozenset(("m01", "m00"))] == 1
