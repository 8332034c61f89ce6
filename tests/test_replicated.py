"""Searches that are replicated: independent of one another, paired over methods, recorded,
verified, paid for.
"""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

import assay as package
from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.protocols import customise, protocols
from assay.records.benches import declared_benches, looks_of
from assay.records.keys import run_seed
from assay.records.store import Store
from assay.records.study import classes_file, study_records
from assay.study.announced import drawn_folds
from assay.verify import verify
from miniature import make_features, snapshot

SETTINGS = (
    "searches=3", "search=quasi-random", "trials=2", "trial_folds=2", "reproductions=2",
    "iterations=2", "epochs=2", "validate_every=1", "dim=8",
)  # fmt: skip
SMALL = customise(protocols["quick.v1"], SETTINGS)


def run(data, out, methods=("triplet", "contrastive"), protocol=SMALL, **options):
    return package.bench(f"features:{data}", methods, protocol, out, engine="inline", **options)


def records(out):
    return {record.method: record for record in study_records(Store(out))}


def problems(out):
    return [(finding.what, finding.problem) for finding in verify(Store(out)) if finding.problem]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return make_features(tmp_path_factory.mktemp("replicated") / "mini.npz", classes=24)


@pytest.fixture(scope="module")
def benched(features, tmp_path_factory):
    out = tmp_path_factory.mktemp("store") / "store"
    run(features, out, control="triplet")
    return out


def runs_of(record, search):
    tried = [entry.key for trial in record.trials if trial.search == search for entry in trial.runs]
    return tried + [entry.key for entry in record.reproductions if entry.search == search]


def test_every_search_has_its_trials_selection_and_reproductions(benched):
    record = records(benched)["triplet"]
    assert [(trial.search, trial.trial) for trial in record.trials] == [
        (s, t) for s in range(3) for t in range(2)
    ]
    assert [selection.search for selection in record.selections] == [0, 1, 2]
    assert all(len(trial.runs) == 2 for trial in record.trials), "a trial is validated on two folds"
    places = [(entry.search, entry.reproduction, entry.fold) for entry in record.reproductions]
    assert places == [(s, r, f) for s in range(3) for r in range(2) for f in range(4)]
    assert [(test.search, test.reproduction) for test in record.tests] == [
        (s, r) for s in range(3) for r in range(2)
    ]
    assert record.complete and not record.failed


def test_two_searches_share_no_run_even_where_they_choose_alike(benched):
    """Trial 0 is the defaults in every search: only the seeds tell its runs apart."""
    for record in records(benched).values():
        if record.searched:
            first = [trial.parameters for trial in record.trials if trial.trial == 0]
            assert first == [first[0]] * 3
            assert not any(
                set(runs_of(record, a)) & set(runs_of(record, b))
                for a, b in combinations(range(3), 2)
            )


def test_searches_ask_for_different_points(benched):
    asked = [
        json.dumps(trial.parameters) for trial in records(benched)["triplet"].trials if trial.trial
    ]
    assert len(set(asked)) == len(asked)


def seeds_of(out, record):
    keys = sorted(record.runs)
    return {json.loads((Store(out).run(key) / "config.json").read_text())["seed"] for key in keys}


def test_seeds_are_common_over_methods_and_the_twin_has_its_own(benched):
    found = records(benched)
    assert seeds_of(benched, found["triplet"]) == seeds_of(benched, found["contrastive"])
    assert not seeds_of(benched, found["triplet"]) & seeds_of(benched, found["triplet.twin"])
    assert not found["triplet"].runs & found["triplet.twin"].runs


def test_the_first_search_keeps_the_seeds_of_a_single_one():
    assert run_seed(0, "t", "trial", 0, 3, 1) == run_seed(0, "t", "trial", 0, 3, 1, twin=False)
    seeds = {
        run_seed(0, "t", "trial", search, 3, 1, twin)
        for search in range(5)
        for twin in (False, True)
    }
    assert len(seeds) == 10


def test_trials_of_one_search_are_validated_on_the_same_folds(benched):
    for record in records(benched).values():
        for search in range(record.searches if record.searched else 0):
            folds = {
                tuple(
                    json.loads((Store(benched).run(entry.key) / "config.json").read_text())["fold"]
                    for entry in trial.runs
                )
                for trial in record.trials
                if trial.search == search
            }
            assert len(folds) == 1


@pytest.mark.parametrize("many", [1, 2, 3])
def test_searches_take_the_folds_of_their_trials_in_turn(features, many):
    """Four searches on one fold each use every fold once: none is favoured, for any data, seed or
    twin.
    """
    from assay.study.bench import design_bench

    protocol = customise(SMALL, [f"trial_folds={many}"])
    design = design_bench(f"features:{features}", ["triplet"], protocol, "cpu", ())[0]
    orders = set()
    for seed in range(20):
        for twin in (False, True):
            drawn = [
                drawn_folds(replace(design.protocol, seed=seed), "data", search, twin)
                for search in range(8)
            ]
            assert all(len(set(folds)) == many for folds in drawn)
            assert Counter(fold for folds in drawn for fold in folds) == dict.fromkeys(
                range(4), 2 * many
            )
            orders.add(tuple(tuple(folds) for folds in drawn))
    assert len(orders) > 3, "the order is drawn, by seed and by twin"


