"""A pretrained trunk is frozen by default: its features are computed once, and heads are trained on
them.
"""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import assay as package
from assay.cli import main
from assay.data import load, splits
from assay.data.dataset import Half
from assay.data.packs import read_pack
from assay.data.seal import read_vectors
from assay.errors import BadInput
from assay.files import cache_folder, read_json
from assay.hashing import digest, digest_bytes, digest_file, pretty
from assay.methods import import_parts
from assay.model import head_of, read_model, write_model_folder
from assay.protocols import customise, protocols
from assay.records.ledger import SealError
from assay.records.looks import enter_opened_half
from assay.records.merge import merge
from assay.records.run import TEST_CONTENTS
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import design_bench
from assay.trunks import weights
from assay.trunks.lite0 import Lite0
from assay.verify import verify
from assay.verify.runs import check_models, check_trunk, models_of
from miniature import MINI, make_folder, snapshot
from options import set_options

SETTINGS = (*MINI, "trunk=lite0", "size=32")
METHODS = ("triplet", "pretrained")
SEEN = Counter()
"""Number of images that have gone through the trunk."""


@pytest.fixture(scope="module", autouse=True)
def _watched(tmp_path_factory):
    """A cache of this module's own, and a count of the images that go through the trunk."""
    forward = Lite0.forward

    def count(self, x):
        SEEN["images"] += len(x) if x.any() else 0  # a blank one is a trial before the work
        return forward(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(Lite0, "forward", count)
        yield


def bench(folder, out, settings=SETTINGS, methods=METHODS):
    """Run a bench; return how many images went through the trunk."""
    before = SEEN["images"]
    words = [
        "assay",
        "bench",
        "--data",
        f"folder:{folder}",
        "--out",
        str(out),
        "--methods",
        ",".join(methods),
        "--engine",
        "inline",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words + set_options(settings))
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return SEEN["images"] - before


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """The folder of data, the store of a finished bench, and how many images the trunk saw."""
    root = tmp_path_factory.mktemp("frozen")
    folder = make_folder(root / "mini")
    shown = bench(folder, root / "store")
    return folder, root / "store", shown


@pytest.fixture(scope="module")
def trunk():
    """The weights that the trunk starts from: their hash, and the tensors by name."""
    noted = read_json(cache_folder() / "weights" / "lite0.json")["digest"]
    path = cache_folder() / "weights" / f"{noted}.safetensors"
    assert digest_file(path) == noted
    return noted, load_file(path)


def records(out):
    return {record.method: record for record in study_records(Store(out))}


def runs(out):
    return [Store(out).run(path.name) for path in sorted((out / "runs").glob("*/*"))]


def test_the_trunk_sees_every_image_once_whatever_the_methods_and_trials(benched):
    assert benched[2] == 65


def test_another_store_finds_the_features_in_the_cache(benched, tmp_path):
    folder, store, _ = benched
    assert bench(folder, tmp_path / "store") == 0
    assert snapshot(tmp_path / "store") == snapshot(store)


def test_runs_are_heads_whose_keys_hold_the_hash_of_the_trunks_weights(benched, trunk):
    found = runs(benched[1])
    assert len(found) == 8 + 1 + 1
    for run in found:
        config = read_json(run / "config.json")
        assert config["protocol"]["weights"] == trunk[0]
        assert config["protocol"]["frozen"] == "trunk"
        assert digest(config) == run.name
    kept = [
        read_model(run / "model.safetensors").architecture
        for run in found
        if (run / "model.safetensors").exists()
    ]
    assert {(architecture.trunk, architecture.inputs) for architecture in kept} == {
        ("identity", 1280)
    }


def test_the_baseline_is_one_run_without_a_fold(benched):
    record = records(benched[1])["pretrained"]
    assert record.trials == ()
    assert [entry.fold for entry in record.reproductions] == [None]
    assert len(record.tests) == 1


def test_the_features_as_they_are_have_no_head(benched):
    record = records(benched[1])["as_is"]
    (entry,) = record.reproductions
    folder = Store(benched[1]).run(entry.key)
    assert (entry.fold, read_model(folder / "model.safetensors").architecture.dim) == (None, 0)
    assert np.load(Store(benched[1]).test_vectors(entry.key, record.seal.test)).shape[1] == 1280
    assert record.tests[0].separated == record.tests[0].concatenated


def test_the_store_passes_verification(assay, benched):
    code, out, err = assay("verify", benched[1])
    assert code == 0, out + err
    assert out.splitlines()[-1].endswith("checks, 0 wrong")


@pytest.mark.parametrize("method", [*METHODS, "as_is"])
def test_the_models_of_a_study_take_images_and_give_the_vectors_of_their_runs(
    benched, trunk, method
):
    folder, out, _ = benched
    record = records(out)[method]
    (place,) = (out / "models").glob(f"*-{method}-*")
    model = package.load(place)
    dataset = load(f"folder:{folder}")
    rows = np.flatnonzero(dataset.labels >= 8)
    z = model.embed([folder / dataset.ids[row] for row in rows])
    stored = np.load(Store(out).test_vectors(model.card["run"], record.seal.test))
    assert Half(dataset, rows).fingerprint == record.seal.test
    expected = stored[:, : z.shape[1]]  # a run for all folds has more, see assay.run.closed_form
    np.testing.assert_allclose(
        z, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5
    )
    assert (model.card["pretrained_on"], model.card["weights"]) == ("ImageNet-1k", trunk[0])
    state = model.model.state_dict()
    assert all(
        torch.equal(state[f"trunk.body.{name}"], tensor) for name, tensor in trunk[1].items()
    )


@pytest.mark.parametrize("method", [*METHODS, "as_is"])
def test_a_model_scores_the_same_wherever_its_folder_lies(assay, benched, tmp_path, method):
    folder, out, _ = benched
    (place,) = (out / "models").glob(f"*-{method}-*")
    copy = shutil.copytree(place, tmp_path / "copy")
    in_store, elsewhere = (
        json.loads(assay("evaluate", path, "--data", f"folder:{folder}", "--json")[1])["mean"]
        for path in (place, copy)
    )
    assert in_store["map_at_r"] == pytest.approx(
        read_json(place / "model.json")["validation"]["map_at_r"]
    )
    assert elsewhere == pytest.approx(in_store)


def test_the_report_says_what_the_trunk_was_pretrained_on(benched):
    page = (benched[1] / "report" / "index.html").read_text()
    assert "trunk: lite0, pretrained on ImageNet-1k, frozen: only the head was trained" in page
    assert (
        "The trunk was pretrained on ImageNet-1k. Classes or images of the test half that are in"
        " there" in page
    )


def test_nothing_but_test_scores_depends_on_the_labels_of_the_test_half(benched, tmp_path):
    folder, store, _ = benched
    other = shutil.copytree(folder, tmp_path / "mini")
    classes = sorted(other.iterdir())[8:-1]
    for number, child in enumerate(classes):
        (child / "0.png").rename(classes[(number + 1) % len(classes)] / "swapped.png")
    assert bench(other, tmp_path / "store") == 33
    assert snapshot(tmp_path / "store", tested=False) == snapshot(store, tested=False)
    ours, theirs = records(store), records(tmp_path / "store")
    for method in METHODS:
        assert ours[method].trials == theirs[method].trials
        assert ours[method].scores("separated", "map_at_r") != theirs[method].scores(
            "separated", "map_at_r"
        )


def test_nothing_but_test_scores_depends_on_the_images_of_the_test_half(benched, tmp_path):
    folder, store, _ = benched
    other = shutil.copytree(folder, tmp_path / "mini")
    draw = np.random.default_rng(1)
    for child in sorted(other.iterdir())[8:]:
        for path in child.iterdir():
            Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    bench(other, tmp_path / "store", methods=["triplet"])
    ours, theirs = snapshot(store, tested=False), snapshot(tmp_path / "store", tested=False)
    assert theirs
    assert all(ours[name] == content for name, content in theirs.items())


def test_frozen_batch_normalisation_trains_all_weights_and_leaves_the_running_statistics(
    tmp_path, trunk
):
    folder = make_folder(tmp_path / "mini")
    changed = (
        "frozen=batchnorm",
        "iterations=2",
        "epochs=1",
        "trials=1",
        "reproductions=1",
        "folds=2",
        "optimiser.lr=1e-4",
    )
    bench(folder, tmp_path / "store", (*SETTINGS, *changed), ["triplet"])
    trained = [
        run for run in runs(tmp_path / "store") if read_json(run / "result.json")["best_epoch"]
    ]
    assert trained
    for run in trained:
        assert read_json(run / "config.json")["protocol"]["frozen"] == "batchnorm"
        state = read_model(run / "model.safetensors").state_dict()
        same = {
            name
            for name, tensor in trunk[1].items()
            if torch.equal(state[f"trunk.body.{name}"], tensor)
        }
        assert same == {name for name in trunk[1] if "running_" in name}


def test_a_trunk_of_random_weights_is_not_frozen(benched):
    folder = benched[0]
    with pytest.raises(
        BadInput, match="--set frozen=trunk: the trunk 'conv' starts from random weights"
    ):
        design_bench(
            f"folder:{folder}",
            ["triplet"],
            customise(protocols["quick"], [*MINI, "frozen=trunk"]),
            "cpu",
            (),
        )


def test_features_of_a_trunk_that_was_edited_since_are_not_used_again(benched, tmp_path, as_before):
    """Pitfall 10."""
    folder = benched[0]
    names = []
    for factor in (1, 2):
        mine = tmp_path / f"mine{factor}.py"
        mine.write_text(
            "import torch\nfrom assay.trunks.trunk import WeightsOrigin, Trunk,"
            f" trunks\n@trunks('mine{factor}')\nclass Mine(Trunk):\n    features = 3\n    def"
            " __init__(self, inputs, pooling='avg'):\n        super().__init__(inputs, pooling)\n "
            "       self.scale = torch.nn.Parameter(torch.ones(3))\n    def forward(self, x):\n   "
            f"     return x.mean((2, 3)) * self.scale * {factor}\n    @classmethod\n    def"
            " origin(cls):\n        return WeightsOrigin('nothing', 'mine', lambda: {'scale':"
            " torch.ones(3)})\n"
        )
        import_parts([str(mine)])
        settings = customise(protocols["quick"], [*MINI, f"trunk=mine{factor}"])
        (design,) = design_bench(f"folder:{folder}", ["triplet"], settings, "cpu", ())
        names.append(design.conditions.frozen_trunk.name_for(design.conditions.trainval))
    assert names[0] != names[1]


def test_another_decoder_makes_other_runs_of_images(benched, monkeypatch):
    folder = benched[0]

    def key():
        (design,) = design_bench(
            f"folder:{folder}", ["triplet"], customise(protocols["quick"], MINI), "cpu", ()
        )
        return design.study.run("trial", 0, 0, 0, {"margin": 0.1}).key

    before = key()
    monkeypatch.setattr("assay.study.conditions.decoder_hash", lambda: "another Pillow")
    assert key() != before


def test_vectors_of_a_pretrained_trunk_say_what_it_was_pretrained_on(benched, tmp_path, assay):
    folder = benched[0]
    assert assay("embed", "lite0", folder, "--out", tmp_path / "f.npz")[0] == 0
    dataset = load(f"features:{tmp_path / 'f.npz'}")
    assert dataset.pretrained_on == "ImageNet-1k"
    package.bench(
        f"features:{tmp_path / 'f.npz'}",
        ["triplet"],
        customise(protocols["quick"], MINI),
        tmp_path / "store",
        engine="inline",
    )
    store = tmp_path / "store"
    assert "by a model pretrained on ImageNet-1k" in (store / "report" / "index.html").read_text()
    assert (
        "The trunk was pretrained on ImageNet-1k" in (store / "report" / "index.html").read_text()
    )


# --- features are shared between commands ---------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """The trunk at the side of the benches here, which is not its own."""
    monkeypatch.setattr(Lite0, "side", 32)


def shown(assay, *words):
    """Run a command; return its output, and how many images went through the trunk."""
    before = SEEN["images"]
    code, out, err = assay(*words)
    assert code == 0, err
    return out, SEEN["images"] - before


@pytest.mark.usefixtures("small")
def test_after_a_bench_no_command_computes_its_features_again(assay, benched, tmp_path):
    folder, store, _ = benched
    data = f"folder:{folder}"
    (place,) = (store / "models").glob("*-triplet-*")
    baselines = ("baselines", "--data", data, "--trunks", "lite0", "--set", "size=32")
    assay(*baselines, "--test")  # random weights, which no bench has
    for words in (
        ("embed", "lite0", data, "--out", tmp_path / "f.npz"),
        ("embed", place, data, "--out", tmp_path / "m.npz"),
        ("evaluate", "lite0", "--data", data),
        ("evaluate", "lite0", "--data", data, "--test"),
        ("evaluate", place, "--data", data),
        baselines,
        (*baselines, "--test"),
    ):
        assert shown(assay, *words)[1] == 0, words


@pytest.mark.usefixtures("small")
def test_the_command_that_comes_first_makes_the_same_bytes(assay, benched, tmp_path, monkeypatch):
    folder = benched[0]
    assay("embed", "lite0", folder, "--out", tmp_path / "after.npz")
    kept = packs_in(cache_folder())
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    assert shown(assay, "embed", "lite0", folder, "--out", tmp_path / "first.npz")[1] == 65
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "after.npz").read_bytes()
    ours = packs_in(tmp_path / "cache")
    assert sum(name.endswith("x.npy") for name in ours) == 2
    assert ours == {name: kept[name] for name in ours}
    assert bench(folder, tmp_path / "store", methods=["triplet"]) == 0


