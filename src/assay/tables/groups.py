"""The studies of a store, sorted into comparisons."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from assay.records.benches import AS_IS, DeclaredBench, declared_benches, in_turn
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.tables.classes import class_scores
from assay.tables.comparison import Comparison, conditions, generation_of, has_ended, year_of
from assay.tables.family import is_baseline, pairs_before


def comparisons(store: Store, keys: Iterable[str] | None = None) -> list[Comparison]:
    """Return the studies of the store, or those with these keys, in groups that may be compared.

    Sweeps are left out.
    """
    groups: dict[tuple[str, ...], list[StudyRecord]] = {}
    for record in records_of(store, keys):
        if record.announced.sweep is None:
            groups.setdefault(conditions(record), []).append(record)
    found = [part for key in sorted(groups) for part in _by_test_half(groups[key])]
    benches = in_turn(declared_benches(store))
    return sorted(
        (_with_store(store, one, benches) for one in found), key=lambda comparison: comparison.slug
    )


def _with_store(
    store: Store, comparison: Comparison, benches: Sequence[DeclaredBench]
) -> Comparison:
    """Return the comparison with its declarations and the scores of test classes."""
    keys = {record.key for record in (*comparison.records, *comparison.unfinished)}
    scores = {record.key: class_scores(store, record) for record in comparison.records}
    own = [bench for bench in benches if keys & set(bench.studies)]
    return replace(
        comparison,
        classes={key: found for key, found in scores.items() if found is not None},
        benches=tuple(own),
        pairs_before=pairs_before(own, benches),
    )


def records_of(store: Store, keys: Iterable[str] | None) -> list[StudyRecord]:
    """Return the studies of the store, or those with these keys."""
    wanted = store.studies() if keys is None else set(keys)
    return [record for record in study_records(store) if record.key in wanted]


def newest(records: Iterable[StudyRecord]) -> tuple[list[StudyRecord], list[StudyRecord]]:
    """Return the latest study of each method, and the studies that these replace.

    The latest is the last study that has ended, with any later study under way.
    """
    by_method: dict[str, list[StudyRecord]] = {}
    for record in sorted(records, key=generation_of, reverse=True):
        by_method.setdefault(record.method, []).append(record)
    standing, replaced = [], []
    for generations in by_method.values():
        count = 1 + next(
            (number for number, record in enumerate(generations) if has_ended(record)), 0
        )
        standing += generations[:count]
        replaced += generations[count:]
    return standing, replaced


def by_year(record: StudyRecord) -> tuple[bool, bool, float, str]:
    """Return the sort key of a study.

    The unchanged vectors come first, then other baselines, methods by year, methods without a year.
    """
    trained = not is_baseline(record.method, record)
    return trained, record.method != AS_IS, year_of(record) or math.inf, record.method


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
