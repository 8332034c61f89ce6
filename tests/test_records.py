"""The formats of a store: a golden bench, records read and written again, bad ones refused."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import entries
from assay.engines import InlineEngine
from assay.hashing import canonical, pretty
from assay.protocols import customise, protocols
from assay.records import StudyRecord, study_records
from assay.records.benches import DeclaredBench, declared_benches
from assay.records.codec import FORMAT, BadRecord
from assay.records.ledger import Ledger, Line, read
from assay.records.lines import ENTRIES, Preregistration, Trial
from assay.records.origin import Given, GivenParameters, Published, Searched, SelectedBy
from assay.records.run import (
    CARD,
    Checkpoint,
    ModelCard,
    Run,
    RunResult,
    Timing,
    check_run,
    read_history,
    run_of_model,
)
from assay.records.store import Store
from assay.study import Execution, run_bench, run_sweep
from miniature import MINI_AT_ITS_RATE, make_features

GOLDEN = Path(__file__).parent / "golden"
SMALL = customise(
    protocols["quick"],
    [
        *MINI_AT_ITS_RATE,
        *("folds=4", "iterations=4", "reproductions=1", "training_metrics=recall_at_1"),
    ],
)
SCORES = (
    "validation", "map_at_r", "separated", "concatenated", "training", "metrics", "folds",
    "estimate",
)  # fmt: skip
"""Fields whose numbers depend on the machine."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A miniature bench with a sweep, the price of peeking and a look, with every kind of line."""
    folder = tmp_path_factory.mktemp("records")
    data, out = f"features:{make_features(folder / 'mini.npz')}", folder / "store"
    execution = Execution(InlineEngine(), keep="all")
    run_bench(data, ["triplet"], SMALL, out, execution)
    run_sweep(data, ["triplet"], SMALL, "dim=4", out, Execution(InlineEngine()))
    found = Store(out)
    ledger = Ledger(found.study(searched(found).key) / "ledger.jsonl")
    ledger.look(entries.look(searched(found).reproductions[0].key))
    return found


def searched(store: Store) -> StudyRecord:
    return next(record for record in study_records(store) if record.trials)


def lines_of(store: Store) -> list[Line]:
    return [line for key in store.studies() for line in read(store.study(key) / "ledger.jsonl")]


# --- the golden bench -----------------------------------------------------------------------------


def masked(value: Any, name: str = "", inside: bool = False) -> Any:
    """The value without hashes, versions, scores and clocks, which differ between machines."""
    inside = inside or name in SCORES
    if name in ("about", "departures"):
        return "<prose>"
    if isinstance(value, dict):
        if name == "versions":
            return dict.fromkeys(value, "<version>")
        return {key: masked(item, key, inside) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name, inside) for item in value]
    if isinstance(value, str):
        text = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", value)
        return {"torch": "<version>", "at": "<clock>"}.get(name, text)
    if name in ("best_epoch", "chosen"):
        return "<epoch>"
    return "<score>" if inside and isinstance(value, float) else value


def test_the_formats_are_the_golden_ones(store: Store) -> None:
    """To accept a change of a format, run with ASSAY_WRITE_GOLDEN=1 and read the difference."""
    record = searched(store)
    folder, run = store.study(record.key), store.run(record.reproductions[0].key)
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    peeks = [line["body"] for line in lines if line["kind"] == "peek"]
    for body in peeks:  # by epoch, whose scores depend on the machine
        for entry in body["epochs"]:
            entry["test"] = dict.fromkeys(entry["test"], "<score>")
        for trial in body["trials"]:
            trial["test"] = ["<score>"] * len(trial["test"])
            trial["validation"] = "<score>"
    bench = next(one for one in declared_benches(store) if len(one.methods) > 1)
    found = {
        "ledger.jsonl": "".join(canonical(masked(line)) + "\n" for line in lines),
        "result.json": pretty(masked(json.loads((run / "result.json").read_text()))),
        "config.json": pretty(masked(json.loads((run / "config.json").read_text()))),
        "bench.json": pretty(masked(bench.to_json())),
    }
    for name, text in found.items():
        if os.environ.get("ASSAY_WRITE_GOLDEN"):
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), name