def packs_in(cache):
    """Contents of all packs of features in a cache."""
    return {
        path.relative_to(cache).as_posix(): path.read_bytes()
        for path in sorted(cache.glob("features/*/*"))
    }


@pytest.mark.usefixtures("small")
def test_features_of_the_test_half_lie_in_a_sealed_pack(assay, benched, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    assay("embed", "lite0", benched[0], "--out", tmp_path / "f.npz")
    trainval, test = sorted((tmp_path / "cache/features").iterdir(), key=lambda one: len(one.name))
    assert read_pack(trainval).x.shape == (32, 1280)
    with pytest.raises(SealError, match="holds a test half"):
        read_pack(test)
    half = splits.of(load(f"folder:{benched[0]}"), protocols["quick"])[0]
    with pytest.raises(BadInput, match="the pack of another half"):
        read_vectors(test, half)


@pytest.mark.usefixtures("small")
def test_a_trunk_that_was_trained_since_has_features_of_its_own(benched):
    """The hash of the weights that it has now decides, not its name or card."""
    folder = benched[0]
    model = package.load("lite0")
    expected = package.embed(model, f"folder:{folder}").z
    with torch.no_grad():
        model.model.trunk.body.conv_stem.weight.mul_(1.5)
    before = SEEN["images"]
    assert not np.allclose(package.embed(model, f"folder:{folder}").z, expected, atol=1e-3)
    assert SEEN["images"] - before == 65


@pytest.mark.usefixtures("small")
def test_without_a_cache_features_are_computed_and_nothing_fails(benched, tmp_path, monkeypatch):
    folder = benched[0]
    model = package.load("lite0")
    expected = package.embed(model, f"folder:{folder}").z
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("assay.features.cache_folder", lambda: tmp_path / "file")
    monkeypatch.setattr("assay.features.usable_cache", lambda: (tmp_path / "file" / "x").mkdir())
    before = SEEN["images"]
    np.testing.assert_array_equal(package.embed(model, f"folder:{folder}").z, expected)
    assert SEEN["images"] - before == 65


def test_a_model_of_the_study_gives_the_studys_own_test_scores(assay, benched, tmp_path):
    folder, out, _ = benched
    store = shutil.copytree(out, tmp_path / "store")
    for method in METHODS:
        record = records(store)[method]
        (place,) = (store / "models").glob(f"*-{method}-*")
        card = read_json(place / "model.json")
        words = ("evaluate", place, "--data", f"folder:{folder}", "--test", "--json")
        found = json.loads(shown(assay, *words)[0])["mean"]
        test = next(test for test in record.tests if card["run"] in test.runs)
        own = test.folds[test.runs.index(card["run"])]
        assert found == {name: own[name] for name in found}, method


# --- features of a known trunk, and the model that takes images -----------------------------------


@pytest.fixture(scope="module")
def on_features(benched, tmp_path_factory):
    """The folder of images, the file of their features, and the store of a bench on the file."""
    folder, root = benched[0], tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lite0, "side", 32)
        package.embed("lite0", f"folder:{folder}").save(root / "f.npz")
    small = customise(protocols["quick"], MINI)
    package.bench(f"features:{root / 'f.npz'}", METHODS, small, root / "store", engine="inline")
    return folder, root / "f.npz", root / "store"


