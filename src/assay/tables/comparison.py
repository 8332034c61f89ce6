"""Which studies may stand in one table: same protocol, same data (test half included), same environment."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from assay.canonical import digest
from assay.stats import Difference, Interval, paired_differences, ranks, t_interval
from assay.store import Store
from assay.study import StudyRecord, study_records

Setting = Literal["separated", "concatenated"]
SETTINGS: tuple[Setting, ...] = ("concatenated", "separated")
METRICS = {"precision_at_1": "P@1", "r_precision": "RP", "map_at_r": "MAP@R"}


@dataclass(frozen=True)
class Comparison:
    """Methods under equal conditions.

    Args:
        records: studies with all their test scores, baseline first, then by year of the paper.
        unfinished: studies of the same protocol and data that are not there yet, or failed.
    """

    records: tuple[StudyRecord, ...]
    unfinished: tuple[StudyRecord, ...] = ()

    def __post_init__(self) -> None:
        conditions = {_conditions(record) for record in (*self.records, *self.unfinished)}
        if len(conditions) != 1:
            raise ValueError(f"a table holds one protocol, data set and environment, got {len(conditions)} combinations")
        tested = {record.seal["test"] for record in self.records if record.seal}
        if len(tested) > 1:
            raise ValueError(f"a table holds one test half, got {len(tested)}")

    @property
    def announced(self) -> Mapping[str, Any]:
        """Protocol, data and versions, as preregistered."""
        return (*self.records, *self.unfinished)[0].announced

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.announced["data"]["name"])

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return str(self.announced["protocol"]["name"])

    @property
    def trunk(self) -> str:
        """The trunk, what it had learnt before, and how much of it was trained."""
        resolved, weights = self.announced["protocol"]["resolved"], self.announced.get("weights")
        if resolved["trunk"] == "identity":
            seen = self.pretrained_on
            return "features as they were given" + (f", by a model pretrained on {seen}" if seen else "")
        start = f"pretrained on {weights['pretrained_on']}" if weights else "from random weights"
        frozen = {"trunk": ", frozen: only the head was trained", "batchnorm": ", its batch normalisation frozen"}
        return f"{resolved['trunk']}, {start}{frozen.get(resolved.get('frozen'), '')}"

    @property
    def pretrained_on(self) -> str | None:
        """What trunk or features have learnt from before, where it is known."""
        weights = self.announced.get("weights")
        found = weights["pretrained_on"] if weights else self.announced["data"].get("pretrained_on")
        return None if found is None else str(found)

    @property
    def slug(self) -> str:
        """A name for files."""
        half = self.records[0].seal["test"][:8] if self.records and self.records[0].seal else "untested"
        where = digest(self.announced["environment"])[:8]
        words = f"{self.data}-{self.announced['data']['trainval'][:8]}-{half}-{self.protocol}-{where}"
        return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods with test scores, in the order of the tables."""
        return [record.method for record in self.records]

    def scores(self, setting: Setting, metric: str) -> dict[str, list[float]]:
        """Test scores of each method's reproductions."""
        return {record.method: record.scores(setting, metric) for record in self.records}

    def interval(self, method: str, setting: Setting, metric: str) -> Interval:
        """Mean and 95% interval over reproductions."""
        return t_interval(self.scores(setting, metric)[method])

    def ranks(self, setting: Setting, metric: str) -> dict[str, float]:
        """Mean rank of each method over reproductions."""
        return ranks(self.scores(setting, metric))

    def differences(self, setting: Setting) -> list[Difference]:
        """Every pair of methods by MAP@R, the one that comes out higher first."""
        by_score = sorted(self.methods, key=lambda method: -self.interval(method, setting, "map_at_r").mean)
        scores = self.scores(setting, "map_at_r")
        return paired_differences({method: scores[method] for method in by_score})

    def best(self, setting: Setting, metric: str) -> str:
        """The method with the highest mean."""
        return max(self.methods, key=lambda method: self.interval(method, setting, metric).mean)


def comparisons(store: Store, keys: Iterable[str] | None = None) -> list[Comparison]:
    """The studies of the store, or those with these keys, sorted into groups that may be compared."""
    wanted = store.studies() if keys is None else set(keys)
    groups: dict[tuple[str, str, str], list[StudyRecord]] = {}
    for record in study_records(store):
        if record.key not in wanted:
            continue
        groups.setdefault(_conditions(record), []).append(record)
    found = [part for key in sorted(groups) for part in _by_test_half(groups[key])]
    return sorted(found, key=lambda comparison: comparison.slug)


def _by_test_half(records: Sequence[StudyRecord]) -> list[Comparison]:
    done = [record for record in records if record.complete and record.seal]
    unfinished = tuple(sorted((record for record in records if record not in done), key=_order))
    halves = sorted({record.seal["test"] for record in done if record.seal})
    parts = [tuple(sorted((r for r in done if r.seal and r.seal["test"] == half), key=_order)) for half in halves]
    return [Comparison(part, unfinished if number == 0 else ()) for number, part in enumerate(parts or [()])]


def _conditions(record: StudyRecord) -> tuple[str, str, str]:
    announced = record.announced
    return announced["protocol"]["fingerprint"], announced["data"]["trainval"], digest(announced["environment"])


def _order(record: StudyRecord) -> tuple[bool, float, str]:
    """The untrained baseline, then by year of the paper, then what has none."""
    paper = record.announced["method"]["paper"]
    return record.announced["budget"]["trials"] > 0, paper["year"] if paper else math.inf, record.method
