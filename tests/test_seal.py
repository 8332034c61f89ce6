"""The seal, for every protocol and every command: nothing that tunes, stops or selects depends on
the test half.

The tables below name all commands. A protocol or a command that takes data and is in none of the
tables fails a test.
"""

import json

import pytest
import typer.main

from again import rerun
from assay.cli.app import app
from assay.engines import InlineEngine
from assay.heads import HeadShape
from assay.methods import methods, samplers
from assay.protocols import protocols
from assay.records.ledger import completing_line
from assay.records.run import TEST_CONTENTS
from assay.records.store import Store
from assay.records.study import study_records
from assay.samplers.sampler import bank_of
from miniature import MINI, make_folder, snapshot
from official import MINIATURES, shrink
from options import set_options
from sealed import CHANGES, EVERY_CHANGE, Spy, offer_changed

SMALL = (
    "trunk=conv", "weights=none", "size=16", "stored=18", "dim=4", "folds=2",
    "batch.embedding=3x2", "batch.classification=3x2", "iterations=2", "epochs=2",
    "validate_every=1", "startup=1", "reproductions=1",
)  # fmt: skip
"""Settings that make a miniature of any protocol; of trials and searches it gets two at most."""

PUBLISHED = {
    "reality-check/cub.v1": "cub",
    "reality-check/cars.v1": "cars",
    "reality-check/sop.v1": "sop",
    "reality-check/cub-256.v1": "cub",
}
"""Protocols whose parameters were published, with their data sets."""


def settings(protocol):
    fewer = [
        f"{name}=2" for name in ("trials", "searches") if getattr(protocols[protocol], name) > 1
    ]
    return ["--protocol", protocol, *set_options((*SMALL, *fewer))]


# --- ways in --------------------------------------------------------------------------------------


INLINE = ("--engine", "inline")
"""Tasks run in this process, where a spy sees them."""


def study(run, command, data, out, protocol, *more, methods="triplet"):
    words = ("--methods", methods, "--out", out / "store")
    run(command, "--data", data, *words, *more, *settings(protocol))
    return decided(out / "store"), scores(out / "store")


def bench(run, data, out, protocol, *more):
    return study(run, "bench", data, out, protocol, *(more or INLINE))


def bench_keeping_all_weights(run, data, out, protocol):
    found = bench(run, data, out, protocol, *INLINE, "--keep-weights", "all")
    assert all(record.peek for record in study_records(Store(out / "store")))
    return found


def bench_on_ray(run, data, out, protocol):
    return bench(run, data, out, protocol, "--engine", "ray")


def bench_with_every_planner(run, data, out, protocol):
    """Every sampler that looks where the training samples lie."""
    planners = [name for name, sampler in samplers.items() if bank_of(sampler)]
    found = [
        bench(run, data, out / name, protocol, *INLINE, "--set", f"sampler={name}")
        for name in planners
    ]
    assert found
    return [list(part) for part in zip(*found, strict=True)]


def bench_of_more_than_losses(run, data, out, protocol):
    """Every method that brings more than a loss with a miner."""
    names = [name for name, method in methods.items() if brings_more(method)]
    assert names
    return study(run, "bench", data, out, protocol, *INLINE, methods=",".join(names))


def brings_more(method):
    if method.loss is None:
        return not method.baseline
    loss = method.loss()
    own = loss.refreshes or loss.remembers or loss.head_first or loss.compares == "seen"
    return bool(method.sampler or own or loss.head(8) != HeadShape((8,)))


def bench_without_classes(run, data, out, protocol):
    return bench(run, data, out, protocol, *INLINE, "--set", "supervision=images")


def sweep(run, data, out, protocol):
    return study(run, "sweep", data, out, protocol, *INLINE, "--vary", "dim=3,4")


def reproduce(run, data, out, protocol):
    return study(run, "reproduce", data, out, protocol, *INLINE)


def train(run, data, out, protocol):
    run("train", "--data", data, "--method", "triplet", "--out", out / "model", *settings(protocol))
    return {path.name: path.read_bytes() for path in (out / "model").iterdir()}, None


def train_final(run, data, out, protocol):
    """Train on all classes, once the study has ended: the model is another one, and nothing of the
    store. At the settings of `MINI` a run keeps a trained checkpoint; there is nothing to train
    otherwise.
    """
    words = ["--protocol", protocol, "--methods", "triplet", "--out", out / "store", *INLINE]
    words += set_options((*MINI, "reproductions=1"))
    run("bench", "--data", data, *words)
    final = ("--final", out / "store", "--method", "triplet", "--out", out / "final")
    run("train", "--data", data, *final)
    return decided(out / "store"), (out / "final" / "model.safetensors").read_bytes()


