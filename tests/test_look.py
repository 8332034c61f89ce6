"""Runs evaluated with `assay evaluate`: a look at the test half is recorded by their study."""

import errno
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import assay as package
import entries
from assay.data import load, splits
from assay.data.dataset import Half
from assay.evaluation import EvaluatedModel
from assay.protocols import customise, protocols
from assay.records.codec import FORMAT
from assay.records.ledger import Ledger, SealError, read
from assay.records.store import Store
from assay.records.study import read_record, study_records
from assay.run.finished import FinishedRun
from assay.verify import verify
from entries import write_raw
from miniature import MINI, make_features, make_folder

PROTOCOL = customise(protocols["quick"], [*MINI, "folds=4"])
METHODS = ["triplet", "pretrained"]


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """Return a folder with a finished miniature bench on vectors, and its data.

    Its baseline is deterministic.
    """
    root = tmp_path_factory.mktemp("look")
    make_features(root / "data.npz")
    package.bench(
        f"features:{root / 'data.npz'}", METHODS, PROTOCOL, root / "store", engine="inline"
    )
    return root


@pytest.fixture
def place(benched, tmp_path, monkeypatch):
    """Copy the bench to a folder that a test may change."""
    monkeypatch.chdir(shutil.copytree(benched, tmp_path / "place"))
    return tmp_path / "place"


@pytest.fixture
def look(assay, place):
    """Evaluate a run on the bench's data, as JSON: the document and what stderr says."""

    def run(key, *words, data="features:data.npz"):
        code, out, err = assay("evaluate", store().run(key), "--data", data, "--json", *words)
        assert code == 0, err
        return json.loads(out), err

    return run


def store():
    return Store(Path("store"))


def record_of(method):
    return next(record for record in study_records(store()) if record.method == method)


def ledger_of(method):
    return store().study(record_of(method).key) / "ledger.jsonl"


def ledgers():
    return {
        path: path.read_bytes()
        for path in sorted(store().root.glob("studies/*/*"))
        if path.is_file()
    }


def problems():
    return [f"{finding.what}: {finding.problem}" for finding in verify(store()) if finding.problem]


def forge(method, change):
    """Alter the lines of a ledger and hash the whole chain again."""
    path = ledger_of(method)
    lines = [[line.kind, line.body] for line in read(path)]
    change(lines)
    path.unlink()
    write_raw(path, lines)


def cut(method, kind):
    """Take a study back to before its first line of this kind."""
    path = ledger_of(method)
    count = next(line.number for line in read(path) if line.kind == kind)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))


# --- validation -----------------------------------------------------------------------------------


def test_a_run_is_scored_on_the_fold_that_it_held_out_and_gives_its_own_result_again(look):
    for entry in record_of("triplet").reproductions[:4]:
        found, err = look(entry.key)
        assert list(found["parts"]) == [f"fold {entry.fold}"]
        assert err == ""
        for name, value in found["mean"].items():
            assert value == pytest.approx(entry.validation[name])


def test_a_deterministic_baseline_held_out_nothing_and_is_scored_on_every_fold(look):
    (entry,) = record_of("pretrained").reproductions
    found, _ = look(entry.key)
    assert list(found["parts"]) == ["fold 0", "fold 1", "fold 2", "fold 3"]
    assert found["mean"]["map_at_r"] == pytest.approx(entry.validation["map_at_r"])


def test_a_weights_file_stands_for_its_run(assay, look):
    key = record_of("triplet").reproductions[0].key
    code, out, _ = assay(
        "evaluate", store().run(key) / "model.safetensors", "--data", "features:data.npz", "--json"
    )
    assert code == 0
    assert json.loads(out)["parts"] == look(key)[0]["parts"]


def test_the_table_names_the_fold(assay, place):
    entry = record_of("triplet").reproductions[2]
    code, out, err = assay("evaluate", store().run(entry.key), "--data", "features:data.npz")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("on features:data.npz: fold 2, 95% intervals")
    assert out.splitlines()[-1] == "10 queries of 2 classes; cosine"


