"""Models and embeddings evaluated from Python: the same results as by the commands."""

import csv
import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import assay as package
from assay.cli.options import METHODS, split_names
from assay.data import load, splits
from assay.devices import torch_threads
from assay.errors import BadInput
from assay.evaluation import EvaluatedModel, baselines, evaluate_file
from assay.evaluation.evaluated_model import validation_rows
from assay.model import Architecture, untrained_model, write_model_folder
from assay.progress import silent
from assay.protocols import customise, protocols
from miniature import MINI, make_folder
from options import set_options

PROTOCOL = customise(protocols["quick"], [*MINI, "folds=4"])


@pytest.fixture(autouse=True)
def data(monkeypatch, tmp_path, mini_features):
    """A data set of vectors, from whose folder everything is run."""
    monkeypatch.chdir(tmp_path)
    return f"features:{mini_features.name}"


@pytest.fixture
def model(assay, data):
    """A model folder that held out fold 2 of the data."""
    settings = set_options((*MINI, "folds=4"))
    words = ["--data", data, "--method", "triplet", "--fold", 2, *settings, "--out", "model"]
    assert assay("train", *words)[0] == 0
    return Path("model")


def looks():
    return [json.loads(line) for line in Path("model/looks.jsonl").read_text().splitlines()]


# --- evaluate_model -------------------------------------------------------------------------------


def test_a_model_is_evaluated_as_by_the_command(assay, model, data):
    expected = json.loads(assay("evaluate", model, "--data", data, "--json")[1])
    for given in (model, str(model), package.load(model)):
        for samples in (data, load(data)):
            found = package.evaluate_model(given, samples)
            assert {**found.to_dict(), "data": data} == expected
            assert list(found.parts) == ["fold 2"]
            assert found.notes == ()
            assert found.means == dict(found.parts["fold 2"])


def test_options_of_an_evaluation_reach_the_scores(model, data):
    found = package.evaluate_model(
        package.load(model), data, metrics=["recall_at_2"], similarity="euclidean"
    )
    assert list(found.means) == ["recall_at_2"]
    assert found.parts["fold 2"].similarity == "euclidean"


def test_a_look_by_a_loaded_model_is_recorded_in_its_folder(model, data):
    loaded = package.load(model)
    found = [package.evaluate_model(loaded, data, test=True) for _ in range(2)]
    assert [look["metrics"] for look in looks()] == [dict(one.parts["test"]) for one in found]
    assert found[1].notes == (
        "no study is known to have opened the test half of features:mini.npz; this look at it is"
        " recorded as look 2 at test in model/looks.jsonl; a model chosen by such looks is not"
        " fairly tested any more",
    )


def test_other_data_are_scored_on_all_folds_and_said_to_be_others(model):
    other = np.load("mini.npz")
    np.savez("other.npz", z=other["z"] + 1, y=other["y"])
    found = package.evaluate_model(model, "features:other.npz", protocol=PROTOCOL)
    assert list(found.parts) == [f"fold {number}" for number in range(4)]
    assert found.means["map_at_r"] == pytest.approx(
        np.mean([part["map_at_r"] for part in found.parts.values()])
    )
    assert "is not exactly the half that the model was trained on" in found.notes[0]
    assert "classes of features:other.npz have the same names" in found.notes[1]


def test_folds_that_the_model_does_not_have_are_refused(model, data):
    with pytest.raises(BadInput, match="folds=2: the model held out one fold of 4"):
        package.evaluate_model(model, data, protocol=customise(PROTOCOL, ["folds=2"]))


def test_progress_of_an_evaluation_names_part_and_stage(model, data):
    calls = []
    package.evaluate_model(model, data, progress=lambda *call: calls.append(call))
    stages = [stage for stage, _, _ in calls]
    assert "fold 2, embedding" in stages and "fold 2, neighbours" in stages
    assert all(done <= total for _, done, total in calls)


