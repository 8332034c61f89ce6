"""Sweeps: the chosen parameters of each method over the values of one field of the protocol."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from assay.hashing import digest
from assay.metric_names import heading
from assay.protocols import ResolvedProtocol
from assay.records.lines import Preregistration, Setting
from assay.records.origin import SweepPoint
from assay.records.reported import Extent
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.stats import Interval, t_interval
from assay.tables.comparison import SETTINGS
from assay.tables.studies import (
    by_year,
    file_name,
    generation_of,
    metrics_of,
    newest,
)
from assay.tables.table import Table, raw_interval, score

LOG_SPAN = 8
"""Numbers that span more than this are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Sweep:
    """Methods over the values of one field, all else equal.

    Args:
        field: of the protocol.
        protocol: name of the one whose selections were run again.
        records: studies with all their test scores, at values of the field.
        bases: studies that selected the parameters, complete and on the same test half.
        unfinished: studies of the sweep that are not there yet.
    """

    field: str
    protocol: str
    records: tuple[StudyRecord, ...]
    bases: tuple[StudyRecord, ...] = ()
    unfinished: tuple[StudyRecord, ...] = ()

    @property
    def announced(self) -> Preregistration:
        """Data and versions, as preregistered."""
        return (*self.records, *self.unfinished)[0].announced

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.announced.data.name)

    @property
    def slug(self) -> str:
        """The name of the section in file names."""
        return file_name(self.announced, self.records, f"{self.protocol}-{self.field}")

    @cached_property
    def places(self) -> dict[tuple[str, str], StudyRecord]:
        """The study at each method and value.

        A base stands at its own value where the sweep has no study there.
        """
        own = {(record.method, point_of(record).value): record for record in self.records}
        known = {_number(value): value for _, value in own if _number(value) is not None}
        for base in self.bases:
            value = value_of(base.announced.protocol.resolved, self.field)
            own.setdefault((base.method, known.get(_number(value), value)), base)
        return own

    @cached_property
    def values(self) -> list[str]:
        """The values in order: by size where all are numbers, else as written, the base's last."""
        announced = [value for record in self.records for value in point_of(record).values]
        present = {value for _, value in self.places}
        ordered = list(
            dict.fromkeys(value for value in (*announced, *sorted(present)) if value in present)
        )
        return sorted(ordered, key=float) if self.numeric else ordered

    @cached_property
    def numeric(self) -> bool:
        """Whether every value is a number."""
        return all(_number(value) is not None for _, value in self.places)

    @cached_property
    def logarithmic(self) -> bool:
        """Whether the values are positive numbers over a wide range."""
        if not self.numeric:
            return False
        numbers = [float(value) for value in self.values]
        return min(numbers) > 0 and max(numbers) > LOG_SPAN * min(numbers)

    @cached_property
    def base_values(self) -> set[str]:
        """The values under which the parameters were selected."""
        known = {_number(value): value for value in self.values if _number(value) is not None}
        found = [value_of(base.announced.protocol.resolved, self.field) for base in self.bases]
        return {known.get(_number(value), value) for value in found}

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods, baseline first, then by year of the paper."""
        return [
            record.method
            for record in sorted({r.method: r for r in self.records}.values(), key=by_year)
        ]

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the test half."""
        return metrics_of(self.announced)

    def interval(self, method: str, value: str, setting: Setting, metric: str) -> Interval | None:
        """Return the mean and its 95% interval over searches or reproductions.

        None where there is no study.
        """
        record = self.places.get((method, value))
        return None if record is None else t_interval(record.units(setting, metric))


def sweeps(
    store: Store, extent: Extent | None = None, keys: Collection[str] | None = None
) -> list[Sweep]:
    """Return the sweeps of the store, or those of its studies with these keys.

    With an extent, they are as they were when the store had got so far.
    """
    records = [one for one in study_records(store, extent) if keys is None or one.key in keys]
    by_key = {record.key: record for record in records}
    groups: dict[tuple[str, ...], list[StudyRecord]] = {}
    for record in records:
        if (point := record.announced.sweep) is not None:
            data, environment = record.announced.data.trainval, digest(record.announced.environment)
            groups.setdefault((point.field, point.protocol, data, environment), []).append(record)
    found = [part for key in sorted(groups) for part in _by_test_half(groups[key], by_key)]
    return sorted(found, key=lambda sweep: sweep.slug)