def test_without_test_the_store_is_not_touched(look):
    before = ledgers()
    look(record_of("triplet").reproductions[0].key)
    assert ledgers() == before
    assert not (store().root / "driver.json").exists()


def test_without_test_nothing_of_the_test_half_can_change_a_byte(assay, place):
    runs = [store().run(record_of(method).reproductions[0].key) for method in METHODS]
    before = [assay("evaluate", run, "--data", "features:data.npz", "--json") for run in runs]
    arrays = dict(np.load("data.npz"))
    test = arrays["y"] >= 8
    arrays["y"][test] = np.random.default_rng(1).permutation(arrays["y"][test])
    arrays["z"][test] = 7.0
    np.savez("data.npz", **arrays)
    assert [
        assay("evaluate", run, "--data", "features:data.npz", "--json") for run in runs
    ] == before


def test_on_other_data_all_folds_are_scored(look):
    make_features("other.npz", classes=20, seed=1)
    found, err = look(
        record_of("triplet").reproductions[0].key, "--set", "folds=5", data="features:other.npz"
    )
    assert [part["classes"] for part in found["parts"].values()] == [2, 2, 2, 2, 2]
    assert (
        err
        == "note: the trainval half of features:other.npz is not exactly the half that the model"
        " was trained on, so all folds are scored\nnote: it is not known whether the model was"
        " trained on some of features:other.npz\n"
    )


# --- test -----------------------------------------------------------------------------------------


def test_a_look_gives_the_scores_of_the_study(look):
    """Each fold's own look, averaged, is what the study calls separated."""
    record = record_of("triplet")
    for name in ("map_at_r", "precision_at_1"):
        means = [look(key, "--test")[0]["mean"][name] for key in record.tests[0].runs]
        assert np.mean(means) == pytest.approx(record.tests[0].separated[name])


@pytest.mark.parametrize("method", METHODS)
def test_a_look_sees_the_vectors_that_the_study_saw(place, method):
    record = record_of(method)
    run = FinishedRun.at(store().run(record.reproductions[0].key))
    dataset = load("features:data.npz")
    rows = np.flatnonzero(np.array(splits.parts(dataset, PROTOCOL)) == "test")
    (part,) = EvaluatedModel.of_run(run).parts(
        Half(dataset, rows), {"test": np.arange(len(rows))}, lambda stage, done, total: None
    )
    stored = np.load(store().test_vectors(run.key, record.seal.test))[:, : PROTOCOL.dim]
    np.testing.assert_allclose(
        part.z.numpy(), stored / np.linalg.norm(stored, axis=1, keepdims=True), rtol=1e-6
    )


def test_a_look_is_recorded_and_counted(assay, look):
    record = record_of("triplet")
    key, lines = record.reproductions[0].key, read(ledger_of("triplet"))
    found, err = look(key, "--test", "--metrics", "map_at_r,recall_at_2")
    assert list(found["parts"]) == ["test"]
    assert err == (
        "note: this looks at 40 of 40 samples (100%) of the test half of features:data.npz, opened"
        " by the studies of as_is, pretrained, triplet; recorded as look 1 at test in the study of"
        " triplet\n"
    )
    *before, line = read(ledger_of("triplet"))
    assert before == lines
    assert (line.kind, line.body) == (
        "look",
        {
            "run": key,
            "test": record.seal.test,
            "data": "features:data.npz",
            "samples": 40,
            "similarity": "cosine",
            "metrics": found["mean"],
            "queries": 40,
            "skipped": 0,
        },
    )
    assert json.loads(ledger_of("triplet").with_name("study.json").read_text())["looks"] == [
        line.body
    ]
    assert "look 2 at test" in look(key, "--test")[1]
    states = {
        row["method"]: row["state"]
        for row in json.loads(assay("status", "store", "--json")[1])["studies"]
    }
    assert states == {"triplet": "done, 2 looks at test", "pretrained": "done", "as_is": "done"}
    look(record_of("pretrained").reproductions[0].key, "--test")
    assert "done, 1 look at test" in assay("status", "store")[1]