def evaluate(run, data, out, protocol):
    train(run, data, out, protocol)
    found = json.loads(
        run(
            "evaluate",
            out / "model",
            "--data",
            data,
            "--json",
            "--protocol",
            protocol,
            "--set",
            "folds=2",
        )
    )
    return {name: value for name, value in found.items() if name not in ("what", "data")}, None


def calibrate(run, data, out, protocol):
    train(run, data, out, protocol)
    run("calibrate", out / "model", "--data", data, *settings(protocol))
    found = json.loads((out / "model" / "calibration.json").read_text())
    del found["of"]["data"], found["sha256"]
    return found, None


def verify(run, data, out, protocol):
    """Repeat runs of a store that was made with another test half, which is found."""
    kind, _, path = data.partition(":")
    bench(run, f"{kind.rpartition('-')[2]}:{path}", out, protocol)
    words = ("--rerun", 3, "--seed", 0, "--data", data, "--json")
    other = kind.rpartition("-")[0] not in ("", "unchanged")
    found = json.loads(run("verify", out / "store", *INLINE, *words, code=int(other)))
    assert bool(found["problems"]) == other
    repeated = sorted(found["rerun"]["runs"], key=lambda one: one["run"])
    assert len(repeated) == min(3, len(list((out / "store").glob("runs/*/*/result.json"))))
    assert {one["outcome"] for one in repeated} == {"same bytes"}
    return repeated, None


def baselines(run, data, out, protocol):
    found = json.loads(
        run(
            "baselines",
            "--data",
            data,
            "--trunks",
            "conv",
            "--dim",
            4,
            "--json",
            *settings(protocol),
        )
    )["trunks"]
    assert all(trunk["scores"] for trunk in found)
    return found, None


WAYS = {
    "bench": bench,
    "bench --keep-weights all": bench_keeping_all_weights,
    "bench --engine ray": bench_on_ray,
    "bench --set sampler=": bench_with_every_planner,
    "bench --methods of more than a loss": bench_of_more_than_losses,
    "bench --set supervision=images": bench_without_classes,
    "sweep": sweep,
    "reproduce": reproduce,
    "train": train,
    "train --final": train_final,
    "evaluate": evaluate,
    "calibrate": calibrate,
    "verify --rerun": verify,
    "baselines": baselines,
}
"""Every command that takes data and trains, tunes, chooses or scores, by its words."""

WITHOUT_A_STUDY = ("train", "evaluate", "calibrate", "baselines")
"""Ways that never open the test half, as `verify --rerun` does not."""

AFTER_A_STUDY = ("verify --rerun", "train --final")
"""Ways that open the test half of a study whose seal is open, by its receipt."""

HAND_OUT_NOTHING = {
    "data show": "counts and compares what is there, before anything is trained",
    "data prepare": "packs both halves and hands out neither",
    "data splits": "lists the names of the samples",
    "index": "chooses one of the tables of a store by their name, and reads no sample of them",
}
"""Commands that take data but decide nothing by it, and why they may see all of it."""

SLOW_WAYS = ("bench --engine ray", "bench --keep-weights all")
ONCE = (
    "train --final",
    "bench --set sampler=",
    "bench --methods of more than a loss",
    "bench --set supervision=images",
)
"""Ways that are the same under every protocol."""

USUAL = {way: "reality-check/cub.v1" if way == "reproduce" else "quick.v2" for way in WAYS}


def of_all(quick):
    """Return every way with every protocol that it works with, marked slow unless `quick` says
    otherwise.
    """
    pairs = [
        (way, protocol)
        for protocol in protocols
        for way in WAYS
        if (way != "reproduce" or protocol in PUBLISHED)
        and (way not in ONCE or protocol == USUAL[way])
    ]
    return [pytest.param(*pair, marks=() if quick(*pair) else pytest.mark.slow) for pair in pairs]