# --- round trips ----------------------------------------------------------------------------------


def test_every_line_of_a_ledger_is_read_and_written_again_as_it_was(store: Store) -> None:
    lines = lines_of(store)
    assert {line.kind for line in lines} == set(ENTRIES)
    for line in lines:
        entry = line.entry()
        assert canonical(entry.to_json()) == canonical(line.body), line.kind
        assert type(entry).from_json(entry.to_json(), "again") == entry, line.kind


def test_every_file_of_a_run_is_read_and_written_again_as_it_was(store: Store) -> None:
    for key in sorted(searched(store).runs):
        folder = store.run(key)
        for kind, name in ((Run, "config"), (RunResult, "result"), (Timing, "timing")):
            document = json.loads((folder / f"{name}.json").read_text())
            assert canonical(kind.read(folder / f"{name}.json").to_json()) == canonical(document)
        assert Run.read(folder / "config.json").key == key
        text = "".join(canonical(one.to_json()) + "\n" for one in read_history(folder))
        assert text == (folder / "history.jsonl").read_text()


def test_the_card_of_a_model_is_read_and_written_again_as_it_was(store: Store) -> None:
    folders = sorted((store.root / "models").iterdir())
    assert folders
    for folder in folders:
        document = json.loads((folder / CARD).read_text())
        card = ModelCard.read(folder / CARD)
        rest = {name: document.pop(name) for name in ("format", "architecture", "sha256")}
        assert canonical(card.to_json()) == canonical(document)
        assert card.run == run_of_model(folder)
        noted = {**rest, **document, "note": "of the user"}
        assert ModelCard.from_json(noted, "with a note") == card


def test_a_study_and_a_bench_are_read_and_written_again_as_they_were(store: Store) -> None:
    for record in study_records(store):
        if not record.looks:  # this one was written without its study.json
            written = StudyRecord.read(store.study(record.key) / "study.json")
            assert written == record
    for bench in declared_benches(store):
        assert DeclaredBench.read(store.bench(bench.hash)) == bench


def test_an_origin_is_read_as_the_type_that_it_is() -> None:
    for origin in (Given(), Published("Musgrave et al. 2020", "cub"), SelectedBy("k")):
        given = GivenParameters({"margin": 0.1}, origin)
        announced = entries.announcement(given=given)
        again = Preregistration.from_json(announced.to_json(), "here")
        assert again.origin == origin, origin
    assert entries.announcement().origin == Searched()


def test_numbers_that_json_lacks_are_written_by_their_names() -> None:
    scores = {"spectral_decay": float("inf"), "pi_ratio": float("nan")}
    entry = entries.run_entry(training=scores)
    assert entry.to_json()["training"] == {"spectral_decay": "inf", "pi_ratio": "nan"}
    again = type(entry).from_json(json.loads(json.dumps(entry.to_json())), "here")
    assert repr(again) == repr(entry)


# --- bad records ----------------------------------------------------------------------------------


