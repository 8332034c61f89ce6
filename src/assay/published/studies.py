"""Parameters and scores that three benchmark papers published."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from assay.published.names import DATA, PARAMETERS, REALITY_CHECK, REVISITING, UNBIASED, rows

Setting = Literal["concatenated", "separated"]
Study = Literal["unbiased", "revisiting"]

_METRICS = {"P@1": "precision_at_1", "RP": "r_precision", "MAP@R": "map_at_r"}
_SETTINGS = {"concat512": "concatenated", "sep128": "separated"}
_REPRODUCTIONS = 10
_TRUNKS = {"Inception-BN": "bn_inception", "ResNet50": "resnet50", "ResNet18": "resnet18"}
_OF_OTHERS = {"CUB200": "cub", "CUB200-2011": "cub", "CARS196": "cars", "SOP": "sop"}


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


def best_parameters(method: str, data: str) -> dict[str, float] | None:
    """Return the best parameters that the reality check found for our method on a data set.

    The data set is cub, cars or sop. None where the reality check searched nothing.

    A value that they left out is left out. A negative margin, which they allowed and which costs
    and teaches what a margin of 0 does because no distance is negative, is 0: our losses take no
    other.

    >>> best_parameters("arcface", "cars")
    {'weights_lr': 7.39e-06, 'margin': 20.52, 'scale': 49.5}
    """
    return _best_parameters().get((method, data))


def reported(method: str, data: str, metric: str, setting: Setting) -> Reported | None:
    """Return the score of our method in tables 4 to 6 of the reality check; None without a score.

    >>> reported("contrastive", "cub", "map_at_r", "separated")
    Reported(mean=0.2118, half_width=0.0028, runs=10)
    """
    return _reported().get((method, data, metric, setting))


def elsewhere(method: str, data: str, study: Study) -> list[Elsewhere]:
    """Return the scores of our method in the unbiased evaluation or the revisiting study.

    The former has 64 dimensions; the latter 128, with maxima over epochs on test.

    >>> elsewhere("arcface", "cub", "revisiting")
    [Elsewhere(trunk='resnet50', metric='recall_at_1', mean=0.6267, deviation=0.0067)]
    """
    return _unbiased(method, data) if study == "unbiased" else _revisiting(method, data)


@cache
def _best_parameters() -> dict[tuple[str, str], dict[str, float]]:
    ours = {theirs: name for name, theirs in DATA.items()}
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


def _unbiased(method: str, data: str) -> list[Elsewhere]:
    return [
        Elsewhere(
            _TRUNKS[row["backbone"]], _unbiased_metric(row["metric"]), _share(row["value"]), None
        )
        for row in rows("dmlplayground_results")
        if (UNBIASED[row["method"]], _OF_OTHERS[row["dataset"]]) == (method, data)
    ]


def _unbiased_metric(name: str) -> str:
    return name.lower() if name == "NMI" else name.replace("R@", "recall_at_")


def _revisiting(method: str, data: str) -> list[Elsewhere]:
    return [
        Elsewhere(
            "resnet50", "recall_at_1", _share(row["R@1_mean_pct"]), _share(row["R@1_std_pct"])
        )
        for row in rows("roth_results")
        if (REVISITING.get(row["method"]), _OF_OTHERS[row["dataset"]]) == (method, data)
    ]


def _share(percent: str) -> float:
    """Return a percentage as a share, without the digits that dividing adds."""
    return round(float(percent) / 100, 6)
