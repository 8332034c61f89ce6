"""Models on the command line: `train` and `bench` write them, `embed` and `evaluate` use them."""

import csv
import json
import shutil
import sys
import time
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import assay as package
from assay.cli import main
from assay.data import load, splits
from assay.data.dataset import Half
from assay.hashing import digest_file
from assay.model import read_model
from assay.protocols import protocols
from assay.records.ledger import read
from assay.records.store import Store
from assay.records.study import study_records
from assay.trunks import build
from assay.trunks.lite0 import Lite0
from loops import for_each
from miniature import IMAGES, MINI, make_folder
from options import set_options, with_last_settings

INLINE = ("--engine", "inline")
SET = tuple(set_options((*MINI, "folds=4")))
TINY = "test_resnet.r160_in1k"
TEST_CLASSES = 8
"""Of the miniature folder, from this class on."""


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def make(*words):
    """Run a command that a fixture needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["assay", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """Return the miniature folder of 17 classes."""
    return make_folder(tmp_path_factory.mktemp("models") / "mini")


@pytest.fixture(scope="module")
def trained(mini):
    """Train a model of the miniature folder that holds out fold 2."""
    out = mini.parent / "trained"
    make(
        "train", "--data", f"folder:{mini}", "--method", "triplet", "--fold", 2, *SET, "--out", out
    )
    return out


@pytest.fixture
def model(trained):
    """Copy the trained model to a folder that a test may change."""
    return Path(shutil.copytree(trained, "model"))


@pytest.fixture(scope="module")
def benched(mini):
    """Return the store of a finished bench."""
    out = mini.parent / "store"
    make(
        "bench",
        *INLINE,
        "--data",
        f"folder:{mini}",
        "--methods",
        "triplet,untrained",
        *SET,
        "--out",
        out,
    )
    return out


@pytest.fixture(scope="module")
def frozen(mini, tiny_weights):
    """Return the store of a bench on a frozen trunk, whose runs hold the heads only."""
    out = mini.parent / "frozen"
    words = [
        "--methods",
        "triplet,pretrained",
        *set_options((*MINI, "folds=4", f"trunk={TINY}", "size=32")),
        "--weights",
        tiny_weights,
    ]
    make("bench", *INLINE, "--data", f"folder:{mini}", *words, "--out", out)
    return out


@pytest.fixture(scope="module")
def table(mini):
    """Write a table of the same images, with an official split and marks of queries and gallery.

    The split is not the order of the names.
    """
    rows = []
    for number in range(16):
        for image in range(IMAGES):
            test = number % 2 == 0
            split, marks = (
                "test" if test else "trainval",
                [int(test and image < 2), int(test and image > 0)],
            )
            rows.append([f"mini/class{number:02d}/{image}.png", f"kind{number:02d}", split, *marks])
    np.random.default_rng(0).shuffle(rows)
    path = mini.parent / "table.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["path", "label", "split", "query", "gallery"], *rows])
    return path


@pytest.fixture(scope="module")
def tiny_weights(tmp_path_factory):
    """Write weights of a tiny trunk of timm's."""
    path = tmp_path_factory.mktemp("weights") / "tiny.pth"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(build(TINY, 3).body.state_dict(), path)
    return path


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Take away the network and the cached weights."""

    def refuse(*words, **others):
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))


def documents(answer):
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


def arrays(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def by_hand(folder, paths):
    """Return unit vectors of images of the model's own size: nothing is scaled or cut."""
    model = read_model(Path(folder) / "model.safetensors").eval()
    x = torch.stack(
        [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) / 255 for path in paths]
    )
    with torch.no_grad():
        z = model(x).numpy()
    return z / np.linalg.norm(z, axis=1, keepdims=True)


# --- train ----------------------------------------------------------------------------------------


def train(assay, data, out, *words, method="triplet"):
    words = with_last_settings((*SET, "--out", out, *words))
    return assay("train", "--data", data, "--method", method, *words)


