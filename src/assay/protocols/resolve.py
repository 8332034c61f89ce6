"""From a protocol as it is declared to a `ResolvedProtocol`, in which nothing is `auto`."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import BadInput
from assay.protocols.batch import Batch, BatchKind
from assay.protocols.protocol import (
    LISTED,
    NOT_TRAINING,
    Augment,
    Frozen,
    Modality,
    Optimiser,
    Protocol,
    Resize,
    SampleKind,
    Schedule,
    read_given,
    settings_of,
)
from assay.protocols.settings import read_setting
from assay.space import read_space

RANDOM_WEIGHTS = "none"
"""Value of `weights` for a trunk that starts from random weights."""


# --- The types ---
#
# Each type narrows fields of the type that it extends. `= field()` makes such a field required;
# without it, the field would keep the default of the base class.


@dataclass(frozen=True, kw_only=True)
class ResolvedAugment(Augment):
    """`Augment` without any `auto`."""

    area: tuple[float, float] = field()
    aspect: tuple[float, float] = field()
    flip: float = field()
    rotation: float = field()
    shear: float = field()

    @property
    def in_words(self) -> str:
        """Changes to training images, in one line.

        >>> ResolvedAugment(
        ...     area=(0.4, 1.0), aspect=(0.75, 1.3333), flip=0.0, rotation=0.0, shear=0.0
        ... ).in_words
        'crops of 40-100% of the area, width over height from 0.75 to 1.33; no mirror images'
        >>> ResolvedAugment(
        ...     area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.5, rotation=10.0, shear=0.0
        ... ).in_words
        'no crops, turned by up to 10 degrees; 50% are mirrored'
        """
        (least, most), (narrow, wide) = self.area, self.aspect
        crops = f"crops of {100 * least:g}-{100 * most:g}% of the area"
        parts = ["no crops" if least == most == 1 else crops]
        if (narrow, wide) != (1, 1):
            parts.append(f"width over height from {narrow:.3g} to {wide:.3g}")
        for done, angle in (("turned", self.rotation), ("sheared", self.shear)):
            if angle:
                parts.append(f"{done} by up to {angle:g} degrees")
        mirrored = f"{100 * self.flip:g}% are mirrored" if self.flip else "no mirror images"
        return f"{', '.join(parts)}; {mirrored}"


@dataclass(frozen=True, kw_only=True)
class ResolvedBatch(Batch):
    """`Batch` without any `auto`."""

    embedding: tuple[int, int] = field()
    classification: tuple[int, int] = field()

    def shape(self, kind: BatchKind) -> tuple[int, int]:
        """Return classes x images per class of a kind of batch.

        `pairs` has as many images as `embedding`, two of each class. `episodes` has half as many
        classes as `embedding` with twice as many images each, where that leaves at least two.
        """
        classes, per_class = self.embedding
        halved = classes >= 4 and classes % 2 == 0
        shapes = {
            "embedding": self.embedding,
            "classification": self.classification,
            "pairs": (max(1, classes * per_class // 2), 2),
            "episodes": (classes // 2, 2 * per_class) if halved else self.embedding,
        }
        return shapes[kind]


@dataclass(frozen=True, kw_only=True)
class ResolvedOptimiser(Optimiser):
    """`Optimiser` without any `auto`."""

    lr: float = field()
    schedule: Schedule = field()


@dataclass(frozen=True)
class FirstStep:
    """Scaling of every image, once, before any training; the image is also made upright and RGB.

    Args:
        kind: `square`, the central square scaled to `side`; `short`, the short side scaled to
            `side` and the shape kept; `stretch`, the whole image scaled to a square.
        side: in pixels; 0 for vectors.
    """

    kind: Resize
    side: int


@dataclass(frozen=True, kw_only=True)
class ResolvedProtocol(Protocol):
    """A protocol in which nothing is left open, for one modality of data and one trunk.

    `weights` is the hash of the trunk's weights, or `none`. Five fields may be None, which is a
    value there: `iterations` (an epoch is one pass), `refresh` (once a pass), `stored` (as large as
    `size`), `trial_folds` (all folds), `prune` (never).
    """

    frozen: Frozen = field()
    size: int = field()
    augment: ResolvedAugment = field()
    batch: ResolvedBatch = field()
    optimiser: ResolvedOptimiser = field()
    shortest_epoch: int = field()
    epochs: int = field()
    validate_every: int = field()
    patience: int = field()

    @property
    def training(self) -> dict[str, Any]:
        """The settings that a single run depends on, for its key and its `config.json`."""
        return settings_of(self, leave_out=NOT_TRAINING)

    @property
    def first_step(self) -> FirstStep:
        """Scaling of every image, before any training."""
        return FirstStep(self.resize, self.stored or self.size)

    @property
    def without_head(self) -> "ResolvedProtocol":
        """The protocol of a model whose embedding is the output of the trunk."""
        return replace(self, dim=0, layer_norm=False)

    @property
    def declared(self) -> Protocol:
        """A protocol to declare, which resolves to this one on the same data.

        `size` is 0 for vectors, which cannot be set, so it becomes `auto`.
        """
        nested = {
            "augment": Augment(**vars(self.augment)),
            "batch": Batch(**vars(self.batch)),
            "optimiser": Optimiser(**vars(self.optimiser)),
        }
        return Protocol(**{**vars(self), **nested, "size": self.size or None})

    def batch_for(self, kind: BatchKind, classes: int) -> tuple[int, int]:
        """Return classes x images per class for a fold that trains on `classes`.

        Where a batch holds more classes than that, `shrink_batch` decides: fewer classes with more
        images each, or `BadInput`. Where training is told listed pairs or triplets, a batch is as
        many of them as that many images make: pairs x 2, or triplets x 3.
        """
        wanted, per_class = self.batch.shape(kind)
        if self.supervision in LISTED:
            samples = LISTED[self.supervision]
            return max(1, wanted * per_class // samples), samples
        if wanted <= classes:
            return wanted, per_class
        if not self.shrink_batch:
            name = "classification" if kind == "classification" else "embedding"
            smaller = f"{classes}x{2 if kind == 'pairs' else per_class}"
            raise BadInput(
                f"a batch of {self.name} holds {wanted} classes, but a fold trains on {classes}; "
                f"use more classes, --protocol quick, or --set batch.{name}={smaller}"
            )
        return classes, (
            per_class if kind == "pairs" else max(1, round(wanted * per_class / classes))
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ResolvedProtocol":
        """Return the protocol that `to_json` wrote."""
        unknown = sorted(set(data) - {item.name for item in dataclasses.fields(cls)})
        if unknown:
            raise BadInput(
                f"the protocol has a field {unknown[0]!r} that this version of Assay does not know;"
                " use a newer one"
            )
        exceptions = {
            method: dict(map(read_setting, texts)) for method, texts in data["exceptions"]
        }
        parts = {
            "augment": ResolvedAugment(**_tuples(data["augment"])),
            "batch": ResolvedBatch(**_tuples(data["batch"])),
            "optimiser": ResolvedOptimiser(**_tuples(data["optimiser"])),
            "space": read_space(data["space"]),
            "exceptions": exceptions,
            "given": {method: dict(map(read_given, texts)) for method, texts in data["given"]},
        }
        return cls(**{**_tuples(data), **parts})

    @classmethod
    def from_training(cls, data: Mapping[str, Any]) -> "ResolvedProtocol":
        """Return a protocol with the settings that `training` wrote.

        Settings that `training` leaves out have the defaults of `Protocol`: those at neutral values
        as they were, the others without effect on a run.
        """
        usual = Protocol("run").to_json()
        optimiser = {**usual["optimiser"], **data["optimiser"]}
        return cls.from_json({**usual, **data, "optimiser": optimiser})


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON fields with lists as the tuples that they were."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }


# --- Resolving ---


@dataclass(frozen=True)
class TrunkFacts:
    """Facts about a trunk that a protocol depends on.

    Args:
        takes: images or vectors.
        side: side of the square input that the trunk was made for; None: by the modality.
        smallest: smallest side of an image.
        find_weights: function that returns the hash of the weights that `pretrained`, `none` or a
            hash means for this trunk; `none` for random weights.
    """

    takes: SampleKind
    side: int | None
    smallest: int
    find_weights: Callable[[str], str]


_BY_MODALITY: dict[Modality, tuple[str, int, ResolvedAugment]] = {
    "drawing": (
        "conv",
        28,
        ResolvedAugment(area=(0.7, 1.0), aspect=(0.85, 1.18), flip=0.0, rotation=10.0, shear=10.0),
    ),
    "photo": (
        "conv",
        48,
        ResolvedAugment(area=(0.4, 1.0), aspect=(0.75, 1.3333), flip=0.5, rotation=0.0, shear=0.0),
    ),
    "features": (
        "identity",
        0,
        ResolvedAugment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0),
    ),
}
"""Trunk, size and augmentation that `auto` stands for."""

_BY_KIND: dict[SampleKind, dict[str, Mapping[str, Any]]] = {
    "vectors": {
        "length": {"epochs": 30, "validate_every": 1, "patience": 2, "shortest_epoch": 30},
        "optimiser": {"lr": 2e-3, "schedule": "constant"},
        "batch": {"embedding": (16, 4), "classification": (64, 1)},
    },
    "images": {
        "length": {"epochs": 3, "validate_every": 1, "patience": 3, "shortest_epoch": 80},
        "optimiser": {"lr": 3e-3, "schedule": "cosine"},
        "batch": {"embedding": (8, 4), "classification": (32, 1)},
    },
}
"""Length of training, optimiser and batches that `auto` stands for: for a head trained on vectors
(features, or the output of a frozen trunk), and for a network trained on images.
"""


def kind_of(modality: Modality) -> SampleKind:
    """Return whether samples of this modality are images or vectors.

    >>> kind_of("drawing")
    'images'
    """
    return "vectors" if modality == "features" else "images"


def resolve(
    protocol: Protocol, modality: Modality, trunk_facts: Callable[[str], TrunkFacts]
) -> ResolvedProtocol:
    """Return the protocol with every `auto` replaced, by the data, the trunk and what is trained.

    Settings for images are ignored for vectors. Raises `BadInput` where trunk, weights, images and
    data do not go together.

    Args:
        protocol: the protocol as declared.
        modality: modality of the data.
        trunk_facts: function that returns the facts about a trunk by its name; outside tests it is
            `assay.trunks.trunk_facts`.
    """
    given = kind_of(modality)
    auto_trunk, auto_size, auto_augment = _BY_MODALITY[modality]
    name = auto_trunk if protocol.trunk == "auto" else protocol.trunk
    trunk = trunk_facts(name)
    if trunk.takes != given:
        raise BadInput(
            f"the trunk {name!r} takes {trunk.takes}, the data are {given}; use --set trunk=auto"
        )
    weights = trunk.find_weights(protocol.weights)
    frozen = protocol.frozen or ("nothing" if weights == RANDOM_WEIGHTS else "trunk")
    auto = _BY_KIND["vectors" if frozen == "trunk" else given]
    changed: dict[str, Any] = {
        "trunk": name,
        "weights": weights,
        "frozen": frozen,
        "optimiser": ResolvedOptimiser(**_filled(protocol.optimiser, auto["optimiser"])),
        "batch": ResolvedBatch(**_filled(protocol.batch, auto["batch"])),
        **{key: value for key, value in auto["length"].items() if getattr(protocol, key) is None},
    }
    if given == "vectors":
        changed |= {
            "size": auto_size,
            "resize": "square",
            "stored": None,
            "form": "pixels",
            "augment": auto_augment,
        }
    else:
        if protocol.size is None:
            changed["size"] = trunk.side or auto_size
        changed["augment"] = ResolvedAugment(**_filled(protocol.augment, vars(auto_augment)))
    resolved = ResolvedProtocol(**{**vars(protocol), **changed})
    if given == "images":
        _check_images(resolved, trunk)
    if resolved.supervision == "images":
        _check_views(resolved, given)
    if resolved.supervision in LISTED and resolved.sampler != Protocol("usual").sampler:
        raise BadInput(
            f"--set sampler={resolved.sampler}: under supervision={resolved.supervision} batches"
            " are drawn from the list, not by a sampler; leave the sampler as it is, or train with"
            " supervision=classes"
        )
    return resolved


def _filled(settings: Augment | Batch | Optimiser, auto: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the settings, with these values in the place of `auto`."""
    return {name: auto[name] if value is None else value for name, value in vars(settings).items()}


