"""The published protocols: every number of the papers they follow, names with a slash, and nothing
refused in miniature.
"""

import csv
import html
import re
import typing
from dataclasses import fields, replace
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from assay.errors import BadInput
from assay.losses import losses
from assay.methods import assemble, defaults, methods, with_given
from assay.metrics.metric import choose_metrics
from assay.protocols import (
    Augment,
    BatchKind,
    Protocol,
    as_text,
    customise,
    protocols,
    published_name,
    quick,
    reality_check,
    revisiting,
    unbiased,
    with_settings,
)
from assay.published import REALITY_CHECK as NAMES
from assay.published import in_its_paper
from assay.published.results import REVISITING as REVISITING_NAMES
from assay.published.results import WITHOUT_NORMALISING
from assay.records.store import Store
from assay.records.study import study_records
from assay.registry import UnknownName
from assay.run import check_metrics
from assay.space import Real
from assay.study import design_bench
from assay.trunks import find
from equations import REFERENCE, Case, unit
from miniature import MINI, resolved
from options import set_options

REALITY_CHECK = [
    "reality-check/cub.v1",
    "reality-check/cars.v1",
    "reality-check/sop.v1",
    "reality-check/any.v1",
]
LARGE_BATCH = "reality-check/cub-256.v1"
REPLICATED = [name.replace(".v1", ".v2") for name in REALITY_CHECK]
UNBIASED = ["unbiased/inception-bn.v1", "unbiased/resnet50.v1"]
BY_DISTANCE = [name.replace(".v1", ".v2") for name in UNBIASED]
ALL_TWELVE = [name.replace(".v1", ".v3") for name in UNBIASED]
REVISITING = ["revisiting/cub.v1", "revisiting/cars.v1", "revisiting/sop.v1", "revisiting/any.v1"]
WITH_RHO = [name.replace(".v1", ".v2") for name in REVISITING]

every_protocol = pytest.mark.parametrize("name", list(protocols))


def test_these_are_the_published_protocols() -> None:
    assert list(protocols) == [
        "quick.v1",
        "quick.v2",
        *REALITY_CHECK,
        *REPLICATED,
        LARGE_BATCH,
        *UNBIASED,
        *BY_DISTANCE,
        *ALL_TWELVE,
        *REVISITING,
        *WITH_RHO,
    ]


# --- Every setting of the papers ---

IN_COMMON: dict[str, dict[str, Any]] = {
    "reality-check": {
        "trunk": "bn_inception",
        "weights": "pretrained",
        "frozen": "batchnorm",
        "pooling": "avg",
        "layer_norm": False,
        "dim": 128,
        "resize": "short",
        "stored": 256,
        "size": 227,
        "augment": Augment(
            area=(0.16, 1.0), aspect=(3 / 4, 4 / 3), flip=0.5, rotation=0.0, shear=0.0
        ),
        "sampler": "balanced",
        "batch.embedding": (8, 4),
        "batch.classification": (32, 1),
        "shrink_batch": False,
        "optimiser.kind": "rmsprop",
        "optimiser.lr": 1e-6,
        "optimiser.momentum": 0.9,
        "optimiser.weight_decay": 1e-4,
        "optimiser.decay_own": True,
        "iterations": 100,
        "epochs": 1000,
        "search": "bayesian",
        "prune": None,
        "trials": 50,
        "reproductions": 10,
        "folds": 4,
        "metrics": ("precision_at_1", "r_precision", "map_at_r"),
        "training_metrics": (),
        "exceptions": {},
        "given": {},
    },
    "unbiased": {
        "weights": "pretrained",
        "frozen": "nothing",
        "dim": 64,
        "resize": "stretch",
        "stored": 256,
        "size": 224,
        "augment": Augment(
            area=(0.765625, 0.765625), aspect=(1.0, 1.0), flip=0.5, rotation=0.0, shear=0.0
        ),
        "sampler": "balanced",
        "batch.embedding": (24, 5),
        "batch.classification": (60, 2),
        "shrink_batch": False,
        "optimiser.kind": "adam",
        "optimiser.lr": 1e-4,
        "optimiser.weight_decay": 1e-5,
        "iterations": 200,
        "epochs": 60,
        "validate_every": 1,
        "patience": 10,
        "search": "bayesian",
        "prune": None,
        "trials": 25,
        "reproductions": 10,
        "folds": 4,
        "space": {"lr": Real(1e-6, 1e-3, log=True)},
        "metrics": (
            "recall_at_1",
            "recall_at_2",
            "recall_at_4",
            "recall_at_8",
            "recall_at_16",
            "nmi",
        ),
        "training_metrics": (),
        "given": {},
    },
    "revisiting": {
        "trunk": "resnet50",
        "weights": "pretrained",
        "frozen": "batchnorm",
        "dim": 128,
        "resize": "short",
        "stored": 256,
        "size": 224,
        "augment": Augment(
            area=(0.08, 1.0), aspect=(3 / 4, 4 / 3), flip=0.5, rotation=0.0, shear=0.0
        ),
        "sampler": "balanced",
        "batch.embedding": (56, 2),
        "batch.classification": (56, 2),
        "shrink_batch": False,
        "optimiser.kind": "adam",
        "optimiser.lr": 1e-5,
        "optimiser.weight_decay": 4e-4,
        "optimiser.decay_own": False,
        "iterations": None,
        "epochs": 150,
        "validate_every": 1,
        "patience": 150,
        "trials": 0,
        "reproductions": 5,
        "folds": 4,
        "metrics": ("recall_at_1", "recall_at_2", "recall_at_4", "nmi", "f1", "map_at_r"),
        "training_metrics": ("pi_ratio", "spectral_decay"),
        "exceptions": {},
    },
}

