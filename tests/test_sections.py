"""What a store shows beside plain comparisons: sweeps, ranks over data sets, gains, peeking,
published scores.
"""

import csv
import math
import re
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest

from assay.metric_names import direction, heading
from assay.published import reported
from assay.records.lines import Preregistration
from assay.records.origin import GivenParameters
from assay.records.reported import Extent, Reported
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.report import write_report
from assay.report.figures import draw
from assay.report.notices import notices_of, notices_of_sweep
from assay.report.write import figures_of
from assay.stats import bootstrap_bound, relative_gain, t_interval
from assay.tables import (
    RENDERERS,
    Comparison,
    Sweep,
    across,
    comparisons,
    published_sentences,
    render,
    sections,
    summary,
    sweeps,
    tables_of,
)
from assay.tables.across import in_words
from assay.tables.gains import claim, trend, trend_in_words
from assay.tables.peeking import price
from records import paired, peeked, simulate, write_store

MEANS = {
    "contrastive": 0.40,
    "contrastive_sampled": 0.32,
    "triplet": 0.38,
    "lifted": 0.41,
    "arcface": 0.42,
}
YEARS = {
    "contrastive": 2006,
    "contrastive_sampled": 2006,
    "triplet": 2006,
    "lifted": 2016,
    "arcface": 2019,
}


def given_for(data: str) -> dict[str, Any]:
    return {
        "parameters": {"margin": 0.1},
        "origin": {"kind": "published", "paper": "Musgrave et al. 2020", "data": data},
    }


PUBLISHED = {"given": given_for("cub")}


def published(record: StudyRecord, data: str) -> Preregistration:
    """The announcement of a study, with parameters that were published for a data set."""
    return replace(record.announced, given=GivenParameters.from_json(given_for(data), "a test"))


def bench(count: int = 10, seed: int = 0, **settings: Any) -> tuple[StudyRecord, ...]:
    scores = paired(MEANS, count, seed)
    return tuple(
        simulate(name, values, YEARS[name], key=f"{name}-{seed}", **settings)
        for name, values in scores.items()
    )


def swept(method: str, field: str, value: str, mean: float, **settings: Any) -> StudyRecord:
    values = settings.pop("values", ["16", "64", "128", "1024"])
    point = {
        "field": field,
        "value": value,
        "base": f"{method}-0",
        "protocol": "quick.v1",
        "values": values,
    }
    given = {
        "parameters": {"margin": 0.1},
        "origin": {"kind": "selected by", "study": f"{method}-0"},
    }
    return simulate(
        method,
        paired({method: mean}, 10)[method],
        YEARS[method],
        protocol=f"{field}{value}".ljust(64, "0"),
        name="quick.v1+custom-1",
        trials=[],
        resolved={"dim": int(value)} if field == "dim" else {"trunk": value},
        key=f"{method}-{field}-{value}",
        announced={"given": given, "sweep": point, **settings.pop("announced", {})},
        **settings,
    )


def store_of(tmp_path: Any, *records: StudyRecord) -> Store:
    return write_store(Store.create(tmp_path / "store"), records)


def table(section: Any, name: str) -> Any:
    return next((table for table in tables_of(section) if table.name == name), None)


def raw(section: Any, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(render(table(section, name), "csv"))))


def only_sweep(store: Store) -> Sweep:
    (found,) = sweeps(store)
    return found


# --- What may stand together ---


def test_searched_and_given_parameters_never_stand_in_one_table() -> None:
    with pytest.raises(ValueError, match="origin of parameters"):
        Comparison((simulate("a", [0.1, 0.2]), simulate("b", [0.1, 0.2], announced=PUBLISHED)))


def test_two_studies_of_one_method_never_stand_in_one_table() -> None:
    with pytest.raises(ValueError, match="one study of each method"):
        Comparison(
            (simulate("a", [0.1, 0.2]), simulate("a", [0.1, 0.2], announced={"generation": 1}))
        )


def test_a_study_of_a_sweep_stands_in_no_comparison(tmp_path: Any) -> None:
    point = swept("triplet", "dim", "16", 0.3)
    with pytest.raises(ValueError, match="no study of a sweep"):
        Comparison((point,))
    store = store_of(tmp_path, *bench(), point, swept("triplet", "dim", "128", 0.4))
    assert [found.methods for found in comparisons(store)] == [list(MEANS)]


def test_searched_and_given_studies_of_one_protocol_are_two_comparisons_with_two_names(
    tmp_path: Any,
) -> None:
    given = [
        replace(record, key=f"{record.key}-given", announced=published(record, "cub"))
        for record in bench()
    ]
    found = comparisons(store_of(tmp_path, *bench(), *given))
    assert len(found) == 2
    assert len({one.slug for one in found}) == 2


