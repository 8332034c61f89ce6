"""`assay train --final`: a model of all classes, by the parameters that a finished study chose."""

import itertools
import json
import math
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import assay as package
from assay.data import load, splits
from assay.data.copies import Flaws, find_flaws
from assay.data.joined import join_views
from assay.data.packs import View
from assay.data.seal import SealedTest
from assay.protocols import customise, protocols
from assay.records.ledger import read
from assay.records.run import ModelCard
from assay.records.store import Store
from assay.records.study import study_records
from assay.run import train_on_all
from assay.study import finished_studies, newest_of, train_final
from assay.tables import comparisons
from assay.tables.answer import method_to_train
from assay.train import OneNetwork, ResumeFile, ignore_epoch
from heads import PROTOCOL, VIEW, runs_of
from miniature import MINI, make_features, make_folder

LEARNS = (*MINI, "iterations=10", "epochs=4", "optimiser.lr=0.01")
"""Settings at which a head on the vectors below is better after training than before."""

METHODS = ("triplet", "contrastive")


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """A file of features and the store of a bench on it."""
    root = tmp_path_factory.mktemp("final")
    file = make_features(root / "f.npz", noise=1.5)
    small = customise(protocols["quick"], LEARNS)
    package.bench(f"features:{file}", METHODS, small, root / "store", engine="inline")
    return file, root / "store"


@pytest.fixture(scope="module")
def model(benched, tmp_path_factory):
    """The folder of a final model by triplet."""
    file, store = benched
    out = tmp_path_factory.mktemp("model") / "final"
    finished = finished_studies(Store(store), load(f"features:{file}"))
    train_final(newest_of(finished, "triplet"), out)
    return out


def record_of(store, method):
    return next(one for one in study_records(Store(store)) if one.method == method)


def final(assay, benched, out, *words, method="triplet"):
    chosen = [] if method is None else ["--method", method]
    data = [] if "--data" in words else ["--data", f"features:{benched[0]}"]
    return assay("train", *data, *chosen, "--final", benched[1], "--out", out, *words)


# --- what is trained ------------------------------------------------------------------------------


def test_all_classes_are_trained_on_with_the_parameters_of_the_study(benched, model):
    record, card = record_of(benched[1], "triplet"), ModelCard.read(model / "model.json")
    dataset = load(f"features:{benched[0]}")
    assert card.classes == dataset.class_names
    assert sorted((model / "trained_on.sha256").read_text().split()) == sorted(
        dataset.items.digest(row) for row in range(len(dataset))
    )
    assert card.parameters == record.selection.parameters
    assert (card.study, card.preregistration) == (record.key, record.preregistration)
    assert (card.fold, card.test, card.validation) == (None, None, {})
    assert card.final.test == record.seal.test


def test_it_is_trained_for_the_median_of_the_best_epochs(benched, model):
    record, card = record_of(benched[1], "triplet"), ModelCard.read(model / "model.json")
    best = [entry.best_epoch for entry in record.reproductions]
    assert list(card.final.best_epochs) == best
    assert card.final.epochs == card.epoch == statistics.median_high(best) > 0


def test_the_card_has_the_scores_of_the_study_and_says_that_the_model_has_none(benched, model):
    record, card = record_of(benched[1], "triplet"), ModelCard.read(model / "model.json")
    found = card.final.scores["map_at_r"]
    units = record.units("separated", "map_at_r")
    assert found.mean == pytest.approx(np.mean(units))
    assert found.low < found.mean < found.high
    assert f"test MAP@R of {100 * found.mean:.1f}" in card.final.note
    assert (
        f"{100 * found.low:.1f} to {100 * found.high:.1f} over 2 reproductions" in card.final.note
    )
    assert card.final.note.startswith("This model has no test score")


def test_its_classes_are_found_better_than_by_a_model_that_has_not_seen_them(benched, model):
    """It would be a poor test of a model, and is a good one of what the model was trained on."""
    (place,) = (benched[1] / "models").glob("*-triplet-*")
    with np.load(benched[0]) as found:
        z, y = found["z"].astype(np.float32), found["y"]
    test = y >= 8
    ours, theirs = (
        package.evaluate(package.load(one).embed(z[test]), y[test])["map_at_r"]
        for one in (model, place)
    )
    assert ours > theirs + 0.02


def test_the_same_command_gives_the_same_bytes(assay, benched, model, tmp_path):
    code, out, err = final(assay, benched, tmp_path / "again")
    assert code == 0, err
    assert "triplet on all 16 classes" in out
    for name in ("model.safetensors", "trained_on.sha256", "model.json"):
        assert (tmp_path / "again" / name).read_bytes() == (model / name).read_bytes()