def test_training_leaves_a_folder_with_weights_and_a_card(assay, mini):
    code, out, err = train(assay, f"folder:{mini}", "model", "--fold", 1, "--param", "margin=0.25")
    assert code == 0
    assert sorted(path.name for path in Path("model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]
    card = json.loads(Path("model/model.json").read_text())
    trainval, _ = splits.of(load(f"folder:{mini}"), protocols["quick"])
    expected = {
        "data": "folder:mini",
        "method": "triplet",
        "parameters": {"margin": 0.25},
        "trainval": trainval.fingerprint,
        "fold": 1,
        "folds": 4,
        "pretrained_on": None,
        "weights": "none",
        "status": "finished",
    }
    assert expected.items() <= card.items()
    assert card["protocol"].startswith("quick.v2+custom-")
    assert card["architecture"]["trunk"] == "conv"
    assert card["validation"]["queries"] == 2 * IMAGES
    first, last = out.splitlines()
    assert first.startswith(f"validation, fold 1, epoch {card['epoch']}: precision_at_1 ")
    assert first.endswith(f"map_at_r {card['validation']['map_at_r']:.4f}")
    assert last == "model: model"
    assert [line.split(":")[0] for line in err.splitlines()] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert "validation MAP@R" in err


def test_a_trained_model_embeds_files_from_python(mini, trained):
    paths = [mini / "class09" / "2.png", mini / "class00" / "0.png", mini / "class09" / "3.png"]
    z = package.load(trained).embed(paths)
    assert (z.dtype, z.shape) == (np.float32, (3, 8))
    np.testing.assert_allclose(z, by_hand(trained, paths), atol=1e-5)


def test_the_card_for_programs_is_the_one_in_the_folder(assay, mini):
    found = documents(train(assay, f"folder:{mini}", "model", "--json"))
    card = json.loads(Path("model/model.json").read_text())
    assert found.pop("model") == "model"
    assert found == {
        name: value
        for name, value in card.items()
        if name not in ("architecture", "format", "sha256")
    }


def test_the_same_command_gives_the_same_bytes_and_another_seed_others(assay, mini):
    """The model must have been trained for that to say something."""
    for out, seed in (("a", 3), ("b", 3), ("c", 5)):
        card = documents(train(assay, f"folder:{mini}", out, "--fold", 2, "--seed", seed, "--json"))
        assert card["epoch"] > 0
    first, again, other = (Path(out, "model.safetensors").read_bytes() for out in "abc")
    assert first == again
    assert first != other


def test_vectors_can_be_trained_on(assay, mini_features):
    found = documents(train(assay, f"features:{mini_features}", "model", "--json"))
    assert found["data"] == "features:mini.npz"
    model = package.load("model")
    z = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    head = model.model.head
    expected = z @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(
        model.embed(z), expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5
    )


def test_the_test_half_cannot_change_a_byte_of_the_model(assay, mini, trained):
    other = Path(shutil.copytree(mini, "mini"))
    for child in sorted(other.iterdir())[TEST_CLASSES:]:
        Image.new("RGB", (16, 16), "red").save(child / "0.png")
    assert train(assay, "folder:mini", "model", "--fold", 2)[0] == 0
    for name in ("model.safetensors", "model.json"):
        assert Path("model", name).read_bytes() == (trained / name).read_bytes()


def test_weights_of_a_file_are_what_the_trunk_starts_from(assay, mini, tiny_weights):
    words = ["--set", f"trunk={TINY}", "--set", "size=32", "--weights", tiny_weights]
    named = documents(
        train(assay, f"folder:{mini}", "a", *words, "--pretrained-on", "stripes", "--json")
    )
    unnamed = documents(train(assay, f"folder:{mini}", "b", *words, "--json"))
    assert named["pretrained_on"] == "stripes"
    assert unnamed["pretrained_on"] == "unknown (file tiny.pth)"
    state = read_model(Path("a/model.safetensors")).state_dict()
    given = torch.load(tiny_weights, weights_only=True)
    assert all(
        torch.equal(state[f"trunk.body.{name}"], tensor)
        for name, tensor in given.items()
        if "num_batches" not in name
    )


def test_no_weights_are_random_ones(assay, mini):
    words = ["--set", f"trunk={TINY}", "--set", "size=32", "--weights", "none", "--json"]
    found = documents(train(assay, f"folder:{mini}", "a", *words))
    assert (found["pretrained_on"], found["weights"]) == (None, "none")


def test_a_parameter_outside_its_search_space_is_noted_and_used(assay, mini_features):
    data = f"features:{mini_features}"
    code, _, err = train(assay, data, "wide", "--param", "margin=50", "--json")
    assert code == 0
    assert (
        "note: margin=50 is outside the search space of triplet, where margin is searched in 0.0 to"
        " 2.0\n" in err
    )
    assert json.loads(Path("wide/model.json").read_text())["parameters"] == {"margin": 50.0}
    assert "search space" not in train(assay, data, "usual", "--param", "margin=2")[2]


BAD_TRAINING = {
    "unknown parameter": (
        ["--param", "marginn=1"],
        "--param marginn=1: triplet has no parameter 'marginn'; did you mean 'margin'? (all: dist",
    ),
    "no value": (["--param", "margin"], "--param margin: write name=value"),
    "wrong type": (
        ["--param", "margin=wide"],
        "--param margin=wide: 'wide' is not a finite number; the default is 0.1, searched in 0.0 to"
        " 2.0",
    ),
    "out of range": (
        ["--param", "margin=-5"],
        "--param margin=-5: margin is a number of at least 0, got -5.0",
    ),
    "not a number": (
        ["--param", "margin=nan"],
        "--param margin=nan: 'nan' is not a finite number; the default is",
    ),
    "learning uphill": (["--param", "lr=-1"], "--param lr=-1"),
    "learning without bounds": (["--param", "lr=inf"], "--param lr=inf"),
    "proxies without bounds": (
        ["--method", "proxy_anchor", "--param", "weights_lr=nan"],
        "--param weights_lr=nan",
    ),
    "whole numbers": (
        ["--method", "soft_triple", "--param", "centres=2.5"],
        "--param centres=2.5: '2.5' is not a whole number",
    ),
    "a parameter twice": (
        ["--param", "margin=0.1", "--param", " margin =0.2"],
        "--param margin: given twice, margin=0.1 and  margin =0.2; leave out one of the two",
    ),
    "a setting twice": (
        ["--set", "dim=8"],
        "--set dim: given twice, dim=8 and dim=8; leave out one of the two",
    ),
    "a fixed parameter": (
        ["--method", "margin_distance_weighted_near", "--param", "beta=1"],
        "--param beta=1: margin_distance_weighted_near fixes beta=0.6; the parameters of",
    ),
    "fold too high": (["--fold", "4"], "--fold 4: the protocol has folds 0 to 3"),
    "fold too low": (["--fold", "-1"], "--fold -1: the protocol has folds 0 to 3"),
    "not trained": (["--method", "untrained"], "untrained is not trained; `assay embed` takes"),
    "unknown method": (["--method", "tripelt"], "did you mean 'triplet'?"),
    "unknown trunk": (["--set", "trunk=resnet5000"], "no trunk is called 'resnet5000'"),
    "weights of no trunk": (
        ["--weights", "missing.pth"],
        "--weights missing.pth: say which trunk they are of",
    ),
    "no such weights": (
        ["--set", "trunk=conv", "--weights", "missing.pth"],
        "--weights missing.pth: there is no such file",
    ),
    "weights of another": (
        ["--set", f"trunk={TINY}", "--weights", "other.pth"],
        "other.pth does not fit the trunk: it lacks",
    ),
    "unwritable": (["--out", "/proc/model"], "/proc/model"),
    "in a file": (["--out", "other.pth/model"], "other.pth"),
}


@for_each("name", BAD_TRAINING)
def test_bad_training_is_one_line_before_any_work(assay, mini, name):
    words, message = BAD_TRAINING[name]
    torch.save({"other": torch.zeros(2)}, "other.pth")
    usual = {"--data": f"folder:{mini}", "--method": "triplet", "--out": "model"}
    usual = {option: value for option, value in usual.items() if option not in words}
    settings = SET if name == "a setting twice" else ()
    code, out, err = assay(
        "train", *settings, *(part for pair in usual.items() for part in pair), *words
    )
    assert (code, out) == (2, ""), err
    assert message in err
    assert err.count("\n") == 1
    assert not Path("model").exists()


def test_a_folder_that_is_there_is_left_alone(assay, mini, model):
    before = digest_file(model / "model.safetensors")
    code, out, err = train(assay, f"folder:{mini}", model, "--seed", 1)
    assert (code, out) == (2, "")
    assert "model is there already; give another --out, or replace it with --force" in err
    assert digest_file(model / "model.safetensors") == before


@pytest.mark.parametrize("skip", [(), ("--skip-broken",)])
def test_what_was_left_out_is_said_once(assay, mini, tmp_path, skip):
    data = shutil.copytree(mini, tmp_path / "data")
    (data / "class00" / "about.txt").write_text("no image")
    for words in (
        ("train", *SET, "--method", "triplet", "--out", tmp_path / "model"),
        ("baselines", "--trunks", "conv", *SET),
        ("data", "splits"),
    ):
        code, _, err = assay(
            *words, *(() if words[0] == "data" else ("--data",)), f"folder:{data}", *skip
        )
        assert code == 0, err
        assert err.count("1 file left out") == 1, words


@pytest.mark.parametrize("more", [[], ["--final", "store"]])
def test_out_and_store_are_looked_at_before_the_data_are_read(assay, mini, model, more):
    words = ("train", "--data", "features:none.npz", "--method", "triplet")
    assert "model is there already" in assay(*words, "--out", model, *more)[2]
    said = "store is not a run store" if more else "none.npz"
    assert said in assay(*words, "--out", "new", *more)[2]


@pytest.mark.forgery("the command", what="the record of looks of a model replaced by train --force")
def test_force_replaces_a_model_and_nothing_else(assay, mini, model):
    before = digest_file(model / "model.safetensors")
    assert train(assay, f"folder:{mini}", model, "--seed", 1, "--force")[0] == 0
    after = digest_file(model / "model.safetensors")
    assert after != before
    assert sorted(path.name for path in model.iterdir()) == ["model.json", "model.safetensors"]
    assert [path.name for path in Path().iterdir()] == ["model"], "nothing is left beside it"
    for name, said in (
        ("looks.jsonl", "holds looks.jsonl, a record of looks, which would be lost"),
        ("thesis.tex", "holds thesis.tex, and --force replaces only a model"),
    ):
        (model / name).write_text("years of work")
        code, _, err = train(assay, f"folder:{mini}", model, "--seed", 2, "--force")
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
        assert digest_file(model / "model.safetensors") == after
        (model / name).unlink()
    (model / "test_half.sha256").write_text("0" * 64 + "\n")
    assert train(assay, f"folder:{mini}", model, "--seed", 1, "--force")[0] == 0, (
        "it is a model too"
    )
    Path("file").write_text("text")
    assert "is no folder" in train(assay, f"folder:{mini}", "file", "--force")[2]
    assert Path("file").read_text() == "text"


OVERWRITING = {
    "embed": ("--out", "f.npz", ["embed", "{model}", "{mini}"]),
    "evaluate": (
        "--per-query",
        "f.csv",
        ["evaluate", "{model}", "--data", "folder:{mini}", "--set", "folds=4"],
    ),
    "data show": ("--sheet", "f.png", ["data", "show", "folder:{mini}"]),
}
"""Commands that write a file of the user: the option that names it, and the other words."""


@for_each("name", OVERWRITING)
def test_a_file_is_overwritten_only_by_force(assay, mini, trained, name):
    option, file, words = OVERWRITING[name]
    words = [word.format(model=trained, mini=mini) for word in words]
    Path(file).write_text("precious")
    code, out, err = assay(*words, option, file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{option} {file} is there already; give another name, or replace it with --force" in err
    assert Path(file).read_text() == "precious"
    code, _, err = assay(*words, option, file, "--force")
    assert code == 0, err
    assert Path(file).read_bytes() != b"precious"
    Path(file).unlink()
    assert assay(*words, option, file)[0] == 0


# --- broken images --------------------------------------------------------------------------------


SKIPPING = {
    "data show": ["data", "show", "folder:{broken}"],
    "data prepare": ["data", "prepare", "folder:{broken}"],
    "data splits": ["data", "splits", "folder:{broken}"],
    "embed class folders": ["embed", "{model}", "{broken}", "--out", "f.npz"],
    "embed images": ["embed", "{model}", "{broken}/class00", "--out", "g.npz"],
    "evaluate": ["evaluate", "{model}", "--data", "folder:{broken}", "--set", "folds=4"],
    "train": ["train", "--data", "folder:{broken}", "--method", "triplet", "--out", "m", *SET],
    "baselines": ["baselines", "--data", "folder:{broken}", "--trunks", "conv", "--set", "size=32"],
    "a plan": ["bench", "--data", "folder:{broken}", "--methods", "triplet", "--dry-run", *SET],
}


def test_every_command_that_reads_images_skips_broken_ones(assay, mini, trained, tmp_path):
    broken = shutil.copytree(mini, tmp_path / "broken")
    (broken / "class00" / "0.png").write_bytes(b"no image")
    for name, words in SKIPPING.items():
        words = [word.format(model=trained, broken=broken) for word in words]
        code, out, err = assay(*words)
        if name != "data show":  # which shows what is wrong
            assert (code, out, err.count("\n")) == (2, "", 1), name
            assert "0.png cannot be read as an image" in err and "--skip-broken" in err, name
        code, out, err = assay(*words, "--skip-broken")
        assert code == 0, f"{name}: {err}"
        if name == "embed images":
            assert "note: left out: " in err and "class00/0.png cannot be read" in err, name
        elif name != "a plan":  # whose numbers are all that it prints
            assert "1 broken image left out: class00/0.png" in out + err, name


def test_a_bench_records_what_was_skipped_and_verifies_with_its_data(assay, mini, tmp_path):
    """Twins: broken and skipped, removed. All runs have the same keys; the record says which."""
    for name in ("broken", "removed"):
        shutil.copytree(mini, tmp_path / name / "mini")
    (tmp_path / "broken/mini/class00/0.png").write_bytes(b"no image")
    (tmp_path / "broken/mini/class16/0.png").write_bytes(b"no image")  # its class is lost
    (tmp_path / "removed/mini/class00/0.png").unlink()
    (tmp_path / "removed/mini/class16/0.png").unlink()
    (tmp_path / "removed/mini/class16").rmdir()
    fewer = set_options((*MINI, "folds=4", "trials=1", "reproductions=1"))
    fewer += ["--methods", "triplet", *INLINE]
    runs = {}
    for name, more in (("broken", ["--skip-broken"]), ("removed", [])):
        data = f"folder:{tmp_path / name / 'mini'}"
        code, _, err = assay("bench", "--data", data, "--out", name + "-store", *fewer, *more)
        assert code == 0, err
        runs[name] = {
            path.parent.name for path in Path(f"{name}-store").glob("runs/*/*/result.json")
        }
    assert runs["broken"] == runs["removed"]
    for record in study_records(Store(Path("broken-store"))):
        assert "1 broken image left out: class00/0.png" in record.announced.data.left_out
        assert record.seal.left_out == ("1 broken image of the test half left out: class16/0.png",)
    data = f"folder:{tmp_path / 'broken' / 'mini'}"
    code, out, err = assay("verify", "broken-store", "--data", data, "--engine", "inline")
    assert code == 0, out + err
    assert "taken on trust: that the stored test vectors" not in out


# --- embed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "folder:"])
def test_a_folder_of_classes_is_embedded_in_its_order(assay, mini, trained, kind):
    code, out, err = assay("embed", trained, f"{kind}{mini}", "--out", "f.npz")
    assert code == 0, err
    assert err.startswith("note: the model was trained on 24 of the 65 samples")
    assert (
        out == "65 vectors of 17 classes, 8 dimensions: f.npz\nnext: assay bench --data"
        " features:f.npz\n"
    )
    found, dataset = arrays("f.npz"), load(f"folder:{mini}")
    assert set(found) == {"z", "y", "classes", "ids", "pretrained_on", "trained_on"}
    assert found["z"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found["z"], axis=1), 1, atol=1e-5)
    assert found["ids"].tolist() == list(dataset.ids)
    assert found["y"].tolist() == dataset.labels.tolist()
    assert found["classes"].tolist() == list(dataset.class_names)
    np.testing.assert_allclose(
        found["z"], by_hand(trained, [mini / name for name in dataset.ids]), atol=1e-5
    )


def test_images_without_classes_have_names_only(assay, mini, trained):
    Path("flat").mkdir()
    for name, number in (("b.png", 0), ("a.PNG", 5), ("c.png", 9)):
        shutil.copy(mini / f"class{number:02d}" / "1.png", Path("flat", name))
    Path("flat/notes.txt").write_text("not an image")
    code, out, _ = assay("embed", trained, "flat", "--out", "f.npz")
    assert (code, out) == (0, "3 vectors, 8 dimensions: f.npz\n")
    found = arrays("f.npz")
    assert set(found) == {"z", "ids", "pretrained_on"}
    assert found["ids"].tolist() == ["a.PNG", "b.png", "c.png"]
    np.testing.assert_allclose(
        found["z"], by_hand(trained, [Path("flat", name) for name in found["ids"]]), atol=1e-5
    )


def test_a_single_file_is_embedded(assay, mini, trained):
    path = mini / "class03" / "2.png"
    assert assay("embed", trained, path, "--out", "f.npz")[0] == 0
    found = arrays("f.npz")
    assert found["ids"].tolist() == ["2.png"]
    np.testing.assert_allclose(found["z"], by_hand(trained, [path]), atol=1e-5)


def test_a_pretrained_trunk_gives_its_features_at_its_own_size(assay, mini):
    Path("flat").mkdir()
    for number in (0, 5):
        shutil.copy(mini / f"class{number:02d}" / "1.png", Path("flat", f"{number}.png"))
    code, out, _ = assay("embed", "lite0", "flat", "--out", "f.npz")
    assert (code, out) == (0, "2 vectors, 1280 dimensions: f.npz\n")
    z = arrays("f.npz")["z"]
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
    model = package.load("lite0").model.eval()
    images = [
        Image.open(f"flat/{number}.png").resize((224, 224), Image.Resampling.BILINEAR)
        for number in (0, 5)
    ]
    x = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 for image in images])
    with torch.no_grad():
        expected = torch.nn.functional.normalize(model.trunk(x), dim=1).numpy()
    assert (z * expected).sum(axis=1).min() > 0.99


