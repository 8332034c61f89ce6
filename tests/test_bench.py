"""The promises of a bench: sealed, resumable, the same bytes on any number of workers, every number
traceable.
"""

import json
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.data import load
from assay.data.packs import read_pack
from assay.engines import TaskFailed
from assay.errors import BadInput
from assay.protocols import customise, protocols
from assay.records.ledger import read
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import (
    Execution,
    Listener,
    MethodFailed,
    MethodRefused,
    design_bench,
    plan_bench,
    run_sweep,
)
from assay.study.failures import cause_of, raise_failures
from faults import computed, end_well, finished, start
from miniature import MINI, bench_command, make_folder, snapshot
from options import set_options
from sealed import replace_test_images, swap_test_labels
from shared_pool import local

FOUR = ("contrastive", "triplet", "multi_similarity", "normalized_softmax", "untrained")
TWO = ("triplet", "normalized_softmax")
QUICK = protocols["quick"]
SMALL = customise(QUICK, MINI)


def bench(data, out, methods=None, protocol=SMALL, engine="inline"):
    """Bench two methods and the baseline with a PCA that suits the trunk."""
    methods = methods or (*TWO, "pretrained" if data.startswith("features:") else "untrained")
    return assay.bench(data, methods, protocol, out, engine=engine)


def records(out):
    return {record.method: record for record in study_records(Store(out))}


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """A finished miniature bench: its data and its store."""
    root = tmp_path_factory.mktemp("benched")
    folder = make_folder(root / "mini")
    bench(f"folder:{folder}", root / "store")
    return folder, root / "store"


# --- the seal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tamper", [swap_test_labels, replace_test_images])
@pytest.mark.slow
def test_nothing_but_test_scores_depends_on_the_test_half(benched, tmp_path, tamper):
    folder, store = benched
    other = shutil.copytree(folder, tmp_path / "mini")
    tamper(other)
    bench(f"folder:{other}", tmp_path / "store")
    assert snapshot(tmp_path / "store", tested=False) == snapshot(store, tested=False)
    ours, theirs = records(store), records(tmp_path / "store")
    assert all(ours[method].selection == theirs[method].selection for method in TWO)
    assert all(
        ours[method].scores("separated", "map_at_r")
        != theirs[method].scores("separated", "map_at_r")
        for method in TWO
    )


def test_no_test_data_is_in_the_store_before_the_seal_is_opened(benched, tmp_path, monkeypatch):
    folder, _ = benched

    class Stop(Exception):
        pass

    def refuse(self, receipt):
        raise Stop

    monkeypatch.setattr("assay.data.splits.SealedTest.open", refuse)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Stop):
        bench(f"folder:{folder}", tmp_path / "store")
    dataset = load(f"folder:{folder}")
    trainval = {dataset.items.digest(i) for i in np.flatnonzero(dataset.labels < 8)}
    (pack,) = (tmp_path / "cache" / "packs").glob("*/pack.json")
    assert len(read_pack(pack.parent).x) == len(trainval)
    assert not (tmp_path / "store" / "answers").exists()
    assert not list((tmp_path / "store").rglob("test"))


