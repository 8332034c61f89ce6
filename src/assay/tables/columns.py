"""What metrics are called in tables, how their values read, and which of two is better."""

import re
from typing import Literal

Direction = Literal[1, -1, 0]
"""1 where higher is better, -1 where lower is, 0 where neither is."""

DEFAULT = ("precision_at_1", "r_precision", "map_at_r")
"""The metrics of protocols that name none."""

_HEADINGS = {
    "precision_at_1": "P@1",
    "r_precision": "RP",
    "map_at_r": "MAP@R",
    "mrr": "MRR",
    "nmi": "NMI",
    "nmi_geometric": "NMI (geometric)",
    "ami": "AMI",
    "f1": "F1",
    "pi_intra": "pi intra",
    "pi_inter": "pi inter",
    "pi_ratio": "pi ratio",
    "spectral_decay": "spectral decay",
    "spectral_decay_2": "spectral decay 2",
    "roc_auc": "ROC AUC",
    "eer": "EER",
}
_FAMILIES = {"recall_at_": "R@", "map_at_": "mAP@", "tar_at_far_": "TAR@FAR "}
_PLAIN = ("pi_", "spectral_decay")


def heading(metric: str) -> str:
    """The name of a metric over a column.

    >>> [heading(metric) for metric in ("map_at_r", "recall_at_4", "map_at_100", "spectral_decay")]
    ['MAP@R', 'R@4', 'mAP@100', 'spectral decay']
    """
    if metric in _HEADINGS:
        return _HEADINGS[metric]
    found = next(
        (family for family in _FAMILIES if re.fullmatch(rf"{family}\d[\w.-]*", metric)), None
    )
    return metric if found is None else _FAMILIES[found] + metric.removeprefix(found)


def in_percent(metric: str) -> bool:
    """Whether a metric is a share; distances and divergences are not."""
    return not metric.startswith(_PLAIN)


def direction(metric: str) -> Direction:
    """Which way is better."""
    if not in_percent(metric):
        return 0
    return -1 if metric == "eer" else 1
