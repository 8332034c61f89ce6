"""Looks at test halves by the content of samples: from every way in, right to the sample, however
the data are called, ordered or cut, and wherever the model was copied.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import assay as package
from again import retest
from assay.data import load
from assay.data.seal import SealedTest
from assay.data.sources.features import digests_of_rows
from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.evaluation import baselines, embed, evaluate_file, evaluate_model
from assay.files import looks_folder as user_folder
from assay.hashing import digest_bytes
from assay.protocols import customise, protocols
from assay.records.halves import (
    KnownHalf,
    half_of_model,
    half_of_study,
    join_halves,
    pack_contents,
    prints_of,
    prints_of_rows,
)
from assay.records.ledger import read
from assay.records.looks import IndexedHalf, LookIndex, enter_opened_half
from assay.records.merge import merge
from assay.records.progress import Listener
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import write_report
from assay.run.finished import FinishedRun
from assay.trunks.lite0 import Lite0
from assay.verify import verify
from forgery import forge, record_in
from miniature import MINI, make_features, make_folder, snapshot

PROTOCOL = customise(protocols["quick"], [*MINI, "folds=4"])
TEST = 40
"""Samples of the test half: 8 of 16 classes of 5."""


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """Return a folder with vectors and a store with a finished miniature bench on them."""
    root = tmp_path_factory.mktemp("looks")
    bench(make_features(root / "data.npz"), root / "store")
    return root


def bench(data, out, methods=("triplet",), **options):
    kind = "folder" if data.is_dir() else "features"
    package.bench(f"{kind}:{data}", methods, PROTOCOL, out, engine="inline", **options)


@pytest.fixture
def place(benched, tmp_path, monkeypatch):
    """Copy the bench to a folder that a test may change; its index of looks has nothing yet."""
    monkeypatch.chdir(shutil.copytree(benched, tmp_path / "place"))
    return tmp_path / "place"


@pytest.fixture
def entered(place):
    """Enter the test half of the store in the index, as the bench did in its own."""
    for record in study_records(store()):
        enter_opened_half(store(), record, print)
    return LookIndex()


def store():
    return Store(Path("store"))


def model():
    return next(Path("store/models").glob("*-triplet-*"))


def copied_out(name="taken"):
    """Copy the model out of the store, and remove the store."""
    shutil.copytree(model(), name)
    shutil.rmtree("store")
    return name


def ledger_looks():
    return [look for record in study_records(store()) for look in record.looks]


# --- other copies of the data ---------------------------------------------------------------------


def rows(arrays, chosen):
    return {name: array[chosen] for name, array in arrays.items()}


def without_a_trainval_row(arrays):
    return rows(arrays, np.arange(len(arrays["y"])) != 3)


def without_a_test_row(arrays):
    return rows(arrays, np.arange(len(arrays["y"])) != 43)


def reordered(arrays):
    return rows(arrays, np.random.default_rng(0).permutation(len(arrays["y"])))


def relabelled(arrays):
    return {**arrays, "y": np.array([f"class {chr(97 + label)}" for label in arrays["y"]])}


def renamed(arrays):
    return {**arrays, "ids": np.array([f"sample {row}" for row in range(len(arrays["y"]))])}


def half_of_them_new(arrays):
    z = arrays["z"].copy()
    z[::2] += 1
    return {**arrays, "z": z}


COPIES = {
    "as they are": (dict, 40),
    "a trainval row dropped": (without_a_trainval_row, 40),
    "a test row dropped": (without_a_test_row, 39),
    "reordered": (reordered, 40),
    "relabelled": (relabelled, 40),
    "renamed": (renamed, 40),
    "every other sample replaced": (half_of_them_new, 20),
}
"""Changed copies of the data, and how many of the 40 test samples their test halves have."""


def copy_of_data(change, path="other.npz"):
    np.savez(path, **change(dict(np.load("data.npz"))))
    return f"features:{path}"


def said(count):
    return (
        f"this looks at {count} of {TEST} samples ({round(100 * count / TEST)}%) of the test half"
    )


every_copy = pytest.mark.parametrize("name", COPIES)


@pytest.mark.forgery(
    "a recorded look",
    what="data disguised, to hide a look by a model of the store: {}",
)
@every_copy
def test_a_look_by_a_model_of_the_store_is_in_the_ledger_whatever_the_data_are_called(place, name):
    change, count = COPIES[name]
    found = evaluate_model(model(), copy_of_data(change), test=True, protocol=PROTOCOL)
    (note,) = [note for note in found.notes if "this looks at" in note]
    assert said(count) in note and "recorded as look 1 at test in the study of triplet" in note
    (look,) = ledger_looks()
    assert (look.samples, look.data, look.metrics) == (count, "features:other.npz", found.means)
    assert not [finding for finding in verify(store()) if finding.problem]


@pytest.mark.forgery(
    "a recorded look",
    what="data disguised, and the model copied out of the store: {}",
)
@every_copy
def test_a_look_by_a_model_that_was_copied_out_is_beside_it_whatever_the_data_are_called(
    place, name
):
    change, count = COPIES[name]
    taken = copied_out()
    found = evaluate_model(taken, copy_of_data(change), test=True, protocol=PROTOCOL)
    (note,) = [note for note in found.notes if "this looks at" in note]
    assert f"{said(count)} of features:data.npz, opened by the study of triplet" in note
    assert "recorded as look 1 at test in taken/looks.jsonl" in note
    (look,) = [json.loads(line) for line in Path(taken, "looks.jsonl").read_text().splitlines()]
    assert (look["samples"], look["metrics"]) == (count, found.means)


@pytest.mark.forgery(
    "a recorded look",
    what="known test samples looked at by what belongs to no study: {}",
)
@every_copy
def test_a_look_by_what_belongs_to_no_study_is_in_the_index(entered, name):
    change, count = COPIES[name]
    data = copy_of_data(change)
    path = data.removeprefix("features:")
    looks = [
        evaluate_file(path, data, test=True, protocol=PROTOCOL).notes,
        evaluate_file(path).notes,
        baselines(data, ["identity"], PROTOCOL, test=True)[0].notes,
        embed(model().rename("elsewhere"), data).notes,
    ]
    for number, notes in enumerate(looks, 1):
        (note,) = [note for note in notes if "this looks at" in note]
        assert f"{said(count)} of features:data.npz, opened by the studies of" in note
        where = (
            "in elsewhere/looks.jsonl"
            if number == 4
            else f"in the index of looks ({entered.folder})"
        )
        assert f"recorded as look {1 if number == 4 else number}" in note and where in note
    assert len(entered.looks(opened_half().prints)) == 4


def opened_half():
    return half_of_study(store(), record_in(store()))


# --- without --test -------------------------------------------------------------------------------


def test_validation_folds_that_have_test_samples_are_a_look(place):
    """With the order of the classes turned round, the test half is trainval."""
    data = copy_of_data(lambda arrays: {**arrays, "y": 15 - arrays["y"]})
    found = evaluate_model(model(), data, protocol=PROTOCOL)
    assert said(40) in found.notes[0]
    (look,) = ledger_looks()
    assert (look.samples, look.queries, look.metrics) == (40, 40, found.means)
    three_folds = copy_of_data(lambda arrays: {**arrays, "y": (arrays["y"] + 6) % 16})
    assert said(30) in evaluate_model(model(), three_folds, protocol=PROTOCOL).notes[0]


def test_disjoint_samples_are_no_look(entered):
    make_features(Path("other.npz"), seed=1)
    before = {path: path.read_bytes() for path in Path("store").rglob("*") if path.is_file()}
    for words in ({}, {"test": True}):
        for found in (
            evaluate_model(model(), "features:other.npz", protocol=PROTOCOL, **words),
            evaluate_file("other.npz", "features:other.npz", protocol=PROTOCOL, **words),
            baselines("features:other.npz", ["identity"], PROTOCOL, **words)[0],
            embed(model(), "features:other.npz"),
            evaluate_model(model(), "features:data.npz", protocol=PROTOCOL),
        ):
            assert not any("this looks at" in note for note in found.notes)
    assert {p: p.read_bytes() for p in Path("store").rglob("*") if p.is_file()} == before
    assert entered.looks(opened_half().prints) == []


def test_copies_of_test_samples_in_the_own_trainval_are_no_look(tmp_path, monkeypatch):
    """The study itself searches them in validation; under other data they are one."""
    monkeypatch.chdir(tmp_path)
    make_features(Path("data.npz"))
    arrays = dict(np.load("data.npz"))
    arrays["z"][0] = arrays["z"][-1]
    np.savez("data.npz", **arrays)
    bench(Path("data.npz"), Path("store"), allow_leaks=True)
    assert evaluate_model(model(), "features:data.npz", protocol=PROTOCOL).notes == ()
    other = copy_of_data(lambda arrays: rows(arrays, np.arange(len(arrays["y"])) != 20))
    assert said(1) in evaluate_model(model(), other, protocol=PROTOCOL).notes[0]


# --- images ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Return a folder with images, and a store with a finished bench of their features."""
    root = tmp_path_factory.mktemp("looks-images")
    frozen = customise(PROTOCOL, ["trunk=conv", "weights=none", "frozen=nothing", "folds=2"])
    package.bench(
        f"folder:{make_folder(root / 'mini')}",
        ["untrained"],
        frozen,
        root / "store",
        engine="inline",
    )
    return root