def glyphs_with(labels=None, items=None):
    glyphs = load("glyphs")
    test = np.flatnonzero(glyphs.labels >= len(glyphs.class_names) // 2)
    changed = glyphs
    if labels:
        shuffled = glyphs.labels.copy()
        shuffled[test] = np.random.default_rng(0).permutation(shuffled[test])
        changed = replace(changed, labels=shuffled)
    if items:
        pixels = glyphs.items.pixels.copy()
        pixels[test] = np.random.default_rng(0).integers(0, 255, pixels[test].shape, dtype=np.uint8)
        changed = replace(changed, items=type(glyphs.items)(pixels))
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("change", ["labels", "items"])
def test_nothing_but_test_scores_depends_on_the_test_half_at_demo_size(demo, tmp_path, change):
    bench(glyphs_with(**{change: True}), tmp_path / "store", FOUR, QUICK)
    assert snapshot(tmp_path / "store", tested=False) == snapshot(demo, tested=False)
    ours, theirs = records(demo), records(tmp_path / "store")
    assert all(
        ours[method].scores("separated", "map_at_r")
        != theirs[method].scores("separated", "map_at_r")
        for method in FOUR
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's bench, uninterrupted, on two workers."""
    out = tmp_path_factory.mktemp("demo") / "store"
    bench("glyphs", out, FOUR, QUICK, engine=local())
    return out


# --- dying and continuing -------------------------------------------------------------------------


def kill_after(process, events, delay):
    """SIGKILL once so many things have happened, a moment later; the keys of the runs it said were
    computed.
    """
    done = []
    with process:
        for line in process.stderr:
            done += computed(line)
            events -= 1
            if events == 0:
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
    return done


def check_kills(data, out, methods, settings, expected, most_events):
    """Kill a bench five times; what is left at the end is what an uninterrupted one leaves."""
    draw = random.Random(0)
    before: set[str] = set()
    for _ in range(5):
        process = start(data, out, methods, settings)
        done = kill_after(process, draw.randint(1, most_events), draw.uniform(0, 0.4))
        assert process.returncode in (-signal.SIGKILL, 0)
        assert not set(done) & before, "a finished run was computed again"
        time.sleep(0.5)
        before = set(finished(out))
    errors = end_well(start(data, out, methods, settings))
    assert not set(computed(errors)) & before
    assert snapshot(out) == expected


@pytest.mark.slow
def test_five_kills_change_no_byte_and_repeat_no_run(benched, tmp_path):
    folder, store = benched
    methods = (*TWO, "untrained")
    check_kills(
        f"folder:{folder}", tmp_path / "killed", methods, MINI, snapshot(store), most_events=14
    )


@pytest.mark.slow
def test_five_kills_change_no_byte_and_repeat_no_run_at_demo_size(demo, tmp_path):
    check_kills("glyphs", tmp_path / "killed", FOUR, (), snapshot(demo), most_events=45)


def test_a_finished_bench_run_again_adds_nothing(benched):
    folder, store = benched
    before = {path: path.stat().st_mtime_ns for path in store.glob("runs/*/*/*")}
    ledgers = {path: path.read_bytes() for path in store.glob("studies/*/ledger.jsonl")}
    bench(f"folder:{folder}", store)
    assert {path: path.stat().st_mtime_ns for path in store.glob("runs/*/*/*")} == before
    assert {path: path.read_bytes() for path in store.glob("studies/*/ledger.jsonl")} == ledgers


def test_a_torn_ledger_line_is_written_again(benched, tmp_path):
    folder, store = benched
    torn = shutil.copytree(store, tmp_path / "store")
    for ledger in torn.glob("studies/*/ledger.jsonl"):
        ledger.write_bytes(ledger.read_bytes()[:-40])
    bench(f"folder:{folder}", torn)
    assert snapshot(torn) == snapshot(store)


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_the_bench_can_be_continued(benched, tmp_path):
    folder, store = benched
    process = start(f"folder:{folder}", tmp_path / "store", TWO, MINI)
    for line in process.stderr:
        if computed(line):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    assert finished(tmp_path / "store")
    bench(f"folder:{folder}", tmp_path / "store")
    assert snapshot(tmp_path / "store") == snapshot(store)


# --- engines --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_worker_and_two_give_the_same_bytes(benched, tmp_path):
    folder, store = benched
    for workers in (1, 2):
        bench(f"folder:{folder}", tmp_path / f"{workers}", engine=local(workers))
        assert snapshot(tmp_path / f"{workers}") == snapshot(store)


@pytest.mark.slow
def test_one_worker_and_two_give_the_same_bytes_at_demo_size(demo, tmp_path):
    bench("glyphs", tmp_path / "store", FOUR, QUICK, engine=local(1))
    assert snapshot(tmp_path / "store") == snapshot(demo)


def test_the_order_of_methods_changes_no_study_and_no_table(mini_features, tmp_path):
    for name, methods in (("one", (*TWO, "as_is")), ("other", ("as_is", *reversed(TWO)))):
        bench(f"features:{mini_features}", tmp_path / name, methods)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "other")


# --- fairness -------------------------------------------------------------------------------------


def configs(out, method, stage):
    record, store = records(out)[method], Store(out)
    keys = [run.key for run in record.reproductions] if stage == "reproduction" else []
    keys = keys or [run.key for trial in record.trials for run in trial.runs]
    return [json.loads((store.run(key) / "config.json").read_text()) for key in keys]


def test_methods_are_paired_by_seed(benched):
    _, store = benched
    seeds = [
        [config["seed"] for config in configs(store, method, "reproduction")]
        for method in (*TWO, "untrained")
    ]
    assert seeds[0] == seeds[1] == seeds[2]
    assert len(set(seeds[0])) == 4


def test_paired_methods_start_from_the_same_trunk(benched):
    _, store = benched
    first = [
        json.loads(
            (Store(store).run(records(store)[method].reproductions[0].key) / "history.jsonl")
            .read_text()
            .splitlines()[0]
        )
        for method in ("triplet", "normalized_softmax")
    ]
    assert first[0]["validation"] == first[1]["validation"]


def test_the_selected_trial_is_not_among_its_reproductions(benched):
    _, store = benched
    for record in records(store).values():
        trials = {run.key for trial in record.trials for run in trial.runs}
        assert not trials & {run.key for run in record.reproductions}
        assert (
            not {config["seed"] for config in configs(store, record.method, "trial")}
            & {config["seed"] for config in configs(store, record.method, "reproduction")}
            or not record.trials
        )


def test_trial_0_is_the_defaults_and_every_method_has_the_same_budget(benched):
    _, store = benched
    trained = [record for method, record in records(store).items() if method in TWO]
    assert all(
        record.trials[0].parameters == record.announced.method.defaults for record in trained
    )
    assert {len(record.trials) for record in trained} == {2}


def test_a_ledger_tells_the_story_in_order(benched):
    _, store = benched
    kinds = [
        line.kind
        for line in read(store / "studies" / records(store)["triplet"].key / "ledger.jsonl")
    ]
    assert kinds == [
        "preregistration",
        "trial",
        "trial",
        "selection",
        *["reproduction"] * 4,
        "seal",
        "test",
        "test",
    ]


def test_losing_trials_keep_their_hashes_but_not_their_weights(benched):
    _, store = benched
    record = records(store)["triplet"]
    for trial in record.trials:
        kept = [(Store(store).run(run.key) / "model.safetensors").exists() for run in trial.runs]
        assert kept == [trial.trial == record.selection.trial] * 2
        assert all(len(Store(store).result(run.key).weights) == 64 for run in trial.runs)


def test_a_class_with_one_image_is_a_skipped_query_not_an_error(benched):
    _, store = benched
    scores = records(store)["triplet"].tests[0].separated
    assert (scores["queries"], scores["skipped"]) == (32, 1)


# --- trials that diverge --------------------------------------------------------------------------

UNSTABLE = """
import torch
from assay.losses.loss import losses
from assay.losses.loss import Loss, Method, methods
from assay.registry import Paper
from assay.space import Real, Space

@losses("unstable")
class Unstable(Loss):
    paper = Paper("None", 2026, "example.org")

    def __init__(self, *, heat: float = {default}) -> None:
        super().__init__()
        self.heat, self.steps = heat, 0

    def forward(self, z, y, mined=None, references=None):
        self.steps += 1
        burnt = self.heat > 0.5 and self.steps > 1
        return (z @ z.T).mean() * (float("nan") if burnt else 1.0)

space = Space(heat=Real({low}, 1.0))
methods.add(Method("unstable", Unstable, space=space, about="diverges when hot"))
"""


@pytest.fixture
def bench_with(assay, as_before, mini_features, tmp_path):
    """A function that benches a method of one's own beside triplet: exit code, stdout, stderr."""

    def run(name, code, *settings, methods=None):
        (tmp_path / f"{name}.py").write_text(code)
        chosen = set_options((*MINI, *settings))
        return assay(
            "bench", "--data", f"features:{mini_features}", "--out", tmp_path / "store",
            "--methods", methods or f"{name},triplet", "--import", tmp_path / f"{name}.py",
            "--engine", "inline", *chosen,
        )  # fmt: skip

    return run


def test_a_diverged_trial_fails_counts_and_is_never_selected(bench_with, tmp_path):
    code, _, err = bench_with("unstable", UNSTABLE.format(default=0.9, low=0.0), "trials=4")
    assert code == 0, err
    record = records(tmp_path / "store")["unstable"]
    assert record.trials[0].status == "failed"
    assert record.trials[0].map_at_r is None
    assert len(record.trials) == 4
    assert record.trials[record.selection.trial].status == "finished"
    page = (tmp_path / "store" / "report" / "index.html").read_text()
    assert re.search(r"unstable: \d of 4 trials diverged", page)


def test_where_every_trial_diverges_the_others_still_get_their_report(assay, bench_with, tmp_path):
    code, out, err = bench_with("unstable", UNSTABLE.format(default=0.9, low=0.6), "trials=4")
    assert code == 0, err
    found = records(tmp_path / "store")
    assert found["unstable"].failed
    assert found["triplet"].complete
    assert "unstable: all trials of a search diverged" in out
    assert "all 4 trials diverged" in (tmp_path / "store" / "report" / "index.html").read_text()
    assert assay("verify", tmp_path / "store")[0] == 0


# --- features -------------------------------------------------------------------------------------


def test_features_have_a_baseline_without_an_interval(tmp_path, mini_features):
    bench(f"features:{mini_features}", tmp_path / "store")
    record = records(tmp_path / "store")["pretrained"]
    assert (len(record.tests), len(record.reproductions), record.trials) == (1, 1, ())
    assert record.announced.protocol.resolved.trunk == "identity"
    table = next((tmp_path / "store" / "report" / "tables").glob("*-scores.md")).read_text()
    assert "±" not in next(line for line in table.splitlines() if "pretrained" in line)


def test_vectors_as_they_are_are_in_every_bench_and_have_one_score(tmp_path, mini_features):
    bench(
        f"features:{mini_features}",
        tmp_path / "store",
        methods=("triplet",),
        protocol=customise(SMALL, ["dim=2"]),
    )
    assert set(records(tmp_path / "store")) == {"triplet", "as_is"}
    record = records(tmp_path / "store")["as_is"]
    assert (len(record.reproductions), record.reproductions[0].fold, record.trials) == (
        1,
        None,
        (),
    )
    archive = np.load(mini_features)
    expected = assay.evaluate(
        archive["z"][archive["y"] >= 8], archive["y"][archive["y"] >= 8], metrics=["map_at_r"]
    )
    (test,) = record.tests
    assert test.separated == test.concatenated
    assert test.separated["map_at_r"] == pytest.approx(expected["map_at_r"], abs=1e-9)


def test_features_of_a_random_trunk_as_they_are_have_a_run_for_every_seed(benched):
    _, store = benched
    record = records(store)["as_is"]
    assert [(entry.reproduction, entry.fold) for entry in record.reproductions] == [
        (0, None),
        (1, None),
    ]
    vectors = [
        np.load(Store(store).test_vectors(e.key, record.seal.test)) for e in record.reproductions
    ]
    assert vectors[0].shape[1] > 4 * SMALL.dim
    assert not np.allclose(*vectors)
    assert all(test.separated == test.concatenated for test in record.tests)


@pytest.mark.parametrize(
    ("data", "settings", "method", "reason", "instead"),
    [
        ("folder", (), "pretrained", "the trunk 'conv' has random weights here", "untrained"),
        (
            "folder",
            ("trunk=lite0", "size=32", "weights=none"),
            "pretrained",
            "'lite0' has random weights here",
            "untrained",
        ),
        (
            "folder",
            ("trunk=lite0", "size=32"),
            "untrained",
            "the trunk 'lite0' has pretrained weights here",
            "pretrained",
        ),
        (
            "features",
            (),
            "untrained",
            "the data are vectors of some model",
            "pretrained",
        ),
    ],
)
def test_a_baseline_of_another_trunk_is_refused(
    mini_folder, mini_features, data, settings, method, reason, instead
):
    given = f"folder:{mini_folder}" if data == "folder" else f"features:{mini_features}"
    with pytest.raises(
        BadInput, match=f"{method}: .*{reason}, so it is not {method}; use {instead} instead"
    ):
        design_bench(given, [method], customise(SMALL, settings), "cpu", ())
    names = [
        design.method.name
        for design in design_bench(given, ["all"], customise(SMALL, settings), "cpu", ())
    ]
    assert method not in names and {instead, "as_is"} <= set(names)


# --- what is wrong with the data ------------------------------------------------------------------


class Hearing(Listener):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, who, text):
        self.said.append((who, text))

    announce = detail = say


