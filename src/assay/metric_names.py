"""Names of metrics: members of a family, headings of tables, and which of two values is better.

Tables and protocols read this module without importing torch. `assay.metrics` computes the metrics
that are named here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

DEFAULT_METRICS = ("precision_at_1", "r_precision", "map_at_r")

Direction = Literal[1, -1, 0]
"""1 where higher is better, -1 where lower is better, 0 where neither is."""


@dataclass(frozen=True)
class MetricName:
    """How a metric, or a family of metrics that differ in one number, is named and shown.

    Args:
        name: the identity; in the name of a family, `_k` or nothing stands for the number.
        heading: title of a column; for a family, the text before the number.
        values: the numbers that a family's bare name stands for; empty where there is no number.
        in_percent: whether a value is a share; distances and divergences are not.
        direction: which of two values is better.
    """

    name: str
    heading: str
    values: tuple[float, ...] = ()
    in_percent: bool = True
    direction: Direction = 1

    @property
    def takes_share(self) -> bool:
        """Whether a family's number is a share between 0 and 1, not a whole number."""
        return bool(self.values) and max(self.values) < 1

    @property
    def stem(self) -> str:
        """Text before the number in the name of a member of the family."""
        return f"{self.name.removesuffix('_k')}_"

    def members(self, name: str) -> dict[str, float | None]:
        """Return the metrics that `name` stands for, each with its number.

        Empty where `name` belongs to another metric.

        >>> MetricName("recall_at_k", "R@", values=(1, 2)).members("recall_at_8")
        {'recall_at_8': 8}
        """
        if name == self.name:
            return {self.label(value): value for value in self.values} or {name: None}
        number = name.removeprefix(self.stem)
        pattern = r"\d+(\.\d+)?(e-\d+)?" if self.takes_share else r"\d+"
        if not self.values or number == name or not re.fullmatch(pattern, number):
            return {}
        value = float(number) if self.takes_share else int(number)
        if value <= 0 or (self.takes_share and value > 1):
            allowed = "between 0 and 1" if self.takes_share else "at least 1"
            raise ValueError(f"{name}: the number in it is {allowed}")
        return {self.label(value): value}

    def label(self, value: float) -> str:
        """Return the name of a member: recall_at_8, tar_at_far_1e-3."""
        written = np.format_float_scientific(value, trim="-") if self.takes_share else str(value)
        return self.stem + re.sub(r"e-0*", "e-", written)


NAMES = {
    known.name: known
    for known in (
        MetricName("precision_at_1", "P@1"),
        MetricName("recall_at_k", "R@", values=(1, 2, 4, 8, 16, 32)),
        MetricName("r_precision", "RP"),
        MetricName("map_at_r", "MAP@R"),
        MetricName("map_at_k", "mAP@", values=(100,)),
        MetricName("mrr", "MRR"),
        MetricName("nmi", "NMI"),
        MetricName("nmi_geometric", "NMI (geometric)"),
        MetricName("ami", "AMI"),
        MetricName("f1", "F1"),
        MetricName("pi_intra", "pi intra", in_percent=False, direction=0),
        MetricName("pi_inter", "pi inter", in_percent=False, direction=0),
        MetricName("pi_ratio", "pi ratio", in_percent=False, direction=0),
        MetricName("spectral_decay", "spectral decay", in_percent=False, direction=0),
        MetricName("spectral_decay_2", "spectral decay 2", in_percent=False, direction=0),
        MetricName("roc_auc", "ROC AUC"),
        MetricName("eer", "EER", direction=-1),
        MetricName("tar_at_far", "TAR@FAR ", values=(1e-2, 1e-3, 1e-4)),
    )
}
"""The metrics of Assay. A user's own metric is shown under its name, in percent, higher better."""


def expand(names: Iterable[str]) -> list[str]:
    """Return the metrics of these names, each once; the name of a family stands for its members.

    >>> expand(["map_at_r", "tar_at_far"])
    ['map_at_r', 'tar_at_far_1e-2', 'tar_at_far_1e-3', 'tar_at_far_1e-4']
    """
    labels: dict[str, None] = {}
    for name in names:
        members = [label for known in NAMES.values() for label in known.members(name)]
        labels |= dict.fromkeys(members or [name])
    return list(labels)


def heading(metric: str) -> str:
    """Return the title of a metric's column.

    >>> [heading(metric) for metric in ("map_at_r", "recall_at_4", "map_at_100", "spectral_decay")]
    ['MAP@R', 'R@4', 'mAP@100', 'spectral decay']
    """
    known = _find(metric)
    return known.heading + metric.removeprefix(known.stem) if known.values else known.heading


def in_percent(metric: str) -> bool:
    """Return whether a metric is a share, which tables show in percent."""
    return _find(metric).in_percent


def direction(metric: str) -> Direction:
    """Return which of two values of a metric is better."""
    return _find(metric).direction


def _find(metric: str) -> MetricName:
    return next(
        (known for known in NAMES.values() if known.members(metric)), MetricName(metric, metric)
    )
