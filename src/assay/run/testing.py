"""The opened test half: tasks that embed it with finished runs, and the scores of the vectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import pack_arrays
from assay.data.dataset import Half, Labels, Marks, references_of
from assay.data.packs import View
from assay.data.seal import read_test
from assay.devices import torch_threads
from assay.embedding import embed_samples, normalise_for
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.methods import import_parts
from assay.metric_names import DEFAULT_METRICS
from assay.metrics import Scores, evaluate
from assay.metrics.metric import choose_metrics
from assay.model import Model, read_model
from assay.npz import read_npy
from assay.protocols import Protocol, Similarity
from assay.records.halves import pack_contents
from assay.records.labels import labels_fingerprint, read_test_labels
from assay.records.ledger import Receipt
from assay.records.lines import ReproductionScores
from assay.records.run import WEIGHTS
from assay.records.store import Store, place_file
from assay.run.closed_form import single_vectors
from assay.train import mean_scores, with_counts
from assay.workers import Needs

Sums = NDArray[np.float64]


@dataclass(frozen=True)
class HalfLabels:
    """The labels of a half and, if the data give them, the roles of its samples.

    Args:
        y: label of each sample.
        query: marks of the samples that are looked up; None: all are.
        gallery: marks of the samples that they are looked up in; None: all are.
    """

    y: Labels
    query: Marks | None = None
    gallery: Marks | None = None

    @classmethod
    def of(cls, half: View | Half) -> "HalfLabels":
        """Return labels and roles of a half."""
        return cls(half.y, half.query, half.gallery)

    def marks(self) -> dict[str, Labels | Marks]:
        """Return the arrays that there are, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of labels and roles."""
        return labels_fingerprint(self.marks())

    def evaluate(
        self, z: Tensor, metrics: Sequence[str] = DEFAULT_METRICS, similarity: Similarity = "cosine"
    ) -> Scores:
        """Return the scores of embeddings of the samples, looked up as their roles say."""
        rows = [
            None if mark is None else np.flatnonzero(mark) for mark in (self.query, self.gallery)
        ]
        return evaluate(z, self.y, metrics, queries=rows[0], gallery=rows[1], similarity=similarity)

    def score(
        self, z: Tensor, metrics: Sequence[str] = DEFAULT_METRICS, similarity: Similarity = "cosine"
    ) -> dict[str, float]:
        """Return the mean scores, MAP@R always among them, and how many queries they are over.

        A metric that looks at more references than there are has no value: NaN.
        """
        return self.scored(z, metrics, similarity)[0]

    def scored(
        self, z: Tensor, metrics: Sequence[str], similarity: Similarity = "cosine"
    ) -> tuple[dict[str, float], Sums]:
        """Return the mean scores, and two numbers of each class as two rows.

        They are the number of its queries that count, and the sum of their MAP@R.
        """
        chosen = choose_metrics((*metrics, "map_at_r"))
        reached = [
            one.label
            for one in chosen
            if one.metric.source != "ranks" or (one.ranks or 1) <= self.references
        ]
        scores = self.evaluate(z, reached, similarity)
        found = scores.per_query("map_at_r")
        asked, classes = self.y if self.query is None else self.y[self.query], int(self.y.max()) + 1
        values = np.isfinite(found).astype(np.float64), np.nan_to_num(found)
        by_class = np.stack([np.bincount(asked, own, classes).astype(np.float64) for own in values])
        return {**{one.label: math.nan for one in chosen}, **with_counts(scores)}, by_class

    @property
    def references(self) -> int:
        """How many references each query has to choose from at least."""
        return references_of(len(self.y), self.query, self.gallery)


def place_answers(store: Store, half: Half) -> None:
    """Write labels and content hashes of an opened test half to the store.

    Scores can then be checked without the data, and later looks at the samples are noticed.
    """
    place_file(store.answers(half.fingerprint), pack_arrays(HalfLabels.of(half).marks()))
    place_file(store.contents(half.fingerprint), pack_contents(half.contents()))


def read_answers(path: Path) -> HalfLabels | None:
    """Return the labels of a test half that a store keeps; None where they cannot be read."""
    arrays = read_test_labels(path)
    return None if arrays is None else HalfLabels(**arrays)


def score_reproduction(
    vectors: Sequence[np.ndarray[Any, Any]],
    labels: HalfLabels,
    dim: int,
    metrics: Sequence[str] = DEFAULT_METRICS,
    similarity: Similarity = "cosine",
) -> tuple[ReproductionScores, dict[str, Sums]]:
    """Return the scores of a reproduction, and its sums of MAP@R by class.

    Concatenated vectors are normalised again where the similarity is cosine. For Euclidean distance
    they stay as they are: the squared distance of two samples is then the sum of their squared
    distances in the folds. So is their Hamming distance the sum of those in the folds. If there is
    one vector that is a single model's in full, such as that of `as_is`, it is scored once, and
    concatenated, separated and fold scores are the same.

    The sums are over the queries of each class, `separated` and `concatenated`, with the number of
    `queries`.
    """
    tensors = [torch.from_numpy(part) for part in vectors]
    joined = torch.cat(tensors, dim=1)
    single = [
        labels.scored(single_vectors(part, dim, similarity), metrics, similarity)
        for part in tensors
    ]
    alone = len(tensors) == 1 and (dim == 0 or dim >= joined.shape[1])
    concatenated, sums = (
        single[0]
        if alone
        else labels.scored(normalise_for(joined, similarity), metrics, similarity)
    )
    scores = [found for found, _ in single]
    separated_sums = np.mean([found for _, found in single], axis=0)
    found = ReproductionScores(
        concatenated=concatenated, separated=mean_scores(scores), folds=tuple(scores)
    )
    by_class = {"queries": sums[0], "separated": separated_sums[1], "concatenated": sums[1]}
    return found, by_class


def check_metrics(protocol: Protocol) -> None:
    """Raise `BadInput` if the protocol names a metric that is unknown or needs another similarity.

    Metrics of pairs need the cosine, and all metrics of a whole embedding other than bits.
    """
    for field in ("metrics", "training_metrics"):
        names: tuple[str, ...] = getattr(protocol, field)
        try:
            chosen = choose_metrics((*names, "map_at_r"))
        except ValueError as error:
            raise BadInput(f"--set {field}={','.join(names)}: {error}") from None
        by_cosine = [one.label for one in chosen if one.metric.source == "pairs"]
        if by_cosine and protocol.similarity != "cosine":
            raise BadInput(
                f"--set {field}={','.join(names)}: {by_cosine[0]} compares pairs by the cosine, and"
                f" similarity is {protocol.similarity}; leave it out"
            )
        whole = [one.label for one in chosen if not one.per_query]
        if whole and protocol.similarity == "hamming":
            raise BadInput(
                f"--set {field}={','.join(names)}: {whole[0]} is not a metric of bits, which"
                " similarity=hamming compares; leave it out"
            )


def check_ranks(protocol: Protocol, references: Mapping[str, int]) -> None:
    """Raise `BadInput` where a metric looks at more references than a query has.

    `references` are how many there are at least, by the field that names the metrics.
    """
    for field, most in references.items():
        names: tuple[str, ...] = getattr(protocol, field)
        where = "the test half" if field == "metrics" else "the training samples of a fold"
        for one in choose_metrics((*names, "map_at_r")):
            if one.source == "ranks" and (one.ranks or 0) > most:
                raise BadInput(
                    f"--set {field}={','.join(names)}: {one.label} looks at {one.ranks} references,"
                    f" but a query in {where} has {most} to choose from; ask for a smaller k"
                )


# --- Tasks ---


@dataclass(frozen=True)
class Unsealed:
    """The opened test half as tasks get it: with the receipt of their study.

    Args:
        store: root of the run store, whose weights embed the half.
        view: folder of the view.
        fingerprint: of the test half, under which its vectors are filed.
        receipt: of the study.
        trainval: fingerprint of the half that the study worked on.
        threads: torch threads of a task.
        device: cpu or cuda.
        imports: the user's own files.
        into: root of the store that the vectors are placed in; empty: `store` itself.
    """

    store: str
    view: str
    fingerprint: str
    receipt: Receipt
    trainval: str
    threads: int
    device: str
    imports: tuple[str, ...] = ()
    into: str = ""

    def read(self) -> View:
        """Return the test half; raise if the receipt is not valid."""
        return read_test(Path(self.view), self.receipt, self.trainval)

    def vectors(self, key: str) -> Path:
        """Return the file of the vectors of a run's model."""
        return Store(Path(self.into or self.store)).test_vectors(key, self.fingerprint)

    def embed(self, model: Model, half: View) -> Tensor:
        """Return the embeddings of the samples of the half by a model, as they are compared."""
        device, architecture = torch.device(self.device), model.architecture
        return embed_samples(
            model.to(device), half.x, architecture.size, device, architecture.similarity
        )