@pytest.fixture
def leaky(mini_folder):
    """The miniature folder with a copy in both halves, and a file that is no image in each half."""
    shutil.copy(mini_folder / "class04/0.png", mini_folder / "class12/leak.png")
    for name in ("class00/notes.txt", "class12/notes.txt"):
        (mini_folder / name).touch()
    return mini_folder


LEAK = "1 image in both trainval and the test half, such as class04/0.png = class12/leak.png"


def test_copies_in_both_halves_are_refused_before_anything_is_written(leaky, tmp_path):
    with pytest.raises(
        BadInput, match=r"mini: 1 image in both trainval and the test half, such as class04/0\.png"
    ) as refused:
        bench(f"folder:{leaky}", tmp_path / "store", ("triplet",))
    assert "--allow-leaks" in str(refused.value)
    assert not (tmp_path / "store").exists()
    with pytest.raises(BadInput, match="--allow-leaks"):
        run_sweep(
            f"folder:{leaky}", ["triplet"], SMALL, "dim=2,4", tmp_path / "store", Execution(local())
        )
    with pytest.raises(BadInput, match="--allow-leaks"):
        plan_bench(f"folder:{leaky}", ["triplet"], SMALL, workers=2)


def test_allowed_leaks_are_said_before_training_and_recorded_when_the_seal_is_open(leaky, tmp_path):
    heard, store = Hearing(), tmp_path / "store"
    for _ in range(2):  # the second time everything is there
        assay.bench(
            f"folder:{leaky}",
            ["triplet"],
            SMALL,
            store,
            engine="inline",
            allow_leaks=True,
            listener=heard,
        )
    left_out = [
        "1 file left out, no image that can be read: .txt",
        "1 file of the test half left out, no image that can be read: .txt",
    ]
    said = [one for one in heard.said if not one[1].startswith("announced: ")]
    assert said[:4] == [
        *(("data", text) for text in (*left_out, LEAK)),
        (
            "augmentation",
            "crops of 40-100% of the area, width over height from 0.75 to 1.33; no mirror images",
        ),
    ]
    for record in records(store).values():
        assert record.announced.data.left_out == tuple(left_out[:1])
        assert record.announced.data.problems == ()
        assert (record.seal.problems, record.seal.left_out) == ((LEAK,), tuple(left_out[1:]))


