"""One measured run: a protocol, a method, its parameters, a fold and a seed give scores and a model.

Also the two steps that follow once a study's seal is open: vectors of the test half, and their scores.
"""

import platform
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from assay.answers import Answers, mean_scores, score
from assay.canonical import canonical, digest, digest_bytes, digest_file, plain, pretty
from assay.data.splits import folds_of_labels
from assay.data.views import View, read_test, read_view
from assay.embed import embed, fit_pca, outputs
from assay.ledger import Receipt
from assay.methods import assemble, import_parts, methods
from assay.metrics import evaluate
from assay.model import WEIGHTS, Architecture, Model, begin, pack_model, read_model, with_trunk
from assay.protocol import Protocol
from assay.seeds import derive
from assay.space import Value
from assay.stack import Apprentice, can_stack, fit_stacked
from assay.store import Store, place_file
from assay.train import Checkpoint, Fit, Told, fit, nobody, summary

ABOVE = (
    "__init__",
    "__main__",
    "cli",
    "web",
    "report",
    "verify",
    "survey",
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
    images: str = ""
    """Hash of what decodes images: the code and its libraries; empty where there are none."""

    @classmethod
    def here(cls, device: str, threads: int, images: str = "") -> "Environment":
        """This process's environment."""
        return cls(device, threads, torch.__version__, own_source(), images)


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
    """The task of computing runs that belong together; done when their folders stand in the store.

    The folds of a trial on vectors are one task, computed as one stack; runs on images are a task each. Which of the runs are
    there already makes no difference to what the others give.
    """

    runs: tuple[Run, ...]
    store: str
    view: str
    imports: tuple[str, ...] = ()

    def __call__(self) -> None:
        """Compute the runs and place those that are not there."""
        store = Store(Path(self.store))
        missing = {run.key for run in self.runs if not store.has_run(run.key)}
        if not missing:
            return
        import_parts(self.imports)
        torch.set_num_threads(self.runs[0].environment.threads)
        started, clock = datetime.now(UTC), time.perf_counter()
        computed = compute(self.runs, read_view(Path(self.view)))
        timing = {
            "seconds": (time.perf_counter() - clock) / len(self.runs),
            "started": started.isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "machine": platform.machine(),
        }
        for run, (architecture, result) in zip(self.runs, computed, strict=True):
            if run.key in missing:
                _place(store, run, architecture, result, timing)


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
        model = read_model(Store(Path(self.test.store)).run(self.key) / WEIGHTS).to(device)
        packed = BytesIO()
        np.save(packed, embed(model, self.test.read().x, model.architecture.size, device).numpy())
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
        scores = score([np.load(path) for path in paths], Answers.of(self.test.read()), self.dim)
        return {**scores, "vectors": [digest_file(path) for path in paths]}


@lru_cache(maxsize=1)
def own_source() -> str:
    """Hash of Assay's own source, from the bottom up to this module."""
    root = Path(__file__).parent
    files = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    return digest(
        [[path.as_posix(), digest_file(root / path)] for path in files if path.parts[0].removesuffix(".py") not in ABOVE]
    )


def compute(runs: Sequence[Run], view: View) -> list[tuple[Architecture, Fit]]:
    """Models and what came of their training, stacked where that can be."""
    if methods[runs[0].method].loss is None:
        return [_compute_baseline(run, view) for run in runs]
    fits: dict[int, Fit] = {}
    if len(runs) > 1:
        for numbers, apprentices in _stacks([_apprentice(run, view) for run in runs], runs[0]):
            found = fit_stacked(apprentices, view, runs[0].protocol, runs[0].batch)
            fits |= dict(zip(numbers, found, strict=True)) if found else {}
    architecture = Architecture.under(runs[0].protocol, view.inputs)
    return [(architecture, fits[number] if number in fits else _compute_alone(run, view)) for number, run in enumerate(runs)]


def _apprentice(run: Run, view: View) -> Apprentice:
    """A run's model before training, its parts and its data, from the run's seed."""
    assert run.fold is not None
    fold = folds_of_labels(view.y, run.protocol.folds)[run.fold]
    torch.manual_seed(derive(run.seed, "model"))
    model = begin(Architecture.under(run.protocol, view.inputs), run.protocol.weights)
    torch.manual_seed(derive(run.seed, "method"))
    parts = assemble(methods[run.method], run.parameters, run.protocol)
    parts.loss.setup(run.protocol.dim, len(np.unique(view.y[fold.train])))
    return Apprentice(model, parts, fold.train, view.rows(fold.validation), run.seed)


def _stacks(apprentices: list[Apprentice], run: Run) -> Iterator[tuple[list[int], list[Apprentice]]]:
    """Those that can be trained as one: their class weights have the same shapes."""
    if not can_stack(apprentices[0], torch.device(run.environment.device)):
        return
    shapes = [apprentice.shapes for apprentice in apprentices]
    for shape in dict.fromkeys(shapes):
        numbers = [number for number, own in enumerate(shapes) if own == shape]
        yield numbers, [apprentices[number] for number in numbers]


def _compute_alone(run: Run, view: View, told: Told = nobody) -> Fit:
    own, device = _apprentice(run, view), torch.device(run.environment.device)
    train = view.rows(own.train)
    return fit(own.model, own.parts, train, own.validation, run.protocol, run.batch, run.seed, device, told)


def train_alone(run: Run, view: Path, inputs: int, told: Told | None = None) -> tuple[Model, Fit]:
    """Compute a run by itself, without a store: its best model, for images of `inputs` channels or vectors; and how it went."""
    opened = read_view(view)
    fitted = _compute_alone(run, opened, told or nobody)
    model = Model(Architecture.under(run.protocol, opened.inputs))
    model.load_state_dict(fitted.weights)
    return with_trunk(model, run.protocol, inputs), fitted


def _compute_baseline(run: Run, view: View) -> tuple[Architecture, Fit]:
    """The trunk before training, its features reduced by a PCA fitted on trainval."""
    device = torch.device(run.environment.device)
    protocol = run.protocol
    torch.manual_seed(derive(run.seed, "model"))
    wanted = protocol.dim * (protocol.folds if run.fold is None else 1)
    model = begin(Architecture.under(protocol, view.inputs, wanted), protocol.weights).to(device)
    features = model.norm(outputs(model.trunk, view.x, model.architecture.size, device))
    width = min(wanted, features.shape[1], len(features) - 1)
    model.head = fit_pca(features, width)
    architecture = replace(model.architecture, dim=width)
    z = F.normalize(model.head(features)[:, : protocol.dim], dim=1).detach()
    folds = folds_of_labels(view.y, protocol.folds)
    chosen = folds if run.fold is None else [folds[run.fold]]
    scores = mean_scores([summary(evaluate(z[fold.validation], view.y[fold.validation])) for fold in chosen])
    checkpoint = Checkpoint(0, None, scores)
    return architecture, Fit([checkpoint], checkpoint, model.state())


def _place(store: Store, run: Run, architecture: Architecture, result: Fit, timing: dict[str, Any]) -> None:
    """Put the run's folder into the store."""
    with store.new_run(run.key) as folder:
        weights = pack_model(architecture, result.weights)
        (folder / WEIGHTS).write_bytes(weights)
        history = "".join(canonical(checkpoint) + "\n" for checkpoint in result.history)
        (folder / "history.jsonl").write_text(history, encoding="utf-8")
        documents = {"config": run.config, "result": _result(result, digest_bytes(weights)), "timing": timing}
        for name, document in documents.items():
            (folder / f"{name}.json").write_text(pretty(document), encoding="utf-8")


def _result(result: Fit, weights: str) -> dict[str, Any]:
    return {
        "status": result.status,
        "best_epoch": result.best.epoch,
        "last_epoch": result.history[-1].epoch,
        "validation": result.best.validation,
        "weights": weights,
    }
