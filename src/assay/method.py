"""What a method is: a loss with its miner, batch and search space; and the registry that a loss's own file fills."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from assay.pairs import Pairs, References, Triplets
from assay.registry import Paper, Registry
from assay.space import Real, Space

WEIGHTS_LR = Real(1e-6, 1, log=True)
"""Range of `weights_lr`, the learning rate of a method's own weights, in the space of every method that has some."""


class Loss(nn.Module):
    """A loss over embeddings `z` (N, D) and labels `y` (N,).

    `normalise` is applied here, to embeddings and references alike, so that a subclass's `forward` is the equation.
    """

    normalise: ClassVar[bool] = True
    paper: ClassVar[Paper | None] = None
    departures: ClassVar[tuple[str, ...]] = ()

    def setup(self, dim: int, classes: int) -> None:
        """Make the weights that depend on the data (proxies); most losses have none."""

    def __call__(
        self,
        z: Tensor,
        y: Tensor,
        mined: Pairs | Triplets | None = None,
        references: References | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar."""
        _check_batch(z, y)
        if self.normalise:
            z = F.normalize(z, dim=1)
            if references is not None:
                references = References(F.normalize(references.z, dim=1), references.y, references.own)
        loss: Tensor = super().__call__(z, y, mined, references)
        return loss


@dataclass(frozen=True)
class Method:
    """A loss with its miner, batch and declared search space: what a benchmark compares.

    Args:
        name: its identity, in tables and on the command line.
        loss: the class; None for the untrained baseline.
        space: the parameters searched and their ranges.
        miner: name of the miner that feeds the loss.
        batch: which of the protocol's batch shapes it trains on.
        about: one line for lists.
    """

    name: str
    loss: type[Loss] | None
    space: Space
    miner: str | None = None
    batch: Literal["embedding", "classification"] = "embedding"
    about: str = ""

    @property
    def normalise(self) -> bool:
        """Whether the loss sees unit vectors."""
        return self.loss is None or self.loss.normalise

    @property
    def paper(self) -> Paper | None:
        """Where the loss comes from."""
        return None if self.loss is None else self.loss.paper

    @property
    def departures(self) -> tuple[str, ...]:
        """Where the loss differs from its paper."""
        return () if self.loss is None else self.loss.departures


class Methods(Registry[Method]):
    """Methods by name."""

    def add(self, *methods: Method) -> None:
        """Register each under its own name."""
        for method in methods:
            self.set(method.name, method)


methods = Methods("method")


def _check_batch(z: Tensor, y: Tensor) -> None:
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise ValueError(f"a loss takes z of shape (N, D) and y of shape (N,), got {tuple(z.shape)} and {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"labels are integers, got {y.dtype}; use y.long()")