def test_an_evaluation_embeds_as_embed_does_whatever_the_threads(data):
    """One thread a batch: with more, products of wide matrices have other last bits."""
    width, draw = 1280, np.random.default_rng(0)
    torch.manual_seed(0)
    wide = untrained_model(Architecture("identity", width, 0, 64), "none")
    write_model_folder(Path("wide"), wide, {"trunk": "identity"})
    y = np.repeat(np.arange(16), 40)
    np.savez("wide.npz", z=draw.normal(size=(len(y), width)), y=y)
    trainval, _ = splits.of(load("features:wide.npz"), PROTOCOL)
    rows = np.arange(len(trainval.y))
    for threads in (1, 2, 3):
        with torch_threads(threads):
            (part,) = EvaluatedModel.of("wide").parts(trainval, {"all": rows}, silent)
            expected = package.embed("wide", np.load("wide.npz")["z"][: len(rows)]).z
            assert np.array_equal(part.z.numpy(), expected)


def test_a_model_is_built_once_for_all_folds(model, data):
    made, evaluated = [], EvaluatedModel.of(model)
    counted = replace(evaluated, build=lambda inputs: made.append(1) or evaluated.build(inputs))
    trainval, _ = splits.of(load(data), PROTOCOL)
    parts = counted.parts(trainval, validation_rows(trainval, 4), silent)
    assert [part.name for part in parts] == [f"fold {number}" for number in range(4)]
    assert len(made) == 1


# --- evaluate_file --------------------------------------------------------------------------------


def test_a_file_is_evaluated_by_itself_or_by_the_parts_of_its_data(data):
    arrays = np.load("mini.npz")
    whole = evaluate_file("mini.npz", metrics=["map_at_r"])
    assert whole.means == dict(package.evaluate(arrays["z"], arrays["y"], ["map_at_r"]))
    assert list(evaluate_file("mini.npz", data).parts) == [f"fold {number}" for number in range(4)]
    test = evaluate_file("mini.npz", data, test=True)
    assert list(test.parts) == ["test"]
    said = "this look at it is recorded as look 2 in the index of looks"
    assert said in test.notes[0], "the first was at the file as a whole"


def test_scores_of_each_query_are_written(data):
    found = evaluate_file("mini.npz", data, metrics=["map_at_r", "nmi"])
    found.write_queries("queries.csv")
    with Path("queries.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["part", "id", "label", "map_at_r"]
    for part, scores in found.parts.items():
        written = [float(row["map_at_r"]) for row in rows if row["part"] == part]
        assert written == pytest.approx(scores.per_query("map_at_r").tolist())


# --- embed ----------------------------------------------------------------------------------------


def test_a_data_set_is_embedded_with_its_labels_and_split(model, data):
    found = package.embed(model, data)
    found.save("by-model.npz")
    before, after = load(data), load("features:by-model.npz")
    assert (after.class_names, list(after.ids)) == (before.class_names, list(before.ids))
    assert splits.listing(after, PROTOCOL) == splits.listing(before, PROTOCOL)
    assert len(found) == len(before)
    for given in (before, str(data)):
        assert np.array_equal(package.embed(package.load(model), given).z, found.z)


def test_samples_without_a_data_set_are_embedded_in_their_order(model):
    rows = np.load("mini.npz")["z"][:7]
    found = package.embed(model, rows)
    assert np.array_equal(found.z, package.load(model).embed(rows))
    assert (found.ids, found.y, found.classes) == (None, None, None)


def test_image_files_are_embedded_under_their_names(monkeypatch):
    monkeypatch.setattr("assay.trunks.lite0.Lite0.side", 32)
    files = sorted(make_folder(Path("images")).rglob("*.png"))[:3]
    found = package.embed("lite0", files)
    assert found.ids.tolist() == [str(file) for file in files]
    assert found.z.shape == (3, 1280)
    assert found.pretrained_on == "ImageNet-1k"


def test_weights_of_a_loaded_model_cannot_be_exchanged(model):
    with pytest.raises(BadInput, match=r"has its weights; leave out w\.pth"):
        package.embed(package.load(model), np.zeros((2, 12)), weights_file="w.pth")


# --- baselines and benches ------------------------------------------------------------------------


def test_baselines_are_those_of_the_command(assay, data):
    _, out, _ = assay("baselines", "--data", data, "--json")
    (found,) = baselines(data)
    assert found.trunk == "identity"
    (expected,) = json.loads(out)["trunks"]
    assert {name: found.mean(name) for name in expected["scores"]} == expected["scores"]


def test_a_bench_compares_the_methods_that_the_command_compares():
    defaults = inspect.signature(package.bench).parameters
    assert list(defaults["methods"].default) == split_names(METHODS)
    assert (defaults["data"].default, defaults["protocol"].default) == ("glyphs", "quick")