def handed_over(store, method):
    (place,) = (store / "models").glob(f"*-{method}-*")
    return place


@pytest.mark.parametrize("method", [*METHODS, "as_is"])
def test_a_bench_on_features_hands_over_trunk_and_head_as_one_model(on_features, trunk, method):
    folder, _, out = on_features
    record, model = records(out)[method], package.load(handed_over(out, method))
    dataset = load(f"folder:{folder}")
    rows = np.flatnonzero(dataset.labels >= 8)
    z = model.embed([folder / dataset.ids[row] for row in rows])
    stored = np.load(Store(out).test_vectors(model.card["run"], record.seal.test))[:, : z.shape[1]]
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    np.testing.assert_allclose(z, stored, atol=1e-5)
    assert model.card["features"] == f"lite0, weights {trunk[0]}"
    assert (model.card["weights"], model.card["pretrained_on"]) == (trunk[0], "ImageNet-1k")


@pytest.mark.parametrize("method", METHODS)
def test_by_images_such_a_model_has_the_studys_own_scores(assay, on_features, tmp_path, method):
    folder, file, out = on_features
    store = shutil.copytree(out, tmp_path / "store")
    place, record = handed_over(store, method), records(store)[method]
    card = read_json(place / "model.json")
    test = next(test for test in record.tests if card["run"] in test.runs)
    own = test.folds[test.runs.index(card["run"])]
    for data in (f"folder:{folder}", f"features:{file}"):
        validated = json.loads(shown(assay, "evaluate", place, "--data", data, "--json")[0])
        found = validated["mean"]["map_at_r"]
        assert found == pytest.approx(card["validation"]["map_at_r"], abs=1e-3), data
        if card["fold"] is not None:
            assert list(validated["parts"]) == [f"fold {card['fold']}"]
        code, out_text, err = assay("evaluate", place, "--data", data, "--test", "--json")
        assert code == 0, err
        assert "at test in the study of" in err
        tested = json.loads(out_text)["mean"]
        assert tested == pytest.approx({name: own[name] for name in tested}, abs=1e-3), data
    assert assay("verify", store)[0] == 0