@pytest.mark.forgery("a recorded look", what="known test images embedded from another place")
def test_known_test_images_are_noticed_wherever_they_lie(assay, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Lite0, "side", 32)
    known = Store(images / "store")
    for record in study_records(known):
        enter_opened_half(known, record, print)
    (half,) = LookIndex().halves()
    total = len(half.prints)
    dataset = load(f"folder:{images / 'mini'}")
    test = [images / "mini" / dataset.ids[row] for row in np.flatnonzero(dataset.labels >= 8)]
    Path("mixed").mkdir()
    for number, path in enumerate(test[:7]):
        shutil.copy(path, f"mixed/renamed{number}.png")
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save("mixed/new.png")
    seen = f"this looks at 7 of {total} samples ({round(700 / total)}%) of the test half of"
    code, _, err = assay("embed", "lite0", "mixed", "--out", "f.npz")
    assert (
        code == 0 and f"note: {seen} folder:mini" in err and "look 1 in the index of looks" in err
    )
    assert seen in embed("lite0", [*map(str, test[:7])]).notes[0]
    assert embed("lite0", "mixed/new.png").notes == ()
    twin = f"folder:{shutil.copytree(images / 'mini', 'twin')}"
    for command in (
        ("evaluate", "lite0", "--data", twin, "--test"),
        ("baselines", "--data", twin, "--trunks", "conv", "--test", "--set", "size=16", "--json"),
    ):
        code, _, err = assay(*command)
        assert code == 0 and f"this looks at {total} of {total} samples (100%)" in err


