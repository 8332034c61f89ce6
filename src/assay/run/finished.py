"""A finished run of a store, and the model that it trained."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from assay.errors import BadInput
from assay.model import Model, read_model, with_trunk
from assay.protocols import ResolvedProtocol
from assay.records.run import CARD, WEIGHTS, Run, check_run, run_of_model
from assay.records.store import Store


@dataclass(frozen=True)
class FinishedRun:
    """A run of a store whose weights are still there.

    Args:
        store: the store.
        key: key of the run.
        run: all that determines the run.
    """

    store: Store
    key: str
    run: Run

    @classmethod
    def at(cls, path: Path) -> "FinishedRun":
        """Return the run in this folder, or of this weights file.

        Raise `BadInput` unless it is finished, has its weights, and was not altered.
        """
        folder = (path.parent if path.name == WEIGHTS else path).resolve()
        if folder.parent.parent.name != "runs" or not (folder / "result.json").exists():
            raise BadInput(
                f"{path} is neither a file of embeddings (.npz or .npy), nor a model folder, nor a"
                " finished run of a store (STORE/runs/aa/KEY); `assay evaluate --help` says what"
                " can be evaluated"
            )
        store, weights = Store(folder.parents[2]), folder / WEIGHTS
        if not weights.exists():
            raise BadInput(
                f"{path} has no weights: only the selected trial and the reproductions keep theirs;"
                " name one of those"
            )
        problem = check_run(folder)
        if problem:
            raise BadInput(
                f"{path} was altered after the run had ended ({problem}); `assay verify"
                f" {store.root}` checks the whole store"
            )
        return cls(store, folder.name, Run.read(folder / "config.json"))

    @classmethod
    def of_model(cls, folder: Path, model: Model) -> "FinishedRun | None":
        """Return the run whose study wrote this model folder; None where no study did.

        Looks at the test half by way of the model go on the record of that study. Raise `BadInput`
        where the model does not have the run's weights.
        """
        place = folder.resolve()
        key = run_of_model(place)
        in_store = place.parent.name == "models" and (place.parents[1] / "format.json").exists()
        if not key or not in_store:
            return None
        run = cls.at(Store(place.parents[1]).run(key))
        if not run.has_weights_of(model):
            raise BadInput(
                f"{folder} has other weights than the run {key[:12]} that {CARD} names, so a look"
                " cannot be recorded as that run's; remove the folder and run `assay bench` again,"
                " which writes it again"
            )
        return run

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.store.run(self.key)

    @property
    def folds(self) -> int:
        """Number of folds that trainval was split into."""
        return self.run.protocol.folds

    @property
    def protocol(self) -> ResolvedProtocol:
        """The protocol, as far as the run depends on it."""
        return self.run.protocol

    def model(self, inputs: int) -> Model:
        """Return the model, for images of `inputs` channels or vectors of that width."""
        return with_trunk(self.trained, self.protocol, inputs)

    def has_weights_of(self, model: Model) -> bool:
        """Return whether the model has all weights of the run; of a wide head the first rows.

        A frozen trunk is not compared.
        """
        own, given = self.trained.state(), model.state()
        own |= {
            name: own[name][: model.architecture.dim]
            for name in ("head.weight", "head.bias")
            if name in own
        }
        return all(name in given and torch.equal(own[name], given[name]) for name in own)

    @cached_property
    def trained(self) -> Model:
        """The model as the run saved it: without the trunk where that is frozen."""
        return read_model(self.folder / WEIGHTS)