def without(name: str, document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def test_a_bad_record_is_refused_with_its_file_and_field() -> None:
    good, trial = entries.announcement().to_json(), entries.trial(runs=[entries.run_entry()])
    run = trial.runs[0].to_json()
    for kind, document, message in (
        (Preregistration, without("budget", good), "budget is missing"),
        (Preregistration, {**good, "colour": 1}, "colour is a field that this version"),
        (
            Preregistration,
            {**good, "budget": without("searches", good["budget"])},
            r"budget\.searches is missing",
        ),
        (Preregistration, {**good, "data": None}, "data is no JSON object but None"),
        (Preregistration, {**good, "generation": "1"}, "generation is '1', not a whole number"),
        (Preregistration, {**good, "space": {"margin": {}}}, "space cannot be read"),
        (
            Preregistration,
            {**good, "protocol": {**good["protocol"], "resolved": {}}},
            r"protocol\.resolved cannot be read",
        ),
        (
            Preregistration,
            {**good, "given": {"parameters": {}, "origin": {"kind": "dreamt"}}},
            r"given\.origin\.kind is 'dreamt', not one of given, published, selected by",
        ),
        (Preregistration, [], r"the document is no JSON object but \[\]"),
        (Trial, {**trial.to_json(), "status": "lost"}, "status is 'lost', not one of finished"),
        (Trial, {**trial.to_json(), "map_at_r": "high"}, "map_at_r is 'high', not a number"),
        (Trial, {**trial.to_json(), "runs": {}}, r"runs is no JSON array but \{\}"),
        (
            Trial,
            {**trial.to_json(), "runs": [run, {**run, "best_epoch": True}]},
            r"runs\[1\]\.best_epoch is True, not a whole number",
        ),
        (Checkpoint, {"epoch": 1, "loss": None}, "validation is missing"),
    ):
        with pytest.raises(BadRecord, match=rf"^studies/k/ledger\.jsonl, line 1: {message}"):
            kind.from_json(document, "studies/k/ledger.jsonl, line 1")


def test_another_format_number_is_refused_with_the_version_that_reads_it() -> None:
    good = entries.announcement().to_json()
    assert good["format"] == FORMAT
    for found, message in (
        (FORMAT + 1, rf"has format {FORMAT + 1}; .* A newer version of Assay wrote it"),
        (FORMAT - 1, rf"has format {FORMAT - 1}; .* development version before Assay 0\.1\.0"),
        (str(FORMAT), rf"has format {FORMAT}; .* development version"),
        (float(FORMAT), rf"has format {FORMAT}\.0; .* development version"),
        (None, r"has no format number; .* development version"),
    ):
        with pytest.raises(BadRecord, match=f"^here {message}"):
            Preregistration.from_json({**good, "format": found}, "here")
    with pytest.raises(BadRecord, match="no format number"):
        Preregistration.from_json(without("format", good), "here")


def test_a_run_folder_is_intact_or_says_what_is_not(store: Store, tmp_path: Path) -> None:
    original = store.run(searched(store).reproductions[0].key)
    best = RunResult.read(original / "result.json").best_epoch
    protocol = json.loads((original / "config.json").read_text())["protocol"]
    assert check_run(original) is None

    def alter(name: str, **changes: Any) -> Any:
        def change(folder: Path) -> None:
            document = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**document, **changes}))

        return change

    def write(name: str, text: str) -> Any:
        return lambda folder: (folder / name).write_text(text)

    for change, message in (
        (write("result.json", ""), "result.json cannot be read: it was altered, or is no JSON"),
        (alter("result.json", best_epoch="last"), "result.json: best_epoch is 'last', not a"),
        (alter("result.json", best_epoch=best + 7), "result.json does not go with history.jsonl"),
        (alter("result.json", weights="0" * 64), "model.safetensors was altered"),
        (alter("config.json", seed=1), "config.json was altered"),
        *(
            (alter("config.json", protocol={**protocol, **unread}), "config.json was altered")
            for unread in ({"trials": 9999}, {"name": "reality-check/cub.v1"}, {"exceptions": {}})
        ),
        (alter("config.json", seed=None), "config.json: seed is None, not a whole number"),
        (write("history.jsonl", ""), "result.json does not go with history.jsonl"),
        (write("model.safetensors", "x"), "model.safetensors was altered"),
        (write(f"checkpoints/{best}.safetensors", "x"), f"checkpoints/{best}.safetensors was"),
        (write("checkpoints/99.safetensors", "x"), "checkpoints/99.safetensors is not of this run"),
        (lambda folder: (folder / "history.jsonl").unlink(), "history.jsonl is missing"),
        (
            lambda folder: (folder / "checkpoints" / f"{best}.safetensors").unlink(),
            f"checkpoints/{best}.safetensors is missing",
        ),
    ):
        folder = Path(shutil.copytree(original, tmp_path / original.name))
        change(folder)
        problem = check_run(folder)
        assert problem is not None and problem.startswith(message), (problem, message)
        shutil.rmtree(folder)
    weightless = Path(shutil.copytree(original, tmp_path / original.name))
    (weightless / "model.safetensors").unlink()
    assert check_run(weightless) is None