OWN: dict[str, dict[str, Any]] = {
    "reality-check/cub.v1": {"validate_every": 2, "patience": 10},
    "reality-check/cars.v1": {"validate_every": 5, "patience": 15},
    "reality-check/sop.v1": {"validate_every": 20, "patience": 40},
    "reality-check/any.v1": {"validate_every": 2, "patience": 10},
    LARGE_BATCH: {
        "validate_every": 2,
        "patience": 10,
        "batch.embedding": (64, 4),
        "batch.classification": (64, 4),
    },
    "unbiased/inception-bn.v1": {"trunk": "bn_inception"},
    "unbiased/resnet50.v1": {"trunk": "resnet50"},
    "revisiting/cub.v1": {},
    "revisiting/cars.v1": {},
    "revisiting/sop.v1": {},
    "revisiting/any.v1": {},
}


def test_every_setting_is_that_of_the_paper() -> None:
    for name, own in OWN.items():
        for path, value in {**IN_COMMON[name.partition("/")[0]], **own}.items():
            found = attrgetter(path)(protocols[name])
            assert (dict(found) if path == "space" else found) == value, f"{name}: {path}"


def test_only_the_unbiased_evaluation_searches_the_learning_rate_of_the_network() -> None:
    for name in (*REALITY_CHECK, LARGE_BATCH, *REVISITING):
        assert not protocols[name].space, name


def test_the_supplement_of_the_reality_check_differs_in_its_batches_alone() -> None:
    large, usual = protocols[LARGE_BATCH], protocols["reality-check/cub.v1"]
    assert replace(large, batch=usual.batch).fingerprint == usual.fingerprint
    shapes = resolved(large).batch
    for kind in typing.get_args(BatchKind):
        classes, per_class = shapes.shape(kind)
        assert classes * per_class == 256, kind
    assert any("64 classes x 4 images" in text for text in large.departures)


@pytest.mark.parametrize("kind", ["embedding", "classification"])
def test_a_fold_of_cub_has_classes_enough_for_batches_of_256(kind: BatchKind) -> None:
    """100 classes of trainval, a quarter of which validates."""
    assert resolved(protocols[LARGE_BATCH]).batch_for(kind, 75) == (64, 4)


def test_two_images_of_each_of_128_classes_are_refused_where_there_are_75() -> None:
    with pytest.raises(BadInput, match=r"holds 128 classes, .* --set batch\.embedding=75x2"):
        resolved(protocols[LARGE_BATCH]).batch_for("pairs", 75)


def test_the_crop_of_the_unbiased_evaluation_is_224_of_256_pixels() -> None:
    from assay.data.augment import draw_crops

    shapes = torch.full((50, 2), 256).numpy()
    boxes, _ = draw_crops(shapes, unbiased.INCEPTION_BN.augment, torch.Generator().manual_seed(0))
    assert (boxes[:, 2:] == 224).all()
    assert len({tuple(corner) for corner in boxes[:, :2].tolist()}) > 40