def test_the_newest_generation_stands_and_the_older_is_named(tmp_path: Any) -> None:
    again = simulate("triplet", [0.9] * 10, key="again", announced={"generation": 1})
    (found,) = comparisons(store_of(tmp_path, *bench(), again))
    assert found.record("triplet").key == "again"
    assert [record.key for record in found.replaced] == ["triplet-0"]
    assert any(
        "triplet: begun again; the study of generation 0" in line for line in notices_of(found)
    )


def test_a_generation_that_is_under_way_replaces_nothing_yet(tmp_path: Any) -> None:
    again = simulate("triplet", [0.9] * 10, key="again", announced={"generation": 1})
    under_way = replace(again, tests=again.tests[:3])
    (found,) = comparisons(store_of(tmp_path, *bench(), under_way))
    assert found.record("triplet").key == "triplet-0"
    assert [record.key for record in found.unfinished] == ["again"]
    assert any("not finished after it was begun again" in line for line in notices_of(found))


# --- Metrics, folds, training embeddings, trials ---


def test_columns_are_the_metrics_that_the_protocol_names() -> None:
    records = bench(metrics=("recall_at_1", "recall_at_4", "map_at_r", "nmi"))
    found = Comparison(records)
    assert table(found, "scores").columns == [
        "method",
        "rank",
        *(["R@1", "R@4", "MAP@R", "NMI"] * 2),
    ]
    assert found.first_place == "recall_at_1"


@pytest.mark.parametrize(
    ("metric", "name", "better"),
    [
        ("precision_at_1", "P@1", 1),
        ("recall_at_16", "R@16", 1),
        ("map_at_100", "mAP@100", 1),
        ("f1", "F1", 1),
        ("eer", "EER", -1),
        ("tar_at_far_1e-3", "TAR@FAR 1e-3", 1),
        ("pi_ratio", "pi ratio", 0),
        ("spectral_decay", "spectral decay", 0),
    ],
)
def test_metrics_have_names_and_directions(metric: str, name: str, better: int) -> None:
    assert heading(metric) == name
    assert direction(metric) == better


def test_less_is_better_where_it_is_and_what_has_no_direction_is_not_ranked() -> None:
    found = Comparison(
        (
            simulate("a", [0.10, 0.11, 0.12], metrics=("map_at_r", "eer", "pi_ratio")),
            simulate("b", [0.30, 0.31, 0.32], key="b", metrics=("map_at_r", "eer", "pi_ratio")),
        )
    )
    assert found.by_mean("separated", "map_at_r") == ["b", "a"]
    assert found.by_mean("separated", "eer") == ["a", "b"]
    assert found.ranks("separated", "map_at_r") == {"a": 2, "b": 1}
    assert found.ranks("separated", "eer") == {"a": 1, "b": 2}
    scores = table(found, "scores")
    assert scores.best == {(1, 2), (0, 3), (1, 5), (0, 6)}
    assert "but for pi ratio" in scores.note
    assert scores.rows[0][7].startswith("0.110 ±")


def test_the_spread_over_folds_is_apart_from_that_over_reproductions() -> None:
    found = Comparison(
        (
            simulate("a", [0.3, 0.4, 0.5], fold_noise=0.02),
            simulate("pretrained", [0.2], None, key="p"),
        )
    )
    (row,) = [row for row in raw(found, "spread") if row["metric"] == "map_at_r"]
    assert float(row["over_folds"]) == pytest.approx(math.sqrt(4 * 0.02**2 / 3))
    assert float(row["over_units"]) == pytest.approx(0.1)


def test_studies_of_before_the_scores_of_folds_were_kept_have_no_spread_over_folds() -> None:
    assert table(Comparison(bench()), "spread") is None


def test_metrics_of_training_embeddings_have_a_table_of_their_own() -> None:
    entries = [
        {
            "search": 0,
            "reproduction": r,
            "fold": f,
            "key": "k",
            "status": "finished",
            "validation": {"map_at_r": 0.5},
            "training": {
                "pi_ratio": 0.2 + r / 10 + f / 100,
                "spectral_decay": ("inf", "nan")[f] if r else 0.4,
            },
        }
        for r in range(2)
        for f in range(2)
    ]
    found = Comparison((simulate("a", [0.3, 0.4], reproductions=entries),))
    rows = {row["metric"]: row for row in raw(found, "training")}
    assert float(rows["pi_ratio"]["mean"]) == pytest.approx(t_interval([0.205, 0.305]).mean)
    assert float(rows["pi_ratio"]["high"]) == pytest.approx(t_interval([0.205, 0.305]).high)
    assert rows["spectral_decay"]["mean"] == ""
    assert table(found, "training").rows[0][2] == "infinite in 1 of 2"
    assert table(Comparison(bench()), "training") is None


