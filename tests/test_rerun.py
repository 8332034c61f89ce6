"""`assay verify --rerun K`: runs that are computed again come out the same, and one that does not
is named.
"""

import errno
import json
import random
import shutil
import sys
from dataclasses import replace

import pytest
import torch

from again import rerun
from assay.data import packs, splits
from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.hashing import pretty
from assay.protocols import customise, protocols
from assay.records.keys import Environment
from assay.records.ledger import read
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import Execution, run_bench
from assay.verify import TOLERANCE
from assay.verify.rerun import SAME_WEIGHTS
from forgery import forge
from miniature import MINI, make_features, make_folder

INLINE = ("--engine", "inline")
ENGINE = InlineEngine()
EXECUTION = Execution(ENGINE)
SMALL = customise(protocols["quick"], MINI)
MINE = """
from assay.methods import Method, losses, methods
from assay.space import Space
methods.add(Method("mine", losses["triplet"], space=Space()))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("rerun")


@pytest.fixture(scope="module")
def images(root):
    """A finished bench on images, and its data."""
    data = f"folder:{make_folder(root / 'mini')}"
    run_bench(data, ["triplet", "untrained"], SMALL, root / "images", EXECUTION)
    return root / "images", data


@pytest.fixture(scope="module")
def vectors(root):
    """A finished bench on vectors, where the folds of a trial are one task, and its data."""
    data = f"features:{make_features(root / 'mini.npz')}"
    run_bench(data, ["normalized_softmax", "pretrained"], SMALL, root / "vectors", EXECUTION)
    return root / "vectors", data


@pytest.fixture
def copy(images, tmp_path):
    return Store(shutil.copytree(images[0], tmp_path / "store"))


def everything(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))
    }


def one_run(store, method="triplet"):
    """The folder of a reproduction."""
    record = next(record for record in study_records(store) if record.method == method)
    return store.run(record.reproductions[0].key)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(pretty(content))


def worse_by(amount):
    def change(result):
        result["validation"]["map_at_r"] -= amount

    return change


def seed_of(store, run):
    """A seed that chooses this run."""
    keys = sorted({key for record in study_records(store) for key in record.runs})
    return next(seed for seed in range(10_000) if random.Random(seed).sample(keys, 1) == [run.name])


def repeated(store, data, run):
    """What is said of one run when it is repeated."""
    (found,) = rerun(store, 1, seed_of(store, run), ENGINE, data)
    assert found.run == run.name
    return found


@pytest.mark.parametrize("bench", ["images", "vectors"])
def test_every_run_comes_out_with_the_same_bytes_and_the_store_is_left_alone(bench, request):
    folder, data = request.getfixturevalue(bench)
    before = everything(folder)
    found = list(rerun(Store(folder), 1000, 0, ENGINE, data))
    assert {one.run for one in found} == {
        run for record in study_records(Store(folder)) for run in record.runs
    }
    assert [one for one in found if one.outcome != "same bytes"] == []
    assert everything(folder) == before


def test_the_seed_chooses_the_runs(images):
    folder, data = images

    def chosen(seed):
        return {one.run for one in rerun(Store(folder), 3, seed, ENGINE, data)}

    assert chosen(1) == chosen(1) != chosen(2)
    assert len(chosen(1)) == 3


def test_runs_are_repeated_by_a_worker_and_told_one_by_one(assay, images):
    folder, data = images
    code, out, _ = assay("verify", folder, *INLINE, "--rerun", 2, "--seed", 7, "--data", data)
    assert code == 0
    lines = out.splitlines()
    assert "runs computed again, chosen with --seed 7:" in lines
    begin = lines.index("runs computed again, chosen with --seed 7:") + 1
    assert [line.split(" run ")[0].strip() for line in lines[begin : begin + 2]] == [
        "same bytes", "same bytes"
    ]  # fmt: skip


def test_data_are_loaded_split_and_packed_once_for_all_studies_and_both_checks(
    assay, vectors, monkeypatch
):
    calls = []

    def counted(module, name):
        function = getattr(module, name)

        def count(*given, **named):
            calls.append(name)
            return function(*given, **named)

        monkeypatch.setattr(module, name, count)

    counted(sys.modules["assay.verify.designs"], "load_without_broken")
    counted(splits, "of")
    counted(packs, "write_pack")
    words = ["--rerun", 3, "--seed", 1, "--data", vectors[1]]
    assert len(study_records(Store(vectors[0]))) > 1
    assert assay("verify", vectors[0], *INLINE, *words)[0] == 0
    halves = ["write_pack", "write_pack"]
    assert sorted(calls) == ["load_without_broken", "of", *halves]


def test_without_a_seed_one_is_drawn_and_told(assay, vectors):
    told = [
        json.loads(
            assay("verify", vectors[0], *INLINE, "--rerun", 1, "--data", vectors[1], "--json")[1]
        )["rerun"]
        for _ in range(2)
    ]
    assert told[0]["seed"] != told[1]["seed"]
    again = assay(
        "verify",
        *INLINE,
        vectors[0],
        "--rerun",
        1,
        "--data",
        vectors[1],
        "--json",
        "--seed",
        told[0]["seed"],
    )[1]
    assert json.loads(again)["rerun"] == told[0]


@pytest.mark.forgery("verify --rerun", what="a run's result")
def test_a_forged_result_does_not_come_out_again(assay, images, copy):
    run = one_run(copy)
    edit(run / "result.json", worse_by(-0.1))
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT"
    assert "training of this study comes out here with the same weights" in found.explanation
    code, out, _ = assay(
        "verify",
        copy.root,
        *INLINE,
        "--rerun",
        1,
        "--seed",
        seed_of(copy, run),
        "--data",
        images[1],
    )
    assert code == 1
    assert (
        f"DIFFERENT        run {run.name[:12]} triplet on folder:mini, reproduction 0, fold 0:"
        " validation MAP@R" in out
    )


@pytest.mark.forgery("verify --rerun", what="weights with the same scores")
def test_other_weights_with_the_same_scores_are_different(images, copy):
    run = one_run(copy)
    edit(run / "result.json", lambda result: result.update(weights="0" * 64))
    assert repeated(copy, images[1], run).outcome == "DIFFERENT"


@pytest.mark.forgery("verify --rerun", what="a run that is said to have diverged")
def test_a_run_that_is_said_to_have_diverged_is_different(images, copy):
    run = one_run(copy)
    edit(run / "result.json", lambda result: result.update(status="diverged"))
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT"
    assert found.explanation == "it is diverged in the store, finished here"


@pytest.mark.forgery(
    "verify --rerun",
    what="weights fitted to the test half, with the same validation, said to be of other versions",
)
def test_weights_that_were_fitted_to_the_test_half_are_different(images, copy, monkeypatch):
    """The test score of the weights that are trained here is another one."""
    run = one_run(copy)
    edit(run / "result.json", other_weights)

    def perfect(lines):
        for kind, body in lines:
            if kind == "test" and run.name in body["runs"]:
                body["folds"][body["runs"].index(run.name)]["map_at_r"] = 1.0

    forge(copy, perfect)
    real = Environment.here
    monkeypatch.setattr(
        Environment, "here", lambda *where: replace(real(*where), torch="another version")
    )
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT"
    assert "in the ledger 1.000000" in found.explanation


@pytest.mark.forgery("verify --rerun", what="best and last epoch of a run, with the same scores")
def test_where_scores_agree_it_is_said_which_field_differs(images, copy):
    run = one_run(copy)
    edit(run / "result.json", lambda result: result.update(best_epoch=9, last_epoch=9))
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT"
    assert "and of result.json another best_epoch, last_epoch;" in found.explanation


def other_weights(result):
    """What no file shows of a trial whose weights were thrown away."""
    result["weights"] = "0" * 64


def say_another_host(store):
    for path in store.root.glob("runs/*/*/timing.json"):
        edit(path, lambda timing: timing.update(host="elsewhere", machine="another"))


@pytest.mark.forgery(
    "verify --rerun",
    what="a run's score moved by {}, its weights made up and another host named",
)
@pytest.mark.parametrize("amount", [0.0, 0.002, TOLERANCE / 2])
def test_no_tolerance_where_another_run_of_the_study_comes_out_the_same(images, copy, amount):
    """Two tenths of a point; with the result rewritten, and the clock file naming another host."""
    run = one_run(copy)
    edit(run / "result.json", worse_by(amount))
    edit(run / "result.json", other_weights)
    say_another_host(copy)
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT"
    assert "this run was altered, or computed on a processor of another kind" in found.explanation


@pytest.mark.forgery("verify --rerun", what="a score that the weights do not have")
def test_a_score_that_its_own_weights_do_not_have_is_different(images, copy):
    """Of a baseline, whose weights come out anywhere, too."""
    run = one_run(copy, "untrained")
    edit(run / "result.json", worse_by(0.0005))
    found = repeated(copy, images[1], run)
    assert found.outcome == "within tolerance" and "which nothing proves" in found.explanation
    edit(run / "result.json", worse_by(0.0015))
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT" and f"tolerance {SAME_WEIGHTS}" in found.explanation


@pytest.mark.forgery(
    "nothing",
    what="all runs of a study moved within the tolerance of another processor",
)
def test_where_no_run_comes_out_the_same_the_score_is_compared_within_a_stated_tolerance(
    images, copy
):
    """As on a processor of another kind, which gives other weights for every run."""
    for entry in next(one for one in study_records(copy) if one.method == "triplet").run_entries():
        edit(copy.run(entry.key) / "result.json", other_weights)
    run = one_run(copy)
    edit(run / "result.json", worse_by(TOLERANCE / 2))
    found = repeated(copy, images[1], run)
    assert found.outcome == "within tolerance"
    assert f"tolerance {TOLERANCE}; with the same versions" in found.explanation
    assert "which nothing proves" in found.explanation
    edit(run / "result.json", worse_by(TOLERANCE))
    assert repeated(copy, images[1], run).outcome == "DIFFERENT"


def test_with_other_versions_it_is_said_which(images, copy, monkeypatch):
    real = Environment.here

    def other(*where):
        return replace(real(*where), torch="9.9", source="0" * 64)

    monkeypatch.setattr(Environment, "here", other)
    run = one_run(copy)
    edit(run / "result.json", worse_by(TOLERANCE / 2))
    edit(run / "result.json", other_weights)
    found = repeated(copy, images[1], run)
    assert found.outcome == "within tolerance"
    assert (
        f"torch {torch.__version__} there, 9.9 here; another source of Assay" in found.explanation
    )


@pytest.mark.forgery("verify --rerun", what="a run of other settings")
def test_a_run_of_other_settings_than_its_study_announced_is_different(images, copy):
    run = one_run(copy)
    edit(run / "config.json", lambda config: config["parameters"].update(margin=0.5))
    found = repeated(copy, images[1], run)
    assert (found.outcome, found.explanation) == (
        "DIFFERENT",
        "config.json has another parameters than the study announced",
    )
    (run / "config.json").unlink()
    assert "its folder in the store cannot be read" in repeated(copy, images[1], run).explanation


def test_a_study_whose_ledger_is_broken_does_not_keep_the_others_from_being_repeated(images, copy):
    record = next(record for record in study_records(copy) if record.method == "triplet")
    ledger = copy.study(record.key) / "ledger.jsonl"
    ledger.write_text("{}\n" + ledger.read_text())
    with pytest.raises(BadInput):
        read(ledger)
    assert {one.what.split()[0] for one in rerun(copy, 1000, 0, ENGINE, images[1])} == {
        "as_is",
        "untrained",
    }


@pytest.mark.parametrize("error", [TypeError("x"), PermissionError(errno.EACCES, "no right")])
def test_a_ledger_that_cannot_be_read_is_a_finding_with_the_data_too(
    assay, images, monkeypatch, error
):
    broken = next(one for one in study_records(Store(images[0])) if one.method == "triplet").key

    def failing(path, *rest):
        if broken in str(path):
            raise error
        return read(path, *rest)

    monkeypatch.setattr("assay.records.study.read", failing)
    monkeypatch.setattr("assay.verify.checks.read", failing)
    code, out, _ = assay("verify", images[0], *INLINE, "--data", images[1])
    assert code == 1 and f"UNCHECKED study {broken[:12]}: ledger chain" in out
    assert "untrained on folder:mini: test half embedded again: " in out


@pytest.mark.parametrize("options", [["--data"], ["--rerun", 1, "--data"]])
def test_data_that_are_no_use_are_refused_before_the_other_checks(assay, images, options):
    """The summary and what is taken on trust would be lost below many lines."""
    for data, words in {
        "glyphs": "glyphs is not the data that",
        "folder:nope": "nope",
    }.items():
        code, out, err = assay("verify", images[0], *INLINE, *options, data)
        assert (code, out) == (2, "") and words in err
    assert "give those with --data" in assay("verify", images[0], *options, "glyphs")[2]


def test_the_index_of_looks_is_that_of_the_user_while_all_else_comes_from_an_empty_cache(
    assay, images, tmp_path, monkeypatch
):
    monkeypatch.delenv("ASSAY_LOOKS")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    assert assay("evaluate", "lite0", "--data", images[1], "--test", "--set", "size=32")[0] == 0
    code, out, _ = assay("verify", images[0], *INLINE, "--data", images[1])
    assert code == 0
    (line,) = [one for one in out.splitlines() if "index of looks" in one]
    assert "looked at once, by assay evaluate lite0" in line and str(tmp_path / "looks") in line


def test_data_that_cannot_be_split_as_the_protocol_says_are_other_data(images, tmp_path):
    for name in ("class00", "class01"):
        shutil.copytree(f"{images[1].removeprefix('folder:')}/{name}", tmp_path / "two" / name)
    with pytest.raises(BadInput, match=r"two is not the data that .* was studied on"):
        list(rerun(Store(images[0]), 1, 0, ENGINE, f"folder:{tmp_path / 'two'}"))


@pytest.mark.forgery("verify --rerun", what="data altered since")
def test_data_that_was_altered_since_is_refused(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(images[1].removeprefix("folder:"), tmp_path / "mini")
    assert next(rerun(Store(images[0]), 1, 0, ENGINE)).outcome == "same bytes"
    shutil.copyfile(
        tmp_path / "mini" / "class00" / "0.png", tmp_path / "mini" / "class00" / "1.png"
    )
    with pytest.raises(BadInput, match="folder:mini is not the data that"):
        list(rerun(Store(images[0]), 1, 0, ENGINE))


def test_data_that_is_not_where_its_name_says_has_to_be_given(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        BadInput,
        match=(
            "there is no mini; a store keeps the name of its data, not where they lie: give --data"
        ),
    ):
        list(rerun(Store(images[0]), 1, 0, ENGINE))


def test_a_store_without_a_finished_run_has_nothing_to_repeat(tmp_path):
    with pytest.raises(BadInput, match="holds no finished run that could be repeated"):
        list(rerun(Store.create(tmp_path / "store"), 1, 0, ENGINE))


@pytest.mark.usefixtures("as_before")
def test_a_method_of_ones_own_needs_its_file(assay, vectors, tmp_path):
    from assay.methods import methods

    own = tmp_path / "mine.py"
    own.write_text(MINE)
    run_bench(
        vectors[1], ["mine"], SMALL, tmp_path / "store", replace(EXECUTION, imports=(str(own),))
    )
    assert [
        one.outcome
        for one in rerun(Store(tmp_path / "store"), 1, 0, ENGINE, vectors[1], [str(own)])
    ] == ["same bytes"]
    methods._parts.pop("mine")
    said = "there is no method 'mine' here; where it is your own, give its file with --import"
    with pytest.raises(BadInput, match=said):
        list(rerun(Store(tmp_path / "store"), 1000, 0, ENGINE, vectors[1]))
    words = ("verify", tmp_path / "store", *INLINE, "--data", vectors[1])
    code, out, err = assay(*words, "--rerun", 1)
    assert code == 2 and said in err and "ok" not in out, "refused before the other checks"
    code, out, _ = assay(*words)
    assert code == 0 and "mine on features:mini.npz: test half embedded again" in out