@pytest.mark.parametrize(
    ("name", "trunk"),
    [("unbiased/inception-bn.v1", {}), ("unbiased/resnet50.v1", {"trunk": "resnet18"})],
)
def test_the_exceptions_of_the_unbiased_evaluation_hold_for_three_methods(
    name: str, trunk: dict[str, str]
) -> None:
    assert protocols[name].exceptions == {
        "structured_clustering": {"optimiser.kind": "rmsprop"},
        "proxy_softmax": {"dim": 2048},
        "dreml": {**trunk, "dim": 144},
    }


SETTINGS_OF_V2 = {
    "reality-check": {"searches": 4},
    "unbiased": {"exceptions": unbiased.INCEPTION_BN_V2.exceptions},
}


def differing(first: Protocol, second: Protocol) -> set[str]:
    """Fields in which two protocols differ."""
    names = [field.name for field in fields(Protocol)]
    return {name for name in names if getattr(first, name) != getattr(second, name)}


@pytest.mark.parametrize("name", [*REPLICATED, *BY_DISTANCE])
def test_a_second_version_differs_from_the_first_in_one_setting(name: str) -> None:
    first, second = protocols[name.replace(".v2", ".v1")], protocols[name]
    own = SETTINGS_OF_V2[name.partition("/")[0]]
    assert differing(first, second) == {"name", "about", "departures", *own}
    assert {field: getattr(second, field) for field in own} == own


def test_methods_that_see_raw_outputs_are_compared_by_distance_in_the_second_unbiased_version() -> (
    None
):
    """All methods of Assay whose loss sees raw outputs, and no other, but those that are newer than
    this version, and ensembles, whose members are normalised each; the paper marks none of the
    others so but `lifted`.
    """
    newer = {"angular_n_pairs", "n_pairs_copies", "prototypical", "dreml", "dreml_one"}
    for name in BY_DISTANCE:
        excepted = protocols[name].exceptions
        assert all(own == {"similarity": "euclidean"} for own in excepted.values())
        assert set(excepted) | newer == {
            name for name, method in methods.items() if not method.normalise
        }


def test_the_paper_marks_those_methods_as_not_normalised() -> None:
    """Rows of its table 1, as our names have them; N-pairs counts in both forms, and `prototypical`
    and `dreml` are newer than version 2.
    """
    marked = {
        "triplet_semihard_squared",
        "lifted",
        "n_pairs",
        "angular_raw",
        "prototypical",
        "dreml",
    }
    assert set(unbiased.RAW) - {"n_pairs_symmetric"} <= marked
    stays = marked & set(methods) - set(unbiased.RAW)
    assert stays == {"lifted", "prototypical", "dreml"}
    assert all(
        any(text.startswith("lifted, which the paper") for text in protocols[name].departures)
        for name in BY_DISTANCE
    )


THE_TWELVE = [
    "triplet_semihard_squared", "lifted", "n_pairs", "structured_clustering",
    "margin_distance_weighted", "angular_raw", "prototypical", "proxy_triplet", "proxy_nca_strict",
    "proxy_softmax", "ranked_list", "dreml",
]  # fmt: skip
"""The methods of the unbiased evaluation, as our names have them."""


@pytest.mark.parametrize("name", ALL_TWELVE)
def test_the_third_unbiased_version_has_settings_for_methods_that_exist(name: str) -> None:
    second, third = protocols[name.replace(".v3", ".v2")], protocols[name]
    assert differing(second, third) == {"name", "about", "departures", "exceptions"}
    trunk = {"trunk": "resnet18"} if "resnet50" in name else {}
    raw = {one for one, method in methods.items() if not method.normalise} - {"dreml", "dreml_one"}
    assert {one: dict(own) for one, own in third.exceptions.items()} == {
        **{one: {"similarity": "euclidean"} for one in raw},
        "structured_clustering": {"optimiser.kind": "rmsprop"},
        "proxy_softmax": {"dim": 2048, "similarity": "hamming"},
        "dreml": {**trunk, "dim": 144},
    }
    assert set(third.exceptions) <= set(methods)
    for one in ("structured_clustering", "proxy_softmax", "dreml", "prototypical"):
        assert any(one in text for text in third.departures), one


