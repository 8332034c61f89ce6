"""Scores of the test half: which metrics, of folds together and apart."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from assay.errors import BadInput
from assay.hashing import canonical
from assay.metrics import evaluate
from assay.protocols import Protocol
from assay.records.ledger import Receipt
from assay.run import (
    HalfLabels,
    Scoring,
    Unsealed,
    check_metrics,
    score_reproduction,
)
from assay.run.testing import OnTestHalf
from assay.train import mean_scores
from assay.verify.scores import agree

DRAW = np.random.default_rng(0)
Y = np.repeat(np.arange(6), 5)
FOLDS = [
    (DRAW.normal(size=(6, 4))[Y] + 0.8 * DRAW.normal(size=(30, 4))).astype(np.float32)
    for _ in range(3)
]
EVERY = ("precision_at_1", "recall_at_4", "nmi", "pi_ratio", "roc_auc", "spectral_decay")


def unit(z: np.ndarray) -> torch.Tensor:
    return F.normalize(torch.from_numpy(z), dim=1)


def test_metrics_of_single_queries_and_of_the_whole_are_scored_alike() -> None:
    found, _ = score_reproduction(FOLDS, HalfLabels(Y), 4, EVERY)
    names = (*EVERY, "map_at_r")
    together = evaluate(
        F.normalize(torch.cat([torch.from_numpy(z) for z in FOLDS], dim=1), dim=1), Y, names
    )
    apart = [evaluate(unit(z), Y, names) for z in FOLDS]
    assert set(found.concatenated) == {*together, "queries", "skipped"}
    for name, value in together.items():
        assert found.concatenated[name] == pytest.approx(value)
        assert found.separated[name] == pytest.approx(np.mean([scores[name] for scores in apart]))
        assert [fold[name] for fold in found.folds] == pytest.approx(
            [scores[name] for scores in apart]
        )


def test_map_at_r_is_among_the_scores_whatever_is_asked_for() -> None:
    assert set(score_reproduction(FOLDS, HalfLabels(Y), 4, ("nmi",))[0].separated) == {
        "nmi",
        "map_at_r",
        "queries",
        "skipped",
    }
    assert set(score_reproduction(FOLDS, HalfLabels(Y), 4, ())[0].separated) == {
        "map_at_r",
        "queries",
        "skipped",
    }


def test_a_metric_that_looks_further_than_there_are_references_has_no_value() -> None:
    found = score_reproduction(
        FOLDS, HalfLabels(Y), 4, ("recall_at_29", "recall_at_30", "precision_at_1")
    )[0].separated
    assert found["recall_at_29"] == 1
    assert math.isnan(found["recall_at_30"])
    assert isinstance(found["precision_at_1"], float)
    gallery = np.arange(30) % 5 < 2
    for query, k in ((~gallery, 12), (None, 11)):
        found = score_reproduction(
            FOLDS, HalfLabels(Y, query, gallery), 4, (f"recall_at_{k}", f"recall_at_{k + 1}")
        )[0].concatenated
        assert found[f"recall_at_{k}"] == 1
        assert math.isnan(found[f"recall_at_{k + 1}"])


def test_sums_over_classes_add_up_to_the_scores() -> None:
    query = np.arange(30) % 3 == 0
    for labels in (HalfLabels(Y), HalfLabels(Y, query, ~query)):
        found, by_class = score_reproduction(FOLDS, labels, 4, ("map_at_r",))
        for setting in ("separated", "concatenated"):
            assert by_class[setting].sum() / by_class["queries"].sum() == pytest.approx(
                found.scores(setting)["map_at_r"]
            )
        assert by_class["queries"].sum() == found.separated["queries"]


def test_the_sum_of_a_class_is_that_of_its_own_queries() -> None:
    _, by_class = score_reproduction(FOLDS[:1], HalfLabels(Y), 4, ("map_at_r",))
    own = HalfLabels(Y).evaluate(torch.from_numpy(FOLDS[0]), ["map_at_r"]).per_query("map_at_r")
    for label in np.unique(Y):
        assert by_class["separated"][label] == pytest.approx(np.nansum(own[label == Y]))


def test_counts_stay_whole_numbers() -> None:
    assert mean_scores([{"queries": 30, "nmi": 1.0}, {"queries": 30, "nmi": 0.5}]) == {
        "queries": 30,
        "nmi": 0.75,
    }
    assert isinstance(mean_scores([{"queries": 30}, {"queries": 30}])["queries"], int)


def test_an_infinite_score_is_written_by_its_name() -> None:
    """A direction in which nothing varies: singular values fall to nothing."""
    flat = [np.concatenate([z[:, :3], np.zeros((30, 1), dtype=np.float32)], axis=1) for z in FOLDS]
    found = score_reproduction(flat, HalfLabels(Y), 4, ("spectral_decay",))[0].to_json()
    assert found["separated"]["spectral_decay"] == "inf"
    assert found["folds"][0]["spectral_decay"] == "inf"
    assert agree(json.loads(canonical(found)), found)


def test_scores_agree_with_themselves_and_with_nothing_else() -> None:
    found = score_reproduction(FOLDS, HalfLabels(Y), 4, EVERY)[0].to_json()
    said = json.loads(canonical({**found, "vectors": ["hash"]}))
    assert not agree(found, said), "hashes were not computed again"
    del said["vectors"]
    assert agree(found, said)
    for change in (
        {"separated": {**said["separated"], "nmi": said["separated"]["nmi"] + 1e-6}},
        {"folds": said["folds"][:2]},
        {"folds": [said["folds"][1], said["folds"][0], said["folds"][2]]},
        {"concatenated": {**said["concatenated"], "pi_ratio": "inf"}},
        {"concatenated": {**said["concatenated"], "made_up": 1.0}},
        {"concatenated": [1.0]},
    ):
        assert not agree(found, {**said, **change})
    assert agree(found, {"separated": said["separated"]}), (
        "scores that were not recorded are not compared"
    )


def test_an_unknown_metric_is_refused() -> None:
    said = {
        "map_at_rr": "did you mean 'map_at_r'",
        "recall_at_0": "the number in it is at least 1",
        "": "no metric is called ''",
    }
    for field in ("metrics", "training_metrics"):
        for name, message in said.items():
            protocol = replace(Protocol("p.v1"), **{field: ("nmi", name)})
            with pytest.raises(BadInput, match=rf"--set {field}=nmi,{name}: .*{message}"):
                check_metrics(protocol)


def test_known_metrics_pass() -> None:
    check_metrics(Protocol("p.v1"))
    check_metrics(Protocol("p.v1", metrics=EVERY, training_metrics=("pi_ratio", "recall_at_10")))
    check_metrics(Protocol("p.v1", metrics=()))


def test_classes_that_are_only_looked_up_in_have_a_place_among_the_sums() -> None:
    y, query = np.array([0, 0, 1, 1, 2, 2]), np.array([True, True, True, True, False, False])
    z = torch.eye(3, dtype=torch.float32)[torch.from_numpy(y)]
    _, by_class = HalfLabels(y, query=query).scored(z, ["map_at_r"])
    assert by_class.tolist() == [[2, 2, 0], [2, 2, 0]]


def test_vectors_are_scored_without_a_gpu_also_where_runs_have_one() -> None:
    test = Unsealed("store", "view", "test", Receipt("ledger", "hash"), "trainval", 2, "cuda")
    scoring = Scoring(("key",), 8, ("map_at_r",), "cosine", test)
    assert (scoring.needs.cpus, scoring.needs.gpus) == (2, 0)
    assert OnTestHalf.needs.fget(scoring).gpus == 1