class OnTestHalf:
    """A task on the opened test half, and what it needs of the machine."""

    test: Unsealed

    @property
    def needs(self) -> Needs:
        """Cores, GPUs and imports that the task needs."""
        return Needs(self.test.threads, int(self.test.device == "cuda"), self.test.imports)


@dataclass(frozen=True)
class TestEmbedding(OnTestHalf):
    """The task of embedding the test half with a finished run's model.

    It is done when the vectors stand in the run's folder.
    """

    key: str
    test: Unsealed

    def __call__(self) -> None:
        """Compute and place the vectors, unless they are there."""
        path = self.test.vectors(self.key)
        if path.exists():
            return
        import_parts(self.test.imports)
        packed = BytesIO()
        with torch_threads(self.test.threads):
            z = self.test.embed(read_model(self._weights()), self.test.read())
        np.save(packed, z.numpy())
        place_file(path, packed.getvalue())

    def _weights(self) -> Path:
        """Return the file of the run's weights; raise `BadInput` if it was altered."""
        store = Store(Path(self.test.store))
        folder = store.run(self.key)
        if digest_file(folder / WEIGHTS) != store.result(self.key).weights:
            raise BadInput(
                f"{folder / WEIGHTS} was altered; remove the folder {folder} and run the same"
                " command again: that run is computed again, and nothing else"
            )
        return folder / WEIGHTS