@pytest.mark.parametrize("name", THE_TWELVE)
def test_all_twelve_methods_of_the_unbiased_evaluation_run_under_its_newest_version(
    name: str,
) -> None:
    protocol = protocols["unbiased/inception-bn"]
    exceptions = protocol.exceptions.get(name, {})
    found = resolved(with_settings(protocol, exceptions))
    method = methods[name]
    chosen = defaults(method, found)
    shape = assemble(method, chosen, found).loss.head(found.dim)
    expected = {"dreml": (12,) * 12, "proxy_softmax": (2048,)}
    assert shape.parts == expected.get(name, (64,))
    classes, per_class = found.batch_for(method.batch, 75)
    assert classes * per_class == 120
    check_metrics(found)


def test_rho_has_its_published_parameters_in_the_second_revisiting_version() -> None:
    swaps: dict[str, dict[str, float]] = {}
    for row in published("roth_results.csv"):
        if row["method"].startswith("R-"):
            own = swaps.setdefault(row["method"], {})
            own[row["dataset"]] = float(row["p_rho_in_sample_runs"])
    known = {"cub": "CUB200-2011", "cars": "CARS196", "sop": "SOP"}
    for name in WITH_RHO:
        first, second = protocols[name.replace(".v2", ".v1")], protocols[name]
        assert differing(first, second) == {"name", "about", "given", "departures"}
        data = known.get(name.partition("/")[2].partition(".")[0], "CUB200-2011")
        for published_as, ours in REVISITING_NAMES.items():
            if published_as in swaps:
                given = second.given[ours]
                assert given["swap_probability"] == swaps[published_as][data], (name, ours)
                assert set(with_given(methods[ours], resolved(second), given)) >= set(given)
        assert {one: second.given[one] for one in first.given} == dict(first.given)


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_the_second_unbiased_version_names_only_methods_that_exist(name: str) -> None:
    assert set(protocols[name].exceptions) <= set(methods)
    assert not any("structured_clustering" in text for text in protocols[name].departures)


GIVEN: dict[str, dict[str, Any]] = {
    "contrastive": {"pos_margin": 0, "neg_margin": 1},
    "triplet": {"margin": 0.2, "distance": "squared", "over": "all"},
    "triplet_semihard": {"margin": 0.2},
    "quadruplet": {"margin": 0.2, "pair_margin": 0.2},
    "margin_distance_weighted": {"margin": 0.2, "beta": 1.2, "weights_lr": 5e-4},
    "margin_distance_weighted_near": {"margin": 0.2, "weights_lr": 5e-4},
    "multi_similarity_mined": {"alpha": 2, "beta": 40, "base": 0.5, "epsilon": 0.1},
    "lifted_generalized": {"margin": 1},
    "angular": {"alpha": 45},
    "histogram": {"bins": 64},
    "arcface": {"margin": 28.6, "scale": 16, "weights_lr": 5e-4},
    "soft_triple": {
        "centres": 2,
        "scale": 8,
        "gamma": 0.1,
        "margin": 0.01,
        "regularisation": 0.2,
        "weights_lr": 1e-5,
    },
    "normalized_softmax": {"temperature": 0.05, "weights_lr": 1e-5},
    "proxy_nca_strict": {"scale": 9, "weights_lr": 5e-4},
}

ON_SOP: dict[str, dict[str, Any]] = {
    "histogram": {"bins": 10},
    "normalized_softmax": {"temperature": 0.05, "weights_lr": 2e-3},
}


def given_in(name: str) -> dict[str, dict[str, Any]]:
    """What a protocol gives each method, read as a study reads it."""
    protocol = resolved(protocols[name])
    return {
        method: with_given(methods[method], protocol, given)
        for method, given in protocol.given.items()
    }


@pytest.mark.parametrize("name", REVISITING)
def test_the_revisiting_study_gives_the_parameters_it_published(name: str) -> None:
    assert given_in(name) == {**GIVEN, **(ON_SOP if name == "revisiting/sop.v1" else {})}


def test_the_other_boundary_of_the_margin_is_a_method_of_its_own() -> None:
    near, far = methods["margin_distance_weighted_near"], methods["margin_distance_weighted"]
    assert (near.loss, near.miner, near.fixed) == (far.loss, far.miner, {"beta": 0.6})
    assert {**near.space, "beta": far.space["beta"]} == dict(far.space)


