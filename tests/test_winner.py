"""`assay index STORE --best`: the model that the answer of a bench names."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay as package
from assay.errors import BadInput
from assay.index import winner as module
from assay.index.winner import find_winner
from assay.protocols import customise, protocols
from assay.records.store import Store
from assay.records.study import study_records
from assay.tables import Comparison, answer, comparisons, method_to_train
from miniature import MINI, make_features, make_folder
from records import simulate

SMALL = customise(
    protocols["quick"], (*MINI, "iterations=10", "epochs=4", "optimiser.lr=0.03", "reproductions=3")
)

TWIN = """
from dataclasses import replace

from assay.methods import methods

if "triplet_again" not in methods:
    methods.add(replace(methods["triplet"], name="triplet_again"))
"""


def make_noisy_features(path: Path) -> Path:
    """Write vectors whose first numbers tell the classes apart, beside many that tell nothing."""
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(16), 5)
    telling = draw.normal(size=(16, 4))[y] + 0.3 * draw.normal(size=(80, 4))
    np.savez(path, z=np.hstack([telling, 2 * draw.normal(size=(80, 8))]), y=y)
    return path


def bench(data, methods, store, protocol=SMALL, **options):
    package.bench(f"features:{data}", methods, protocol, store, engine="inline", **options)
    return store


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    """A store in which one method is shown to be better than the vectors as they are."""
    root = tmp_path_factory.mktemp("clear")
    return bench(make_noisy_features(root / "f.npz"), ["triplet"], root / "store")


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A store of a method and its copy under another name."""
    root = tmp_path_factory.mktemp("twins")
    (root / "again.py").write_text(TWIN)
    file, mine = make_noisy_features(root / "f.npz"), [str(root / "again.py")]
    return bench(file, ["triplet", "triplet_again"], root / "store", imports=mine)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A store in which no method is better than the vectors as they are."""
    root = tmp_path_factory.mktemp("kept")
    return bench(make_features(root / "f.npz", noise=1.5), ["triplet"], root / "store")


@pytest.fixture
def copy(clear, tmp_path):
    """A copy of a store, to be altered."""
    return Path(shutil.copytree(clear, tmp_path / "store"))


def refusal(store, **options):
    with pytest.raises(BadInput) as found:
        find_winner(store, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


def record_of(store, method):
    return next(one for one in study_records(Store(store)) if one.method == method)


# --- which method ---------------------------------------------------------------------------------


def test_a_clear_winner_is_the_method_of_the_answer_and_needs_no_warning(clear):
    (comparison,) = comparisons(Store(clear))
    found = find_winner(clear)
    assert (found.method, found.why, found.settled) == method_to_train(comparison)
    assert found.method == "triplet" and found.settled and found.warning is None
    assert found.why.startswith("Use triplet: +")
    assert package.load(found.model).embed(np.ones((2, 12), dtype=np.float32)).shape[0] == 2


def test_a_method_and_its_copy_are_said_not_to_be_told_apart(twins):
    found = find_winner(twins)
    pair = {"triplet", "triplet_again"}
    assert found.method in pair and not found.settled
    (other,) = pair - {found.method}
    assert f"undecided: the bench does not tell {found.method} (" in found.warning
    assert f"from {other} (" in found.warning
    (folder,) = (one for one in (twins / "models").iterdir() if f"-{other}-" in one.name)
    assert found.warning.endswith(f"such as {folder}")


def test_where_the_answer_is_to_keep_what_there_is_the_model_leaves_vectors_alone(kept):
    found = find_winner(kept)
    assert found.why.startswith("Keep what you have: ")
    assert (found.method, found.settled, found.warning) == ("as_is", True, None)
    vectors = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(package.load(found.model).embed(vectors), unit, atol=1e-6)
    assert "The model is not trained" in found.note and "takes vectors" in found.note


def compare(scores, spread):
    draw = np.random.default_rng(0)

    def rows(mean):
        noise = draw.normal(size=(4, 1))
        return (mean + spread * (noise - noise.mean()) / noise.std()).tolist()

    return Comparison(
        tuple(
            simulate(name, [mean] if name == "as_is" else rows(mean))
            for name, mean in scores.items()
        )
    )


def chosen_from(comparison, monkeypatch):
    """Return the winner of a comparison of studies without runs."""
    monkeypatch.setattr(module, "comparisons", lambda store: [comparison])
    monkeypatch.setattr(module, "study_records", lambda store: comparison.records)
    monkeypatch.setattr(module, "_check_model", lambda folder, record: False)
    monkeypatch.setattr(module, "_note", lambda *given, takes_vectors: "")
    return find_winner(Path("store"))


CASES = {
    "better": ({"as_is": 0.3, "a": 0.4}, 0.005, "a", True, ()),
    "better, one of two": ({"as_is": 0.3, "a": 0.4, "b": 0.35}, 0.002, "a", True, ()),
    "better, with a rival": ({"as_is": 0.3, "a": 0.4, "b": 0.401}, 0.01, "b", False, ("a",)),
    "may be better": ({"as_is": 0.4, "a": 0.41}, 0.02, "a", False, ("as_is",)),
    "two may be better": (
        {"as_is": 0.4, "a": 0.41, "b": 0.409},
        0.02,
        "a",
        False,
        ("as_is", "b"),
    ),
    "may be better, and looks worse": ({"as_is": 0.4, "a": 0.39}, 0.02, "as_is", False, ("a",)),
    "worse": ({"as_is": 0.4, "a": 0.3}, 0.005, "as_is", True, ()),
    "no matter": ({"as_is": 0.4, "a": 0.401}, 0.0005, "as_is", True, ()),
    "nothing to compare with": ({"a": 0.4}, 0.005, "a", False, ()),
    "no baseline, better": ({"a": 0.4, "b": 0.3}, 0.005, "a", True, ()),
    "no baseline, undecided": ({"a": 0.4, "b": 0.401}, 0.02, "b", False, ("a",)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_winner_follows_from_the_answer(case, tmp_path, monkeypatch):
    scores, spread, method, settled, rivals = CASES[case]
    comparison = compare(scores, spread)
    monkeypatch.chdir(tmp_path)
    Store.create(Path("store"))
    found = chosen_from(comparison, monkeypatch)
    assert (found.method, found.settled) == (method, settled)
    said = answer(comparison)
    assert found.why == said.sentence
    if said.use is not None:
        assert (found.method, found.why, found.settled) == method_to_train(comparison)
    assert (found.warning is None) == settled
    if rivals:
        apart = found.warning.partition(" from ")[2].partition(" by test")[0]
        assert [word for word in scores if f"{word} (" in apart] == sorted(
            rivals, key=[*scores].index
        )
    elif not settled:
        assert "nothing to compare a with" in found.warning


# --- which model ----------------------------------------------------------------------------------


def test_the_model_is_the_best_by_validation_and_its_test_score_has_no_part(clear, copy):
    record = record_of(clear, "triplet")
    found = find_winner(clear)
    card = json.loads((found.model / "model.json").read_text())
    assert (card["study"], card["method"]) == (record.key, "triplet")
    runs = {entry.key: entry for entry in record.reproductions}
    means = {}
    for entry in record.reproductions:
        means.setdefault(entry.reproduction, []).append(entry.validation["map_at_r"])
    best = max(means, key=lambda number: np.mean(means[number]))
    assert runs[card["run"]].reproduction == best
    assert runs[card["run"]].validation["map_at_r"] == max(means[best])
    assert f"{100 * max(means[best]):.1f}" in found.note
    worst = replace(
        record,
        tests=tuple(
            replace(test, separated={**test.separated, "map_at_r": 0.01 * number})
            for number, test in enumerate(record.tests)
        ),
    )
    assert module.best_run(worst).key == card["run"]


def test_a_model_of_images_takes_images(tmp_path):
    folder = make_folder(tmp_path / "mini")
    once = customise(protocols["quick"], (*MINI, "reproductions=1"))
    package.bench(f"folder:{folder}", ["triplet"], once, tmp_path / "store", engine="inline")
    found = find_winner(tmp_path / "store", data=f"folder:{folder}")
    (other,) = {"triplet", "as_is"} - {found.method}
    assert not found.settled
    assert f"from {other} (" in found.warning
    assert "takes vectors" not in found.note
    assert len(package.load(found.model).embed(sorted(folder.rglob("*.png"))[:2])) == 2


def alter(name):
    def change(folder):
        card = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(card | {name: "0" * 64}))

    return change


def swap_weights(folder):
    other = next(one for one in folder.parent.iterdir() if one != folder)
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")


def swap_all(folder):
    other = next(one for one in folder.parent.iterdir() if one != folder)
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


DAMAGE = {
    "removed": (shutil.rmtree, "is missing"),
    "all models removed": (lambda folder: shutil.rmtree(folder.parent), "is missing"),
    "without its card": (lambda folder: (folder / "model.json").unlink(), "model.json"),
    "without its weights": (lambda folder: (folder / "model.safetensors").unlink(), "No such file"),
    "a card that is no JSON": (
        lambda folder: (folder / "model.json").write_text("{"),
        "model.json",
    ),
    "another study": (alter("study"), "another study"),
    "another run": (alter("run"), "another run"),
    "another hash": (alter("sha256"), "another sha256"),
    "other weights": (swap_weights, "another sha256"),
    "the model of another study": (swap_all, "another study"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_model_that_is_not_as_its_study_wrote_it_is_refused(copy, how):
    change, message = DAMAGE[how]
    change(find_winner(copy).model)
    found = refusal(copy)
    assert message in found
    assert found.endswith("run the same `assay bench` again: it writes the model from its run")


def test_the_remedy_for_a_lost_model_is_right(clear, copy):
    before = find_winner(copy)
    shutil.rmtree(copy / "models")
    refusal(copy)
    bench(clear.parent / "f.npz", ["triplet"], copy)
    assert find_winner(copy) == before


# --- which store and which table ------------------------------------------------------------------


def cut(store, method, *kinds):
    """Remove lines of these kinds from a study, as a bench leaves it that was killed before."""
    ledger = store / "studies" / record_of(store, method).key / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("".join(f"{one}\n" for one in lines if json.loads(one)["kind"] not in kinds))


@pytest.mark.parametrize("method", ["triplet", "as_is"])
def test_an_unfinished_bench_has_no_winner(copy, method):
    cut(copy, method, "test")
    found = refusal(copy)
    assert f"is not finished: {method} has no test scores yet" in found
    assert "Run the same `assay bench` to its end" in found


def test_a_study_that_was_announced_and_never_begun_is_waited_for(copy):
    shutil.rmtree(copy / "studies" / record_of(copy, "triplet").key)
    assert "is not finished: triplet has no test scores yet" in refusal(copy)


def test_a_store_without_a_trained_method_has_no_winner(tmp_path):
    file = make_features(tmp_path / "f.npz")
    store = bench(file, ["as_is"], tmp_path / "store")
    assert "has no test scores of a trained method (as_is)" in refusal(store)


def test_what_is_no_store_or_has_no_bench_is_refused(tmp_path):
    assert "is not a run store" in refusal(tmp_path)
    assert "`assay bench --out" in refusal(tmp_path / "nowhere")
    Store.create(tmp_path / "new")
    assert "has no bench so far" in refusal(tmp_path / "new")


def test_of_several_tables_one_is_chosen_by_its_data_or_its_name(copy, tmp_path):
    other = make_features(tmp_path / "other.npz", noise=1.5)
    bench(other, ["triplet"], copy)
    found = refusal(copy)
    assert "has 2 tables, each with its own answer; choose one with --data: " in found
    assert "(features:f.npz under quick" in found and "(features:other.npz under quick" in found
    assert find_winner(copy, data="features:f.npz").method == "triplet"
    for name in ("features:other.npz", f"features:{other}"):
        assert find_winner(copy, data=name).method == "as_is"
    assert "has no bench on it; choose one of features-f-npz" in refusal(copy, data="glyphs")
    assert "has no bench on it" in refusal(copy, data="other.npz")
    bench(other, ["triplet"], copy, customise(SMALL, ["dim=4"]))
    assert "has 2 tables" in refusal(copy, data="features:other.npz")
    slugs = [one.slug for one in comparisons(Store(copy)) if one.data == "features:other.npz"]
    assert {find_winner(copy, data=slug).method for slug in slugs} == {"as_is"}
