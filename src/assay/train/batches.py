"""What a training is fed: how many batches an epoch has, and the batches themselves."""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from assay.data.augment import CPU, augment
from assay.data.packs import View, renumber
from assay.hashing import derive
from assay.protocols import ResolvedProtocol
from assay.samplers import samplers


def iterations_of(protocol: ResolvedProtocol, samples: int, batch: tuple[int, int]) -> int:
    """Training steps in an epoch over a fold of so many samples: as many as the protocol says, else
    one pass.

    A pass over few samples would be over before there is anything to validate: it has at least
    `shortest_epoch` steps.

    >>> from dataclasses import replace
    >>> from assay.protocols import Protocol, resolve
    >>> from assay.trunks import trunk_facts
    >>> one_pass = resolve(Protocol("p.v1", iterations=None), "features", trunk_facts)
    >>> iterations_of(one_pass, 100, (8, 4))
    3
    >>> iterations_of(replace(one_pass, shortest_epoch=50), 100, (8, 4))
    50
    """
    if protocol.iterations is not None:
        return protocol.iterations
    return max(protocol.shortest_epoch, samples // (batch[0] * batch[1]))


def draw_batches(
    train: View,
    protocol: ResolvedProtocol,
    batch: tuple[int, int],
    seed: int,
    device: torch.device = CPU,
    draw: torch.Generator | None = None,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented batches for ever; labels are numbered from 0 over the classes of this fold.

    The first `start` batches are drawn and left out, none of their images read; `draw` is the
    generator of the augmentation.
    """
    labels = renumber(train.y)
    draw = draw or augmentation(seed)
    drawn = samplers[protocol.sampler](labels, batch, derive(seed, "batches"))
    for indices in islice(drawn, start, None):
        x = augment(train.x[indices], protocol.augment, protocol.size, draw, device)
        yield x, torch.from_numpy(labels[indices])


def augmentation(seed: int) -> torch.Generator:
    """The generator from which the crops of a run are drawn."""
    return torch.Generator().manual_seed(derive(seed, "augment"))