def test_every_exception_is_a_setting_that_can_be_made() -> None:
    for name, protocol in protocols.items():
        for method, settings in protocol.exceptions.items():
            where = f"{name}: {method}"
            changed = with_settings(protocol, settings)
            texts = [as_text(*setting) for setting in settings.items()]
            assert changed == customise(protocol, texts), where
            assert changed.fingerprint != protocol.fingerprint, where
            assert changed.name.startswith(f"{name}+custom-"), where
            assert find(changed.trunk), where


def test_everything_a_protocol_names_exists() -> None:
    for name, protocol in protocols.items():
        assert protocol.trunk == "auto" or find(protocol.trunk).takes == "images", name
        for metric in (*protocol.metrics, *protocol.training_metrics):
            assert [member.label for member in choose_metrics([metric])] == [metric], name


# --- What is said of them ---

STATED = [
    "search space",
    "FastAP",
    "diverges",
    "without the trial that was selected",
    "PCA",
    "exactly C classes",
    "by its index",
]
STATED += ["seeded", "official lists", "short side of 256", "16% to 100%", "affine weights"]


def test_every_departure_from_the_reality_check_is_stated() -> None:
    for name in (*REALITY_CHECK, LARGE_BATCH):
        for words in STATED:
            assert any(words in text for text in protocols[name].departures), f"{name}: {words}"


def test_the_second_version_states_that_searches_are_replicated() -> None:
    for name in REPLICATED:
        first, second = protocols[name.replace(".v2", ".v1")].departures, protocols[name].departures
        assert len(first) == len(second), name
        (own,) = set(second) - set(first)
        assert own.startswith("4 independent searches of a method instead of one"), name


def test_comparing_by_the_cosine_is_stated_as_a_departure() -> None:
    for name in UNBIASED:
        assert any(
            "compared by the cosine" in text and "Euclidean distance" in text
            for text in protocols[name].departures
        ), name


def test_selection_on_validation_folds_instead_of_the_test_half_is_stated() -> None:
    for name in (*UNBIASED, *REVISITING):
        assert any(
            "class-disjoint validation folds" in text and "test half" in text
            for text in protocols[name].departures
        ), name


def test_a_protocol_says_in_a_line_what_it_is_for() -> None:
    for name, protocol in protocols.items():
        assert 10 < len(protocol.about) <= 41, name
        assert not protocol.about.endswith("."), name


@pytest.mark.parametrize(
    ("module", "runs"),
    [(quick, {32, 40}), (reality_check, {240, 960}), (unbiased, {140}), (revisiting, {20})],
)
def test_a_module_states_command_and_cost_and_where_the_scores_are(
    module: ModuleType, runs: set[int]
) -> None:
    text = " ".join((module.__doc__ or "").split())
    assert " assay bench --data " in text
    assert re.search(r"docs/protocols\.md .*has the scores to expect", text)
    for protocol in (value for value in vars(module).values() if isinstance(value, Protocol)):
        assert runs_of(protocol) in runs
        assert re.search(rf"\b{runs_of(protocol)}( runs)?\b", text)


def runs_of(protocol: Protocol) -> int:
    """Runs of one method that is searched."""
    of_a_trial = protocol.trial_folds or protocol.folds
    return protocol.searches * (
        protocol.trials * of_a_trial + protocol.reproductions * protocol.folds
    )


def published(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader((files("assay") / "published" / file).read_text().splitlines()))


PAGE = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text()


def rows_of(family: str, after: str = ", ") -> dict[str, list[str]]:
    """The numbers of a family's table of scores on the page, by method."""
    scores = PAGE.partition("## Scores to expect\n")[2].partition("\n## ")[0]
    table = scores.partition(f"\n`{family}`{after}")[2].partition("|---")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split("|") for line in table.splitlines()[1:]]
    return {row[0].strip(): re.findall(r"\d+\.\d+", " ".join(row[1:])) for row in rows}


def test_the_scores_to_expect_of_the_reality_check_are_the_published_ones() -> None:
    theirs = {
        "pretrained": "Pretrained",
        "contrastive": "Contrastive",
        "triplet": "Triplet",
        "cosface": "CosFace",
    }
    theirs |= {"arcface": "ArcFace", "soft_triple": "SoftTriple"}
    table = {
        (row["method"], row["dataset"], row["metric"]): row["value"]
        for row in published("mlrc_reported.csv")
    }
    columns = [
        (data, metric)
        for data in ("CUB200", "Cars196", "SOP")
        for metric in ("MAP@R concat512", "MAP@R sep128")
    ]
    expected = {ours: [table[name, *column] for column in columns] for ours, name in theirs.items()}
    assert rows_of("reality-check") == expected


