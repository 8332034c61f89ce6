"""The declared family: the methods that were announced together, and the pairs of them that are compared."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.stats import Difference
from assay.study import StudyRecord

ALL_PAIRS = 10
"""The most methods of which all pairs are compared; more are compared with one reference."""
AS_IS = "as_is"
"""The vectors that the user already has."""
BASELINES = (AS_IS, "pretrained", "untrained")
"""Rows that no method trained. The first of them that was declared is the yardstick."""
TWIN = ".twin"
"""How the name of a control twin ends."""


@dataclass(frozen=True)
class Family:
    """Methods that were announced together.

    Args:
        methods: the trained methods, those that have no scores yet included.
        yardstick: the baseline that every method is compared with.
        reference: the method that all others are compared with where there are more than `ALL_PAIRS`.
        twins: each control twin with the method that it is a twin of.
        looks: the look at which each method was announced, 1 where it is not given.
    """

    methods: tuple[str, ...]
    yardstick: str | None
    reference: str | None
    twins: Mapping[str, str]
    looks: Mapping[str, int]

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair that was declared. Their number is what each verdict pays for."""
        several = len(self.methods) <= ALL_PAIRS or self.reference is None
        if several:
            among = list(itertools.combinations(self.methods, 2))
        else:
            among = [(name, str(self.reference)) for name in self.methods if name != self.reference]
        beside = [] if self.yardstick is None else [(name, self.yardstick) for name in self.methods]
        return list(dict.fromkeys([*among, *beside, *self.twins.items()]))

    @property
    def ranked(self) -> set[str]:
        """The methods that have ranks: those that are compared, without twins."""
        return {*self.methods, *([self.yardstick] if self.yardstick else [])}


def family_of(records: Sequence[StudyRecord]) -> Family:
    """Return the union of the families that these studies declared."""
    own = {record.method: record for record in records}
    names = list(dict.fromkeys(name for record in records for name in (*declared(record)["methods"], record.method)))
    twins = {name: twin_of(name, own.get(name)) for name in names}
    baselines = [name for name in names if is_baseline(name, own.get(name))]
    yardstick = next((name for name in BASELINES if name in baselines), None)
    references = [name for record in records if (name := declared(record)["reference"]) in names]
    return Family(
        methods=tuple(name for name in names if name not in baselines and twins[name] is None),
        yardstick=yardstick,
        reference=None if not references else str(references[0]),
        twins={name: original for name, original in twins.items() if original is not None},
        looks={record.method: int(declared(record)["look"]) for record in records},
    )


def declared(record: StudyRecord) -> Mapping[str, Any]:
    """Return the family that a study's preregistration names."""
    found: Mapping[str, Any] = record.announced["family"]
    return found


def is_baseline(name: str, record: StudyRecord | None) -> bool:
    """Return whether a method is not trained; of one without a study its name has to tell."""
    by_name = name in BASELINES
    return by_name if record is None else bool(record.announced["method"].get("baseline", by_name))


def twin_of(name: str, record: StudyRecord | None) -> str | None:
    """Return the method that this one is a control twin of."""
    by_name = name.removesuffix(TWIN) if name.endswith(TWIN) else None
    return by_name if record is None else record.announced.get("twin_of")


def is_settled(difference: Difference) -> bool:
    """Return whether the interval of a difference lies above 0."""
    return difference.verdict in ("better", "better, too little to matter")


def better_than(found: Iterable[Difference]) -> set[tuple[str, str]]:
    """Return the pairs (better, worse) that are settled, and those that follow from them.

    The intervals hold all at once, so that a > b and b > c say that a > c, compared or not.
    """
    pairs = {(one.first, one.second) for one in found if is_settled(one)}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs:
        pairs |= more
    return pairs
