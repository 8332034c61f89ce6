"""The announcement of a bench: one hash that commits to its methods, their preregistrations and the
test half, and what `verify` says where the store is not what was announced.
"""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import assay
from assay.errors import BadInput
from assay.hashing import pretty
from assay.protocols import customise, protocols
from assay.records.benches import DeclaredBench, declared_benches, read_bench
from assay.records.keys import commitment_to
from assay.records.ledger import read
from assay.records.merge import merge
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import write_report
from assay.study.bench import design_bench, plan_bench, with_control
from assay.study.declare import declare
from assay.tables import comparisons
from assay.verify import verify
from forgery import record_in
from miniature import MINI, make_features, snapshot

SMALL = customise(protocols["quick"], MINI)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_features(tmp_path_factory.mktemp("announced") / "data.npz")


@pytest.fixture(scope="module")
def benched(data, tmp_path_factory):
    """The store of a bench of two methods, which took `contrastive` in later."""
    out = tmp_path_factory.mktemp("benched") / "store"
    bench(data, out, "triplet")
    bench(data, out, "triplet", "contrastive")
    return out


@pytest.fixture
def store(benched, tmp_path):
    return Store(shutil.copytree(benched, tmp_path / "store"))


def bench(path, out, *methods, **options):
    return assay.bench(f"features:{path}", methods, SMALL, out, engine="inline", **options)


def designs(path, *methods):
    return design_bench(f"features:{path}", [*methods, "as_is"], SMALL, "cpu", ())


def other_test_half(path, folder, samples=True):
    """The same trainval with another test half: other vectors, or other labels."""
    with np.load(path) as arrays:
        z, y = arrays["z"].copy(), arrays["y"].copy()
    test = y >= (y.max() + 1) // 2
    if samples:
        z[test] += 1
    else:
        y[test] = np.roll(y[test], 1)
    folder.mkdir()
    np.savez(folder / "data.npz", z=z, y=y)
    return folder / "data.npz"


def problems(store, *anchors):
    return [f"{one.what}: {one.problem}" for one in verify(store, anchors) if one.problem]


def incomplete(store, *anchors):
    return [f"{one.what}: {one.note}" for one in verify(store, anchors) if one.incomplete]


def first_and_second(store):
    """The two benches in the order of their announcement."""
    return sorted(declared_benches(store), key=lambda one: len(one.previous))


def announce_instead(store, bench, **changes):
    """Replace the announcement of a bench by another one, under the hash that it has."""
    store.bench(bench.hash).unlink()
    forged = replace(bench, **changes)
    store.bench(forged.hash).write_text(pretty(forged.to_json()))
    return forged


# --- what is announced ----------------------------------------------------------------------------


def test_the_hash_commits_to_every_preregistration_and_to_the_test_half(store):
    for one in declared_benches(store):
        begun = [read(store.study(key) / "ledger.jsonl")[0].hash for key in one.studies]
        assert list(one.announcements) == begun
        half = record_in(store).seal.test
        assert one.test == commitment_to(store.salts[0], half)
        for name, other in {
            "announcements": (*begun[1:], "0" * 64), "test": "0" * 64, "methods": one.methods[::-1],
            "reference": "triplet", "previous": ("0" * 64,), "look": 9,
        }.items():  # fmt: skip
            assert replace(one, **{name: other}).hash != one.hash, name


def test_what_is_announced_is_what_will_be_recorded(data, tmp_path):
    """The hash is known before the first line of any study."""
    store = Store.create(tmp_path / "store")
    announced = declare(store, designs(data, "triplet"))
    assert not store.studies()
    bench(data, store.root, "triplet")
    assert [one.hash for one in declared_benches(store)] == [announced.hash]
    assert problems(store, announced.hash) == incomplete(store) == []


