"""A model: trunk and head, and its files.

The weights are one safetensors file with the architecture in its header. A model folder holds them,
trunk included, and a card, which says where the model comes from and has the hash of the weights.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from assay.data.origin import FeaturesOrigin
from assay.errors import BadInput, reason_of
from assay.files import new_folder, open_file, parse_json
from assay.hashing import canonical, digest_bytes, digest_file, pretty
from assay.heads import HeadShape, joined
from assay.protocols import (
    RANDOM_WEIGHTS,
    FirstStep,
    Pooling,
    Resize,
    ResolvedProtocol,
    Similarity,
)
from assay.records.codec import FORMAT, BadRecord, check_types
from assay.records.run import CARD, REMAKE, WEIGHTS, read_card
from assay.trunks import build, find, weights

LARGEST_SIDE = 10_000
"""Pixels of a side of an image above which no model takes it."""

UNREADABLE = (OSError, MemoryError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)
"""Errors from reading a damaged file of weights."""


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
        unit_features: whether features are scaled to unit length before the head.
        parts: widths of the head's parts, each of unit length in an embedding; empty: it has one.
        part_weights: weights of the parts in the similarity; empty: all are equal.
        bias: whether the head has a bias.
        dropout: share of the head's outputs that are set to 0 in training.
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
    unit_features: bool = False
    parts: tuple[int, ...] = ()
    part_weights: tuple[float, ...] = ()
    bias: bool = True
    dropout: float = 0.0

    @classmethod
    def under(
        cls, protocol: ResolvedProtocol, inputs: int, head: HeadShape | None = None
    ) -> "Architecture":
        """Return what runs of a protocol train: the head if the trunk is frozen, else the model.

        Without a head, features are the embedding.
        """
        on_vectors = protocol.frozen == "trunk"
        bare = cls("identity", inputs, 0, 0) if on_vectors else cls.whole(protocol, inputs)
        settled = replace(bare, layer_norm=protocol.layer_norm, similarity=protocol.similarity)
        return settled if head is None else settled.with_head(head)

    @classmethod
    def whole(cls, protocol: ResolvedProtocol, inputs: int) -> "Architecture":
        """Return the trunk of a protocol, whether it is frozen or not, without a head."""
        step = protocol.first_step
        return cls(
            trunk=protocol.trunk,
            inputs=inputs,
            size=protocol.size,
            dim=0,
            pooling=protocol.pooling,
            layer_norm=protocol.layer_norm,
            resize=step.kind,
            stored=step.side,
            similarity=protocol.similarity,
        )

    def with_head(self, head: HeadShape) -> "Architecture":
        """Return the architecture with a head of this shape."""
        several = len(head.parts) > 1
        return replace(
            self,
            dim=head.dim,
            layer_norm=self.layer_norm or head.layer_norm,
            parts=head.parts if several else (),
            part_weights=head.weights if several else (),
            bias=head.bias,
            dropout=head.dropout,
        )

    def with_head_of(self, other: "Architecture") -> "Architecture":
        """Return the architecture with the head of another one."""
        names = "dim", "layer_norm", "similarity", "parts", "part_weights", "bias", "dropout"
        return replace(self, **{name: getattr(other, name) for name in names})

    @classmethod
    def of_features(cls, origin: FeaturesOrigin) -> "Architecture":
        """Return the trunk that made features, without a head."""
        return cls(
            origin.trunk,
            origin.inputs,
            origin.size,
            dim=0,
            pooling=origin.pooling,
            resize=origin.resize,
            stored=origin.stored,
            unit_features=origin.unit,
        )

    @property
    def first_step(self) -> FirstStep:
        """How an image is scaled before its centre is cut out."""
        return FirstStep(self.resize, self.stored or self.size)

    @property
    def described(self) -> dict[str, Any]:
        """The fields as files hold them, without those of few models at their usual values."""
        usual = {item.name: item.default for item in fields(self)}
        rare = (
            "similarity", "unit_features", "parts", "part_weights", "bias", "dropout",
        )  # fmt: skip
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name not in rare or value != usual[name]
        }


class Model(nn.Module):
    """Trunk and linear head, with random weights from torch's generator.

    Its output (N, dim) is not normalised. Where the head has several parts, they are joined in
    evaluation mode (`assay.heads.joined`), and in training come as the head gives them.
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
            nn.Linear(self.trunk.features, architecture.dim, bias=architecture.bias)
            if architecture.dim
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings (N, dim)."""
        return self.embed_features(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return what the head is given, before any standardisation (N, features)."""
        features: Tensor = self.trunk(x)
        return F.normalize(features, dim=1) if self.architecture.unit_features else features

    def embed_features(self, features: Tensor) -> Tensor:
        """Return embeddings (N, dim) of features."""
        z: Tensor = self.head(self.norm(features))
        if self.architecture.dropout:
            z = F.dropout(z, self.architecture.dropout, self.training)
        if self.architecture.parts and not self.training:
            z = joined(z, self.architecture.parts, self.architecture.part_weights)
        return z

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all weights and running statistics, on the CPU."""
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.state_dict().items()
        }


class Size(NamedTuple):
    """How large a model is.

    Args:
        parameters: numbers of trunk and head; running statistics are not among them.
        dim: numbers of an embedding.
    """

    parameters: int
    dim: int


def size_of(architecture: Architecture) -> Size:
    """Return the size of every model of an architecture; leave torch's generator as it is."""
    return _size(architecture, cast("Hashable", find(architecture.trunk)))


