"""Studies that may stand in one table: same protocol, data, environment and origin of parameters.

The data include the test half.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from assay.hashing import digest
from assay.metric_names import direction
from assay.records.announced_data import AnnouncedData
from assay.records.benches import DeclaredBench, announced_before, declared_benches, in_turn
from assay.records.lines import Preregistration, Seal, Setting
from assay.records.origin import ParameterOrigin, Searched
from assay.records.reported import Extent
from assay.records.run import RunBudget
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.stats import Difference, Interval, compare, relative_gain, t_interval
from assay.tables.family import Family, better_than, family_of, is_baseline, pairs_before
from assay.tables.studies import (
    ClassScores,
    budgets_of,
    by_year,
    class_scores,
    conditions,
    file_name,
    has_ended,
    metrics_of,
    newest,
)

SETTINGS: tuple[Setting, ...] = ("concatenated", "separated")
WHOLE = 1.0
"""In place of the smallest difference for metrics without one: only what is settled counts."""


@dataclass(frozen=True)
class Comparison:
    """Methods under equal conditions.

    Args:
        records: studies with all their test scores, baseline first, then by year of the paper.
        unfinished: studies of the same protocol and data that are not there yet, or failed.
        replaced: studies that were begun again: a newer one of the same method stands in their
            place.
        hidden: studies that a shorter view leaves out. They still count in the declared family.
        classes: scores of each test class, by the key of the study, where they were recorded.
        budgets: what runs cost, by the keys of study and run, where that was counted.
        benches: the benches in which the studies were declared.
        pairs_before: pairs that earlier benches on the same question declared. Extending a few of
            their methods pays for all.
        announced_as: hashes with which the benches were announced.
        added: for each method that was announced later than others on the same question, these.
    """

    records: tuple[StudyRecord, ...]
    unfinished: tuple[StudyRecord, ...] = ()
    replaced: tuple[StudyRecord, ...] = ()
    hidden: tuple[StudyRecord, ...] = ()
    classes: Mapping[str, ClassScores] = field(default_factory=dict)
    budgets: Mapping[str, Mapping[str, RunBudget]] = field(default_factory=dict)
    benches: tuple[DeclaredBench, ...] = ()
    pairs_before: int = 0
    announced_as: tuple[str, ...] = ()
    added: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {
            conditions(record)
            for record in (*self.records, *self.unfinished, *self.replaced, *self.hidden)
        }
        if len(found) != 1:
            raise ValueError(
                "a table holds one protocol, data set, environment and origin of parameters, got"
                f" {len(found)} combinations"
            )
        tested = {record.seal.test for record in self.records if record.seal}
        if len(tested) > 1:
            raise ValueError(f"a table holds one test half, got {len(tested)}")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(
                f"a table holds one study of each method, got {', '.join(self.methods)}"
            )
        if any(record.announced.sweep is not None for record in self.records):
            raise ValueError("a table holds no study of a sweep; those stand with their sweep")

    @property
    def announced(self) -> Preregistration:
        """Protocol, data and versions, as preregistered."""
        return (*self.records, *self.unfinished, *self.replaced, *self.hidden)[0].announced

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.announced.data.name)

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return str(self.announced.protocol.name)

    @property
    def origin(self) -> ParameterOrigin:
        """The origin of the parameters."""
        return self.announced.origin

    @property
    def given_by(self) -> str | None:
        """The origin of the parameters in words; None where they were searched."""
        return None if isinstance(self.origin, Searched) else str(self.origin)

    @property
    def trunk(self) -> str:
        """The trunk, its pretraining, and how much of it was trained."""
        resolved, weights = self.announced.protocol.resolved, self.announced.weights
        if resolved.trunk == "identity":
            seen = self.pretrained_on
            return "features as they were given" + (
                f", by a model pretrained on {seen}" if seen else ""
            )
        start = f"pretrained on {weights.pretrained_on}" if weights else "from random weights"
        frozen = {
            "trunk": ", frozen: only the head was trained",
            "batchnorm": ", its batch normalisation frozen",
        }
        return f"{resolved.trunk}, {start}{frozen.get(resolved.frozen, '')}"

    @property
    def pretrained_on(self) -> str | None:
        """Data that the trunk or the features were pretrained on, where known."""
        weights = self.announced.weights
        found = weights.pretrained_on if weights else self.announced.data.pretrained_on
        return None if found is None else str(found)

    @property
    def random_trunk(self) -> bool:
        """Whether the trunk started from random weights.

        A user does not already have the features of such a trunk.
        """
        return _has_random_trunk(self.announced)

    @property
    def problems(self) -> list[str]:
        """Problems of the data, and samples left out: of trainval and of the opened test half."""
        opened = [record.seal for record in self.records if record.seal]
        parts: list[AnnouncedData | Seal] = [self.announced.data, *opened[:1]]
        return [text for part in parts for text in (*part.problems, *part.left_out)]

    @property
    def slug(self) -> str:
        """The name of the section in file names."""
        given = f"-{digest(self.given_by)[:8]}" if self.given_by else ""
        return file_name(self.announced, self.records, self.protocol) + given

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
        """The metric of how often the nearest neighbour is right; MAP@R where there is none."""
        return next(
            (name for name in ("precision_at_1", "recall_at_1") if name in self.metrics), "map_at_r"
        )

    def record(self, method: str) -> StudyRecord:
        """Return the study of a method."""
        return self.records[self.methods.index(method)]

    @cached_property
    def family(self) -> Family:
        """The methods that were declared together, by the studies whose results are final."""
        ended = [
            record
            for record in (*self.records, *self.unfinished, *self.hidden)
            if has_ended(record)
        ]
        return family_of(ended, self.benches)

    @property
    def pairs_paid_for(self) -> int:
        """Number of pairs that the intervals allow for.

        These are the pairs declared here, or by the benches before this one.
        """
        return max(len(self.family.pairs), self.pairs_before)

    @cached_property
    def smallest(self) -> float:
        """The smallest difference in MAP@R that matters, as declared."""
        return float(self.announced.protocol.resolved.smallest_difference)

    @property
    def replicated(self) -> bool:
        """Whether a method was searched several times, so that intervals cover the search."""
        return any(record.searches > 1 for record in self.records)

    @property
    def searched_once(self) -> list[str]:
        """The methods whose parameters come from a single search."""
        return [
            record.method for record in self.records if record.searched and record.searches == 1
        ]

    def interval(self, method: str, setting: Setting, metric: str) -> Interval:
        """Return the mean and its 95% interval over searches.

        The interval is over reproductions where there is one search.
        """
        return t_interval(self.record(method).units(setting, metric))

    def gain(self, method: str, baseline: str, setting: Setting, metric: str) -> Interval | None:
        """Return the share of the baseline's score by which the method lies above it."""
        return relative_gain(
            self.record(method).units(setting, metric), self.record(baseline).units(setting, metric)
        )

    def differences(self, setting: Setting, metric: str = "map_at_r") -> list[Difference]:
        """Return every declared pair of the methods shown, the better mean first."""
        order = {name: place for place, name in enumerate(self.by_mean(setting, metric))}
        shown = [
            one
            for one in self._compared[setting, metric]
            if {one.first, one.second} <= order.keys()
        ]
        return sorted(shown, key=lambda one: (order[one.first], order[one.second]))

    def by_mean(self, setting: Setting, metric: str = "map_at_r") -> list[str]:
        """Return the methods shown, the best mean first."""
        sign = direction(metric)
        return sorted(
            self.methods, key=lambda method: -sign * self.interval(method, setting, metric).mean
        )

    def better(self, setting: Setting, metric: str = "map_at_r") -> set[tuple[str, str]]:
        """Return the pairs (better, worse) of the methods shown that are settled."""
        found = self.better_of_all(setting, metric)
        return {(one, other) for one, other in found if {one, other} <= set(self.methods)}

    def better_of_all(self, setting: Setting, metric: str = "map_at_r") -> set[tuple[str, str]]:
        """Return the pairs (better, worse) of the whole family that are settled, shown or not."""
        return better_than(self._compared[setting, metric])

    def ranks(self, setting: Setting, metric: str = "map_at_r") -> dict[str, int]:
        """Return 1 + the number of methods that are settled better.

        There are no ranks where methods are compared with references only.
        """
        if self.family.references:
            return {}
        better = self.better(setting, metric)
        ranked = [method for method in self.methods if method in self.family.ranked]
        return {
            method: 1 + sum(worse == method and one in ranked for one, worse in better)
            for method in ranked
        }

    def view(self, keys: Iterable[str]) -> "Comparison":
        """Return the comparison with the studies of these keys alone.

        Its intervals still allow for the pairs of the whole family.
        """
        wanted = set(keys)
        others = [
            record for record in (*self.records, *self.unfinished) if record.key not in wanted
        ]
        return replace(
            self,
            records=tuple(record for record in self.records if record.key in wanted),
            unfinished=tuple(record for record in self.unfinished if record.key in wanted),
            hidden=(*self.hidden, *others),
        )

    def needed(self, setting: Setting, difference: float) -> dict[tuple[str, str], int | None]:
        """Return how many searches would find a true difference of this size, by pair shown."""
        declared = difference == self.smallest
        found = (
            self._compared[setting, "map_at_r"]
            if declared
            else self._compare(setting, "map_at_r", difference)
        )
        return {(one.first, one.second): one.needed for one in found}

    @cached_property
    def _compared(self) -> dict[tuple[Setting, str], list[Difference]]:
        """The differences of the whole family, by each metric that has a better direction."""
        names = dict.fromkeys([*self.metrics, "map_at_r"])
        metrics = [metric for metric in names if direction(metric)]
        return {
            (setting, metric): self._compare(
                setting, metric, self.smallest if metric == "map_at_r" else WHOLE
            )
            for setting in SETTINGS
            for metric in metrics
        }

    def _compare(self, setting: Setting, metric: str, smallest: float) -> list[Difference]:
        """Return every declared pair with scores; none where a score is not a number."""
        paired = {name for pair in self.family.pairs for name in pair}
        units = {
            record.method: [direction(metric) * value for value in record.units(setting, metric)]
            for record in (*self.records, *self.hidden)
            if record.complete and record.method in paired
        }
        if not all(math.isfinite(value) for values in units.values() for value in values):
            return []
        single = {record.method for record in (*self.records, *self.hidden) if _is_one_draw(record)}
        pairs = [
            (a, b)
            for a, b in self.family.pairs
            if {a, b} <= units.keys()
            and (not {a, b} & single or len(units[a]) == len(units[b]) == 1)
        ]
        count = self.pairs_paid_for
        return [
            *self._judge(units, pairs, count, smallest, twins=False),
            *self._judge(units, pairs, count, smallest, twins=True),
        ]

    def _judge(
        self,
        units: Mapping[str, list[float]],
        pairs: Sequence[tuple[str, str]],
        count: int,
        smallest: float,
        twins: bool,
    ) -> list[Difference]:
        """Return the differences of pairs with, or without, a control twin.

        A control twin has no part in any other verdict.
        """
        controls = self.family.twins.keys()
        own = {name: values for name, values in units.items() if twins or name not in controls}
        chosen = [pair for pair in pairs if bool(controls & set(pair)) == twins]
        looks = self.family.looks_of_pairs(chosen)
        return (
            compare(own, chosen, comparisons=count, smallest=smallest, looks=looks)
            if chosen
            else []
        )