@pytest.fixture
def opened(on_features, tmp_path, monkeypatch):
    """A copy of the store on features, whose test half is in the index of looks."""
    monkeypatch.chdir(tmp_path)
    store = Store(shutil.copytree(on_features[2], tmp_path / "store"))
    for record in study_records(store):
        enter_opened_half(store, record, print)
    return on_features[0], handed_over(store.root, "triplet").relative_to(tmp_path)


ALL = "this looks at 33 of 33 samples (100%) of the test half of features:f.npz, opened by the"


@pytest.mark.forgery("a recorded look", what="the images behind a study of features, by its model")
def test_images_of_a_test_half_known_by_features_are_recorded(assay, opened, tmp_path):
    folder, place = opened
    data, store = f"folder:{folder}", tmp_path / "store"
    test = ("evaluate", place, "--data", data, "--test")
    code, _, err = assay(*test)
    assert code == 0 and ALL in err and "recorded as look 1 at test in the study of triplet" in err
    assert "no study is known" not in err
    code, _, err = assay("embed", place, folder, "--out", "f.npz")
    assert code == 0 and ALL in err and "recorded as look 2 at test in the study of triplet" in err
    looks = records(store)["triplet"].looks
    assert [(look.data, look.samples) for look in looks] == [("folder:mini", 33)] * 2
    assert not [finding for finding in verify(Store(store)) if finding.problem]
    shutil.copytree(place, "taken")
    for number in (1, 2):
        code, _, err = assay("evaluate", "taken", *test[2:])
        assert code == 0 and ALL in err
        assert f"recorded as look {number} at test in taken/looks.jsonl" in err
    (look, _) = [json.loads(line) for line in Path("taken/looks.jsonl").read_text().splitlines()]
    assert look["samples"] == 33