def test_official_splits_and_roles_are_kept(assay, trained, table):
    assert assay("embed", trained, f"table:{table}", "--out", "f.npz")[0] == 0
    found, dataset = arrays("f.npz"), load(f"table:{table}")
    names = {"z", "y", "classes", "ids", "trainval", "query", "gallery", "pretrained_on"}
    assert set(found) == names
    assert found["classes"].tolist() == [
        f"kind{number:02d}" for number in (*range(1, 16, 2), *range(0, 16, 2))
    ]
    assert found["trainval"] == 8
    for name, value in (
        ("y", dataset.labels),
        ("ids", dataset.ids),
        ("query", dataset.query),
        ("gallery", dataset.gallery),
    ):
        assert found[name].tolist() == list(value)
    assert (found["query"].sum(), found["gallery"].sum()) == (16, 24)


def test_embeddings_are_split_as_the_images_would_be(assay, trained, table):
    """The classes of trainval come first although their names do not."""
    assert assay("embed", trained, f"table:{table}", "--out", "f.npz")[0] == 0
    of_images, of_vectors = (
        assay("data", "splits", data) for data in (f"table:{table}", "features:f.npz")
    )
    assert of_vectors == of_images
    assert of_images[1].splitlines()[1].startswith("mini/class01/0.png,kind01,fold 0")
    code, _, err = assay(
        "bench",
        *INLINE,
        "--data",
        "features:f.npz",
        "--methods",
        "as_is",
        *set_options(MINI),
        "--out",
        "store",
    )
    assert code == 0, err
    (record,) = study_records(Store(Path("store")))
    dataset = load(f"table:{table}")
    trainval, _ = splits.of(dataset, protocols["quick"])
    half = Half(dataset, np.flatnonzero(dataset.labels >= 8))
    assert (record.announced.data.classes, record.announced.data.samples) == (
        8,
        len(trainval.y),
    )
    answers = arrays(Store(Path("store")).answers(record.seal.test))
    for name, value in (("y", half.y), ("query", half.query), ("gallery", half.gallery)):
        assert answers[name].tolist() == value.tolist()
    vectors = arrays("f.npz")
    test = package.evaluate(
        *(vectors[name][vectors["y"] >= 8] for name in "zy"),
        queries=half.query,
        gallery=half.gallery,
    )
    assert record.tests[0].separated["queries"] == test.queries == 16