def test_a_unit_is_the_mean_of_a_search(benched):
    record = records(benched)["contrastive"]
    rows = record.by_search("separated", "map_at_r")
    assert [len(row) for row in rows] == [2, 2, 2]
    assert record.units("separated", "map_at_r") == pytest.approx([sum(row) / 2 for row in rows])


def test_the_search_that_validates_best_is_handed_over(benched):
    record = records(benched)["contrastive"]
    by_search = [
        [entry.validation["map_at_r"] for entry in record.reproductions if entry.search == search]
        for search in range(3)
    ]
    means = [sum(row) / len(row) for row in by_search]
    assert record.selection.search == means.index(max(means))
    (folder,) = (Store(benched).root / "models").glob(f"*contrastive-{record.key[:8]}")
    card = json.loads((folder / "model.json").read_text())
    assert (card["search"], card["searches"]) == (record.selection.search, 3)
    assert card["parameters"] == record.selection.parameters


def test_a_baseline_has_as_many_reproductions_as_a_searched_method_has_in_all(features, tmp_path):
    """Where nothing is searched nothing is left out."""
    given = customise(SMALL, ["trials=0"])
    run(features, tmp_path / "store", ["triplet"], given)
    record = records(tmp_path / "store")["triplet"]
    assert (record.searches, len(record.tests), record.announced.budget.reproductions) == (
        1,
        6,
        6,
    )
    assert len(record.units("separated", "map_at_r")) == 6


def test_it_verifies_with_its_twin(benched):
    assert problems(benched) == []


def test_repeated_runs_come_out_the_same(benched, features):
    from again import rerun

    found = list(rerun(Store(benched), 12, 0, InlineEngine(), f"features:{features}"))
    assert {one.outcome for one in found} == {"same bytes"}


def altered(store, record, tmp_path, change):
    """A copy of the store with one line of a ledger changed and its chain made whole again."""
    import shutil

    from assay.hashing import canonical
    from assay.records.ledger import START, hash_of

    out = shutil.copytree(store, tmp_path / "altered")
    path = Store(out).study(record.key) / "ledger.jsonl"
    lines = change([json.loads(line) for line in path.read_text().splitlines()])
    previous = START
    for number, line in enumerate(lines):
        hashed = hash_of(number, line["kind"], line["body"], previous)
        line |= {"number": number, "previous": previous, "hash": hashed}
        previous = hashed
    path.write_text("".join(canonical(line) + "\n" for line in lines))
    return out


def test_a_search_that_was_dropped_is_missed(benched, tmp_path):
    """The worst search left out would raise the mean."""
    record = records(benched)["triplet"]

    def drop(lines):
        kept = [line for line in lines if line["body"].get("search") != 2]
        kept[0]["body"]["budget"] |= {"searches": 2, "reproduction_runs": 16}
        return kept

    found = problems(altered(benched, record, tmp_path, drop))
    assert any(
        "2 searches were announced, the protocol says 3" in problem for _, problem in found
    ), found


def test_a_search_under_the_number_of_another_is_found(benched, tmp_path):
    record = records(benched)["triplet"]

    def exchange(lines):
        for line in lines:
            if line["kind"] == "trial" and line["body"]["search"] in (0, 1):
                line["body"]["search"] = 1 - line["body"]["search"]
        return lines

    assert problems(altered(benched, record, tmp_path, exchange))


def test_scores_of_classes_that_were_altered_are_found(benched, tmp_path):
    import shutil

    out = shutil.copytree(benched, tmp_path / "altered")
    record = records(out)["triplet"]
    classes_file(Store(out).study(record.key), 1, 0).write_bytes(b"no archive")
    assert any("classes/1-0.npz was altered" in problem for _, problem in problems(out))


# --- declarations and looks -----------------------------------------------------------------------


def looks(out):
    by_key = looks_of(declared_benches(Store(out)))
    return {
        record.method: by_key[record.key]
        for record in study_records(Store(out))
        if record.key in by_key
    }


def test_a_bench_is_declared_once_with_all_its_methods(benched):
    (bench,) = declared_benches(Store(benched))
    assert {"triplet", "contrastive", "triplet.twin"} <= set(bench.methods)
    assert {"triplet", "contrastive", "triplet.twin"} == set(bench.trained)
    assert (bench.look, bench.after, bench.reference) == (1, (), None)


def test_running_it_again_changes_nothing(features, benched):
    before = snapshot(benched), declared_benches(Store(benched))
    run(features, benched, control="triplet")
    assert (snapshot(benched), declared_benches(Store(benched))) == before


def test_a_method_that_is_added_later_counts_as_a_look(features, tmp_path):
    out = tmp_path / "store"
    run(features, out, ["triplet"])
    run(features, out, ["triplet", "contrastive"])
    assert (looks(out)["triplet"], looks(out)["contrastive"]) == (1, 2)
    assert problems(out) == []