def test_conflicting_labels_inside_trainval_are_announced(mini_folder, tmp_path):
    shutil.copy(mini_folder / "class01/0.png", mini_folder / "class02/noise.png")
    with pytest.raises(BadInput, match="1 image of trainval with more than one label"):
        bench(f"folder:{mini_folder}", tmp_path / "store", ("triplet",))
    (design,) = design_bench(f"folder:{mini_folder}", ["triplet"], SMALL, "cpu", ())
    conflict = (
        "1 image of trainval with more than one label, such as class01/0.png = class02/noise.png"
    )
    assert design.preregistration.data.problems == (conflict,)


def test_heads_on_features_are_trained_without_augmentation(mini_features):
    (design,) = design_bench(f"features:{mini_features}", ["triplet"], SMALL, "cpu", ())
    assert design.conditions.augmentation == "none, heads are trained on features"


def test_a_fixed_baseline_is_scored_on_nested_principal_components(tmp_path, mini_features):
    """Concatenated: folds x dim components; separated: the first dim of them. Fitted on trainval
    alone.
    """
    from sklearn.decomposition import PCA

    bench(
        f"features:{mini_features}",
        tmp_path / "store",
        methods=("pretrained",),
        protocol=customise(SMALL, ["dim=2", "folds=4"]),
    )
    archive = np.load(mini_features)
    z, y = archive["z"], archive["y"]
    fitted = PCA(8).fit(z[y < 8])
    test = records(tmp_path / "store")["pretrained"].tests[0]
    for setting, width in (("separated", 2), ("concatenated", 8)):
        expected = assay.evaluate(fitted.transform(z[y >= 8])[:, :width], y[y >= 8])
        assert test.scores(setting)["map_at_r"] == pytest.approx(expected["map_at_r"], abs=1e-9)


