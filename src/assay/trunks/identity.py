"""The trunk of features that come ready made."""

from torch import Tensor

from assay.trunks.trunk import Trunk, trunks


@trunks("identity")
class Identity(Trunk):
    """Passes vectors on as they are: a linear head on frozen features."""

    deterministic = True
    takes = "vectors"

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs)
        self.features = inputs

    def forward(self, x: Tensor) -> Tensor:
        """The vectors."""
        return x
