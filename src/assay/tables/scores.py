"""The tables of scores: with intervals and ranks, over folds, and on training embeddings."""

import math
from collections.abc import Mapping, Sequence

from assay.metric_names import direction, heading, in_percent
from assay.records.lines import Setting
from assay.records.study import StudyRecord
from assay.stats import deviation, spread, t_interval
from assay.tables.comparison import SETTINGS, Comparison
from assay.tables.cost import ensembles_in_words
from assay.tables.table import Table, number_of, points, raw_interval, score
from assay.tables.verdicts import estimated, unit_of

Cell = tuple[Setting, str]
"""A setting and a metric: what a column of scores is about."""
FIRST = 2
"""Column of the table of scores with which scores begin; method and rank come before."""


def scores(comparison: Comparison) -> Table:
    """Return the table of every metric with intervals, concatenated and separated.

    The rank is by MAP@R of single models.
    """
    cells: list[Cell] = [(setting, metric) for setting in SETTINGS for metric in comparison.metrics]
    ranks = comparison.ranks("separated")
    best = {
        (comparison.methods.index(method), column + FIRST)
        for column, cell in enumerate(cells)
        for method in _best(comparison, *cell)
    }
    dim = int(comparison.announced.protocol.resolved.dim)
    folds = int(comparison.announced.budget.folds)
    headings = {
        "concatenated": f"Concatenated ({folds} x {dim})",
        "separated": f"Separated ({dim})",
    }
    return Table(
        name="scores",
        title="Scores on the test half",
        note=_scores_note(comparison),
        groups=[
            ("", FIRST),
            *((headings[setting], len(comparison.metrics)) for setting in SETTINGS),
        ],
        columns=["method", "rank", *(heading(metric) for _, metric in cells)],
        rows=[
            [
                m,
                str(ranks.get(m, "")),
                *(score(comparison.interval(m, *cell), cell[1]) for cell in cells),
            ]
            for m in comparison.methods
        ],
        best=frozenset(best),
        raw=[
            {
                "method": method,
                "rank": ranks.get(method),
                "setting": setting,
                "metric": metric,
                **raw_interval(comparison.interval(method, setting, metric)),
            }
            for method in comparison.methods
            for setting, metric in cells
        ],
    )


def _best(comparison: Comparison, setting: Setting, metric: str) -> list[str]:
    """Return the methods than which no other is settled better, by this column.

    There are none where no method is settled worse.
    """
    if not direction(metric):
        return []
    ranks = comparison.ranks(setting, metric)
    first = [method for method, rank in ranks.items() if rank == 1]
    return first if len(first) < len(ranks) else []


def over_folds(comparison: Comparison) -> Table | None:
    """Return the table of how single models vary over folds and over searches.

    None where no study kept the scores of its folds.
    """
    metrics = [metric for metric in comparison.metrics if in_percent(metric)]
    records = [record for record in comparison.records if any(test.folds for test in record.tests)]
    if not records:
        return None
    by_fold: dict[tuple[str, str], float | None] = {}
    by_unit: dict[tuple[str, str], float | None] = {}
    for record in records:
        tests = [test.folds for test in record.tests if test.folds]
        for metric in metrics:
            values = record.units("separated", metric)
            by_unit[record.method, metric] = deviation(values) if len(values) > 1 else None
            by_fold[record.method, metric] = spread(
                [[float(fold[metric]) for fold in folds if metric in fold] for folds in tests]
            )
    units = "searches" if comparison.replicated else "reproductions"
    return Table(
        name="spread",
        title=f"Spread over folds, and over {units}",
        note=(
            "Standard deviations of test scores of single models, in points. Over folds: within a"
            " reproduction, pooled; folds train on different classes, so this is how much one"
            f" model's score depends on what it was trained on (and on its seed). Over {units}: of"
            " the mean of the folds, from which the intervals come; same classes."
        ),
        groups=[("", 1), ("Over folds", len(metrics)), (f"Over {units}", len(metrics))],
        columns=["method", *(heading(metric) for metric in (*metrics, *metrics))],
        rows=[
            [
                record.method,
                *(points(by_fold[record.method, metric]) for metric in metrics),
                *(points(by_unit[record.method, metric]) for metric in metrics),
            ]
            for record in records
        ],
        raw=[
            {
                "method": method,
                "metric": metric,
                "over_folds": by_fold[method, metric],
                "over_units": by_unit[method, metric],
            }
            for method, metric in by_fold
        ],
    )