def test_a_commitment_says_nothing_without_its_salt(data, tmp_path):
    stores = [Store.create(tmp_path / name) for name in "ab"]
    announced = [declare(store, designs(data, "triplet")) for store in stores]
    assert stores[0].salts != stores[1].salts
    assert announced[0].test != announced[1].test
    assert announced[0].announcements == announced[1].announcements
    again = declare(Store.create(tmp_path / "c", stores[0].salts[0]), designs(data, "triplet"))
    assert again.hash == announced[0].hash, "the same salt, handed in, gives the same bytes"


@pytest.mark.parametrize("samples", [True, False], ids=["samples", "labels"])
def test_another_test_half_changes_the_commitment_and_nothing_before_the_seal(
    data, tmp_path, samples
):
    stores = [Store.create(tmp_path / name, "salt") for name in "ab"]
    bench(data, stores[0].root, "triplet")
    bench(other_test_half(data, tmp_path / "other", samples), stores[1].root, "triplet")
    first, second = (declared_benches(store)[0] for store in stores)
    assert first.test != second.test
    assert replace(first, test=second.test) == second
    assert snapshot(stores[0].root, tested=False) == snapshot(stores[1].root, tested=False)


def test_the_points_of_a_sweep_are_announced_too(data, tmp_path):
    from assay.engines import InlineEngine
    from assay.study import Execution, run_sweep

    out = tmp_path / "store"
    run_sweep(f"features:{data}", ["triplet"], SMALL, "dim=4,8", out, Execution(InlineEngine()))
    store = Store(out)
    assert {one.sweep for one in declared_benches(store)} == {None, "dim=4", "dim=8"}
    write_report(store)
    assert problems(store) == incomplete(store) == []
    shutil.rmtree(store.study(study_records(store)[0].key))
    assert incomplete(store)


# --- the test half after the announcement ---------------------------------------------------------


@pytest.mark.forgery(
    "the command", what="the test half replaced between announcement and bench: {}"
)
@pytest.mark.parametrize("samples", [True, False], ids=["samples", "labels"])
def test_a_bench_refuses_a_test_half_that_was_replaced_after_the_announcement(
    data, tmp_path, samples
):
    store = Store.create(tmp_path / "store")
    declare(store, designs(data, "triplet"))
    other = other_test_half(data, tmp_path / "other", samples)
    with pytest.raises(BadInput, match=r"is not the one that was announced with triplet, as_is"):
        bench(other, store.root, "triplet")
    with pytest.raises(BadInput, match=r"is not the one that was announced with as_is"):
        bench(other, store.root, "contrastive")
    plan = partial(plan_bench, f"features:{other}", ["triplet"], SMALL, workers=1, out=store.root)
    with pytest.raises(BadInput, match=r"is not the one that was announced with triplet, as_is"):
        plan()
    assert not store.studies()
    bench(data, store.root, "triplet")
    assert plan(new_study=True).runs
    bench(other, store.root, "triplet", new_study=True)
    assert problems(store) == []


@pytest.mark.forgery("verify", what="the commitment to the test half rewritten")
def test_a_test_half_that_was_replaced_in_the_record_is_found(store):
    for one in first_and_second(store):
        announce_instead(store, one, test=commitment_to(store.salts[0], "another half"))
    assert any(
        "is not the one that was announced: it was replaced" in one for one in problems(store)
    )


@pytest.mark.forgery("verify", what="the salt of the commitments")
def test_a_salt_that_was_altered_is_found(store):
    document = json.loads((store.root / "format.json").read_text())
    (store.root / "format.json").write_text(json.dumps(document | {"salts": ["another"]}))
    assert any("is not the one that was announced" in one for one in problems(store))
    (store.root / "format.json").write_text(json.dumps(document | {"salts": []}))
    with pytest.raises(BadInput, match=r"format\.json has no salts"):
        problems(store)


# --- studies and benches that are not there -------------------------------------------------------