def test_a_trial_that_was_given_up_is_shown_and_counted() -> None:
    trials = [
        {
            "search": 0,
            "trial": 0,
            "status": "finished",
            "map_at_r": 0.5,
            "parameters": {"margin": 0.1},
            "runs": [],
        },
        {
            "search": 0,
            "trial": 1,
            "status": "pruned",
            "map_at_r": None,
            "estimate": 0.31,
            "parameters": {"margin": 0.9},
            "runs": [],
        },
        {
            "search": 0,
            "trial": 2,
            "status": "failed",
            "map_at_r": None,
            "parameters": {"margin": 1.9},
            "runs": [],
        },
    ]
    found = Comparison((simulate("a", [0.3, 0.4], trials=trials),))
    assert [row[4] for row in table(found, "trials").rows] == [
        "50.00",
        "given up after its first fold (estimate 31.00)",
        "diverged",
    ]
    assert [row["estimate"] for row in raw(found, "trials")] == ["", "0.31", ""]
    assert (
        "a: 1 of 3 trials were given up after their first fold; they count in the budget."
        in notices_of(found)
    )
    assert "a: 1 of 3 trials diverged; they count in the budget." in notices_of(found)


def test_an_exception_of_the_protocol_is_told() -> None:
    exceptions = [["dreml", ["trunk=resnet18", "dim=144"]]]
    found = Comparison((simulate("dreml", [0.3, 0.4], resolved={"exceptions": exceptions}),))
    assert "dreml: the protocol makes an exception for it: trunk=resnet18, dim=144." in notices_of(
        found
    )


# --- Pairs ---


def test_needed_searches_are_those_of_a_difference_fixed_beforehand() -> None:
    found = Comparison(bench())
    pairs = {(pair.first, pair.second): pair for pair in found.differences("separated")}
    rows = raw(found, "needed-separated")
    assert len(rows) == len(pairs) == 10
    for row in rows:
        assert int(row["needed_0.01"]) == pairs[row["first"], row["second"]].needed
        assert int(row["needed_0.005"]) > int(row["needed_0.01"]) > int(row["needed_0.02"])
    assert set(rows[0]) == {
        "first",
        "second",
        "error",
        "units",
        "needed_0.005",
        "needed_0.01",
        "needed_0.02",
    }
    single = Comparison((simulate("a", [0.3]), simulate("b", [0.4], key="b")))
    assert table(single, "needed-separated") is None


def test_many_verdicts_stand_together_and_few_one_by_one() -> None:
    scores = paired({f"m{number}": number / 10 for number in range(7)}, 10)
    found = Comparison(tuple(simulate(name, values, key=name) for name, values in scores.items()))
    lines = summary(found)
    assert len(lines) == 6
    assert re.match(
        r"m6 is better than m5, m4, m3, m2, m1, m0, by \d+\.\d to \d+\.\d points, at the"
        r" parameters",
        lines[0],
    )
    few = Comparison(tuple(simulate(name, scores[name], key=name) for name in ("m1", "m5")))
    assert len(summary(few)) == 1
    assert re.match(
        r"m5 is better than m1 by \d+\.\d points \(\d+\.\d to \d+\.\d\), at the parameters",
        summary(few)[0],
    )


# --- Gains over the years ---


def test_gains_are_relative_and_beside_the_weak_baseline() -> None:
    found = Comparison(bench())
    assert table(found, "gains-map_at_r").columns == [
        "method",
        "year",
        "MAP@R",
        "contrastive",
        "contrastive_sampled",
        "triplet",
    ]
    row = next(
        r
        for r in raw(found, "gains-map_at_r")
        if (r["method"], r["baseline"]) == ("arcface", "contrastive_sampled")
    )
    scores = {record.method: record.units("separated", "map_at_r") for record in found.records}
    expected = relative_gain(scores["arcface"], scores["contrastive_sampled"])
    assert expected is not None
    assert expected.mean == pytest.approx(
        np.mean(scores["arcface"]) / np.mean(scores["contrastive_sampled"]) - 1
    )
    assert (float(row["gain"]), float(row["low"])) == pytest.approx((expected.mean, expected.low))
    full = next(
        r
        for r in raw(found, "gains-map_at_r")
        if (r["method"], r["baseline"]) == ("arcface", "contrastive")
    )
    assert float(full["gain"]) < float(row["gain"])


def test_claims_stand_beside_what_is_measured() -> None:
    found = Comparison(bench())
    assert table(found, "gains-precision_at_1").columns[3:5] == ["contrastive", "triplet"]
    row = next(
        r
        for r in raw(found, "gains-precision_at_1")
        if (r["method"], r["baseline"]) == ("lifted", "contrastive")
    )
    assert float(row["claimed"]) == pytest.approx(np.mean([47.2 / 26.4, 49 / 21.7, 62.1 / 42]) - 1)


def test_on_a_data_set_of_the_papers_their_claim_is_the_one_for_it() -> None:
    on_cub = Comparison(bench(data="cub"))
    assert claim(on_cub, "lifted", "contrastive") == pytest.approx(47.2 / 26.4 - 1)
    assert claim(on_cub, "arcface", "contrastive") is None


