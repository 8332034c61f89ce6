"""A finished run of a store, and the model that it trained."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from assay.errors import BadInput
from assay.model import Architecture, Model, has_trunk_weights, head_of, read_model, with_trunk
from assay.protocols import ResolvedProtocol
from assay.records.run import CARD, WEIGHTS, Run, check_run, read_card, run_of_model
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
        place = place_of_model(folder)
        if place is None:
            return None
        store, key = place
        run = cls.at(store.run(key))
        if not run.has_weights_of(_as_trained(folder, model)):
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
        """Return whether the model is the run's as a whole: its architecture, its preprocessing and
        all weights, a frozen trunk included; of a wide head the first rows.
        """
        own, given = self.trained.state(), model.state()
        width, inputs = self.trained.architecture.dim, model.architecture.inputs
        dim = min(width, self.protocol.dim or width)
        head = replace(self.trained.architecture, dim=dim)
        expected = Architecture.whole(self.protocol, inputs).with_head_of(head)
        own |= {name: own[name][:dim] for name in ("head.weight", "head.bias") if name in own}
        if self.protocol.frozen == "trunk" and expected.trunk != "identity":
            given = {name: one for name, one in given.items() if not name.startswith("trunk.")}
            trunk = has_trunk_weights(model, self.protocol.weights)
        else:
            trunk = inputs == self.trained.architecture.inputs
        return (
            model.architecture == expected
            and given.keys() == own.keys()
            and all(torch.equal(own[name], given[name]) for name in own)
            and trunk
        )

    @cached_property
    def trained(self) -> Model:
        """The model as the run saved it: without the trunk where that is frozen."""
        return read_model(self.folder / WEIGHTS)


def place_of_model(folder: Path) -> tuple[Store, str] | None:
    """Return the store whose study wrote this model folder, and the key of the run.

    None where no study did, or where the folder was taken out of the store.
    """
    place = folder.resolve()
    key = run_of_model(place)
    in_store = place.parent.name == "models" and (place.parents[1] / "format.json").exists()
    return (Store(place.parents[1]), key) if key and in_store else None


def _as_trained(folder: Path, model: Model) -> Model:
    """Return a model as its run trained it: without a trunk that was joined to its head.

    Raise `BadInput` where that trunk does not have the weights that the card names.
    """
    card = read_card(folder)
    if card.get("images") is None:
        return model
    if not has_trunk_weights(model, card["weights"]):
        raise BadInput(
            f"{folder} has another trunk than {CARD} names; remove the folder and run `assay bench`"
            " again, which writes it again"
        )
    return head_of(model)
