"""Batches: how many an epoch has, and which samples are in each."""

from collections.abc import Iterator
from itertools import islice

from assay.data.dataset import Labels
from assay.hashing import derive
from assay.protocols import ResolvedProtocol
from assay.samplers import samplers

Drawn = tuple[Labels, Labels]
"""A batch before any sample is read: indices into the training samples, and their labels."""


def iterations_of(protocol: ResolvedProtocol, samples: int, batch: tuple[int, int]) -> int:
    """Return the training steps of an epoch over this many samples.

    The protocol gives their number, or an epoch is one pass. A pass over few samples would end
    before there is anything to validate, so it has at least `shortest_epoch` steps.

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
    labels: Labels, protocol: ResolvedProtocol, batch: tuple[int, int], seed: int, start: int = 0
) -> Iterator[Drawn]:
    """Return endless batches from the protocol's sampler, without the first `start`.

    `labels` are those of the training samples, numbered from 0. No sample is read: the stepper
    gathers the samples of its batch.
    """
    drawn = samplers[protocol.sampler](labels, batch, derive(seed, "batches"))
    return ((indices, labels[indices]) for indices in islice(drawn, start, None))