def test_the_trend_has_claims_the_reality_check_and_our_own() -> None:
    found = Comparison(bench())
    series = trend(found, "contrastive", "precision_at_1")
    assert [point.method for point in series["measured here"]] == ["lifted", "arcface"]
    assert [point.method for point in series["claimed by papers"]] == ["lifted"]
    assert [point.method for point in series["measured by the reality check"]] == ["arcface"]
    assert "claimed by papers" not in trend(found, "contrastive", "map_at_r")


def test_the_trend_is_told_in_words() -> None:
    lines = trend_in_words(Comparison(bench()))
    assert re.match(
        r"Over contrastive, later methods were measured at \+\d\.\d% to \+\d\.\d% in P@1 here"
        r" \(single models; 95% intervals "
        r"reach from .* to .*\); papers claimed \+84\.\d% for lifted",
        lines[0],
    )
    assert re.match(
        r"contrastive_sampled, the baseline .* lies 19\.\d% below contrastive in MAP@R", lines[-1]
    )


def test_without_a_baseline_there_is_no_trend() -> None:
    found = Comparison(
        tuple(record for record in bench() if record.method in ("lifted", "arcface"))
    )
    assert trend_in_words(found) == []
    assert "trend" not in figures_of(found)
    assert not [table for table in tables_of(found) if table.name.startswith("gains")]


# --- The price of peeking ---


def peek_by_hand() -> dict[str, Any]:
    """Two reproductions of two folds: gains 0.1 and 0.3, 0 and 0.2; trial 1 is best on test, trial
    2 was given up.
    """
    epochs = [
        {
            "search": 0,
            "reproduction": 0,
            "fold": 0,
            "run": "r",
            "chosen": 2,
            "test": {"0": 0.1, "2": 0.4, "4": 0.5},
        },
        {
            "search": 0,
            "reproduction": 0,
            "fold": 1,
            "run": "r",
            "chosen": 4,
            "test": {"0": 0.6, "2": 0.2, "4": 0.3},
        },
        {
            "search": 0,
            "reproduction": 1,
            "fold": 0,
            "run": "r",
            "chosen": 2,
            "test": {"0": 0.1, "2": 0.4, "4": 0.3},
        },
        {
            "search": 0,
            "reproduction": 1,
            "fold": 1,
            "run": "r",
            "chosen": 0,
            "test": {"0": 0.2, "2": 0.4, "4": 0.3},
        },
    ]
    trials = [
        {"search": 0, "trial": 0, "validation": 0.5, "test": [0.4, 0.5]},
        {"search": 0, "trial": 1, "validation": 0.4, "test": [0.6, 0.4]},
        {"search": 0, "trial": 2, "validation": None, "test": [0.9]},
        {"search": 0, "trial": 3, "validation": None, "test": [0.9, 0.9]},
    ]
    return {"test": "e" * 64, "epochs": epochs, "trials": trials}


def test_peeking_is_what_the_best_on_test_adds_to_the_chosen() -> None:
    found = price(simulate("a", [0.3, 0.4], peek=peek_by_hand()))
    assert found.epoch.mean == pytest.approx(0.15)
    assert (found.epoch.n, found.epoch.low, found.epoch.high) == (2, None, None)
    assert found.parameters is not None
    assert found.parameters.mean == pytest.approx(0.05)
    assert (found.parameters.n, found.parameters.low, found.parameters.high) == (1, None, None)
    assert found.both == pytest.approx(0.2)
    assert found.honest == t_interval([0.3, 0.4])


def test_where_the_selected_trial_is_the_best_peeking_adds_nothing() -> None:
    peek = peek_by_hand()
    peek["trials"] = [
        {"search": 0, "trial": 0, "validation": 0.5, "test": [0.4, 0.5]},
        {"search": 0, "trial": 1, "validation": 0.6, "test": [0.4, 0.5]},
    ]
    found = price(simulate("a", [0.3, 0.4], peek=peek)).parameters
    assert found is not None
    assert (found.mean, found.n) == (0, 1)


def peek_at_searches(searches: int) -> dict[str, Any]:
    """One reproduction of two folds in each search: search s gains s + 1 points by epoch, and 10 s
    by parameters.
    """
    epochs = [
        {
            "search": s,
            "reproduction": 0,
            "fold": f,
            "run": "r",
            "chosen": 2,
            "test": {"2": 0.4, "4": 0.41 + s / 100},
        }
        for s in range(searches)
        for f in range(2)
    ]
    trials = [
        {"search": s, "trial": trial, "validation": 0.5, "test": [0.3 + trial * s / 10] * 2}
        for s in range(searches)
        for trial in range(2)
    ]
    return {"test": "e" * 64, "epochs": epochs, "trials": trials}