def test_a_small_data_set_shrinks_the_batch_and_says_so(benched):
    _, store = benched
    method = records(store)["normalized_softmax"].announced.method
    assert (method.batch, method.batch_shrunk) == ((4, 8), True)
    assert "batches were 4 classes x 8 images" in (store / "report" / "index.html").read_text()


# --- going on with what was begun -----------------------------------------------------------------


def test_data_that_was_renamed_continues_its_study(tmp_path, mini_features):
    bench(f"features:{mini_features}", tmp_path / "store", methods=("triplet",))
    before = snapshot(tmp_path / "store")
    bench(
        f"features:{mini_features.rename(tmp_path / 'renamed.npz')}",
        tmp_path / "store",
        methods=("triplet",),
    )
    assert snapshot(tmp_path / "store") == before


def test_more_reproductions_keep_the_trials_and_the_runs_there_are(tmp_path, mini_features):
    for settings in (MINI, (*MINI, "reproductions=3")):
        bench(
            f"features:{mini_features}",
            tmp_path / "store",
            ("triplet",),
            customise(QUICK, settings),
        )
    found = [
        record for record in study_records(Store(tmp_path / "store")) if record.method == "triplet"
    ]
    few, many = sorted(found, key=lambda record: len(record.reproductions))
    assert few.trials == many.trials
    assert many.reproductions[:4] == few.reproductions
    assert len(many.reproductions) == 6