def test_other_images_are_no_look_and_the_note_says_what_is_not_known(assay, opened, tmp_path):
    folder, place = opened
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "class00" / "0.png").unlink()
    code, _, err = assay("evaluate", place, "--data", f"folder:{other}", "--test")
    assert code == 0 and "this looks at" not in err
    assert "not compared with test halves that are known by their features" in err
    for words in (("evaluate", place, "--data", f"folder:{folder}"), ("embed", place, other)):
        code, _, err = assay(*words, *(["--out", "f.npz"] if words[0] == "embed" else []))
        assert code == 0 and "looks at" not in err and "not compared" not in err
    assert not records(tmp_path / "store")["triplet"].looks


def test_images_of_a_study_of_features_stay_sealed_until_it_has_ended(assay, opened):
    folder, place = opened
    ledger = Store(Path("store")).study(records(Path("store"))["triplet"].key) / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    sealed = next(n for n, line in enumerate(lines) if '"kind":"seal"' in line)
    for kept, words in ((sealed + 1, "is still being scored"), (sealed - 1, "not complete")):
        ledger.write_text("".join(lines[:kept]))
        code, out, err = assay("evaluate", place, "--data", f"folder:{folder}", "--test")
        assert (code, out) == (2, "") and words in err


def test_training_on_features_gives_a_model_of_images_too(assay, on_features, tmp_path):
    folder, file, _ = on_features
    words = [part for setting in MINI for part in ("--set", setting)]
    out = tmp_path / "model"
    assay("train", "--data", f"features:{file}", "--method", "triplet", "--out", out, *words)
    model = package.load(out)
    images = sorted(folder.rglob("*.png"))[:3]
    raw = package.load("lite0")
    assert model.embed(images).shape == (3, 8)
    assert model.model.architecture.size == 32
    assert raw.model.architecture.size == 224