def test_vectors_go_through_a_model_of_vectors(assay, mini_features):
    assert train(assay, f"features:{mini_features}", "model")[0] == 0
    assert assay("embed", "model", f"features:{mini_features}", "--out", "f.npz")[0] == 0
    np.testing.assert_allclose(
        arrays("f.npz")["z"], package.load("model").embed(arrays(mini_features)["z"]), atol=1e-6
    )


BAD_EMBEDDING = {
    "no images": (["model", "empty"], "empty holds no images that can be read"),
    "not an image": (["model", "notes.png"], "notes.png cannot be read as an image"),
    "nothing there": (
        ["model", "nowhere"],
        "there is no nowhere; give a folder or file of images, or kind:path",
    ),
    "no such data": (["model", "folder:nowhere"], "there is no nowhere"),
    "out is no archive": (
        ["model", "mini", "--out", "f.txt"],
        "--out f.txt: give a file that ends in .npz",
    ),
    "out is nowhere": (
        ["model", "mini", "--out", "no/f.npz"],
        "--out no/f.npz: give a file that ends in .npz, in a folder",
    ),
    "out is a folder": (["model", "mini", "--out", "folder.npz"], "folder.npz"),
    "vectors for a model of images": (["model", "features:mini.npz"], "model takes images"),
    "images for a model of vectors": (["vectors", "mini"], "vectors takes vectors"),
    "vectors of another width": (["vectors", "features:wide.npz"], "vectors takes vectors of 12"),
    "vectors for a trunk": (["lite0", "features:mini.npz"], "lite0"),
    "no pretrained weights": (
        ["conv", "mini"],
        "the trunk 'conv' has no pretrained weights to embed with",
    ),
    "weights out of reach": (["resnet50", "mini"], "the pretrained weights of 'resnet50'"),
    "neither model nor trunk": (["modle", "mini"], "modle is neither a model folder nor a trunk"),
    "an empty folder": (["empty", "mini"], "empty is not a model folder (no model.json in it)"),
    "no GPU": (["model", "mini", "--device", "cuda"], "torch sees no GPU"),
}


