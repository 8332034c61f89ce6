"""Results of papers: best parameters and scores of three benchmarks, and claimed gains.

The packaged CSV files have the papers' names; everything that leaves this module has ours.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

OtherBenchmark = Literal["unbiased", "revisiting"]
Baseline = Literal["contrastive", "triplet"]
OLD_BASELINES: tuple[Baseline, ...] = ("contrastive", "triplet")
"""The methods that papers claimed gains over."""

# --- names in the papers, and ours ----------------------------------------------------------------

DATA = {"cub": "CUB200", "cars": "Cars196", "sop": "SOP"}
"""Our data sets by the names that the reality check has for them."""

BEST_FOR = {**DATA, "cub-256": "CUB200_batch256"}
"""The groups of best parameters of the reality check by our names for them: one for each data set,
and one for CUB with batches of 256, whose test scores are not among the packaged results.
"""

REALITY_CHECK = {
    "Contrastive": "contrastive",
    "Triplet": "triplet",
    "NT-Xent": "nt_xent",
    "NTXent": "nt_xent",
    "ProxyNCA": "proxy_nca",
    "Margin": "margin",
    "Margin/class": "margin_per_class",
    "Margin / class": "margin_per_class",
    "N. Softmax": "normalized_softmax",
    "Normalized Softmax": "normalized_softmax",
    "CosFace": "cosface",
    "ArcFace": "arcface",
    "FastAP": "fastap",
    "SNR": "snr_contrastive",
    "SNR Contrastive": "snr_contrastive",
    "MS": "multi_similarity",
    "Multi Similarity": "multi_similarity",
    "MS+Miner": "multi_similarity_mined",
    "Multi Similarity + Miner": "multi_similarity_mined",
    "SoftTriple": "soft_triple",
    "Pretrained": "pretrained",
}
"""The reality check's methods; its tables and its list of parameters do not spell them alike."""

PARAMETERS = {
    "proxy lr": "weights_lr",
    "beta lr": "weights_lr",
    "weights lr": "weights_lr",
    "softmax_scale": "scale",
    "la": "scale",
    "init beta": "beta",
    "num_bins": "bins",
    "regularizer_weight": "regularisation",
    "reg_weight": "regularisation",
}
"""The reality check's parameters where we call them otherwise. Units agree: ArcFace's margin is in
degrees on both sides.
"""

UNBIASED = {
    "Triplet Semihard": "triplet_semihard_squared",
    "Lifted Struct": "lifted",
    "N-Pairs": "n_pairs",
    "Angular Loss": "angular_raw",
    "Margin Loss": "margin_distance_weighted",
    "Ranked List Loss": "ranked_list",
    "Struct Clust": "structured_clustering",
    "Prototype Loss": "prototypical",
    "Proxy-Triplet": "proxy_triplet",
    "Proxy-NCA": "proxy_nca_strict",
    "Proxy-Softmax": "proxy_softmax",
    "DREML": "dreml",
}
"""The methods of the unbiased evaluation."""

WITHOUT_NORMALISING = {"triplet_semihard": "triplet_semihard_squared", "angular": "angular_raw"}
"""Methods of its list of reported scores whose form without a normalised last layer has another
name here.
"""

REVISITING = {
    "Angular": "angular",
    "ArcFace": "arcface",
    "GenLifted": "lifted_generalized",
    "Histogram": "histogram",
    "Multisimilarity": "multi_similarity_mined",
    "Margin (D) beta=1.2": "margin_distance_weighted",
    "N-Pair": "n_pairs",
    "Margin (D) beta=0.6": "margin_distance_weighted_near",
    "ProxyNCA": "proxy_nca_strict",
    "SoftTriple": "soft_triple",
    "Softmax (normalized)": "normalized_softmax",
    "Triplet (S)": "triplet_semihard",
    "R-Contrastive (D)": "rho_contrastive",
    "R-Margin (D) beta=1.2": "rho_margin",
    "R-Margin (D) beta=0.6": "rho_margin_near",
    "R-SNR (D)": "rho_snr",
    "R-Triplet (D)": "rho_triplet",
}
"""The methods of the revisiting study that we have in the same form; (D), (R) and (H) name miners
that ours do not use.
"""