def test_after_looks_the_store_verifies_and_a_bench_adds_no_line(place, look):
    for method in METHODS:
        look(
            record_of(method).reproductions[0].key,
            "--test",
            "--metrics",
            "map_at_r,spectral_decay",
        )
    assert problems() == []
    before = ledgers()
    package.bench("features:data.npz", METHODS, PROTOCOL, "store", engine="inline")
    assert ledgers() == before
    assert problems() == []
    assert len(record_of("triplet").looks) == 1


def test_a_look_is_recorded_before_any_score_is_printed(assay, place, monkeypatch):
    def refuse(*words):
        raise RuntimeError("the screen is broken")

    monkeypatch.setattr("assay.cli.evaluate.print_json", refuse)
    run = store().run(record_of("triplet").reproductions[0].key)
    code, out, _ = assay("evaluate", run, "--data", "features:data.npz", "--test", "--json")
    assert (code, out) == (1, "")
    assert len(record_of("triplet").looks) == 1
    assert problems() == []


def test_a_look_that_cannot_be_recorded_prints_no_score(assay, place, monkeypatch):
    def refuse(*words):
        raise OSError("the disk is full")

    monkeypatch.setattr(Ledger, "look", refuse)
    run = store().run(record_of("triplet").reproductions[0].key)
    assert assay(
        "evaluate", run, "--data", "features:data.npz", "--test", "--per-query", "q.csv"
    ) == (
        1,
        "",
        "assay: the disk is full\n",
    )
    assert not (place / "q.csv").exists()


def test_what_is_not_finite_is_recorded_by_its_name(look):
    """A test half whose vectors lie on a line, so that all directions but one are dead."""
    arrays = dict(np.load("data.npz"))
    arrays["z"][arrays["y"] >= 8] = [
        [*row, *np.zeros(11)] for row in np.arange(40)[:, None] % 3 + 1.0
    ]
    np.savez("data.npz", **arrays)
    key = record_of("pretrained").reproductions[0].key
    found, _ = look(key, "--test", "--metrics", "spectral_decay_2")
    assert read(ledger_of("pretrained"))[-1].body["metrics"] == found["mean"]
    assert found["mean"]["spectral_decay_2"] in ("inf", "nan")
    assert problems() == []


def test_the_selected_trial_may_be_looked_at_too(look):
    record = record_of("triplet")
    key = record.trials[record.selection.trial].runs[1].key
    assert list(look(key)[0]["parts"]) == ["fold 1"]
    assert "look 1 at test" in look(key, "--test")[1]
    assert problems() == []


def test_a_run_that_several_studies_share_is_on_the_record_of_each_that_has_ended(look):
    record = record_of("triplet")
    for copy in ("e" * 64, "f" * 64):
        shutil.copytree(store().study(record.key), store().study(copy))
    unfinished = store().study("f" * 64) / "ledger.jsonl"
    unfinished.write_text("".join(unfinished.read_text().splitlines(keepends=True)[:4]))
    _, err = look(record.reproductions[0].key, "--test")
    assert err.count("look 1 at test") == 2
    counts = {
        key: len(read_record(store().study(key)).looks) for key in (record.key, "e" * 64, "f" * 64)
    }
    assert counts == {record.key: 1, "e" * 64: 1, "f" * 64: 0}


