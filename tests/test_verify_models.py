"""`assay verify` names a model folder that a finished study should have, and how to write it."""

import shutil

import pytest

import assay as package
from assay.protocols import customise, protocols
from assay.records.merge import merge
from assay.records.store import Store
from assay.records.study import study_records
from assay.verify import verify
from miniature import MINI, bench_command, make_features

PROTOCOL = customise(protocols["quick"], MINI)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("verify_models")
    make_features(root / "mini.npz")
    bench(root)
    return root


@pytest.fixture
def place(made, tmp_path):
    return shutil.copytree(made, tmp_path / "place")


def bench(root):
    package.bench(
        f"features:{root / 'mini.npz'}", ["triplet"], PROTOCOL, root / "store", engine="inline"
    )


def notes(root):
    """Return what is incomplete in a store in which nothing is wrong."""
    found = list(verify(Store(root)))
    assert not [one for one in found if one.problem]
    return [f"{one.what}: {one.note}" for one in found if one.incomplete]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def model(root):
    return next((root / "store" / "models").glob("*-triplet-*"))


@pytest.mark.forgery("verify --complete", what="the model of a study removed")
@pytest.mark.parametrize("what", ["one", "all"])
def test_a_model_that_is_missing_is_incomplete_and_the_same_command_writes_it(assay, place, what):
    store, before, name = place / "store", contents(model(place)), model(place).name
    shutil.rmtree(model(place) if what == "one" else store / "models")
    missing = f"models/{name}: missing; run the same command again: it writes the model from its"
    assert [one for one in notes(store) if one.startswith(missing)]
    assert len(notes(store)) == (1 if what == "one" else 2)
    code, out, _ = assay("verify", store)
    assert code == 0 and f"INCOMPLETE models/{name}: missing" in out
    assert assay("verify", store, "--complete")[0] == 1
    bench(place)
    assert notes(store) == [] and contents(model(place)) == before


def test_a_study_under_way_or_a_merged_store_lacks_no_model(place):
    store = Store(place / "store")
    merge([store.root], place / "merged")
    assert notes(place / "merged") == []
    record = next(one for one in study_records(store) if one.method == "triplet")
    shutil.rmtree(model(place))
    shutil.rmtree(store.root / "report")
    ledger = store.study(record.key) / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:2]))
    (store.study(record.key) / "study.json").unlink()
    assert not [one for one in notes(store.root) if one.startswith("models/")]


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_damaged_model_is_written_again_once_its_folder_is_removed(assay, place, name):
    store, before = place / "store", contents(model(place))
    (model(place) / name).write_bytes(b"x")
    code, out, _ = assay("verify", store)
    (wrong,) = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert code == 1 and f"{name} cannot be read" in wrong
    assert wrong.endswith(
        "; remove this folder and run the same command again: it writes the model from its run"
    )
    assert "restore" not in wrong and "assay verify" not in wrong
    shutil.rmtree(model(place))
    bench(place)
    assert notes(store) == [] and contents(model(place)) == before


def test_a_bench_says_of_a_damaged_model_how_it_is_written_again(assay, place):
    """It stays as it is: it may be what somebody altered."""
    (model(place) / "model.json").write_text("x\n")
    command = bench_command(f"features:{place / 'mini.npz'}", place / "store", "triplet")
    code, _, err = assay(*command[3:])
    (line,) = [one for one in err.splitlines() if "model.json" in one]
    assert code == 0 and "triplet: " in line and "cannot be read" in line
    assert line.endswith(
        "; remove this folder and run the same command again: it writes the model from its run"
    )
    assert (model(place) / "model.json").read_text() == "x\n"


def test_verify_does_not_send_its_reader_to_verify(assay, place):
    next(place.glob("store/studies/*/ledger.jsonl")).write_text("x\n")
    shutil.copytree(model(place), place / "store" / "models" / "best")
    (place / "store" / "models" / "best" / "model.safetensors").write_bytes(b"x")
    next(place.glob("store/benches/*.json")).write_text("x\n")
    code, out, _ = assay("verify", place / "store")
    assert code == 1 and "; restore the file from a copy" in out
    assert "`assay verify`" not in out