@dataclass(frozen=True)
class Scoring(OnTestHalf):
    """The task of scoring one reproduction on the test half from the vectors of its runs."""

    keys: tuple[str, ...]
    dim: int
    metrics: tuple[str, ...]
    similarity: Similarity
    test: Unsealed

    @property
    def needs(self) -> Needs:
        """Cores and imports that the task needs; no GPU, since neighbours are found on the CPU."""
        return replace(super().needs, gpus=0)

    def __call__(self) -> tuple[ReproductionScores, tuple[str, ...], bytes]:
        """Return the scores, the hashes of the vectors, and the file of sums by class."""
        paths = [self.test.vectors(key) for key in self.keys]
        vectors, labels = [read_npy(path) for path in paths], HalfLabels.of(self.test.read())
        with torch_threads(self.test.threads):
            scores, by_class = score_reproduction(
                vectors, labels, self.dim, self.metrics, self.similarity
            )
        return scores, tuple(digest_file(path) for path in paths), pack_arrays(by_class)


@dataclass(frozen=True)
class CheckpointScoring(OnTestHalf):
    """The task of scoring checkpoints of a run on the test half.

    It shows what choosing among them there would have given.

    Args:
        key: of the run, which kept the weights of every validation.
        dim: width of a single model's vectors.
        test: the opened test half.
        epochs: which checkpoints; None: all.
    """

    key: str
    dim: int
    test: Unsealed
    epochs: tuple[int, ...] | None = None

    def __call__(self) -> dict[int, float]:
        """Return MAP@R by epoch, 0 if a checkpoint gives no finite embedding; keep no vectors."""
        import_parts(self.test.imports)
        half = self.test.read()
        kept = Store(Path(self.test.store)).checkpoints(self.key)
        with torch_threads(self.test.threads):
            return {epoch: self._map_at_r(kept[epoch], half) for epoch in self._wanted(list(kept))}

    def _wanted(self, kept: Sequence[int]) -> Sequence[int]:
        """Return the epochs to score; raise `FileNotFoundError` if the run did not keep them."""
        wanted = kept if self.epochs is None else self.epochs
        missing = sorted(set(wanted) - set(kept))
        if missing or not wanted:
            raise FileNotFoundError(
                f"run {self.key} has kept no weights of epoch {missing[0] if missing else 0}; run"
                " the bench with --keep-weights all"
            )
        return wanted

    def _map_at_r(self, weights: Path, half: View) -> float:
        model = read_model(weights)
        similarity = model.architecture.similarity
        z = single_vectors(self.test.embed(model, half), self.dim, similarity)
        if not torch.isfinite(z).all():
            return 0.0
        return HalfLabels.of(half).evaluate(z, ["map_at_r"], similarity)["map_at_r"]