TRUNK = """
import torch
from assay.trunks.trunk import Trunk, trunks

@trunks("tiny")
class Tiny(Trunk):
    deterministic = True
    takes = "vectors"

    def __init__(self, inputs):
        super().__init__(inputs)
        self.features = inputs

    def forward(self, x):
        return {output}
"""


def run_with_trunk(tmp_path, features, output):
    (tmp_path / "tiny.py").write_text(TRUNK.format(output=output))
    command = bench_command(f"features:{features}", tmp_path / "store", "triplet", "trunk=tiny")
    command += ["--import", str(tmp_path / "tiny.py")]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_an_imported_trunk_is_known_to_every_step_and_part_of_the_key(tmp_path, mini_features):
    assert run_with_trunk(tmp_path, mini_features, "x").returncode == 0
    expected = snapshot(tmp_path / "store")
    for ledger in (tmp_path / "store").glob("studies/*/ledger.jsonl"):
        lines = ledger.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not re.search('"kind":"(seal|test)"', line)]
        ledger.write_text("".join(kept))
    for folder in (tmp_path / "store").glob("runs/*/*/test"):
        shutil.rmtree(folder)
    again = run_with_trunk(tmp_path, mini_features, "x")
    assert again.returncode == 0, again.stderr
    assert snapshot(tmp_path / "store") == expected
    edited = run_with_trunk(tmp_path, mini_features, "0 * x")
    assert edited.returncode == 2
    assert "the study was begun with other settings or code" in edited.stderr


BROKEN = """
from assay.study.tryout import DRAWS
from assay.losses.loss import losses
from assay.losses.loss import Loss, Method, methods
from assay.space import Real, Space

@losses("broken")
class Broken(Loss):
    def __init__(self, *, margin: float = 0.1) -> None:
        super().__init__()

        self.steps = 0

    def forward(self, z, y, mined=None, references=None):
        self.steps += 1
        if self.steps > DRAWS:
            raise RuntimeError("a slip of the researcher's")
        return z.square().sum()

methods.add(Method("broken", Broken, space=Space(margin=Real(0, 1))))
"""


def test_a_method_that_fails_does_not_stop_the_others(bench_with, tmp_path):
    code, _, err = bench_with("broken", BROKEN)
    assert code == 1
    last = err.splitlines()[-1]
    assert re.search(
        r"^assay: broken failed: RuntimeError: a slip .* \(.*broken\.py, line \d+\)", last
    )
    assert "The report has triplet." in last and "run the same command again" in last
    assert err.count("a slip of the researcher's") == 2  # when it happens, and at the end
    assert "triplet" in (tmp_path / "store" / "report" / "index.html").read_text()
    assert records(tmp_path / "store")["triplet"].complete


def test_a_bench_in_which_nothing_was_measured_exits_with_1_and_says_so(bench_with, tmp_path):
    """Beside the baseline, which every bench has, and whose scores are in the report."""
    code, _, err = bench_with("unstable", UNSTABLE.format(default=0.9, low=0.6), methods="unstable")
    last = err.splitlines()[-1]
    assert code == 1
    assert "nothing was measured: all trials of a search of unstable diverged" in last
    assert "as_is" in (tmp_path / "store" / "report" / "index.html").read_text()


def test_a_sole_method_that_fails_says_that_none_was_measured(bench_with, tmp_path):
    code, _, err = bench_with("broken", BROKEN, methods="broken")
    assert code == 1
    assert "No method was measured. Fix it and run the same command again" in err.splitlines()[-1]
    assert records(tmp_path / "store")["as_is"].complete