@pytest.mark.forgery("verify --complete", what="a study of a bench removed")
def test_a_dropped_study_is_incomplete_and_stands_on_the_report(store):
    first, second = first_and_second(store)
    shutil.rmtree(store.study(record_in(store, "contrastive").key))
    for folder in store.root.glob("models/*contrastive*"):
        shutil.rmtree(folder)
    write_report(store)
    assert problems(store) == []
    absent = "announced and absent: contrastive (after a kill, run the same command again)"
    assert incomplete(store) == [f"bench {second.hash[:12]}: {absent}"]
    assert (
        f"contrastive: announced with bench {second.hash[:12]} and absent from this store"
        in (store.root / "report" / "index.html").read_text()
    )
    (found,) = [one for one in verify(store, [second.hash]) if one.what.startswith("anchor")]
    assert found.incomplete
    assert "announced and absent: contrastive" in found.note
    assert not [
        one for one in verify(store, [first.hash]) if one.what == "anchor" and one.incomplete
    ]


def test_verify_exits_with_1_for_a_dropped_study_only_where_completeness_is_asked_for(store):
    from typer.testing import CliRunner

    from assay.cli.app import app

    def exit_code(*words):
        return CliRunner().invoke(app, ["verify", str(store.root), *words]).exit_code

    assert exit_code("--complete") == 0
    shutil.rmtree(store.study(record_in(store, "contrastive").key))
    for folder in store.root.glob("models/*contrastive*"):
        shutil.rmtree(folder)
    write_report(store)
    assert exit_code() == 0
    assert exit_code("--complete") == 1


@pytest.mark.forgery(
    "verify --anchor",
    what="a study removed, and its bench announced again without it",
)
def test_an_announcement_without_the_dropped_study_fails_the_anchor_alone(store):
    """Nothing in the store shows it: that is what a hash published beforehand is for."""
    _, second = first_and_second(store)
    place = second.methods.index("contrastive")
    shutil.rmtree(store.study(second.studies[place]))
    for folder in store.root.glob("models/*contrastive*"):
        shutil.rmtree(folder)
    kept = {
        name: tuple(one for number, one in enumerate(getattr(second, name)) if number != place)
        for name in ("studies", "announcements", "methods")
    }
    announce_instead(store, second, trained=("triplet",), **kept)
    write_report(store)
    assert problems(store) == incomplete(store) == []
    assert any("no bench here was announced" in one for one in problems(store, second.hash))


OTHERWISE = {
    "its reference": lambda bench: replace(bench, reference="contrastive"),
    "its control left out": lambda bench: replace(
        bench,
        **{
            name: tuple(
                one
                for one, method in zip(getattr(bench, name), bench.methods, strict=True)
                if not method.endswith(".twin")
            )
            for name in ("studies", "announcements", "methods")
        },
        trained=tuple(method for method in bench.trained if not method.endswith(".twin")),
    ),
}


@pytest.mark.forgery("verify --anchor", what="a bench announced otherwise afterwards: {}")
@pytest.mark.parametrize("name", OTHERWISE)
def test_another_reference_or_control_fails_the_anchor_alone(data, tmp_path, name):
    """What is compared with what is said nowhere else."""
    store = Store.create(tmp_path / "store")
    both = with_control(designs(data, "triplet", "contrastive"), "triplet")
    published = declare(store, both, reference="triplet").hash
    (bench,) = declared_benches(store)
    forged = announce_instead(store, bench, **vars(OTHERWISE[name](bench)))
    assert problems(store) == problems(store, forged.hash) == []
    assert any("no bench here was announced" in one for one in problems(store, published))


@pytest.mark.forgery("verify", what="an announcement removed")
def test_a_removed_announcement_is_found(store):
    first, second = first_and_second(store)
    assert second.previous == (first.hash,)
    store.bench(second.hash).unlink()
    assert any("no bench in benches/ announced contrastive" in one for one in problems(store))
    store.bench(second.hash).write_text(pretty(second.to_json()))
    store.bench(first.hash).unlink()
    assert any(f"{first.hash[:12]}, which was announced before" in one for one in problems(store))


