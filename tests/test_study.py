"""One study's ways: given parameters, pruned trials, generations, spaces that never change, the
price of peeking.
"""

from dataclasses import replace

import pytest

import entries
from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.methods import methods
from assay.protocols import customise, protocols
from assay.records import study_records
from assay.records.ledger import read
from assay.records.lines import Selection
from assay.records.store import Store
from assay.space import Real, Space
from assay.study import Execution, run_bench
from assay.study.search import best_of, estimate
from miniature import MINI, snapshot

SMALL = customise(protocols["quick"], [*MINI, "iterations=2", "epochs=1"])


def bench(data, out, names=("triplet",), protocol=SMALL, keep="best", **options):
    return run_bench(data, names, protocol, out, Execution(InlineEngine(), keep=keep), **options)


def record_of(out, key):
    return next(record for record in study_records(Store(out)) if record.key == key)


@pytest.fixture
def features(mini_features):
    return f"features:{mini_features}"


# --- no search ------------------------------------------------------------------------------------


def test_without_trials_the_defaults_are_reproduced(features, tmp_path):
    done = bench(features, tmp_path / "s", protocol=customise(SMALL, ["trials=0"]))
    record = record_of(tmp_path / "s", done.studies[0])
    assert record.complete and not record.trials
    assert record.selection == Selection(0, None, {"margin": 0.1}, {})


def test_the_parameters_that_a_protocol_gives_take_the_place_of_defaults(features, tmp_path):
    protocol = replace(
        customise(SMALL, ["trials=2"]), name="mine.v1", given={"triplet": {"margin": 0.3}}
    )
    done = bench(features, tmp_path / "s", protocol=protocol)
    record = record_of(tmp_path / "s", done.studies[0])
    assert record.trials[0].parameters == {"margin": 0.3}
    assert record.trials[1].parameters != {"margin": 0.3}


def test_an_exception_holds_for_its_method_only(features, tmp_path):
    protocol = replace(
        SMALL, name="mine.v1", exceptions={"triplet": {"dim": 4, "optimiser.kind": "adam"}}
    )
    done = bench(features, tmp_path / "s", ("triplet", "nt_xent"), protocol)
    resolved = [record_of(tmp_path / "s", key).announced.protocol.resolved for key in done.studies]
    assert [(one.dim, one.optimiser.kind) for one in resolved] == [
        (4, "adam"),
        (8, "adamw"),
        (8, "adamw"),
    ]
    assert (
        len({record_of(tmp_path / "s", key).announced.protocol.fingerprint for key in done.studies})
        == 1
    )


# --- pruning --------------------------------------------------------------------------------------


def test_a_trial_whose_first_fold_is_hopeless_is_given_up(mini_folder, tmp_path):
    protocol = customise(
        SMALL, ["trials=5", "startup=4", "prune=0", "reproductions=1", "folds=2", "iterations=10"]
    )
    done = bench(f"folder:{mini_folder}", tmp_path / "s", ("contrastive",), protocol)
    record = record_of(tmp_path / "s", done.studies[0])
    assert len(record.trials) == 5
    pruned = [trial for trial in record.trials if trial.status == "pruned"]
    assert pruned, "none of these trials was hopeless"
    for number, trial in enumerate(record.trials):
        best = best_of(record.trials[:number])
        first = trial.runs[0].validation["map_at_r"]
        hopeless = best is not None and first < best.runs[0].validation["map_at_r"]
        assert (trial.status == "pruned") == hopeless
        assert len(trial.runs) == (1 if hopeless else 2)
        if hopeless:
            assert trial.map_at_r is None and trial.estimate == estimate(
                first, record.trials[:number]
            )
    assert record.trials[record.selection.trial].status == "finished"


def test_a_trial_that_was_given_up_is_worth_its_first_fold_as_the_best_trials_is():
    before = [entries.trial(0, 0.4, runs=[entries.run_entry(map_at_r=0.5)]), entries.trial(1, None)]
    assert estimate(0.25, before) == pytest.approx(0.2)


def test_pruning_is_off_unless_a_protocol_says_so():
    assert [name for name in protocols if protocols[name].prune is not None] == []


# --- spaces and generations -----------------------------------------------------------------------