@pytest.fixture(scope="module")
def vectors_model(tmp_path_factory):
    """Return a folder with a model of vectors of 12 numbers, and other vectors."""
    root = tmp_path_factory.mktemp("vectors")
    y = np.repeat(np.arange(16), 3)
    for name, width in (("mini", 12), ("wide", 13)):
        np.savez(root / f"{name}.npz", z=np.random.default_rng(0).normal(size=(48, width)), y=y)
    make(
        "train",
        "--data",
        f"features:{root / 'mini.npz'}",
        "--method",
        "triplet",
        *SET,
        "--out",
        root / "vectors",
    )
    return root


@pytest.mark.usefixtures("offline")
def test_bad_embedding_is_one_line(assay, mini, model, vectors_model):
    for path in (mini, *vectors_model.iterdir()):
        Path(path.name).symlink_to(path)
    Path("empty").mkdir()
    Path("folder.npz").mkdir()
    Path("notes.png").write_text("not an image")
    for name, (words, message) in BAD_EMBEDDING.items():
        code, out, err = assay("embed", *words, *([] if "--out" in words else ["--out", "f.npz"]))
        assert (code, out) == (2, ""), f"{name}: {err}"
        assert message in err and err.count("\n") == 1, f"{name}: {err}"
        assert not Path("f.npz").exists(), name


# --- baselines ------------------------------------------------------------------------------------


def baselines(assay, data, trunks, *words):
    found = documents(
        assay("baselines", "--data", data, "--trunks", trunks, "--set", "size=32", "--json", *words)
    )
    return {(row["trunk"], row["pretrained_on"]): row for row in found["trunks"]}


@pytest.mark.parametrize("test", [[], ["--test"]])
def test_trunks_are_scored_with_random_and_with_pretrained_weights(assay, mini, test):
    found = baselines(assay, f"folder:{mini}", "conv,lite0", "--dim", 4, *test)
    assert list(found) == [("conv", None), ("lite0", None), ("lite0", "ImageNet-1k")]
    assert [(row["features"], row["dim"]) for row in found.values()] == [
        (64, 4),
        (1280, 4),
        (1280, 4),
    ]
    scores = [row["scores"]["map_at_r"] for row in found.values()]
    assert all(0 < score <= 1 for score in scores)
    assert len(set(scores)) == 3


def test_the_baseline_of_vectors_is_their_pca_fitted_on_trainval(assay, mini_features):
    """In numpy: components of the vectors of classes 0 to 7, used to search the test half."""
    found = baselines(assay, f"features:{mini_features}", "identity", "--dim", 3, "--test")
    z, y = (arrays(mini_features)[name] for name in "zy")
    seen = z[y < 8]
    components = np.linalg.svd(seen - seen.mean(0), full_matrices=False)[2][:3]
    projected = (z[y >= 8] - seen.mean(0)) @ components.T
    (row,) = found.values()
    assert row["scores"]["map_at_r"] == pytest.approx(
        package.evaluate(projected, y[y >= 8])["map_at_r"], abs=1e-6
    )


def test_validation_folds_and_test_half_have_scores_of_their_own(assay, mini):
    tables = [
        assay("baselines", "--data", f"folder:{mini}", "--trunks", "conv", "--dim", 2, *words)
        for words in ([], ["--test"])
    ]
    assert [code for code, _, _ in tables] == [0, 0]
    assert "folder:mini: validation folds, mean, percent; PCA fitted on trainval" in tables[0][1]
    assert "folder:mini: test half, percent; PCA fitted on trainval" in tables[1][1]
    rows = [
        next(line.split() for line in out.splitlines() if line.startswith("conv"))
        for _, out, _ in tables
    ]
    assert rows[0][:6] == rows[1][:6] == ["conv", "nothing", "(random", "weights)", "64", "2"]
    assert rows[0][6:] != rows[1][6:]


def test_without_test_the_test_half_cannot_change_a_baseline(assay, mini):
    other = Path(shutil.copytree(mini, "mini"))
    before = assay("baselines", "--data", "folder:mini", "--trunks", "conv")
    for child in sorted(other.iterdir())[TEST_CLASSES:]:
        Image.new("RGB", (16, 16), "red").save(child / "0.png")
    assert assay("baselines", "--data", "folder:mini", "--trunks", "conv") == before


def test_more_dimensions_than_there_are_features_or_samples_are_left_out(
    assay, mini, mini_features
):
    (of_vectors,) = baselines(assay, f"features:{mini_features}", "identity", "--dim", 500).values()
    assert (of_vectors["features"], of_vectors["dim"]) == (12, 12)
    (of_images,) = baselines(assay, f"folder:{mini}", "conv", "--dim", 500).values()
    assert (of_images["features"], of_images["dim"]) == (64, TEST_CLASSES * IMAGES - 1)


@pytest.mark.usefixtures("offline")
def test_a_trunk_without_weights_is_reported_and_the_others_are_scored(assay, mini):
    started = time.monotonic()
    words = ["--data", f"folder:{mini}", "--trunks", "resnet50,conv", "--set", "size=32"]
    code, out, err = assay("baselines", *words)
    assert (code, err) == (0, "")
    assert time.monotonic() - started < 30
    rows = [line.split()[:2] for line in out.splitlines()[3:]]
    assert [row[0] for row in rows[: rows.index(["conv", "nothing"]) + 1]] == [
        "resnet50",
        "resnet50",
        "conv",
    ]
    assert (
        "the pretrained weights of 'resnet50' (resnet50-0676ba61.pth) are not on this machine"
        in out
    )


