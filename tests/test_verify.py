"""`assay verify` finds every kind of tampering and names it."""

import json
import shutil

import numpy as np
import pytest

import assay
from assay.ledger import Ledger, read
from assay.protocol import customise
from assay.protocols import protocols
from assay.store import Store
from assay.study import study_records
from assay.verify import verify
from miniature import MINI, make_folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A finished miniature bench."""
    root = tmp_path_factory.mktemp("verify")
    folder = make_folder(root / "mini")
    protocol = customise(protocols["quick"], MINI)
    assay.bench(f"folder:{folder}", ["triplet", "pretrained"], protocol, root / "store", workers=2)
    return root / "store"


@pytest.fixture
def store(sound, tmp_path):
    return Store(shutil.copytree(sound, tmp_path / "store"))


@pytest.fixture
def study(store):
    """The study of triplet: its folder and record."""
    record = next(record for record in study_records(store) if record.method == "triplet")
    return store.study(record.key), record


def problems(store):
    return [f"{finding.what}: {finding.problem}" for finding in verify(store) if finding.problem]


def rewrite_ledger(folder, change):
    """What a careful forger does: alter the lines and hash the whole chain again."""
    lines = [[line.kind, line.body] for line in read(folder / "ledger.jsonl")]
    change(lines)
    (folder / "ledger.jsonl").unlink()
    ledger = Ledger(folder / "ledger.jsonl")
    for kind, body in lines:
        ledger.record(kind, body)


def test_a_sound_store_passes(store):
    assert problems(store) == []


def test_an_altered_number_in_a_ledger_line_is_found(store, study):
    path = study[0] / "ledger.jsonl"
    path.write_text(path.read_text().replace('"map_at_r":0.', '"map_at_r":0.9', 1))
    assert "was altered: its hash does not fit" in problems(store)[0]


@pytest.mark.parametrize("line", [1, 3, -1])
def test_a_removed_line_is_found(store, study, line):
    path = study[0] / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    del lines[line]
    path.write_text("".join(lines))
    assert problems(store)


def test_reordered_lines_are_found(store, study):
    path = study[0] / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[1], lines[2] = lines[2], lines[1]
    path.write_text("".join(lines))
    assert "lines were removed or moved" in problems(store)[0]


def test_a_trial_forged_with_a_new_chain_is_found_by_its_runs(store, study):
    def forge(lines):
        lines[1][1]["map_at_r"] = 0.99

    rewrite_ledger(study[0], forge)
    assert any("trial 0: its MAP@R is not the mean of its folds" in problem for problem in problems(store))


def test_another_selection_with_a_new_chain_is_found(store, study):
    chosen = study[1].selection["trial"]

    def forge(lines):
        lines[3][1]["trial"] = 1 - chosen

    rewrite_ledger(study[0], forge)
    assert any(f"trial {1 - chosen} was selected, trial {chosen} is the best" in problem for problem in problems(store))


def test_a_deleted_trial_with_a_new_chain_is_found(store, study):
    rewrite_ledger(study[0], lambda lines: lines.pop(1))
    assert any("1 trials, 2 were announced" in problem for problem in problems(store))


def test_fold_scores_forged_with_a_new_chain_are_found_by_their_results(store, study):
    def forge(lines):
        for run in lines[1][1]["runs"]:
            run["validation"]["map_at_r"] = 0.99
        lines[1][1]["map_at_r"] = 0.99

    rewrite_ledger(study[0], forge)
    assert any("the ledger does not say what its result says" in problem for problem in problems(store))


def test_test_scores_of_another_reproduction_are_found(store, study):
    def forge(lines):
        lines[-1][1] = {**lines[-2][1], "reproduction": 1}

    rewrite_ledger(study[0], forge)
    assert any("test scores 1 are not those of reproduction 1" in problem for problem in problems(store))


def test_runs_of_another_method_are_found(store, study):
    other = next(record for record in study_records(store) if record.method == "pretrained")

    def forge(lines):
        for number, entry in enumerate(other.reproductions):
            lines[4 + number][1] = entry

    rewrite_ledger(study[0], forge)
    assert any("is not the run of reproduction 0, fold 0" in problem for problem in problems(store))


def test_a_stale_receipt_is_found(store, study):
    def forge(lines):
        lines[2][1]["note"] = "harmless"

    rewrite_ledger(study[0], forge)
    assert any("the seal was opened with the receipt of something else" in problem for problem in problems(store))


@pytest.mark.parametrize("name", ["config.json", "history.jsonl"])
def test_a_run_without_its_configuration_or_history_is_found(store, study, name):
    (store.run(study[1].reproductions[0]["key"]) / name).unlink()
    assert any(f"{name} is missing" in problem for problem in problems(store))


def test_an_altered_configuration_is_found(store, study):
    path = store.run(study[1].reproductions[0]["key"]) / "config.json"
    path.write_text(path.read_text().replace('"seed": ', '"seed": 1'))
    assert any("config.json was altered" in problem for problem in problems(store))


def test_a_study_that_goes_on_after_the_report_is_no_problem(store, study):
    """The report says which studies it covers; a newer one is only noted."""
    rewritten = store.study("f" * 64)
    shutil.copytree(study[0], rewritten)
    (rewritten / "ledger.jsonl").unlink()
    (rewritten / "study.json").unlink()
    ledger = Ledger(rewritten / "ledger.jsonl")
    for line in read(study[0] / "ledger.jsonl")[:2]:
        ledger.record(line.kind, line.body)
    assert problems(store) == []
    assert any("does not cover 1 studies yet" in finding.what for finding in verify(store))


def test_a_test_score_before_the_seal_is_found(store, study):
    def forge(lines):
        lines.insert(2, lines.pop())

    rewrite_ledger(study[0], forge)
    assert any("a test score precedes the opening of the seal" in problem for problem in problems(store))


def test_an_early_opening_of_the_seal_is_found(store, study):
    def forge(lines):
        seal = next(index for index, (kind, _) in enumerate(lines) if kind == "seal")
        lines.insert(2, lines.pop(seal))

    rewrite_ledger(study[0], forge)
    assert any("the seal was opened before selection and reproductions" in problem for problem in problems(store))


def test_a_test_score_forged_with_a_new_chain_is_found_by_its_vectors(store, study):
    def forge(lines):
        lines[-1][1]["separated"]["map_at_r"] = 0.99

    rewrite_ledger(study[0], forge)
    assert any("test scores do not come out of its vectors" in problem for problem in problems(store))


def test_an_edited_study_file_is_found(store, study):
    path = study[0] / "study.json"
    content = json.loads(path.read_text())
    content["announced"]["space"]["margin"]["high"] = 4.0
    path.write_text(json.dumps(content))
    assert any("study.json does not say what the ledger says" in problem for problem in problems(store))


def test_a_missing_study_file_is_found(store, study):
    (study[0] / "study.json").unlink()
    assert any("study.json is missing" in problem for problem in problems(store))


@pytest.mark.parametrize("name", ["result.json", "model.safetensors"])
def test_an_altered_file_of_a_run_is_found(store, study, name):
    path = store.run(study[1].reproductions[0]["key"]) / name
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert any(f"{name} was altered" in problem for problem in problems(store))


@pytest.mark.parametrize("name", ["result.json", "model.safetensors"])
def test_a_missing_file_of_a_run_is_found(store, study, name):
    (store.run(study[1].reproductions[0]["key"]) / name).unlink()
    assert any("is missing" in problem for problem in problems(store))


def test_altered_test_vectors_are_found(store, study):
    path = store.test_vectors(study[1].reproductions[0]["key"], study[1].seal["test"])
    np.save(path, np.load(path)[::-1])
    assert any("its test vectors were altered" in problem for problem in problems(store))


def test_altered_test_labels_are_found(store, study):
    path = store.answers(study[1].seal["test"])
    with np.load(path) as arrays:
        y = arrays["y"]
    np.savez(path, y=np.roll(y, 2))
    assert any("the labels of the test half were altered" in problem for problem in problems(store))
    path.write_bytes(path.read_bytes()[:-9])
    assert any("the labels of the test half were altered" in problem for problem in problems(store))


def test_an_edited_table_is_found(store):
    path = next((store.root / "report" / "tables").glob("*-scores.csv"))
    path.write_text(path.read_text().replace("0.", "0.9", 1))
    assert problems(store) == [f"table {path.name}: does not say what the studies say; run `assay report` after looking into it"]


def test_a_table_from_elsewhere_is_found(store):
    (store.root / "report" / "tables" / "best.csv").write_text("ours,100\n")
    assert problems(store) == ["table best.csv: no study here gives this table"]


def test_an_empty_store_has_nothing_to_verify(tmp_path):
    assert "no study has been begun" in problems(Store.create(tmp_path / "store"))[0]