def test_the_scores_to_expect_of_batches_of_256_are_the_published_ones() -> None:
    table = {
        (NAMES[row["loss"]], row["dataset"]): row["best_mean_val_map_at_r"]
        for row in published("mlrc_hparams.csv")
    }
    rows = rows_of("reality-check/cub-256", ":")
    assert len(rows) == 7
    for method, shares in rows.items():
        expected = [table[method, to] for to in ("CUB200_batch256", "CUB200")]
        assert [f"{float(share) / 100:.4f}" for share in shares] == expected, method


def test_the_scores_to_expect_of_the_unbiased_evaluation_are_the_published_ones() -> None:
    theirs = {
        "triplet_semihard_squared": "Triplet Semihard",
        "n_pairs": "N-Pairs",
        "margin_distance_weighted": "Margin Loss",
    }
    theirs |= {
        "angular_raw": "Angular Loss",
        "proxy_triplet": "Proxy-Triplet",
        "proxy_nca_strict": "Proxy-NCA",
    }
    theirs |= {"ranked_list": "Ranked List Loss"}
    rows = [row for row in published("dmlplayground_results.csv") if row["metric"] == "R@1"]
    table = {(row["method"], row["dataset"], row["backbone"]): row["value"] for row in rows}
    columns = [
        ("CUB200", "Inception-BN"),
        ("CUB200", "ResNet50"),
        ("CARS196", "Inception-BN"),
        ("SOP", "Inception-BN"),
    ]
    expected = {
        ours: [table[name, *to] for to in columns if (name, *to) in table]
        for ours, name in theirs.items()
    }
    assert rows_of("unbiased") == expected


def test_the_scores_that_papers_reported_are_those_of_the_list() -> None:
    table = PAGE.partition("| last layer normalised |")[2].partition("|---")[2].partition("\n\n")[0]
    shown = {
        row[0].partition(" (")[0]: row[1:]
        for line in table.splitlines()[1:]
        for row in [[cell.strip() for cell in line[1:-1].split("|")]]
    }
    listed = published("unbiased_reported.csv")
    assert len(shown) == len(listed)
    for row in listed:
        name = WITHOUT_NORMALISING.get(row["method"], row["method"])
        paper = in_its_paper(name, "cub")
        assert paper is not None
        assert shown[name] == [
            paper.trunk,
            row["dim"],
            row["normalised_last_layer"],
            *(row[f"reported_r1_{data}"] for data in ("cub", "cars", "sop")),
        ]


def test_the_scores_to_expect_of_the_revisiting_study_are_the_published_ones() -> None:
    theirs = {
        "margin_distance_weighted": "Margin (D) beta=1.2",
        "margin_distance_weighted_near": "Margin (D) beta=0.6",
        "multi_similarity_mined": "Multisimilarity",
        "proxy_nca_strict": "ProxyNCA",
        "arcface": "ArcFace",
        "normalized_softmax": "Softmax (normalized)",
        "soft_triple": "SoftTriple",
        "histogram": "Histogram",
        "triplet_semihard": "Triplet (S)",
    }
    table = {
        (row["method"], row["dataset"]): row["R@1_mean_pct"]
        for row in published("roth_results.csv")
    }
    columns = "CUB200-2011", "CARS196", "SOP"
    expected = {
        ours: [table[name, to] for to in columns if (name, to) in table]
        for ours, name in theirs.items()
    }
    assert rows_of("revisiting") == expected


def test_the_page_states_every_departure() -> None:
    said = " ".join(PAGE.split()).casefold()
    for name, protocol in protocols.items():
        assert [text for text in protocol.departures if text.casefold() not in said] == [], name


def test_the_shapes_of_batches_by_size_on_the_page_are_those_that_are_run() -> None:
    table = PAGE.partition("| images | 2 |")[2].partition("\n\n")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in f"2 |{table}".splitlines()]
    assert [row[0] for row in rows] == ["embedding", "classification", "pairs"]
    for kind, *shapes in rows:
        for size, shape in zip(head, shapes, strict=True):
            small = resolved(customise(protocols["unbiased/resnet50"], [f"batch={size}"]))
            found = small.batch.shape(typing.cast("BatchKind", kind))
            assert "{} x {}".format(*found) == shape, (kind, size)


