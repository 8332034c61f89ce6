"""What runs cost: exact counts, the same alone, stacked and resumed, and tables that show them."""

import csv
import json
import mmap
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median_low
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

import assay
from assay.bank import Bank
from assay.data.packs import View, read_pack
from assay.devices import PeakMemory
from assay.hashing import digest_file, pretty
from assay.losses import losses
from assay.losses.loss import Loss
from assay.protocols import ResolvedBatch, customise, protocols
from assay.protocols.protocol import BITS_OF_A_NUMBER, Similarity, bits_of
from assay.records.run import ImageCounts, Run, RunBudget, RunResult, read_timing
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import write_report
from assay.run import Training, compute
from assay.run.results import result_of
from assay.run.training import make_trainee
from assay.samplers import samplers
from assay.samplers.sampler import BankKind, plans
from assay.tables import comparisons, costs, render
from assay.tables.cost import ensembles_in_words
from assay.train import Batches, ResumeFile, times_embedded
from assay.train.loop import _Queue
from assay.verify import verify
from forgery import forge, record_in
from heads import CPU, PROTOCOL, VIEW, place, runs_of, vectors
from loops import for_each
from miniature import MINI, make_features
from options import set_options

TRAINED, HELD_OUT, BATCH, HEAD = 72, 24, 24, 10 * 6 + 6
"""Of a run on `VIEW`, 16 classes of 6 vectors in four folds: samples trained on and validated,
samples of a batch, and weights of the head.
"""
STEPS, VALIDATIONS = 2 * 4, 3
CONV = 9 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 64) + 2 * (16 + 32 + 64 + 64)
"""Weights of the trunk `conv` on colour images: four convolutions, four normalisations."""


def budgets(runs: list[Run], view: View = VIEW) -> list[RunBudget]:
    """What these runs cost when they are computed together."""
    found = compute(runs, view)
    results = [
        result_of(run, fit, replace(view, content="made"), 3)
        for run, fit in zip(runs, found, strict=True)
    ]
    return [result.budget for result in results if result.budget is not None]


