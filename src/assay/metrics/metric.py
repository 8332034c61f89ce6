"""The registry that the modules of this folder fill."""

from typing import Protocol

from torch import Tensor

from assay.registry import Registry


class Metric(Protocol):
    """A score per query from its ranked references."""

    __doc__: str | None

    def __call__(self, relevant: Tensor, total: Tensor) -> Tensor:
        """Scores (Q,) from hits in rank order (Q, K) and the number of relevant references (Q,)."""


metrics = Registry[Metric]("metric")