def test_a_training_that_was_killed_goes_on_where_it_was(benched, model, tmp_path):
    finished = finished_studies(Store(benched[1]), load(f"features:{benched[0]}"))
    study, seen = newest_of(finished, "triplet"), []
    assert study.epochs > 1

    def stop(epoch, loss, checkpoint):
        seen.append(epoch)
        if seen == [1, 2]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_final(study, tmp_path / "m", on_epoch=stop, save_after=0)
    assert [path.name for path in tmp_path.iterdir()] == ["m.partial"]
    seen.append("again")
    train_final(study, tmp_path / "m", on_epoch=stop, save_after=0)
    assert seen == [1, 2, "again", *range(2, study.epochs + 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    ours = (tmp_path / "m" / "model.safetensors").read_bytes()
    assert ours == (model / "model.safetensors").read_bytes()


def test_a_compiled_training_that_was_killed_goes_on_too(tmp_path, monkeypatch):
    """It validates nothing, so there is nothing to compile for before it goes on."""
    monkeypatch.setattr(torch, "compile", lambda model: model)
    run = runs_of("triplet", replace(PROTOCOL, compile=True, epochs=4))[0]

    def train(on_epoch=ignore_epoch):
        file = ResumeFile(tmp_path / "state", "key", after=0)
        return train_on_all(run, VIEW, 3, VIEW.inputs, on_epoch, file)

    def stop(epoch, loss, checkpoint):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stop)
    assert (tmp_path / "state").exists()
    resumed = train()[1]
    (tmp_path / "state").unlink()
    whole = train()[1]
    assert resumed.history == whole.history
    assert [one.epoch for one in whole.history] == [0, 3]
    assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)


def test_a_training_that_diverges_has_failed_and_names_the_epoch(
    assay, benched, tmp_path, monkeypatch
):
    step, steps = OneNetwork.step, itertools.count(1)

    def diverging(self, batches):
        losses = step(self, batches)
        return losses if next(steps) < 15 else dict.fromkeys(losses, math.nan)

    monkeypatch.setattr(OneNetwork, "step", diverging)
    code, out, err = final(assay, benched, tmp_path / "m")
    assert (code, out) == (1, "")
    assert "triplet: training on all classes diverged in epoch 2, so there is no model" in err
    assert not (tmp_path / "m").exists()


def test_images_of_both_halves_are_one_view():
    draw = np.random.default_rng(0)
    first, second = (
        View(Packed(draw.integers(0, 255, (count, 4, 5, 3))), np.arange(count) // 2)
        for count in (6, 4)
    )
    whole = join_views(first, second)
    every = np.concatenate([first.x.pixels, second.x.pixels])
    assert whole.y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (len(whole.x), whole.inputs) == (10, 3)
    for rows in (np.array([9, 0, 6, 5, 5]), slice(4, 8), np.array([1, 2]), np.array([8])):
        np.testing.assert_array_equal(whole.x[rows], every[rows])
    np.testing.assert_array_equal(np.stack(list(whole.x)), every)
    np.testing.assert_array_equal(whole.rows(np.array([7, 1])).x[:], every[[7, 1]])


class Packed:
    """Images in memory with the ways of a pack."""

    channels = 3

    def __init__(self, pixels):
        self.pixels = pixels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, rows):
        return self.pixels[rows]

    def __iter__(self):
        return iter(self.pixels)


def test_images_are_trained_on_too(assay, tmp_path):
    folder = make_folder(tmp_path / "mini")
    small = customise(protocols["quick"], [*MINI, "reproductions=1"])
    package.bench(f"folder:{folder}", ["triplet"], small, tmp_path / "store", engine="inline")
    code, _, err = final(
        assay, (None, tmp_path / "store"), tmp_path / "m", "--data", f"folder:{folder}"
    )
    if "best before any training" in err:
        pytest.fail("a miniature that learns nothing tests nothing")
    assert code == 0, err
    assert package.load(tmp_path / "m").embed(sorted(folder.rglob("*.png"))[:2]).shape == (2, 8)
    code, _, err = assay("evaluate", tmp_path / "m", "--data", f"folder:{folder}", "--test")
    assert code == 2
    assert "trained on all classes, on 33 of the 33 samples" in err


# --- the seal -------------------------------------------------------------------------------------


def cut(store, out, *kinds):
    """Copy a store without lines of these kinds, as a bench leaves it that was killed before."""
    shutil.copytree(store, out)
    for ledger in out.glob("studies/*/ledger.jsonl"):
        kept = [
            one for one in ledger.read_text().splitlines() if json.loads(one)["kind"] not in kinds
        ]
        ledger.write_text("".join(f"{one}\n" for one in kept))
    return out


