"""One measured run: a protocol, a method, its parameters, a fold and a seed give scores and a model.

Also the two steps that follow once a study's seal is open: vectors of the test half, and their scores.
"""

import platform
import socket
import time
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from assay.canonical import canonical, digest, digest_bytes, digest_file, plain, pretty
from assay.data.splits import folds_of_labels
from assay.data.views import View, read_test, read_view
from assay.embed import embed, fit_pca, outputs
from assay.ledger import Receipt
from assay.methods import assemble, import_parts, methods
from assay.metrics import evaluate
from assay.model import Architecture, Model, pack_model, read_model
from assay.protocol import Protocol
from assay.seeds import derive
from assay.space import Value
from assay.store import Store, place_file
from assay.train import Checkpoint, Fit, fit, summary

ABOVE = (
    "__init__",
    "__main__",
    "cli",
    "web",
    "report",
    "verify",
    "search",
    "tables",
    "export",
    "study",
    "engines",
    "catalogue",
)
"""Parts of Assay that cannot change what a run gives."""


@dataclass(frozen=True)
class Environment:
    """What of the machine and its software a run's bytes may depend on."""

    device: str
    threads: int
    torch: str
    source: str

    @classmethod
    def here(cls, device: str, threads: int) -> "Environment":
        """This process's environment."""
        return cls(device, threads, torch.__version__, own_source())


@dataclass(frozen=True)
class Run:
    """All that determines a run.

    Args:
        protocol: resolved, without any `auto`.
        trainval: fingerprint of the half it may see.
        method: name of the method.
        source: hash of the method's source.
        parameters: of the method.
        batch: classes x images per class.
        fold: which fold is validated; None where a deterministic baseline needs no folds.
        seed: of everything random in it.
        environment: where it runs.
    """

    protocol: Protocol
    trainval: str
    method: str
    source: str
    parameters: dict[str, Value]
    batch: tuple[int, int]
    fold: int | None
    seed: int
    environment: Environment

    @cached_property
    def config(self) -> dict[str, Any]:
        """The same as plain data, the protocol by its training fields only."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return dict(plain({**own, "protocol": {**self.protocol.training, "folds": self.protocol.folds}}))

    @cached_property
    def key(self) -> str:
        """Content address: equal runs have equal keys."""
        return digest(self.config)


@dataclass(frozen=True)
class Training:
    """The task of computing a run; done when its folder stands in the store."""

    run: Run
    store: str
    view: str
    imports: tuple[str, ...] = ()

    def __call__(self) -> None:
        """Compute and place the run, unless it is there."""
        store = Store(Path(self.store))
        if store.has_run(self.run.key):
            return
        import_parts(self.imports)
        torch.set_num_threads(self.run.environment.threads)
        started, clock = datetime.now(UTC), time.perf_counter()
        architecture, result = _compute(self.run, read_view(Path(self.view)))
        seconds = time.perf_counter() - clock
        with store.new_run(self.run.key) as folder:
            weights = pack_model(architecture, result.weights)
            (folder / "model.safetensors").write_bytes(weights)
            history = "".join(canonical(checkpoint) + "\n" for checkpoint in result.history)
            (folder / "history.jsonl").write_text(history, encoding="utf-8")
            documents = {
                "config": self.run.config,
                "result": _result(result, digest_bytes(weights)),
                "timing": {
                    "seconds": seconds,
                    "started": started.isoformat(timespec="seconds"),
                    "host": socket.gethostname(),
                    "machine": platform.machine(),
                },
            }
            for name, document in documents.items():
                (folder / f"{name}.json").write_text(pretty(document), encoding="utf-8")


@dataclass(frozen=True)
class Unsealed:
    """The opened test half as tasks get it: against the receipt of their study.

    Args:
        store: root of the run store.
        view: folder of the view.
        fingerprint: of the test half, under which its vectors are filed.
        receipt: of the study.
        trainval: fingerprint of the half that the study worked on.
        threads: torch threads of a task.
        device: cpu or cuda.
        imports: the user's own files.
    """

    store: str
    view: str
    fingerprint: str
    receipt: Receipt
    trainval: str
    threads: int
    device: str
    imports: tuple[str, ...] = ()

    def read(self) -> View:
        """The test half, if the receipt is good."""
        return read_test(Path(self.view), self.receipt, self.trainval)

    def vectors(self, key: str) -> Path:
        """Where the vectors of a run's model lie."""
        return Store(Path(self.store)).test_vectors(key, self.fingerprint)