# --- Names with a slash ---


def test_a_name_without_its_version_is_the_newest() -> None:
    for name in protocols:
        word = name.rpartition(".v")[0]
        versions = [full for full in protocols if full.rpartition(".v")[0] == word]
        assert protocols[word].name == max(versions)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("reality-check", [*REALITY_CHECK, *REPLICATED, LARGE_BATCH]),
        ("reality-check/", [*REALITY_CHECK, *REPLICATED, LARGE_BATCH]),
        ("Revisiting", [*REVISITING, *WITH_RHO]),
        (
            "cub",
            [
                "reality-check/cub.v1",
                "reality-check/cub.v2",
                LARGE_BATCH,
                "revisiting/cub.v1",
                "revisiting/cub.v2",
            ],
        ),
        ("resnet50", [f"unbiased/resnet50.v{number}" for number in (1, 2, 3)]),
    ],
)
def test_part_of_a_name_brings_up_the_protocols_that_have_it(typed: str, meant: list[str]) -> None:
    with pytest.raises(UnknownName) as raised:
        protocols[typed]
    assert (
        f"did you mean {' or '.join(map(repr, meant))}? (all: quick.v1, quick.v2,"
        " reality-check/cub.v1, " in str(raised.value)
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("reality-chek/cub.v1", "reality-check/cub.v1"),
        ("revisitng/sop.v1", "revisiting/sop.v1"),
        ("revisiting/cub.v3", "cub.v2"),
    ],
)
def test_a_name_with_a_slip_brings_up_the_nearest_first(typed: str, meant: str) -> None:
    with pytest.raises(UnknownName, match=rf"did you mean '[^']*{re.escape(meant)}'"):
        protocols[typed]


def test_a_name_like_no_other_brings_up_all() -> None:
    with pytest.raises(
        UnknownName,
        match=r"no protocol is called 'xyzzy' \(all: quick\.v1, quick\.v2, reality-check/cub\.v1, ",
    ):
        protocols["xyzzy"]


def test_a_customised_protocol_keeps_a_readable_name() -> None:
    for name, protocol in protocols.items():
        custom = customise(protocol, ["dim=17"])
        assert custom.name == f"{name}+custom-{custom.fingerprint[:8]}"
        assert published_name(custom.name) == name
        assert (custom.departures, custom.about) == (protocol.departures, protocol.about)


def test_the_list_has_a_line_for_each(assay: Any) -> None:
    code, out, _ = assay("list", "protocols")
    table, _, notes = out.partition("\n\n")
    lines = table.splitlines()
    assert code == 0
    assert notes == ""
    assert lines[0].split() == ["name", "about", "trials", "reproductions", "runs"]
    assert [line.split()[0] for line in lines[2:]] == list(protocols)
    assert [line.split()[-1] for line in lines[2:]] == [
        "32",
        "40",
        *["240"] * 4,
        *["960"] * 4,
        "240",
        *["140"] * 6,
        *["20"] * 8,
    ]
    assert all(len(line.rstrip()) <= 100 for line in out.splitlines())


def test_the_list_names_methods_that_settings_of_a_protocol_wait_for(
    assay: Any, as_before: None
) -> None:
    methods.forget("assay.losses.dreml")
    methods.forget("assay.losses.proxy_softmax")
    _, _, notes = assay("list", "protocols")[1].partition("\n\n")
    assert " ".join(notes.split()) == (
        "unbiased/inception-bn.v1, unbiased/resnet50.v1, unbiased/inception-bn.v3,"
        " unbiased/resnet50.v3: settings for proxy_softmax, dreml wait for these methods, which"
        " Assay does not have yet"
    )


# --- In miniature ---

LIGHT = ["trunk=conv", "weights=none", "frozen=nothing", "size=28", "stored=auto"]
"""What a trunk from scratch needs beside a learning rate: statistics that are learnt, and images of
its size.
"""

SEVERAL = [
    "contrastive",
    "triplet",
    "margin_distance_weighted_near",
    "soft_triple",
    "n_pairs",
    "untrained",
]


