"""`Loss`, and `Method`: a loss with its miner, batch and search space; and both registries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.bank import Bank
from assay.fitters import Fitter
from assay.heads import HeadShape
from assay.pairs import (
    Mined,
    References,
    all_pairs,
    as_compared,
    as_pairs,
    as_triplets,
    check_batch,
    check_mined,
    without_autocast,
)
from assay.protocols import BatchKind
from assay.registry import Paper, Registry, foreign_letter
from assay.space import Real, Space, Value

WEIGHTS_LR = Real(1e-6, 1, log=True)
"""Range of `weights_lr`, the learning rate of a method's own weights.

It is in the space of every method that has such weights.
"""

LONGEST_NAME = 100
"""Characters of a method's name, which stands in every row of a table."""

Compares = Literal["pairs", "triplets", "either", "batch", "classes", "anything", "seen"]

WORDS_OF_HEADS = ("linear", "none")
"""Heads that are trained by steps, and no head; any other head has the name of its fitter."""

Start = Literal["any", "pretrained", "random"]
"""Weights that a trunk has before training; given vectors count as pretrained."""


class Seen(NamedTuple):
    """All that a training step knows of its batch, for a loss that looks at more than embeddings.

    Args:
        z: embeddings (N, D), in training mode; of unit length where the loss normalises.
        y: labels (N,).
        x: features (N, F) that the head was given, with their gradient.
        rows: numbers of the samples among the training samples of the fold.
        passes: passes over the training samples that were made before this step.
        head: from features to embeddings, for features that the loss makes up.
    """

    z: Tensor
    y: Tensor
    x: Tensor
    rows: Tensor
    passes: float
    head: Callable[[Tensor], Tensor]