_METRICS = {"P@1": "precision_at_1", "RP": "r_precision", "MAP@R": "map_at_r"}
_SETTINGS = {"concat512": "concatenated", "sep128": "separated"}
_REPRODUCTIONS = 10
_TRUNKS = {
    "Inception-BN": "bn_inception",
    "GoogLeNet": "googlenet",
    "ResNet50": "resnet50",
    "ResNet18": "resnet18",
}
_OF_OTHERS = {"CUB200": "cub", "CUB200-2011": "cub", "CARS196": "cars", "SOP": "sop"}
_AS_REPORTED: dict[str, Baseline] = {
    "Contrastive (baseline as reported)": "contrastive",
    "Triplet (baseline as reported)": "triplet",
}


@cache
def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a packaged file."""
    text = (files("assay.published") / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# --- parameters and scores of three benchmarks ----------------------------------------------------


@dataclass(frozen=True)
class Reported:
    """A mean with half the width of its 95% interval, as shares; no width for a single run."""

    mean: float
    half_width: float | None
    runs: int

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width


@dataclass(frozen=True)
class Elsewhere:
    """A score that another benchmark published, as a share.

    Args:
        trunk: of the network, by our name.
        metric: by our name.
        mean: the score, of one run or of several.
        deviation: standard deviation over runs, None where there was one.
    """

    trunk: str
    metric: str
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class InItsPaper:
    """A score that the paper of a method reported, and how it was reached.

    The unbiased evaluation lists these scores beside the ones that it measured.

    Args:
        trunk: of the network, by our name.
        dim: width of the embedding; `12x48` for 48 networks of 12 numbers.
        normalised: whether the last layer is normalised.
        recall_at_1: on the data set, as a share; None where the paper has none.
    """

    trunk: str
    dim: str
    normalised: bool
    recall_at_1: float | None


def best_parameters(method: str, data: str) -> dict[str, float] | None:
    """Return the best parameters that the reality check found for our method on a data set.

    `data` is a name of `BEST_FOR`. None where the reality check searched nothing.

    A value that they left out is left out. A negative margin, which they allowed and which costs
    and teaches what a margin of 0 does because no distance is negative, is 0: our losses take no
    other.

    >>> best_parameters("arcface", "cars")
    {'weights_lr': 7.39e-06, 'margin': 20.52, 'scale': 49.5}
    >>> best_parameters("triplet", "cub-256")
    {'margin': 0.1368}
    """
    return _best_parameters().get((method, data))


def reported(
    method: str, data: str, metric: str, setting: Literal["concatenated", "separated"]
) -> Reported | None:
    """Return the score of our method in tables 4 to 6 of the reality check; None without a score.

    >>> reported("contrastive", "cub", "map_at_r", "separated")
    Reported(mean=0.2118, half_width=0.0028, runs=10)
    """
    return _reported().get((method, data, metric, setting))


def elsewhere(method: str, data: str, study: OtherBenchmark) -> list[Elsewhere]:
    """Return the scores of our method in the unbiased evaluation or the revisiting study.

    The former has 64 dimensions; the latter 128, with maxima over epochs on test.

    >>> elsewhere("arcface", "cub", "revisiting")
    [Elsewhere(trunk='resnet50', metric='recall_at_1', mean=0.6267, deviation=0.0067)]
    """
    if study == "unbiased":
        return [
            Elsewhere(
                _TRUNKS[row["backbone"]],
                "nmi" if row["metric"] == "NMI" else row["metric"].replace("R@", "recall_at_"),
                _share(row["value"]),
                None,
            )
            for row in rows("dmlplayground_results")
            if (UNBIASED[row["method"]], _OF_OTHERS[row["dataset"]]) == (method, data)
        ]
    return [
        Elsewhere(
            "resnet50", "recall_at_1", _share(row["R@1_mean_pct"]), _share(row["R@1_std_pct"])
        )
        for row in rows("roth_results")
        if (REVISITING.get(row["method"]), _OF_OTHERS[row["dataset"]]) == (method, data)
    ]


def in_its_paper(method: str, data: str) -> InItsPaper | None:
    """Return what the paper of our method reported for cub, cars or sop.

    None where the unbiased evaluation does not list the method, or the data set is another one.

    >>> in_its_paper("ranked_list", "cub")
    InItsPaper(trunk='bn_inception', dim='512', normalised=True, recall_at_1=0.574)
    """
    return _in_their_papers().get((method, data))


@cache
def _in_their_papers() -> dict[tuple[str, str], InItsPaper]:
    return {
        (WITHOUT_NORMALISING.get(row["method"], row["method"]), data): InItsPaper(
            _TRUNKS[row["trunk"]],
            row["dim"],
            row["normalised_last_layer"] == "yes",
            _share(found) if (found := row[f"reported_r1_{data}"]) else None,
        )
        for row in rows("unbiased_reported")
        for data in DATA
    }


@cache
def _best_parameters() -> dict[tuple[str, str], dict[str, float]]:
    ours = {theirs: name for name, theirs in BEST_FOR.items()}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows("mlrc_hparams"):
        if row["dataset"] in ours and row["optimal_value"] != "N/A":
            parameters = found.setdefault((REALITY_CHECK[row["loss"]], ours[row["dataset"]]), {})
            name = PARAMETERS.get(row["param"], row["param"])
            parameters[name] = _value(name, row["optimal_value"])
    return found


def _value(name: str, text: str) -> float:
    if name == "bins":
        return int(text)
    return max(0.0, float(text)) if name.endswith("margin") else float(text)


@cache
def _reported() -> dict[tuple[str, str, str, str], Reported]:
    ours = {theirs: name for name, theirs in DATA.items()}
    found = {}
    for row in rows("mlrc_reported"):
        metric, _, setting = row["metric"].partition(" ")
        if setting in _SETTINGS:
            _, has_width, width = row["source"].partition("ci95_halfwidth=")
            half, runs = (_share(width), _REPRODUCTIONS) if has_width else (None, 1)
            place = (
                REALITY_CHECK[row["method"]],
                ours[row["dataset"]],
                _METRICS[metric],
                _SETTINGS[setting],
            )
            found[place] = Reported(_share(row["value"]), half, runs)
    return found


def _share(percent: str) -> float:
    """Return a percentage as a share, without the digits that dividing adds."""
    return round(float(percent) / 100, 6)


# --- gains over baselines, as claimed and as measured ---------------------------------------------


@dataclass(frozen=True)
class Gain:
    """The share of the baseline's score by which a method lies above it: 0.5 is half as much again.

    Args:
        method: by our name.
        year: of the paper that says so.
        baseline: contrastive or triplet, as that paper reported it.
        data: cub, cars or sop.
        metric: by our name.
        gain: (method - baseline) / baseline.
    """

    method: str
    year: int
    baseline: Baseline
    data: str
    metric: str
    gain: float


@cache
def claimed_gains() -> tuple[Gain, ...]:
    """Return the gains in P@1 that papers claimed over the baseline in the same paper.

    Only gains for which both scores are known are returned.
    """
    ours = {theirs: name for name, theirs in DATA.items()}
    baselines = {
        (row["paper"], row["dataset"], _AS_REPORTED[row["method"]]): float(row["value"])
        for row in rows("mlrc_reported")
        if row["method"] in _AS_REPORTED
    }
    return tuple(
        Gain(
            row["method"],
            int(row["year"]),
            baseline,
            ours[row["dataset"]],
            "precision_at_1",
            float(row["value"]) / below - 1,
        )
        for row in rows("claims")
        for baseline in OLD_BASELINES
        if (below := baselines.get((row["paper"], row["dataset"], baseline))) is not None
    )


def measured_gains(metric: str, years: dict[str, int]) -> tuple[Gain, ...]:
    """Return the gains of single models in the reality check, for methods with a given year."""
    methods = [method for method in dict.fromkeys(REALITY_CHECK.values()) if method in years]
    return tuple(
        Gain(method, years[method], baseline, data, metric, above.mean / below.mean - 1)
        for method in methods
        for baseline in OLD_BASELINES
        for data in DATA
        if method != baseline
        and (above := reported(method, data, metric, "separated")) is not None
        and (below := reported(baseline, data, metric, "separated")) is not None
    )