@dataclass(frozen=True)
class TestEmbedding:
    """The task of embedding the test half with a finished run's model; done when the vectors stand in its folder."""

    key: str
    test: Unsealed

    def __call__(self) -> None:
        """Compute and place the vectors, unless they are there."""
        path = self.test.vectors(self.key)
        if path.exists():
            return
        import_parts(self.test.imports)
        torch.set_num_threads(self.test.threads)
        device = torch.device(self.test.device)
        model = read_model(Store(Path(self.test.store)).run(self.key) / "model.safetensors").to(device)
        packed = BytesIO()
        np.save(packed, embed(model, self.test.read().x, device).numpy())
        place_file(path, packed.getvalue())


@dataclass(frozen=True)
class Scoring:
    """The task of scoring one reproduction on the test half from the vectors of its runs."""

    keys: tuple[str, ...]
    dim: int
    test: Unsealed

    def __call__(self) -> dict[str, Any]:
        """Concatenated and separated scores, with the hashes of the vectors they come from."""
        torch.set_num_threads(self.test.threads)
        paths = [self.test.vectors(key) for key in self.keys]
        scores = score([np.load(path) for path in paths], self.test.read().y, self.dim)
        return {**scores, "vectors": [digest_file(path) for path in paths]}


def score(vectors: list[np.ndarray[Any, Any]], y: np.ndarray[Any, Any], dim: int) -> dict[str, dict[str, float]]:
    """Concatenated: all folds' vectors side by side, normalised again. Separated: the mean of the folds' own scores.

    A deterministic baseline has one vector of folds x dim principal components, whose first `dim` are what a single
    model would have.
    """
    tensors = [torch.from_numpy(part) for part in vectors]
    joined = F.normalize(torch.cat(tensors, dim=1), dim=1)
    single = [summary(evaluate(F.normalize(part[:, :dim], dim=1), y)) for part in tensors]
    return {"concatenated": summary(evaluate(joined, y)), "separated": _means(single)}


@lru_cache(maxsize=1)
def own_source() -> str:
    """Hash of Assay's own source, from the bottom up to this module."""
    root = Path(__file__).parent
    files = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    return digest(
        [[path.as_posix(), digest_file(root / path)] for path in files if path.parts[0].removesuffix(".py") not in ABOVE]
    )


def _compute(run: Run, view: View) -> tuple[Architecture, Fit]:
    if methods[run.method].loss is None:
        return _compute_baseline(run, view)
    device = torch.device(run.environment.device)
    assert run.fold is not None and run.protocol.size is not None
    fold = folds_of_labels(view.y, run.protocol.folds)[run.fold]
    train, validation = view.rows(fold.train), view.rows(fold.validation)
    architecture = Architecture(run.protocol.trunk, view.inputs, run.protocol.size, run.protocol.dim)
    torch.manual_seed(derive(run.seed, "model"))
    model = Model(architecture)
    torch.manual_seed(derive(run.seed, "method"))
    parts = assemble(methods[run.method], run.parameters, run.protocol)
    parts.loss.setup(run.protocol.dim, len(np.unique(train.y)))
    return architecture, fit(model, parts, train, validation, run.protocol, run.batch, run.seed, device)


def _compute_baseline(run: Run, view: View) -> tuple[Architecture, Fit]:
    """The trunk before training, its features reduced by a PCA fitted on trainval."""
    device = torch.device(run.environment.device)
    protocol = run.protocol
    assert protocol.size is not None
    torch.manual_seed(derive(run.seed, "model"))
    wanted = protocol.dim * (protocol.folds if run.fold is None else 1)
    model = Model(Architecture(protocol.trunk, view.inputs, protocol.size, wanted)).to(device)
    features = outputs(model.trunk, view.x, device)
    width = min(wanted, features.shape[1], len(features) - 1)
    model.head = fit_pca(features, width)
    architecture = replace(model.architecture, dim=width)
    z = F.normalize(model.head(features)[:, : protocol.dim], dim=1).detach()
    folds = folds_of_labels(view.y, protocol.folds)
    chosen = folds if run.fold is None else [folds[run.fold]]
    scores = _means([summary(evaluate(z[fold.validation], view.y[fold.validation])) for fold in chosen])
    checkpoint = Checkpoint(0, None, scores)
    return architecture, Fit([checkpoint], checkpoint, model.state())


def _result(result: Fit, weights: str) -> dict[str, Any]:
    return {
        "status": result.status,
        "best_epoch": result.best.epoch,
        "last_epoch": result.history[-1].epoch,
        "validation": result.best.validation,
        "weights": weights,
    }


def _means(scores: list[dict[str, float]]) -> dict[str, float]:
    """Mean of each entry over folds; counts stay whole where they agree."""
    means = {name: sum(part[name] for part in scores) / len(scores) for name in scores[0]}
    return {
        name: int(value) if name in ("queries", "skipped") and value == int(value) else value for name, value in means.items()
    }