class Loss(nn.Module):
    """A loss over embeddings `z` (N, D) and labels `y` (N,).

    Everything that losses share happens before `forward`, so that a subclass's `forward` is only
    the equation: embeddings and references are normalised alike, half precision becomes single
    precision, and the pairs or triplets of the miner, or else every pair of the batch, come in the
    shape that the loss compares.

    Attributes:
        normalise: whether the loss compares unit vectors.
        compares: `pairs` and `triplets`: `forward(z, y, pairs, references)` with `Pairs` or
            `Triplets`; `either`: with the kind that was mined; `batch`: `forward(z, y)`, which
            takes the batch as a whole; `classes`: `forward(z, y)`, which compares with the loss's
            own weights; `anything`: all arguments as they were given, None included; `seen`:
            `forward(seen)` with `Seen`, which has features and sample numbers too. For `batch`,
            `classes` and `seen` nothing can be mined.
        undecayed: names of weights that are kept out of weight decay.
        every: passes over the training samples between two refreshes; 0: there is none. A parameter
            may set it.
        bank_features: whether a refresh needs the features of all training samples.
        remembers: whether `forward` writes into buffers.
        head_first: epochs at the start in which nothing of the trunk changes, statistics of batch
            normalisation included; after them the optimiser begins anew, for a frozen trunk too.
    """

    normalise: ClassVar[bool] = True
    compares: ClassVar[Compares] = "anything"
    undecayed: ClassVar[tuple[str, ...]] = ()
    every: float = 0
    bank_features: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    head_first: ClassVar[int] = 0
    paper: ClassVar[Paper | None] = None
    departures: ClassVar[tuple[str, ...]] = ()

    weights: nn.Parameter

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.compares not in get_args(Compares):
            raise ValueError(
                f"{cls.__name__}.compares is one of {', '.join(get_args(Compares))}, got"
                f" {cls.compares!r}"
            )

    def setup(self, dim: int, classes: int) -> None:
        """Make the weights that depend on the data.

        There is one weight for each class if the loss compares with classes, else none.
        """
        if self.compares == "classes":
            self.weights = make_weights(classes, dim)

    def head(self, dim: int) -> HeadShape:
        """Return the shape of the head that the loss trains, of `dim` numbers at most."""
        return HeadShape((dim,))

    def prepare(self, samples: int, features: int) -> None:
        """Make the buffers that depend on the number of training samples, or of features.

        It is called after `setup`. All that changes in training and is no weight is in buffers, and
        buffers keep their shapes, so that a training resumes with them after a kill.
        """

    def refresh(self, bank: Bank, draw: np.random.Generator) -> None:
        """Fill buffers in place from all training samples as they are embedded now.

        It is called before the first step and then each `every` passes.
        """

    def batches(
        self, bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
    ) -> NDArray[np.int64] | None:
        """Return the `count` batches until the next refresh, each the rows of classes x images
        samples, or None: they come from a sampler.
        """
        return None

    @property
    def refreshes(self) -> bool:
        """Whether the loss is refreshed from the bank."""
        return self.every > 0

    @classmethod
    def written_in(cls) -> tuple[type, ...]:
        """Return the classes whose source determines the loss: part of a run's key."""
        return tuple(part for part in cls.__mro__ if issubclass(part, Loss) and part is not Loss)

    @classmethod
    def distributions(cls) -> tuple[str, ...]:
        """Return names and versions of the loss's packages, except torch: part of a run's key."""
        return ()

    @classmethod
    def takes_mined(cls) -> bool:
        """Return whether a miner can feed the loss."""
        return cls.compares not in ("batch", "classes", "seen")

    def __call__(
        self, z: Tensor, y: Tensor, mined: Mined | None = None, references: References | None = None
    ) -> Tensor:
        """Return the loss of a batch, a scalar."""
        self._check(z, y)
        with without_autocast(z.device):
            return self._value(as_compared(z, self.normalise), y, mined, references)

    def see(self, seen: Seen) -> Tensor:
        """Return the loss of a batch of which it sees all, a scalar."""
        self._check(seen.z, seen.y)
        with without_autocast(seen.z.device):
            return self._forward(seen._replace(z=as_compared(seen.z, self.normalise)))

    def _value(
        self, z: Tensor, y: Tensor, mined: Mined | None, references: References | None
    ) -> Tensor:
        if self.compares == "seen":
            raise ValueError(
                f"{type(self).__name__} looks at features and sample numbers too: call"
                " see(Seen(...)) instead"
            )
        if self.compares in ("batch", "classes"):
            if mined is not None or references is not None:
                what = (
                    "takes a batch as a whole"
                    if self.compares == "batch"
                    else "compares with its own weights"
                )
                raise ValueError(
                    f"{type(self).__name__} {what}: it takes no mined pairs and no references"
                )
            return self._forward(z, y)
        if references is not None:
            references = References(
                as_compared(references.z, self.normalise), references.y, references.own
            )
        if self.compares == "anything":
            return self._forward(z, y, mined, references)
        references = references or References.of_batch(z, y)
        mined = all_pairs(y, references) if mined is None else mined
        check_mined(mined, len(y), len(references.y))
        if self.compares == "pairs":
            mined = as_pairs(mined, len(y))
        elif self.compares == "triplets":
            mined = as_triplets(mined)
        return self._forward(z, y, mined, references)

    def _forward(self, *arguments: object) -> Tensor:
        value: Tensor = super().__call__(*arguments)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{type(self).__name__} gave a {type(value).__name__}, but a loss is one number in"
                " a tensor; use no .item() or numpy on the way"
            )
        if value.ndim != 0:
            raise ValueError(
                f"{type(self).__name__} gave shape {tuple(value.shape)}, but a loss is one number;"
                " use .mean()"
            )
        return value

    def _check(self, z: Tensor, y: Tensor) -> None:
        check_batch(z, y)
        if self.compares == "classes" and not (self._parameters or self._modules or self._buffers):
            raise ValueError(
                f"{type(self).__name__} compares with weights that it does not have yet: call"
                " setup(dim, classes) first"
            )


def make_weights(*shape: int) -> nn.Parameter:
    """Return weights from N(0, 1/D), D the last dimension: of norm about 1, for every method."""
    return nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5)


