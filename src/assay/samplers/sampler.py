"""The interface of a sampler, and the registry that the modules of this folder fill."""

from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from assay.bank import Bank
from assay.errors import BadInput
from assay.registry import Paper, Registry

Indices = NDArray[np.int64]


class Sampler(Protocol):
    """A function that draws batches without end.

    Everything random in it comes from `seed`: equal arguments give equal batches. A training that
    resumes after a kill calls the sampler again and skips the batches it has used, so a sampler
    must not change with the time, the model, or the batches that were asked for before.

    A sampler whose batches all have the same pattern of labels declares that with `fixed_pattern`.
    """

    __doc__: str | None

    def __call__(self, y: Indices, batch: tuple[int, int], seed: int) -> Iterator[Indices]:
        """Return an endless iterator of batches, each an array of indices into `y`.

        Args:
            y: label of each training sample, numbered from 0 over the classes of the fold.
            batch: classes x images per class.
            seed: of everything random.
        """


class Planner(Protocol):
    """A function that plans batches from the memory bank: from where all training samples lie.

    Everything random in it comes from `draw`: equal arguments give equal batches. It is declared
    with `plans`, which says which bank it gets.
    """

    __doc__: str | None

    def __call__(
        self, bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
    ) -> Indices:
        """Return `count` batches (count, B), each of rows of the bank.

        B is classes x images, or near it where batches are lists of triplets or the like; it
        depends on `batch` alone.

        Args:
            bank: embeddings and labels of all training samples.
            batch: classes x images per class.
            count: number of batches.
            draw: generator of everything random.
        """


AnyPlanner = TypeVar("AnyPlanner", bound=Planner)

BankKind = Literal["kept", "fresh"]
"""`kept`: the bank is embedded once, before training; each step then replaces the rows of its
batch; the batches of an epoch are planned at its start. `fresh`: the whole bank is embedded again
each `refresh` steps of the protocol (a pass, unless it says otherwise), and the batches up to the
next time are planned then.
"""


def plans(bank: BankKind) -> Callable[[AnyPlanner], AnyPlanner]:
    """Declare that a sampler plans its batches from the memory bank, and from which."""
    if bank not in get_args(BankKind):
        raise ValueError(
            f"a sampler plans from a bank that is {' or '.join(get_args(BankKind))}, got {bank!r};"
            ' write @plans("fresh") above it'
        )

    def declare(planner: AnyPlanner) -> AnyPlanner:
        planner.bank = bank  # type: ignore[attr-defined]
        return planner

    return declare


def lists_of(samples: int) -> Callable[[AnyPlanner], AnyPlanner]:
    """Declare that the batches of a sampler are lists of so many samples each, as many as fit."""

    def declare(planner: AnyPlanner) -> AnyPlanner:
        planner.lists_of = samples  # type: ignore[attr-defined]
        return planner

    return declare


def size_of_batch(sampler: "Sampler | Planner", batch: tuple[int, int]) -> int:
    """Return how many samples a batch of classes x images of each holds.

    >>> from assay.samplers import samplers
    >>> [size_of_batch(samplers[name], (8, 4)) for name in ("balanced", "offline_triplets")]
    [32, 30]
    """
    samples: int = getattr(sampler, "lists_of", 1)
    return max(1, batch[0] * batch[1] // samples) * samples


def bank_of(sampler: "Sampler | Planner") -> BankKind | None:
    """Return which bank a sampler plans its batches from; None: it needs none."""
    return getattr(sampler, "bank", None)


AnySampler = TypeVar("AnySampler", bound="Sampler | Planner")


def fixed_pattern(sampler: AnySampler) -> AnySampler:
    """Declare that every batch of a sampler has the same pattern of labels.

    That is: C different classes, M images of each, side by side. Then all batches have the labels
    0 .. C-1, each M times, up to the names of the classes. Heads on vectors train faster with such
    batches, where the loss has no weights for classes.
    """
    sampler.fixed_pattern = True  # type: ignore[union-attr]
    return sampler


def cites(paper: Paper) -> Callable[[AnySampler], AnySampler]:
    """Declare the paper that a sampler is from."""

    def declare(sampler: AnySampler) -> AnySampler:
        sampler.paper = paper  # type: ignore[union-attr]
        return sampler

    return declare


def paper_of(sampler: "Sampler | Planner") -> Paper | None:
    """Return the paper of a sampler; None: it names none."""
    return getattr(sampler, "paper", None)


def has_fixed_pattern(sampler: "Sampler | Planner") -> bool:
    """Return whether a sampler declares that all batches have the same pattern of labels."""
    return getattr(sampler, "fixed_pattern", False)


def check_pattern(name: str, labels: Indices, batch: tuple[int, int]) -> None:
    """Raise `BadInput` unless a batch has the pattern of labels that its sampler declares."""
    classes, images = batch
    of_slots = labels.reshape(classes, -1) if len(labels) == classes * images else None
    if of_slots is None or (
        (of_slots != of_slots[:, :1]).any() or len(np.unique(of_slots[:, 0])) < classes
    ):
        raise BadInput(
            f"the sampler {name} declares a fixed pattern, and its first batch is not {classes}"
            f" different classes with {images} images each, side by side; remove @fixed_pattern"
        )


samplers = Registry[Sampler | Planner]("sampler")
