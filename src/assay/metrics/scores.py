"""`Scores`: the result of an evaluation. Shapes: Q queries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from assay.stats import Interval, bootstrap

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["queries", "classes"]


@dataclass(frozen=True)
class Queries:
    """The queries: their ids, their classes by number, the names of the classes."""

    ids: Sequence[Any]
    numbers: NDArray[np.int64]
    names: Sequence[Any]


class Scores(Mapping[str, float]):
    """Means by metric, over the queries whose class has another sample in the gallery.

    Metrics of single queries also have `per_query`, `per_class` and `interval`; metrics of the
    whole embedding (clustering, geometry, verification) have only their value.

    Args:
        asked: the queries.
        values: by metric, a value for each query (NaN where there is nothing to find), or one value
            for the whole embedding.
        scored: which queries have something to find; the others are skipped.
        similarity: how vectors are compared.
    """

    def __init__(
        self,
        asked: Queries,
        values: Mapping[str, NDArray[np.float64] | float],
        scored: NDArray[np.bool_],
        similarity: str,
    ) -> None:
        self._asked, self._values = asked, dict(values)
        for of_each in self._values.values():
            if not isinstance(of_each, float):
                of_each.setflags(write=False)
        self._intervals: dict[tuple[str, Unit], Interval] = {}
        self.queries, self.skipped, self.similarity = (
            int(scored.sum()),
            int((~scored).sum()),
            similarity,
        )
        self.classes = len(np.unique(asked.numbers[scored]))

    @property
    def ids(self) -> list[Any]:
        """Id of each query, in the order of `per_query`: as given, or its row."""
        return list(self._asked.ids)

    @property
    def labels(self) -> list[Any]:
        """Class of each query, in the order of `per_query`."""
        return [self._asked.names[number] for number in self._asked.numbers.tolist()]

    def per_query(self, name: str) -> NDArray[np.float64]:
        """Return the metric for each query, NaN where its class has no other sample."""
        if name not in self._values:
            raise KeyError(f"{name} was not asked for; there are {', '.join(self._values)}")
        values = self._values[name]
        if isinstance(values, float):
            raise ValueError(
                f"{name} is a metric of the whole embedding and has no value for a single query"
            )
        return values

    def queries_with(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield id, label and these metrics of each query."""
        values = [self.per_query(name).tolist() for name in names]
        yield from zip(self.ids, self.labels, *values, strict=True)

    def per_class(self, name: str) -> dict[Any, float]:
        """Return the mean over the queries of each class, NaN where none has anything to find."""
        sums, counts = self._by_class(name)
        present = np.unique(self._asked.numbers)
        with np.errstate(invalid="ignore"):
            means = (sums / counts)[present]
        return {
            self._asked.names[number]: float(mean)
            for number, mean in zip(present.tolist(), means, strict=True)
        }

    def interval(self, name: str, over: Unit = "classes") -> Interval:
        """Return a 95% bootstrap interval of the mean, over queries or over classes.

        Over classes, whole classes are drawn: queries of one class depend on each other, and an
        open-set search meets other classes. Over queries, each query is drawn by itself, which says
        how certain the mean is for these classes.
        """
        if over not in get_args(Unit):
            raise ValueError(f"an interval is over {' or '.join(get_args(Unit))}, not {over!r}")
        if (name, over) not in self._intervals:
            if over == "queries":
                values = self.per_query(name)
                sums = values[~np.isnan(values)]
                self._intervals[name, over] = bootstrap(sums, np.ones_like(sums))
            else:
                sums, counts = self._by_class(name)
                self._intervals[name, over] = bootstrap(sums[counts > 0], counts[counts > 0])
        return self._intervals[name, over]

    def to_dict(self) -> dict[str, Any]:
        """Return means, intervals and counts as plain data."""
        return {
            "metrics": {name: self._entry(name) for name in self},
            "queries": self.queries,
            "skipped": self.skipped,
            "classes": self.classes,
            "similarity": self.similarity,
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return a row per query: id, label, and each metric of single queries. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "to_frame needs pandas (pip install pandas); to_dict and per_query do without"
            ) from None
        values = {
            name: values for name, values in self._values.items() if not isinstance(values, float)
        }
        return pandas.DataFrame({"id": self.ids, "label": self.labels, **values})

    def __getitem__(self, name: str) -> float:
        values = self._values[name]
        return values if isinstance(values, float) else float(np.nanmean(values))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        width = max(len(name) for name in self)
        skipped = f", {self.skipped} skipped (nothing to find)" if self.skipped else ""
        head = (
            f"Scores: {self.queries} queries of {self.classes} classes{skipped}; {self.similarity}"
        )
        return "\n".join(
            [head, *(f"  {name:<{width}}  {self[name]:.4f}{self._ends(name)}" for name in self)]
        )

    def _ends(self, name: str) -> str:
        if isinstance(self._values[name], float):
            return ""
        found = {over: self.interval(name, over) for over in get_args(Unit)}
        ends = [
            f"[{interval.low:.4f}, {interval.high:.4f}] over {over}"
            for over, interval in found.items()
            if interval.low is not None
        ]
        return f"  {', '.join(ends)}" if ends else ""

    def _entry(self, name: str) -> dict[str, Any]:
        if isinstance(self._values[name], float):
            return {"mean": self[name]}
        queries, classes = self.interval(name, "queries"), self.interval(name, "classes")
        return {
            "mean": self[name],
            "over_queries": [queries.low, queries.high],
            "over_classes": [classes.low, classes.high],
        }

    def _by_class(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return sum and count over the queries of each class that have something to find."""
        values = self.per_query(name)
        counted = ~np.isnan(values)
        numbers, size = self._asked.numbers[counted], len(self._asked.names)
        sums = np.zeros(size)
        np.add.at(sums, numbers, values[counted])
        return sums, np.bincount(numbers, minlength=size).astype(np.float64)