def commands(group, above=""):
    """Yield all commands of the command line by their words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def test_every_command_that_takes_data_stands_in_one_of_the_tables():
    taking = {
        name
        for name, command in commands(typer.main.get_command(app))
        if any(
            "--data" in parameter.opts or parameter.name == "data" for parameter in command.params
        )
    }
    assert taking == {" ".join(way.split(" --")[0].split()) for way in WAYS} | set(HAND_OUT_NOTHING)


def test_every_protocol_is_tried_every_way():
    tried = {tuple(pair.values) for pair in of_all(lambda *pair: True)}
    assert {protocol for _, protocol in tried} == set(protocols)
    assert {way for way, _ in tried} == set(WAYS)
    assert set(PUBLISHED) == {
        name
        for name in protocols
        if name.startswith("reality-check/") and "/any" not in name and name.endswith(".v1")
    }


# --- what comes of them ---------------------------------------------------------------------------


def decided(store):
    """Return all of a store that was trained, tuned, stopped or selected: trials, checkpoints,
    selections, weights, models.
    """
    found = snapshot(store, tested=False)
    for name, content in found.items():
        if name.endswith("ledger.jsonl"):
            found[name] = [line for line in content if line["kind"] != "peek"]
    for path in sorted(store.glob("models/*/*")):
        if path.name == TEST_CONTENTS:  # written when the seal is open
            continue
        name = path.relative_to(store).as_posix()
        card = json.loads(path.read_text()) if path.suffix == ".json" else {}
        found[name] = {
            key: value for key, value in card.items() if key != "test"
        } or path.read_bytes()
    assert any(name.endswith("model.safetensors") and name.startswith("models/") for name in found)
    assert any(name.startswith("runs/") for name in found)
    return found


def scores(store):
    """Return all scores of the test half."""
    records = {record.key: record for record in study_records(Store(store))}
    assert all(record.complete for record in records.values())
    peeked = [
        record.peek and [entry.test for entry in record.peek.epochs] for record in records.values()
    ]
    return {key: [test.folds for test in record.tests] for key, record in records.items()}, peeked


@pytest.fixture(scope="module", autouse=True)
def _changeable():
    """Offer data with changed test halves."""
    with pytest.MonkeyPatch.context() as patch:
        for name in PUBLISHED.values():
            shrink(patch, name)
        offer_changed(patch, "folder", *PUBLISHED.values())
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("seal")


@pytest.fixture(scope="module")
def data_for(place):
    """Return the data for a way: a miniature of the published data where the protocol's parameters
    are published, else a folder.
    """
    made = {}

    def find(way, protocol):
        kind = PUBLISHED[protocol] if way == "reproduce" else "folder"
        name = "many" if way == "calibrate" else kind
        if name not in made:
            made[name] = place / name
            if name == "many":
                make_folder(made[name], 48)  # 12 classes in a fold; less than 10 cannot calibrate
            elif name == "folder":
                make_folder(made[name])
            else:
                made[name].mkdir()
                MINIATURES[name].make(made[name])
        return f"{kind}:{made[name]}"

    return find


@pytest.fixture
def run(assay):
    def go(*words, code=0):
        ended, out, err = assay(*words)
        assert ended == code, err
        return out

    return go


@pytest.fixture(scope="module")
def original():
    """Results of each way with the data as they are."""
    return {}


# --- the seal -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "change",
    [EVERY_CHANGE, *(pytest.param(change, marks=pytest.mark.slow) for change in CHANGES)],
)
@pytest.mark.parametrize(
    ("way", "protocol"),
    of_all(lambda way, protocol: way not in SLOW_WAYS and protocol == USUAL[way]),
)
def test_nothing_but_test_scores_depends_on_the_test_half(
    run, data_for, original, tmp_path, way, protocol, change
):
    data = data_for(way, protocol)
    if (way, protocol) not in original:
        original[way, protocol] = WAYS[way](
            run, f"unchanged-{data}", tmp_path / "as they are", protocol
        )
    ours, theirs = (
        original[way, protocol],
        WAYS[way](run, f"{change}-{data}", tmp_path / change, protocol),
    )
    assert ours[0] == theirs[0]
    if ours[1] is not None:
        assert ours[1] != theirs[1], "the test half was not another one"


@pytest.mark.parametrize(
    ("way", "protocol"),
    of_all(lambda way, protocol: way not in SLOW_WAYS and protocol == USUAL[way]),
)
def test_the_test_half_is_opened_when_the_receipt_stands_in_the_ledger_and_not_before(
    run, data_for, tmp_path, monkeypatch, way, protocol
):
    data = data_for(way, protocol)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    spy = Spy(monkeypatch, data.partition(":")[0])
    WAYS[way](run, data, tmp_path / "out", protocol)
    doors = {opening.door for opening in spy.openings}
    assert doors == (
        set()
        if way in WITHOUT_A_STUDY
        else {"open", "samples"}
        if way == "bench --engine ray"  # whose tasks read in other processes
        else {"open", "view", "samples"}
    )
    for opening in spy.openings:
        kinds = [line.kind for line in opening.lines]
        assert completing_line(opening.lines) is not None
        assert opening.door == "open" or "seal" in kinds
        assert opening.door != "open" or "seal" not in kinds or way in AFTER_A_STUDY


def test_repeating_runs_does_not_open_the_test_half(data_for, run, tmp_path, monkeypatch):
    """Only embedding it again does, for which `retest` shows the receipt."""
    data, protocol = data_for("verify", "quick.v1"), "quick.v1"
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    bench(run, data, tmp_path, protocol)
    spy = Spy(monkeypatch, "folder")
    repeated = list(rerun(Store(tmp_path / "store"), 3, 0, InlineEngine(), data))
    assert [one.outcome for one in repeated] == ["same bytes"] * 3
    assert spy.openings == []
