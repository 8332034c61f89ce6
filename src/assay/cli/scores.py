"""How scores are told: a table for people, JSON for programs, a line per query for spreadsheets."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.show import print_json, print_table

if TYPE_CHECKING:
    from assay.cli.evaluate import Question
    from assay.metrics import Scores


def _means(results: Mapping[str, "Scores"]) -> dict[str, float]:
    """Of each metric over the parts."""
    every = list(results.values())
    return {name: sum(scores[name] for scores in every) / len(every) for name in every[0]}


def tell(question: "Question", results: dict[str, "Scores"], json: bool) -> None:
    """Print the table, or for programs: {"what", "data", "test", "parts": {name: Scores.to_dict()},
    "mean": {metric: value}}.
    """
    from assay.hashing import without_infinities

    if json:
        parts = {name: scores.to_dict() for name, scores in results.items()}
        asked = {"what": str(question.what), "data": question.data, "test": question.test}
        print_json(without_infinities({**asked, "parts": parts, "mean": _means(results)}))
        return
    on = f" on {question.data}" if question.data else ""
    if len(results) == 1:
        ((name, scores),) = results.items()
        columns, rows = ["metric", "mean", "over queries", "over classes"], _rows(scores)
        title = f"{question.what}{on}{f': {name}' * (name != 'all')}, 95% intervals"
    else:
        means = _means(results)
        columns = ["metric", *results, "mean"]
        rows = [
            [name, *(f"{part[name]:.4f}" for part in results.values()), f"{mean:.4f}"]
            for name, mean in means.items()
        ]
        title = f"{question.what}{on}"
    print_table(columns, rows, title=title, right=range(1, len(columns)))
    print(_counts(list(results.values())))


def _rows(scores: "Scores") -> list[list[str]]:
    """Each metric with its intervals; one of the whole, or of a single class, has none."""

    def interval(ends: Sequence[float | None]) -> str:
        return "-" if ends[0] is None else f"[{ends[0]:.4f}, {ends[1]:.4f}]"

    overs, none = ("over_queries", "over_classes"), (None, None)
    entries = scores.to_dict()["metrics"].items()
    return [
        [name, f"{entry['mean']:.4f}", *(interval(entry.get(over, none)) for over in overs)]
        for name, entry in entries
    ]


def _counts(every: list["Scores"]) -> str:
    queries, classes, skipped = (
        sum(getattr(scores, name) for scores in every) for name in ("queries", "classes", "skipped")
    )
    said = f", {skipped} skipped (nothing to find)" if skipped else ""
    return f"{queries} queries of {classes} classes{said}; {every[0].similarity}"


def write_queries(path: Path, results: dict[str, "Scores"], names: Sequence[str]) -> None:
    """A line per query: part, id, label, and each metric of single queries, empty where there is
    nothing to find.
    """
    from assay.files import write_atomically

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["part", "id", "label", *names])
    for part, scores in results.items():
        values = [scores.per_query(name).tolist() for name in names]
        for id_, label, *found in zip(scores.ids, scores.labels, *values, strict=True):
            writer.writerow(
                [part, id_, label, *("" if value != value else value for value in found)]
            )
    write_atomically(path, text.getvalue())
