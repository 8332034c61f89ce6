"""Which studies may stand in one table: same protocol, data (test half included), environment and origin of parameters."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from assay.canonical import digest
from assay.metrics.metric import choose
from assay.stats import Difference, Interval, paired_differences, ranks, relative_gain, t_interval
from assay.store import Store
from assay.study import StudyRecord, study_records
from assay.tables.columns import DEFAULT, direction

Setting = Literal["separated", "concatenated"]
SETTINGS: tuple[Setting, ...] = ("concatenated", "separated")


@dataclass(frozen=True)
class Comparison:
    """Methods under equal conditions.

    Args:
        records: studies with all their test scores, baseline first, then by year of the paper.
        unfinished: studies of the same protocol and data that are not there yet, or failed.
        replaced: studies that were begun again: a newer one of the same method stands in their place.
    """

    records: tuple[StudyRecord, ...]
    unfinished: tuple[StudyRecord, ...] = ()
    replaced: tuple[StudyRecord, ...] = ()

    def __post_init__(self) -> None:
        found = {conditions(record) for record in (*self.records, *self.unfinished, *self.replaced)}
        if len(found) != 1:
            raise ValueError(
                f"a table holds one protocol, data set, environment and origin of parameters, got {len(found)} combinations"
            )
        tested = {record.seal["test"] for record in self.records if record.seal}
        if len(tested) > 1:
            raise ValueError(f"a table holds one test half, got {len(tested)}")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"a table holds one study of each method, got {', '.join(self.methods)}")
        if any("sweep" in record.announced for record in self.records):
            raise ValueError("a table holds no study of a sweep; those stand with their sweep")

    @property
    def announced(self) -> Mapping[str, Any]:
        """Protocol, data and versions, as preregistered."""
        return (*self.records, *self.unfinished, *self.replaced)[0].announced

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.announced["data"]["name"])

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return str(self.announced["protocol"]["name"])

    @property
    def given_by(self) -> str | None:
        """Who chose the parameters, where they were not searched."""
        return source_of_parameters(self.announced) or None

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
        given = f"-{digest(self.given_by)[:8]}" if self.given_by else ""
        return file_name(self.announced, half, self.protocol) + given

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods with test scores, in the order of the tables."""
        return [record.method for record in self.records]

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the test half that the protocol names, in its order."""
        return metrics_of(self.announced)

    @cached_property
    def first_place(self) -> str:
        """The metric that says how often the nearest is right, by whichever name the protocol has it; else MAP@R."""
        return next((name for name in ("precision_at_1", "recall_at_1") if name in self.metrics), "map_at_r")

    def record(self, method: str) -> StudyRecord:
        """The study of a method."""
        return self.records[self.methods.index(method)]

    def scores(self, setting: Setting, metric: str) -> dict[str, list[float]]:
        """Test scores of each method's reproductions."""
        return {record.method: record.scores(setting, metric) for record in self.records}

    def interval(self, method: str, setting: Setting, metric: str) -> Interval:
        """Mean and 95% interval over reproductions."""
        return t_interval(self.record(method).scores(setting, metric))

    def gain(self, method: str, baseline: str, setting: Setting, metric: str) -> Interval | None:
        """By what share of the baseline's score the method lies above it, paired over reproductions."""
        return relative_gain(self.record(method).scores(setting, metric), self.record(baseline).scores(setting, metric))

    def ranks(self, setting: Setting, metric: str) -> dict[str, float]:
        """Mean rank of each method over reproductions."""
        sign = direction(metric)
        return ranks({method: [sign * value for value in values] for method, values in self.scores(setting, metric).items()})

    def differences(self, setting: Setting) -> list[Difference]:
        """Every pair of methods by MAP@R, the one that comes out higher first."""
        by_score = sorted(self.methods, key=lambda method: -self.interval(method, setting, "map_at_r").mean)
        scores = self.scores(setting, "map_at_r")
        return paired_differences({method: scores[method] for method in by_score})

    def best(self, setting: Setting, metric: str) -> str:
        """The method with the best mean."""
        return max(self.methods, key=lambda method: direction(metric) * self.interval(method, setting, metric).mean)