def test_on_other_data_no_study_is_concerned(look, looks_folder):
    make_features("other.npz", classes=20, seed=1)
    before = ledgers()
    found, err = look(
        record_of("triplet").reproductions[0].key, "--test", data="features:other.npz"
    )
    assert list(found["parts"]) == ["test"]
    assert found["parts"]["test"]["classes"] == 10
    assert (
        err
        == "note: no study is known to have opened the test half of features:other.npz; this look"
        f" at it is recorded as look 1 in the index of looks ({looks_folder})\n"
        "note: it is not known whether the model was trained on some of features:other.npz\n"
    )
    assert ledgers() == before


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("trial", "no study of"),
        (
            "selection",
            "selection and reproductions are not complete, so the test half stays sealed",
        ),
        (
            "reproduction",
            "selection and reproductions are not complete, so the test half stays sealed",
        ),
        ("seal", "the study is still being scored"),
        ("test", "the study is still being scored"),
    ],
)
def test_before_the_study_has_ended_there_is_no_look(assay, place, kind, message):
    record = record_of("triplet")
    key = record.trials[record.selection.trial].runs[0].key
    cut("triplet", kind)
    before = ledgers()
    code, out, err = assay("evaluate", store().run(key), "--data", "features:data.npz", "--test")
    assert (code, out) == (2, "")
    assert message in err
    assert err.endswith("; run `assay bench` to its end first, or leave out --test\n")
    assert err.count("\n") == 1
    assert ledgers() == before


def test_while_a_bench_drives_the_store_there_is_no_look(assay, place):
    run = store().run(record_of("triplet").reproductions[0].key)
    before = ledgers()
    with store().driving():
        code, out, err = assay("evaluate", run, "--data", "features:data.npz", "--test")
        assert assay("evaluate", run, "--data", "features:data.npz")[0] == 0
    assert (code, out) == (2, "")
    assert "another command is writing to" in err and err.endswith("; wait for it to end\n")
    assert ledgers() == before


def test_a_store_that_may_not_be_written_to_gives_no_look(assay, place, monkeypatch):
    run, make = store().run(record_of("triplet").reproductions[0].key), tempfile.TemporaryFile

    def refuse(**options):
        if options["dir"] == store().root.resolve():
            raise PermissionError(errno.EACCES, "Permission denied")
        return make(**options)

    monkeypatch.setattr("assay.records.store.tempfile.TemporaryFile", refuse)
    code, out, err = assay("evaluate", run, "--data", "features:data.npz", "--test")
    assert (code, out) == (2, "")
    assert "Permission denied; a look is recorded there: ask its owner for write access" in err
    assert "--out" not in err


# --- bad input ------------------------------------------------------------------------------------


def altered_weights(run):
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return run


def altered_configuration(run):
    path = run / "config.json"
    path.write_text(path.read_text().replace('"fold": 0', '"fold": 1'))
    return run


def spoilt_configuration(run):
    (run / "config.json").write_text("{")
    return run


def losing_trial(run):
    (run / "model.safetensors").unlink()
    return run


def outside_a_store(run):
    shutil.copytree(run, "runs/aa/key")
    return "runs/aa/key"


def lone_weights(run):
    shutil.copy(run / "model.safetensors", "model.safetensors")
    return "model.safetensors"


def pictures(run):
    make_folder(Path("mini"))
    return run


def unfinished(run):
    (run / "result.json").unlink()
    return run


def in_another_folder(run):
    return shutil.copytree(run, Path("store") / "copies" / "aa" / run.name)


DATA = ["--data", "features:data.npz"]
BAD = {
    "no data": (lambda run: run, [], "is a model: give --data, the samples that it is to embed"),
    "altered weights": (
        altered_weights,
        DATA,
        "was altered after the run had ended (model.safetensors was altered); `assay verify",
    ),
    "altered configuration": (
        altered_configuration,
        DATA,
        "was altered after the run had ended (config.json was altered); `assay verify",
    ),
    "spoilt configuration": (
        spoilt_configuration,
        DATA,
        "was altered after the run had ended (config.json cannot be read",
    ),
    "losing trial": (
        losing_trial,
        DATA,
        "has no weights: only the selected trial and the reproductions keep theirs",
    ),
    "outside a store": (outside_a_store, DATA, "is not a run store"),
    "unfinished": (unfinished, DATA, "is neither a file of embeddings"),
    "in another folder": (in_another_folder, DATA, "is neither a file of embeddings"),
    "lone weights": (lone_weights, DATA, "model.safetensors is neither a file of embeddings"),
    "the store itself": (lambda run: "store", DATA, "store is neither a file of embeddings"),
    "labels": (lambda run: run, ["--labels", "y.npy"], "--labels y.npy: it goes with an .npy"),
    "other folds": (
        lambda run: run,
        [*DATA, "--set", "folds=2"],
        "folds=2: the model held out one fold of 4",
    ),
    "other kind of data": (
        pictures,
        ["--data", "folder:mini"],
        "takes vectors of 12 numbers, the data are images; give data of the kind",
    ),
    "bits": (
        lambda run: run,
        [*DATA, "--similarity", "hamming", "--metrics", "nmi"],
        ", fold 0: nmi is not a metric of bits",
    ),
}


