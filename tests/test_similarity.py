"""Embeddings compared by Euclidean or Hamming distance: validation, checkpoints, test scores,
models and their use all go by it.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors import safe_open

import assay.run
from assay.data.splits import folds_of_labels
from assay.embedder import load
from assay.embedding import embed_samples, normalise_for, outputs
from assay.errors import BadInput
from assay.metrics import evaluate
from assay.model import (
    CARD,
    WEIGHTS,
    Architecture,
    Model,
    pack_model,
    read_model,
    write_model_folder,
)
from assay.protocols import Protocol, Similarity, customise, protocols
from assay.records.run import Run
from assay.records.store import Store
from assay.records.study import study_records
from assay.run import (
    CheckpointScoring,
    HalfLabels,
    Training,
    Unsealed,
    check_metrics,
    score_reproduction,
    single_vectors,
)
from assay.run.testing import read_answers
from assay.study import design_bench
from heads import HERE, PROTOCOL, VIEW, place, runs_of, vectors
from miniature import MINI
from options import set_options
from sealed import receipt

CPU = torch.device("cpu")
BY_DISTANCE = replace(PROTOCOL, similarity="euclidean", epochs=3)
TEST = vectors(classes=9, per_class=5)
METRICS = ("recall_at_1", "nmi", "map_at_r")


def raw(path: Path, x: np.ndarray) -> torch.Tensor:
    """What the model in the file gives, as it comes out of it."""
    return outputs(read_model(path), x, 0, CPU)


def by_distance(z: torch.Tensor, y: np.ndarray) -> float:
    return evaluate(z, y, ["map_at_r"], similarity="euclidean")["map_at_r"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    place(tmp_path / "view", VIEW)
    return Store.create(tmp_path / "store")


def compute(store: Store, runs: list[Run]) -> None:
    Training(tuple(runs), str(store.root), str(store.root.parent / "view"), keep="all")()


def history(store: Store, run: Run) -> dict[int, float]:
    """Validation MAP@R by epoch."""
    lines = (store.run(run.key) / "history.jsonl").read_text().splitlines()
    return {point["epoch"]: point["validation"]["map_at_r"] for point in map(json.loads, lines)}


# --- Scores ---

DRAW = np.random.default_rng(0)
Y = np.repeat(np.arange(6), 5)
LENGTHS = DRAW.uniform(0.2, 3, size=(30, 1))
FOLDS = [
    (LENGTHS * (DRAW.normal(size=(6, 4))[Y] + DRAW.normal(size=(30, 4)))).astype(np.float32)
    for _ in range(3)
]


def test_scores_are_those_of_a_direct_evaluation_by_distance() -> None:
    found = score_reproduction(FOLDS, HalfLabels(Y), 4, METRICS, "euclidean")[0]
    together = evaluate(np.concatenate(FOLDS, axis=1), Y, METRICS, similarity="euclidean")
    apart = [evaluate(z, Y, METRICS, similarity="euclidean") for z in FOLDS]
    for name in METRICS:
        assert found.concatenated[name] == together[name]
        assert [fold[name] for fold in found.folds] == [scores[name] for scores in apart]
        assert found.separated[name] == pytest.approx(np.mean([scores[name] for scores in apart]))
    assert (
        found.concatenated != score_reproduction(FOLDS, HalfLabels(Y), 4, METRICS)[0].concatenated
    )


def test_concatenated_squared_distances_are_the_sum_of_those_of_the_folds() -> None:
    """So no fold is scaled to the length of the others: neighbours are those of the summed
    distances, one by one.
    """
    squared = sum(np.square(z[:, None].astype(np.float64) - z[None]).sum(-1) for z in FOLDS)
    hits = 0
    for query in range(30):
        order = sorted(
            (reference for reference in range(30) if reference != query),
            key=lambda one: squared[query, one],
        )
        hits += Y[order[0]] == Y[query]
    assert score_reproduction(FOLDS, HalfLabels(Y), 4, METRICS, "euclidean")[0].concatenated[
        "recall_at_1"
    ] == pytest.approx(hits / 30)


def test_outputs_are_normalised_for_the_cosine_only() -> None:
    z = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert normalise_for(z, "euclidean") is normalise_for(z, "hamming") is z
    assert normalise_for(z, "cosine").norm(dim=1).tolist() == [1.0, 1.0]
    assert torch.equal(single_vectors(z, 1, "euclidean"), z[:, :1])


def test_a_metric_of_pairs_by_cosine_is_refused_before_any_work() -> None:
    protocol = Protocol("p.v1", similarity="euclidean", metrics=("roc_auc",))
    with pytest.raises(
        BadInput,
        match="roc_auc compares pairs by the cosine, and similarity is euclidean; leave it out",
    ):
        check_metrics(protocol)
    check_metrics(replace(protocol, similarity="cosine"))
    check_metrics(replace(protocol, metrics=("nmi",)))


def test_concatenated_bits_are_those_of_the_folds_side_by_side() -> None:
    """So Hamming distances add up. No fold fills whole bytes."""
    differ = sum(((z[:, None] > 0) != (z[None] > 0)).sum(-1) for z in FOLDS)
    hits = []
    for query in range(30):
        others = [reference for reference in range(30) if reference != query]
        order = sorted(others, key=lambda one: (differ[query, one], one))
        hits.append(Y[order[0]] == Y[query])
    metrics = ("recall_at_1", "map_at_r")
    found = score_reproduction(FOLDS, HalfLabels(Y), 4, metrics, "hamming")[0]
    assert found.concatenated["recall_at_1"] == pytest.approx(np.mean(hits))
    apart = [evaluate(z, Y, metrics, similarity="hamming") for z in FOLDS]
    for name in metrics:
        assert [fold[name] for fold in found.folds] == [scores[name] for scores in apart]


@pytest.mark.parametrize("field", ["metrics", "training_metrics"])
@pytest.mark.parametrize("name", ["nmi", "pi_ratio", "roc_auc"])
def test_a_metric_that_is_not_of_bits_is_refused_before_any_work(field: str, name: str) -> None:
    protocol = Protocol("p.v1", similarity="hamming")
    check_metrics(protocol)
    with pytest.raises(BadInput, match=rf"--set {field}={name}: {name} .*; leave it out"):
        check_metrics(replace(protocol, **{field: (name,)}))


# --- Runs ---


@pytest.mark.parametrize(
    "name", ["n_pairs", "angular_raw", "triplet_semihard_squared", "triplet", "quadruplet"]
)
def test_a_run_is_validated_by_the_distance_of_its_outputs(name: str, store: Store) -> None:
    """Stacked heads and heads that train alone; methods that see raw outputs and methods that do
    not.
    """
    runs = runs_of(name, BY_DISTANCE)
    compute(store, runs)
    for run, fold in zip(runs, folds_of_labels(VIEW.y, 4), strict=True):
        kept = store.checkpoints(run.key)
        again = {
            epoch: by_distance(raw(path, VIEW.x[fold.validation]), VIEW.y[fold.validation])
            for epoch, path in kept.items()
        }
        assert history(store, run) == again
        assert store.result(run.key).best_epoch == min(
            epoch for epoch in again if again[epoch] == max(again.values())
        )


def test_what_is_compared_by_distance_is_another_run(store: Store) -> None:
    runs, others = (
        runs_of("n_pairs", BY_DISTANCE),
        runs_of("n_pairs", replace(BY_DISTANCE, similarity="cosine")),
    )
    assert {run.key for run in runs}.isdisjoint(run.key for run in others)
    assert "similarity" not in others[0].to_json()["protocol"]
    compute(store, runs)
    compute(store, others)
    assert history(store, runs[0]) != history(store, others[0])


def test_a_baseline_is_compared_as_its_protocol_says(store: Store) -> None:
    run = Run(BY_DISTANCE, "view", "pretrained", "source", {}, (6, 4), None, 1, HERE)
    compute(store, [run])
    z = raw(store.run(run.key) / WEIGHTS, VIEW.x)[:, : BY_DISTANCE.dim]
    expected = [
        by_distance(z[fold.validation], VIEW.y[fold.validation])
        for fold in folds_of_labels(VIEW.y, 4)
    ]
    assert store.result(run.key).validation["map_at_r"] == pytest.approx(np.mean(expected))


def test_training_scores_are_by_distance_too(store: Store) -> None:
    run = runs_of("n_pairs", replace(BY_DISTANCE, training_metrics=("recall_at_1",)))[0]
    compute(store, [run])
    rows = folds_of_labels(VIEW.y, 4)[0].train
    expected = evaluate(
        raw(store.run(run.key) / WEIGHTS, VIEW.x[rows]),
        VIEW.y[rows],
        ["recall_at_1"],
        similarity="euclidean",
    )
    assert (store.result(run.key).training or {})["recall_at_1"] == pytest.approx(
        expected["recall_at_1"]
    )


# --- The opened test half ---


def test_test_vectors_are_raw_and_checkpoints_are_scored_by_distance(
    store: Store, tmp_path: Path
) -> None:
    place(tmp_path / "test", TEST)
    proof = receipt(tmp_path / "ledger", "view")
    opened = Unsealed(str(store.root), str(tmp_path / "test"), "test", proof, "view", 1, "cpu")
    run = runs_of("n_pairs", BY_DISTANCE)[0]
    compute(store, [run])
    assay.run.TestEmbedding(run.key, opened)()
    assert np.array_equal(
        np.load(opened.vectors(run.key)), raw(store.run(run.key) / WEIGHTS, TEST.x).numpy()
    )
    found = CheckpointScoring(run.key, BY_DISTANCE.dim, opened)()
    assert found == {
        epoch: by_distance(raw(path, TEST.x), TEST.y)
        for epoch, path in store.checkpoints(run.key).items()
    }


SMALL = [
    "trunk=auto",
    "batch.embedding=4x2",
    "batch.classification=4x2",
    "folds=2",
    "reproductions=2",
    "metrics=recall_at_1",
]


def settings_of(protocol: str) -> list[str]:
    return ["--protocol", protocol, *set_options((*MINI, *SMALL, "trials=1"))]


def test_a_bench_scores_each_method_as_its_exception_says(
    mini_features: Path, tmp_path: Path, assay: Any
) -> None:
    """From the first trial to `verify`, and to a look at the model with `evaluate`."""
    out, data = tmp_path / "store", f"features:{mini_features}"
    named = ["--data", data, "--methods", "n_pairs,triplet"]
    code, _, err = assay(
        "bench", *named, "--out", out, "--engine", "inline", *settings_of("unbiased/resnet50.v2")
    )
    assert code == 0, err
    store = Store(out)
    for record in study_records(store):
        similarity = "euclidean" if record.method == "n_pairs" else "cosine"
        assert record.announced.protocol.resolved.similarity == similarity
        assert record.seal is not None
        answers = read_answers(store.answers(record.seal.test))
        assert answers is not None
        for test in record.tests:
            vectors_of_folds = [
                np.load(store.test_vectors(key, record.seal.test)) for key in test.runs
            ]
            lengths = np.linalg.norm(np.concatenate(vectors_of_folds), axis=1)
            assert (np.abs(lengths - 1) < 1e-5).all() == (similarity == "cosine")
            direct = evaluate(
                np.concatenate(vectors_of_folds, axis=1),
                answers.y,
                ["map_at_r"],
                similarity=similarity,
            )
            assert test.concatenated["map_at_r"] == pytest.approx(direct["map_at_r"], abs=1e-6)
    assert assay("verify", out)[0] == 0
    cards = {
        json.loads((folder / CARD).read_text())["method"]: folder
        for folder in (out / "models").iterdir()
    }
    for method, similarity in (("n_pairs", "euclidean"), ("triplet", "cosine")):
        assert load(cards[method]).similarity == similarity
        code, out_, err = assay(
            "evaluate",
            cards[method],
            "--data",
            data,
            "--json",
            *settings_of("unbiased/resnet50.v2")[:2],
        )
        assert code == 0, err
        assert similarity in out_


def test_a_bench_by_bits_keeps_numbers_and_scores_their_bits(
    mini_features: Path, tmp_path: Path, assay: Any
) -> None:
    """`verify` recomputes its scores from the numbers, and the numbers from the data."""
    out, data = tmp_path / "store", f"features:{mini_features}"
    words = ["--data", data, "--methods", "proxy_nca,pretrained", *settings_of("quick")]
    code, _, err = assay(
        "bench", *words, "--set", "similarity=hamming", "--out", out, "--engine", "inline"
    )
    assert code == 0, err
    store = Store(out)
    for record in study_records(store):
        assert record.seal is not None
        answers = read_answers(store.answers(record.seal.test))
        assert answers is not None
        for test in record.tests:
            folds = [np.load(store.test_vectors(key, record.seal.test)) for key in test.runs]
            assert all(z.dtype == np.float32 for z in folds)
            bits = np.concatenate(folds, axis=1) > 0
            direct = evaluate(np.where(bits, 1.0, -1.0), answers.y, ["map_at_r"], similarity="dot")
            assert test.concatenated["map_at_r"] == direct["map_at_r"]
    assert assay("verify", out)[0] == 0
    code, said, err = assay("verify", out, "--data", data)
    assert code == 0, (said, err)


# --- Models ---


def test_a_model_file_says_how_its_embeddings_are_compared_and_old_files_stay_as_they_were(
    tmp_path: Path,
) -> None:
    for similarity in get_args(Similarity):
        architecture = Architecture("identity", 4, 0, 3, similarity=similarity)
        path = tmp_path / f"{similarity}.safetensors"
        path.write_bytes(pack_model(architecture, Model(architecture).state()))
        with safe_open(str(path), framework="pt") as file:
            header = json.loads(file.metadata()["architecture"])
        assert ("similarity" in header) == (similarity != "cosine")
        assert read_model(path).architecture == architecture


@pytest.mark.parametrize("similarity", get_args(Similarity))
def test_a_loaded_model_embeds_as_it_is_compared(similarity: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model(Architecture("identity", 10, 0, 3, similarity=similarity))
    write_model_folder(tmp_path / "model", model, {"method": "n_pairs"})
    loaded = load(tmp_path / "model", device="cpu")
    assert loaded.similarity == similarity
    expected = normalise_for(outputs(model, VIEW.x, 0, CPU), similarity)
    assert np.array_equal(loaded.embed(VIEW.x), expected.numpy())
    assert torch.equal(embed_samples(model, VIEW.x, 0, CPU, similarity), expected)


def test_evaluating_a_model_goes_by_its_own_similarity_unless_another_is_asked_for(
    mini_features: Path, tmp_path: Path, assay: Any
) -> None:
    torch.manual_seed(0)
    write_model_folder(
        tmp_path / "model", Model(Architecture("identity", 12, 0, 3, similarity="euclidean")), {}
    )
    words = ("evaluate", tmp_path / "model", "--data", f"features:{mini_features}", "--json")
    own, asked, other = (
        assay(*words, *more)
        for more in ([], ["--similarity", "euclidean"], ["--similarity", "cosine"])
    )
    assert own[0] == asked[0] == other[0] == 0, (own, other)
    assert own[1] == asked[1] != other[1]


def test_embeddings_written_by_such_a_model_are_raw_and_it_says_so(
    mini_features: Path, tmp_path: Path, assay: Any
) -> None:
    torch.manual_seed(0)
    model = Model(Architecture("identity", 12, 0, 3, similarity="euclidean"))
    write_model_folder(tmp_path / "model", model, {})
    out = tmp_path / "z.npz"
    code, said, err = assay("embed", tmp_path / "model", f"features:{mini_features}", "--out", out)
    assert code == 0, err
    assert f"assay evaluate {out} --similarity euclidean" in said
    x = np.load(mini_features)["z"].astype(np.float32)
    assert np.allclose(np.load(out)["z"], outputs(model, x, 0, CPU).numpy(), atol=1e-6)


# --- Designs ---


@pytest.mark.parametrize("version", [1, 2])
def test_the_unbiased_evaluation_compares_raw_methods_by_distance_in_its_second_version(
    version: int, mini_features: Path
) -> None:
    protocol = customise(
        protocols[f"unbiased/resnet50.v{version}"], ["trunk=auto", "batch.embedding=4x2"]
    )
    names = [
        "n_pairs",
        "angular_raw",
        "triplet_semihard_squared",
        "triplet",
        "lifted",
        "pretrained",
    ]
    designs = design_bench(f"features:{mini_features}", names, protocol, "cpu", [])
    found = {design.method.name: design.protocol.similarity for design in designs}
    raw_ones = names[:3] if version == 2 else []
    assert found == {name: "euclidean" if name in raw_ones else "cosine" for name in names}