def test_more_searches_of_what_was_tested_are_another_look_and_repeat_no_run(features, tmp_path):
    out = tmp_path / "store"
    run(features, out, ["triplet"])
    before = records(out)["triplet"].runs
    run(features, out, ["triplet"], customise(SMALL, ["searches=4"]))
    benches = sorted(declared_benches(Store(out)), key=lambda bench: bench.look)
    assert [bench.look for bench in benches] == [1, 2]
    assert set(benches[0].studies) & set(benches[1].after)
    every = [record for record in study_records(Store(out)) if record.method == "triplet"]
    assert all(before <= record.runs for record in every), (
        "the first three searches are the same runs"
    )
    run(features, out, ["triplet"], customise(SMALL, ["seed=1"]))
    assert max(bench.look for bench in declared_benches(Store(out))) == 3, (
        "another seed is another try at the same question"
    )
    run(features, out, ["triplet"], customise(SMALL, ["searches=4", "dim=4"]))
    assert max(bench.look for bench in declared_benches(Store(out))) == 3, (
        "another dimension is another question"
    )


@pytest.mark.parametrize(
    "settings",
    [
        ["seed=1"],
        ["seed=2", "startup=9"],
        ["seed=3", "metrics=map_at_r"],
        ["seed=4", "trials=1"],
        ["searches=2"],
    ],
)
def test_another_try_at_a_question_counts_before_anything_is_opened(features, tmp_path, settings):
    """Declared side by side and finished later, each would be the first look."""
    from assay.study.bench import design_bench
    from assay.study.declare import declare

    store = Store.create(tmp_path / "store")
    first = declare(store, design_bench(f"features:{features}", ["triplet"], SMALL, "cpu", ()))
    again = declare(
        store,
        design_bench(f"features:{features}", ["triplet"], customise(SMALL, settings), "cpu", ()),
    )
    more = declare(
        store, design_bench(f"features:{features}", ["triplet", "contrastive"], SMALL, "cpu", ())
    )
    assert (first.look, again.look, more.look) == (1, 2, 3)


def test_tries_of_two_stores_take_their_turns(benched):
    from dataclasses import replace

    from assay.records.benches import in_turn

    (bench,) = declared_benches(Store(benched))
    other = replace(bench, studies=tuple(key[::-1] for key in bench.studies), protocol="another")
    assert sorted(one.look for one in in_turn([bench, other])) == [1, 2]
    assert [one.look for one in in_turn([bench])] == [1]


def test_a_twin_is_no_reference_and_does_not_count_as_a_method(features, tmp_path):
    from assay.study.bench import design_bench, with_control
    from assay.study.declare import declare

    names = [name for name, method in package.methods.methods.items() if method.loss is not None][
        :10
    ]
    designs = with_control(design_bench(f"features:{features}", names, SMALL, "cpu", ()), names[0])
    store = Store.create(tmp_path / "store")
    assert declare(store, designs).reference is None
    with pytest.raises(BadInput, match="name a trained method"):
        declare(store, designs, f"{names[0]}.twin")


def test_above_ten_methods_all_are_compared_with_one(features, tmp_path):
    from assay.study.bench import design_bench
    from assay.study.declare import declare

    names = [name for name, method in package.methods.methods.items() if method.loss is not None][
        :11
    ]
    designs = design_bench(f"features:{features}", names, SMALL, "cpu", ())
    store = Store.create(tmp_path / "store")
    assert declare(store, designs).reference == "contrastive"
    assert declare(store, designs, names[3]).reference == names[3]
    assert declare(store, designs[:11]).reference == "contrastive"
    with pytest.raises(BadInput, match="--reference nothing: name a trained method"):
        declare(store, designs, "nothing")


def test_a_control_must_be_a_searched_method_of_the_bench(features, tmp_path):
    with pytest.raises(
        BadInput, match="--control margin: name a method of this bench that is searched: triplet"
    ):
        run(features, tmp_path / "store", ["triplet"], control="margin")


def test_an_altered_declaration_is_refused(features, benched, tmp_path):
    import shutil

    out = shutil.copytree(benched, tmp_path / "altered")
    (path,) = (out / "benches").glob("*.json")
    said = json.loads(path.read_text())
    path.write_text(
        json.dumps(said | {"studies": said["studies"][:-1], "methods": said["methods"][:-1]})
    )
    assert any("was altered" in problem for _, problem in problems(out))
    with pytest.raises(BadInput, match="was altered"):
        run(features, out, ["triplet"])


def test_among_many_methods_the_oldest_is_the_reference_and_is_named_before_anything_runs(features):
    from assay.study import plan_bench

    many = [
        "angular",
        "arcface",
        "triplet",
        "margin",
        "nt_xent",
        "fastap",
        "lifted",
        "supcon",
        "circle",
        "cosface",
        "proxy_nca",
    ]
    assert plan_bench(f"features:{features}", many, SMALL, workers=2).reference == "angular"
    assert (
        plan_bench(f"features:{features}", [*many, "contrastive"], SMALL, workers=2).reference
        == "contrastive"
    )
    assert plan_bench(f"features:{features}", many[:3], SMALL, workers=2).reference is None
