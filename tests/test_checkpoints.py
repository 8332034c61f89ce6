"""Weights of every validation, scores of the training fold, and scores of checkpoints on the opened
test half.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import assay.run.training
from assay.data.packs import View
from assay.data.splits import folds_of_labels
from assay.embedding import embed_samples
from assay.hashing import digest_file
from assay.metrics import evaluate
from assay.model import Architecture, read_model
from assay.protocols import Protocol
from assay.records.ledger import SealError
from assay.records.run import WEIGHTS, Checkpoint, Run
from assay.records.store import Store
from assay.run import CheckpointScoring, Scoring, Training, Unsealed
from assay.run.results import result_of
from assay.train import Fit
from heads import HERE, PROTOCOL, VIEW, place, runs_of, vectors
from sealed import receipt

CPU = torch.device("cpu")
TEST = vectors(classes=9, per_class=5)
BASELINE = Run(PROTOCOL, "view", "pretrained", "source", {}, (6, 4), None, 1, HERE)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    place(tmp_path / "view", VIEW)
    return Store.create(tmp_path / "store")


def compute(store: Store, runs: list[Run], keep: Any = "best") -> None:
    Training(tuple(runs), str(store.root), str(store.root.parent / "view"), keep=keep)()


def content(store: Store, run: Run) -> dict[str, bytes]:
    folder = store.run(run.key)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "timing.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def map_at_r(path: Path, view: View, dim: int = PROTOCOL.dim) -> float:
    """Return MAP@R of the model in the file."""
    z = embed_samples(read_model(path), view.x, 0, CPU)
    return evaluate(F.normalize(z[:, :dim], dim=1), view.y, ["map_at_r"])["map_at_r"]


# --- Every validation ---


@pytest.mark.parametrize("name", ["triplet", "quadruplet"])
def test_every_validation_of_a_run_can_be_kept(name: str, store: Store) -> None:
    """In a stack, and with a method that cannot be stacked."""
    runs = runs_of(name, replace(PROTOCOL, epochs=3))
    compute(store, runs, "all")
    for run in runs:
        kept = store.checkpoints(run.key)
        history = [
            json.loads(line)
            for line in (store.run(run.key) / "history.jsonl").read_text().splitlines()
        ]
        assert list(kept) == [entry["epoch"] for entry in history] == [0, 1, 2, 3]
        rows = folds_of_labels(VIEW.y, 4)[run.fold or 0].validation
        for entry in history:
            assert (
                map_at_r(kept[entry["epoch"]], VIEW.rows(rows)) == entry["validation"]["map_at_r"]
            )
        assert digest_file(kept[store.result(run.key).best_epoch]) == store.result(run.key).weights
    assert not list((store.root / "partial").rglob("*.safetensors"))


def test_keeping_checkpoints_changes_neither_key_nor_result(store: Store, tmp_path: Path) -> None:
    runs = runs_of("triplet")
    other = Store.create(tmp_path / "other")
    compute(store, runs, "all")
    compute(other, runs)
    for run in runs:
        kept = {
            name: found
            for name, found in content(store, run).items()
            if not name.startswith("checkpoints/")
        }
        assert kept == content(other, run)
        assert other.checkpoints(run.key) == {}


@pytest.mark.parametrize("name", ["triplet", "contrastive_sampled", "quadruplet"])
def test_a_finished_run_gets_the_checkpoints_it_lacks(
    name: str, store: Store, tmp_path: Path
) -> None:
    runs, whole = runs_of(name), Store.create(tmp_path / "whole")
    compute(store, runs)
    (store.run(runs[1].key) / WEIGHTS).unlink()  # a losing trial has lost them
    stamps = [(store.run(run.key) / "result.json").stat().st_mtime_ns for run in runs]
    assert not any(store.has_run(run.key, "all") for run in runs)
    compute(store, runs, "all")
    compute(whole, runs, "all")
    assert [(store.run(run.key) / "result.json").stat().st_mtime_ns for run in runs] == stamps
    for number, run in enumerate(runs):
        assert store.has_run(run.key, "all")
        expected = content(whole, run)
        assert content(store, run) == {
            file: found for file, found in expected.items() if number != 1 or file != WEIGHTS
        }


def test_runs_that_have_their_checkpoints_are_not_computed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(store, runs_of("triplet"), "all")
    monkeypatch.setattr(assay.run.training, "compute", None)
    compute(store, runs_of("triplet"), "all")
    compute(store, runs_of("triplet"))


def test_a_run_that_gives_other_results_gets_no_checkpoints(store: Store) -> None:
    runs = runs_of("triplet")
    compute(store, runs)
    path = store.run(runs[2].key) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights": "0" * 64}))
    with pytest.raises(RuntimeError, match=f"run {runs[2].key} .* came out with another weights"):
        compute(store, runs, "all")
    assert store.checkpoints(runs[2].key) == {}


def test_a_baseline_has_one_checkpoint(store: Store) -> None:
    compute(store, [BASELINE])
    compute(store, [BASELINE], "all")
    kept = store.checkpoints(BASELINE.key)
    assert list(kept) == [0]
    assert kept[0].read_bytes() == (store.run(BASELINE.key) / WEIGHTS).read_bytes()


def test_checkpoints_are_listed_in_the_order_of_their_epochs(store: Store) -> None:
    run = runs_of("triplet", replace(PROTOCOL, epochs=11, validate_every=3))[0]
    compute(store, [run], "all")
    assert list(store.checkpoints(run.key)) == [0, 3, 6, 9, 11]


# --- Scores of the training fold ---

ASKED = ("pi_ratio", "spectral_decay", "recall_at_1")


def training_scores(
    store: Store, run: Run, protocol: Protocol = PROTOCOL
) -> list[dict[str, float]]:
    """Return the scores of each training fold with the chosen weights."""
    folds = folds_of_labels(VIEW.y, protocol.folds)
    chosen = folds if run.fold is None else [folds[run.fold]]
    z = embed_samples(read_model(store.run(run.key) / WEIGHTS), VIEW.x, 0, CPU)[:, : protocol.dim]
    return [
        dict(evaluate(F.normalize(z[fold.train], dim=1), VIEW.y[fold.train], ASKED))
        for fold in chosen
    ]


def test_the_training_fold_is_scored_with_the_chosen_weights(store: Store) -> None:
    runs = runs_of("triplet", replace(PROTOCOL, training_metrics=ASKED, epochs=3))
    compute(store, runs)
    for run in runs:
        [expected] = training_scores(store, run)
        assert store.result(run.key).training == pytest.approx(expected)


def test_the_baseline_has_the_mean_over_training_folds(store: Store) -> None:
    run = replace(BASELINE, protocol=replace(PROTOCOL, training_metrics=ASKED, dim=2))
    compute(store, [run])
    expected = training_scores(store, run, run.protocol)
    assert len(expected) == 4
    for name, value in (store.result(run.key).training or {}).items():
        assert value == pytest.approx(np.mean([scores[name] for scores in expected]))


def test_the_training_fold_is_not_scored_unless_the_protocol_asks_for_it(store: Store) -> None:
    runs = runs_of("triplet")
    compute(store, runs)
    assert store.result(runs[0].key).training is None


def test_training_scores_that_are_no_numbers_are_written_by_their_names() -> None:
    checkpoint = Checkpoint(0, None, {"map_at_r": 0.5})
    fit = Fit(
        Architecture("identity", 4, 0, 4),
        [checkpoint],
        checkpoint,
        {},
        training={"spectral_decay": float("inf"), "pi_ratio": float("nan")},
    )
    view, run = replace(VIEW, content="hash"), runs_of("triplet")[0]
    assert result_of(run, fit, view, 3).to_json()["training"] == {
        "spectral_decay": "inf",
        "pi_ratio": "nan",
    }


def test_a_network_without_finite_embeddings_has_no_training_scores(store: Store) -> None:
    """Weights that overflow at once: the run diverges before it has learnt anything."""
    place(store.root.parent / "broken", View(np.full_like(VIEW.x, np.inf), VIEW.y))
    runs = runs_of("triplet", replace(PROTOCOL, training_metrics=("pi_ratio", "recall_at_k")))
    Training(tuple(runs), str(store.root), str(store.root.parent / "broken"))()
    result = store.result(runs[0].key)
    assert result.status == "diverged" and result.training
    assert set(result.training) == {
        "pi_ratio",
        *(f"recall_at_{k}" for k in (1, 2, 4, 8, 16, 32)),
    }
    assert all(math.isnan(value) for value in result.training.values())


# --- Checkpoints on the opened test half ---


@pytest.fixture
def opened(store: Store, tmp_path: Path) -> Unsealed:
    place(tmp_path / "test", TEST)
    return Unsealed(
        str(store.root),
        str(tmp_path / "test"),
        "test",
        receipt(tmp_path / "ledger", "view"),
        "view",
        1,
        "cpu",
    )


def test_checkpoints_are_scored_as_single_models(store: Store, opened: Unsealed) -> None:
    run = runs_of("triplet", replace(PROTOCOL, epochs=3))[0]
    compute(store, [run], "all")
    before = content(store, run)
    found = CheckpointScoring(run.key, PROTOCOL.dim, opened)()
    assert found == {
        epoch: map_at_r(path, TEST) for epoch, path in store.checkpoints(run.key).items()
    }
    assert len(set(found.values())) > 1
    assert content(store, run) == before
    best = store.result(run.key).best_epoch
    assert CheckpointScoring(run.key, PROTOCOL.dim, opened, (best,))() == {best: found[best]}
    assay.run.TestEmbedding(run.key, opened)()
    scores, _, _ = Scoring((run.key,), PROTOCOL.dim, PROTOCOL.metrics, "cosine", opened)()
    assert scores.separated["map_at_r"] == scores.folds[0]["map_at_r"] == found[best]


def test_a_wide_baseline_is_scored_by_its_first_components(store: Store, opened: Unsealed) -> None:
    run = replace(BASELINE, protocol=replace(PROTOCOL, dim=2))
    compute(store, [run], "all")
    assert CheckpointScoring(run.key, 2, opened)() == {
        0: map_at_r(store.checkpoints(run.key)[0], TEST, dim=2)
    }


def test_checkpoints_are_scored_only_with_a_valid_receipt(
    store: Store, opened: Unsealed, tmp_path: Path
) -> None:
    run = runs_of("triplet")[0]
    compute(store, [run], "all")
    for bad in (
        replace(opened, trainval="other"),
        replace(opened, receipt=receipt(tmp_path / "of another", "another")),
    ):
        with pytest.raises(SealError):
            CheckpointScoring(run.key, PROTOCOL.dim, bad)()


def test_a_checkpoint_that_was_not_kept_raises(store: Store, opened: Unsealed) -> None:
    kept, without = runs_of("triplet")[:2]
    compute(store, [kept], "all")
    compute(store, [without])
    with pytest.raises(FileNotFoundError, match=f"run {kept.key} has kept no weights of epoch 9"):
        CheckpointScoring(kept.key, PROTOCOL.dim, opened, (1, 9))()
    with pytest.raises(FileNotFoundError, match=f"run {without.key} has kept no weights"):
        CheckpointScoring(without.key, PROTOCOL.dim, opened)()