@pytest.mark.forgery("verify", what="an announcement altered, under its new hash")
def test_an_altered_announcement_is_found(store):
    _, second = first_and_second(store)
    path = store.bench(second.hash)
    path.write_text(pretty(replace(second, look=7).to_json()))
    assert any("it is not the announcement of a bench" in one for one in problems(store))
    path.unlink()
    for changes, words in (
        ({"look": 1}, "look 1 does not follow"),
        ({"trained": ("triplet",)}, "it does not say of contrastive what the study announces"),
        ({"question": "0" * 64}, "it does not say of triplet what the study announces"),
    ):
        forged = replace(second, **changes)
        store.bench(forged.hash).write_text(pretty(forged.to_json()))
        assert any(words in one for one in problems(store)), words
        store.bench(forged.hash).unlink()


@pytest.mark.forgery("verify", what="an earlier bench on the same question left out")
def test_a_look_that_was_left_out_of_an_announcement_is_found(data, tmp_path):
    """Another seed is another try at the same question."""
    store = Store.create(tmp_path / "store")
    declare(store, designs(data, "triplet"))
    again = customise(SMALL, ["seed=1"])
    assay.bench(f"features:{data}", ["triplet"], again, store.root, engine="inline")
    _, second = first_and_second(store)
    assert (second.look, problems(store)) == (2, [])
    announce_instead(store, second, look=1, after=())
    assert any("does not count a bench on the same question" in one for one in problems(store))


def two_looks(data, tmp_path):
    """A bench that was announced, and one of another seed that was carried out."""
    store = Store.create(tmp_path / "store")
    declare(store, designs(data, "triplet"))
    again = customise(SMALL, ["seed=1"])
    assay.bench(f"features:{data}", ["triplet"], again, store.root, engine="inline")
    return store, *first_and_second(store)


@pytest.mark.forgery("verify", what="a bench announced as the point of a sweep")
def test_a_bench_that_is_called_the_point_of_a_sweep_is_found(store):
    first, second = first_and_second(store)
    forged = announce_instead(store, first, sweep="seed=0")
    announce_instead(store, second, look=1, after=(), previous=(forged.hash,))
    assert any(
        "it is called the point seed=0 of a sweep, and the study of triplet is not of that" in one
        for one in problems(store)
    )


@pytest.mark.forgery("verify", what="the order of two benches on one question taken out")
def test_benches_without_an_order_are_named_and_may_come_from_copies_of_a_store(data, tmp_path):
    store, first, second = two_looks(data, tmp_path)
    assert not [one for one in verify(store) if one.what == "order of benches"]
    forged = announce_instead(store, second, look=1, after=(), previous=())
    write_report(store)
    (found,) = [one for one in verify(store) if one.what == "order of benches"]
    assert {first.hash[:12], forged.hash[:12]} <= {*found.note.replace(",", " ").split()}
    assert "announced in copies of this store" in found.trusted
    assert problems(store) == []


@pytest.mark.forgery("verify", what="a bench removed with its studies, whose runs are left")
def test_runs_that_no_study_names_are_counted(store):
    record = record_in(store, "contrastive")
    assert not [one for one in verify(store) if one.what == "runs/"]
    shutil.rmtree(store.study(record.key))
    _, second = first_and_second(store)
    store.bench(second.hash).unlink()
    for folder in store.root.glob("models/*contrastive*"):
        shutil.rmtree(folder)
    write_report(store)
    (found,) = [one for one in verify(store) if one.what == "runs/"]
    assert found.note.startswith(f"holds {len(record.runs)} runs that no study here names (")
    assert problems(store) == []


FORGED_LOOKS = {
    "far too late": ({"look": 50}, "it is called look 50 after 1 benches on the same question"),
    "beyond all numbers": ({"look": 10**30}, "benches on the same question"),
    "before the first": ({"look": 0}, "look 0 does not follow"),
    "after no study": ({"look": 2, "after": ()}, "look 2 does not follow"),
    "after studies of nobody": (
        {"after": ("e" * 64,)},
        "it counts studies that no bench on the same question announced before it",
    ),
}