def comparisons(store: Store, keys: Iterable[str] | None = None) -> list[Comparison]:
    """The studies of the store, or those with these keys, sorted into groups that may be compared; sweeps are left out."""
    groups: dict[tuple[str, ...], list[StudyRecord]] = {}
    for record in records_of(store, keys):
        if "sweep" not in record.announced:
            groups.setdefault(conditions(record), []).append(record)
    found = [part for key in sorted(groups) for part in _by_test_half(groups[key])]
    return sorted(found, key=lambda comparison: comparison.slug)


def records_of(store: Store, keys: Iterable[str] | None) -> list[StudyRecord]:
    """The studies of the store, or those with these keys."""
    wanted = store.studies() if keys is None else set(keys)
    return [record for record in study_records(store) if record.key in wanted]


def ended(comparison: Comparison) -> Sequence[StudyRecord]:
    """The studies of the tables that will not change any more: those with test scores, and those whose trials all diverged."""
    return (*comparison.records, *(record for record in comparison.unfinished if record.failed))


def conditions(record: StudyRecord) -> tuple[str, ...]:
    """All that must agree within a table."""
    announced = record.announced
    return (
        announced["protocol"]["fingerprint"],
        announced["data"]["trainval"],
        digest(announced["environment"]),
        source_of_parameters(announced),
    )


def source_of_parameters(announced: Mapping[str, Any]) -> str:
    """Who chose the parameters; nothing where the study itself searched for them."""
    return str(announced.get("given", {}).get("source", ""))


def metrics_of(announced: Mapping[str, Any]) -> list[str]:
    """The metrics of the test half that a preregistration names; a family by its members."""
    return [chosen.label for chosen in choose(announced["protocol"]["resolved"].get("metrics", DEFAULT))]


def file_name(announced: Mapping[str, Any], half: str, protocol: str) -> str:
    """Data, halves, protocol and environment in letters that any file system takes."""
    where = digest(announced["environment"])[:8]
    words = f"{announced['data']['name']}-{announced['data']['trainval'][:8]}-{half}-{protocol}-{where}"
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def newest(records: Iterable[StudyRecord]) -> tuple[list[StudyRecord], list[StudyRecord]]:
    """Of each method the latest study that has ended, with any later one under way; and those that they replace."""
    by_method: dict[str, list[StudyRecord]] = {}
    for record in sorted(records, key=generation_of, reverse=True):
        by_method.setdefault(record.method, []).append(record)
    standing, replaced = [], []
    for generations in by_method.values():
        count = 1 + next((number for number, record in enumerate(generations) if has_ended(record)), 0)
        standing += generations[:count]
        replaced += generations[count:]
    return standing, replaced


def generation_of(record: StudyRecord) -> int:
    """How often the study was begun again before this one."""
    return int(record.announced.get("generation", 0))


def has_ended(record: StudyRecord) -> bool:
    """Whether nothing will change any more: all test scores are there, or all trials diverged."""
    return (record.complete and record.seal is not None) or record.failed


def source_and_data(given_by: str | None) -> tuple[str, str]:
    """Who gave the parameters, and for which data set where that is said.

    >>> source_and_data("published by Musgrave et al. 2020 for cub")
    ('published by Musgrave et al. 2020', 'cub')
    """
    source, _, data = (given_by or "").partition(" for ")
    return source, data


def by_year(record: StudyRecord) -> tuple[bool, float, str]:
    """The untrained baseline, then by year of the paper, then what has none."""
    year = year_of(record)
    return record.announced["budget"]["trials"] > 0 or year is not None, year or math.inf, record.method


def year_of(record: StudyRecord) -> int | None:
    """Of the method's paper."""
    paper = record.announced["method"]["paper"]
    return int(paper["year"]) if paper else None


def _by_test_half(records: Sequence[StudyRecord]) -> list[Comparison]:
    standing, replaced = newest(records)
    done = [record for record in standing if record.complete and record.seal]
    unfinished = tuple(sorted((record for record in standing if record not in done), key=by_year))
    halves = sorted({record.seal["test"] for record in done if record.seal})
    parts = [tuple(sorted((r for r in done if r.seal and r.seal["test"] == half), key=by_year)) for half in halves]
    others = unfinished, tuple(sorted(replaced, key=by_year))
    return [Comparison(part, *(others if number == 0 else ())) for number, part in enumerate(parts or [()])]