def rewrite(file, out, **changed):
    """Write a file of features again with other arrays; None leaves one out."""
    with np.load(file) as found:
        arrays = {**dict(found), **changed}
    np.savez(out, **{name: array for name, array in arrays.items() if array is not None})
    return out


def trained_on(assay, file, out):
    words = [part for setting in MINI for part in ("--set", setting)]
    return assay("train", "--data", f"features:{file}", "--method", "triplet", "--out", out, *words)


@pytest.mark.forgery("the command", what="features changed since their trunk made them")
def test_vectors_that_were_changed_since_are_refused_with_the_remedy(assay, on_features, tmp_path):
    with np.load(on_features[1]) as found:
        z = found["z"]
    file = rewrite(on_features[1], tmp_path / "f.npz", z=z * 2)
    code, _, err = trained_on(assay, file, tmp_path / "model")
    assert code == 2
    assert "z was changed since lite0 made it" in err
    assert "without the array origin" in err
    code, _, err = trained_on(assay, rewrite(file, file, origin=None), tmp_path / "model")
    assert code == 0, err
    model = package.load(tmp_path / "model")
    assert model.model.architecture.trunk == "identity"
    assert "features" not in model.card


def forge(on_features, path, **fields):
    """Write the file with an origin that says something else of vectors that it fits."""
    with np.load(on_features[1]) as found:
        origin, z = json.loads(str(found["origin"])), found["z"]
    z = fields.pop("z", z)
    origin |= {"vectors": digest_bytes(z.tobytes())} | fields
    return rewrite(on_features[1], path, z=z, origin=np.array(json.dumps(origin)))


FORGERIES = {
    "other vectors": (
        lambda z: {"z": np.roll(z, 1, axis=1)},
        "it gives other features of the images",
    ),
    "another size": (lambda z: {"size": 48, "stored": 48}, "it gives other features"),
    "other weights": (lambda z: {"weights": "f" * 64}, "are not in"),
    "random weights": (lambda z: {"weights": "none", "source": ""}, "is no hash of weights"),
    "its own weights": (lambda z: {"weights": "pretrained", "source": ""}, "is no hash of weights"),
    "another trunk": (lambda z: {"trunk": "resnet50"}, "resnet50"),
    "no such trunk": (lambda z: {"trunk": "lite00"}, "lite00"),
}


@pytest.mark.forgery("the command", what="the origin of features: {}")
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_origin_gives_a_head_without_a_trunk(assay, on_features, tmp_path, name):
    change, reason = FORGERIES[name]
    with np.load(on_features[1]) as found:
        fields = change(found["z"])
    code, _, err = trained_on(
        assay, forge(on_features, tmp_path / "f.npz", **fields), tmp_path / "m"
    )
    assert code == 0, err
    model = package.load(tmp_path / "m")
    assert model.model.architecture.trunk == "identity"
    assert "images" not in model.card
    assert "which is not part of it" in err
    assert reason in err