# --- places ---------------------------------------------------------------------------------------


def test_a_model_without_its_list_of_samples_is_caught_by_the_index(entered):
    taken = copied_out()
    Path(taken, "test_half.sha256").unlink()
    found = evaluate_model(taken, copy_of_data(without_a_trainval_row), protocol=PROTOCOL)
    assert not any("this looks at" in note for note in found.notes)
    found = evaluate_model(taken, copy_of_data(without_a_test_row), test=True, protocol=PROTOCOL)
    assert said(39) in found.notes[0] and "taken/looks.jsonl" not in found.notes[0]


def test_a_look_at_a_half_that_no_study_opened_is_in_the_index_too(assay, place, looks_folder):
    make_features(Path("other.npz"), seed=1)
    words = ("evaluate", "other.npz", "--data", "features:other.npz", "--test")
    for number in (1, 2):
        code, _, err = assay(*words)
        assert code == 0
        assert err == (
            "note: no study is known to have opened the test half of features:other.npz; this look"
            f" at it is recorded as look {number} in the index of looks ({looks_folder})\n"
        )


def test_two_names_of_one_test_half_are_one_known_half():
    prints = prints_of([f"{number:064x}" for number in (3, 1, 2)])
    halves = [KnownHalf("a", prints, frozenset([name]), {name: name}) for name in ("s", "t")]
    (half,) = join_halves(halves)
    assert (half.trainvals, half.studies) == ({"s", "t"}, {"s": "s", "t": "t"})
    assert half.opened_by() == "the studies of s, t"


def test_a_study_that_is_being_scored_is_not_looked_at_by_other_data_either(place):
    path = store().study(record_in(store()).key) / "ledger.jsonl"
    count = next(line.number for line in read(path) if line.kind == "test")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    other = copy_of_data(without_a_trainval_row)
    with pytest.raises(BadInput, match="the study is still being scored"):
        evaluate_model(model(), other, test=True, protocol=PROTOCOL)
    assert read(path)[-1].kind == "seal"


