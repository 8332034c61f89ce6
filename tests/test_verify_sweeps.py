"""Forged points of sweeps: a point that was really run, and differs from its base in more than the
value that it is called by.
"""

import shutil
from dataclasses import replace

import pytest

from again import retest
from assay.engines import InlineEngine
from assay.protocols import customise, protocols
from assay.records.origin import GivenParameters, SelectedBy, SweepPoint
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import write_report
from assay.study import Execution, design_bench, run_sweep, sweep
from assay.verify import verify
from forgery import announce, forge
from miniature import MINI, make_features

INLINE = Execution(InlineEngine())
SMALL = customise(protocols["quick"], MINI)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"features:{make_features(tmp_path_factory.mktemp('swept') / 'mini.npz')}"


@pytest.fixture(scope="module")
def swept(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "store"
    run_sweep(data, ["triplet"], SMALL, "dim=4,8", out, INLINE)
    return out


@pytest.fixture
def store(swept, tmp_path):
    return Store(shutil.copytree(swept, tmp_path / "store"))


def problems(store):
    return [f"{one.what}: {one.problem}" for one in verify(store) if one.problem]


def incomplete(store):
    return [f"{one.what}: {one.note}" for one in verify(store) if one.incomplete]


def points(store):
    return {
        record.announced.sweep.value: record
        for record in study_records(store)
        if record.announced.sweep is not None
    }


HONEST = {
    "a part of a field": ("features", "optimiser.lr=0.01,0.02"),
    "a batch by its size": ("features", "batch=16,32"),
    "a batch of any size": ("features", "batch=6,7"),
    "auto": ("features", "patience=auto,1"),
    "a setting for images, of vectors": ("features", "augment.flip=0,0.5"),
    "what does not train": ("folder", "frozen=auto,nothing"),
    "weights": ("folder", "weights=none,pretrained"),
    "the trunk": ("folder", "trunk=auto,lite0"),
    "the size of images": ("folder", "size=auto,32"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_sweep_passes(data, mini_folder, tmp_path, name):
    """Whatever follows from the value by `auto`: another learning rate, weights, a frozen trunk."""
    kind, vary = HONEST[name]
    own = {"what does not train": "trunk=lite0", "weights": "trunk=lite0"}.get(name, "trunk=auto")
    left_open = ["optimiser.lr=auto", "patience=auto", "reproductions=1", "trials=1", "size=32"]
    small = customise(SMALL, [*left_open, own])
    where = data if kind == "features" else f"folder:{mini_folder}"
    run_sweep(where, ["triplet"], small, vary, tmp_path / "store", INLINE)
    store = Store(tmp_path / "store")
    write_report(store)
    assert problems(store) == incomplete(store) == []


REALLY_RUN = {
    "a learning rate": "optimiser.lr=0.5",
    "the patience": "patience=1",
    "the seed": "seed=5",
}


@pytest.mark.forgery("verify", what="a point of a sweep run with {} of its own")
@pytest.mark.parametrize("name", REALLY_RUN)
def test_a_point_that_was_run_with_another_setting_too_is_found(data, tmp_path, monkeypatch, name):
    def at_four(protocol, settings):
        more = [REALLY_RUN[name]] if "dim=4" in settings else []
        return customise(protocol, [*settings, *more])

    monkeypatch.setattr(sweep, "customise", at_four)
    run_sweep(data, ["triplet"], SMALL, "dim=4,8", tmp_path / "store", INLINE)
    setting = REALLY_RUN[name].partition("=")[0]
    words = f"has another {setting} than this point, and only dim may differ"
    assert any(words in problem for problem in problems(Store(tmp_path / "store")))


RELABELLED = {
    "the width called auto": ("dim", "auto", "--set dim=auto"),
    "the width called weights": ("weights", "imagenet", "does not have weights=imagenet"),
    "the width called random weights": ("weights", "none", "has another dim than this point"),
    "the width called a learning rate": ("optimiser.lr", "auto", "does not have optimiser.lr=auto"),
}


@pytest.mark.forgery("verify", what="a point of a sweep relabelled: {}")
@pytest.mark.parametrize("name", RELABELLED)
def test_a_point_that_is_called_otherwise_is_found(store, name):
    field, value, words = RELABELLED[name]
    label = {"field": field, "value": value, "values": [value]}
    four = points(store)["4"].key
    forge(store, lambda lines: lines[0][1]["sweep"].update(label), study=four)
    assert any(words in problem for problem in problems(store)), problems(store)


@pytest.mark.forgery("verify --complete", what="a point of a sweep removed with its bench")
def test_a_value_of_a_sweep_that_is_not_there_is_incomplete(store):
    eight = points(store)["8"]
    shutil.rmtree(store.study(eight.key))
    (bench,) = [
        path for path in (store.root / "benches").iterdir() if eight.key in path.read_text()
    ]
    bench.unlink()
    write_report(store)
    words = "sweep over dim: announced and absent: dim=8; run the same command again to continue"
    assert [one for one in incomplete(store) if one.endswith(words)]


@pytest.mark.forgery(
    "verify --data", what="a size of a sweep relabelled auto, under a protocol of one's own"
)
def test_auto_at_a_point_is_resolved_again_with_the_data(mini_folder, tmp_path):
    """Which size is `auto` depends on the trunk; the announcement names no published protocol."""
    own = replace(customise(SMALL, ["size=32"]), name="mine.v1")
    (design,) = design_bench(f"folder:{mini_folder}", ["triplet"], own, "cpu", ())
    point = SweepPoint("size", "auto", ("auto",), "0" * 64, "mine.v1")
    given = GivenParameters(design.first, SelectedBy(point.base))
    forged = replace(design, point=point, given=given)
    store = announce(Store.create(tmp_path / "store"), [forged])
    found = [one.problem for one in retest(store, InlineEngine(), f"folder:{mini_folder}")]
    assert any("protocol.resolved.size is 32 in the ledger and 48 here" in one for one in found)
