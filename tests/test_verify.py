"""`assay verify` finds and names every kind of tampering, and finds nothing where there is none."""

import errno
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from assay import files
from assay.engines import InlineEngine
from assay.hashing import canonical, digest_file, pretty
from assay.model import read_model_folder, write_model_folder
from assay.protocols import customise, protocols
from assay.records.ledger import read
from assay.records.run import Checkpoint, read_history
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import write_report
from assay.study import Execution, run_bench, run_published, run_sweep
from assay.verify import verify
from assay.verify.preregistration import check_conditions
from assay.verify.runs import check_end, check_models
from assay.verify.scores import check_scores
from entries import write_raw
from forgery import forge, record_in
from miniature import MINI_AT_ITS_RATE, QUICK, make_features, make_folder

INLINE = Execution(InlineEngine())
SMALL = customise(protocols["quick"], MINI_AT_ITS_RATE)
PRUNING = customise(SMALL, ["trials=5", "startup=3", "prune=0"])
PATIENT = customise(SMALL, ["epochs=5", "validate_every=2", "patience=2", "optimiser.lr=0.05"])
TINY = (
    "size=16",
    "stored=16",
    "dim=8",
    "reproductions=1",
    "iterations=4",
    "epochs=2",
    "batch=16",
    "batch.classification=4x1",
)
PUBLISHED = customise(
    protocols["reality-check/cub.v1"], ["trunk=conv", "weights=none", "frozen=nothing", *TINY]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes the finished store of a kind, once."""
    root, stores = tmp_path_factory.mktemp("verify"), {}
    folder, features = (
        f"folder:{make_folder(root / 'mini')}",
        f"features:{make_features(root / 'mini.npz')}",
    )
    kinds = {
        "plain": lambda out: run_bench(folder, ["triplet", "untrained"], SMALL, out, INLINE),
        "pruned and peeked": lambda out: run_bench(
            folder, ["triplet"], PRUNING, out, replace(INLINE, keep="all")
        ),
        "features": lambda out: run_bench(
            features, ["normalized_softmax", "pretrained"], SMALL, out, INLINE
        ),
        "frozen": lambda out: run_bench(
            folder,
            ["triplet", "pretrained"],
            customise(SMALL, ["trunk=lite0", "size=32"]),
            out,
            INLINE,
        ),
        "swept": lambda out: run_sweep(
            features, ["triplet", "pretrained"], SMALL, "dim=4,8", out, INLINE
        ),
        "published": lambda out: run_published(
            folder, ["triplet", "untrained"], PUBLISHED, out, INLINE
        ),
        "out of patience": lambda out: [
            run_bench(data, names, PATIENT, out, INLINE)
            for data, names in ((folder, ["triplet"]), (features, ["normalized_softmax"]))
        ],
        "begun anew": lambda out: [
            run_bench(features, ["triplet"], SMALL, out, INLINE, new_study=new)
            for new in (False, True)
        ],
    }

    def make(kind):
        if kind not in stores:
            stores[kind] = root / kind
            kinds[kind](stores[kind])
            write_report(Store(stores[kind]))
        return stores[kind]

    make.kinds = list(kinds)
    return make


@pytest.fixture
def copy(made, tmp_path):
    return lambda kind: Store(shutil.copytree(made(kind), tmp_path / "store"))


def problems(store, *anchors):
    return [
        f"{finding.what}: {finding.problem}"
        for finding in verify(store, anchors)
        if finding.problem
    ]


def test_threads_of_torch_are_set_once_for_scores_that_are_checked_side_by_side(made, monkeypatch):
    """The number is that of the process: checks that each set and restored it would mix it up."""
    store, before, given, seen = Store(made("features")), torch.get_num_threads(), [], []
    record = next(one for one in study_records(store) if len(one.tests) == 2)
    both, set_threads = threading.Barrier(2, timeout=60), torch.set_num_threads

    def check(*_):
        both.wait()
        seen.append(torch.get_num_threads())
        yield "as it is"

    def note(count):
        given.append((threading.current_thread() is threading.main_thread(), count))
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", note)
    monkeypatch.setattr("assay.verify.scores._scores_of", check)
    monkeypatch.setattr("os.cpu_count", lambda: 2 * (before + 1))
    found = list(check_scores(store, record))
    assert found == ["reproduction 0: as it is", "reproduction 1: as it is"]
    assert seen == [before + 1] * 2
    assert given == [(True, before + 1), (True, before)]


# --- honest stores --------------------------------------------------------------------------------


def test_the_report_of_a_bench_that_is_under_way_passes(copy):
    """Every study was killed after its first trial."""
    store = copy("plain")
    for path in store.root.glob("studies/*/ledger.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        trials = [line for line in lines[1:] if '"kind":"trial"' in line]
        path.write_text("".join([lines[0], *trials[:1]]))
        (path.parent / "study.json").unlink()
        shutil.rmtree(path.parent / "classes", ignore_errors=True)
    shutil.rmtree(store.root / "models")
    shutil.rmtree(store.root / "report")
    write_report(store)
    assert not [problem for problem in problems(store) if "table" in problem]


KINDS = (
    "plain", "pruned and peeked", "features", "frozen", "swept", "published", "out of patience",
    "begun anew",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_store_passes(made, kind):
    assert set(KINDS) == set(made.kinds)
    findings = list(verify(Store(made(kind))))
    assert [finding for finding in findings if finding.problem or finding.note] == []
    assert any(finding.what.startswith("table ") for finding in findings)


def test_the_stores_hold_what_they_are_to_show(made):
    pruned = record_in(Store(made("pruned and peeked")))
    assert {"pruned", "finished"} <= {trial.status for trial in pruned.trials}
    assert pruned.peek is not None
    assert any(record.announced.sweep is not None for record in study_records(Store(made("swept"))))
    assert record_in(Store(made("published"))).announced.origin.kind == "published"
    assert {record.announced.generation for record in study_records(Store(made("begun anew")))} == {
        0,
        1,
    }


def asked_elsewhere(monkeypatch, factor):
    """Let the search ask from the fourth trial on for parameters that are larger by a factor."""
    from assay.study import announced

    real = announced.ask

    def elsewhere(space, told, *rest):
        asked = real(space, told, *rest)
        return {name: value * factor for name, value in asked.items()} if len(told) > 3 else asked

    monkeypatch.setattr(announced, "ask", elsewhere)


def notes(store):
    return [finding.note for finding in verify(store) if finding.note]


@pytest.mark.forgery(
    "nothing",
    what="a model-based trial moved by less than a hundredth of its range",
)
def test_other_last_digits_of_a_model_are_reported_and_not_held_against_a_study(copy, monkeypatch):
    store = copy("pruned and peeked")
    asked_elsewhere(monkeypatch, 1 + 2e-6)
    assert problems(store) == []
    assert any(
        "trial 4: the search asks for" in one and "last digits" in one for one in notes(store)
    )
    asked_elsewhere(monkeypatch, 1 + 1e-3)
    assert problems(store) == []
    assert any("of a range apart" in one and "as a hand may choose" in one for one in notes(store))
    assert any("its search asked for" in finding.trusted for finding in verify(store))


@pytest.mark.forgery("verify", what="a trial picked by hand, and timing.json of another machine")
def test_a_trial_picked_by_hand_is_found_whatever_the_clock_file_says(copy):
    store = copy("pruned and peeked")
    pick_by_hand(store)
    found = problems(store)
    assert any("trial 4: the search asks for margin=" in one for one in found), found
    for path in store.root.glob("runs/*/*/timing.json"):
        edit(path, lambda timing: timing.update(host="elsewhere", machine="another"))
    assert problems(store) == found


def pick_by_hand(store):
    """Give trial 4 other parameters, and its runs the keys and configurations that go with them."""
    from assay.study.announced import AnnouncedStudy

    record = record_in(store)
    study, renamed = AnnouncedStudy(record.announced), {}
    picked = {**record.trials[4].parameters}
    picked["margin"] = picked["margin"] / 2 + 0.1
    for fold, entry in zip(study.folds_of_trials(0), record.trials[4].runs, strict=False):
        run = study.run("trial", 0, 4, fold, picked)
        folder = store.run(run.key)
        folder.parent.mkdir(exist_ok=True)
        store.run(entry.key).rename(folder)
        (folder / "config.json").write_text(pretty(run.to_json()))
        renamed[entry.key] = run.key

    def change(lines):
        trial = [body for kind, body in lines if kind == "trial"][4]
        trial["parameters"] = picked
        for run in trial["runs"]:
            run["key"] = renamed[run["key"]]

    forge(store, change)


def test_the_search_is_asked_again_with_other_versions_too(copy, monkeypatch):
    """Where they lead to the same trials, nothing is left open; where not, nothing follows."""
    store = copy("pruned and peeked")
    forge(store, lambda lines: lines[0][1]["versions"].update(optuna="0.1"))
    shutil.rmtree(store.root / "report")
    asked = "trials asked again"
    assert not [one for one in verify(store) if one.what.endswith(asked) and one.note]
    asked_elsewhere(monkeypatch, 1.5)
    (found,) = [one for one in verify(store) if one.what.endswith(asked)]
    assert "nothing follows from that: optuna 0.1 there and" in found.note and not found.problem
    assert "its search asked for" in found.trusted


def test_a_study_that_goes_on_after_the_report_is_no_problem(copy):
    """The report says what it covers; it is rendered again as the store was then."""
    store = copy("begun anew")
    second = max(study_records(store), key=lambda record: record.announced.generation)
    lines = read(store.study(second.key) / "ledger.jsonl")[:2]
    shutil.rmtree(store.study(second.key))
    shutil.rmtree(store.root / "models")
    write_report(store)
    ledger = store.study(second.key) / "ledger.jsonl"
    write_raw(ledger, [(line.kind, line.body) for line in lines])
    assert problems(store) == []
    assert [one.note for one in verify(store) if one.what == "report"] == [
        "older than the store: of 1 studies it does not cover all steps; `assay report` writes it"
        " again"
    ]


def test_a_store_without_a_study_is_incomplete_and_not_wrong(assay, tmp_path, copy):
    """As a merge leaves it that was killed early; an anchor is missed all the same."""
    code, out, _ = assay("verify", Store.create(tmp_path / "empty").root)
    assert (code, out.splitlines()[0].split()[0]) == (0, "INCOMPLETE")
    assert "no study has been begun; run the same command again to begin" in out
    assert assay("verify", tmp_path / "empty", "--complete")[0] == 1
    assert assay("verify", tmp_path / "empty", "--anchor", "0" * 64)[0] == 1
    store = copy("plain")
    shutil.rmtree(store.root / "studies")
    assert "announced and absent: triplet" in assay("verify", store.root)[1]


@pytest.mark.forgery("verify --complete", what="study.json removed")
@pytest.mark.parametrize("how", ["bench", "merge"])
def test_a_study_json_that_is_missing_is_incomplete_and_the_same_command_writes_it(
    made, copy, assay, tmp_path, how
):
    """A merge that was killed early leaves none."""
    store = copy("plain")
    out = store.root if how == "bench" else tmp_path / "merged"
    if how == "merge":
        assert assay("merge", store.root, "--out", out)[0] == 0
    path = ledger_of(Store(out)).parent / "study.json"
    content = path.read_bytes()
    path.unlink()
    code, said, _ = assay("verify", out)
    line = next(one for one in said.splitlines() if "triplet on folder:mini: study.json" in one)
    assert code == 0 and line.startswith("INCOMPLETE")
    assert "run the same bench or merge again" in line
    assert assay("verify", out, "--complete")[0] == 1
    if how == "bench":
        data = f"folder:{made('plain').parent / 'mini'}"
        run_bench(data, ["triplet", "untrained"], SMALL, out, INLINE)
    else:
        assert assay("merge", store.root, "--out", out)[0] == 0
    assert path.read_bytes() == content


STRANGE = {
    "models": (".ipynb_checkpoints/model.json", "._best/model.safetensors"),
    "benches": ("._bench.json", ".DS_Store"),
    "report": ("tables/._a-scores.csv", "figures/._a-curves.svg", ".DS_Store", ".cache/a.csv"),
}


@pytest.mark.parametrize("folder", STRANGE)
def test_hidden_files_and_folders_accuse_nobody(copy, tmp_path, assay, folder):
    """As systems, archives and editors leave them."""
    store = copy("plain")
    for name in STRANGE[folder]:
        path = store.root / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\0\5\26\7")
    (model_folder(store) / ".DS_Store").write_bytes(b"x")
    findings = list(verify(store))
    assert [finding for finding in findings if finding.problem or finding.note] == []
    write_report(store)
    assert all((store.root / folder / name).exists() for name in STRANGE[folder])
    assert assay("merge", store.root, "--out", tmp_path / "merged")[0] == 0
    assert not list((tmp_path / "merged").rglob("._*"))


def test_a_model_that_no_study_of_the_store_wrote_is_noted_and_accuses_nobody(
    made, copy, assay, tmp_path
):
    store = copy("plain")
    ours, data = model_folder(store), f"folder:{made('plain').parent / 'mini'}"
    sets = [word for setting in MINI_AT_ITS_RATE for word in ("--set", setting)]
    own = store.root / "models" / "mine"
    assert assay("train", "--data", data, "--method", "triplet", "--out", own, *sets)[0] == 0
    copied = shutil.copytree(ours, ours.with_name(f"{ours.name} copy"))
    of_elsewhere = shutil.copytree(ours, ours.with_name("from-oslo"))
    edit(of_elsewhere / "model.json", lambda card: card.update(study="0" * 64))
    (store.root / "models" / "notes").mkdir()
    assert {one.what: one.note for one in models(store) if one.note} == {
        **{f"models/{name}": "no model of a study here" for name in ("from-oslo", "mine", "notes")},
        f"models/{copied.name}": f"a copy of {ours.name}",
    }
    assert problems(store) == []


@pytest.mark.forgery("verify", what="a folder under the name of a study's model: {}")
@pytest.mark.parametrize("how", ["of no study", "of a study elsewhere", "without a card"])
def test_a_model_under_the_name_of_that_of_a_study_is_that_model(copy, how):
    store = copy("plain")
    card = model_folder(store) / "model.json"
    study = None if how == "of no study" else "0" * 64
    edit(card, lambda content: content.update(study=study))
    if how == "without a card":
        card.unlink()
    words = "is missing" if how == "without a card" else "a study that is not in the store"
    assert any(words in found for found in problems(store)), problems(store)


@pytest.mark.forgery("verify", what="the card of a copy of a model")
def test_a_copy_of_a_model_with_other_scores_is_found(copy):
    store = copy("plain")
    ours = model_folder(store)
    copied = shutil.copytree(ours, ours.with_name("best"))
    edit(copied / "model.json", lambda card: card["test"]["separated"].update(map_at_r=0.99))
    assert any(one.startswith("models/best: model.json does not say") for one in problems(store))


def test_a_model_that_a_killed_bench_did_not_finish_is_no_model(assay, tmp_path, copy):
    store = copy("plain")
    for name in (".draft-a", ".dead-.draft-b"):
        (store.root / "models" / name).mkdir()
    assert problems(store) == []
    assert assay("merge", store.root, "--out", tmp_path / "merged")[0] == 0
    names = {path.name for path in (tmp_path / "merged" / "models").iterdir()}
    assert names == {path.name for path in store.models()} and len(names) > 0


def test_anything_wrong_ends_with_exit_code_1(assay, copy):
    store = copy("plain")
    assert assay("verify", store.root)[0] == 0
    (store.run(record_in(store).reproductions[0].key) / "model.safetensors").write_bytes(b"")
    code, out, _ = assay("verify", store.root)
    assert code == 1
    assert "WRONG triplet on folder:mini: runs: run" in out and out.splitlines()[-1].endswith(
        "1 wrong"
    )


# --- what cheats do -------------------------------------------------------------------------------


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(pretty(content))


def edit_lines(path, change):
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    path.write_text("".join(lines))


def ledger_of(store, method="triplet"):
    return store.study(record_in(store, method).key) / "ledger.jsonl"


def run_of(store, number=0):
    return store.run(record_in(store).reproductions[number].key)


def in_ledger(change):
    """Alter the text of the ledger and leave its hashes."""
    return lambda store: edit_lines(ledger_of(store), change)


def forged(change, **which):
    return lambda store: forge(store, change, **which)


def altered_number(lines):
    lines[1] = lines[1].replace('"map_at_r":', '"map_at_r":0.5,"old":', 1)


def swap(first, second):
    def change(lines):
        lines[first], lines[second] = lines[second], lines[first]

    return change


def first_of(lines, kind):
    return next(number for number, line in enumerate(lines) if line[0] == kind)


def every_fold_better(lines):
    for run in lines[1][1]["runs"]:
        run["validation"]["map_at_r"] = 0.99
    lines[1][1]["map_at_r"] = 0.99


def other_selection(lines):
    body = lines[first_of(lines, "selection")][1]
    trials = [line[1] for line in lines if line[0] == "trial"]
    body["trial"] = 1 - body["trial"]
    body["parameters"] = trials[body["trial"]]["parameters"]


def parameters_of_nobody(lines):
    lines[first_of(lines, "selection")][1]["parameters"] = {"margin": 0.123}


def narrower_space(lines):
    tried = lines[2][1]["parameters"]["margin"]
    lines[0][1]["space"]["margin"]["high"] = tried / 2


def wider_space(lines):
    lines[0][1]["space"]["margin"]["high"] = 40.0


def other_parameters(lines):
    lines[2][1]["parameters"]["margin"] = 0.2
    for run in lines[2][1]["runs"]:
        run["status"] = "finished"


def of_other_reproduction(lines):
    lines[-1][1] = {**lines[-2][1], "reproduction": 1}


def runs_of_the_baseline(store):
    entries = record_in(store, "untrained").reproductions

    def change(lines):
        first = first_of(lines, "reproduction")
        for number, entry in enumerate(entries):
            lines[first + number][1] = entry

    forge(store, change)


def edge_where_none_is(lines):
    edge = {"end": "high", "bound": 5.0, "natural": False}
    lines[first_of(lines, "selection")][1].update(edges={"margin": edge})


def stale_receipt(store):
    ledger = ledger_of(store)
    lines = [[line.kind, line.body] for line in read(ledger)]
    edge_where_none_is(lines)
    ledger.unlink()
    write_raw(ledger, lines)


def test_before_seal(lines):
    lines.insert(first_of(lines, "selection"), lines.pop())


test_before_seal.__test__ = False


def early_seal(lines):
    lines.insert(2, lines.pop(first_of(lines, "seal")))


def second_seal(lines):
    lines.insert(first_of(lines, "seal"), lines[first_of(lines, "seal")])


def swapped_weights(store):
    ours, theirs = run_of(store, 0) / "model.safetensors", run_of(store, 1) / "model.safetensors"
    content = ours.read_bytes()
    ours.write_bytes(theirs.read_bytes())
    theirs.write_bytes(content)


def without_trial_folder(store):
    shutil.rmtree(store.run(record_in(store).trials[1].runs[0].key))


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def better_history(lines):
    first = json.loads(lines[0])
    first["validation"]["map_at_r"] = 2.0
    lines[0] = json.dumps(first) + "\n"


def other_loss(lines):
    last = json.loads(lines[-1])
    last["loss"] = 0.5
    lines[-1] = json.dumps(last) + "\n"


def reversed_vectors(store):
    path = store.test_vectors(run_of(store).name, record_in(store).seal.test)
    np.save(path, np.load(path)[::-1])


def rolled_labels(store):
    path = store.answers(record_in(store).seal.test)
    with np.load(path) as arrays:
        y = arrays["y"]
    np.savez(path, y=np.roll(y, 2))


def edited_table(store):
    path = next((store.root / "report" / "tables").glob("*-scores.csv"))
    path.write_text(path.read_text().replace("0.", "0.9", 1))


def better_page(lines):
    number = next(number for number, line in enumerate(lines) if "<td>triplet</td>" in line)
    lines[number] = lines[number].replace("±", "9 ±", 1)


def model_folder(store, method="triplet"):
    return next((store.root / "models").glob(f"*-{method}-*"))


def swapped_model(store):
    shutil.copyfile(
        run_of(store, 3) / "model.safetensors", model_folder(store) / "model.safetensors"
    )
    shutil.copyfile(
        model_folder(store, "untrained") / "model.safetensors",
        model_folder(store) / "model.safetensors",
    )


def renamed_study(store):
    folder = store.study(record_in(store).key)
    folder.rename(folder.with_name("f" * 64))
    edit(folder.with_name("f" * 64) / "study.json", lambda content: content.update(key="f" * 64))


def other_setting(lines):
    lines[0][1]["protocol"]["resolved"]["patience"] = 99


def more_trials(lines):
    lines[0][1]["budget"]["trials"] = 3


def announced_everywhere(name, count):
    def change(lines):
        lines[0][1]["budget"][name] = count
        lines[0][1]["protocol"]["resolved"][name] = count

    return change


def endless_run(store):
    key = record_in(store).reproductions[0].key
    path = store.run(key) / "result.json"
    edit(path, lambda result: result.update(last_epoch=10**11))

    def change(lines):
        for kind, body in lines:
            if kind == "reproduction" and body["key"] == key:
                body.update(last_epoch=10**11, result=digest_file(path))

    forge(store, change)


def more_startup(lines):
    lines[0][1]["budget"]["startup"] = 0


TAMPERED = {
    "a number in the ledger": (
        in_ledger(altered_number),
        "ledger.jsonl: line 2 was altered: its hash does not fit",
    ),
    "the first trial's line removed": (
        in_ledger(lambda lines: lines.pop(1)),
        "line 2 calls itself number 2: lines were removed",
    ),
    "the last line removed": (
        in_ledger(lambda lines: lines.pop()),
        "study.json does not say what the ledger says",
    ),
    "lines reordered": (
        in_ledger(swap(1, 2)),
        "line 2 calls itself number 2: lines were removed or moved",
    ),
    "a line of rubbish": (
        in_ledger(lambda lines: lines.insert(1, "{}\n")),
        "ledger.jsonl: line 2 is not a ledger line",
    ),
    "trials reordered in a new chain": (forged(swap(1, 2)), "trial 0 is missing in the ledger"),
    "a trial removed in a new chain": (
        forged(lambda lines: lines.pop(2)),
        "1 trials in the ledger, 2 were announced",
    ),
    "the mean of a trial": (
        forged(lambda lines: lines[1][1].update(map_at_r=0.99)),
        "trial 0: its MAP@R is not the mean",
    ),
    "every fold of a trial": (
        forged(every_fold_better),
        "(trial 0, fold 0): the ledger does not say what its result says",
    ),
    "a trial called failed": (
        forged(lambda lines: lines[1][1].update(status="failed")),
        "trial 0: it is called failed",
    ),
    "a trial called pruned": (
        forged(lambda lines: lines[1][1].update(status="pruned")),
        "it was given up after its",
    ),
    "other parameters of a trial": (forged(other_parameters), "config.json has another parameters"),
    "another selection": (forged(other_selection), "was selected, trial"),
    "selected parameters": (
        forged(parameters_of_nobody),
        "the selected parameters are not those of the selected trial",
    ),
    "edges left out": (
        forged(edge_where_none_is),
        "the parameters that are said to lie on an end of their range do not",
    ),
    "a parameter of a baseline on an end of its range": (
        forged(edge_where_none_is, method="untrained"),
        "the parameters that are said to lie on an end of their range do not",
    ),
    "the source of Assay among the versions announced": (
        forged(lambda lines: lines[0][1]["versions"].update(source="0" * 64)),
        "preregistration: the source of Assay is 000000000000 and, elsewhere in it, ",
    ),
    "torch among the versions announced": (
        forged(lambda lines: lines[0][1]["versions"].update(torch="1.0")),
        "preregistration: the version of torch is 1.0 and, elsewhere in it, ",
    ),
    "a narrower space": (forged(narrower_space), "lies outside the announced space"),
    "a wider space": (forged(wider_space), "ledger.jsonl, trial 1: the search asks for margin="),
    "a billion searches": (
        forged(announced_everywhere("searches", 10**9)),
        "ledger.jsonl, line 1 (preregistration): it announces 1000000000 searches, more than",
    ),
    "a billion folds": (
        forged(announced_everywhere("folds", 10**9)),
        "it announces 1000000000 folds, more than 10000",
    ),
    "a run of 100 billion epochs": (
        endless_run,
        "result.json has epoch 100000000000, the protocol ends at",
    ),
    "another budget": (
        forged(more_trials),
        "preregistration: 3 trials were announced, the protocol says 2",
    ),
    "another startup": (
        forged(more_startup),
        "preregistration: 0 startup were announced, the protocol says 1",
    ),
    "the name of a published protocol": (
        forged(lambda lines: lines[0][1]["protocol"].update(name="quick.v2")),
        "it is called quick.v2, which is published with other settings",
    ),
    "the name of other settings": (
        forged(lambda lines: lines[0][1]["protocol"].update(name="quick.v2+custom-01234567")),
        "it is called quick.v2+custom-01234567, and its settings have the fingerprint",
    ),
    "another setting": (forged(other_setting), "config.json has another protocol"),
    "an exception for the budget": (
        forged(
            lambda lines: lines[0][1]["protocol"]["resolved"].update(
                exceptions=[["triplet", ["trials=2"]]]
            )
        ),
        "its exception 'trials=2' for triplet changes the budget, which is the same for all",
    ),
    "another fingerprint": (
        forged(lambda lines: lines[0][1]["protocol"].update(fingerprint="0" * 64)),
        "does not hold the study that its preregistration announces",
    ),
    "a field of the ledger removed": (
        forged(lambda lines: lines[0][1]["method"].pop("source")),
        "ledger.jsonl, line 1 (preregistration): method.source is missing",
    ),
    "a study renamed": (renamed_study, "studies/ffffffffffff does not hold the study"),
    "test scores of another reproduction": (
        forged(of_other_reproduction),
        "reproduction 1: its test scores are those of other",
    ),
    "runs of another method": (
        runs_of_the_baseline,
        "this is not the run of reproduction 0, fold 0: config.json has another method",
    ),
    "a stale receipt": (stale_receipt, "the seal was opened with the receipt of something else"),
    "a test score before the seal": (
        forged(test_before_seal),
        "a test score precedes the opening of the seal (ledger.jsonl, line",
    ),
    "an early seal": (forged(early_seal), "the seal was opened before selection and reproductions"),
    "a second seal": (forged(second_seal), "the seal was opened 2 times"),
    "a test score": (
        forged(lambda lines: lines[-1][1]["separated"].update(map_at_r=0.99)),
        "reproduction 1: its test scores (separated) are not what its vectors give",
    ),
    "a test score of a fold": (
        forged(lambda lines: lines[-1][1]["folds"][1].update(map_at_r=0.99)),
        "reproduction 1: its test scores (folds) are not what its vectors give",
    ),
    "a test score left out": (
        forged(lambda lines: lines[-1][1]["concatenated"].pop("precision_at_1")),
        "reproduction 1: its test scores (concatenated) are not what its vectors give",
    ),
    "study.json": (
        lambda store: edit(
            ledger_of(store).parent / "study.json", lambda said: said["announced"]["space"].clear()
        ),
        "study.json does not say what the ledger says",
    ),
    "study.json of rubbish": (
        lambda store: (ledger_of(store).parent / "study.json").write_text("{"),
        "study.json does not say what the ledger says",
    ),
    "a run's result": (
        lambda store: edit(
            run_of(store) / "result.json", lambda result: result["validation"].update(map_at_r=0.99)
        ),
        "(reproduction 0, fold 0): result.json was altered",
    ),
    "a run's result cut": (
        lambda store: cut(run_of(store) / "result.json"),
        "result.json cannot be read: it was altered",
    ),
    "a run's configuration": (
        lambda store: edit(run_of(store) / "config.json", lambda config: config.update(seed=1)),
        "config.json was altered",
    ),
    "a number in a run's history": (
        lambda store: edit_lines(run_of(store) / "history.jsonl", better_history),
        "history.jsonl was altered: its best validation is not the result",
    ),
    "a loss in a run's history": (
        lambda store: edit_lines(run_of(store) / "history.jsonl", other_loss),
        "history.jsonl was altered",
    ),
    "a line of a run's history": (
        lambda store: edit_lines(run_of(store) / "history.jsonl", lambda lines: lines.pop()),
        "history.jsonl was altered: its epochs are not those of the protocol",
    ),
    "a run's weights": (
        lambda store: cut(run_of(store) / "model.safetensors"),
        "model.safetensors was altered",
    ),
    "weights of two runs swapped": (
        swapped_weights,
        "(reproduction 0, fold 1): model.safetensors was altered",
    ),
    **{
        f"a run's {name} removed": (
            lambda store, name=name: (run_of(store) / name).unlink(),
            f"{name} is missing",
        )
        for name in ("result.json", "config.json", "history.jsonl", "model.safetensors")
    },
    "a trial's run removed": (without_trial_folder, "(trial 1, fold 0): result.json is missing"),
    "test vectors": (reversed_vectors, "its test vectors, test/"),
    "test vectors removed": (
        lambda store: shutil.rmtree(run_of(store) / "test"),
        ".npy is missing",
    ),
    "test labels": (rolled_labels, "answers/"),
    "test labels cut": (
        lambda store: cut(store.answers(record_in(store).seal.test)),
        "labels of the test half were altered",
    ),
    "test labels removed": (
        lambda store: shutil.rmtree(store.root / "answers"),
        "the labels of the test half are missing",
    ),
    "a table": (edited_table, "-scores.csv: does not say what the studies say"),
    "a table from elsewhere": (
        lambda store: (store.root / "report" / "tables" / "best.csv").write_text("ours,100\n"),
        "table best.csv: no study here gives this table",
    ),
    "a table removed": (
        lambda store: next((store.root / "report" / "tables").glob("*-trials.md")).unlink(),
        "-trials.md: is missing",
    ),
    "a table of the page": (
        lambda store: edit_lines(store.root / "report" / "index.html", better_page),
        "report/index.html: it says '",
    ),
    "a model handed over": (swapped_model, "is not the file that model.json was written with"),
    "the card of a model": (
        lambda store: edit(
            model_folder(store) / "model.json",
            lambda card: card["test"]["separated"].update(map_at_r=1),
        ),
        "model.json does not say what its study says (test)",
    ),
}


@pytest.mark.forgery("verify", what="{}")
@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_found_and_named(copy, name):
    check_found(copy("plain"), *TAMPERED[name])


def check_found(store, tamper, words):
    """Check that what `tamper` does to the store is found, and named by the words."""
    tamper(store)
    found = problems(store)
    assert any(words in problem for problem in found), found


# --- checks that fail -----------------------------------------------------------------------------


FAILING = {
    "no memory": MemoryError(),
    "too many open files": OSError(errno.EMFILE, "Too many open files"),
    "a right that is missing": PermissionError(errno.EACCES, "Permission denied"),
    "the interpreter": SystemError("AST constructor recursion depth mismatch"),
    "our own code": ValueError("zip() argument 2 is shorter than argument 1"),
    "an invariant of ours": AssertionError("a study has folds"),
}


def fail(monkeypatch, place, error):
    def failing(*arguments, **options):
        raise error

    monkeypatch.setattr(place, failing)


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("assay.verify.checks.check_runs", "runs"),
        ("assay.verify.checks.check_trials", "trials"),
        ("assay.verify.checks.read", "ledger chain"),
        ("assay.verify.checks.check_asked", "trials asked again"),
    ],
)
def test_a_check_that_fails_accuses_nobody_and_is_no_success(made, monkeypatch, name, place, what):
    fail(monkeypatch, place, FAILING[name])
    findings = list(verify(Store(made("plain"))))
    failed = [one for one in findings if one.unchecked]
    assert [one for one in findings if one.problem] == []
    assert failed and all(one.what.endswith(what) for one in failed)
    assert all(one.note.startswith("could not be checked: ") for one in failed)


@pytest.mark.parametrize("name", ["no memory", "too many open files", "the interpreter"])
@pytest.mark.parametrize(
    "place", ["assay.npz.open_file", "assay.files.open_file"], ids=["arrays", "documents"]
)
def test_files_that_the_machine_cannot_read_accuse_nobody(made, monkeypatch, name, place):
    """The readers turn what they meet into an error of the file; verify looks at its cause."""
    store = Store(made("features"))
    fail(monkeypatch, place, FAILING[name])
    findings = list(verify(store))
    assert [one for one in findings if one.problem] == []
    assert any(one.unchecked for one in findings)


@pytest.mark.parametrize("name", ["no memory", "too many open files", "the interpreter"])
@pytest.mark.parametrize("folder", ["runs", "models"])
def test_a_run_or_a_model_that_the_machine_cannot_read_accuses_nobody(
    copy, monkeypatch, name, folder
):
    store, real = copy("features"), files.open_file
    model = store.models()[0]
    shutil.copytree(model, model.parent / "copied")

    def failing(path, *rest):
        if folder in Path(path).parts:
            raise FAILING[name]
        return real(path, *rest)

    monkeypatch.setattr("assay.files.open_file", failing)
    findings = list(verify(store))
    assert [one for one in findings if one.problem] == []
    what = {"runs": ": runs", "models": "models/copied"}[folder]
    assert any(one.what.endswith(what) for one in findings if one.unchecked)


def test_a_failed_check_ends_with_exit_code_1_and_is_counted(assay, made, monkeypatch):
    fail(monkeypatch, "assay.verify.checks.check_runs", MemoryError())
    code, out, _ = assay("verify", made("plain"))
    assert code == 1
    assert "UNCHECKED triplet on " in out and "runs: could not be checked: MemoryError" in out
    assert ", 0 wrong, " in out and " not checked" in out


OTHER_VECTORS = {
    "no array": (lambda path: path.write_bytes(b"text"), "its test vectors are no array"),
    "a sample less": (
        lambda path: np.save(path, np.load(path)[1:]),
        "its test vectors are not those of the samples",
    ),
}


@pytest.mark.forgery("verify", what="test vectors with fitting hashes: {}")
@pytest.mark.parametrize("name", OTHER_VECTORS)
def test_vectors_that_cannot_be_scored_are_found(copy, name):
    write, words = OTHER_VECTORS[name]
    store = copy("plain")
    record = record_in(store)
    key = record.reproductions[0].key
    path = store.test_vectors(key, record.seal.test)
    write(path)

    def change(lines):
        for kind, body in lines:
            if kind == "test" and key in body["runs"]:
                body["vectors"][body["runs"].index(key)] = digest_file(path)

    forge(store, change)
    assert any(words in problem for problem in problems(store))


# --- models ---------------------------------------------------------------------------------------


def models(store):
    """Return the findings of the model folders alone."""
    return list(check_models(store, study_records(store)))


def forge_model(store, change, method="triplet"):
    """Alter a model that was handed over, and write a card that fits it."""
    folder = model_folder(store, method)
    model, card = read_model_folder(folder)
    change(model)
    shutil.rmtree(folder)
    own = ("format", "architecture", "sha256")
    kept = {name: value for name, value in card.items() if name not in own}
    write_model_folder(folder, model, kept)


def exchange_heads(store):
    """Give the models of two methods each the head of the other."""
    heads = {name: read_model_folder(model_folder(store, name))[0].head for name in TWO}
    for name, other in zip(TWO, reversed(TWO), strict=True):
        forge_model(store, lambda model, head=heads[other]: setattr(model, "head", head), name)


def describe(**changes):
    """Return a change of the architecture that a model says it has."""
    return lambda model: setattr(model, "architecture", replace(model.architecture, **changes))


def nudge(name):
    def change(model):
        with torch.no_grad():
            model.state_dict()[name].mul_(1.001)

    return change


def other_folder(store):
    """Give the whole model of one method the name of another's."""
    ours, theirs = (model_folder(store, name) for name in TWO)
    shutil.rmtree(ours)
    theirs.rename(ours)


TWO = ("triplet", "pretrained")
OTHER_WEIGHTS = "has other weights than the run"
FORGED_MODELS = {
    "heads exchanged": (exchange_heads, OTHER_WEIGHTS),
    "a head": (lambda store: forge_model(store, nudge("head.weight")), OTHER_WEIGHTS),
    "the frozen trunk": (
        lambda store: forge_model(store, nudge("trunk.body.conv_stem.weight")),
        OTHER_WEIGHTS,
    ),
    "running statistics of the frozen trunk": (
        lambda store: forge_model(store, nudge("trunk.body.bn1.running_var")),
        OTHER_WEIGHTS,
    ),
    "the size of images": (lambda store: forge_model(store, describe(size=64)), OTHER_WEIGHTS),
    "the first step": (lambda store: forge_model(store, describe(resize="short")), OTHER_WEIGHTS),
    "how vectors are compared": (
        lambda store: forge_model(store, describe(similarity="euclidean")),
        OTHER_WEIGHTS,
    ),
    "the folders of two models": (other_folder, "it is the model of another study"),
}


@pytest.mark.forgery("verify", what="a model handed over, with a fitting card: {}")
@pytest.mark.parametrize("name", FORGED_MODELS)
def test_a_forged_model_with_a_fitting_card_is_not_that_of_its_run(copy, name):
    store, (tamper, words) = copy("frozen"), FORGED_MODELS[name]
    tamper(store)
    found = [finding.problem for finding in models(store)]
    assert any(words in problem for problem in found), found


@pytest.mark.forgery("verify", what="every entry of a model's card")
def test_every_entry_of_a_card_is_compared_with_the_study_but_the_names_of_classes(copy):
    store = copy("plain")
    path = model_folder(store) / "model.json"
    card = json.loads(path.read_text())
    for name, value in {**card, "epoch": 3, "accuracy": 0.99}.items():
        path.write_text(pretty({**card, name: another(value) if name in card else value}))
        found = any(finding.problem for finding in models(store))
        assert found != (name == "classes"), name
    path.write_text(pretty(card))
    assert not any(finding.problem for finding in models(store))


def another(value):
    """Return another value of the same kind."""
    match value:
        case dict():
            first = next(iter(value), None)
            return {**value, first: another(value[first])} if value else {"added": 1}
        case list():
            return [*value, "added"]
        case str():
            return f"{value}1"
        case None:
            return 1
        case _:
            return value + 1


def test_a_file_beside_a_model_is_named_and_accused_of_nothing(copy):
    store = copy("plain")
    (model_folder(store) / "README.md").write_text("99%")
    found = models(store)
    assert not any(one.problem for one in found)
    assert any("holds files that no study wrote: README.md" in one.note for one in found)


@pytest.mark.forgery("verify", what="a preregistration, with the whole chain hashed again")
def test_a_forged_preregistration_is_not_the_one_that_was_announced(copy):
    store = copy("plain")
    (anchor,) = store.benches()
    assert problems(store, anchor) == []
    forge(store, lambda lines: lines[0][1]["data"].update(name="folder:other"))
    found = problems(store, anchor)
    assert any("triplet was begun with another preregistration" in one for one in found)
    assert any("triplet was not carried out as announced" in one for one in found)


# --- pruned trials and peeks ----------------------------------------------------------------------


def pruned_line(lines):
    return next(line[1] for line in lines if line[0] == "trial" and line[1]["status"] == "pruned")


def never_pruned(lines):
    lines[0][1]["protocol"]["resolved"]["prune"] = 1.0


def peeked(change):
    def forge_peek(lines):
        change(lines[first_of(lines, "peek")][1])

    return forged(forge_peek)


def chosen_on_test(body):
    body["epochs"][0]["chosen"] = 1 - min(1, body["epochs"][0]["chosen"])


def score_of_the_chosen(body):
    entry = body["epochs"][0]
    entry["test"][str(entry["chosen"])] = 0.001


def early_peek(lines):
    lines.insert(first_of(lines, "seal"), lines.pop(first_of(lines, "peek")))


def checkpoint(store, best):
    run = run_of(store)
    chosen = json.loads((run / "result.json").read_text())["best_epoch"]
    names = sorted(
        (run / "checkpoints").iterdir(), key=lambda path: (path.stem == str(chosen)) != best
    )
    return names[0], names[1]


def swapped_checkpoints(store):
    first, second = checkpoint(store, best=True)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


SEARCHED = {
    "an estimate": (
        forged(lambda lines: pruned_line(lines).update(estimate=0.9)),
        "its estimate is not what its first fold gives",
    ),
    "the rule of pruning": (
        forged(never_pruned),
        "it was given up after its first fold, but the protocol's rule keeps it",
    ),
    "a pruned trial with a value": (
        forged(lambda lines: pruned_line(lines).update(map_at_r=0.9)),
        "is not the mean of its folds",
    ),
    "a pruned trial called finished": (
        forged(lambda lines: pruned_line(lines).update(status="finished")),
        "it was kept after its first fold, but the protocol's rule gives it up",
    ),
    "the epoch of a peek": (peeked(chosen_on_test), "as the chosen one, the run has"),
    "the runs of a peek": (
        peeked(lambda body: body["epochs"].reverse()),
        "the peek is not at the runs of the reproductions",
    ),
    "the chosen score of a peek": (peeked(score_of_the_chosen), "is not the test score of the run"),
    "a score of a peek left out": (
        peeked(lambda body: body["epochs"][0]["test"].popitem()),
        "its scores are not those of the checkpoints that are kept",
    ),
    "the trials of a peek": (
        peeked(lambda body: body["trials"].pop()),
        "does not say of the trials what the study says",
    ),
    "the test half of a peek": (
        peeked(lambda body: body.update(test="0" * 64)),
        "the peek is at another test half",
    ),
    "a peek before the seal": (
        forged(early_peek),
        "a peek at test precedes the opening of the seal",
    ),
    "two peeks": (
        forged(lambda lines: lines.append(lines[-1])),
        "ledger.jsonl has 2 lines of the kind peek",
    ),
    "checkpoints swapped": (
        swapped_checkpoints,
        ".safetensors was altered: it is not the chosen model",
    ),
    "a checkpoint that was not chosen": (
        lambda store: cut(checkpoint(store, best=False)[0]),
        ".safetensors was altered",
    ),
    "a checkpoint removed": (
        lambda store: checkpoint(store, best=False)[0].unlink(),
        ".safetensors is missing",
    ),
    "a checkpoint from elsewhere": (
        lambda store: (run_of(store) / "checkpoints" / "77.safetensors").write_bytes(b""),
        "checkpoints/77.safetensors is not of this run",
    ),
}


@pytest.mark.forgery("verify", what="of pruned trials and peeks: {}")
@pytest.mark.parametrize("name", SEARCHED)
def test_tampering_with_pruned_trials_and_peeks_is_found_and_named(copy, name):
    check_found(copy("pruned and peeked"), *SEARCHED[name])


def everything_better(lines):
    for entry in lines[first_of(lines, "peek")][1]["epochs"]:
        for epoch in entry["test"]:
            entry["test"][epoch] = 1.0 if int(epoch) != entry["chosen"] else entry["test"][epoch]


def without_peek(lines):
    del lines[first_of(lines, "peek")]


UNSEEN = {"test scores of checkpoints not chosen": everything_better, "its line cut": without_peek}


@pytest.mark.forgery("nothing", what="a peek: {}")
@pytest.mark.parametrize("name", UNSEEN)
def test_what_was_peeked_at_is_taken_on_trust(copy, name):
    """No score, selection or verdict rests on it; the table of the price of peeking does."""
    store = copy("pruned and peeked")
    forge(store, UNSEEN[name])
    for checkpoints in store.root.glob("runs/*/*/checkpoints"):
        shutil.rmtree(checkpoints)
    write_report(store)
    assert problems(store) == []


# --- parameters from elsewhere, sweeps and generations --------------------------------------------


def point_of(store):
    records = [
        record
        for record in study_records(store)
        if record.announced.sweep is not None and record.method == "triplet"
    ]
    return min(records, key=lambda record: record.announced.sweep.value)


def at_point(change):
    return lambda store: forge(store, lambda lines: change(lines[0][1]), study=point_of(store).key)


def given_margin(announced):
    announced["given"]["parameters"]["margin"] = 0.77


SWEPT = {
    "given parameters": (at_point(given_margin), "its parameters are not those that study"),
    "given and reproduced parameters": (
        at_point(given_margin),
        "the selected parameters are not the given ones",
    ),
    "the value": (
        at_point(lambda announced: announced["sweep"].update(value="8")),
        "the protocol of this point of the sweep does not have dim=8",
    ),
    "a value that is not swept": (
        at_point(lambda announced: announced["sweep"].update(value="5")),
        "5 is not among the values",
    ),
    "the base": (
        at_point(lambda announced: announced["sweep"].update(base="0" * 64)),
        "the parameters of this sweep are not those of its base 000000000000",
    ),
    "the source": (
        at_point(lambda announced: announced["given"].update(origin={"kind": "given"})),
        "the parameters of this sweep are not those of its base",
    ),
    "a search announced": (
        at_point(lambda announced: announced["budget"].update(trials=2)),
        "2 trials were announced, the protocol says 0",
    ),
    "the base's selection": (forged(other_selection), "its parameters are not those that study"),
}


@pytest.mark.forgery("verify", what="of a sweep: {}")
@pytest.mark.parametrize("name", SWEPT)
def test_tampering_with_a_sweep_is_found_and_named(copy, name):
    check_found(copy("swept"), *SWEPT[name])


@pytest.mark.forgery("verify", what="{} in the announcement of a study with a pretrained trunk")
@pytest.mark.parametrize("weights", ["no weights", "other weights"])
def test_announced_weights_are_those_of_the_resolved_protocol(copy, weights):
    said = {"digest": "0" * 64, "pretrained_on": "ImageNet", "source": "timm"}
    forgery = forged(
        lambda lines: lines[0][1].update(weights=said if weights == "other weights" else None)
    )
    called = "000000000000" if weights == "other weights" else "none"
    check_found(
        copy("frozen"), forgery, f"preregistration: the hash of its weights is {called} and"
    )


def rewrite_history(store, entry, change):
    """Change the validations of a reproduction's run; its result and the ledger go with them."""
    folder = store.run(entry.key)
    edit_lines(folder / "history.jsonl", change)
    last = read_history(folder)[-1].epoch
    history = digest_file(folder / "history.jsonl")
    edit(folder / "result.json", lambda result: result.update(last_epoch=last, history=history))
    result = digest_file(folder / "result.json")

    def say(lines):
        for kind, body in lines:
            if kind == "reproduction" and body["key"] == entry.key:
                body.update(last_epoch=last, result=result)

    forge(store, say, next(one for one in study_records(store) if entry.key in one.runs).method)


def another_validation(lines):
    last = json.loads(lines[-1])
    lines.append(canonical({**last, "epoch": min(last["epoch"] + 2, 5)}) + "\n")


ENDS = {
    "cut after the best": (lambda lines: lines.pop(), "before the 5 epochs or the patience of 2"),
    "gone on past the patience": (
        another_validation,
        "where the patience of 2 epochs had run out",
    ),
}


@pytest.mark.forgery("verify", what="the validations of a run, with fitting hashes: {}")
@pytest.mark.parametrize("how", ENDS)
def test_a_training_ends_where_epochs_or_patience_run_out(copy, how):
    store, (change, words) = copy("out of patience"), ENDS[how]
    entries = [entry for record in study_records(store) for entry in record.reproductions]
    out_of_patience = next(entry for entry in entries if 0 < entry.last_epoch < 5)
    rewrite_history(store, out_of_patience, change)
    found = problems(store)
    assert len(found) == 1 and words in found[0], found


def test_a_training_that_diverged_may_end_after_any_validation():
    history = [Checkpoint(0, None, {"map_at_r": 0.5})]
    assert list(check_end(history, QUICK, diverged=True)) == []
    assert list(check_end(history, QUICK, diverged=False)) != []


@pytest.mark.forgery("verify", what="a published parameter")
def test_a_published_parameter_that_was_altered_is_found(copy):
    store = copy("published")
    forge(store, lambda lines: given_margin(lines[0][1]))
    assert any(
        "margin=0.77 is not the value published for cub" in problem for problem in problems(store)
    )


@pytest.mark.forgery("verify", what="parameters published for other data")
def test_parameters_published_for_other_data_are_found(copy):
    store = copy("published")
    forge(store, lambda lines: lines[0][1]["given"]["origin"].update(data="sop"))
    assert any(
        "said to be published for sop, and the protocol is that of cub" in problem
        for problem in problems(store)
    )


@pytest.mark.forgery("verify", what="given parameters called searched")
def test_given_parameters_that_are_said_to_be_searched_are_found(copy):
    store = copy("published")
    forge(store, lambda lines: lines[0][1]["given"].update(origin={"kind": "searched"}))
    assert any("given" in problem for problem in problems(store))


@pytest.mark.forgery("verify", what="a study without folds")
def test_a_study_without_folds_is_a_finding_and_no_crash(copy):
    store = copy("plain")
    forge(store, lambda lines: lines[0][1]["protocol"]["resolved"].update(folds=0))
    assert problems(store)


@pytest.mark.forgery("verify", what="the study before a study that was begun anew removed")
def test_a_study_whose_predecessor_was_removed_is_found(copy):
    store = copy("begun anew")
    shutil.rmtree(store.study(record_in(store).key))
    assert any(
        "this is study number 2 of its kind, and the one before it was removed" in problem
        for problem in problems(store)
    )


# --- equal conditions -----------------------------------------------------------------------------


def with_settings(record, **settings):
    protocol = record.announced.protocol
    changed = replace(protocol, resolved=replace(protocol.resolved, **settings))
    return replace(record, announced=replace(record.announced, protocol=changed))


@pytest.mark.forgery("verify", what="unequal settings under one protocol")
def test_studies_of_one_protocol_with_unequal_settings_are_found(made):
    records = [record_in(Store(made("plain")), name) for name in ("triplet", "untrained")]
    assert [finding.problem for finding in check_conditions(records)] == [""]
    unequal = [records[0], with_settings(records[1], reproductions=20)]
    found = [finding.problem for finding in check_conditions(unequal)]
    assert found == [
        "triplet and untrained were studied under one protocol with different values of"
        " reproductions"
    ]


def test_an_exception_that_the_protocol_makes_for_a_method_is_equal_conditions(made):
    records = [record_in(Store(made("plain")), name) for name in ("triplet", "untrained")]
    exceptions = {"triplet": {"dim": 4}}
    changed = [
        with_settings(records[0], exceptions=exceptions, dim=4),
        with_settings(records[1], exceptions=exceptions),
    ]
    assert [finding.problem for finding in check_conditions(changed)] == [""]


@pytest.mark.forgery("verify", what="another length of training under an exception")
def test_an_exception_hides_no_other_length_of_training(made):
    records = [record_in(Store(made("plain")), name) for name in ("triplet", "untrained")]
    exceptions = {"triplet": {"dim": 4}}
    for longer in ({"epochs": 9}, {"iterations": 9}, {"patience": 9}):
        changed = [
            with_settings(records[0], exceptions=exceptions, dim=4, **longer),
            with_settings(records[1], exceptions=exceptions),
        ]
        (found,) = [finding.problem for finding in check_conditions(changed)]
        assert f"with different values of {next(iter(longer))}" in found


def test_the_twin_of_a_method_has_its_exceptions(made):
    records = [record_in(Store(made("plain")), name) for name in ("triplet", "untrained")]
    exceptions = {"triplet": {"dim": 4}}
    twin = with_settings(records[0], exceptions=exceptions, dim=4)
    announced = replace(
        twin.announced,
        twin_of="triplet",
        method=replace(twin.announced.method, name="triplet.twin"),
    )
    changed = [replace(twin, announced=announced), with_settings(records[1], exceptions=exceptions)]
    assert changed[0].method == "triplet.twin"
    assert [finding.problem for finding in check_conditions(changed)] == [""]