def in_order(
    bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Plan batches of the rows in turn."""
    size = batch[0] * batch[1]
    return (np.arange(count * size) % len(bank.y)).reshape(count, size)


@pytest.fixture
def planned(as_before: None) -> Callable[[BankKind], str]:
    """A function that registers a sampler with a bank of a kind, and returns its name."""

    def register(kind: BankKind) -> str:
        name = f"in_order_{kind}"
        if name not in samplers:
            samplers(name)(plans(kind)(lambda *given: in_order(*given)))
        return name

    return register


# --- Counts by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "own"),
    [("triplet", 0), ("contrastive_sampled", 0), ("normalized_softmax", 12 * 6)],
)
def test_heads_on_vectors_are_counted(name: str, own: int) -> None:
    """The first and last are stacked, the second is trained fold by fold."""
    for found in budgets(runs_of(name)):
        assert found == RunBudget(
            trained=HEAD + own,
            parameters=HEAD,
            dim=6,
            bits=6 * 32,
            images=ImageCounts(trained=STEPS * BATCH, validated=VALIDATIONS * HELD_OUT),
        )


def test_a_network_on_images_is_counted_with_its_trunk() -> None:
    draw, y = np.random.default_rng(0), np.repeat(np.arange(8), 5)
    view = View(draw.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8), y)
    batch = ResolvedBatch(embedding=(3, 2), classification=(3, 2))
    protocol = replace(
        PROTOCOL,
        trunk="conv",
        frozen="nothing",
        size=16,
        batch=batch,
        training_metrics=("r_precision",),
    )
    (found,) = budgets(runs_of("triplet", protocol, view)[:1], view)
    assert found == RunBudget(
        trained=CONV + 64 * 6 + 6,
        parameters=CONV + 64 * 6 + 6,
        dim=6,
        bits=6 * 32,
        images=ImageCounts(trained=STEPS * 6, validated=VALIDATIONS * 10, scored=30),
    )


def test_a_frozen_trunk_is_counted_at_test_and_not_in_training() -> None:
    protocol = replace(PROTOCOL, trunk="conv", frozen="trunk", size=16)
    view, head = vectors(dim=64), 64 * 6 + 6
    for found in budgets(runs_of("triplet", protocol, view), view):
        assert (found.trained, found.parameters, found.shared) == (head, CONV + head, CONV)
        assert found.images == ImageCounts(
            trained=STEPS * BATCH, validated=VALIDATIONS * HELD_OUT, extracted=len(view.y)
        )


def test_a_head_in_closed_form_has_no_steps_and_sees_all_samples_once() -> None:
    """One run of a baseline stands for all folds, so all samples are validated."""
    run = runs_of("pretrained")[0]
    (fold,) = budgets([run])
    (whole,) = budgets([replace(run, fold=None)])
    assert fold.trained == whole.trained == 0
    assert fold.images == ImageCounts(refreshed=TRAINED, validated=HELD_OUT)
    assert whole.images == ImageCounts(validated=TRAINED + HELD_OUT)
    assert (fold.dim, whole.dim) == (6, 10)  # there are no more features than ten


@pytest.mark.parametrize(("kind", "times"), [("fresh", 3), ("kept", 1)])
@pytest.mark.parametrize("name", ["triplet", "contrastive_sampled"])
def test_what_is_embedded_for_the_bank_is_counted(
    planned: Callable[[BankKind], str], name: str, kind: BankKind, times: int
) -> None:
    """A fresh bank is embedded before steps 0, 3 and 6 of 8."""
    protocol = replace(PROTOCOL, sampler=planned(kind), refresh=3)
    for found in budgets(runs_of(name, protocol)):
        assert found.images.refreshed == times * TRAINED
        assert found.images.trained == STEPS * BATCH


def test_what_a_run_costs_does_not_depend_on_its_stack() -> None:
    """Some heads run out of patience between the validations at which others go on."""
    protocol = replace(
        PROTOCOL, epochs=6, patience=1, optimiser=replace(PROTOCOL.optimiser, lr=0.3)
    )
    runs = runs_of("normalized_softmax", protocol)
    together = budgets(runs)
    assert together == [budgets([run])[0] for run in runs]
    assert len({one.images.trained for one in together}) > 1


def test_steps_after_a_divergence_do_not_count_though_the_stack_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protocol = replace(PROTOCOL, epochs=6, validate_every=3)
    whole, calls = _Queue.end_epoch, []

    def diverge(self: _Queue, values: Any) -> None:
        calls.append(1)
        changed = [{**step, 0: float("nan")} if len(calls) == 1 else step for step in values]
        whole(self, changed)

    monkeypatch.setattr(_Queue, "end_epoch", diverge)
    diverged, *others = budgets(runs_of("triplet", protocol))
    assert diverged.images == ImageCounts(trained=4 * BATCH, validated=HELD_OUT)
    assert {one.images.trained for one in others} == {6 * 4 * BATCH}


class Refreshed(Loss):
    """A loss that is refreshed each half pass."""

    every = 0.5


@for_each("loss", [Refreshed, losses["triplet"]])
@for_each("bank", [None, "kept", "fresh"])
@for_each("refresh", [None, 2, 5])
@for_each("steps", [0, 1, 7])
def test_how_often_the_bank_is_embedded_is_what_the_batches_count(
    planned: Callable[[BankKind], str],
    loss: type[Loss],
    bank: BankKind | None,
    refresh: int | None,
    steps: int,
) -> None:
    sampler = planned(bank) if bank else PROTOCOL.sampler
    protocol = replace(PROTOCOL, sampler=sampler, refresh=refresh)
    one = make_trainee(runs_of("triplet", protocol)[0], VIEW)
    one = replace(one, method=replace(one.method, loss=loss()))
    batches = Batches(one, one.model, protocol, (6, 4), CPU)
    for _ in range(steps):
        rows = batches.draw().rows
        if batches.keeps_bank:
            batches.take_in(rows, one.model(one.model.head.weight.new_zeros(len(rows), 10)))
    times = times_embedded(one.method.loss, bank, protocol, TRAINED, (6, 4), steps)
    assert batches.embedded == times * TRAINED
    assert batches.drawn == steps * BATCH


# --- Runs in a store ------------------------------------------------------------------------------


class Killed(BaseException):
    """A kill of the process in the middle of its work."""


def results(store: Store) -> dict[str, bytes]:
    return {
        path.parent.name: path.read_bytes()
        for path in sorted(store.root.glob("runs/*/*/result.json"))
    }


@pytest.mark.parametrize("name", ["triplet", "contrastive_sampled"])
@pytest.mark.parametrize("kind", ["fresh", "kept"])
def test_a_run_that_was_killed_has_the_counts_of_one_that_was_not(
    planned: Callable[[BankKind], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    kind: BankKind,
) -> None:
    place(tmp_path / "view", VIEW)
    protocol = replace(PROTOCOL, sampler=planned(kind), refresh=3, epochs=4)
    runs = tuple(runs_of(name, protocol))
    whole, killed = (Store.create(tmp_path / name) for name in ("whole", "killed"))
    Training(runs, str(whole.root), str(tmp_path / "view"), save_after=0)()
    save = ResumeFile.save

    def die(self: ResumeFile, state: Any) -> None:
        save(self, state)
        raise Killed

    monkeypatch.setattr(ResumeFile, "save", die)
    again = Training(runs, str(killed.root), str(tmp_path / "view"), save_after=0)
    with pytest.raises(Killed):
        again()
    monkeypatch.setattr(ResumeFile, "save", save)
    again()
    assert len(results(whole)) == 4 and results(killed) == results(whole)


def test_a_result_says_what_a_run_cost_and_one_without_a_budget_stays_as_it_is(
    tmp_path: Path,
) -> None:
    place(tmp_path / "view", VIEW)
    store, runs = Store.create(tmp_path / "store"), runs_of("triplet")[:1]
    Training(tuple(runs), str(store.root), str(tmp_path / "view"))()
    path = store.run(runs[0].key) / "result.json"
    assert RunResult.read(path).budget == budgets(runs, read_pack(tmp_path / "view"))[0]
    old = json.loads(path.read_text())
    del old["budget"]
    again = RunResult.from_json(old, "here")
    assert again.budget is None and again.to_json() == old


def test_bits_of_every_similarity_are_known() -> None:
    assert set(BITS_OF_A_NUMBER) == set(get_args(Similarity))
    assert bits_of(128, "euclidean") == 4096


# --- Memory ---------------------------------------------------------------------------------------


def test_the_peak_of_memory_is_measured_anew() -> None:
    before = PeakMemory("cpu")
    start = before.bytes
    large = mmap.mmap(-1, 240_000_000)  # given back at once, whatever the allocator keeps
    np.frombuffer(large, dtype=np.uint8)[::1024] = 1
    with_large = before.bytes
    large.close()
    after = PeakMemory("cpu").bytes
    assert start is not None and with_large is not None and after is not None
    assert with_large - start > 200e6 and with_large - after > 200e6


def test_where_the_system_cannot_begin_anew_the_peak_is_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("STATUS", "CLEAR"):
        monkeypatch.setattr(f"assay.devices.{name}", "/nowhere/at/all")
    found = PeakMemory("cpu").bytes
    assert found is not None and found > 10e6


@pytest.mark.parametrize("peak", [-1, 10**400, 2**60, "much", True, 1.5])
def test_a_peak_that_no_machine_has_makes_the_times_unknown(peak: Any, tmp_path: Path) -> None:
    said = {"seconds": 1.0, "started": "now", "host": "here", "machine": "x86_64"}
    path = tmp_path / "timing.json"
    path.write_text(json.dumps(said))
    found = read_timing(tmp_path)
    assert found is not None and found.peak_memory is None
    path.write_text(json.dumps({**said, "peak_memory": peak}))
    assert read_timing(tmp_path) is None


# --- Tables and verify ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 classes of 5 vectors in trainval: two folds of 20 samples."""
    root = tmp_path_factory.mktemp("budget")
    data = f"features:{make_features(root / 'mini.npz')}"
    small = customise(protocols["quick"], MINI)
    names = ["triplet", "normalized_softmax", "pretrained"]
    assay.bench(data, names, small, root / "store", engine="inline")
    return root / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Store:
    return Store(shutil.copytree(made, tmp_path / "store"))


def rows_of(store: Store) -> dict[str, dict[str, str]]:
    (path,) = (store.root / "report" / "cost").glob("*.csv")
    return {row["method"]: row for row in csv.DictReader(StringIO(path.read_text()))}


def problems(store: Store) -> list[str]:
    return [f"{one.what}: {one.problem}" for one in verify(store) if one.problem]


def test_the_table_of_costs_shows_what_was_counted_and_measured(store: Store) -> None:
    found, triplet = rows_of(store), record_in(store)
    own = {
        "single_dims": 8,
        "single_bits": 8 * 32,
        "single_parameters": 12 * 8 + 8,
        "concatenated_dims": 2 * 8,
        "concatenated_bits": 2 * 8 * 32,
        "concatenated_parameters": 2 * (12 * 8 + 8),
        "trained_parameters": 12 * 8 + 8,
        "runs": len(triplet.runs),
    }
    assert {name: int(found["triplet"][name]) for name in own} == own
    spent = [store.result(entry.key).budget for entry in triplet.run_entries()]
    images = [budget.images.embedded for budget in spent if budget is not None]
    assert len(images) == 8
    assert int(found["triplet"]["images_embedded"]) == median_low(images)
    softmax = int(found["normalized_softmax"]["trained_parameters"])
    assert softmax == 12 * 8 + 8 + 4 * 8  # each fold trains on 4 classes
    assert (found["as_is"]["single_dims"], found["as_is"]["concatenated_dims"]) == ("12", "12")
    assert (found["pretrained"]["single_dims"], found["pretrained"]["concatenated_dims"]) == (
        "8",
        "12",
    )
    assert all(
        float(row["seconds"]) > 0 and int(row["peak_memory"]) > 1e6 for row in found.values()
    )
    page = (store.root / "report" / "index.html").read_text()
    assert "<h3>Cost</h3>" in page and 'href="cost/' in page


def test_the_size_of_an_ensemble_stands_below_its_scores(store: Store) -> None:
    words = "16 dims (512 bits), a single one 8 dims (256 bits) for triplet and normalized_softmax"
    (scores,) = (store.root / "report" / "tables").glob("*-scores.md")
    for path in (scores, store.root / "report" / "index.html"):
        assert words in path.read_text(), path


def test_what_was_not_measured_is_unknown_in_the_table_of_costs(store: Store) -> None:
    for path in store.root.glob("runs/*/*/timing.json"):
        path.unlink()
    write_report(store)
    (path,) = (store.root / "report" / "cost").glob("*.md")
    rows = [line for line in path.read_text().splitlines() if line.startswith("| triplet")]
    assert [row.count("unknown") for row in rows] == [3]  # seconds, memory, minutes
    assert problems(store) == []


def test_tables_of_costs_are_the_only_ones_that_times_change(store: Store) -> None:
    def tables(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (store.root / "report" / folder).iterdir()}

    before, costs_before = tables("tables"), tables("cost")
    for path in store.root.glob("runs/*/*/timing.json"):
        path.unlink()
    write_report(store)
    assert tables("tables") == before
    assert tables("cost").keys() == costs_before.keys() and tables("cost") != costs_before


def rewrite_budgets(store: Store, change: Callable[[dict[str, Any]], Any], method: str) -> None:
    """Change every result of a study; the ledger and the report go with them."""
    digests = {}
    for entry in record_in(store, method).run_entries():
        path = store.run(entry.key) / "result.json"
        result = json.loads(path.read_text())
        change(result)
        path.write_text(pretty(result))
        digests[entry.key] = digest_file(path)

    def say(lines: list[Any]) -> None:
        for kind, body in lines:
            named = body["runs"] if kind == "trial" else [body] if kind == "reproduction" else []
            for run in named:
                run["result"] = digests[run["key"]]

    forge(store, say, method)
    write_report(store)


def test_a_store_of_an_assay_that_did_not_count_passes_and_is_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.verify.budgets.own_source", lambda: "a later one")
    for record in study_records(store):
        rewrite_budgets(store, lambda result: result.pop("budget"), record.method)
    assert problems(store) == []
    (found,) = comparisons(store)
    assert ensembles_in_words(found) == ""
    markdown = render(costs(found, {}, {}), "md")
    row = next(line for line in markdown.splitlines() if line.startswith("| triplet"))
    assert row.count("unknown") == 3 + 3 + 2 + 2 + 1


@pytest.mark.forgery("verify", what="what the runs of a method cost, left out")
def test_costs_that_were_left_out_are_missed(store: Store) -> None:
    rewrite_budgets(store, lambda result: result.pop("budget"), "triplet")
    found = problems(store)
    assert found and all("result.json has no budget" in text for text in found)


def in_budget(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda result: result["budget"].update(changed)


def in_images(**changed: int) -> Callable[[dict[str, Any]], None]:
    return lambda result: result["budget"]["images"].update(changed)


FORGED = {
    "fewer dims at test": ("triplet", in_budget(dim=4, bits=4 * 32), "budget.dim"),
    "fewer bits at test": ("triplet", in_budget(bits=8), "budget.bits"),
    "fewer parameters": ("triplet", in_budget(parameters=50), "budget.parameters"),
    "a trunk that is shared": ("triplet", in_budget(shared=50), "budget.shared"),
    "weights of a loss left out": ("normalized_softmax", in_budget(trained=104), "budget.trained"),
    "a baseline that was trained": ("pretrained", in_budget(trained=9), "budget.trained"),
    "fewer images trained on": ("triplet", in_images(trained=8), "images.trained"),
    "a bank that was embedded": ("triplet", in_images(refreshed=20), "images.refreshed"),
    "fewer images validated": ("triplet", in_images(validated=20), "images.validated"),
    "training samples scored": ("triplet", in_images(scored=20), "images.scored"),
    "a trunk that was frozen": ("triplet", in_images(extracted=40), "images.extracted"),
    "steps of a baseline": ("pretrained", in_images(trained=40), "images.trained"),
    "a baseline that saw less": ("pretrained", in_images(validated=20), "images.validated"),
}


@pytest.mark.forgery("verify", what="what all runs of a method cost, with fitting hashes: {}")
@pytest.mark.parametrize("how", FORGED)
def test_a_forged_budget_is_found(store: Store, how: str) -> None:
    method, change, words = FORGED[how]
    rewrite_budgets(store, change, method)
    count = len(record_in(store, method).runs)
    found = [one for one in problems(store) if words in one]
    assert found and all("than its study gives" in one for one in found), found
    assert len(found) == 1 or len(found) == count


def test_lists_of_triplets_and_pairs_count_as_many_images_as_fit(
    tmp_path: Path, assay: Callable[..., Any], mini_features: Path
) -> None:
    data, store = f"features:{mini_features}", tmp_path / "store"
    words = ["--methods", "triplet_offline,contrastive_offline", "--engine", "inline"]
    code, _, err = assay("bench", "--data", data, "--out", store, *words, *set_options(MINI))
    assert code == 0, err
    code, out, _ = assay("verify", store, "--data", data)
    assert code == 0, out


@pytest.mark.slow
def test_every_method_and_every_sampler_passes_verify(
    tmp_path: Path, assay: Callable[..., Any]
) -> None:
    """In batches of 33, which hold neither whole pairs nor a power of two."""
    data = f"features:{make_features(tmp_path / 'f.npz', classes=48)}"
    small = set_options((*MINI, "batch=33", "trials=1", "reproductions=1"))
    bench = ["bench", "--data", data, "--engine", "inline", *small]
    code, _, err = assay(*bench, "--methods", "all", "--out", tmp_path / "methods")
    assert code == 0, err
    stores = [tmp_path / "methods"]
    for name in samplers:
        stores.append(tmp_path / name)
        words = ["--methods", "contrastive,triplet", "--set", f"sampler={name}"]
        code, _, err = assay(*bench, *words, "--out", stores[-1])
        assert code == 0, (name, err)
    for store in stores:
        code, out, _ = assay("verify", store, "--data", data)
        assert code == 0, (store, out)