@pytest.mark.forgery(
    "the command",
    what="a model of all classes asked for before the study ended: {}",
)
@pytest.mark.parametrize(
    "kinds", [("test",), ("seal", "test"), ("reproduction", "seal", "test")], ids="-".join
)
def test_before_the_study_has_ended_the_test_half_stays_sealed(
    assay, benched, tmp_path, monkeypatch, kinds
):
    store = cut(benched[1], tmp_path / "store", *kinds)
    monkeypatch.setattr(SealedTest, "open", lambda *given: pytest.fail("the seal was opened"))
    code, out, err = final(assay, (benched[0], store), tmp_path / "m")
    assert (code, out) == (2, "")
    assert "until then the test half stays sealed" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_a_ledger_that_was_altered_opens_nothing(assay, benched, tmp_path):
    store = Path(shutil.copytree(benched[1], tmp_path / "store"))
    for ledger in store.glob("studies/*/ledger.jsonl"):
        ledger.write_text(ledger.read_text().replace('"reproduction":1', '"reproduction":2', 1))
    code, out, err = final(assay, (benched[0], store), tmp_path / "m")
    assert (code, out) == (2, "")
    assert "was altered" in err


def rewrite(file, out, change):
    with np.load(file) as found:
        arrays = change(dict(found))
    np.savez(out, **arrays)
    return out


def test_another_test_half_is_not_trained_on_in_the_name_of_the_study(assay, benched, tmp_path):
    def change(arrays):
        arrays["z"][-1] += 1
        return arrays

    file = rewrite(benched[0], tmp_path / "f.npz", change)
    code, out, err = final(assay, (file, benched[1]), tmp_path / "m")
    assert (code, out) == (2, "")
    assert "is not the one that the study was scored on" in err


# --- no score of its own --------------------------------------------------------------------------


@pytest.mark.parametrize("test", [[], ["--test"]])
def test_it_is_never_scored_on_what_it_was_trained_on(assay, benched, model, test):
    words = ["evaluate", model, "--data", f"features:{benched[0]}", *test]
    code, out, err = assay(*words)
    assert (code, out) == (2, "")
    assert f"on 40 of the 40 samples of the {'test' if test else 'trainval'} half" in err
    assert err.count("\n") == 1


def without_last(arrays):
    return {name: array[:-1] for name, array in arrays.items()}


def renamed(arrays):
    return arrays | {"y": np.array([f"bird {99 - label}" for label in arrays["y"]])}


@pytest.mark.forgery(
    "the command",
    what="a model of all classes scored on its own data, disguised: {}",
)
@pytest.mark.parametrize("change", [without_last, renamed])
def test_dropped_samples_and_other_names_hide_nothing(assay, benched, model, tmp_path, change):
    file = rewrite(benched[0], tmp_path / "f.npz", change)
    for test in ([], ["--test"]):
        code, out, err = assay("evaluate", model, "--data", f"features:{file}", *test)
        assert (code, out) == (2, "")
        assert "was trained on all classes" in err


@pytest.mark.forgery("the command", what="the list of samples of a model of all classes: {}")
@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_without_its_list_of_samples_it_is_not_scored(assay, model, tmp_path, damage):
    copy = shutil.copytree(model, tmp_path / "copy")
    path = copy / "trained_on.sha256"
    path.unlink() if damage == "removed" else path.write_text("")
    other = make_features(tmp_path / "other.npz", seed=5)
    code, out, err = assay("evaluate", copy, "--data", f"features:{other}")
    assert (code, out) == (2, "")
    assert "trained_on.sha256 is not the list of samples" in err


