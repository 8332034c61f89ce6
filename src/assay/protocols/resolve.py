"""Replace `auto` settings by values that suit the data and what is trained."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from assay.protocols.protocol import Augment, Batch, Kind, Length, Modality, Optimiser, Protocol

_Settings = TypeVar("_Settings", Augment, Batch, Optimiser)

_AUTO: dict[Modality, tuple[str, int, Augment]] = {
    "drawing": (
        "conv",
        28,
        Augment(area=(0.7, 1.0), aspect=(0.85, 1.18), flip=0.0, rotation=10.0, shear=10.0),
    ),
    "photo": (
        "conv",
        48,
        Augment(area=(0.4, 1.0), aspect=(0.75, 1.3333), flip=0.5, rotation=0.0, shear=0.0),
    ),
    "features": (
        "identity",
        0,
        Augment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0),
    ),
}


_TRAINING: dict[Kind, tuple[Length, Optimiser, Batch]] = {
    "vectors": (
        Length(epochs=30, validate_every=1, patience=2, shortest_epoch=30),
        Optimiser(lr=2e-3, schedule="constant"),
        Batch(embedding=(16, 4), classification=(64, 1)),
    ),
    "images": (
        Length(epochs=3, validate_every=1, patience=3, shortest_epoch=80),
        Optimiser(lr=3e-3, schedule="cosine"),
        Batch(embedding=(8, 4), classification=(32, 1)),
    ),
}
"""Length of training, learning rate, schedule and batches, of a head on vectors and of a network on
images.
"""


def kind_of(modality: Modality) -> Kind:
    """What samples of this modality are.

    >>> kind_of("drawing")
    'images'
    """
    return "vectors" if modality == "features" else "images"


def resolve(protocol: Protocol, modality: Modality) -> Protocol:
    """Return the protocol with every `auto` replaced by what suits the modality of the data.

    Settings for images are ignored for vectors.

    >>> resolve(Protocol("p.v1"), "features").trunk
    'identity'
    >>> resolve(Protocol("p.v1", size=227, stored=256), "features").first_step
    FirstStep(kind='square', side=0)
    """
    trunk, size, augment = _AUTO[modality]
    named = replace(protocol, trunk=trunk) if protocol.trunk == "auto" else protocol
    if kind_of(modality) == "vectors":
        return replace(
            named, size=size, resize="square", stored=None, form="pixels", augment=augment
        )
    augment = _fill_auto(protocol.augment, vars(augment))
    return replace(
        named, size=protocol.size if protocol.size is not None else size, augment=augment
    )


def resolve_training(protocol: Protocol, trained_on: Kind) -> Protocol:
    """Return the protocol with every `auto` of training replaced: for a head on vectors, or a
    network on images.

    >>> resolve_training(Protocol("p.v1", epochs=None, patience=7), "vectors").length
    Length(epochs=30, validate_every=2, patience=7, shortest_epoch=1)
    """
    length, optimiser, batch = _TRAINING[trained_on]
    return replace(
        protocol,
        optimiser=_fill_auto(
            protocol.optimiser, {"lr": optimiser.lr, "schedule": optimiser.schedule}
        ),
        batch=_fill_auto(protocol.batch, vars(batch)),
        **{name: value for name, value in vars(length).items() if getattr(protocol, name) is None},
    )


def _fill_auto(settings: _Settings, values: Mapping[str, Any]) -> _Settings:
    """Return the settings with these values in the place of `auto`."""
    return replace(
        settings,
        **{name: value for name, value in values.items() if getattr(settings, name) is None},
    )
