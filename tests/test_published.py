"""Published facts: every row is ours by name, and values are those of the files, by hand."""

import pytest

from assay.methods import assemble, methods
from assay.published import (
    BEST_FOR,
    DATA,
    REALITY_CHECK,
    best_parameters,
    claimed_gains,
    elsewhere,
    in_its_paper,
    measured_gains,
    reported,
)
from assay.published.results import PARAMETERS, UNBIASED, WITHOUT_NORMALISING, rows
from miniature import QUICK

FOURTEEN = [
    "contrastive",
    "triplet",
    "nt_xent",
    "proxy_nca",
    "margin",
    "margin_per_class",
    "normalized_softmax",
    "cosface",
    "arcface",
    "fastap",
    "snr_contrastive",
    "multi_similarity",
    "multi_similarity_mined",
    "soft_triple",
]


def test_every_row_of_the_best_parameters_is_one_of_the_fourteen_methods() -> None:
    assert {REALITY_CHECK[row["loss"]] for row in rows("mlrc_hparams")} == set(FOURTEEN)


@pytest.mark.parametrize("method", FOURTEEN)
def test_every_published_parameter_is_one_that_we_search(method: str) -> None:
    theirs = [row for row in rows("mlrc_hparams") if REALITY_CHECK[row["loss"]] == method]
    assert {PARAMETERS.get(row["param"], row["param"]) for row in theirs} == set(
        methods[method].space
    )


@pytest.mark.parametrize("data", BEST_FOR)
@pytest.mark.parametrize("method", FOURTEEN)
def test_every_best_parameter_can_be_run(method: str, data: str) -> None:
    found = best_parameters(method, data)
    assert found is not None
    missing = set(methods[method].space) - set(found)
    assert missing == ({"regularisation"} if (method, data) == ("soft_triple", "sop") else set())
    assert assemble(methods[method], found, QUICK) is not None


def test_best_parameters_are_those_of_the_list() -> None:
    assert best_parameters("contrastive", "cars") == {"pos_margin": 0.2652, "neg_margin": 0.5409}
    assert best_parameters("nt_xent", "sop") == {"temperature": 0.0002}
    assert best_parameters("proxy_nca", "cub") == {"weights_lr": 6.04e-3, "scale": 13.98}
    assert best_parameters("margin_per_class", "sop") == {
        "weights_lr": 7.10e-05,
        "margin": 0.0518,
        "beta": 0.8424,
    }
    assert best_parameters("arcface", "cub") == {
        "weights_lr": 5.13e-3,
        "margin": 23.22,
        "scale": 100.0,
    }
    assert best_parameters("snr_contrastive", "sop") == {
        "pos_margin": 0.3759,
        "neg_margin": 1.0831,
        "regularisation": 0.0,
    }
    assert best_parameters("soft_triple", "sop") == {
        "weights_lr": 8.68e-05,
        "scale": 100.0,
        "gamma": 47.9,
        "margin": 0.3145,
    }


def test_best_parameters_of_batches_of_256_are_a_group_of_their_own() -> None:
    assert best_parameters("contrastive", "cub-256") == {
        "pos_margin": 0.2227,
        "neg_margin": 0.7694,
    }
    assert best_parameters("margin_per_class", "cub-256") == {
        "weights_lr": 1.32e-2,
        "margin": 0.0,
        "beta": 0.1097,
    }
    assert best_parameters("fastap", "cub-256") == {"bins": 86}
    assert best_parameters("pretrained", "cub-256") is None
    assert reported("contrastive", "cub-256", "map_at_r", "separated") is None


def test_a_number_of_bins_is_whole() -> None:
    found = best_parameters("fastap", "cars")
    assert found == {"bins": 27}
    assert isinstance(found["bins"], int)


def test_a_negative_margin_is_none() -> None:
    assert best_parameters("contrastive", "cub") == {"pos_margin": 0.0, "neg_margin": 0.3841}


def test_what_was_not_searched_has_no_best_parameters() -> None:
    assert best_parameters("pretrained", "cub") is None
    assert best_parameters("contrastive", "glyphs") is None


def test_every_table_of_the_reality_check_is_there() -> None:
    found = [
        reported(method, data, metric, setting)
        for method in FOURTEEN
        for data in DATA
        for metric in ("precision_at_1", "r_precision", "map_at_r")
        for setting in ("concatenated", "separated")
    ]
    assert len(found) == 252
    assert all(
        value is not None and value.half_width is not None and value.runs == 10 for value in found
    )
    tabled = [
        row for row in rows("mlrc_reported") if row["metric"].endswith(("concat512", "sep128"))
    ]
    assert len(tabled) == 252 + 18
    assert {REALITY_CHECK[row["method"]] for row in tabled} == {*FOURTEEN, "pretrained"}


def test_reported_scores_are_those_of_the_tables() -> None:
    arcface = reported("arcface", "sop", "map_at_r", "separated")
    assert arcface is not None
    assert (arcface.mean, arcface.half_width, arcface.runs) == (0.4111, 0.0122, 10)
    assert (arcface.low, arcface.high) == pytest.approx((0.3989, 0.4233))
    mined = reported("multi_similarity_mined", "cars", "precision_at_1", "concatenated")
    assert mined is not None
    assert (mined.mean, mined.half_width) == (0.8367, 0.0034)