@pytest.mark.parametrize(
    ("trunk", "size", "message"),
    [
        ("identity", 32, "takes vectors"),
        ("conv", 8, "at least 16 pixels"),
        ("vit_tiny_patch16_224", 50, "multiple of 16"),
    ],
)
def test_a_trunk_that_does_not_go_with_the_data_does_not_end_the_others(
    assay, mini, trunk, size, message
):
    words = ["--trunks", f"{trunk},{TINY}", "--set", f"size={size}", "--json"]
    code, out, err = assay("baselines", "--data", f"folder:{mini}", *words)
    if size < 32:  # neither goes with the data, so nothing was measured
        assert code == 2 and message in err
        return
    assert code == 0, err
    found = json.loads(out)["trunks"]
    assert any(message in str(row["problem"]) for row in found if row["trunk"] == trunk)
    assert any(row["scores"] for row in found if row["trunk"] == TINY)


@pytest.mark.parametrize(
    ("trunks", "message"),
    [
        ("identiti", "did you mean 'identity'"),
        ("identity,conv5000", "no trunk is called 'conv5000'"),
        ("conv", "--trunks conv: the trunk 'conv' takes images, the data are vectors"),
        (",", "--trunks ,: name a trunk of `assay list trunks`, or leave it out"),
    ],
)
def test_trunks_that_cannot_be_scored_are_bad_input(assay, mini_features, trunks, message):
    words = ["--data", f"features:{mini_features}", "--trunks", trunks]
    code, out, err = assay("baselines", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_training_that_never_got_better_says_that_the_weights_are_the_initial_ones(
    assay, mini_features, tmp_path
):
    words = ["--method", "triplet", "--set", "iterations=1", "--set", "epochs=1"]
    words = ["train", "--data", f"features:{mini_features}", *words, "--set"]
    code, _, err = assay(*words, "optimiser.lr=1e-12", "--out", tmp_path / "same")
    assert code == 0
    assert "no validation was better than before training: the model has its initial w" in err
    card = json.loads((tmp_path / "same" / "model.json").read_text())
    assert card["epoch"] == 0


# --- evaluate -------------------------------------------------------------------------------------


def test_a_model_is_scored_on_the_fold_that_it_held_out(assay, mini, model):
    found = documents(assay("evaluate", model, "--data", f"folder:{mini}", "--json"))
    card = json.loads((model / "model.json").read_text())
    assert list(found["parts"]) == ["fold 2"]
    for name, value in found["mean"].items():
        assert value == pytest.approx(card["validation"][name])
    assert sorted(path.name for path in model.iterdir()) == ["model.json", "model.safetensors"]


def know_classes(folder, names):
    """Let the card of a model name the classes that it was trained on; None: as cards of before did
    not.
    """
    card = json.loads((folder / "model.json").read_text())
    card.pop("classes", None)
    (folder / "model.json").write_text(
        json.dumps(card if names is None else {**card, "classes": names})
    )


def other_half(data):
    return (
        f"note: the trainval half of {data} is not exactly the half that the model was trained on,"
        " so all folds are scored\n"
    )


def test_other_data_are_scored_on_all_folds(assay, model, table):
    know_classes(model, ["class00", "class01"])
    code, out, err = assay("evaluate", model, "--data", f"table:{table}", "--json")
    assert code == 0
    assert list(json.loads(out)["parts"]) == ["fold 0", "fold 1", "fold 2", "fold 3"]
    assert err == other_half(f"table:{table}")
    code, out, err = assay("evaluate", model, "--data", f"table:{table}", "--json", "--test")
    assert code == 0
    assert json.loads(out)["parts"]["test"]["queries"] == 16
    assert (
        err
        == f"note: no study is known to have opened the test half of table:{table.name}; this look"
        " at it is recorded as look 1 at test in model/looks.jsonl; a model chosen by such looks is"
        " not fairly tested any more\n"
    )


SEEN = {
    "six classes": (
        [f"class{number:02d}" for number in (0, 1, 2, 3, 6, 7)],
        (
            "note: 6 classes of {data} have the same names as classes that the model was trained"
            " on; their scores are not those of unseen classes\n"
        ),
    ),
    "one class": (
        ["class00", "cormorant"],
        (
            "note: 1 class of {data} has the same name as a class that the model was trained on; "
            "its scores are not those of an unseen class\n"
        ),
    ),
    "no class": (["cormorant"], ""),
    "classes of the other half": (["class12"], ""),
    "not known": (None, "note: it is not known whether the model was trained on some of {data}\n"),
}


def grow(mini):
    """Copy the miniature folder with one file more, in a class of trainval."""
    grown = Path(shutil.copytree(mini, "grown")).absolute()
    shutil.copy(grown / "class00" / "0.png", grown / "class00" / "9.png")
    return f"folder:{grown}"


@pytest.mark.parametrize("name", SEEN)
def test_data_that_have_grown_since_are_not_called_unseen(assay, mini, model, name):
    """One more file makes another fingerprint, and the other images are those that the model was
    trained on.
    """
    classes, said = SEEN[name]
    know_classes(model, classes)
    data = grow(mini)
    code, out, err = assay("evaluate", model, "--data", data, "--json")
    assert code == 0
    assert len(json.loads(out)["parts"]) == 4
    assert err == other_half(data) + said.format(data=data)


def test_at_the_test_the_classes_of_the_test_half_are_compared(assay, mini, model):
    know_classes(model, ["class00", "class12", "class13"])
    data = grow(mini)
    code, _, err = assay("evaluate", model, "--data", data, "--test")
    assert code == 0
    assert f"note: 2 classes of {data} have the same names" in err
    assert "recorded as look 1 at test in model/looks.jsonl" in err


def test_a_look_at_test_by_way_of_a_model_is_counted_in_its_folder(assay, mini, model):
    said = []
    for number in (1, 2):
        code, out, err = assay("evaluate", model, "--data", f"folder:{mini}", "--test", "--json")
        assert code == 0
        assert f"recorded as look {number} at test in model/looks.jsonl" in err
        said.append(json.loads(out)["mean"])
    dataset = load(f"folder:{mini}")
    rows = np.flatnonzero(dataset.labels >= TEST_CLASSES)
    z = by_hand(model, [mini / dataset.ids[row] for row in rows])
    assert said[0] == pytest.approx(dict(package.evaluate(z, dataset.labels[rows])))
    looks = [json.loads(line) for line in (model / "looks.jsonl").read_text().splitlines()]
    assert [look["metrics"] for look in looks] == said
    assert {look["test"] for look in looks} == {Half(dataset, rows).fingerprint}


def test_a_look_that_cannot_be_recorded_prints_no_score(assay, mini, model):
    (model / "looks.jsonl").mkdir()
    code, out, err = assay("evaluate", model, "--data", f"folder:{mini}", "--test")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_a_trunk_by_name_scores_as_its_embeddings_do(assay, mini, monkeypatch, looks_folder):
    """At a smaller side, to be quick."""
    monkeypatch.setattr(Lite0, "side", 32)
    code, out, err = assay("evaluate", "lite0", "--data", f"folder:{mini}", "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found["parts"]) == ["fold 0", "fold 1", "fold 2", "fold 3"]
    assert err == f"note: the model was not trained on folder:{mini}, so all folds are scored\n"
    assert assay("embed", "lite0", mini, "--out", "f.npz")[0] == 0
    of_file = documents(assay("evaluate", "f.npz", "--data", f"folder:{mini}", "--json"))
    assert found["mean"] == pytest.approx(of_file["mean"], abs=1e-6)
    code, _, err = assay("evaluate", "lite0", "--data", f"folder:{mini}", "--test")
    assert code == 0
    assert (
        err
        == f"note: no study is known to have opened the test half of folder:{mini.name}; this look"
        f" at it is recorded as look 2 in the index of looks ({looks_folder})\n"
    ), "the first was the embedding of all"


@pytest.mark.parametrize("test", [[], ["--test"]])
def test_embeddings_of_data_with_roles_score_as_their_model_does(assay, table, monkeypatch, test):
    monkeypatch.setattr(Lite0, "side", 32)
    assert assay("embed", "lite0", f"table:{table}", "--out", "t.npz")[0] == 0
    words = ["--data", f"table:{table}", *test, "--json"]
    of_model, of_file = (documents(assay("evaluate", what, *words)) for what in ("lite0", "t.npz"))
    assert of_file["mean"] == pytest.approx(of_model["mean"], abs=1e-6)
    counts = [
        {name: part["queries"] for name, part in found["parts"].items()}
        for found in (of_model, of_file)
    ]
    assert (
        counts[0]
        == counts[1]
        == ({"test": 16} if test else {f"fold {number}": 8 for number in range(4)})
    )


@pytest.mark.parametrize("method", ["triplet", "pretrained", "as_is"])
def test_a_model_of_a_frozen_trunk_needs_no_cache(assay, mini, frozen, offline, method):
    store = Path(shutil.copytree(frozen, "store"))
    (place,) = (store / "models").glob(f"*-{method}-*")
    card = json.loads((place / "model.json").read_text())
    found = documents(assay("evaluate", place, "--data", f"folder:{mini}", "--json"))
    assert found["mean"]["map_at_r"] == pytest.approx(card["validation"]["map_at_r"], abs=1e-5)
    code, out, err = assay("evaluate", place, "--data", f"folder:{mini}", "--test", "--json")
    assert code == 0, err
    assert f"recorded as look 1 at test in the study of {method}" in err
    (look,) = next(
        record for record in study_records(Store(store)) if record.method == method
    ).looks
    assert (look.run, look.metrics) == (card["run"], json.loads(out)["mean"])
    assert not Path("cache/weights").exists()


def test_without_test_a_model_needs_nothing_of_its_store(assay, mini, benched):
    store = Path(shutil.copytree(benched, "store"))
    (place,) = (store / "models").glob("*-triplet-*")
    words = ["evaluate", place, "--data", f"folder:{mini}", "--json"]
    before = assay(*words)
    shutil.rmtree(store / "runs")
    shutil.rmtree(store / "studies")
    assert assay(*words) == before
    assert before[0] == 0


def test_other_weights_in_the_folder_are_not_recorded_as_the_run(assay, mini, benched, trained):
    store = Path(shutil.copytree(benched, "store"))
    (place,) = (store / "models").glob("*-triplet-*")
    shutil.copy(trained / "model.safetensors", place / "model.safetensors")
    theirs, card = (json.loads((one / "model.json").read_text()) for one in (trained, place))
    fitting = {name: theirs[name] for name in ("sha256", "architecture")}
    for written, words in [
        (card, "is not the file that model.json was written with"),
        (card | fitting, "has other weights than the run"),
    ]:
        (place / "model.json").write_text(json.dumps(written))
        code, out, err = assay("evaluate", place, "--data", f"folder:{mini}", "--test")
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    assert not any(record.looks for record in study_records(Store(store)))


def test_a_model_that_a_bench_left_stands_for_its_run(assay, mini, benched):
    store = Path(shutil.copytree(benched, "store"))
    (place,) = (store / "models").glob("*-triplet-*")
    card = json.loads((place / "model.json").read_text())
    found = documents(assay("evaluate", place, "--data", f"folder:{mini}", "--json"))
    assert list(found["parts"]) == [f"fold {card['fold']}"]
    ledger = store / "studies" / card["study"] / "ledger.jsonl"
    before = read(ledger)
    code, out, err = assay("evaluate", place, "--data", f"folder:{mini}", "--test", "--json")
    assert code == 0
    assert "recorded as look 1 at test in the study of triplet" in err
    *lines, look = read(ledger)
    assert lines == before
    assert (look.kind, look.body["run"], look.body["metrics"]) == (
        "look",
        card["run"],
        json.loads(out)["mean"],
    )
    assert not (place / "looks.jsonl").exists()
    states = {
        row["method"]: row["state"]
        for row in documents(assay("status", store, "--json"))["studies"]
    }
    assert states["triplet"] == "done, 1 look at test"
    assert assay("verify", store)[0] == 0


def test_a_model_in_a_store_whose_run_was_exchanged_is_refused(assay, mini, benched):
    store = Path(shutil.copytree(benched, "store"))
    (place,) = (store / "models").glob("*-triplet-*")
    weights = (
        Store(store).run(json.loads((place / "model.json").read_text())["run"])
        / "model.safetensors"
    )
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    code, out, err = assay("evaluate", place, "--data", f"folder:{mini}", "--test")
    assert (code, out) == (2, "")
    assert "was altered after the run had ended" in err


def test_another_number_of_folds_is_refused_only_where_it_was_asked_for(assay, mini):
    train = ["train", "--data", f"folder:{mini}", "--method", "triplet", "--out", "three", *SET]
    assert assay(*with_last_settings([*train, "--set", "folds=3"]))[0] == 0
    words = ["evaluate", "three", "--data", f"folder:{mini}"]
    assert assay(*words, "--set", "seed=1")[0] == 0
    code, _, err = assay(*words, "--set", "folds=2")
    assert code == 2
    assert "folds=2: the model held out one fold of 3" in err


BAD_EVALUATION = {
    "no data": (["model"], "model is a model: give --data"),
    "other folds": (
        ["model", "--data", "folder:mini", "--set", "folds=2"],
        "folds=2: the model held out one fold of 4",
    ),
    "vectors": (
        ["model", "--data", "features:mini.npz"],
        "takes images of 3 channels, the data are vectors of 12 numbers",
    ),
    "no pretrained weights": (
        ["conv", "--data", "folder:mini"],
        "the trunk 'conv' has no pretrained weights",
    ),
    "neither": (["modle", "--data", "folder:mini"], "modle is neither a model folder nor a trunk"),
    "cut off": (
        ["damaged", "--data", "folder:mini"],
        "damaged/model.safetensors cannot be read as the weights of a model",
    ),
}


@pytest.mark.parametrize("name", BAD_EVALUATION)
def test_bad_evaluation_is_one_line(assay, mini, model, vectors_model, name):
    words, message = BAD_EVALUATION[name]
    Path("mini").symlink_to(mini)
    Path("mini.npz").symlink_to(vectors_model / "mini.npz")
    damaged = Path(shutil.copytree(model, "damaged")) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    code, out, err = assay("evaluate", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


# --- what a bench leaves --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["triplet", "untrained", "as_is"])
def test_a_bench_hands_over_the_model_whose_vectors_it_scored(mini, benched, method):
    (place,) = (benched / "models").glob(f"*-{method}-*")
    record = next(record for record in study_records(Store(benched)) if record.method == method)
    model = package.load(place)
    dataset = load(f"folder:{mini}")
    paths = [mini / dataset.ids[row] for row in np.flatnonzero(dataset.labels >= TEST_CLASSES)]
    stored = np.load(Store(benched).test_vectors(model.card["run"], record.seal.test))
    np.testing.assert_allclose(model.embed(paths), stored, atol=1e-5)
    entry = next(entry for entry in record.reproductions if entry.key == model.card["run"])
    assert (model.card["study"], model.card["preregistration"]) == (
        record.key,
        record.preregistration,
    )
    assert (model.card["fold"], model.card["validation"]) == (entry.fold, entry.validation)
    assert model.card["test"]["separated"] == record.tests[entry.reproduction].separated


def test_the_model_is_chosen_by_validation(benched):
    """The best fold of the reproduction with the best mean."""
    record = next(record for record in study_records(Store(benched)) if record.method == "triplet")
    scores = np.zeros((2, 4))
    for entry in record.reproductions:
        scores[entry.reproduction, entry.fold] = entry.validation["map_at_r"]
    (place,) = (benched / "models").glob("*-triplet-*")
    card = json.loads((place / "model.json").read_text())
    best = scores.mean(axis=1).argmax()
    assert (card["reproduction"], card["fold"]) == (best, scores[best].argmax())


def test_the_report_names_the_weights_that_the_trunk_started_from(benched):
    assert (
        "trunk: conv, from random weights; 8 dimensions"
        in (benched / "report" / "index.html").read_text()
    )


def test_weights_of_a_file_are_named_in_the_report(assay, mini, tiny_weights):
    settings = set_options((*MINI, "folds=4", f"trunk={TINY}", "size=32"))
    words = ["--methods", "pretrained", *settings]
    words += ["--weights", tiny_weights, "--pretrained-on", "many <stripes>"]
    code, out, err = assay("bench", *INLINE, "--data", f"folder:{mini}", *words, "--out", "store")
    assert code == 0, err
    assert f"trunk: {TINY}, pretrained on many <stripes>, frozen" in out
    assert (
        "The trunk was pretrained on many &lt;stripes&gt;."
        in Path("store/report/index.html").read_text()
    )


def test_images_kept_as_jpeg_make_other_runs(assay, mini, benched, monkeypatch, tmp_path):
    """What is trained on is not the same, so neither is the key: a store must not take one for the
    other.
    """
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    words = ["bench", *INLINE, "--data", f"folder:{mini}", "--methods", "untrained", *SET, "--jpeg"]
    code, _, err = assay(*words, "--out", "store")
    assert code == 0, err
    packs = [path.name for path in Path("cache/packs").iterdir()]
    assert len(packs) == 2
    assert all("-jpeg-" in name for name in packs)
    assert assay("verify", "store")[0] == 0
    ours, theirs = (
        next(record for record in study_records(Store(store)) if record.method == "untrained")
        for store in (Path("store"), benched)
    )
    scores = [[entry.validation for entry in record.reproductions] for record in (ours, theirs)]
    keys = [{entry.key for entry in record.reproductions} for record in (ours, theirs)]
    weights = [{entry.result for entry in record.reproductions} for record in (ours, theirs)]
    assert scores[0] != scores[1] or weights[0] != weights[1]
    assert not keys[0] & keys[1]


DRY_RUNS = {
    "a frozen trunk": (
        ["--set", "trunk=lite0", "--set", "size=32"],
        {"triplet": 16, "pretrained": 1, "as_is": 1},
    ),
    "images that keep their shapes": (
        ["--set", "resize=short", "--set", "stored=20"],
        {"triplet": 16, "untrained": 8, "as_is": 2},
    ),
    "vectors": (["--data", "features"], {"triplet": 16, "pretrained": 1, "as_is": 1}),
}


@pytest.mark.parametrize("name", DRY_RUNS)
def test_a_dry_run_counts_and_makes_nothing(
    assay, mini, mini_features, monkeypatch, tmp_path, name
):
    words, runs = DRY_RUNS[name]
    data = f"features:{mini_features}" if "--data" in words else f"folder:{mini}"
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    words = [
        *with_last_settings([*SET, *words[2 * ("--data" in words) :]]),
        "--methods",
        ",".join(list(runs)[:2]),
        "--out",
        "store",
        "--dry-run",
    ]
    planned = documents(assay("bench", *words, "--data", data, "--json"))
    assert planned["runs"] == runs
    assert planned["seconds"] > 0
    assert planned["bytes"] > 0
    assert f"{sum(runs.values())} runs with" in assay("bench", *words, "--data", data)[1]
    assert not Path("store").exists()
    assert not Path("cache/packs").exists()
    assert not Path("cache/features").exists()