@pytest.fixture
def other_space(as_before):
    """The triplet method with a wider range."""
    methods._parts["triplet"] = replace(methods["triplet"], space=Space(margin=Real(0, 3)))


def test_another_space_than_the_announced_one_is_refused_and_explained(features, tmp_path, request):
    bench(features, tmp_path / "s")
    before = snapshot(tmp_path / "s")
    request.getfixturevalue("other_space")
    with pytest.raises(
        BadInput, match=r"margin was searched in 0\.0 to 2\.0 .* 0\.0 to 3\.0.*--new-study"
    ):
        bench(features, tmp_path / "s", ("nt_xent", "triplet"))
    assert snapshot(tmp_path / "s") == before


def test_a_new_study_begins_afresh_and_both_stay_in_the_record(features, tmp_path, request):
    first = bench(features, tmp_path / "s")
    before = snapshot(tmp_path / "s")
    request.getfixturevalue("other_space")
    second = bench(features, tmp_path / "s", new_study=True)
    assert first.studies != second.studies
    assert before.items() <= snapshot(tmp_path / "s").items()
    records = [record_of(tmp_path / "s", done.studies[0]) for done in (first, second)]
    assert [record.announced.generation for record in records] == [0, 1]
    assert [record.announced.space["margin"].high for record in records] == [2.0, 3.0]
    assert bench(features, tmp_path / "s").studies == second.studies
    assert bench(features, tmp_path / "s", new_study=True).studies not in (
        first.studies,
        second.studies,
    )


# --- the price of peeking -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["features", "folder"])
def test_all_checkpoints_are_scored_once_the_seal_is_open(
    kind, mini_features, mini_folder, tmp_path
):
    data = f"features:{mini_features}" if kind == "features" else f"folder:{mini_folder}"
    done = bench(data, tmp_path / "s", keep="all")
    store = Store(tmp_path / "s")
    record = record_of(store.root, done.studies[0])
    kinds = [line.kind for line in read(store.study(record.key) / "ledger.jsonl")]
    assert kinds[-1] == "peek" and kinds.index("peek") > kinds.index("seal")
    assert [entry.run for entry in record.peek.epochs] == [
        entry.key for entry in record.reproductions
    ]
    for number, test in enumerate(record.tests):
        ours = [entry for entry in record.peek.epochs if entry.reproduction == number]
        chosen = [entry.test[entry.chosen] for entry in ours]
        assert sum(chosen) / len(chosen) == pytest.approx(test.separated["map_at_r"], abs=1e-9)
        assert all(set(entry.test) == set(store.checkpoints(entry.run)) for entry in ours)
    assert [len(trial.test) for trial in record.peek.trials] == [2, 2]


@pytest.mark.slow
def test_keeping_all_weights_changes_nothing_that_is_decided(features, tmp_path):
    honest, kept = bench(features, tmp_path / "a"), bench(features, tmp_path / "b", keep="all")
    ours, theirs = (
        record_of(tmp_path / "a", honest.studies[0]),
        record_of(tmp_path / "b", kept.studies[0]),
    )
    for part in ("trials", "selection", "reproductions", "seal", "tests"):
        assert getattr(ours, part) == getattr(theirs, part)


@pytest.mark.slow
def test_a_store_without_checkpoints_gets_them_when_they_are_asked_for(features, tmp_path):
    bench(features, tmp_path / "s")
    done = bench(features, tmp_path / "s", keep="all")
    fresh = bench(features, tmp_path / "t", keep="all")
    again = snapshot(tmp_path / "s")
    assert (
        record_of(tmp_path / "s", done.studies[0]).peek
        == record_of(tmp_path / "t", fresh.studies[0]).peek
    )
    assert bench(features, tmp_path / "s", keep="all") == done and snapshot(tmp_path / "s") == again


def test_the_same_protocol_by_another_name_continues_the_study_under_the_name_it_was_announced_with(
    features, tmp_path
):
    first = bench(features, tmp_path / "s")
    before = snapshot(tmp_path / "s")
    other = replace(SMALL, name="other.v1", departures=("in other words",), about="the same")
    assert bench(features, tmp_path / "s", protocol=other) == first
    assert snapshot(tmp_path / "s") == before
