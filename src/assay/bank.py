"""The memory bank: all training samples as the model embeds them. Shapes: N samples, D dims."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Bank:
    """The training samples of a run, as planned batches and refreshed losses see them.

    Args:
        z: embeddings (N, D) on the CPU, as they are compared; a row that was not finite is zeros.
        y: labels (N,), numbered from 0 over the classes of the fold.
        x: features (N, F) before the head; None unless the loss asks for them (`bank_features`).
    """

    z: Tensor
    y: Tensor
    x: Tensor | None = None