def test_with_several_searches_the_price_is_a_mean_over_them_and_has_a_lower_bound() -> None:
    found = price(simulate("a", [[0.3], [0.4], [0.35], [0.36], [0.5]], peek=peek_at_searches(5)))
    assert found.honest == t_interval([0.3, 0.4, 0.35, 0.36, 0.5])
    assert found.epoch.mean == pytest.approx(0.03)
    assert found.epoch == bootstrap_bound([0.41 + s / 100 - 0.4 for s in range(5)])
    assert found.epoch.low is not None and 0.01 <= found.epoch.low < 0.03
    assert found.parameters is not None
    assert (found.parameters.mean, found.parameters.n) == (pytest.approx(0.2), 5)
    assert found.parameters.low is not None and 0 <= found.parameters.low < 0.2


def test_a_search_is_compared_with_its_own_trials_only() -> None:
    peek = peek_at_searches(2)
    peek["trials"] = [
        {"search": 0, "trial": 0, "validation": 0.5, "test": [0.3, 0.3]},
        {"search": 1, "trial": 0, "validation": 0.5, "test": [0.8, 0.8]},
    ]
    found = price(simulate("a", [[0.3], [0.4]], peek=peek)).parameters
    assert found is not None and found.mean == 0


def test_the_table_of_prices_prints_the_bound_and_no_interval_around_a_gain() -> None:
    found = table(
        Comparison((simulate("a", [[0.3], [0.4], [0.35], [0.36]], peek=peek_at_searches(4)),)),
        "peeking",
    )
    assert found is not None
    assert re.fullmatch(r"\+2\.50 \(at least 1\.\d\d\)", found.rows[0][2])
    assert "a bootstrap over searches" in found.note
    assert found.raw[0]["epoch_units"] == 4
    assert "epoch_high" not in found.raw[0]


def test_where_nothing_was_searched_only_the_epoch_could_have_been_peeked_at() -> None:
    peek = {**peek_by_hand(), "trials": []}
    found = price(simulate("a", [0.3, 0.4], trials=[], peek=peek))
    assert found.parameters is None
    assert found.both == found.epoch.mean


def test_the_price_of_peeking_is_marked_as_no_result() -> None:
    found = Comparison(
        (simulate("a", [0.3, 0.4], peek=peek_by_hand()), simulate("b", [0.3, 0.4], key="b"))
    )
    peeking = table(found, "peeking")
    assert [row[0] for row in peeking.rows] == ["a"]
    assert peeking.note.startswith("Not a result.")
    assert "peeking" in figures_of(found)
    assert table(Comparison(bench()), "peeking") is None
    assert "peeking" not in figures_of(Comparison(bench()))


def test_what_was_not_trained_has_no_price() -> None:
    peek = {
        "test": "e" * 64,
        "epochs": [
            {
                "search": 0,
                "reproduction": 0,
                "fold": None,
                "run": "r",
                "chosen": 0,
                "test": {"0": 0.1},
            }
        ],
        "trials": [],
    }
    found = Comparison((simulate("pretrained", [0.3], None, trials=[], peek=peek),))
    assert table(found, "peeking") is None


# --- Published scores ---


def reproduced(**shifts: float) -> Comparison:
    """Studies whose concatenated MAP@R lies this far from the published one."""
    records = []
    for method, shift in shifts.items():
        found = reported(method, "cub", "map_at_r", "concatenated")
        assert found is not None
        centre = found.mean + shift - 0.03
        scores = [centre] if method == "pretrained" else [centre - 0.002, centre, centre + 0.002]
        records.append(simulate(method, scores, key=method, trials=[], announced=PUBLISHED))
    return Comparison(tuple(records))


def test_each_method_is_told_whether_it_comes_out_as_published() -> None:
    lines = published_sentences(
        reproduced(contrastive=0.001, triplet=-0.005, arcface=0.03, pretrained=0.01)
    )
    assert lines == [
        "contrastive: the measured mean lies in the published interval",
        (
            "triplet: the measured mean lies outside the published interval, 0.50 points below its"
            " mean; the intervals overlap"
        ),
        (
            "arcface: the measured mean lies outside the published interval, 3.00 points above its"
            " mean; the intervals do not overlap"
        ),
        "pretrained: published without an interval; measured 1.00 points above it",
        "1 of 3 methods lie in the published interval of MAP@R (concatenated)",
    ]


def test_published_and_measured_scores_stand_side_by_side() -> None:
    rows = raw(reproduced(contrastive=0.001), "published")
    assert len(rows) == 6
    row = next(
        row for row in rows if (row["setting"], row["metric"]) == ("concatenated", "map_at_r")
    )
    assert (row["published"], row["published_half_width"], row["inside"]) == (
        "0.2653",
        "0.0029",
        "True",
    )
    assert float(row["measured"]) == pytest.approx(0.2663)


def test_searched_studies_are_not_held_against_published_scores() -> None:
    assert published_sentences(Comparison(bench(data="cub"))) == []
    assert table(Comparison(bench(data="cub")), "published") is None


