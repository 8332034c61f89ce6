"""What a run of a store has learnt, looked at again: validation folds freely, the test half on the record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.canonical import digest, digest_file
from assay.data.dataset import Labels
from assay.data.splits import Half, SealedTest, TrainVal, folds
from assay.embed import BATCH, embed
from assay.errors import BadInput
from assay.files import read_json
from assay.ledger import Ledger, SealError
from assay.metrics import Scores
from assay.metrics.task import Progress
from assay.model import Model, read_model
from assay.store import Store
from assay.study.bench import choose_device
from assay.study.record import StudyRecord, study_records, write_record
from assay.trunks import trunks

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Part:
    """Embeddings that are searched among themselves.

    Args:
        name: of the part: `all`, `fold 0`, `test`.
        z: embeddings.
        y: their labels.
        ids: their names, row numbers if None.
        queries: mask of those that are looked up, all if None.
        gallery: mask of those that they are looked up in, all if None.
    """

    name: str
    z: Any
    y: Any
    ids: Sequence[Any] | None = None
    queries: Any = None
    gallery: Any = None


@dataclass(frozen=True)
class FinishedRun:
    """A run of a store whose weights are still there."""

    store: Store
    key: str
    config: dict[str, Any]

    @classmethod
    def at(cls, path: Path) -> "FinishedRun":
        """The run in this folder, or of this weights file; `BadInput` unless it is whole and what its key says."""
        folder = (path.parent if path.name == WEIGHTS else path).resolve()
        if folder.parent.parent.name != "runs" or not (folder / "result.json").exists():
            raise BadInput(
                f"{path} is neither a file of embeddings (.npz or .npy) nor a finished run of a store (STORE/runs/aa/KEY); "
                "`assay evaluate --help` says what can be evaluated"
            )
        store = Store(folder.parents[2])
        weights = folder / WEIGHTS
        if not weights.exists():
            raise BadInput(f"{path} has no weights: only the selected trial and the reproductions keep theirs; name one of those")
        try:
            config, result = read_json(folder / "config.json"), read_json(folder / "result.json")
            sound = digest(config) == folder.name and digest_file(weights) == result["weights"]
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise BadInput(f"{path} is not what it was when it was made; `assay verify {store.root}` names what was altered")
        return cls(store, folder.name, config)

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.run(self.key)

    @property
    def folds(self) -> int:
        """Into how many folds trainval was split."""
        return int(self.config["protocol"]["folds"])

    def was_trained_on(self, trainval: TrainVal) -> bool:
        """Whether this is the half that the run has seen."""
        return bool(self.config["trainval"] == trainval.fingerprint)

    def check_input(self, half: Half) -> None:
        """Raise `BadInput` where the model cannot take the samples."""
        given = "vectors" if half.look == "features" else "images"
        takes, inputs = trunks[self._model.architecture.trunk].takes, self._model.architecture.inputs
        if (takes, inputs) != (given, half.inputs):
            wide = {"vectors": "numbers", "images": "channels"}
            raise BadInput(
                f"the model of {self.folder} takes {takes} of {inputs} {wide[takes]}, "
                f"the data are {given} of {half.inputs} {wide[given]}; give --data of its kind"
            )

    def validation(self, trainval: TrainVal, count: int, progress: Progress) -> Iterator[Part]:
        """The folds of trainval that the model has not been trained on: all `count` of other data, one of its own."""
        own = self.was_trained_on(trainval)
        held_out = self.config["fold"] if own else None
        for number, fold in enumerate(folds(trainval, self.folds if own else count)):
            if held_out in (None, number):
                yield self.part(f"fold {number}", trainval, fold.validation, progress)

    def part(self, name: str, half: Half, rows: Labels, progress: Progress) -> Part:
        """These samples of a half, embedded."""
        ids = half.ids
        labels = np.array(half.class_names)[half.y[rows]]
        return Part(name, self._embed(name, half, rows, progress), labels, [ids[row] for row in rows.tolist()])

    @cached_property
    def _model(self) -> Model:
        return read_model(self.folder / WEIGHTS)

    def _embed(self, name: str, half: Half, rows: Labels, progress: Progress) -> Tensor:
        """Unit vectors as the run itself made them: in its batches, with its threads.

        A deterministic baseline has folds x dim components, whose first `dim` are what a single model would have.
        """
        device = torch.device(choose_device("auto"))
        model, size = self._model.to(device), self._model.architecture.size
        parts = []
        with _threads(self.config["environment"]["threads"]):
            for start in range(0, len(rows), BATCH):
                parts.append(embed(model, half.some(rows[start : start + BATCH], size), device))
                progress(f"{name}, embedding", min(start + BATCH, len(rows)), len(rows))
        return F.normalize(torch.cat(parts)[:, : self.config["protocol"]["dim"]], dim=1)


@dataclass(frozen=True)
class Look:
    """A look at the test half by way of a run, for the driver of its store: recorded before anything is told of it."""

    run: FinishedRun
    half: Half
    ledgers: list[Ledger]

    @classmethod
    def open(cls, run: FinishedRun, sealed: SealedTest) -> "Look":
        """Open the seal against the receipts of the studies that the run belongs to; `SealError` before they are complete.

        Studies that differ only in their budgets share runs: the look belongs to each of them that has ended.
        """
        records = [record for record in study_records(run.store) if run.key in record.runs]
        if not records:
            raise SealError(f"no study of {run.store.root} has recorded the run {run.key[:12]}, so the test half stays sealed")
        ledgers = [Ledger(run.store.study(record.key) / "ledger.jsonl") for record in records]
        complete = [ledger for ledger, record in zip(ledgers, records, strict=True) if record.complete]
        if not complete:
            ledgers[0].receipt()
            raise SealError(f"{ledgers[0].path}: the study is still being scored, so nobody else looks at the test half")
        halves = [sealed.open(ledger.receipt()) for ledger in complete]
        return cls(run, halves[0], complete)

    def part(self, progress: Progress) -> Part:
        """The test half, embedded."""
        return self.run.part("test", self.half, np.arange(len(self.half.y)), progress)

    def record(self, scores: Scores) -> list[StudyRecord]:
        """Append the look to each ledger and write its `study.json` again; the studies with their looks."""
        body = {
            "run": self.run.key,
            "test": self.half.fingerprint,
            "similarity": scores.metric,
            "metrics": without_infinities(dict(scores)),
            "queries": scores.queries,
            "skipped": scores.skipped,
        }
        return [_append(ledger, body) for ledger in self.ledgers]


def without_infinities(value: Any) -> Any:
    """The value as JSON can hold it: infinities and NaN by their names, which `float` reads again.

    >>> without_infinities({"mean": float("inf"), "over_queries": [0.5, None]})
    {'mean': 'inf', 'over_queries': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_infinities(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _append(ledger: Ledger, body: dict[str, Any]) -> StudyRecord:
    ledger.look(body)
    return write_record(ledger.path.parent, ledger.lines)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many torch threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
