"""Stores of several labs in one: what they agree on is united, what they disagree on is refused,
nothing else is touched.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import assay
from assay.cli import stores as commands
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.protocols import customise, protocols
from assay.records.ledger import BrokenLedger, Ledger, read
from assay.records.merge import Contribution, merge
from assay.records.run import read_history
from assay.records.store import Store
from assay.records.study import classes_file, study_records
from assay.report import write_report
from assay.tables import comparisons
from assay.verify import verify
from entries import look, write_raw
from forgery import forge
from miniature import MINI, make_features, snapshot

PROTOCOL = customise(protocols["quick"], MINI)


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    """Three finished benches on the same vectors: one of each lab, which share the baseline, and
    one of all their methods.
    """
    root = tmp_path_factory.mktemp("labs")
    make_features(root / "data.npz", noise=0.9)
    for name, methods in {
        "berlin": ["triplet", "pretrained"],
        "oslo": ["contrastive", "pretrained"],
        "one": ["triplet", "contrastive", "pretrained"],
    }.items():
        assay.bench(
            f"features:{root / 'data.npz'}", methods, PROTOCOL, root / name, engine="inline"
        )
    return root


@pytest.fixture
def place(labs, tmp_path):
    """A copy of them to work in."""
    return shutil.copytree(labs, tmp_path / "place")


def everything(store):
    """Every file with its content and when it was written."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def record_of(store, method):
    return next(record for record in study_records(Store(store)) if record.method == method)


def ledger_of(store, method):
    return Store(store).study(record_of(store, method).key) / "ledger.jsonl"


def runs_of(store):
    return len(list(store.glob("runs/*/*/result.json")))


def problems(store):
    return [
        f"{finding.what}: {finding.problem}" for finding in verify(Store(store)) if finding.problem
    ]


def models(store):
    return {path.relative_to(store): path.read_bytes() for path in store.glob("models/*/*")}


# --- what is united -------------------------------------------------------------------------------


def test_methods_of_two_labs_stand_in_one_table_as_if_one_lab_had_benched_them_all(place):
    merge([place / "berlin", place / "oslo"], place / "both")
    assert not (place / "both" / "report").exists()
    write_report(Store(place / "both"))
    (comparison,) = comparisons(Store(place / "both"))
    assert sorted(comparison.methods) == ["as_is", "contrastive", "pretrained", "triplet"]
    assert snapshot(place / "both") == snapshot(place / "one")
    assert models(place / "both") == models(place / "one")
    assert problems(place / "both") == []


def test_it_says_what_came_from_where(place):
    merged = merge([place / "berlin", place / "oslo"], place / "both")
    shared = runs_of(place / "berlin") + runs_of(place / "oslo") - runs_of(place / "one")
    assert shared > 0
    assert merged.contributions == (
        Contribution(place / "berlin", runs_of(place / "berlin"), studies=3, models=3),
        Contribution(place / "oslo", runs_of(place / "oslo") - shared, studies=1, models=1),
    )
    assert (merged.runs, merged.studies) == (runs_of(place / "one"), 4)


def test_the_stores_it_reads_are_not_touched(place):
    before = everything(place / "berlin") | everything(place / "oslo")
    merge([place / "berlin", place / "oslo"], place / "both")
    assert everything(place / "berlin") | everything(place / "oslo") == before


@pytest.mark.parametrize(
    "again", [["berlin", "oslo"], ["oslo", "both", "berlin"], ["both"], ["oslo", "oslo"]]
)
def test_doing_it_again_adds_nothing(place, again):
    merge([place / "berlin", place / "oslo"], place / "both")
    before = snapshot(place / "both")
    merged = merge([place / name for name in again], place / "both")
    assert all((came.runs, came.studies, came.models) == (0, 0, 0) for came in merged.contributions)
    assert snapshot(place / "both") == before


def test_the_store_they_are_united_in_may_be_one_of_them(place):
    merge([place / "berlin", place / "oslo"], place / "berlin")
    write_report(Store(place / "berlin"))
    assert snapshot(place / "berlin") == snapshot(place / "one")


def test_order_of_the_stores_does_not_matter(place):
    merge([place / "berlin", place / "oslo"], place / "both")
    merge([place / "oslo", place / "berlin"], place / "turned")
    assert snapshot(place / "both") == snapshot(place / "turned")