@pytest.mark.forgery("verify", what="the look of a bench: {}")
@pytest.mark.parametrize("name", FORGED_LOOKS)
def test_a_look_that_does_not_follow_is_found_and_the_report_is_written(store, name):
    """Whoever merges a store takes its announcements in."""
    changes, words = FORGED_LOOKS[name]
    _, second = first_and_second(store)
    announce_instead(store, second, **changes)
    write_report(store)
    assert any(words in one for one in problems(store))


# --- the anchor -----------------------------------------------------------------------------------


def test_the_anchor_says_what_it_proves_and_that_it_proves_no_order(store):
    _, second = first_and_second(store)
    (found,) = [one for one in verify(store, [second.hash]) if one.what.startswith("anchor")]
    assert found.note.startswith("methods (triplet, contrastive, as_is), spaces, budgets, settings")
    assert "test half are those that were announced" in found.note
    assert "an order in time only if this hash was published" in found.note
    preregistration = record_in(store).preregistration
    assert any(
        "this is the preregistration of triplet on features:data.npz alone" in one
        for one in problems(store, preregistration)
    )


def anchored(store, *anchors):
    return [one for one in verify(store, anchors) if "anchor" in one.what]


def test_each_bench_has_an_anchor_of_its_own_and_the_others_are_named(store):
    """The hash of a later bench commits to the first, and does not show when that was announced."""
    first, second = first_and_second(store)
    for given, left in ((first, second), (second, first)):
        one, others = anchored(store, given.hash)
        assert one.what == f"anchor {given.hash[:12]}"
        named = f"{left.hash[:12]} ({', '.join(left.methods)})"
        assert others.note.startswith(f"{named}: only the hash of a bench itself shows when")
        assert others.trusted == f"that bench {named} was announced before its results were known"
    both = anchored(store, first.hash, second.hash, first.hash)
    assert [one.what for one in both] == [f"anchor {one.hash[:12]}" for one in (first, second)]
    assert not any(one.trusted or one.problem for one in both)
    assert anchored(store) == []


@pytest.mark.parametrize("given", [0, 1])
def test_a_bench_that_cannot_be_read_ends_no_check_of_an_anchor(store, given):
    hashes = [one.hash for one in first_and_second(store)]
    store.bench(hashes[1]).write_text("{")
    found = anchored(store, hashes[given])
    assert [one.what for one in found] == [
        f"anchor {hashes[given][:12]}", "benches without an anchor",
    ]  # fmt: skip
    assert bool(found[0].problem) == (given == 1)
    assert hashes[1 - given][:12] in found[1].note


@pytest.mark.forgery("verify --anchor", what="two hashes published, and one of them shown")
def test_a_second_bench_cannot_be_passed_over_where_one_hash_is_shown(store):
    from typer.testing import CliRunner

    from assay.cli.app import app

    first, second = (one.hash for one in first_and_second(store))
    shown = CliRunner().invoke(app, ["verify", str(store.root), "--anchor", first]).output
    assert f"taken on trust: that bench {second[:12]} (triplet, contrastive, as_is)" in shown
    words = ["verify", str(store.root), "--anchor", first, "--anchor", second]
    assert "benches without an anchor" not in CliRunner().invoke(app, words).output


def test_a_study_announced_again_before_it_began_is_no_accusation_but_fails_the_anchor(
    data, tmp_path
):
    """As where Assay is updated after a bench was killed between announcement and first line."""
    store = Store.create(tmp_path / "store")
    first = declare(store, designs(data, "triplet"))
    older = announce_instead(store, first, announcements=("0" * 64, *first.announcements[1:]))
    bench(data, store.root, "triplet")
    assert problems(store) == []
    assert incomplete(store) == [
        f"bench {older.hash[:12]}: announced again, with another preregistration, before it was"
        " begun: triplet"
    ]
    assert any(
        "triplet was not carried out as announced" in one for one in problems(store, older.hash)
    )
    (newer,) = [one for one in declared_benches(store) if one.previous == (older.hash,)]
    assert problems(store, newer.hash) == []


