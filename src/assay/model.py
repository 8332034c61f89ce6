"""A model: trunk and head, kept as one safetensors file that says what it is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from assay.canonical import canonical
from assay.trunks import build


@dataclass(frozen=True)
class Architecture:
    """What must be known to build the model again.

    Args:
        trunk: name of the trunk.
        inputs: channels of an image, or width of a vector.
        size: side of the square input in pixels; 0 for vectors.
        dim: width of an embedding.
    """

    trunk: str
    inputs: int
    size: int
    dim: int


class Model(nn.Module):
    """Trunk and linear head, from torch's current random state; its output is not yet normalised."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.trunk = build(architecture.trunk, architecture.inputs)
        self.head = nn.Linear(self.trunk.features, architecture.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (N, dim)."""
        z: Tensor = self.head(self.trunk(x))
        return z

    def state(self) -> dict[str, Tensor]:
        """A copy of all weights and running statistics, on the CPU."""
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in self.state_dict().items()
        }


def pack_model(architecture: Architecture, state: Mapping[str, Tensor]) -> bytes:
    """The weights as a safetensors file, the architecture in its header."""
    packed: bytes = save(dict(state), metadata={"architecture": canonical(architecture)})
    return packed


def read_model(path: Path) -> Model:
    """The model kept at `path`."""
    with safe_open(str(path), framework="pt") as file:
        architecture = Architecture(**json.loads(file.metadata()["architecture"]))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = Model(architecture)
    model.load_state_dict(state)
    return model
