"""What a run of a store has learnt, looked at again: validation folds freely, the test half on the
record.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from assay.data.dataset import Half
from assay.data.seal import SealedTest
from assay.errors import BadInput
from assay.evaluation.model import EvaluatedModel
from assay.files import read_json
from assay.hashing import digest, digest_file, without_infinities
from assay.metrics import Scores
from assay.model import CARD, WEIGHTS, Model, read_model, with_trunk
from assay.protocols import Protocol
from assay.records.ledger import Ledger, SealError
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records, write_record
from assay.trunks import find


@dataclass(frozen=True)
class FinishedRun:
    """A run of a store whose weights are still there."""

    store: Store
    key: str
    config: dict[str, Any]

    @classmethod
    def at(cls, path: Path) -> "FinishedRun":
        """The run in this folder, or of this weights file; `BadInput` unless it is whole and what
        its key says.
        """
        folder = (path.parent if path.name == WEIGHTS else path).resolve()
        if folder.parent.parent.name != "runs" or not (folder / "result.json").exists():
            raise BadInput(
                f"{path} is neither a file of embeddings (.npz or .npy), nor a model folder, nor a"
                " finished run of a store (STORE/runs/aa/KEY); `assay evaluate --help` says what"
                " can be evaluated"
            )
        store = Store(folder.parents[2])
        weights = folder / WEIGHTS
        if not weights.exists():
            raise BadInput(
                f"{path} has no weights: only the selected trial and the reproductions keep theirs;"
                " name one of those"
            )
        try:
            config, result = read_json(folder / "config.json"), read_json(folder / "result.json")
            sound = digest(config) == folder.name and digest_file(weights) == result["weights"]
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise BadInput(
                f"{path} is not what it was when it was made; `assay verify {store.root}` names"
                " what was altered"
            )
        return cls(store, folder.name, config)

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.run(self.key)

    @property
    def folds(self) -> int:
        """Into how many folds trainval was split."""
        return int(self.config["protocol"]["folds"])

    @cached_property
    def learner(self) -> EvaluatedModel:
        """The run's model with what it has seen."""
        frozen = self.protocol.frozen == "trunk"
        return EvaluatedModel(
            called=str(self.folder),
            build=self.model,
            takes=find(self.protocol.trunk).takes,
            inputs=None if frozen else self._trained.architecture.inputs,
            trainval=self.config["trainval"],
            fold=self.config["fold"],
            folds=self.folds,
            threads=self.config["environment"]["threads"],
            dim=self.protocol.dim or None,
            similarity=self.protocol.similarity,
        )

    @cached_property
    def protocol(self) -> Protocol:
        """What of the protocol the run's model depends on."""
        said = self.config["protocol"]
        names = (
            "trunk",
            "weights",
            "frozen",
            "pooling",
            "layer_norm",
            "size",
            "resize",
            "stored",
            "dim",
            "similarity",
        )
        return Protocol(name="run", **{name: said[name] for name in names if name in said})

    def model(self, inputs: int) -> Model:
        """The model, for images of `inputs` channels or vectors of that width."""
        return with_trunk(self._trained, self.protocol, inputs)

    def made(self, model: Model) -> bool:
        """Whether the model has the run's weights: all of them, of a wide head the first rows; a
        frozen trunk is not compared.
        """
        own, given = self._trained.state(), model.state()
        own |= {
            name: own[name][: model.architecture.dim]
            for name in ("head.weight", "head.bias")
            if name in own
        }
        return all(name in given and torch.equal(own[name], given[name]) for name in own)

    @cached_property
    def _trained(self) -> Model:
        return read_model(self.folder / WEIGHTS)


def run_behind(path: Path) -> FinishedRun | None:
    """The run whose study left this model folder, on whose record looks at the test half belong;
    None: no study did.
    """
    key = read_json(path / CARD).get("run")
    folder = path.resolve()
    if (
        not key
        or folder.parent.name != "models"
        or not (folder.parents[1] / "format.json").exists()
    ):
        return None
    run = FinishedRun.at(Store(folder.parents[1]).run(key))
    if not run.made(read_model(path / WEIGHTS)):
        raise BadInput(
            f"{path} has other weights than the run {key[:12]} that it is said to be of, so no look"
            " is recorded as that run's; remove the folder and run `assay bench` again, which"
            " makes it anew"
        )
    return run


@dataclass(frozen=True)
class Look:
    """A look at the test half by way of a run, for the driver of its store: recorded before
    anything is told of it.

    Args:
        run: whose model looks.
        half: the test half, unsealed.
        ledgers: of the studies on whose record it goes.
    """

    run: FinishedRun
    half: Half
    ledgers: list[Ledger]

    @classmethod
    def open(cls, run: FinishedRun, sealed: SealedTest) -> "Look":
        """Open the seal against the receipts of the studies that the run belongs to; `SealError`
        before they are complete.

        Studies that differ only in their budgets share runs: the look belongs to each of them that
        has ended.
        """
        records = [record for record in study_records(run.store) if run.key in record.runs]
        if not records:
            raise SealError(
                f"no study of {run.store.root} has recorded the run {run.key[:12]}, so the test"
                " half stays sealed"
            )
        ledgers = [Ledger(run.store.study(record.key) / "ledger.jsonl") for record in records]
        complete = [
            ledger for ledger, record in zip(ledgers, records, strict=True) if record.complete
        ]
        if not complete:
            ledgers[0].receipt()
            raise SealError(
                f"{ledgers[0].path}: the study is still being scored, so nobody else looks at the"
                " test half"
            )
        halves = [sealed.open(ledger.receipt()) for ledger in complete]
        return cls(run, halves[0], complete)

    def record(self, scores: Scores) -> list[StudyRecord]:
        """Append the look to each ledger and write its `study.json` again; the studies with their
        looks.
        """
        body = {
            "run": self.run.key,
            "test": self.half.fingerprint,
            "similarity": scores.similarity,
            "metrics": without_infinities(dict(scores)),
            "queries": scores.queries,
            "skipped": scores.skipped,
        }
        return [_append(ledger, body) for ledger in self.ledgers]


def _append(ledger: Ledger, body: dict[str, Any]) -> StudyRecord:
    ledger.look(body)
    return write_record(ledger.path.parent, ledger.lines)
