"""`assay evaluate`: score embeddings, or a model, as a search."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import (
    ForceOption,
    ImportsOption,
    ProtocolOption,
    SettingsOption,
    SkipBrokenOption,
    check_free,
    choose_protocol,
    data_or_name,
    split_names,
)
from assay.cli.show import note, print_json, print_table
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.evaluation import Evaluation
    from assay.metrics import Scores

FILES = ".npz", ".npy"
"""Endings of files of embeddings; anything else is a model."""


class SimilarityName(StrEnum):
    """How embeddings are compared."""

    cosine = "cosine"
    dot = "dot"
    euclidean = "euclidean"
    hamming = "hamming"


def evaluate(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="WHAT",
            help=(
                "F.npz with z, y; F.npy with --labels or --data; a model folder, a trunk by name"
                " (lite0), or a run."
            ),
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help=(
                "A name or kind:path, see `assay list datasets`: row i of the file is its sample i."
            )
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="Y.npy", help="Labels of the rows of F.npy, which is memory-mapped."),
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="Comma-separated names of `assay list metrics`.")
    ] = "precision_at_1,r_precision,map_at_r",
    similarity: Annotated[
        SimilarityName | None,
        typer.Option(
            help=(
                "How embeddings are compared (hamming: as bits z > 0); by default a model as in its"
                " study, all else by cosine."
            )
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="The test half instead of validation folds; a run's study records the look.",
        ),
    ] = False,
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    imports: ImportsOption = None,
    per_query: Annotated[
        Path | None,
        typer.Option("--per-query", metavar="F.csv", help="Write the scores of each query there."),
    ] = None,
    skip_broken: SkipBrokenOption = False,
    force: ForceOption = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="For programs; 'inf', '-inf', 'nan' where not finite."),
    ] = False,
) -> None:
    """Score embeddings, or a model, as a search: each sample is looked up among all others.

    An .npz holds z (N, D) and y (N,); it may hold ids (N,), and boolean masks query and gallery
    (N,).

    With --data, the validation part of each fold is searched by itself; of a model, only the fold
    that it held out. Labels, ids and, with --test, roles are then those of the data, not of the
    file.

    Example: assay evaluate clip.npz --data folder:birds --metrics map_at_r
    """
    from assay.cli.progress import follow
    from assay.evaluation import EvaluatedModel, evaluate_file, evaluate_model

    chosen = choose_protocol(protocol, settings, imports)
    names = _metric_names(metrics)
    _check(what, data, labels, test, per_query, names)
    if data is None and settings:
        raise BadInput(
            "--set changes how a data set is split, and no data set is given; give --data, or leave"
            " out --set"
        )
    check_free("--per-query", per_query, force, what, labels)
    compared = None if similarity is None else similarity.value
    with follow() as progress:
        given = None if data is None else data_or_name(data, skip_broken, progress)
        if what.suffix.lower() in FILES:
            found = evaluate_file(
                what,
                given,
                labels=labels,
                test=test,
                protocol=chosen,
                metrics=names,
                similarity=compared,
                progress=progress,
            )
        else:
            if given is None:
                EvaluatedModel.of(what)  # raises where there is no such model
                raise BadInput(f"{what} is a model: give --data, the samples that it is to embed")
            found = evaluate_model(
                what,
                given,
                test=test,
                protocol=chosen,
                metrics=names,
                similarity=compared,
                progress=progress,
            )
    for text in found.notes:
        note(text)
    if per_query is not None:
        found.write_queries(per_query)
    if json:
        print_json(found.to_dict())
    else:
        _print(found)


def _metric_names(metrics: str) -> tuple[str, ...]:
    """Return the metrics of the option; raise `BadInput` for an unknown metric."""
    from assay.metrics.metric import choose_metrics

    names = tuple(split_names(metrics))
    try:
        choose_metrics(names)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"--metrics {metrics!r}: {error}") from None
    return names


def _check(
    what: Path,
    data: str | None,
    labels: Path | None,
    test: bool,
    per_query: Path | None,
    metrics: Sequence[str],
) -> None:
    """Raise `BadInput` for options that do not go together, before anything is read."""
    from assay.evaluation import metrics_of_queries

    ending = what.suffix.lower()
    if not what.exists() and (ending in FILES or "/" in str(what)):
        raise BadInput(f"there is no {what}")
    if labels is not None and (ending != ".npy" or data):
        reason = "labels come from --data" if data else f"it goes with an .npy, which {what} is not"
        raise BadInput(f"--labels {labels}: {reason}; leave it out")
    if ending == ".npy" and labels is None and not data:
        raise BadInput(
            f"{what} holds no labels: give --labels Y.npy, or --data if its rows are the samples of"
            " a data set"
        )
    if test and not data:
        raise BadInput(f"--test needs --data, which says what of {what} is the test half")
    if per_query is not None and not per_query.parent.is_dir():
        raise BadInput(f"--per-query {per_query}: there is no folder {per_query.parent}")
    if per_query is not None and not metrics_of_queries(metrics):
        are = "is a metric" if len(metrics) == 1 else "are metrics"
        raise BadInput(
            f"--per-query {per_query}: {', '.join(metrics)} {are} of the whole; add map_at_r, for"
            " example"
        )


def _print(found: "Evaluation") -> None:
    """Print a column for each part; of one part the intervals."""
    title = found.what + (f" on {found.data}" if found.data else "")
    if len(found.parts) == 1:
        ((name, scores),) = found.parts.items()
        columns, rows = ["metric", "mean", "over queries", "over classes"], _rows(scores)
        title += f"{f': {name}' * (name != 'all')}, 95% intervals"
    else:
        columns = ["metric", *found.parts, "mean"]
        rows = [
            [name, *(f"{part[name]:.4f}" for part in found.parts.values()), f"{mean:.4f}"]
            for name, mean in found.means.items()
        ]
    print_table(columns, rows, title=title, right=range(1, len(columns)))
    every = list(found.parts.values())
    queries, classes, skipped = (
        sum(getattr(scores, name) for scores in every) for name in ("queries", "classes", "skipped")
    )
    nothing = f", {skipped} skipped (nothing to find)" if skipped else ""
    print(f"{queries} queries of {classes} classes{nothing}; {every[0].similarity}")


def _rows(scores: "Scores") -> list[list[str]]:
    """Return each metric with its intervals; metrics of the whole, or of one class, have none."""

    def interval(ends: Sequence[float | None]) -> str:
        return "-" if ends[0] is None else f"[{ends[0]:.4f}, {ends[1]:.4f}]"

    overs, none = ("over_queries", "over_classes"), (None, None)
    entries = scores.to_dict()["metrics"].items()
    return [
        [name, f"{entry['mean']:.4f}", *(interval(entry.get(over, none)) for over in overs)]
        for name, entry in entries
    ]
