"""A model: trunk and head, and its files.

The weights are one safetensors file with the architecture in its header. A model folder holds them
and a card, which says where the model comes from.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from assay.errors import BadInput
from assay.files import new_folder, read_json, regular
from assay.hashing import canonical, pretty
from assay.protocols import (
    RANDOM_WEIGHTS,
    FirstStep,
    Pooling,
    Resize,
    ResolvedProtocol,
    Similarity,
)
from assay.records.codec import FORMAT, BadRecord, check_format
from assay.records.run import CARD, WEIGHTS
from assay.trunks import build, weights


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build a model and to prepare its inputs.

    Args:
        trunk: name of the trunk.
        inputs: channels of an image, or width of a vector.
        size: side of the square input in pixels; 0 for vectors.
        dim: width of an embedding; 0: there is no head, the features are the embedding.
        pooling: how a convolutional trunk's maps become features.
        layer_norm: whether features are standardised before the head.
        resize: how an image is scaled before the centre is cut out of it.
        stored: side of the scaled image; 0 for vectors.
        similarity: how embeddings are compared.
    """

    trunk: str
    inputs: int
    size: int
    dim: int
    pooling: Pooling = "avg"
    layer_norm: bool = False
    resize: Resize = "square"
    stored: int = 0
    similarity: Similarity = "cosine"

    @classmethod
    def under(
        cls, protocol: ResolvedProtocol, inputs: int, dim: int | None = None
    ) -> "Architecture":
        """Return what runs of a protocol train: the head if the trunk is frozen, else the model."""
        width = protocol.dim if dim is None else dim
        if protocol.frozen == "trunk":
            return cls(
                "identity",
                inputs,
                0,
                width,
                layer_norm=protocol.layer_norm,
                similarity=protocol.similarity,
            )
        return cls.whole(protocol, inputs, width)

    @classmethod
    def whole(cls, protocol: ResolvedProtocol, inputs: int, dim: int) -> "Architecture":
        """Return trunk and head of a protocol, whether the trunk is frozen or not."""
        step = protocol.first_step
        return cls(
            trunk=protocol.trunk,
            inputs=inputs,
            size=protocol.size,
            dim=dim,
            pooling=protocol.pooling,
            layer_norm=protocol.layer_norm,
            resize=step.kind,
            stored=step.side,
            similarity=protocol.similarity,
        )

    @property
    def first_step(self) -> FirstStep:
        """How an image is scaled before its centre is cut out."""
        return FirstStep(self.resize, self.stored or self.size)

    @property
    def described(self) -> dict[str, Any]:
        """The fields as files hold them, without the similarity if it is the usual one."""
        return {
            name: value
            for name, value in vars(self).items()
            if (name, value) != ("similarity", "cosine")
        }


class Model(nn.Module):
    """Trunk and linear head, with random weights from torch's generator.

    Its output (N, dim) is not normalised.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.trunk = build(architecture.trunk, architecture.inputs, architecture.pooling)
        self.norm = (
            nn.LayerNorm(self.trunk.features, elementwise_affine=False)
            if architecture.layer_norm
            else nn.Identity()
        )
        self.head = (
            nn.Linear(self.trunk.features, architecture.dim) if architecture.dim else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings (N, dim)."""
        z: Tensor = self.head(self.norm(self.trunk(x)))
        return z

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all weights and running statistics, on the CPU."""
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.state_dict().items()
        }


def untrained_model(architecture: Architecture, digest: str) -> Model:
    """Return a model before training.

    Its trunk has the weights with this hash, or random ones if it is `none`; its head is random.
    """
    model = Model(architecture)
    if digest != RANDOM_WEIGHTS and architecture.trunk != "identity":
        weights.load_weights(model.trunk, digest)
    return model


def with_trunk(trained: Model, protocol: ResolvedProtocol, inputs: int) -> Model:
    """Return the whole model: the trained one, or the frozen trunk with the trained head."""
    if protocol.frozen != "trunk":
        return trained
    whole = Architecture.whole(protocol, inputs, trained.architecture.dim)
    model = untrained_model(whole, protocol.weights)
    model.norm, model.head = trained.norm, trained.head
    return model


def pack_model(architecture: Architecture, state: Mapping[str, Tensor]) -> bytes:
    """Return the weights as a safetensors file, with the architecture in its header."""
    packed: bytes = save(dict(state), metadata={"architecture": canonical(architecture.described)})
    return packed


def read_model(path: Path) -> Model:
    """Read a model from a file of weights."""
    with safe_open(str(regular(path)), framework="pt") as file:
        architecture = Architecture(**json.loads(file.metadata()["architecture"]))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = Model(architecture)
    model.load_state_dict(state)
    return model


def write_model_folder(folder: Path, model: Model, card: Mapping[str, Any]) -> None:
    """Write a model folder: the weights, and a card that says where the model comes from."""
    with new_folder(folder) as draft:
        (draft / WEIGHTS).write_bytes(pack_model(model.architecture, model.state()))
        (draft / CARD).write_text(
            pretty({"format": FORMAT, "architecture": model.architecture.described, **card}),
            encoding="utf-8",
        )


def read_model_folder(folder: Path) -> tuple[Model, dict[str, Any]]:
    """Read the model in a folder, and its card; raise `BadInput` if that is not possible."""
    try:
        card = dict(read_json(folder / CARD))
        check_format(card.get("format"), str(folder / CARD))
        return read_model(folder / WEIGHTS), card
    except BadRecord:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise BadInput(
            f"{folder} cannot be read as a model folder ({error}); make it again with `assay train`"
        ) from None