def test_a_model_with_other_weights_records_nothing_as_the_run(place):
    card = json.loads((model() / "model.json").read_text())
    others = [one.key for one in record_in(store()).reproductions if one.key != card["run"]]
    shutil.copy(store().run(others[0]) / "model.safetensors", model())
    with pytest.raises(BadInput, match=r"is not the file that model\.json was written with"):
        evaluate_model(model(), copy_of_data(without_a_trainval_row), test=True, protocol=PROTOCOL)
    assert ledger_looks() == []


# --- before the seal ------------------------------------------------------------------------------


class Notes(Listener):
    """Keeps what a bench announces."""

    def __init__(self):
        self.said = []

    def announce(self, who, text):
        self.said.append(text)


def test_looks_before_a_bench_are_reported_when_it_opens_the_test_half(benched, place, assay):
    """Once for the store, on stderr and by verify; the store is the same bytes as without."""
    data, notes = Path("data.npz"), Notes()
    evaluate_file("data.npz", "features:data.npz", test=True, protocol=PROTOCOL)
    evaluate_file("data.npz", copy_of_data(without_a_test_row, "data.npz"), protocol=PROTOCOL)
    shutil.copy(benched / "data.npz", data)
    bench(data, Path("again"), listener=notes)
    (early,) = [text for text in notes.said if "before this test half" in text]
    assert early.startswith(
        "before this test half was opened, 40 of 40 samples (100%) were looked at once, by assay"
        " evaluate data.npz on features:data.npz ("
    )
    assert snapshot(Path("again")) == snapshot(benched / "store")
    assay("evaluate", "data.npz", "--data", "features:data.npz", "--test")
    (finding,) = [one for one in verify(Store(Path("again"))) if one.what.startswith("index")]
    assert finding.what == "index of looks: test half of features:data.npz"
    assert "looked at 2 times, last by assay evaluate data.npz" in finding.note
    assert ", 1 before it was opened here" in finding.note and not finding.problem
    notes.said.clear()
    bench(data, Path("again"), listener=notes)
    assert not any("before this test half" in text for text in notes.said)
    halves = [line for line in LookIndex().lines() if isinstance(line.entry, IndexedHalf)]
    assert len(halves) == len(study_records(Store(Path("again")))) == 2


@pytest.mark.forgery("a recorded look", what="a first bench thrown away, store and all")
def test_a_store_that_was_thrown_away_is_named_when_another_opens_the_half(place):
    bench(Path("data.npz"), Path("secret"), methods=["pretrained"])
    shutil.rmtree("secret")
    notes = Notes()
    bench(Path("data.npz"), Path("shown"), methods=["pretrained"], listener=notes)
    (early,) = [text for text in notes.said if "before this test half" in text]
    assert f"studies of {place / 'secret'} opened samples of it" in early


def test_nothing_of_the_test_half_is_anywhere_before_its_seal_opens(
    tmp_path, monkeypatch, looks_folder
):
    monkeypatch.chdir(tmp_path)
    data, opened = make_features(Path("data.npz")), SealedTest.open

    def refuse(sealed, receipt):
        raise RuntimeError("not yet")

    monkeypatch.setattr(SealedTest, "open", refuse)
    with pytest.raises(RuntimeError, match="not yet"):
        bench(data, Path("store"))
    monkeypatch.setattr(SealedTest, "open", opened)
    with np.load(data) as arrays:
        vectors = arrays["z"][arrays["y"] >= 8]
    np.savez("test.npz", z=vectors, y=np.zeros(len(vectors), dtype=int))
    hashes = load("features:test.npz").items._digests
    assert len(set(hashes)) == TEST
    traces = [text.encode() for hash_ in hashes for text in (hash_, hash_[:16])]
    traces += [prints_of([hash_]).tobytes() for hash_ in hashes]
    traces += [bytes.fromhex(hash_) for hash_ in hashes]

    def leaks():
        files = (*Path("store").rglob("*"), *looks_folder.rglob("*"))
        contents = [path.read_bytes() for path in files if path.is_file()]
        return sum(trace in content for trace in traces for content in contents)

    assert leaks() == 0
    assert not list(Path("store").glob("answers/*")) and LookIndex().lines() == []
    bench(data, Path("store"))
    assert leaks() > 0, "the check sees them once the seal is open"
    assert half_of_study(store(), record_in(store())).count_in(prints_of(hashes)) == TEST


# --- the index: concurrency, kills, damage --------------------------------------------------------