@every_protocol
def test_nothing_is_refused_in_miniature(name: str) -> None:
    protocol = customise(protocols[name], LIGHT)
    designs = design_bench("glyphs", SEVERAL, protocol, "cpu", [])
    assert [design.method.name for design in designs] == SEVERAL
    batch = designs[0].protocol.batch
    assert {design.batch for design in designs} <= {
        batch.shape(kind) for kind in ("embedding", "classification", "pairs")
    }
    for design in designs[:-1]:
        assert design.trials == protocol.trials
        assert design.budget.reproductions == protocol.reproductions
        given = protocol.given.get(design.method.name, {})
        assert design.chosen == with_given(design.method, design.protocol, given)


@every_protocol
def test_features_are_taken_once_the_trunk_is_left_open(name: str, mini_features: Path) -> None:
    small = ["trunk=auto", "batch.embedding=4x4", "batch.classification=4x2"]
    design = design_bench(
        f"features:{mini_features}", ["soft_triple"], customise(protocols[name], small), "cpu", []
    )[0]
    assert (design.protocol.trunk, design.protocol.first_step.side) == ("identity", 0)


def test_a_batch_of_more_classes_than_a_fold_has_is_refused_with_the_remedy(
    mini_folder: Path,
) -> None:
    with pytest.raises(
        BadInput,
        match=(
            r"a batch of revisiting/any\.v2\+custom-\w+ holds 56 classes.*--set"
            r" batch\.embedding=6x2"
        ),
    ):
        design_bench(
            f"folder:{mini_folder}",
            ["triplet"],
            customise(protocols["revisiting/any"], LIGHT),
            "cpu",
            [],
        )


SMALL = [
    *LIGHT,
    *MINI,
    "folds=2",
    "patience=2",
    "batch.embedding=4x3",
    "batch.classification=4x3",
    "optimiser.lr=1e-3",
]


@pytest.mark.parametrize(
    ("name", "trials", "first"),
    [
        ("reality-check/any.v1", 2, {"margin": 0.1}),
        ("unbiased/resnet50.v1", 2, {"margin": 0.1, "lr": 1e-3}),
        ("revisiting/any.v1", 0, GIVEN["triplet"]),
    ],
)
def test_a_bench_under_a_name_with_a_slash_ends_in_tables_that_state_its_departures(
    name: str, trials: int, first: dict[str, Any], mini_folder: Path, tmp_path: Path, assay: Any
) -> None:
    settings = set_options((*SMALL, f"trials={trials}"))
    store = tmp_path / "store"
    where = ("--data", f"folder:{mini_folder}", "--out", store, "--engine", "inline")
    code, out, err = assay("bench", *where, "--methods", "triplet", "--protocol", name, *settings)
    assert code == 0, err
    assert f"{name}+custom-" in out
    (record,) = [record for record in study_records(Store(store)) if record.method == "triplet"]
    assert record.selection is not None
    assert len(record.trials) == trials
    assert (record.trials[0] if trials else record.selection).parameters == first
    tables = [path.name for path in (store / "report" / "tables").iterdir()]
    assert tables
    assert all(f"-{re.sub(r'[/.]', '-', name)}-custom-" in table for table in tables)
    page = re.sub(r"\s+", " ", html.unescape((store / "report" / "index.html").read_text()))
    assert [text for text in protocols[name].departures if text not in page] == []


# --- The triplet of the revisiting study ---


@pytest.mark.parametrize("distance", ["plain", "squared"])
@pytest.mark.parametrize("over", ["active", "all"])
@pytest.mark.parametrize("margin", [0.0, 0.2, 1.0])
def test_every_form_of_the_triplet_matches_its_equation(
    distance: str, over: str, margin: float
) -> None:
    draw = torch.Generator().manual_seed(3)
    z = torch.randn(9, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    y = [0, 1, 2, 2, 1, 0, 0, 1, 3]
    rows = [unit(row) for row in z.tolist()]
    triplets = [
        (a, p, n)
        for a in range(9)
        for p in range(9)
        for n in range(9)
        if a != p and y[a] == y[p] and y[a] != y[n]
    ]
    own: dict[str, Any] = {"margin": margin, "distance": distance, "over": over}
    value = losses["triplet"](**own)(z, torch.tensor(y))
    assert value.item() == pytest.approx(
        REFERENCE["triplet"](Case(rows, y, rows, y, [], [], triplets), {}, **own), rel=1e-9
    )
    value.backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("own", [{"distance": "manhattan"}, {"over": "half"}])
def test_a_form_of_the_triplet_that_there_is_not_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is one of"):
        losses["triplet"](**own)