# --- methods that are added, and merged stores ----------------------------------------------------


def test_a_method_that_is_added_is_marked_in_the_report(benched, data, tmp_path):
    page = (benched / "report" / "index.html").read_text()
    assert "contrastive: declared after 2 studies on the same question (look 2)" in page
    store = Store.create(tmp_path / "store")
    declare(store, designs(data, "triplet"))
    bench(data, store.root, "triplet", "contrastive")
    (compared,) = comparisons(store)
    assert compared.added == {"contrastive": ("triplet",)}
    words = "contrastive: added to the bench later, after triplet had been announced"
    assert words in (store.root / "report" / "index.html").read_text()
    assert all(one.hash in page for one in declared_benches(Store(benched)))


def test_the_anchors_of_two_labs_hold_in_the_merged_store(data, tmp_path):
    """They share the study of the baseline, and each has a salt of its own."""
    for lab, method in (("berlin", "triplet"), ("oslo", "contrastive")):
        bench(data, tmp_path / lab, method)
    merge([tmp_path / "berlin", tmp_path / "oslo"], tmp_path / "both")
    store = Store(tmp_path / "both")
    assert len(store.benches()) == 2
    for hash_ in store.benches():
        assert problems(store, hash_) == incomplete(store, hash_) == []
    bench(data, store.root, "triplet")  # goes on in the merged store: nothing new is announced
    assert len(store.benches()) == 2
    bench(data, store.root, "triplet", "contrastive")
    latest = next(one for one in declared_benches(store) if len(one.previous) == 2)
    assert problems(store, latest.hash) == []


def test_a_second_look_of_another_lab_is_counted_and_called_that(data, tmp_path):
    """Neither bench was announced after the other, and one of two tries is a second look."""
    for lab, protocol in (("berlin", SMALL), ("oslo", customise(SMALL, ["seed=1"]))):
        assay.bench(f"features:{data}", ["triplet"], protocol, tmp_path / lab, engine="inline")
    merge([tmp_path / "berlin", tmp_path / "oslo"], tmp_path / "both")
    page = write_report(Store(tmp_path / "both")).read_text()
    words = "triplet: declared in another store than a bench on the same question (look 2)"
    assert words in page and "after 0 studies" not in page
    assert problems(Store(tmp_path / "both")) == []


# --- what is not finished -------------------------------------------------------------------------


def test_a_bench_that_was_killed_before_the_first_line_of_any_study_is_incomplete(data, tmp_path):
    store = Store.create(tmp_path / "store")
    declared = declare(store, designs(data, "triplet"))
    assert problems(store) == []
    assert incomplete(store) == [
        f"store {store.root}: no study has been begun; run the same command again to begin",
        f"bench {declared.hash[:12]}: announced and absent: triplet, as_is (after a kill, run the"
        " same command again)",
    ]


def test_an_unfinished_study_is_incomplete_and_not_wrong(store):
    record = record_in(store, "contrastive")
    path = store.study(record.key) / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for count in range(1, len(lines)):
        path.write_text("".join(lines[:count]))
        (path.parent / "study.json").unlink(missing_ok=True)
        for folder in store.root.glob("models/*contrastive*"):
            shutil.rmtree(folder)
        shutil.rmtree(store.root / "report", ignore_errors=True)
        assert problems(store) == [], count
        assert any(
            "contrastive on features:data.npz: not finished" in one for one in incomplete(store)
        )


def test_a_bench_is_read_as_it_was_announced(store):
    for hash_ in store.benches():
        assert read_bench(store, hash_) == DeclaredBench.read(store.bench(hash_))
