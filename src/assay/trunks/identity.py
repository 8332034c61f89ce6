"""The trunk for data that are features already."""

from torch import Tensor

from assay.errors import BadInput
from assay.protocols import Pooling
from assay.trunks.trunk import Trunk, trunks


@trunks("identity")
class Identity(Trunk):
    """Passes vectors on as they are: a linear head on frozen features."""

    takes = "vectors"

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__(inputs, pooling)
        if pooling != "avg":
            raise BadInput(
                f"--set pooling={pooling}: the trunk 'identity' takes vectors, which have no"
                " positions to pool"
            )
        self.features = inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors."""
        return x