@pytest.mark.parametrize("change", ["gone", "altered", "elsewhere"])
def test_it_is_said_whether_the_trunk_was_checked(assay, on_features, tmp_path, change):
    images = shutil.copytree(on_features[0], tmp_path / "mini")
    if change == "altered":
        (images / "class00" / "0.png").write_bytes((images / "class05" / "0.png").read_bytes())
    if change == "elsewhere":
        (images / "class00" / "0.png").unlink()
        (images / "class00" / "0.png").symlink_to(on_features[0] / "class00" / "0.png")
    source = str(tmp_path / "nowhere" if change == "gone" else images)
    file = forge(on_features, tmp_path / "f.npz", source=source)
    code, _, err = trained_on(assay, file, tmp_path / "m")
    assert code == 0, err
    model = package.load(tmp_path / "m")
    words = "other features" if change == "altered" else "are not here to check it"
    assert words in err
    assert str(tmp_path) not in json.dumps(model.card), "a card is the same on every machine"
    assert model.model.architecture.trunk == ("identity" if change == "altered" else "lite0")


@pytest.fixture(scope="module")
def without_trunk(on_features, tmp_path_factory):
    """The same bench on a machine that has the file of features, but not their trunk."""
    root = tmp_path_factory.mktemp("other")
    small = customise(protocols["quick"], MINI)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(root / "cache"))
        patch.setattr(weights, "_fetched", lambda *_: pytest.fail("fetched at a hand-over"))
        package.bench(f"features:{on_features[1]}", METHODS, small, root / "store", engine="inline")
    return root / "store"


@pytest.mark.parametrize("whole_first", [True, False])
def test_machines_with_and_without_the_trunk_can_be_merged(
    on_features, without_trunk, tmp_path, whole_first
):
    assert package.load(handed_over(without_trunk, "triplet")).model.architecture.trunk != "lite0"
    stores = [on_features[2], without_trunk]
    merge(stores if whole_first else stores[::-1], tmp_path / "both")
    for method in METHODS:
        place, whole = (handed_over(one, method) for one in (tmp_path / "both", on_features[2]))
        for path in whole.iterdir():
            assert (place / path.name).read_bytes() == path.read_bytes(), "the whole model is kept"
    store = shutil.copytree(without_trunk, tmp_path / "store")
    (handed_over(store, "triplet") / TEST_CONTENTS).write_text("")
    with pytest.raises(BadInput, match="should be the same and are not"):
        merge([on_features[2], store], tmp_path / "altered")