def _is_one_draw(record: StudyRecord) -> bool:
    """Return whether a study has a single value that another seed would change.

    Such a value has no spread, and is not a constant either.
    """
    return len(record.tests) == 1 and (
        _has_random_trunk(record.announced) or not is_baseline(record.method, record)
    )


def _has_random_trunk(announced: Preregistration) -> bool:
    return announced.weights is None and announced.data.modality != "features"


def ended(comparison: Comparison) -> Sequence[StudyRecord]:
    """Return the studies of the tables that will not change any more.

    These are the studies with test scores, and the studies whose trials all diverged.
    """
    return (*comparison.records, *(record for record in comparison.unfinished if record.failed))


# --- the comparisons of a store -------------------------------------------------------------------


def comparisons(store: Store, extent: Extent | None = None) -> list[Comparison]:
    """Return the studies of the store in groups that may be compared.

    Sweeps are left out. With an extent, the studies are as they were when the store had got so far.
    """
    groups: dict[tuple[str, ...], list[StudyRecord]] = {}
    for record in study_records(store, extent):
        if record.announced.sweep is None:
            groups.setdefault(conditions(record), []).append(record)
    found = [part for key in sorted(groups) for part in _by_test_half(groups[key])]
    benches = [bench for bench in declared_benches(store, extent) if bench.sweep is None]
    return sorted(
        (_with_store(store, one, benches) for one in found), key=lambda comparison: comparison.slug
    )


