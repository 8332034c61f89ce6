"""`assay evaluate`: score embeddings, or a model, as a search."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import Imports, ProtocolName, Settings
from assay.cli.scores import tell, write_queries
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.data.dataset import Half
    from assay.data.seal import SealedTest
    from assay.evaluation import EmbeddedPart, EvaluatedModel
    from assay.metrics import Scores
    from assay.progress import Progress
    from assay.protocols import Protocol
    from assay.run.finished import FinishedRun

Parts = Callable[["Progress"], "Iterable[EmbeddedPart]"]
"""Gives the parts to score, telling how far it is."""


class Similarity(StrEnum):
    """How embeddings are compared."""

    cosine = "cosine"
    dot = "dot"
    euclidean = "euclidean"
    hamming = "hamming"


@dataclass(frozen=True)
class Question:
    """What is asked: of which file or run, on which data, which metrics under which similarity."""

    what: Path
    data: str | None
    metrics: tuple[str, ...]
    similarity: str | None
    test: bool


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(evaluate)


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
        typer.Option(
            metavar="Y.npy", help="Labels of the rows of F.npy, which is read as it is needed."
        ),
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="Comma-separated names of `assay list metrics`.")
    ] = "precision_at_1,r_precision,map_at_r",
    similarity: Annotated[
        Similarity | None,
        typer.Option(
            help=(
                "How embeddings are compared; if not given, a model as in its study, all else by"
                " cosine."
            )
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="The test half instead of validation folds; of a run, on the record of its study.",
        ),
    ] = False,
    protocol: ProtocolName = "quick",
    settings: Settings = None,
    imports: Imports = None,
    per_query: Annotated[
        Path | None,
        typer.Option(
            "--per-query",
            metavar="F.csv",
            help="Write the scores of each query, with its id, there.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="For programs; what is not finite is 'inf', '-inf' or 'nan'."),
    ] = False,
) -> None:
    """Score embeddings, or a model, as a search: each sample is looked up among all others.

    An .npz holds z (N, D) and y (N,); it may hold ids (N,), and boolean masks query and gallery
    (N,).

    With --data, the validation part of each fold is searched by itself; of a model, only the fold
    that it held out. Labels, ids and, with --test, roles are then those of the data, not of the
    file.

    Example: assay evaluate clip.npz --data folder:birds --metrics map_at_r,recall_at_k
    """
    from assay.methods import import_parts
    from assay.protocols import customise, protocols

    import_parts(imports or ())
    question = Question(what, data, _names(metrics), str(similarity) if similarity else None, test)
    _check(question, labels, per_query)
    if data is None and settings:
        raise BadInput(
            "--set changes how a data set is split, and there is none; give --data, or leave it out"
        )
    chosen = customise(protocols[protocol], settings or ())
    if what.suffix.lower() in (".npz", ".npy"):
        results = _evaluate_file(question, labels, chosen)
    else:
        results = _evaluate_model(question, chosen, settings or ())
    if per_query is not None:
        write_queries(per_query, results, _of_queries(question.metrics))
    tell(question, results, json)


def _names(metrics: str) -> tuple[str, ...]:
    """The metrics asked for, each known."""
    from assay.metrics.metric import choose_metrics

    names = tuple(name.strip() for name in metrics.split(",") if name.strip())
    try:
        choose_metrics(names)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"--metrics {metrics!r}: {error}") from None
    return names


def _of_queries(metrics: Sequence[str]) -> list[str]:
    """Those of the metrics that each query has a value of."""
    from assay.metrics.metric import choose_metrics

    return [one.label for one in choose_metrics(metrics) if one.metric.per_query]


def _check(question: Question, labels: Path | None, per_query: Path | None) -> None:
    """Refuse what does not go together before anything is read."""
    what, ending = question.what, question.what.suffix.lower()
    if not what.exists() and (ending in (".npz", ".npy") or "/" in str(what)):
        raise BadInput(f"there is no {what}")
    if labels is not None and (ending != ".npy" or question.data):
        reason = (
            "labels come from --data"
            if question.data
            else f"it goes with an .npy, and {what} is none"
        )
        raise BadInput(f"--labels {labels}: {reason}; leave it out")
    if ending == ".npy" and labels is None and not question.data:
        raise BadInput(
            f"{what} holds no labels: give --labels Y.npy, or --data if its rows are the samples of"
            " a data set"
        )
    if question.test and not question.data:
        raise BadInput(f"--test needs --data, which says what of {what} is the test half")
    if per_query is not None and not per_query.parent.is_dir():
        raise BadInput(f"--per-query {per_query}: there is no folder {per_query.parent}")
    if per_query is not None and not _of_queries(question.metrics):
        only = "is a metric" if len(question.metrics) == 1 else "are metrics"
        raise BadInput(
            f"--per-query {per_query}: {', '.join(question.metrics)} {only} of the whole; add"
            " map_at_r, for example"
        )


def _evaluate_file(
    question: Question, labels: Path | None, protocol: "Protocol"
) -> dict[str, "Scores"]:
    """Scores of a file: as it is, or by the parts of a data set."""
    from assay.data import load
    from assay.evaluation.files import read_embeddings

    embeddings = read_embeddings(question.what, labels, needs_labels=question.data is None)
    if question.data is None:
        part = embeddings.whole()
        return _score(question, lambda progress: [part])
    parts = list(
        embeddings.parts(
            load(question.data), question.data, protocol, "test" if question.test else "fold"
        )
    )
    results = _score(question, lambda progress: parts)
    if question.test:
        _note("these embeddings belong to no study, so this look at the test half is not recorded")
    return results


def _evaluate_model(
    question: Question, protocol: "Protocol", settings: Sequence[str]
) -> dict[str, "Scores"]:
    """Scores of a model on what it was not trained on."""
    from assay.data import load, splits
    from assay.data.seal import Reason
    from assay.evaluation import EvaluatedModel

    learner = EvaluatedModel.of(question.what)
    if question.data is None:
        raise BadInput(f"{question.what} is a model: give --data, the samples that it is to embed")
    dataset = load(question.data)
    trainval, sealed = splits.of(dataset, protocol)
    learner.check_input(trainval)
    own = learner.was_trained_on(trainval)
    if own:
        _check_folds(learner, settings)
    if own and question.test and (behind := learner.recorded_run()):
        return _look(question, behind, learner, sealed)
    if question.test:
        half = sealed.look(Reason.RECORDED_LOOK if own else Reason.FOREIGN_LOOK)
        results = _score(
            question, lambda progress: [_test_part(learner, half, progress)], learner.similarity
        )
        _note(
            _keep_look(question, half.fingerprint, results["test"])
            if own
            else _NO_STUDY.format(question.data)
        )
    else:
        half = trainval
        results = _score(
            question,
            lambda progress: learner.validation(trainval, protocol.folds, progress),
            learner.similarity,
        )
        if not own:
            _note((_UNTRAINED if learner.trainval is None else _OTHER_HALF).format(question.data))
    if not own:
        _note_seen(learner, half, question.data)
    return results


_NO_STUDY = "no study of this model is on {}, so this look at the test half is not recorded"
_UNTRAINED = "the model was not trained on {}, so all folds are scored"
_OTHER_HALF = (
    "the trainval half of {} is not the very one that the model was trained on, so all folds are"
    " scored"
)


def _test_part(learner: "EvaluatedModel", half: "Half", progress: "Progress") -> "EmbeddedPart":
    """The test half, embedded."""
    import numpy as np

    return learner.part("test", half, np.arange(len(half.y)), progress)


def _note_seen(learner: "EvaluatedModel", half: "Half", data: str) -> None:
    """Say what of the half that was scored the model may have been trained on although its
    fingerprint is another.
    """
    seen = learner.classes_seen(half)
    if seen is None:
        _note(f"whether the model has seen some of {data} cannot be told")
    elif seen == 1:
        _note(
            f"1 class of {data} has the same name as a class that the model was trained on; "
            "its scores are not those of an unseen class"
        )
    elif seen:
        _note(
            f"{seen} classes of {data} have the same names as classes that the model was trained"
            " on; their scores are not those of unseen classes"
        )


def _keep_look(question: Question, fingerprint: str, scores: "Scores") -> str:
    """Record a look at test by way of a model that belongs to no study in its own folder; what to
    say of it.
    """
    from assay.evaluation import record_beside_model

    looks = question.what / "looks.jsonl"
    count = record_beside_model(question.what, fingerprint, scores)
    return (
        f"recorded as look {count} at test in {looks}; a model chosen by such looks is not fairly"
        " tested any more"
    )


def _check_folds(learner: "EvaluatedModel", settings: Sequence[str]) -> None:
    """The model's own folds say what it held out."""
    asked = [setting for setting in settings if setting.partition("=")[0].strip() == "folds"]
    if asked and int(asked[-1].partition("=")[2]) != learner.folds:
        raise BadInput(
            f"--set {asked[-1]}: the model held out a fold of {learner.folds}; leave the"
            " setting out"
        )