def training(comparison: Comparison) -> Table | None:
    """Return the metrics on embeddings of training classes; None where the protocol has none."""
    found = {record.method: _training_scores(record) for record in comparison.records}
    metrics = list(dict.fromkeys(metric for scores in found.values() for metric in scores))
    if not metrics:
        return None
    return Table(
        name="training",
        title="On training embeddings",
        note=(
            "Of the training classes of each fold, by the chosen checkpoint; mean over folds, with"
            " 95% t-intervals over searches or, of one search, over reproductions. They describe"
            " the embedding and are no measure of how well unseen classes are separated."
        ),
        columns=["method", *map(heading, metrics)],
        rows=[
            [name, *(_training_cell(values.get(metric), metric) for metric in metrics)]
            for name, values in found.items()
        ],
        raw=[
            {
                "method": name,
                "metric": metric,
                **(
                    {"mean": None, "low": None, "high": None, "units": len(values)}
                    if math.inf in values
                    else raw_interval(t_interval(values))
                ),
            }
            for name, by_metric in found.items()
            for metric, values in by_metric.items()
        ],
    )


def _scores_note(comparison: Comparison) -> str:
    test = comparison.records[0].tests[0].separated
    announced = [record.announced.method for record in comparison.records]
    baselines = "".join(
        f"{method.name}: {method.about}. "
        for method in announced
        if method.baseline and method.about
    )
    plain = [heading(metric) for metric in comparison.metrics if not in_percent(metric)]
    unit = f"in percent but for {', '.join(plain)}" if plain else "in percent"
    sizes = f"{words} " if (words := ensembles_in_words(comparison)) else ""
    searched = "" if comparison.given_by else "; the selected trials are not among them"
    return (
        f"{estimated(comparison)} Mean and 95% t-interval over {_units(comparison)},"
        f" {unit}{searched}. Rank: 1 + the number of methods that are settled better by MAP@R"
        " (separated); methods of different ranks need not be settled, and rows without a rank are"
        " not compared. Bold: no method is settled better in this column, and at least one is"
        " settled worse; each column is judged by itself, and verdicts go by MAP@R (separated)."
        f" {sizes}{baselines}{test['queries']:g} queries, {test['skipped']:g} skipped (no"
        " other sample of their class)."
    )


def _units(comparison: Comparison) -> str:
    """Return how many searches or reproductions the intervals rest on.

    A single value has no interval.
    """
    counts = sorted(
        {
            (unit_of(record), len(record.units("separated", "map_at_r")))
            for record in comparison.records
        }
    )
    each = sorted(
        {
            len(record.tests) // record.searches
            for record in comparison.records
            if record.searches > 1
        }
    )
    nested = f" ({number_of(each[0], 'reproduction')} of each)" if len(each) == 1 else ""
    several = [
        number_of(count, unit) + nested * (unit == "search")
        for unit, count in reversed(counts)
        if count > 1
    ]
    return " or ".join(several) if several else "1 reproduction"


def _training_scores(record: StudyRecord) -> dict[str, list[float]]:
    """Return each metric's mean over folds, unit by unit.

    The mean is infinite where a fold has no finite value.
    """
    by_unit: dict[int, list[Mapping[str, float]]] = {}
    for entry in record.reproductions:
        if entry.training:
            unit = entry.search if record.searches > 1 else entry.reproduction
            by_unit.setdefault(unit, []).append(entry.training)
    metrics = dict.fromkeys(
        metric for folds in by_unit.values() for fold in folds for metric in fold
    )
    return {
        metric: [_mean([fold.get(metric) for fold in folds]) for folds in by_unit.values()]
        for metric in metrics
    }


def _mean(values: Sequence[float | None]) -> float:
    """Return the mean, infinite where a value is missing or not a finite number."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(finite) / len(finite) if len(finite) == len(values) else math.inf


def _training_cell(values: Sequence[float] | None, metric: str) -> str:
    if not values:
        return ""
    infinite = values.count(math.inf)
    return (
        f"infinite in {infinite} of {len(values)}"
        if infinite
        else score(t_interval(values), metric)
    )
