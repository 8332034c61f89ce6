"""The task of computing runs and placing them in a store."""

import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.data.packs import read_pack
from assay.devices import torch_threads
from assay.files import sync_folder
from assay.hashing import canonical, digest_bytes, pretty, without_infinities
from assay.methods import import_parts
from assay.model import WEIGHTS, pack_model
from assay.records.store import CHECKPOINTS, Keep, Store
from assay.run.computing import Computed, compute
from assay.run.run import Run
from assay.run.workspace import Workspace
from assay.train import SAVE_AFTER, Fit
from assay.workers import Needs


@dataclass(frozen=True)
class Training:
    """The task of computing runs of one method; done when their folders stand in the store.

    Runs on vectors share a task, computed as a stack; runs on images are a task each. Those that
    are in the store already are left out, which makes no difference to what the others give.

    Args:
        runs: what to compute.
        store: root of the run store.
        view: folder of the view of trainval.
        imports: the user's own files.
        keep: which weights stay; a finished run that lacks some of them is computed again.
        save_after: seconds of training after which its state is saved, from where it goes on after
            a kill.
    """

    runs: tuple[Run, ...]
    store: str
    view: str
    imports: tuple[str, ...] = ()
    keep: Keep = "best"
    save_after: float = SAVE_AFTER

    @property
    def needs(self) -> Needs:
        """Cores, GPUs and imports that the task needs."""
        environment = self.runs[0].environment
        return Needs(environment.threads, int(environment.device == "cuda"), self.imports)

    def __call__(self) -> None:
        """Compute the runs and place those that are not there."""
        store = Store(Path(self.store))
        missing = [run for run in self.runs if not store.has_run(run.key, self.keep)]
        if not missing:
            return
        import_parts(self.imports)
        started, clock, workspace = (
            datetime.now(UTC),
            time.perf_counter(),
            Workspace(store, self.keep, self.save_after),
        )
        with torch_threads(self.runs[0].environment.threads):
            computed = compute(missing, read_pack(Path(self.view)), workspace)
        timing = {
            "seconds": (workspace.spent + time.perf_counter() - clock) / len(missing),
            "started": started.isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "machine": platform.machine(),
        }
        for run, one in zip(missing, computed, strict=True):
            self._place(store, run, one, timing)
        for run in self.runs:
            store.drop_partial(run.key)

    def _place(self, store: Store, run: Run, computed: Computed, timing: dict[str, Any]) -> None:
        """Put the run's folder into the store, or into the run that is there the checkpoints that
        it lacks.
        """
        with _told_where(store, run):
            if not store.has_run(run.key):
                with store.new_run(run.key) as folder:
                    _write(folder, run, computed, timing)
                    if self.keep == "all":
                        (folder / CHECKPOINTS).mkdir()
                        _move_checkpoints(store, run, computed[1], folder / CHECKPOINTS)
            elif not store.has_run(run.key, self.keep):
                _check_same(store, run, computed)
                with store.new_checkpoints(run.key) as folder:
                    _move_checkpoints(store, run, computed[1], folder)


def _write(folder: Path, run: Run, computed: Computed, timing: dict[str, Any]) -> None:
    weights, result = pack_model(computed[0], computed[1].weights), computed[1]
    (folder / WEIGHTS).write_bytes(weights)
    (folder / "history.jsonl").write_text(_history(result), encoding="utf-8")
    documents = {
        "config": run.config,
        "result": _result(result, digest_bytes(weights)),
        "timing": timing,
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(pretty(document), encoding="utf-8")


def _history(result: Fit) -> str:
    """A line for each validation."""
    return "".join(canonical(checkpoint) + "\n" for checkpoint in result.history)


def _result(result: Fit, weights: str) -> dict[str, Any]:
    return {
        "status": result.status,
        "best_epoch": result.best.epoch,
        "last_epoch": result.history[-1].epoch,
        "validation": result.best.validation,
        "weights": weights,
        "history": digest_bytes(_history(result).encode()),
        **({"training": without_infinities(result.training)} if result.training else {}),
    }


def _move_checkpoints(store: Store, run: Run, result: Fit, folder: Path) -> None:
    """Take the weights of every validation from the way to the run into its folder."""
    for checkpoint in result.history:
        name = f"{checkpoint.epoch}.safetensors"
        os.replace(store.partial(run.key) / CHECKPOINTS / name, folder / name)
    sync_folder(folder)


def _check_same(store: Store, run: Run, computed: Computed) -> None:
    """Raise where a run that was computed again is not what it was."""
    architecture, result = computed
    again = _result(result, digest_bytes(pack_model(architecture, result.weights)))
    differing = [name for name, value in store.result(run.key).items() if again.get(name) != value]
    if differing:
        raise RuntimeError(
            f"run {run.key} was computed again for its checkpoints and came out with another"
            f" {differing[0]}; this machine does not give the results of the one that computed it,"
            " so its checkpoints cannot be added"
        )


@contextmanager
def _told_where(store: Store, run: Run) -> Iterator[None]:
    """Say of a disk that takes no more what was to be written to it."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"run {run.key[:12]} is computed but cannot be placed in {store.root}"
            f" ({error.strerror}); make room or mend that and run the same command again",
        ) from error