@dataclass(frozen=True)
class Method:
    """A loss with its miner, batch and declared search space: what a benchmark compares.

    Args:
        name: the identity, in tables and on the command line.
        loss: the class; None where the head is computed in closed form, or there is none.
        space: the parameters searched and their ranges.
        miner: name of the miner that feeds the loss.
        batch: which of the protocol's batch shapes it trains on; `pairs` is two images of each
            class, `episodes` half as many classes as `embedding` with twice as many images each.
        fixed: parameters that are neither searched nor left at the default of loss or miner.
        own_departures: where the method differs from its paper, in addition to its loss.
        about: one line for lists.
        fitter: computes the head in closed form from features, instead of training with a loss.
        baseline: whether nothing is searched and the head is fitted on all of trainval. Other heads
            in closed form are fitted and validated fold by fold.
        cited: the paper, where there is no loss to name it.
        sampler: name of the method's own sampler; None: the protocol's.
        starts: the weights of the trunk that the method needs; others are refused.
    """

    name: str
    loss: type[Loss] | None
    space: Space = field(default_factory=Space)
    miner: str | None = None
    batch: BatchKind = "embedding"
    fixed: Mapping[str, Value] = field(default_factory=dict)
    own_departures: tuple[str, ...] = ()
    about: str = ""
    fitter: Fitter | None = None
    baseline: bool = False
    cited: Paper | None = None
    sampler: str | None = None
    starts: Start = "any"

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.loss is not None and (self.fitter is not None or self.baseline):
            raise ValueError(
                f"{self.name}: a method with a loss trains its head, so it has no fitter and is no"
                " baseline; leave these out"
            )
        if self.loss is None and self.fitter is None and not self.baseline:
            raise ValueError(
                f"{self.name}: a method has a loss, or a fitter that computes its head; give one of"
                " them"
            )
        if self.fitter and getattr(self.fitter, "__name__", "none") in WORDS_OF_HEADS:
            raise ValueError(
                f"{self.name}: the head of its models is called by the name of the fitter, which is"
                f" a function of a module with a name other than {' and '.join(WORDS_OF_HEADS)};"
                " rename it"
            )
        if self.baseline and self.space:
            raise ValueError(
                f"{self.name}: nothing of a baseline is searched, so its space is empty; leave out"
                " baseline=True to search"
            )
        if self.sampler is not None and self.loss is None:
            raise ValueError(
                f"{self.name}: a head in closed form takes no batches; leave the sampler out"
            )
        if self.miner is not None and (self.loss is None or not self.loss.takes_mined()):
            raise ValueError(
                f"{self.name}: its loss takes no mined pairs or triplets; leave the miner out"
            )
        if self.batch not in get_args(BatchKind):
            raise ValueError(
                f"{self.name}: the batch is one of {', '.join(get_args(BatchKind))}, got"
                f" {self.batch!r}"
            )
        both = sorted(set(self.fixed) & set(self.space))
        if both:
            raise ValueError(
                f"{self.name}: the parameter {both[0]!r} is both fixed and searched; choose one"
            )

    @property
    def head(self) -> str:
        """The step from features to embeddings, in a word: `linear` where it is trained, the name
        of the fitter, or `none`.
        """
        if self.loss is not None:
            return "linear"
        return "none" if self.fitter is None else self.fitter.__name__

    @property
    def normalise(self) -> bool:
        """Whether the loss sees unit vectors."""
        return self.loss is None or self.loss.normalise

    @property
    def paper(self) -> Paper | None:
        """Paper of the loss, or of a head in closed form."""
        return self.cited if self.loss is None else self.loss.paper

    @property
    def departures(self) -> tuple[str, ...]:
        """Differences of the loss and of the method from the paper."""
        return (
            self.own_departures
            if self.loss is None
            else (*self.loss.departures, *self.own_departures)
        )


def _check_name(name: str) -> None:
    """Raise a `ValueError` for a name that tables, files or `--methods` could not hold, or that
    looks like another.
    """
    if foreign := foreign_letter(name):
        raise ValueError(
            f"a method cannot be called {name!r}: {foreign}; use ASCII letters, digits and signs"
        )
    if (
        not name.isprintable()
        or not 0 < len(name) <= LONGEST_NAME
        or name != name.strip()
        or "," in name
        or name == "all"
        or name.endswith(".twin")
    ):
        raise ValueError(
            f"a method cannot be called {name!r}: a name has 1 to {LONGEST_NAME} printable"
            " characters without a comma, does not begin or end with a space, is not 'all', and"
            " does not end in .twin, as controls do"
        )


class MethodRegistry(Registry[Method]):
    """Methods by name."""

    def add(self, *methods: Method) -> None:
        """Register each under its own name."""
        for method in methods:
            self.set(method.name, method)


methods = MethodRegistry("method")

losses = Registry[type[Loss]]("loss")
"""Losses by name. Every module of this folder registers its own."""