def sweep_table(sweep: Sweep) -> Table:
    """Return the table of every metric with intervals at every value, method by method."""
    places = [
        (method, value)
        for method in sweep.methods
        for value in sweep.values
        if (method, value) in sweep.places
    ]
    cells: list[tuple[Setting, str]] = [
        (setting, metric) for setting in SETTINGS for metric in sweep.metrics
    ]
    found = {(place, cell): sweep.interval(*place, *cell) for place in places for cell in cells}
    return Table(
        name="sweep",
        title=f"Scores over {sweep.field}",
        note=(
            "Each method's parameters are those of the search that validates best under"
            f" {sweep.protocol}, run again at every value of {sweep.field}; where they were"
            " selected is marked. Mean and 95% t-interval on the test half: over reproductions,"
            " and where they were selected over searches if there are several."
            + " A batch is classes x images of each."
            * (sweep.field == "batch")
        ),
        groups=[("", 2), *((setting.capitalize(), len(sweep.metrics)) for setting in SETTINGS)],
        columns=["method", sweep.field, *(heading(metric) for _, metric in cells)],
        rows=[
            [
                method,
                _value_in_words(sweep, method, value),
                *(
                    ""
                    if (interval := found[(method, value), cell]) is None
                    else score(interval, cell[1])
                    for cell in cells
                ),
            ]
            for method, value in places
        ],
        raw=[
            {
                "method": method,
                "field": sweep.field,
                "value": value,
                "setting": setting,
                "metric": metric,
                **raw_interval(interval),
            }
            for method, value in places
            for setting, metric in cells
            if (interval := found[(method, value), (setting, metric)]) is not None
        ],
    )


def point_of(record: StudyRecord) -> SweepPoint:
    """Return the place of a study in its sweep."""
    point = record.announced.sweep
    assert point is not None, "only studies of a sweep are asked"
    return point


def value_of(resolved: ResolvedProtocol, field: str) -> str:
    """Return the value of a field as it is written on the command line."""
    if field == "batch":
        return str(math.prod(resolved.batch.embedding))
    value = attrgetter(field)(resolved)
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value_in_words(sweep: Sweep, method: str, value: str) -> str:
    """Return the value as a row of the table has it; a size of batch with its shape."""
    classes, images = sweep.places[method, value].announced.method.batch
    shape = f" ({classes} x {images})" if sweep.field == "batch" else ""
    return value + shape + " (selected here)" * (value in sweep.base_values)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _of_newest_bases(
    records: Sequence[StudyRecord], by_key: Mapping[str, StudyRecord]
) -> list[StudyRecord]:
    """Return for each method the points whose parameters its latest study selected."""

    def age(record: StudyRecord) -> int:
        base = by_key.get(point_of(record).base)
        return -1 if base is None else generation_of(base)

    latest: dict[str, int] = {}
    for record in records:
        latest[record.method] = max(latest.get(record.method, -1), age(record))
    return [record for record in records if age(record) == latest[record.method]]


def _by_test_half(records: Sequence[StudyRecord], by_key: Mapping[str, StudyRecord]) -> list[Sweep]:
    records = _of_newest_bases(records, by_key)
    values = dict.fromkeys(point_of(record).value for record in records)
    standing = [
        record
        for value in values
        for record in newest(r for r in records if point_of(r).value == value)[0]
    ]
    field, protocol = point_of(records[0]).field, point_of(records[0]).protocol
    done = [record for record in standing if record.complete and record.seal]
    unfinished = tuple(record for record in standing if record not in done)
    halves = sorted({record.seal.test for record in done if record.seal})
    return [
        Sweep(
            field,
            protocol,
            tuple(sorted((r for r in done if r.seal and r.seal.test == half), key=by_year)),
            tuple(_bases(standing, by_key, half)),
            unfinished if number == 0 else (),
        )
        for number, half in enumerate(halves or ["untested"])
    ]


def _bases(
    records: Iterable[StudyRecord], by_key: Mapping[str, StudyRecord], half: str
) -> list[StudyRecord]:
    keys = dict.fromkeys(point_of(record).base for record in records)
    found = [by_key[key] for key in keys if key in by_key]
    return [base for base in found if base.complete and base.seal and base.seal.test == half]