def test_under_another_study_s_protocol_its_scores_stand_beside_ours() -> None:
    record = simulate(
        "arcface",
        [0.4, 0.5],
        2019,
        data="cub",
        name="revisiting/cub.v1",
        metrics=("recall_at_1", "map_at_r"),
        resolved={"trunk": "resnet50"},
    )
    (row,) = raw(Comparison((record,)), "beside")
    assert (row["metric"], row["published"], row["published_deviation"]) == (
        "recall_at_1",
        "0.6267",
        "0.0067",
    )
    assert float(row["measured"]) == pytest.approx(0.55)
    assert table(Comparison(bench(data="cub")), "beside") is None


def unbiased(method: str, year: int, **other: Any) -> Any:
    return simulate(
        method,
        [0.4, 0.5],
        year,
        **{
            "data": "cub",
            "name": "unbiased/resnet50.v2",
            "metrics": ("recall_at_1", "nmi", "map_at_r"),
            "resolved": {"trunk": "resnet50"},
            **other,
        },
    )


def test_what_papers_reported_stands_beside_what_the_study_and_we_measured() -> None:
    methods = {"triplet_semihard_squared": 2015, "n_pairs": 2016, "contrastive": 2006}
    records = tuple(unbiased(method, year) for method, year in methods.items())
    rows = {row["method"]: row for row in raw(Comparison(records), "reported")}
    assert list(rows) == ["triplet_semihard_squared", "n_pairs"]
    row = rows["n_pairs"]
    assert (row["trunk"], row["dim"], row["normalised"]) == ("googlenet", "64", "False")
    assert (row["reported"], row["study"]) == ("0.454", "0.561")
    assert float(row["measured"]) == pytest.approx(0.55)
    shown = table(Comparison(records), "reported")
    assert shown.rows[1][:6] == ["n_pairs", "googlenet", "64", "no", "45.40", "56.10"]
    assert shown.rows[1][6].startswith("55.00 ± ")


def test_a_score_that_no_paper_reported_is_left_empty() -> None:
    found = table(Comparison((unbiased("proxy_triplet", 2017),)), "reported")
    assert found.rows[0][:6] == ["proxy_triplet", "bn_inception", "64", "yes", "", "53.10"]
    on_another = Comparison((unbiased("n_pairs", 2016, resolved={"trunk": "conv"}),))
    assert table(on_another, "reported").rows[0][5] == ""


def test_reported_scores_stand_under_the_unbiased_evaluation_on_its_data_alone() -> None:
    for other in (
        {"data": "glyphs"},
        {"name": "reality-check/cub.v1"},
        {"metrics": ("nmi", "map_at_r")},
    ):
        assert table(Comparison((unbiased("n_pairs", 2016, **other),)), "reported") is None
    assert table(Comparison((unbiased("contrastive", 2006),)), "reported") is None


# --- Sweeps ---


def test_a_sweep_holds_its_values_in_order_with_the_base_at_its_own(tmp_path: Any) -> None:
    points = [
        swept(method, "dim", value, 0.3)
        for value in ("128", "16", "1024")
        for method in ("triplet", "arcface")
    ]
    found = only_sweep(store_of(tmp_path, *bench(), *points))
    assert (found.field, found.protocol, found.methods) == (
        "dim",
        "quick.v1",
        ["triplet", "arcface"],
    )
    assert found.values == ["16", "64", "128", "1024"]
    assert found.base_values == {"64"}
    assert found.logarithmic
    expected = t_interval(paired(MEANS, 10)["triplet"])
    assert found.interval("triplet", "64", "separated", "map_at_r") == expected


def test_the_table_of_a_sweep_has_a_row_for_each_method_and_value(tmp_path: Any) -> None:
    points = [
        swept(method, "dim", value, 0.3)
        for value in ("16", "128")
        for method in ("triplet", "arcface")
    ]
    found = only_sweep(store_of(tmp_path, *bench(), *points))
    rows = table(found, "sweep").rows
    assert [row[:2] for row in rows[:3]] == [
        ["triplet", "16"],
        ["triplet", "64 (selected here)"],
        ["triplet", "128"],
    ]
    assert len(raw(found, "sweep")) == 6 * 6
    row = next(
        r
        for r in raw(found, "sweep")
        if (r["method"], r["value"], r["setting"], r["metric"])
        == ("arcface", "16", "concatenated", "map_at_r")
    )
    assert float(row["mean"]) == pytest.approx(
        t_interval(paired({"arcface": 0.3}, 10)["arcface"]).mean + 0.03
    )


def test_a_sweep_over_words_keeps_their_order_and_a_swept_base_is_not_doubled(
    tmp_path: Any,
) -> None:
    points = [
        swept("triplet", "trunk", value, 0.3, values=["resnet50", "conv", "bn_inception"])
        for value in ("conv", "bn_inception", "resnet50")
    ]
    found = only_sweep(store_of(tmp_path, *bench(), *points))
    assert found.values == ["resnet50", "conv", "bn_inception"]
    assert not found.numeric
    assert found.places["triplet", "conv"].key == "triplet-trunk-conv"