# --- questions to a study -------------------------------------------------------------------------


def study(**changes: Any) -> StudyRecord:
    own = StudyRecord(
        key="k",
        announced=entries.announcement(own_budget=entries.budget(searches=2, trials=1)),
        preregistration="0" * 64,
        trials=(),
        selections=(),
        reproductions=(),
        seal=None,
        tests=(),
        looks=(),
        peek=None,
    )
    return replace(own, **changes)


def test_the_choice_of_the_search_that_validates_best_is_handed_on() -> None:
    selections = (entries.selection(search=0), entries.selection(search=1))
    reproductions = tuple(
        entries.reproduction(0, fold, search, validation={"map_at_r": value})
        for search, values in enumerate(((0.5, 0.1), (0.4, 0.3)))
        for fold, value in enumerate(values)
    )
    found = study(selections=selections, reproductions=reproductions)
    assert found.selection == selections[1]
    assert replace(found, reproductions=reproductions[:-1]).selection is None
    of_one_search = replace(found, reproductions=2 * reproductions[2:])
    assert of_one_search.selection == selections[1], "a search without runs is never the best"
    diverged = (entries.selection(None, parameters=None), selections[1])
    failed = replace(found, selections=diverged)
    assert failed.failed and failed.ended and failed.selection is None


def test_a_study_is_complete_when_every_reproduction_has_its_scores() -> None:
    tests = tuple(entries.scored(search=search) for search in (0, 1))
    assert not study(tests=tests[:1]).complete
    found = study(tests=tests)
    assert found.complete and found.ended
    assert found.units("separated", "map_at_r") == [0.5, 0.5]
    assert found.by_search("concatenated", "map_at_r") == [[0.5], [0.5]]


# --- the page that describes a store --------------------------------------------------------------


PAGE = Path(__file__).parents[1] / "docs" / "store.md"


def shown_in_full(shown: Any, golden: Any) -> bool:
    """Whether an example has the fields of a golden record; `...` stands for what is cut."""
    if isinstance(shown, dict) and "..." in shown:
        return isinstance(golden, dict)
    if isinstance(shown, dict):
        return (
            isinstance(golden, dict)
            and shown.keys() == golden.keys()
            and all(shown_in_full(shown[name], golden[name]) for name in shown)
        )
    return not isinstance(shown, list) or not shown or shown_in_full(shown[0], golden[0])


def test_the_page_of_the_store_shows_every_kind_of_line_as_it_is_written() -> None:
    lines = (GOLDEN / "ledger.jsonl").read_text().splitlines()
    bodies = {line["kind"]: line["body"] for line in map(json.loads, filter(None, lines))}
    examples = dict(re.findall(r"### (\w+)\n.*?```json\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert examples.keys() == ENTRIES.keys() == bodies.keys()
    for kind, example in examples.items():
        assert shown_in_full(json.loads(example), bodies[kind]), kind


def test_the_page_of_the_store_shows_run_and_bench_as_they_are_written() -> None:
    blocks = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)]
    for name in ("config.json", "result.json", "bench.json"):
        golden = json.loads((GOLDEN / name).read_text())
        assert any(
            isinstance(block, dict) and shown_in_full(block, golden) and len(block) == len(golden)
            for block in blocks
        ), name


def test_the_page_of_the_store_names_every_file_of_a_store(store: Store) -> None:
    text = PAGE.read_text()
    for path in store.root.rglob("*"):
        relative = path.relative_to(store.root)
        if path.is_file() and relative.parts[0] not in ("report", "models"):
            if re.fullmatch(r"[0-9a-f]{64}|\d+(-\d+)?", path.stem):
                assert f"{relative.parts[0]}/" in text and path.suffix in text, relative
            else:
                assert path.name in text, relative