def test_other_data_are_scored(assay, model, tmp_path):
    other = make_features(tmp_path / "other.npz", seed=5)
    code, out, err = assay("evaluate", model, "--data", f"features:{other}", "--test", "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["mean"]["map_at_r"] <= 1


# --- vectors of what it was trained on ------------------------------------------------------------


def embed_again(assay, benched, model, out):
    """Embed the data of the bench by a model of it; return what is printed on stdout."""
    code, shown, err = assay("embed", model, f"features:{benched[0]}", "--out", out)
    assert code == 0, err
    return shown


def test_vectors_of_a_final_model_are_neither_benched_nor_scored(assay, benched, model, tmp_path):
    file = tmp_path / "seen.npz"
    assert "next:" not in embed_again(assay, benched, model, file)
    assert load(f"features:{file}").trained_on.all()
    for words in ([], ["--data", f"features:{benched[0]}", "--test"]):
        code, out, err = assay("evaluate", file, *words)
        assert (code, out) == (2, "")
        assert "the model behind these vectors was trained on all" in err
    bench = ["bench", "--data", f"features:{file}", "--methods", "pretrained", "--dry-run"]
    code, out, err = assay(*bench)
    assert (code, out) == (2, "")
    seen = "the model behind the vectors was trained on 40 of the 40 samples of the test half"
    assert f"{seen}, so a score would say nothing of unseen classes" in err
    assert assay(*bench, "--allow-leaks")[0] == 0


def test_vectors_of_a_model_of_a_fold_say_which_samples_it_was_trained_on(assay, benched, tmp_path):
    store = shutil.copytree(benched[1], tmp_path / "store")  # its ledger gets a look
    (place,) = (store / "models").glob("*-triplet-*")
    file = tmp_path / "seen.npz"
    assert "next: assay bench" in embed_again(assay, benched, place, file)
    dataset, card = load(f"features:{file}"), ModelCard.read(place / "model.json")
    names = np.array(dataset.class_names)[dataset.labels]
    assert (dataset.trained_on == np.isin(names, card.classes)).all()
    assert dataset.pretrained_on == f"{len(card.classes)} classes of features:f.npz"
    said = "the model behind the vectors was trained on 20 of the 40 samples of trainval"
    assert find_flaws(dataset) == Flaws((said,), (), None)
    code, _, err = assay("evaluate", file)
    assert code == 0
    assert "was trained on 20 of the 80 samples; their scores are not those of unseen" in err


def test_vectors_of_other_data_by_a_final_model_are_benched(assay, model, tmp_path):
    other = make_features(tmp_path / "other.npz", seed=5)
    assert "next: assay bench" in embed_again(assay, (other,), model, tmp_path / "z.npz")
    assert load(f"features:{tmp_path / 'z.npz'}").trained_on is None


# --- which method and which options ---------------------------------------------------------------


def test_without_a_method_the_answer_of_the_bench_is_trained(assay, benched, tmp_path):
    (comparison,) = comparisons(Store(benched[1]))
    method, why, settled = method_to_train(comparison)
    code, out, err = final(assay, benched, tmp_path / "m", "--json", method=None)
    assert code == 0, err
    assert json.loads(out)["method"] == method
    assert f"note: training {method}, as the bench answers: {why}" in err
    assert ("the bench has not settled on" in err) == (not settled)


def test_a_settled_answer_names_its_method_and_an_open_one_is_said_to_be_open(benched):
    (comparison,) = comparisons(Store(benched[1]))
    best = comparison.by_mean("separated")
    trained = [name for name in best if name in METHODS]
    method, _, settled = method_to_train(comparison)
    assert method in trained
    only = replace(
        comparison, records=tuple(one for one in comparison.records if one.method in METHODS)
    )
    assert method_to_train(only)[0] == trained[0]
    assert isinstance(settled, bool)


BAD = {
    "--set": (["--set", "dim=4"], "--set: with --final the study"),
    "--param": (["--param", "margin=0.1"], "--param: with --final"),
    "--fold": (["--fold", "1", "--seed", "2"], "--fold and --seed: with --final"),
}


@pytest.mark.parametrize("name", BAD)
def test_options_that_the_study_has_settled_are_refused(assay, benched, tmp_path, name):
    words, message = BAD[name]
    code, out, err = final(assay, benched, tmp_path / "m", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_method_without_a_study_is_refused_with_those_that_have_one(assay, benched, tmp_path):
    for method in ("margin", "as_is"):
        code, _, err = final(assay, benched, tmp_path / "m", method=method)
        assert code == 2
        assert "it has those of contrastive, triplet" in err


def test_data_of_no_study_are_refused(assay, benched, tmp_path):
    other = make_features(tmp_path / "other.npz", seed=5)
    code, _, err = final(assay, (other, benched[1]), tmp_path / "m")
    assert code == 2
    assert "no study" in err
    assert "there are studies on features:f.npz" in err


def test_without_final_a_method_is_needed(assay, benched, tmp_path):
    code, _, err = assay("train", "--data", f"features:{benched[0]}", "--out", tmp_path / "m")
    assert code == 2
    assert "--method: name one of `assay list methods`" in err


def test_a_study_whose_runs_were_best_untrained_is_refused(benched, tmp_path):
    finished = newest_of(
        finished_studies(Store(benched[1]), load(f"features:{benched[0]}")), "triplet"
    )
    record = finished.record
    stale = tuple(replace(entry, best_epoch=0) for entry in record.reproductions)
    with pytest.raises(ValueError, match="best before any training"):
        train_final(replace(finished, record=replace(record, reproductions=stale)), tmp_path / "m")


def test_training_on_all_classes_changes_nothing_in_the_store(benched, model):
    ledger = next((benched[1] / "studies").glob("*/ledger.jsonl"))
    assert [line.kind for line in read(ledger)][-1] == "test"
    assert splits.of(load(f"features:{benched[0]}"), protocols["quick"])
