"""`assay calibrate`: which samples it may use, what it writes, and what it says."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from assay.data import load, splits
from assay.data.dataset import Half
from assay.data.seal import OpenedTest
from assay.errors import BadInput
from assay.index import calibration as package
from assay.index.calibration.validation import ModelToCalibrate, validation_of
from assay.index.index import Index
from assay.protocols import customise, protocols
from miniature import make_features
from options import set_options

CLASSES = 64
TRAINED = "folds=2", "trunk=identity", "epochs=3", "validate_every=1", "dim=8"


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_features(tmp_path / "data.npz", classes=CLASSES, noise=0.3)
    make_features(tmp_path / "other.npz", classes=CLASSES, noise=0.3, seed=1)
    archive = dict(np.load(tmp_path / "other.npz"))
    np.savez(tmp_path / "other.npz", z=archive["z"], y=[f"new {one}" for one in archive["y"]])
    return "features:data.npz"


@pytest.fixture
def model(assay, data):
    words = ["--data", data, "--method", "contrastive", "--out", "model"]
    code, _, err = assay("train", *words, *set_options(TRAINED))
    assert code == 0, err
    return "model"


@pytest.fixture
def index(data):
    z = np.load("other.npz")["z"][:100].astype(np.float32)
    Index.build("as_is", z, "index").close()
    return "index"


def result(answer):
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


def test_a_model_is_calibrated_on_the_fold_that_it_held_out(assay, model, data):
    found = result(assay("calibrate", model, "--data", data, "--precision", 0.5, "--json"))
    about = found["calibration"]
    assert about["of"]["split"] == "fold 0 of 2, which the model held out"
    assert about["classes"] == 16 and about["images"] == 80  # half of trainval's 32
    written = package.Calibration.read("model/calibration.json")
    assert written.classes == 16 and written.of.similarity == "cosine"
    assert found["gallery"] == {"images": 79, "same": 4}
    assert set(found["thresholds"]) == {"precision 0.5"}
    threshold = found["thresholds"]["precision 0.5"]["cautious"]
    assert threshold["score"] == written.threshold_for_precision(0.5).score


def test_only_rows_that_the_model_has_not_seen_are_embedded(model, data):
    protocol = customise(protocols["quick"], ["folds=2"])
    trainval, _ = splits.of(load(data), protocol)
    own = splits.folds(trainval, 2)[0].validation
    found = validation_of(ModelToCalibrate.of(model), data)
    assert set(found.contents) == set(trainval.contents(own))
    assert found.z.shape == (80, 8)
    assert np.linalg.norm(found.z, axis=1) == pytest.approx(1, abs=1e-6)


def test_the_test_half_is_never_read(monkeypatch, model, data, index):
    read = Half.some

    def refuse(self, rows, step):
        assert not isinstance(self, OpenedTest)
        return read(self, rows, step)

    monkeypatch.setattr(Half, "some", refuse)
    trainval, _ = splits.of(load("features:other.npz"), protocols["quick"])
    for what in (model, index):
        found = validation_of(ModelToCalibrate.of(what), "features:other.npz")
        assert len(found.y) == len(trainval.y)
    assert len(validation_of(ModelToCalibrate.of(model), data).y) == 80


def test_other_data_whose_classes_are_new_may_be_used_whole(assay, model):
    found = result(assay("calibrate", model, "--data", "features:other.npz", "--json"))
    assert found["calibration"]["classes"] == 32
    assert "not trained on" in found["calibration"]["of"]["split"]


def test_data_whose_classes_were_trained_on_are_refused(assay, model, data):
    archive = np.load("data.npz")
    np.savez("noisy.npz", z=archive["z"] + 0.01, y=archive["y"])
    code, _, err = assay("calibrate", model, "--data", "features:noisy.npz")
    assert code == 2 and "was trained on 16 of the 32 classes of features:noisy.npz" in err


def change_card(change):
    card = Path("model/model.json")
    content = json.loads(card.read_text())
    change(content)
    card.write_text(json.dumps(content))


def test_a_model_of_unknown_classes_is_refused(assay, model):
    change_card(lambda card: card.pop("classes"))
    code, _, err = assay("calibrate", model, "--data", "features:other.npz")
    assert code == 2 and "it is not known which classes model was trained on" in err


def test_a_model_that_held_out_no_fold_is_refused(model, data):
    change_card(lambda card: card.update(fold=None))
    with pytest.raises(BadInput, match=r"was trained on all classes of .*, and held out none"):
        validation_of(ModelToCalibrate.of(model), data)


def test_a_study_s_model_that_nothing_was_trained_of_takes_all_of_trainval(model, data):
    change_card(lambda card: card.update(fold=None, method="as_is"))
    found = validation_of(ModelToCalibrate.of(model), data)
    assert len(set(found.y.tolist())) == 32
    assert found.split == "the trainval half, which the model was not trained on"


def test_an_index_is_calibrated_for_its_own_size(assay, index, data):
    words = ["calibrate", index, "--data", data, "--precision", 0.5, "--same", 5]
    found = result(assay(*words, "--json"))
    assert found["gallery"] == {"images": 100, "same": 5}
    opened = Index.open(index)
    assert opened.calibration is not None
    query = np.load("other.npz")["z"][0].astype(np.float32)
    plain, sure = opened.search(query), opened.search(query, min_precision=0.5)
    assert plain.matches[0].confidence > 0.5
    assert 0 < len(sure.matches) <= len(plain.matches)
    opened.close()
    larger = result(assay(*words, "--images", 2000, "--json"))
    assert larger["gallery"]["images"] == 2000


def test_copies_are_left_out_and_counted(assay, index, data):
    archive = np.load("data.npz")
    z, y = archive["z"], archive["y"]
    np.savez("copied.npz", z=np.vstack([z, z[:20]]), y=np.append(y, y[:20]))
    found = result(assay("calibrate", index, "--data", "features:copied.npz", "--json"))
    plain = result(assay("calibrate", index, "--data", data, "--json"))
    assert found["calibration"]["copies"] == 20
    assert found["calibration"]["images"] == plain["calibration"]["images"] == 160


def test_the_table_says_what_the_numbers_cover(assay, index, data):
    words = ["--precision", 0.5, "--false-match-rate", 0.1, "--open-set"]
    code, out, err = assay("calibrate", index, "--data", data, "--same", 5, *words)
    assert code == 0, err
    for text in (
        "95% limits over classes",
        "precision 0.5",
        "false-match rate 0.1",
        "from 32 classes, 160 images (0 copies left out)",
        "for a gallery of 100 images, 5 of the query's class",
        "identification with unknowns: 16 classes enrolled, 16 unknown",
        "calibration: index/calibration.json",
    ):
        assert text in out


def test_what_cannot_be_shown_is_said_and_the_calibration_still_written(assay, index, data):
    words = ["--precision", 0.99, "--images", 10**7, "--same", 5]
    code, out, err = assay("calibrate", index, "--data", data, *words)
    assert code == 0, err
    assert "32 classes are too few to show" in out
    found = result(assay("calibrate", index, "--data", data, *words, "--json"))
    refused = found["thresholds"]["precision 0.99"]["cautious"]["refused"]
    assert "give at least about" in refused


def test_noise_is_said_to_have_no_threshold(assay, index):
    draw = np.random.default_rng(0)
    np.savez("noise.npz", z=draw.normal(size=(600, 12)), y=np.repeat(np.arange(100), 6))
    code, out, _ = assay("calibrate", index, "--data", "features:noise.npz")
    assert code == 0 and "no threshold reaches it" in out


def test_too_few_classes_are_refused(assay, index):
    make_features("few.npz", classes=16)
    code, _, err = assay("calibrate", index, "--data", "features:few.npz")
    assert code == 2 and "8 classes with two different images" in err


def test_wishes_that_are_none_are_refused(assay, index, data):
    for words in (["--precision", 1], ["--false-match-rate", 0], ["--same", 0], ["--same", 500]):
        code, _, err = assay("calibrate", index, "--data", data, *words)
        assert code == 2 and ("between 0 and 1" in err or "more than 0" in err)


def test_a_folder_that_is_neither_is_refused(assay, data, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = assay("calibrate", "empty", "--data", data)
    assert code == 2 and "not a model folder" in err


def test_the_help_has_an_example(assay, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["assay"])
    code, out, _ = assay("calibrate", "--help")
    assert code == 0 and "assay calibrate birds.index" in out


def test_an_index_takes_the_calibration_of_its_model_and_gives_up_one_of_other_vectors(
    assay, model, data
):
    assert assay("calibrate", model, "--data", data)[0] == 0
    words = ["index", model, "data.npz", "--out"]
    assert assay(*words, "i")[0] == 0
    assert Path("i/calibration.json").exists()
    code, _, err = assay(*words, "i", "--precision", "float16")
    assert code == 0
    assert "the calibration was of other vectors and was removed" in err
    assert not Path("i/calibration.json").exists()
    err = assay(*words, "j", "--precision", "float16")[2]
    assert "is not for vectors that are stored as float16; run `assay calibrate j" in err