def _with_store(
    store: Store, comparison: Comparison, benches: Sequence[DeclaredBench]
) -> Comparison:
    """Return the comparison with its declarations and the scores of test classes."""
    standing = (*comparison.records, *comparison.unfinished)
    keys = {record.key for record in standing}
    counted = in_turn(benches)
    own = [bench for bench in counted if keys & set(bench.studies)]
    added = {record.method: _announced_earlier(record, benches) for record in standing}
    return replace(
        comparison,
        classes=class_scores(store, comparison.records),
        budgets={record.key: budgets_of(store, record) for record in standing},
        benches=tuple(own),
        pairs_before=pairs_before(own, counted),
        announced_as=tuple(bench.hash for bench in benches if keys & set(bench.studies)),
        added={method: earlier for method, earlier in added.items() if earlier},
    )


def _announced_earlier(record: StudyRecord, benches: Sequence[DeclaredBench]) -> tuple[str, ...]:
    """Return the methods on the same question that were announced before this study was.

    Empty where its first announcement is the first on the question; after a merge, where one of its
    first announcements is.
    """
    found: list[str] = []
    for bench in benches:
        if record.key not in bench.studies:
            continue
        before = [
            one
            for one in announced_before(bench, benches).values()
            if (one.question, one.trainval) == (bench.question, bench.trainval)
        ]
        if not before:
            return ()
        if not any(record.key in one.studies for one in before):
            found += [name for one in before for name in one.trained if name != record.method]
    return tuple(sorted(set(found)))


def _by_test_half(records: Sequence[StudyRecord]) -> list[Comparison]:
    standing, replaced = newest(records)
    done = [record for record in standing if record.complete and record.seal]
    unfinished = tuple(sorted((record for record in standing if record not in done), key=by_year))
    halves = sorted({record.seal.test for record in done if record.seal})
    parts = [
        tuple(sorted((r for r in done if r.seal and r.seal.test == half), key=by_year))
        for half in halves
    ]
    others = unfinished, tuple(sorted(replaced, key=by_year))
    return [
        Comparison(part, *(others if number == 0 else ()))
        for number, part in enumerate(parts or [()])
    ]