def test_a_base_on_another_test_half_is_left_out(tmp_path: Any) -> None:
    points = [swept("triplet", "dim", value, 0.3, test="d" * 64) for value in ("16", "128")]
    found = only_sweep(store_of(tmp_path, *bench(), *points))
    assert found.values == ["16", "128"]
    assert found.base_values == set()


def test_two_fields_are_two_sweeps(tmp_path: Any) -> None:
    store = store_of(
        tmp_path,
        *bench(),
        swept("triplet", "dim", "16", 0.3),
        swept("triplet", "trunk", "conv", 0.3, values=["conv"]),
    )
    assert sorted(found.field for found in sweeps(store)) == ["dim", "trunk"]


def test_a_sweep_tells_what_is_not_finished(tmp_path: Any) -> None:
    begun = swept("triplet", "dim", "1024", 0.3)
    store = store_of(
        tmp_path,
        *bench(),
        swept("triplet", "dim", "16", 0.3),
        replace(begun, tests=begun.tests[:2]),
    )
    found = only_sweep(store)
    assert found.values == ["16", "64"]
    assert notices_of_sweep(found) == [
        "triplet at dim=1024: not finished; run the same sweep again to continue."
    ]


def test_a_sweep_has_one_figure_for_each_metric(tmp_path: Any) -> None:
    found = only_sweep(
        store_of(
            tmp_path,
            *bench(),
            swept("triplet", "dim", "16", 0.3),
            swept("triplet", "dim", "1024", 0.5),
        )
    )
    figures = figures_of(found)
    assert list(figures) == ["sweep-precision_at_1", "sweep-r_precision", "sweep-map_at_r"]
    axes = figures["sweep-map_at_r"].axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64", "1024"]


# --- Over data sets ---


def several(*settings: dict[str, Any]) -> list[Comparison]:
    return [
        Comparison(bench(seed=seed, trainval=f"{seed}" * 64, **one))
        for seed, one in enumerate(settings)
    ]


def test_data_sets_under_one_protocol_are_ranked_together() -> None:
    (found,) = across(several({"data": "glyphs"}, {"data": "birds"}, {"data": "omniglot"}))
    assert sorted(found.data) == ["birds", "glyphs", "omniglot"]
    rows = raw(found, "mean-ranks-separated")
    assert [row["method"] for row in rows] == [
        "arcface",
        "lifted",
        "contrastive",
        "triplet",
        "contrastive_sampled",
    ]
    assert [float(row["mean_rank"]) for row in rows] == [1, 2, 3, 4, 5]
    assert {rows[0][name] for name in found.data} == {"1.0"}


def test_the_reality_check_s_protocols_are_one_family_and_trunks_are_not() -> None:
    names = [{"name": f"reality-check/{data}.v1", "data": data} for data in ("cub", "cars", "sop")]
    (found,) = across(several(*names))
    assert found.protocol == "reality-check.v1"
    assert (
        across(
            several(
                {"name": "unbiased/resnet50.v1"},
                {"name": "unbiased/inception-bn.v1", "data": "birds"},
            )
        )
        == []
    )


def test_published_parameters_of_several_data_sets_are_ranked_apart_from_searched_ones() -> None:
    settings = [
        {"name": f"reality-check/{data}.v1", "data": data, "announced": {"given": given_for(data)}}
        for data in ("cub", "cars", "sop")
    ]
    (found,) = across(several(*settings))
    assert sorted(found.data) == ["cars", "cub", "sop"]
    assert found.given_by == "published by Musgrave et al. 2020"
    assert across(several(settings[0], {"name": "reality-check/cars.v1", "data": "cars"})) == []


def test_one_data_set_or_two_methods_are_not_ranked_over_data_sets() -> None:
    assert across(several({})) == []
    two = [Comparison(one.records[:2]) for one in several({}, {"data": "birds"})]
    assert across(two) == []


def test_one_data_set_measured_in_two_places_counts_once() -> None:
    twice = [Comparison(bench()), Comparison(bench(torch="2.12"))]
    assert across(twice) == []


def test_too_few_data_sets_are_said_to_be_too_few() -> None:
    (found,) = across(several({}, {"data": "birds"}))
    lines = in_words(found)
    assert lines[0].startswith("Over 2 data sets the methods' ranks differ")
    assert "No two methods can differ significantly by ranks over 2 data sets" in lines[1]


def test_enough_data_sets_tell_the_ends_apart_and_name_the_rest() -> None:
    (found,) = across(several(*({"data": f"set{number}"} for number in range(9))))
    lines = in_words(found)
    assert "arcface (mean rank 1.00) ranks above contrastive_sampled (5.00)" in lines
    assert any(line.startswith("no significant difference: arcface, lifted") for line in lines)


def test_two_data_sets_of_one_name_are_told_apart() -> None:
    (found,) = across(several({}, {}))
    assert found.data == ["glyphs (000000)", "glyphs (111111)"]