def test_the_untrained_trunk_was_reported_without_an_interval() -> None:
    found = reported("pretrained", "cars", "map_at_r", "separated")
    assert found is not None
    assert (found.mean, found.half_width, found.low, found.high, found.runs) == (
        0.0564,
        None,
        None,
        None,
        1,
    )
    assert reported("lifted", "cub", "map_at_r", "separated") is None


def test_a_claim_is_over_the_baseline_of_the_same_paper() -> None:
    gains = {(gain.method, gain.baseline, gain.data): gain for gain in claimed_gains()}
    assert gains["lifted", "contrastive", "cub"].gain == pytest.approx(47.2 / 26.4 - 1)
    assert gains["lifted", "triplet", "sop"].gain == pytest.approx(62.1 / 42.1 - 1)
    assert gains["angular", "triplet", "cub"].gain == pytest.approx(54.7 / 42.2 - 1)
    assert gains["margin", "contrastive", "sop"].gain == pytest.approx(72.7 / 30.1 - 1)
    assert gains["normalized_softmax", "contrastive", "cars"].year == 2019
    assert ("margin", "triplet", "sop") not in gains


def test_every_claim_is_of_a_method_of_ours_and_of_a_paper_with_a_baseline() -> None:
    papers = {row["paper"] for row in rows("mlrc_reported")}
    assert {row["method"] for row in rows("claims")} <= set(methods)
    assert {row["paper"] for row in rows("claims")} <= papers
    assert all(gain.gain > 0 for gain in claimed_gains())


def test_measured_gains_are_ratios_of_the_tables() -> None:
    gains = {
        (gain.method, gain.baseline, gain.data): gain
        for gain in measured_gains("map_at_r", {"arcface": 2019, "lifted": 2016})
    }
    assert len(gains) == 6
    assert gains["arcface", "contrastive", "cub"].gain == pytest.approx(21.49 / 21.18 - 1)
    assert gains["arcface", "triplet", "sop"].year == 2019


def test_claims_were_larger_than_what_was_measured() -> None:
    """The reality check's own point, from its own tables."""
    years = dict.fromkeys(FOURTEEN, 2019)
    assert max(gain.gain for gain in measured_gains("precision_at_1", years)) < 0.2
    assert max(gain.gain for gain in claimed_gains()) > 1


def test_other_benchmarks_are_read_with_their_trunks() -> None:
    found = elsewhere("lifted", "cub", "unbiased")
    assert {(score.trunk, score.metric) for score in found} == {
        (trunk, metric)
        for trunk in ("bn_inception", "resnet50")
        for metric in (
            "nmi",
            "recall_at_1",
            "recall_at_2",
            "recall_at_4",
            "recall_at_8",
            "recall_at_16",
        )
    }
    semihard = elsewhere("triplet_semihard_squared", "cub", "unbiased")
    assert (
        next(s.mean for s in semihard if (s.trunk, s.metric) == ("bn_inception", "recall_at_1"))
        == 0.509
    )
    assert {UNBIASED[row["method"]] for row in rows("dmlplayground_results")} == set(
        UNBIASED.values()
    )
    assert elsewhere("contrastive", "cub", "revisiting") == []


def test_what_papers_reported_is_known_for_every_method_of_the_unbiased_evaluation() -> None:
    for data in DATA:
        assert all(in_its_paper(method, data) is not None for method in UNBIASED.values())
        assert in_its_paper("contrastive", data) is None
    listed = [row["method"] for row in rows("unbiased_reported")]
    assert [WITHOUT_NORMALISING.get(name, name) for name in listed] == list(
        dict.fromkeys(
            UNBIASED[name]
            for name in (
                "Triplet Semihard", "Lifted Struct", "N-Pairs", "Struct Clust", "Margin Loss",
                "Angular Loss", "Prototype Loss", "Proxy-Triplet", "Proxy-NCA", "Proxy-Softmax",
                "Ranked List Loss", "DREML",
            )
        )
    )  # fmt: skip
    assert in_its_paper("n_pairs", "glyphs") is None


def test_reported_scores_are_those_of_the_list_with_trunk_width_and_last_layer() -> None:
    margin = in_its_paper("margin_distance_weighted", "cars")
    assert margin is not None
    assert (margin.trunk, margin.dim, margin.normalised) == ("resnet50", "128", True)
    assert margin.recall_at_1 == 0.796
    ensemble = in_its_paper("dreml", "cub")
    assert ensemble is not None
    assert (ensemble.trunk, ensemble.dim, ensemble.normalised) == ("googlenet", "12x48", False)
    triplet = in_its_paper("triplet_semihard_squared", "sop")
    assert triplet is not None
    assert triplet.recall_at_1 is None
    # the list names the trunk of a score on Cars again where it names one
    assert all(
        row["cars_trunk_of_paper"] in ("", row["trunk"]) for row in rows("unbiased_reported")
    )
