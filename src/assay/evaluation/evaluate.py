"""`evaluate_model` and `evaluate_file`: from a model, or a file of embeddings, to scores."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.data import Dataset, load, splits
from assay.data.dataset import Half, Labels
from assay.data.seal import Reason
from assay.data.splits import TrainVal
from assay.embedder import Embedder
from assay.errors import BadInput
from assay.evaluation.embeddings import read_embeddings
from assay.evaluation.evaluated_model import EmbeddedPart, EvaluatedModel, validation_rows
from assay.evaluation.look import (
    LookedAt,
    Looker,
    OpenLook,
    looking,
    open_test_half,
    receipts_of_run,
)
from assay.files import write_atomically
from assay.hashing import without_infinities
from assay.metric_names import DEFAULT_METRICS
from assay.metrics import Scores, evaluate
from assay.metrics.metric import choose_metrics
from assay.progress import Progress, silent
from assay.protocols import Protocol, protocols, published_name
from assay.records.halves import prints_of, prints_of_rows


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model or of a file of embeddings, by the parts that were searched.

    Args:
        what: the model or file.
        data: the data set; None: the labels are the file's own.
        test: whether the test half was searched.
        parts: scores by part: `all`, `fold 0`, `fold 1`, ..., or `test`.
        notes: sentences that a reader of the scores should know, such as where a look at the test
            half was recorded.
    """

    what: str
    data: str | None
    test: bool
    parts: dict[str, Scores]
    notes: tuple[str, ...] = ()

    @property
    def means(self) -> dict[str, float]:
        """Mean of each metric over the parts."""
        every = list(self.parts.values())
        return {name: sum(scores[name] for scores in every) / len(every) for name in every[0]}

    def record(self, look: OpenLook) -> list[str]:
        """Record the look that gave the scores, and return sentences that say so."""
        every = list(self.parts.values())
        queries = sum(scores.queries for scores in every)
        skipped = sum(scores.skipped for scores in every)
        return look.record(self.means, every[0].similarity, queries, skipped)

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values; numbers that are not finite become words."""
        asked = {"what": self.what, "data": self.data, "test": self.test}
        parts = {name: scores.to_dict() for name, scores in self.parts.items()}
        plain: dict[str, Any] = without_infinities({**asked, "parts": parts, "mean": self.means})
        return plain

    def write_queries(self, path: str | Path) -> None:
        """Write a CSV with a line for each query: part, id, label, and each metric of a query.

        A metric is left empty where the query has nothing to find.
        """
        names = metrics_of_queries([*self.means])
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["part", "id", "label", *names])
        for part, scores in self.parts.items():
            for id_, label, *values in scores.queries_with(names):
                writer.writerow(
                    [part, id_, label, *("" if value != value else value for value in values)]
                )
        write_atomically(Path(path), text.getvalue())


def metrics_of_queries(metrics: str | Sequence[str]) -> list[str]:
    """Return the metrics that have a value for each query, not only for the whole."""
    return [one.label for one in choose_metrics(metrics) if one.metric.per_query]


@dataclass(frozen=True)
class _Scoring:
    """How parts are scored; errors begin with `what`."""

    what: str
    metrics: str | Sequence[str]
    similarity: str
    progress: Progress

    def score(self, parts: Iterable[EmbeddedPart]) -> dict[str, Scores]:
        """Return the scores of each part by its name."""
        return {part.name: self._score(part) for part in parts}

    def _score(self, part: EmbeddedPart) -> Scores:
        where = "" if part.name == "all" else f", {part.name}"
        if metrics_of_queries(self.metrics):
            _check_classes(part, f"{self.what}{where}")

        def progress(stage: str, done: int, total: int) -> None:
            self.progress(stage if part.name == "all" else f"{part.name}, {stage}", done, total)

        try:
            return evaluate(
                part.z,
                part.y,
                self.metrics,
                queries=part.queries,
                gallery=part.gallery,
                similarity=self.similarity,
                ids=part.ids,
                progress=progress,
            )
        except ValueError as error:
            raise BadInput(f"{self.what}{where}: {error}") from None


def _check_classes(part: EmbeddedPart, called: str) -> None:
    """Raise `BadInput` where every sample that can be found is of one class, so that no search
    could go wrong.
    """
    y = np.asarray(part.y)
    searched = y if part.gallery is None else y[part.gallery]
    if len(searched) > 1 and (searched == searched[0]).all():
        of = "samples" if part.gallery is None else "samples of the gallery"
        raise BadInput(
            f"{called}: all {len(searched)} {of} have the label {searched[0]!s}, so every search"
            " is right and nothing is measured; add samples of other classes"
        )


# --- a file ---------------------------------------------------------------------------------------


def evaluate_file(
    path: str | Path,
    data: str | Dataset | None = None,
    *,
    labels: str | Path | None = None,
    test: bool = False,
    protocol: str | Protocol = "quick",
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    similarity: str | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Score a file of embeddings: all rows with the file's labels, or by the parts of a data set.

    Args:
        path: an .npz with z (N, D) and y (N,), perhaps ids (N,) and masks query and gallery (N,);
            or an .npy with `labels` or `data`.
        data: the data set whose sample i is row i; labels, ids and parts are then those of the
            data. A name or kind:path of `assay list datasets`, or a `Dataset`.
        labels: an .npy with the labels of the rows of an .npy.
        test: search the test half of `data` instead of each validation fold.
        protocol: a name of `assay list protocols`, or a `Protocol`; it splits `data`.
        metrics: names of `assay list metrics`.
        similarity: cosine, dot, euclidean or hamming (of bits z > 0); None: cosine.
        progress: called with the stage, the steps done and their total.
    """
    file = Path(path)
    labels_file = None if labels is None else Path(labels)
    embeddings = read_embeddings(file, labels_file, needs_labels=data is None)
    scoring = _Scoring(str(path), metrics, similarity or "cosine", progress)
    name, parts = None, iter([embeddings.whole()] if data is None else [])
    if data is None:
        searched = np.arange(len(embeddings))
        at = LookedAt(str(path), prints_of_rows(embeddings.z))
    else:
        dataset, name = _open_data(data, progress)
        chosen = protocols[protocol] if isinstance(protocol, str) else protocol
        embeddings.check_rows(dataset, name)
        trainval, sealed = splits.of(dataset, chosen)
        half = sealed.hand_out(Reason.FOREIGN_LOOK) if test else trainval
        rows = _rows(half) if test else validation_rows(trainval, chosen.folds)
        searched = half.places[np.concatenate([*rows.values()])]
        parts, at = embeddings.parts(half, rows), _looked_at(dataset, trainval, half, rows)
    seen = embeddings.seen_in_words(searched)
    with looking(Looker(f"assay evaluate {path}"), at) as look:
        found = Evaluation(str(path), name, test, scoring.score(parts))
        notes = found.record(look)
    zeros = embeddings.zeros_in_words(searched, scoring.similarity)
    return replace(found, notes=(*notes, *seen, *zeros))