@pytest.mark.parametrize(
    ("place", "run"), [("models", {}), ("elsewhere", {"run": "key"}), ("models", {"run": "key"})]
)
def test_a_model_folder_that_no_study_wrote_is_of_no_run(tmp_path, place, run):
    """It names no run, or does not lie among the models of a store."""
    root = tmp_path / "store"
    (root / place / "mine").mkdir(parents=True)
    (root / place / "mine" / "model.json").write_text(json.dumps({"format": FORMAT, **run}))
    if place == "elsewhere" or not run:
        (root / "format.json").write_text(f'{{"format": {FORMAT}}}')
    assert FinishedRun.of_model(root / place / "mine", None) is None


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_that_names_it(assay, place, name):
    make, words, message = BAD[name]
    what = make(store().run(record_of("triplet").reproductions[0].key))
    before = ledgers()
    code, out, err = assay("evaluate", what, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert ledgers() == before


def test_the_own_number_of_folds_may_be_repeated(look):
    assert look(record_of("triplet").reproductions[0].key, "--set", "folds=4", "--set", "dim=8")[0][
        "parts"
    ].keys() == {"fold 0"}


# --- ledger and verify ----------------------------------------------------------------------------


def test_a_ledger_takes_no_look_before_the_seal_is_open(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(entries.announcement())
    with pytest.raises(SealError, match="the seal is not open"):
        ledger.look(entries.look())
    assert len(read(ledger.path)) == 1
    ledger.record(entries.seal())
    ledger.look(entries.look())
    assert [line.kind for line in read(ledger.path)] == ["preregistration", "seal", "look"]


def test_looks_stand_after_what_a_study_replays(tmp_path):
    own = [entries.announcement(), entries.seal(), entries.scored()]
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        ledger = Ledger(path)
        for entry in own:
            ledger.record(entry)
        Ledger(path).look(entries.look())
    assert [line.kind for line in read(path)] == ["preregistration", "seal", "test", "look", "look"]


def test_a_look_before_the_seal_is_named(place):
    key = record_of("triplet").reproductions[0].key
    forge("triplet", lambda lines: lines.insert(2, ["look", entries.look(key).to_json()]))
    assert any(
        "a look at test precedes the opening of the seal (ledger.jsonl, line 3)" in problem
        for problem in problems()
    )


def test_a_look_at_a_run_of_another_study_is_named(place):
    key = record_of("pretrained").reproductions[0].key
    forge("triplet", lambda lines: lines.append(["look", entries.look(key).to_json()]))
    assert any(
        f"look 1 is at run {key[:12]}, which is not of this study" in problem
        for problem in problems()
    )


def test_an_altered_or_removed_look_breaks_the_record(look):
    key = record_of("triplet").reproductions[0].key
    for _ in range(2):
        look(key, "--test")
    path = ledger_of("triplet")
    whole = path.read_text()
    path.write_text(whole.replace('"similarity":"cosine"', '"similarity":"dot"', 1))
    assert "was altered" in problems()[0]
    lines = whole.splitlines(keepends=True)
    path.write_text("".join([*lines[:-2], lines[-1]]))
    assert problems()
    path.write_text("".join(lines[:-1]))
    assert any("study.json does not say what the ledger says" in problem for problem in problems())