@lru_cache(maxsize=128)
def _size(architecture: Architecture, trunk: Hashable) -> Size:
    """Return the size; of another trunk that was registered by the same name it is another."""
    with torch.random.fork_rng(devices=[]):
        model = Model(architecture)
    return Size(count_numbers(model), architecture.dim or model.trunk.features)


def count_numbers(*modules: nn.Module) -> int:
    """Return how many numbers the weights of modules have together.

    >>> count_numbers(nn.Linear(3, 2), nn.BatchNorm1d(4))
    16
    """
    return sum(weight.numel() for module in modules for weight in module.parameters())


def untrained_model(architecture: Architecture, digest: str) -> Model:
    """Return a model before training.

    Its trunk has the weights with this hash, or random ones if it is `none`; its head is random.
    """
    model = Model(architecture)
    if digest != RANDOM_WEIGHTS and architecture.trunk != "identity":
        weights.load_weights(model.trunk, digest)
    return model


def has_frozen_trunk(protocol: ResolvedProtocol) -> bool:
    """Return whether runs take the features of a trunk of images that is not trained."""
    return protocol.frozen == "trunk" and protocol.trunk != "identity"


def architecture_at_test(
    trained: Architecture, protocol: ResolvedProtocol, inputs: int
) -> Architecture:
    """Return the architecture of the whole model: as it was trained, or the frozen trunk with the
    trained head.
    """
    if not has_frozen_trunk(protocol):
        return trained
    return Architecture.whole(protocol, inputs).with_head_of(trained)


def with_trunk(trained: Model, protocol: ResolvedProtocol, inputs: int) -> Model:
    """Return the whole model: the trained one, or the frozen trunk with the trained head."""
    if protocol.frozen != "trunk":
        return trained
    whole = Architecture.whole(protocol, inputs).with_head_of(trained.architecture)
    model = untrained_model(whole, protocol.weights)
    model.norm, model.head = trained.norm, trained.head
    return model


def has_trunk_weights(model: Model, digest: str) -> bool:
    """Return whether the trunk of a model is that of `untrained_model`, with the weights of this
    hash and all else as it is built.
    """
    architecture = model.architecture
    with torch.random.fork_rng(devices=[]):
        built = build(architecture.trunk, architecture.inputs, architecture.pooling)
    return weights.holds(model.trunk, digest, built)


def head_of(model: Model) -> Model:
    """Return the head of a model by itself.

    It takes features of the model's trunk, of unit length where the model scales them so.
    """
    alone = Architecture("identity", model.trunk.features, 0, 0)
    head = Model(alone.with_head_of(model.architecture))
    head.norm, head.head = model.norm, model.head
    return head