# --- The whole report ---


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two data sets, a sweep, published parameters and a peek, and their report."""
    draw = np.random.default_rng(0)
    peek = peeked(draw, 10, 0.01, [[0.4, 0.41, 0.39, 0.42], [0.41, 0.42, 0.41, 0.43]])
    records = [*bench(peek=peek, fold_noise=0.02), *bench(seed=1, data="birds", trainval="1" * 64)]
    records += [swept("triplet", "dim", value, 0.3) for value in ("16", "1024")]
    records += reproduced(contrastive=0.001, arcface=0.03).records
    store = write_store(Store.create(tmp_path_factory.mktemp("full") / "store"), records)
    write_report(store)
    return store


def test_the_page_has_a_section_for_each_thing_and_every_link_leads_somewhere(full: Store) -> None:
    text = (full.root / "report" / "index.html").read_text()
    assert text.count("<article") == 5 == len(sections(full))
    links = re.findall(r'href="([^"#][^"]*)"', text)
    assert len(links) > 60
    assert all((full.root / "report" / link).is_file() for link in links)
    anchors = re.findall(r'href="#([^"]+)"', text)
    assert set(re.findall(r'<article id="([^"]+)"', text)) <= set(anchors)
    assert not re.search(r'src="|@import|url\(http|<script', text)


def test_ranks_of_published_parameters_say_that_nothing_was_searched(tmp_path: Any) -> None:
    found = [
        replace(
            record,
            key=f"{record.key}-{data}",
            announced=published(record, data),
        )
        for seed, data in enumerate(("cub", "cars"))
        for record in bench(
            seed=seed, trainval=f"{seed}" * 64, name=f"reality-check/{data}.v1", data=data
        )
    ]
    page = write_report(write_store(Store.create(tmp_path / "store"), found)).read_text()
    ranks = page[page.index("<h2>Ranks over 2 data sets") :]
    assert ranks.startswith(
        "<h2>Ranks over 2 data sets under reality-check.v1, given parameters</h2>"
    )
    assert (
        "Nothing was searched here: parameters published by Musgrave et al. 2020."
        in ranks[: ranks.index("</article>")]
    )


def test_every_table_of_the_report_comes_again_from_what_it_was_made_of(full: Store) -> None:
    extent = Reported.read(full.root / "report" / "report.json").extent
    assert extent == Extent.of(full)
    expected = {
        f"{section.slug}-{table.name}.{form}": render(table, form)
        for section in sections(full, extent)
        for table in tables_of(section)
        for form in RENDERERS
    }
    written = {path.name: path.read_text() for path in (full.root / "report" / "tables").iterdir()}
    assert written == expected


def test_figures_are_the_same_bytes_when_drawn_again(full: Store) -> None:
    folder = full.root / "report" / "figures"
    for section in sections(full):
        for name, figure in figures_of(section).items():
            assert draw(figure, "svg") == (folder / f"{section.slug}-{name}.svg").read_bytes()


def test_figures_of_sweeps_that_are_gone_are_removed_and_nothing_else(full: Store) -> None:
    folder = full.root / "report" / "figures"
    before = {path.name for path in folder.iterdir()}
    for name in (
        "old-sweep-map_at_r.svg",
        "old-ranks.png",
        "old-trend.svg",
        "old-peeking.png",
        "mine.png",
    ):
        (folder / name).write_bytes(b"old")
    write_report(full)
    assert {path.name for path in folder.iterdir()} == {*before, "mine.png"}
    (folder / "mine.png").unlink()


def test_what_peeking_would_have_added_is_set_apart_on_the_page(full: Store) -> None:
    text = (full.root / "report" / "index.html").read_text()
    assert text.count('<div class="unreal">') == 1
    assert "not a result" in text
    assert "would have added" in text


def own_samplers(lines: list[str]) -> list[str]:
    return [line for line in lines if "sampler of their own" in line]


def test_methods_with_a_sampler_of_their_own_are_named_in_one_sentence() -> None:
    found = Comparison(
        (
            simulate("triplet", [0.3, 0.4]),
            simulate("triplet_offline", [0.3, 0.4], announced=drawn_by("offline_triplets")),
            simulate("contrastive_offline", [0.3, 0.4], announced=drawn_by("offline_pairs")),
        )
    )
    assert own_samplers(notices_of(found)) == [
        "Batches from a sampler of their own, not from balanced as the protocol has it:"
        " triplet_offline (offline_triplets), contrastive_offline (offline_pairs)."
    ]


def test_an_own_sampler_that_the_protocol_names_too_is_not_told() -> None:
    found = Comparison((simulate("a", [0.3, 0.4], announced=drawn_by("balanced")),))
    assert own_samplers(notices_of(found)) == []


def drawn_by(sampler: str) -> dict[str, dict[str, str]]:
    """Announce a method with a sampler of its own."""
    return {"method": {"sampler": sampler}}