@pytest.mark.parametrize("lines", [1, 3, -1])
@pytest.mark.parametrize("order", [["berlin", "behind"], ["behind", "berlin"]])
def test_of_two_states_of_a_study_the_one_that_is_further_counts(place, lines, order):
    behind = shutil.copytree(place / "berlin", place / "behind")
    ledger = ledger_of(behind, "triplet")
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:lines]))
    merge([place / name for name in order], place / "both")
    assert (
        ledger_of(place / "both", "triplet").read_bytes()
        == ledger_of(place / "berlin", "triplet").read_bytes()
    )
    assert problems(place / "both") == []


def test_weights_that_one_store_has_dropped_come_from_the_other(place):
    without = shutil.copytree(place / "berlin", place / "without")
    key = record_of(without, "triplet").reproductions[0].key
    (Store(without).run(key) / "model.safetensors").unlink()
    merge([without, place / "berlin"], place / "both")
    assert problems(place / "both") == []


def test_checkpoints_that_one_store_has_kept_come_as_a_whole(place):
    kept = shutil.copytree(place / "berlin", place / "kept")
    key = record_of(kept, "triplet").reproductions[0].key
    folder, best = Store(kept).run(key), Store(kept).result(key).best_epoch
    (folder / "checkpoints").mkdir()
    for epoch in [checkpoint.epoch for checkpoint in read_history(folder)]:
        (folder / "checkpoints" / f"{epoch}.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes() if epoch == best else b"of another epoch"
        )
    merge([place / "berlin", kept], place / "both")
    ours, theirs = (
        {epoch: path.read_bytes() for epoch, path in Store(one).checkpoints(key).items()}
        for one in (kept, place / "both")
    )
    assert ours == theirs and ours


def look_at(store, epoch):
    record = record_of(store, "triplet")
    own = look(record.reproductions[0].key)
    entry = replace(own, metrics={"mrr": epoch}, test=record.seal.test)
    Ledger(ledger_of(store, "triplet")).look(entry)


def test_looks_of_both_labs_are_counted_once_each(place):
    other = shutil.copytree(place / "berlin", place / "other")
    look_at(place / "berlin", 0.1)
    third = shutil.copytree(place / "berlin", place / "third")
    look_at(place / "berlin", 0.2)
    look_at(other, 0.3)
    stores = [place / "berlin", other, third]
    merge(stores, place / "both")
    looks = [look.metrics["mrr"] for look in record_of(place / "both", "triplet").looks]
    assert looks == [0.1, 0.2, 0.3]
    assert problems(place / "both") == []
    before = snapshot(place / "both")
    merge(stores, place / "both")
    assert snapshot(place / "both") == before


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from assay.records import merge
copies, copy = int(sys.argv[1]), shutil.copyfile
def kill(*paths):
    global copies
    copies -= 1
    if copies < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return copy(*paths)