def _look(
    question: Question, run: "FinishedRun", learner: "EvaluatedModel", sealed: "SealedTest"
) -> dict[str, "Scores"]:
    """Scores of the test half, recorded before anything of them is told."""
    from assay.evaluation import Look
    from assay.records.ledger import SealError

    with run.store.driving():
        try:
            look = Look.open(run, sealed)
        except SealError as error:
            raise BadInput(
                f"{error}; run `assay bench` to its end first, or leave out --test"
            ) from None
        results = _score(
            question,
            lambda progress: [_test_part(learner, look.half, progress)],
            learner.similarity,
        )
        for record in look.record(results["test"]):
            _note(
                f"recorded as look {len(record.looks)} at test in the study of {record.method}"
                f" ({record.key[:12]})"
            )
    return results


def _score(question: Question, parts: Parts, usual: str = "cosine") -> dict[str, "Scores"]:
    """The scores of each part by its name, under the usual similarity unless another is asked for;
    refusals name the file.
    """
    from assay.cli.progress import follow
    from assay.metrics import evaluate as score

    results: dict[str, Scores] = {}
    with follow() as progress:
        for part in parts(progress):
            where = "" if part.name == "all" else f", {part.name}"
            try:
                results[part.name] = score(
                    part.z,
                    part.y,
                    question.metrics,
                    queries=part.queries,
                    gallery=part.gallery,
                    similarity=question.similarity or usual,
                    ids=part.ids,
                    progress=_named(progress, part.name),
                )
            except ValueError as error:
                raise BadInput(f"{question.what}{where}: {error}") from None
    return results


def _named(progress: "Progress", part: str) -> "Progress":
    return lambda stage, done, total: progress(
        stage if part == "all" else f"{part}, {stage}", done, total
    )


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)