UNUSABLE = {
    "no JSON": (np.array("lite0"), "origin cannot be read"),
    "numbers": (np.zeros(3), "origin cannot be read"),
    "many levels": (np.array("[" * 100_000), "too many levels"),
    "a pooling of no trunk": ({"pooling": "most"}, "origin cannot be read"),
    "a huge side": ({"size": 10**9, "stored": 10**9}, "which no trunk takes"),
    "many channels": ({"inputs": 10**6}, "which no trunk takes"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_origin_that_no_trunk_can_have_is_refused(assay, on_features, tmp_path, name):
    given, message = UNUSABLE[name]
    file = tmp_path / "f.npz"
    if isinstance(given, dict):
        forge(on_features, file, **given)
    else:
        rewrite(on_features[1], file, origin=given)
    code, _, err = trained_on(assay, file, tmp_path / "m")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def exchange_trunk(store, **changes):
    """Alter the trunk of a model that was handed over, with a card that fits the file of weights.

    `changes` are further entries of the card, of the new weights' hash.
    """
    place = handed_over(store, "triplet")
    model, card = read_model(place / "model.safetensors"), read_json(place / "model.json")
    contents = (place / TEST_CONTENTS).read_bytes()
    with torch.no_grad():
        model.trunk.body.conv_stem.weight.mul_(1.5)
    shutil.rmtree(place)
    own = ("format", "architecture", "sha256")
    kept = {name: value for name, value in card.items() if name not in own}
    changed = {name: make(model) for name, make in changes.items()}
    write_model_folder(place, model, kept | changed, {TEST_CONTENTS: contents})


@pytest.mark.forgery("verify", what="the trunk under a head that was trained on its features")
def test_another_trunk_under_a_head_is_found(assay, on_features, tmp_path):
    store = shutil.copytree(on_features[2], tmp_path / "store")
    exchange_trunk(store)
    code, out, err = assay("verify", store)
    assert code == 1
    assert "has another trunk than model.json names" in out + err


@pytest.mark.forgery("verify --data", what="the same, with the hash of the trunk on the card")
def test_another_trunk_that_the_card_names_is_found_with_the_data(assay, on_features, tmp_path):
    store = shutil.copytree(on_features[2], tmp_path / "store")
    data = ("--engine", "inline", "--data", f"features:{on_features[1]}")
    assert assay("verify", store, *data)[0] == 0
    exchange_trunk(
        store,
        weights=lambda model: weights.digest_of(model.trunk),
        features=lambda model: f"lite0, weights {weights.digest_of(model.trunk)}",
    )
    assert assay("verify", store)[0] == 0
    code, out, _ = assay("verify", store, *data)
    assert code == 1
    assert "model.json names another trunk than the one that made the features" in out


def on_card(store, **changes):
    """Change entries of the card of a model that was handed over; None removes one."""
    path = handed_over(store, "triplet") / "model.json"
    card = {**read_json(path), **changes}
    path.write_text(
        pretty({name: card[name] for name in card if changes.get(name, card) is not None})
    )


INVENTED = {
    "features in words": {"features": "none: the trunk was trained from scratch"},
    "no features": {"features": None},
    "the data of the trunk": {"pretrained_on": "nothing"},
    "the weights of the trunk": {"weights": "0" * 64},
}


@pytest.mark.forgery("verify", what="of a head on features, on the card: {}")
@pytest.mark.parametrize("name", INVENTED)
def test_what_no_hand_over_writes_of_a_trunk_is_found_without_the_data(
    on_features, without_trunk, tmp_path, name
):
    for whole, made in enumerate((without_trunk, on_features[2])):
        store = Store(shutil.copytree(made, tmp_path / f"store{whole}"))
        on_card(store.root, **INVENTED[name])
        found = [one.problem for one in check_models(store, study_records(store)) if one.problem]
        if name == "no features" and not whole:
            assert found == [], "that the file of features names a trunk takes the file"
        else:
            assert len(found) == 1 and "model.json" in found[0], (whole, found)


@pytest.mark.forgery("verify --data", what="another known trunk on the card of a head on features")
def test_another_trunk_that_a_card_without_it_names_is_found_with_the_data(
    on_features, without_trunk, tmp_path
):
    store = Store(shutil.copytree(without_trunk, tmp_path / "store"))
    origin = load(f"features:{on_features[1]}").origin
    (record,) = (one for one in study_records(store) if one.method == "triplet")
    ((folder, card),) = models_of(store, record)
    assert [*check_trunk(record, card, origin)] == []
    assert [*check_trunk(record, card, None)] != []
    for features in ("resnet50, weights " + "0" * 64, None):
        on_card(store.root, features=features)
        shutil.copytree(folder, folder.parent / "a copy", dirs_exist_ok=True)
        assert not [one for one in check_models(store, study_records(store)) if one.problem]
        found = [*models_of(store, record)]
        assert [one.name for one, _ in found] == ["a copy", folder.name]
        for _, card in found:
            (problem,) = check_trunk(record, card, origin)
            assert "names another trunk than the one that made the features" in problem


def test_a_final_model_on_features_takes_images_and_is_not_scored_on_them(
    assay, on_features, tmp_path
):
    folder, file, store = on_features
    out = tmp_path / "final"
    words = ("--final", store, "--data", f"features:{file}", "--method", "triplet", "--out", out)
    shown(assay, "train", *words)
    model, images = package.load(out), sorted(folder.rglob("*.png"))
    with np.load(file) as found:
        x = found["z"]
    expected = head_of(model.model)(torch.from_numpy(x)).detach().numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(images), expected, atol=1e-5)
    for data in (f"folder:{folder}", f"features:{file}"):
        for test in ([], ["--test"]):
            code, _, err = assay("evaluate", out, "--data", data, *test)
            assert code == 2
            assert "was trained on all classes" in err
    shown(assay, "embed", out, folder, "--out", tmp_path / "by-final.npz")
    seen = load(f"features:{tmp_path / 'by-final.npz'}").pretrained_on
    assert seen == "ImageNet-1k, then all classes of features:f.npz"