def test_methods_that_fail_alike_are_one_line_with_a_count():
    """Forty methods that fail for one reason, and one for another."""
    alike = {
        f"m{number}": TaskFailed("...", "KeyError: 'x' (a.py, line 3)") for number in range(40)
    }
    with pytest.raises(MethodFailed) as failed:
        raise_failures(
            {**alike, "other": RuntimeError("no memory")}, ["triplet", "margin"], Path("a b")
        )
    assert str(failed.value) == (
        "40 methods (m0, m1, m2, m3, m4, m5, ...) failed: KeyError: 'x' (a.py, line 3); other"
        " failed: no memory. The report has triplet and margin. Fix it and run the same command"
        " again: finished runs of the others are kept; `assay status 'a b' --json` has the"
        " traceback"
    )


def test_a_method_that_fails_on_bad_input_is_bad_input_and_others_have_their_report():
    with pytest.raises(MethodRefused, match=r"^a failed: no room\. The report has b\. Fix it"):
        raise_failures({"a": BadInput("no room")}, ["b"], Path("s"))
    disk = OSError(28, "full")
    for others in ({}, {"refused": BadInput("no room"), "failed": RuntimeError("no memory")}):
        with pytest.raises(OSError, match="full") as raised:
            raise_failures({**others, "a": disk}, ["b"], Path("s"))
        assert raised.value is disk
    raise_failures({}, [], Path("s"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TaskFailed("...", "KeyError: 'x' (a.py, line 3)"), "KeyError: 'x' (a.py, line 3)"),
        (PermissionError(13, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(28, "a run cannot be placed in s"), "a run cannot be placed in s"),
        (RuntimeError("two\nlines"), "two lines"),
        (RuntimeError(), "RuntimeError"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_the_cause_of_a_failure_is_one_line_without_numbers_of_the_system(error, words):
    assert cause_of(error) == words


def test_a_dry_run_that_names_a_baseline_first_times_the_first_trained_method(mini_features):
    planned = plan_bench(
        f"features:{mini_features}", ["as_is", "normalized_softmax"], "quick", workers=2
    )
    assert list(planned.runs) == ["as_is", "normalized_softmax"]
    assert planned.seconds > 0


SPLIT = {
    (24, 1): [24],
    (24, 2): [12, 12],
    (130, 1): [44, 44, 42],
    (130, 2): [44, 44, 42],
    (3, 8): [3],
    (0, 2): [],
}
"""Sizes of tasks, by the number of runs and of parts."""


def test_runs_on_vectors_are_split_evenly_into_as_many_tasks_as_asked_for(mini_features):
    vectors, images = (
        design_bench(data, ["triplet"], "quick", "cpu", ())[0]
        for data in (f"features:{mini_features}", "glyphs")
    )
    runs = [vectors.study.run("trial", 0, number, 0, vectors.first) for number in range(130)]
    for (many, parts), sizes in SPLIT.items():
        assert [len(task) for task in vectors.together(runs[:many], parts)] == sizes
    assert [len(task) for task in images.together(runs[:5], 1)] == [1] * 5


def test_a_published_name_stands_for_its_settings_alone(mini_features, tmp_path):
    """A changed copy of a published protocol needs a name of its own."""
    custom = customise(protocols["quick"], ["dim=8"])
    for renamed in (replace(protocols["quick"], epochs=1), replace(custom, epochs=1)):
        with pytest.raises(BadInput, match=r"it is called quick\.v2.*Give it a name of its own"):
            bench(f"features:{mini_features}", tmp_path / "store", ["triplet"], renamed)
    assert not (tmp_path / "store").exists()


def test_the_number_of_methods_changes_no_byte_of_a_study(mini_features, tmp_path):
    small = customise(QUICK, ["searches=2", "trials=2", "epochs=2"])
    bench(f"features:{mini_features}", tmp_path / "alone", ["triplet"], small)
    bench(
        f"features:{mini_features}",
        tmp_path / "beside",
        ["triplet", "contrastive", "margin", "nt_xent"],
        small,
    )
    alone, beside = (
        {
            path: content
            for path, content in snapshot(tmp_path / name).items()
            if path.startswith("runs/")
        }
        for name in ("alone", "beside")
    )
    assert alone.items() <= beside.items()
    assert sum(path.endswith("result.json") for path in alone) == 12 + 1