shutil.copyfile = kill
merge.merge([Path(sys.argv[2]), Path(sys.argv[3])], Path(sys.argv[4]))
"""


def test_killed_at_any_time_and_done_again_it_ends_with_the_same_bytes(place):
    for copies in (0, 7, 40):
        words = [str(copies), *(str(place / name) for name in ("berlin", "oslo", "both"))]
        done = subprocess.run([sys.executable, "-c", KILLED, *words])
        assert done.returncode == -signal.SIGKILL
    merge([place / "berlin", place / "oslo"], place / "both")
    write_report(Store(place / "both"))
    assert snapshot(place / "both") == snapshot(place / "one")
    assert not list((place / "both").rglob(".draft-*"))


# --- what is refused ------------------------------------------------------------------------------


def change_json(path, **changes):
    path.write_text(
        json.dumps({**json.loads(path.read_text()), **changes}, indent=1, sort_keys=True) + "\n"
    )


def test_one_run_with_two_results_is_refused_with_both_named(place):
    key = record_of(place / "berlin", "pretrained").reproductions[0].key
    for name in ("berlin", "oslo"):
        shutil.rmtree(Store(place / name).root / "studies")
    result = Store(place / "oslo").run(key) / "result.json"
    change_json(result, last_epoch=7)
    with pytest.raises(
        BadInput,
        match=rf"berlin/.*{key}/result.json and .*oslo/.*{key}/result.json .*different: last_epoch",
    ):
        merge([place / "berlin", place / "oslo"], place / "both")
    assert runs_of(place / "both") == 0


def test_two_studies_under_one_key_are_refused_with_both_named(place):
    ledger = ledger_of(place / "oslo", "pretrained")
    lines = read(ledger)
    ledger.unlink()
    forged = Ledger(ledger)
    for line in lines:
        versions = (
            {"versions": {**line.body["versions"], "python": "4.0"}}
            if line.kind == "preregistration"
            else {}
        )
        receipt = {"receipt": forged.receipt().hash} if line.kind == "seal" else {}
        forged = write_raw(ledger, [(line.kind, {**line.body, **versions, **receipt})])
    with pytest.raises(
        BadInput,
        match=(
            r"berlin/.*ledger.jsonl and .*oslo/.*ledger.jsonl .*line 1 .*preregistration: versions"
        ),
    ):
        merge([place / "berlin", place / "oslo"], place / "both")
    assert runs_of(place / "both") == 0


def spoil_weights(store):
    path = Store(store).run(record_of(store, "triplet").reproductions[0].key) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def spoil_config(store):
    change_json(
        Store(store).run(record_of(store, "triplet").reproductions[0].key) / "config.json",
        seed=1,
    )


def spoil_result(store):
    change_json(
        Store(store).run(record_of(store, "triplet").reproductions[0].key) / "result.json",
        last_epoch=7,
    )


def remove_run(store):
    shutil.rmtree(Store(store).run(record_of(store, "triplet").trials[0].runs[0].key))


def spoil_vectors(store):
    record = record_of(store, "triplet")
    path = Store(store).test_vectors(record.reproductions[0].key, record.seal.test)
    np.save(path, np.load(path) + 1)


def remove_vectors(store):
    record = record_of(store, "triplet")
    Store(store).test_vectors(record.reproductions[0].key, record.seal.test).unlink()


def scores_of_classes(store):
    record = record_of(store, "triplet")
    return classes_file(Store(store).study(record.key), record.tests[0].search, 0)


def spoil_classes(store):
    path = scores_of_classes(store)
    path.write_bytes(path.read_bytes() + b"0")


def remove_classes(store):
    scores_of_classes(store).unlink()


def swap_answers(store):
    (path,) = store.glob("answers/*.npz")
    with np.load(path) as arrays:
        np.savez(path, y=arrays["y"][::-1])


def link_run(store):
    """Move a run out of the store, and leave a link to it."""
    run = next(store.glob("runs/*/*"))
    run.symlink_to(run.rename(store.parent / "elsewhere"))


def link_report(store):
    (store / "report").mkdir(exist_ok=True)
    (store / "report" / "secret").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (link_run, "is a link to .*elsewhere; a store that is merged holds its own files"),
        (link_report, "secret is a link to /etc/hostname"),
        (spoil_weights, "model.safetensors was altered"),
        (spoil_config, "config.json was altered"),
        (spoil_result, r"result.json is missing or not what .*ledger.jsonl says"),
        (remove_run, r"result.json is missing or not what .*ledger.jsonl says"),
        (spoil_vectors, r"\.npy is missing or not what .*ledger.jsonl says"),
        (remove_vectors, r"\.npy is missing or not what .*ledger.jsonl says"),
        (spoil_classes, r"classes.* is missing or not what .*ledger.jsonl says"),
        (remove_classes, r"classes.* is missing or not what .*ledger.jsonl says"),
        (swap_answers, r"\.npz is missing or not what .*ledger.jsonl says"),
    ],
)
def test_a_store_that_is_not_what_it_says_is_refused(place, spoil, named):
    spoil(place / "oslo" if spoil is swap_answers else place / "berlin")
    with pytest.raises(BadInput, match=named):
        merge([place / "oslo", place / "berlin"], place / "both")
    assert runs_of(place / "both") == 0


def test_a_broken_chain_is_refused(place):
    ledger = ledger_of(place / "berlin", "triplet")
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(BrokenLedger, match="lines were removed or moved"):
        merge([place / "berlin"], place / "both")


def test_what_is_no_store_is_refused(place):
    with pytest.raises(BadInput, match="is not a run store"):
        merge([place / "nowhere"], place / "both")
    assert not (place / "both").exists()


def test_a_store_that_is_being_driven_is_not_written_to(place):
    with (
        Store(place / "oslo").driving(),
        pytest.raises(BadInput, match=f"is writing to .* \\(process {os.getpid()}"),
    ):
        merge([place / "berlin"], place / "oslo")


# --- what is left behind --------------------------------------------------------------------------


@pytest.mark.forgery(
    "the command", what="finished runs, test vectors or scores that no study names"
)
def test_what_no_ledger_of_a_store_names_is_not_copied(place):
    """A bench that comes later would take such a run for its own."""
    poison, record = place / "oslo", record_of(place / "oslo", "contrastive")
    ours = {entry.key for entry in record_of(poison, "pretrained").run_entries()}
    theirs = {entry.key for entry in record.run_entries()} - ours
    shutil.rmtree(Store(poison).study(record.key))
    vectors = Store(poison).test_vectors(min(ours), "f" * 64)
    vectors.parent.mkdir(exist_ok=True)
    np.save(vectors, np.zeros(3))
    stranger = poison / "studies" / ("f" * 64) / "classes" / "0-0.npz"
    stranger.parent.mkdir(parents=True)
    np.savez(stranger, y=np.zeros(3))
    merge([poison, place / "berlin"], place / "both")
    both = Store(place / "both")
    assert theirs and not any(both.run(key).exists() for key in theirs)
    assert all(both.has_run(key) for key in ours)
    assert not both.test_vectors(min(ours), "f" * 64).exists()
    assert not (place / "both" / stranger.relative_to(poison)).exists()
    assert problems(place / "both") == []


def poison_answers(store):
    for path in store.glob("answers/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"X")


@pytest.mark.forgery("the command", what="the answers of a test half in a store without its study")
@pytest.mark.parametrize("out", ["both", "oslo"])
def test_answers_that_no_seal_of_a_store_names_are_not_taken_over(place, out):
    for folder in ("studies", "report"):
        shutil.rmtree(place / "oslo" / folder)
    poison_answers(place / "oslo")
    merge([place / "oslo", place / "berlin"], place / out)
    assert problems(place / out) == []
    before = snapshot(place / out)
    merge([place / "berlin"], place / out)
    assert snapshot(place / out) == before


@pytest.mark.forgery("the command", what="two studies that opened one test half with other labels")
def test_studies_that_say_different_things_of_one_test_half_are_refused(place):
    record, store = record_of(place / "oslo", "contrastive"), Store(place / "oslo")
    shutil.rmtree(store.study(record_of(place / "oslo", "pretrained").key))
    shutil.rmtree(store.study(record_of(place / "oslo", "as_is").key))
    poison_answers(place / "oslo")
    (path,) = (place / "berlin").glob("answers/*.npz")
    shutil.copyfile(path, place / "oslo" / "answers" / path.name)
    contents = digest_file(store.contents(record.seal.test))

    def change(lines):
        for kind, body in lines:
            if kind == "seal":
                body["contents"] = contents

    forge(store, change, "contrastive")
    with pytest.raises(BadInput, match=r"berlin/.* and .*oslo/.* opened one test half"):
        merge([place / "berlin", place / "oslo"], place / "both")


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def app():
    made = typer.Typer()
    made.command()(commands.merge)
    return made


def test_the_command_tells_what_came_from_where(app, place):
    done = CliRunner().invoke(
        app, [str(place / "berlin"), str(place / "oslo"), "--out", str(place / "both")]
    )
    assert done.exit_code == 0, done.output
    assert (
        f"{place / 'both'} now holds {runs_of(place / 'one')} runs and 4 studies; `assay report"
        in done.output
    )


def test_the_command_says_the_same_to_programs(app, place):
    done = CliRunner().invoke(app, [str(place / "berlin"), "--out", str(place / "both"), "--json"])
    said = json.loads(done.stdout)
    assert (said["runs"], said["studies"]) == (runs_of(place / "berlin"), 3)
    assert said["came"] == [
        {"from": str(place / "berlin"), "runs": said["runs"], "studies": 3, "models": 3}
    ]
