"""The declared family: the methods announced together, and the pairs of them that are compared."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from assay.records import StudyRecord
from assay.records.benches import AS_IS, TWIN, DeclaredBench, looks_of
from assay.stats import Difference

BASELINES = (AS_IS, "pretrained", "untrained")
"""Rows that no method trained. The first of them that was declared is the yardstick."""


@dataclass(frozen=True)
class Family:
    """Methods that were declared together.

    Args:
        methods: the trained methods, those that have no scores yet included.
        yardstick: the baseline that every method is compared with.
        references: methods that all others are compared with; where there is none, every pair is
            compared.
        groups: methods of benches without a reference, in each of which every pair is compared.
        twins: each control twin with the method that it is a twin of.
        looks: the look at which each method was declared, 1 where it is not given.
        pair_looks: the look at which each pair was declared first.
    """

    methods: tuple[str, ...]
    yardstick: str | None
    references: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    twins: Mapping[str, str]
    looks: Mapping[str, int]
    pair_looks: Mapping[frozenset[str], int] = field(default_factory=dict)

    def looks_of_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Return the look of each pair: the latest of its methods' and of its own declaration.

        So a pair that is chosen after the scores of both were seen pays for that.
        """
        return [
            max(self._look(a), self._look(b), self.pair_looks.get(frozenset((a, b)), 1))
            for a, b in pairs
        ]

    def _look(self, method: str) -> int:
        """Return the look of a method.

        The yardstick has no look of its own: every bench includes it, so it is not a choice.
        """
        return 1 if method == self.yardstick else self.looks.get(method, 1)

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair that was declared. Their number is what each verdict pays for."""
        groups = self.groups if self.references else (self.methods,)
        among = [pair for group in groups for pair in itertools.combinations(group, 2)]
        beside = [*self.references, *([self.yardstick] if self.yardstick else [])]
        among += [(name, other) for other in beside for name in self.methods if name != other]
        return list({frozenset(pair): pair for pair in (*among, *self.twins.items())}.values())

    @property
    def ranked(self) -> set[str]:
        """The methods that have ranks: those that are compared, without twins."""
        return {*self.methods, *([self.yardstick] if self.yardstick else [])}


def family_of(records: Sequence[StudyRecord], benches: Sequence[DeclaredBench] = ()) -> Family:
    """Return the union of the benches that declared these studies; without a bench, the studies.

    A bench counts as soon as a study that it declared first has ended. One that only repeats
    studies adds nothing, and one whose new studies are under way does not change yet what the
    others say.
    """
    own = {record.method: record for record in records}
    keys, looks = {record.key for record in records}, looks_of(benches)
    counting = [
        bench
        for bench in benches
        if any(looks[key] == bench.look for key in bench.studies if key in keys)
    ]
    names = list(dict.fromkeys([*(name for bench in counting for name in bench.methods), *own]))
    untrained = {name for bench in counting for name in bench.methods if name not in bench.trained}
    baselines = [name for name in names if name in untrained or is_baseline(name, own.get(name))]
    twins = {
        name: original for name in names if (original := twin_of(name, own.get(name))) is not None
    }
    trained = [name for name in names if name not in baselines and name not in twins]
    return Family(
        methods=tuple(trained),
        yardstick=next((name for name in BASELINES if name in baselines), None),
        references=tuple(
            dict.fromkeys(bench.reference for bench in counting if bench.reference in trained)
        ),
        groups=tuple(
            tuple(name for name in trained if name in bench.methods)
            for bench in counting
            if bench.reference is None
        ),
        twins=twins,
        looks={record.method: looks.get(record.key, 1) for record in records},
        pair_looks=_pair_looks(counting, set(trained)),
    )


def pairs_before(own: Sequence[DeclaredBench], benches: Sequence[DeclaredBench]) -> int:
    """Return how many pairs the benches declared that these ones came after.

    Extending the two most different of thirty methods is a choice among all their pairs, so the
    intervals allow for all of them.
    """
    seen = {key for bench in own for key in bench.after}
    earlier = [bench for bench in benches if seen & set(bench.studies)]
    return len({frozenset(pair) for bench in earlier for pair in _pairs_of(bench)})


def _pairs_of(bench: DeclaredBench) -> list[tuple[str, str]]:
    """Return every pair that one bench declares."""
    twins = {
        name: original for name in bench.trained if (original := twin_of(name, None)) is not None
    }
    trained = tuple(name for name in bench.trained if name not in twins)
    return Family(
        methods=trained,
        yardstick=next((name for name in BASELINES if name in bench.methods), None),
        references=(bench.reference,) if bench.reference else (),
        groups=() if bench.reference else (trained,),
        twins=twins,
        looks={},
    ).pairs


def _pair_looks(benches: Sequence[DeclaredBench], trained: set[str]) -> dict[frozenset[str], int]:
    """Return the look of the first bench that declares each pair."""
    found: dict[frozenset[str], int] = {}
    for bench in sorted(benches, key=lambda one: one.look):
        methods = [name for name in bench.methods if name in trained]
        pairs = (
            itertools.combinations(methods, 2)
            if bench.reference is None
            else ((name, bench.reference) for name in methods)
        )
        for pair in pairs:
            found.setdefault(frozenset(pair), bench.look)
    return found


def is_baseline(name: str, record: StudyRecord | None) -> bool:
    """Return whether a method is not trained; by its name where the method has no study."""
    by_name = name in BASELINES
    return by_name if record is None else bool(record.announced.method.baseline)


def twin_of(name: str, record: StudyRecord | None) -> str | None:
    """Return the method that this one is a control twin of."""
    by_name = name.removesuffix(TWIN) if name.endswith(TWIN) else None
    return by_name if record is None else record.announced.twin_of


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