PRINTS = prints_of([f"{number << 192:064x}" for number in range(50)])


def test_many_processes_may_enter_looks_at_once():
    index = LookIndex()
    with ThreadPoolExecutor(8) as pool:
        done = [
            pool.submit(LookIndex().enter_look, f"data {number}", PRINTS[number:], "a test")
            for number in range(40)
        ]
        assert [one.result() for one in done] == [None] * 40
    found = index.looks(PRINTS)
    assert sorted(one.line.entry.data for one in found) == sorted(f"data {n}" for n in range(40))
    assert {one.rows.sum() for one in found} == set(range(11, 51))
    assert [path.name for path in index.folder.iterdir() if path.suffix == ".lock"] == []


LOOP = """
from assay.records.halves import prints_of
from assay.records.looks import LookIndex

for number in range({first}, 100_000):
    prints = prints_of([f"{{number << 192:064x}}", f"{{(number + 1) << 192:064x}}"])
    LookIndex().enter_look(f"data {{number}}", prints, "a test")
    print(number, flush=True)
"""


def test_a_kill_at_any_moment_loses_no_look_and_doubles_none():
    draw, acknowledged = np.random.default_rng(0), []
    for attempt in range(3):
        command = [sys.executable, "-c", LOOP.format(first=1000 * attempt)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            acknowledged.append(int(process.stdout.readline()))
            time.sleep(draw.uniform(0, 0.03))
            process.kill()
            acknowledged += map(int, process.stdout.read().split())
    index = LookIndex()
    entered = [int(line.entry.data.split()[1]) for line in index.lines()]
    assert sorted(set(entered)) == sorted(entered)
    assert set(acknowledged) <= set(entered)
    assert len(entered) - len(acknowledged) <= 3, "a look that was entered and not yet reported"


EACH_CALL = """
import os, sys
from assay.records.halves import prints_of
from assay.records.looks import LookIndex

def killed_before_call(number):
    count = 0

    def hook(event, arguments):
        nonlocal count
        count += event.startswith(("open", "os.", "fcntl.", "tempfile."))
        if count == number:
            os._exit(9)

    sys.addaudithook(hook)
    prints = prints_of([f"{number << 192:064x}"])
    LookIndex().enter_look(f"data {number}", prints, "a test")
    os._exit(0)

number, status = 0, 1
while status:
    number += 1
    child = os.fork() or killed_before_call(number)
    status = os.waitpid(child, 0)[1]
    print(number, *(line.entry.data.split()[1] for line in LookIndex().lines()), flush=True)
"""


def test_a_kill_before_any_call_to_the_system_leaves_a_whole_index():
    done = subprocess.run([sys.executable, "-c", EACH_CALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(after) > 10, "one kill for every call"
    for (number, *lines), (_, *before) in zip(after[1:], after, strict=False):
        assert lines in (before, [*before, number])
    assert after[-1][-1] == after[-1][0], "the last one was not killed"
    index = LookIndex()
    assert not list(index.folder.glob("samples/.*")) and not (index.folder / "lock").exists()
    used = {line.entry.samples for line in index.lines()}
    assert used <= {path.stem for path in index.folder.glob("samples/*")}


def test_a_torn_line_is_no_line_and_is_cut_by_the_next():
    index = LookIndex()
    index.enter_look("one", PRINTS, "a test")
    with index.file.open("a") as stream:
        stream.write('{"at":"20')
    assert [line.entry.data for line in index.lines()] == ["one"]
    index.enter_look("two", PRINTS, "a test")
    assert [line.entry.data for line in index.lines()] == ["one", "two"]


DAMAGE = {
    "a line": (lambda index: index.file.write_text("nonsense\n"), "line 1 is no line of an index"),
    "a line of many levels": (
        lambda index: index.file.write_text("[" * 100_000 + "\n"),
        "line 1 is no line of an index",
    ),
    "a field": (
        lambda index: index.file.write_text(index.file.read_text().replace('"by"', '"of"')),
        "entry.of is a field that this version of Assay lacks",
    ),
    "samples": (
        lambda index: next(index.folder.glob("samples/*.u64")).write_bytes(b"x"),
        "is missing or was altered; restore it, or remove the lines that name it",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_is_named_and_stops_no_bench(assay, entered, name):
    evaluate_file("data.npz")
    damage, words = DAMAGE[name]
    damage(entered)
    code, out, err = assay("evaluate", "data.npz", "--data", "features:data.npz", "--test")
    assert (code, out) == (2, "")
    assert words in err and err.count("\n") == 1
    notes = Notes()
    bench(Path("data.npz"), Path("new"), methods=["pretrained"], listener=notes)
    said = [text for text in notes.said if "is not entered in the index of looks" in text]
    assert said
    assert all(words in text and "ASSAY_LOOKS" not in text for text in said), "a remedy that helps"
    assert not [finding for finding in verify(Store(Path("new"))) if finding.problem]


def test_where_the_index_cannot_be_written_a_look_that_belongs_there_gives_no_score(
    assay, place, monkeypatch
):
    Path("file").touch()
    monkeypatch.setenv("ASSAY_LOOKS", "file")
    words = ("evaluate", "data.npz", "--data", "features:data.npz")
    code, out, err = assay(*words)
    assert code == 0 and out
    assert "note: the index of looks cannot be written to (file: File exists); set ASSAY_L" in err
    code, out, err = assay(*words, "--test")
    assert (code, out) == (2, "")
    assert "and this look has to be recorded there; set ASSAY_LOOKS" in err
    code, out, err = assay("evaluate", model(), "--data", "features:data.npz", "--test")
    assert code == 0 and out, "its ledger has this one"
    assert len(ledger_looks()) == 1


@pytest.mark.parametrize("name", ["pipe.npz", "taken.csv/q.npz", "/proc/q.npz"])
def test_an_output_that_cannot_be_written_is_refused_before_the_look(assay, entered, name):
    """The look would be recorded, and its scores lost."""
    Path("taken.csv").touch()
    os.mkfifo("pipe.npz")
    before = LookIndex().lines()
    for words in (
        ["evaluate", "data.npz", "--per-query", name, "--force"],
        ["embed", model(), "features:data.npz", "--out", name, "--force"],
    ):
        code, _, err = assay(*words)
        assert code == 2 and name in err and err.count("\n") == 1
    assert LookIndex().lines() == before and not ledger_looks()


def test_the_index_is_where_the_environment_says(monkeypatch, tmp_path):
    assert user_folder() == LookIndex().folder
    monkeypatch.delenv("ASSAY_LOOKS")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    assert user_folder() == tmp_path / "cache" / "looks"
    monkeypatch.delenv("ASSAY_CACHE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert user_folder() == tmp_path / "state" / "assay" / "looks"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder() == tmp_path / ".local" / "state" / "assay" / "looks"


# --- verify and merge -----------------------------------------------------------------------------


def problems():
    return [f"{one.what}: {one.problem}" for one in verify(store()) if one.problem]


def contents_file():
    return store().contents(record_in(store()).seal.test)


TAMPERED = {
    "removed": (
        lambda: contents_file().unlink(),
        "the content hashes of the test half are missing",
    ),
    "altered": (
        lambda: contents_file().write_text("0" * 64 + "\n"),
        "the content hashes of the test half were altered",
    ),
    "of the model removed": (
        lambda: (model() / "test_half.sha256").unlink(),
        "test_half.sha256 is missing or was altered",
    ),
    "of the model altered": (
        lambda: (model() / "test_half.sha256").write_text("0" * 64 + "\n"),
        "test_half.sha256 is missing or was altered",
    ),
    "a look at too many samples": (
        lambda: add_look(samples=41),
        "look 1 is at 41 samples of a test half of 40",
    ),
    "a look at another half": (
        lambda: add_look(test="d" * 64),
        "look 1 is at another test half than the study's",
    ),
}


@pytest.mark.forgery("verify", what="content hashes before any test score: {}")
@pytest.mark.parametrize(
    "content", ["0" * 64 + "\n", "nonsense\n"], ids=["other hashes", "no hashes"]
)
def test_content_hashes_are_checked_as_soon_as_they_are_there(place, content):
    """A kill comes between the opening of the seal and the scores, or before the hashes."""
    path = store().study(record_in(store()).key) / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    sealed = next(line.number for line in read(path) if line.kind == "seal")
    path.write_text("".join(lines[: sealed + 1]))
    file, altered = contents_file(), "the content hashes of the test half were altered"
    file.write_text(content)
    assert any(altered in problem and "triplet on" in problem for problem in problems())
    file.unlink()
    assert not any("triplet on" in one and "content hashes" in one for one in problems())


def test_each_file_of_samples_is_read_once(entered, monkeypatch):
    evaluate_file("data.npz", "features:data.npz", test=True, protocol=PROTOCOL)
    opened = []
    monkeypatch.setattr(
        "assay.records.looks.read_bytes", lambda path: (opened.append(path), path.read_bytes())[1]
    )
    evaluate_file("data.npz", "features:data.npz", test=True, protocol=PROTOCOL)
    samples = [path for path in opened if path.suffix == ".u64"]
    assert samples and len(samples) == len(set(samples))
    opened.clear()
    for record in study_records(store()):
        enter_opened_half(store(), record, print)
    assert not [path for path in opened if path.suffix == ".u64"], "this store has reported it"


def test_a_half_of_a_study_without_a_name_is_named_by_its_data():
    half = KnownHalf("folder:birds", PRINTS, frozenset(), {})
    assert half.opened_by() == "a study of folder:birds"


def test_looks_beside_a_model_are_counted_by_lines_alone(place):
    taken = copied_out()
    dataset = replace(load("features:data.npz"), name="a\u2028b\u0085c")
    for number in (1, 2):
        found = evaluate_model(taken, dataset, test=True, protocol=PROTOCOL)
        assert f"recorded as look {number} at test in taken/looks.jsonl" in found.notes[0]


def test_a_model_of_the_store_is_compared_with_its_run_once(place, monkeypatch):
    checked, whole = [], FinishedRun.has_weights_of
    monkeypatch.setattr(
        FinishedRun, "has_weights_of", lambda run, one: checked.append(1) or whole(run, one)
    )
    found = evaluate_model(model(), "features:data.npz", test=True, protocol=PROTOCOL)
    assert "recorded as look 1 at test in the study of triplet" in found.notes[0]
    assert len(checked) == 1


def test_rows_of_a_file_have_the_prints_of_a_data_set():
    draw = np.random.default_rng(0).normal(size=(9000, 3))
    for z in (draw, draw.astype(np.float16), 1e300 * draw, draw[:0], draw.T[:, ::2]):
        found = prints_of_rows(z)
        assert found.dtype == np.uint64 and np.array_equal(found, prints_of(digests_of_rows(z)))


def add_look(**changes):
    evaluate_model(model(), "features:data.npz", test=True, protocol=PROTOCOL)
    forge(store(), lambda lines: lines[-1][1].update(changes))


@pytest.mark.forgery("verify", what="what looks are known by: {}")
@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_with_what_looks_are_known_by_is_found(place, name):
    assert problems() == []
    tamper, words = TAMPERED[name]
    tamper()
    assert any(words in problem for problem in problems())


@pytest.mark.forgery("verify --data", what="content hashes of the test half, with the whole chain")
def test_content_hashes_forged_with_the_chain_are_found_with_the_data(place):
    """So that no later look is noticed; the store agrees with itself."""
    forged = pack_contents(["0" * 64] * TEST)
    contents_file().write_bytes(forged)
    for path in Path("store").glob("models/*/test_half.sha256"):
        path.write_bytes(forged)

    def rewrite(lines):
        for kind, body in lines:
            if kind == "seal":
                body["contents"] = digest_bytes(forged)

    for record in study_records(store()):
        forge(store(), rewrite, record.method)
    write_report(store())
    assert problems() == []
    found = [one.problem for one in retest(store(), InlineEngine(), "features:data.npz")]
    found = [one for one in found if one]
    assert len(found) == 2 and all("is not the one that was scored" in one for one in found)


def test_the_number_of_looks_is_noted(place):
    for change in (without_a_test_row, dict):
        evaluate_model(model(), copy_of_data(change), test=True, protocol=PROTOCOL)
    (note,) = [
        one.note
        for one in verify(store())
        if one.what == "triplet on features:data.npz: looks at test"
    ]
    assert note == "2 looks recorded after the test scores, at most 40 of 40 samples (100%)"


def test_merged_stores_know_the_test_half(place):
    merge([Path("store")], Path("merged"))
    assert half_of_study(Store(Path("merged")), record_in(store())) is not None
    assert half_of_model(next(Path("merged/models").glob("*-triplet-*"))) is not None
    contents_file().write_text("0" * 64 + "\n")
    with pytest.raises(BadInput, match="sha256 is missing or not what"):
        merge([Path("store")], Path("other"))
