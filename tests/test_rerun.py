"""`assay verify --rerun K`: runs that are computed again come out the same, and one that does not
is named.
"""

import json
import random
import shutil
from dataclasses import replace

import pytest
import torch

from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.hashing import pretty
from assay.protocols import customise, protocols
from assay.records.keys import Environment
from assay.records.ledger import read
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import Execution, run_bench
from assay.verify import TOLERANCE, rerun
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


def test_a_forged_result_does_not_come_out_again(assay, images, copy):
    run = one_run(copy)
    edit(run / "result.json", worse_by(-0.1))
    found = repeated(copy, images[1], run)
    assert found.outcome == "DIFFERENT"
    assert "on the same machine and with the same versions" in found.explanation
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


def test_other_weights_with_the_same_scores_are_different(images, copy):
    run = one_run(copy)
    edit(run / "result.json", lambda result: result.update(weights="0" * 64))
    assert repeated(copy, images[1], run).outcome == "DIFFERENT"


def test_on_another_machine_the_score_is_compared_within_a_stated_tolerance(
    images, copy, monkeypatch
):
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    run = one_run(copy)
    assert repeated(copy, images[1], run).outcome == "same bytes"
    edit(run / "result.json", worse_by(TOLERANCE / 2))
    found = repeated(copy, images[1], run)
    assert found.outcome == "within tolerance"
    assert (
        f"tolerance {TOLERANCE}; another machine (" in found.explanation
        and "there, elsewhere here)" in found.explanation
    )
    edit(run / "result.json", worse_by(TOLERANCE))
    assert repeated(copy, images[1], run).outcome == "DIFFERENT"


def test_with_other_versions_it_is_said_which(images, copy, monkeypatch):
    real = Environment.here

    def other(*where):
        return replace(real(*where), torch="9.9", source="0" * 64)

    monkeypatch.setattr(Environment, "here", other)
    run = one_run(copy)
    edit(run / "result.json", worse_by(TOLERANCE / 2))
    found = repeated(copy, images[1], run)
    assert found.outcome == "within tolerance"
    assert (
        f"torch {torch.__version__} there, 9.9 here; another source of Assay" in found.explanation
    )


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


def test_other_data_is_refused(assay, images):
    code, _, err = assay("verify", images[0], *INLINE, "--rerun", 1, "--data", "glyphs")
    assert code == 2
    assert "glyphs is not the data that" in err and "give those with --data" in err


def test_data_that_cannot_be_split_as_the_protocol_says_are_other_data(images, tmp_path):
    for name in ("class00", "class01"):
        shutil.copytree(f"{images[1].removeprefix('folder:')}/{name}", tmp_path / "two" / name)
    with pytest.raises(BadInput, match=r"two is not the data that .* was studied on"):
        list(rerun(Store(images[0]), 1, 0, ENGINE, f"folder:{tmp_path / 'two'}"))


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
def test_a_method_of_ones_own_needs_its_file(vectors, tmp_path):
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
    with pytest.raises(
        BadInput,
        match="there is no method 'mine' here; where it is your own, give its file with --import",
    ):
        list(rerun(Store(tmp_path / "store"), 1000, 0, ENGINE, vectors[1]))