def _check_views(protocol: ResolvedProtocol, given: SampleKind) -> None:
    """Raise `BadInput` where two views of a sample would be the same."""
    if given == "vectors" or protocol.frozen == "trunk":
        what = "the data are vectors" if given == "vectors" else "the trunk is frozen"
        remedy = "give images" if given == "vectors" else "add --set frozen=nothing"
        raise BadInput(
            f"--set supervision=images: two augmented views of an image are needed, and {what}, so"
            f" nothing is augmented; {remedy}"
        )
    none = ResolvedAugment(area=(1, 1), aspect=(1, 1), flip=0, rotation=0, shear=0)
    if (
        replace(protocol.augment, aspect=(1, 1)) == none
        and protocol.first_step.side == protocol.size
    ):
        raise BadInput(
            "--set supervision=images: the augmentation changes nothing, so two views of an image"
            " are the same; set augment.area, augment.flip or augment.rotation"
        )


def _check_images(protocol: ResolvedProtocol, trunk: TrunkFacts) -> None:
    """Raise `BadInput` where the trunk and the size of images do not go together."""
    if protocol.frozen == "trunk" and protocol.weights == RANDOM_WEIGHTS:
        raise BadInput(
            f"--set frozen=trunk: the trunk {protocol.trunk!r} starts from random weights, of which"
            " nothing would be learnt; take a pretrained one, for example --set trunk=lite0, or"
            " --set frozen=nothing"
        )
    size, stored = protocol.size, protocol.first_step.side
    if size < trunk.smallest:
        raise BadInput(
            f"--set size={size}: the trunk {protocol.trunk!r} needs at least {trunk.smallest}"
            " pixels"
        )
    if stored < size:
        raise BadInput(f"--set stored={stored}: images are stored at least as large as size={size}")
    if protocol.resize == "short" and (protocol.augment.rotation or protocol.augment.shear):
        raise BadInput(
            "--set resize=short: images that keep their shapes are not turned; add --set"
            " augment.rotation=0 --set augment.shear=0"
        )
