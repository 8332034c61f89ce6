"""The tables of scores: with intervals, with ranks, over folds, and on training embeddings."""

import math
from collections.abc import Sequence

from assay.stats import deviation, spread, t_interval
from assay.study import StudyRecord
from assay.tables.columns import direction, heading, in_percent
from assay.tables.comparison import SETTINGS, Comparison, Setting
from assay.tables.form import Raw, Table, points, raw_interval, score

Cell = tuple[Setting, str]
"""A setting and a metric: what a column of scores is about."""


def scores(comparison: Comparison) -> Table:
    """Every metric with intervals, concatenated and separated."""
    cells = _cells(comparison, comparison.metrics)
    best = {
        (comparison.methods.index(comparison.best(*cell)), column + 1) for column, cell in enumerate(cells) if direction(cell[1])
    }
    dim = int(comparison.announced["protocol"]["resolved"]["dim"])
    folds = int(comparison.announced["budget"]["folds"])
    headings = {"concatenated": f"Concatenated ({folds} x {dim})", "separated": f"Separated ({dim})"}
    return Table(
        name="scores",
        title="Scores on the test half",
        note=_scores_note(comparison),
        groups=[("", 1), *((headings[setting], len(comparison.metrics)) for setting in SETTINGS)],
        columns=["method", *(heading(metric) for _, metric in cells)],
        rows=[[m, *(score(comparison.interval(m, *cell), cell[1]) for cell in cells)] for m in comparison.methods],
        best=frozenset(best),
        raw=[
            {"method": method, "setting": setting, "metric": metric, **raw_interval(comparison.interval(method, setting, metric))}
            for method in comparison.methods
            for setting, metric in cells
        ],
    )


def ranking(comparison: Comparison) -> Table:
    """Mean rank over reproductions, 1 is best, by every metric of which more or less is better."""
    metrics = [metric for metric in comparison.metrics if direction(metric)]
    cells = _cells(comparison, metrics)
    by_cell = [comparison.ranks(*cell) for cell in cells]
    raw = [
        {"method": method, "setting": setting, "metric": metric, "mean_rank": found[method]}
        for method in comparison.methods
        for (setting, metric), found in zip(cells, by_cell, strict=True)
    ]
    return Table(
        name="ranks",
        title="Mean ranks",
        note="Rank of each method among all, averaged over reproductions; 1 is best.",
        groups=[("", 1), *((setting.capitalize(), len(metrics)) for setting in SETTINGS)],
        columns=["method", *(heading(metric) for _, metric in cells)],
        rows=[[method, *(f"{found[method]:.2f}" for found in by_cell)] for method in comparison.methods],
        raw=raw,
    )


def over_folds(comparison: Comparison) -> Table | None:
    """How far single models lie apart over folds and over reproductions; None where no study kept the scores of its folds."""
    metrics = [metric for metric in comparison.metrics if in_percent(metric)]
    records = [record for record in comparison.records if any("folds" in test for test in record.tests)]
    if not records:
        return None
    raw = [
        {
            "method": record.method,
            "metric": metric,
            "over_folds": spread(_fold_scores(record, metric)),
            "over_reproductions": _over_reproductions(record, metric),
        }
        for record in records
        for metric in metrics
    ]
    cells = {(row["method"], row["metric"]): row for row in raw}
    kinds = ("over_folds", "over_reproductions")
    return Table(
        name="spread",
        title="Spread over folds, and over reproductions",
        note=(
            "Standard deviations of test scores of single models, in points. Over folds: within a reproduction, pooled; folds "
            "train on different classes, so this is how much one model's score depends on what it was trained on (and on its "
            "seed). Over reproductions: of the mean of the folds, from which the intervals come; other seeds, same classes."
        ),
        groups=[("", 1), ("Over folds", len(metrics)), ("Over reproductions", len(metrics))],
        columns=["method", *(heading(metric) for _ in kinds for metric in metrics)],
        rows=[
            [record.method, *(points(_number(cells[record.method, metric][kind])) for kind in kinds for metric in metrics)]
            for record in records
        ],
        raw=raw,
    )


def training(comparison: Comparison) -> Table | None:
    """Metrics of the embeddings of training classes; None where the protocol asked for none."""
    found = {record.method: _training_scores(record) for record in comparison.records}
    metrics = list(dict.fromkeys(metric for scores in found.values() for metric in scores))
    if not metrics:
        return None
    return Table(
        name="training",
        title="On training embeddings",
        note=(
            "Of the training classes of each fold, by the chosen checkpoint; mean over folds, with 95% t-intervals over "
            "reproductions. They describe the embedding and are no measure of how well unseen classes are told apart."
        ),
        columns=["method", *map(heading, metrics)],
        rows=[[name, *(_training_cell(values.get(metric), metric) for metric in metrics)] for name, values in found.items()],
        raw=[
            {"method": name, "metric": metric, **_raw_training(values)}
            for name, by_metric in found.items()
            for metric, values in by_metric.items()
        ],
    )


def _cells(comparison: Comparison, metrics: Sequence[str]) -> list[Cell]:
    return [(setting, metric) for setting in SETTINGS for metric in metrics]


def _scores_note(comparison: Comparison) -> str:
    test = comparison.records[0].tests[0]["separated"]
    counts = sorted({len(record.tests) for record in comparison.records})
    repeated = " or ".join(str(count) for count in counts)
    plain = [heading(metric) for metric in comparison.metrics if not in_percent(metric)]
    unit = f"in percent but for {', '.join(plain)}" if plain else "in percent"
    searched = "" if comparison.given_by else "; the selected trial is not among them"
    return (
        f"Mean and 95% t-interval over {repeated} reproduction{'s' * (counts != [1])}, {unit}{searched}. "
        f"{test['queries']:g} queries, {test['skipped']:g} skipped (no other sample of their class)."
    )


def _fold_scores(record: StudyRecord, metric: str) -> list[list[float]]:
    """The single models' scores, reproduction by reproduction."""
    return [[float(fold[metric]) for fold in test["folds"] if metric in fold] for test in record.tests if "folds" in test]


def _over_reproductions(record: StudyRecord, metric: str) -> float | None:
    values = record.scores("separated", metric)
    return deviation(values) if len(values) > 1 else None


def _training_scores(record: StudyRecord) -> dict[str, list[float]]:
    """Each metric's mean over folds, reproduction by reproduction; infinite where one fold has no finite value."""
    by_reproduction: dict[int, list[dict[str, float | None]]] = {}
    for entry in record.reproductions:
        if entry.get("training"):
            by_reproduction.setdefault(entry["reproduction"], []).append(entry["training"])
    metrics = dict.fromkeys(metric for folds in by_reproduction.values() for fold in folds for metric in fold)
    return {metric: [_mean([fold.get(metric) for fold in folds]) for folds in by_reproduction.values()] for metric in metrics}


def _mean(values: Sequence[float | None]) -> float:
    finite = [value for value in values if value is not None]
    return math.fsum(finite) / len(finite) if len(finite) == len(values) else math.inf


def _training_cell(values: Sequence[float] | None, metric: str) -> str:
    if not values:
        return ""
    infinite = sum(math.isinf(value) for value in values)
    return f"infinite in {infinite} of {len(values)}" if infinite else score(t_interval(values), metric)


def _raw_training(values: Sequence[float]) -> Raw:
    if any(math.isinf(value) for value in values):
        return {"mean": None, "low": None, "high": None, "reproductions": len(values)}
    return raw_interval(t_interval(values))


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
