"""A model to train, with its method, its samples and its callbacks: what a training is given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from assay.data.dataset import Labels, Rows, renumber
from assay.data.packs import View
from assay.data.relations import Relations
from assay.methods import BuiltMethod
from assay.model import Model
from assay.protocols import Supervision
from assay.records.run import Checkpoint
from assay.train.lists import listed_in

OnEpoch = Callable[[int, float, Checkpoint | None], None]
"""Called after each epoch with its number, its mean loss, and the validation if there was one."""

OnValidation = Callable[[int, dict[str, Tensor]], None]
"""Called at each validation with its epoch and a copy of the model's weights."""


def ignore_epoch(epoch: int, loss: float, checkpoint: Checkpoint | None) -> None:
    """Ignore the epoch."""


def training_labels(y: Labels, supervision: Supervision) -> Labels:
    """Return the labels that training is given for samples of these classes, numbered from 0.

    Where it is told no classes, each sample has a label of its own.

    >>> y = np.array([7, 7, 9])
    >>> training_labels(y, "classes"), training_labels(y, "images")
    (array([0, 0, 1]), array([0, 1, 2]))
    """
    return renumber(y) if supervision == "classes" else np.arange(len(y))


@dataclass(frozen=True, eq=False)
class Trainee:
    """A model to train.

    Args:
        model: trained in place.
        method: loss, miner and learning rates.
        view: samples, which all trainees of a `fit` share.
        train: rows of the view to train on.
        validation: samples to validate on.
        seed: of the batches and the augmentation.
        on_epoch: called after each epoch.
        on_validation: called at each validation.
        supervision: what training knows of the samples.
        epochs: epochs after which training ends, without any validation; None: validation ends it.
    """

    model: Model
    method: BuiltMethod
    view: View
    train: Rows
    validation: View
    seed: int
    on_epoch: OnEpoch = ignore_epoch
    on_validation: OnValidation | None = None
    supervision: Supervision = "classes"
    epochs: int | None = None

    @cached_property
    def y(self) -> Labels:
        """Labels that training is given, numbered from 0 over the classes of the fold."""
        return training_labels(self.view.y[self.train], self.supervision)

    @cached_property
    def listed(self) -> Relations | None:
        """Pairs or triplets that training is told, of places among `train`; None where it is told
        none.
        """
        return listed_in(self.view, self.train, self.supervision)
