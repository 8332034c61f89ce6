"""A pretrained trunk is frozen by default: its features are computed once, and heads are trained on
them.
"""

import json
import shutil
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import assay as package
from assay.cli import main
from assay.data import load
from assay.data.dataset import Half
from assay.errors import BadInput
from assay.files import cache_folder, read_json
from assay.hashing import digest, digest_file
from assay.methods import import_parts
from assay.model import read_model
from assay.protocols import customise, protocols
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import design_bench
from assay.trunks.lite0 import Lite0
from miniature import MINI, make_folder, snapshot

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
        patch.setattr(
            sys, "argv", words + [part for setting in settings for part in ("--set", setting)]
        )
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
    expected = stored[:, : z.shape[1]]  # a run for all folds has more, see assay.run.baseline
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
        names.append(design.conditions._features_name(design.conditions.trainval))
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
