"""What a metric is: its name, what it is computed from, and how. The modules of this folder fill
the registry.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from assay.registry import Registry, UnknownName, first_paragraph

Source = Literal["ranks", "first hit", "clusters", "vectors", "pairs"]
"""What a metric is computed from.

    ranks       per query, from hits in rank order (Q, K) and the number of relevant references (Q,)
    first hit   per query, from the rank of the first relevant reference (Q,)
    clusters    from the labels and the clusters that k-means finds
    vectors     from the vectors and their labels
    pairs       from the similarities of all pairs
"""


@dataclass(frozen=True)
class Metric:
    """A metric, or a family of them that differ in one number.

    Args:
        name: by which it is asked for; of a family, `_k` or nothing stands for the number.
        source: what it is computed from.
        function: computes it; a family's takes the number as its last argument.
        values: the numbers that a family's bare name stands for; empty where there is no number.
        ranks: how many ranks it looks at, None for as many as there are relevant references (of a
            family: the number).
    """

    name: str
    source: Source
    function: Callable[..., Any]
    values: tuple[float, ...] = ()
    ranks: int | None = None

    @property
    def about(self) -> str:
        """The first paragraph of its docstring."""
        return first_paragraph(self.function.__doc__)

    @property
    def per_query(self) -> bool:
        """Whether each query has a value of it."""
        return self.source in ("ranks", "first hit")

    @property
    def is_share(self) -> bool:
        """Whether the number of a family is a share between 0 and 1, and not a whole one."""
        return bool(self.values) and max(self.values) < 1

    @property
    def number(self) -> str:
        """Pattern of a family's number in a name."""
        return r"\d+(\.\d+)?(e-\d+)?" if self.is_share else r"\d+"

    @property
    def stem(self) -> str:
        """What comes before the number in the name of a member of the family."""
        return f"{self.name.removesuffix('_k')}_"


metrics = Registry[Metric]("metric")

Function = Callable[..., Any]


def metric(
    name: str, source: Source = "ranks", *, values: tuple[float, ...] = (), ranks: int | None = None
) -> Callable[[Function], Function]:
    """Decorator that registers a function as a metric and leaves it as it is."""

    def add(function: Function) -> Function:
        metrics.set(name, Metric(name, source, function, values, ranks))
        return function

    return add


@dataclass(frozen=True)
class Chosen:
    """A metric as it was asked for: `recall_at_8` is the family `recall_at_k` with the number 8."""

    label: str
    metric: Metric
    value: float | None = None

    @property
    def ranks(self) -> int | None:
        """How many ranks it looks at; None for as many as there are relevant references."""
        return self.metric.ranks if self.value is None else int(self.value)

    def __call__(self, *sources: Any) -> Any:
        """The metric of these sources."""
        return (
            self.metric.function(*sources)
            if self.value is None
            else self.metric.function(*sources, self.value)
        )


def choose(names: str | Iterable[str]) -> list[Chosen]:
    """The metrics of these names (or of one string with commas), a family's bare name standing for
    its usual members.

    >>> [chosen.label for chosen in choose(["recall_at_k", "map_at_10"])]
    ['recall_at_1', 'recall_at_2', 'recall_at_4', 'recall_at_8', 'recall_at_16', 'recall_at_32',
    'map_at_10']
    """
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    chosen = {member.label: member for name in asked for member in _members(name)}
    if not chosen:
        raise ValueError(f"name at least one metric of {', '.join(metrics)}")
    return list(chosen.values())


def _members(name: str) -> list[Chosen]:
    if name in metrics:
        found = metrics[name]
        return [Chosen(_label(found, value), found, value) for value in found.values] or [
            Chosen(name, found)
        ]
    for family in metrics.values():
        number = name.removeprefix(family.stem)
        if family.values and number != name and re.fullmatch(family.number, number):
            value = float(number) if family.is_share else int(number)
            if value <= 0 or (family.is_share and value > 1):
                raise ValueError(
                    f"{name}: the number in it is"
                    f" {'between 0 and 1' if family.is_share else 'at least 1'}"
                )
            return [Chosen(_label(family, value), family, value)]
    raise UnknownName(metrics.miss(name))


def _label(family: Metric, value: float) -> str:
    """A whole number as it is, a share as a power of ten: recall_at_8, tar_at_far_1e-3."""
    written = (
        re.sub(r"e-0*", "e-", np.format_float_scientific(value, trim="-"))
        if family.is_share
        else str(value)
    )
    return f"{family.stem}{written}"
