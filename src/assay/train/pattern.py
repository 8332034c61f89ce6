"""Whether all batches of a training have the same labels, so that a step can be traced with them.

Shapes: N batch.
"""

import numpy as np
import torch
from torch import Tensor

from assay.samplers import samplers
from assay.samplers.sampler import has_fixed_pattern
from assay.train.lists import lay_out
from assay.train.resume import weights_of
from assay.train.trainee import Trainee


def labels_of_all_batches(trainee: Trainee, sampler: str, batch: tuple[int, int]) -> Tensor | None:
    """Return the labels (N,) of every batch, up to the names of the classes; None where batches
    differ in them, or the loss knows classes by name.
    """
    listed = trainee.listed
    if _knows_classes(trainee):
        return None
    if listed is None:
        same = has_fixed_pattern(samplers[sampler])
        return torch.arange(batch[0]).repeat_interleave(batch[1]) if same else None
    if listed.kind == "pairs":  # each of which is positive or negative
        return None
    _, labels_N = lay_out(listed, np.zeros(batch[0], dtype=np.int64))
    return torch.from_numpy(labels_N)


def _knows_classes(trainee: Trainee) -> bool:
    """Return whether the loss depends on which classes are in a batch.

    A loss that has nothing for each class cannot know them. Where all batches have the same pattern
    of labels, such a loss gets the same labels every time, and nothing in it depends on values.
    """
    loss, classes = trainee.method.loss, int(trainee.y.max()) + 1
    return loss.compares in ("classes", "anything") or any(
        held.ndim and len(held) == classes for held in weights_of(loss).values()
    )