def join_trunk(trained: Model, origin: FeaturesOrigin) -> Model:
    """Return the trunk that made features, with a head that was trained on them, as one model.

    Raise `BadInput` where its weights are not in the cache, for nothing is fetched here, or its
    features are of another width.
    """
    head = trained.architecture
    whole = Architecture.of_features(origin).with_head_of(head)
    weights.check_kept(origin.trunk, origin.weights)
    model = untrained_model(whole, origin.weights)
    if model.trunk.features != head.inputs:
        raise BadInput(
            f"{origin.trunk} has {model.trunk.features} features, the vectors have {head.inputs}"
            " numbers"
        )
    model.norm, model.head = trained.norm, trained.head
    return model


def pack_model(architecture: Architecture, state: Mapping[str, Tensor]) -> bytes:
    """Return the weights as a safetensors file, with the architecture in its header."""
    packed: bytes = save(dict(state), metadata={"architecture": canonical(architecture.described)})
    return packed


def read_model(path: Path) -> Model:
    """Read a model from a file of weights."""
    architecture = read_architecture(path)
    with safe_open(str(path), framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = Model(architecture)
    model.load_state_dict(state)
    return model


def read_architecture(path: Path) -> Architecture:
    """Read the architecture of a model from the header of its file of weights."""
    open_file(path).close()  # says in words where it is no file
    with safe_open(str(path), framework="pt") as file:
        architecture = _architecture_in(file.metadata(), path)
        head = file.get_slice("head.weight").get_shape()[0] if architecture.dim else 0
    if head != architecture.dim:  # a model that large would be made before it is found out
        raise ValueError(f"its head has {head} dimensions, not {architecture.dim}")
    return architecture


def _architecture_in(header: Mapping[str, str] | None, path: Path) -> Architecture:
    """Return the architecture in the header of the file of weights, or raise `ValueError`."""
    if header is None or "architecture" not in header:
        raise ValueError("its header has no architecture")
    document = parse_json(header["architecture"].encode())
    if not isinstance(document, dict):
        raise ValueError("its architecture is no JSON object")
    check_types(Architecture, document, f"{path}, architecture", REMAKE)
    lists = {name: tuple(one) for name, one in document.items() if isinstance(one, list)}
    found = Architecture(**(document | lists))
    sides = (found.size, found.stored)
    if found.dim < 0 or found.inputs < 1 or min(sides) < 0 or max(sides) > LARGEST_SIDE:
        raise ValueError(f"no model has the architecture {header['architecture']}")
    if found.dim:
        shape = HeadShape(found.parts or (found.dim,), found.part_weights, dropout=found.dropout)
        if shape.dim != found.dim:
            raise ValueError(f"its head has {found.dim} dimensions, its parts have {shape.dim}")
    return found


def write_model_folder(
    folder: Path,
    model: Model,
    card: Mapping[str, Any],
    others: Mapping[str, bytes] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Write a model folder: weights, a card that says where the model comes from, other files.

    A folder that is there stays as it is, but for `replace`.
    """
    with new_folder(folder, replace) as draft:
        for name, other in (others or {}).items():
            (draft / name).write_bytes(other)
        content = pack_model(model.architecture, model.state())
        (draft / WEIGHTS).write_bytes(content)
        about = {
            "format": FORMAT,
            "architecture": model.architecture.described,
            "sha256": digest_bytes(content),
        }
        (draft / CARD).write_text(pretty({**about, **card}), encoding="utf-8")


def read_model_folder(folder: Path) -> tuple[Model, dict[str, Any]]:
    """Read the model in a folder, and its card.

    Raise `BadInput` if that is not possible, if the weights are not those that the card was written
    with, or if they are no numbers.
    """
    try:
        card = read_card(folder)
        model, found = read_model(folder / WEIGHTS), digest_file(folder / WEIGHTS)
    except BadRecord:
        raise
    except UNREADABLE as error:
        raise BadInput(
            f"{folder / WEIGHTS} cannot be read as the weights of a model"
            f" ({reason_of(error)}){REMAKE}"
        ) from None
    described = model.architecture.described
    for name, own in {"sha256": found, "architecture": described}.items():
        if card.get(name) != own:
            raise BadInput(
                f"{folder / WEIGHTS} is not the file that {CARD} was written with: it has another"
                f" {name}, so one of the two was altered or exchanged; restore the model folder"
                " from a copy, or make it again"
            )
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise BadInput(
                f"{folder / WEIGHTS}: {name} holds NaN or infinity, which gives no embedding: its"
                " training diverged, or the file was edited; make the model again"
            )
    return model, card
