"""A metric: its name, what it is computed from, and how. Every module here registers its own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from assay.metric_names import NAMES, MetricName
from assay.registry import Registry, UnknownName, first_paragraph

MetricSource = Literal["ranks", "first hit", "clusters", "vectors", "pairs"]
"""What a metric is computed from.

    ranks       per query, from hits in rank order (Q, K) and the number of relevant references (Q,)
    first hit   per query, from the rank of the first relevant reference (Q,)
    clusters    from the labels and the clusters that k-means finds
    vectors     from the vectors and their labels
    pairs       from the similarities of all pairs
"""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Metric(MetricName):
    """A metric, or a family of metrics that differ in one number.

    Args:
        source: what the metric is computed from.
        function: computes the metric; that of a family takes the number as its last argument.
        ranks: how many ranks the metric looks at; None for as many as there are relevant
            references (for a family: the number).
    """

    source: MetricSource
    function: Callable[..., Any]
    ranks: int | None = None

    @property
    def about(self) -> str:
        """The first paragraph of the function's docstring."""
        return first_paragraph(self.function.__doc__)

    @property
    def per_query(self) -> bool:
        """Whether the metric has a value for each query."""
        return self.source in ("ranks", "first hit")


metrics = Registry[Metric]("metric")


def metric(
    name: str,
    source: MetricSource = "ranks",
    *,
    values: tuple[float, ...] = (),
    ranks: int | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated function as a metric and return it unchanged.

    `values` are the numbers of a user's own family; for Assay's own metrics they stand in
    `assay.metric_names`.
    """

    def add(function: Function) -> Function:
        named = NAMES.get(name, MetricName(name, name, values))
        metrics.set(name, Metric(**vars(named), source=source, function=function, ranks=ranks))
        return function

    return add


@dataclass(frozen=True)
class Chosen:
    """A metric as it was asked for: `recall_at_8` is the family `recall_at_k` with the number 8."""

    label: str
    metric: Metric
    value: float | None = None

    @property
    def source(self) -> MetricSource:
        """What the metric is computed from."""
        return self.metric.source

    @property
    def per_query(self) -> bool:
        """Whether the metric has a value for each query."""
        return self.metric.per_query

    @property
    def ranks(self) -> int | None:
        """How many ranks it looks at; None for as many as there are relevant references."""
        return self.metric.ranks if self.value is None else int(self.value)

    def __call__(self, *sources: Any) -> Any:
        """Compute the metric from these sources."""
        number = () if self.value is None else (self.value,)
        return self.metric.function(*sources, *number)


def choose_metrics(names: str | Iterable[str]) -> list[Chosen]:
    """Return the metrics of these names, or of one string with commas, each once.

    The bare name of a family stands for its usual members.

    >>> [chosen.label for chosen in choose_metrics(["recall_at_k", "map_at_10"])]
    ['recall_at_1', 'recall_at_2', 'recall_at_4', 'recall_at_8', 'recall_at_16', 'recall_at_32',
    'map_at_10']
    """
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    chosen: dict[str, Chosen] = {}
    for name in asked:
        found = {
            label: Chosen(label, known, value)
            for known in metrics.values()
            for label, value in known.members(name).items()
        }
        if not found:
            raise UnknownName(metrics.miss(name))
        chosen |= found
    if not chosen:
        raise ValueError(f"name at least one metric of {', '.join(metrics)}")
    return list(chosen.values())