# --- a model --------------------------------------------------------------------------------------


def evaluate_model(
    model: str | Path | Embedder,
    data: str | Dataset,
    *,
    test: bool = False,
    protocol: str | Protocol = "quick",
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    similarity: str | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Score a model as a search on samples that it was not trained on.

    Validation folds are searched each by itself: of the data that the model was trained on, the
    fold that it held out; of other data, all folds. With `test`, the test half is searched. Every
    look at a known test half is recorded, with or without `test`: see `assay.evaluation.look`.

    Args:
        model: a model folder, a finished run of a store, a pretrained trunk by its name (`lite0`,
            any name of timm's), or a model that `assay.load` has loaded.
        data: a name or kind:path of `assay list datasets`, or a `Dataset`.
        test: search the test half instead of validation folds.
        protocol: a name of `assay list protocols`, or a `Protocol`; it splits the data.
        metrics: names of `assay list metrics`.
        similarity: cosine, dot, euclidean or hamming (of bits z > 0); None: the similarity that the
            model was trained for.
        progress: called with the stage, the steps done and their total.

    >>> import assay
    >>> found = assay.evaluate_model("lite0", "glyphs", metrics=["map_at_r"])  # doctest: +SKIP
    >>> found.means  # doctest: +SKIP
    {'map_at_r': 0.37...}
    """
    evaluated = EvaluatedModel.of(model)
    dataset, name = _open_data(data, progress)
    chosen = protocols[protocol] if isinstance(protocol, str) else protocol
    trainval, sealed = splits.of(dataset, chosen)
    evaluated.check_input(trainval)
    evaluated.check_unseen(trainval, sealed, name, test)
    own = evaluated.was_trained_on(trainval)
    published = protocols.get(published_name(chosen.name))
    if own and chosen.folds not in (evaluated.folds, published and published.folds):
        raise BadInput(
            f"folds={chosen.folds}: the model held out one fold of {evaluated.folds}; leave out the"
            " setting of folds"
        )
    what = evaluated.called if isinstance(model, Embedder) else str(model)
    scoring = _Scoring(what, metrics, similarity or evaluated.similarity, progress)
    run = evaluated.recorded_run if own and test else None
    if run and run.run.trainval == trainval.fingerprint:
        half = open_test_half(run, sealed)
    elif test:
        if run:
            receipts_of_run(run)  # of features, so they do not open the seal on the images
        half = sealed.hand_out(Reason.RECORDED_LOOK if own else Reason.FOREIGN_LOOK)
    else:
        half = trainval
    rows = _rows(half) if test else evaluated.validation(trainval, chosen.folds)
    with looking(evaluated.looker(half), _looked_at(dataset, trainval, half, rows)) as look:
        found = Evaluation(what, name, test, scoring.score(evaluated.parts(half, rows, progress)))
        notes = found.record(look)
    if not own:
        if not test:
            notes += [(_OTHER_HALF if evaluated.trainval else _UNTRAINED).format(name)]
        notes += _seen(evaluated, half, name)
    return replace(found, notes=tuple(notes))


_UNTRAINED = "the model was not trained on {}, so all folds are scored"
_OTHER_HALF = (
    "the trainval half of {} is not exactly the half that the model was trained on, so all folds"
    " are scored"
)


def _open_data(data: str | Dataset, progress: Progress) -> tuple[Dataset, str]:
    """Return the data set, and its name for messages."""
    return (data, data.name) if isinstance(data, Dataset) else (load(data, progress), data)


def _rows(half: Half) -> dict[str, Labels]:
    """Return all rows of the test half by its name."""
    return {"test": np.arange(len(half.y))}


def _looked_at(
    dataset: Dataset, trainval: TrainVal, half: Half, rows: Mapping[str, Labels]
) -> LookedAt:
    """Return what is looked at where these rows of a half are searched."""
    contents = half.contents(np.concatenate([*rows.values()]))
    test, tested = (half.fingerprint, len(half.y)) if half.is_test else ("", 0)
    return LookedAt(dataset.name, prints_of(contents), trainval.fingerprint, test, tested)


def _seen(evaluated: EvaluatedModel, half: Half, data: str) -> list[str]:
    """Say which classes of other data the model may have been trained on."""
    seen = evaluated.classes_seen(half)
    if seen is None:
        return [f"it is not known whether the model was trained on some of {data}"]
    if seen == 0:
        return []
    if seen == 1:
        return [
            f"1 class of {data} has the same name as a class that the model was trained on; its"
            " scores are not those of an unseen class"
        ]
    return [
        f"{seen} classes of {data} have the same names as classes that the model was trained on;"
        " their scores are not those of unseen classes"
    ]
