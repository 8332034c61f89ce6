"""A protocol: everything about a benchmark but the method, as one frozen and fingerprinted value."""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from assay.canonical import digest, plain
from assay.domain import BatchKind
from assay.errors import BadInput
from assay.space import Space

Look = Literal["drawing", "photo", "features"]
"""What the data looks like, which is all that `auto` settings may depend on."""

Kind = Literal["images", "vectors"]
"""What samples are, and what a trunk takes."""

Resize = Literal["square", "short", "stretch"]
Pooling = Literal["avg", "avg+max", "gem"]
Frozen = Literal["nothing", "batchnorm", "trunk"]
Form = Literal["pixels", "jpeg"]
"""How images are kept after the first step: as they are, or as JPEG of quality 95 without subsampling of colours."""

FEWEST_CLASSES = 16
CUSTOM = "+custom-"


@dataclass(frozen=True)
class Batch:
    """Classes x images per class, for methods that compare samples and for those that compare with class weights."""

    embedding: tuple[int, int] = (8, 4)
    classification: tuple[int, int] = (32, 1)

    def shape(self, kind: BatchKind) -> tuple[int, int]:
        """The shape of a kind of batch; `pairs` has as many images as `embedding`, two of each class."""
        classes, per_class = self.embedding
        pairs = max(1, classes * per_class // 2), 2
        return {"embedding": self.embedding, "classification": self.classification, "pairs": pairs}[kind]


@dataclass(frozen=True)
class Augment:
    """Ranges of the one affine resampling of a training batch; None is `auto`, by the look of the data.

    Args:
        area: share of the image's area that a crop keeps.
        aspect: width over height of a crop.
        flip: probability of a mirror image.
        rotation: largest angle in degrees, to either side.
        shear: largest angle in degrees, to either side.
    """

    area: tuple[float, float] | None = None
    aspect: tuple[float, float] | None = None
    flip: float | None = None
    rotation: float | None = None
    shear: float | None = None


@dataclass(frozen=True)
class FirstStep:
    """What is done to every image once, before any training: upright, in RGB, and scaled.

    Args:
        kind: `square`, the central square scaled to `side`; `short`, the short side scaled to `side` and the shape kept;
            `stretch`, the whole image scaled to a square.
        side: in pixels; 0 for vectors.
    """

    kind: Resize
    side: int


@dataclass(frozen=True)
class Optimiser:
    """RMSprop, for trunk and head; the method's own weights get the same with a searched learning rate."""

    lr: float = 1e-6
    momentum: float = 0.9
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class Protocol:
    """Equal conditions.

    Args:
        name: ends in its version; a published protocol is never edited.
        trunk: name of the trunk, or `auto`.
        weights: of the trunk before training: `pretrained` where it has some, `none`, or the hash of a file's.
        frozen: `batchnorm` keeps running statistics as they are (the affine weights train), `trunk` trains the head alone on
            features computed once, without augmentation; None is `auto`: the trunk where it is pretrained.
        pooling: how a convolutional trunk's maps become features.
        layer_norm: features are standardised, without weights of its own, before the head.
        size: side of the square input in pixels; None is `auto`.
        resize: how an image is scaled once, before any augmentation; see `FirstStep`.
        form: how they are kept after that: `pixels`, or `jpeg`, a fifth of the disk but not quite the same images.
        stored: side after that, of which training crops at random and evaluation the centre; None is `size`.
        dim: width of an embedding.
        folds: class-disjoint parts of trainval, each validated once.
        sampler: how training batches are drawn.
        iterations: training steps in an epoch.
        epochs: at most so many.
        validate_every: epochs between validations.
        patience: epochs without a better validation after which training stops.
        trials: parameter settings tried per method; the first is the method's defaults.
        startup: quasi-random trials after the defaults, before the model of the search takes over.
        reproductions: runs of the chosen parameters with fresh seeds.
        threads: torch threads of one run, whatever the number of workers.
        autocast: compute the network in bfloat16 where the device is a GPU.
        compile: let torch compile the network; pays off in long runs.
        shrink_batch: where a fold trains on fewer classes than a batch holds, take fewer classes and more images of each.
        seed: another seed gives an independent repetition of everything.
        space: parameters searched for every method, beside its own.
        departures: where this differs from the paper it follows.
    """

    name: str
    trunk: str = "auto"
    weights: str = "pretrained"
    frozen: Frozen | None = None
    pooling: Pooling = "avg"
    layer_norm: bool = False
    size: int | None = None
    resize: Resize = "square"
    stored: int | None = None
    form: Form = "pixels"
    dim: int = 128
    augment: Augment = Augment()
    folds: int = 4
    sampler: str = "balanced"
    batch: Batch = Batch()
    optimiser: Optimiser = Optimiser()
    iterations: int = 100
    epochs: int = 1000
    validate_every: int = 2
    patience: int = 10
    trials: int = 50
    startup: int = 5
    reproductions: int = 10
    threads: int = 1
    autocast: bool = False
    compile: bool = False
    shrink_batch: bool = False
    seed: int = 0
    space: Space = field(default_factory=Space)
    departures: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of every setting; the name and the prose are not settings."""
        return digest(_settings(self, leave_out=("name", "departures")))

    @property
    def training(self) -> dict[str, Any]:
        """The settings that a single run depends on, for its key."""
        return _settings(self, leave_out=_NOT_TRAINING)

    @property
    def first_step(self) -> FirstStep:
        """What is done to every image once."""
        assert self.size is not None, "the protocol was not resolved"
        return FirstStep(self.resize, self.stored or self.size)

    def batch_for(self, kind: BatchKind, classes: int) -> tuple[int, int]:
        """Classes x images for a fold that trains on `classes`; `shrink_batch` decides what too few of them mean."""
        wanted, per_class = self.batch.shape(kind)
        if wanted <= classes:
            return wanted, per_class
        if not self.shrink_batch:
            field, smaller = ("embedding", f"{classes}x2") if kind == "pairs" else (kind, f"{classes}x{per_class}")
            raise BadInput(
                f"a batch of {self.name} holds {wanted} classes, but a fold trains on {classes}; "
                f"use more classes, --protocol quick, or --set batch.{field}={smaller}"
            )
        return classes, per_class if kind == "pairs" else max(1, round(wanted * per_class / classes))


_NOT_TRAINING = (
    "name", "departures", "trials", "startup", "reproductions", "space", "seed", "batch", "shrink_batch", "folds"
)  # fmt: skip

_NEUTRAL = {
    "weights": "pretrained", "frozen": None, "pooling": "avg", "layer_norm": False, "resize": "square", "stored": None,
    "form": "pixels", "autocast": False, "compile": False,
}  # fmt: skip
"""Fields that came after the first protocols were published: at these values they are left out of the fingerprint."""

_AUTO: dict[Look, tuple[str, int, Augment]] = {
    "drawing": ("conv", 28, Augment(area=(0.7, 1.0), aspect=(0.85, 1.18), flip=0.0, rotation=10.0, shear=10.0)),
    "photo": ("conv", 48, Augment(area=(0.4, 1.0), aspect=(0.75, 1.3333), flip=0.5, rotation=0.0, shear=0.0)),
    "features": ("identity", 0, Augment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0)),
}


def kind_of(look: Look) -> Kind:
    """What samples of this look are.

    >>> kind_of("drawing")
    'images'
    """
    return "vectors" if look == "features" else "images"


def resolve(protocol: Protocol, look: Look) -> Protocol:
    """The protocol with every `auto` replaced by what suits the look of the data.

    >>> resolve(Protocol("p.v1"), "features").trunk
    'identity'
    """
    trunk, size, augment = _AUTO[look]
    own = {name: value for name, value in vars(protocol.augment).items() if value is not None}
    return replace(
        protocol,
        trunk=protocol.trunk if protocol.trunk != "auto" else trunk,
        size=protocol.size if protocol.size is not None else size,
        augment=replace(augment, **own),
    )


def customise(protocol: Protocol, settings: Sequence[str]) -> Protocol:
    """The protocol with `field=value` settings applied, typed and checked; its name tells that it is no longer the published one.

    >>> customise(Protocol("p.v1"), ["dim=16", "batch.embedding=4x4"]).batch.embedding
    (4, 4)
    """
    changed = protocol
    for setting in settings:
        path, sign, text = setting.partition("=")
        if not sign:
            raise BadInput(f"--set {setting}: write field=value, for example --set dim=32")
        changed = _set(changed, path.strip().split("."), text.strip(), setting)
    _check(changed)
    if changed.fingerprint == protocol.fingerprint:
        return protocol
    published = protocol.name.partition(CUSTOM)[0]
    return replace(changed, name=f"{published}{CUSTOM}{changed.fingerprint[:8]}")


def _settings(protocol: Protocol, leave_out: tuple[str, ...]) -> dict[str, Any]:
    own = {name: value for name, value in vars(protocol).items() if name not in leave_out}
    own = {name: value for name, value in own.items() if name not in _NEUTRAL or value != _NEUTRAL[name]}
    if "space" in own:
        own["space"] = protocol.space.describe()
    return typing.cast("dict[str, Any]", plain(own))


_FIXED = ("name", "space", "departures")


def _set(value: Any, path: list[str], text: str, setting: str) -> Any:
    hints = {name: hint for name, hint in typing.get_type_hints(type(value)).items() if name not in _FIXED}
    name, *rest = path
    if name not in hints:
        raise BadInput(f"--set {setting}: no field {name!r}; the fields here are {', '.join(hints)}")
    nested = dataclasses.is_dataclass(hints[name])
    if nested != bool(rest):
        inner = ", ".join(f"{name}.{part}" for part in typing.get_type_hints(hints[name])) if nested else f"{name}=..."
        raise BadInput(f"--set {setting}: set {inner}")
    new = _set(getattr(value, name), rest, text, setting) if rest else _read(hints[name], text, setting)
    return replace(value, **{name: new})


def _read(hint: Any, text: str, setting: str) -> Any:
    """The text as a value of the annotated type."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if text == "auto":
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is Literal:
        if text not in typing.get_args(hint):
            raise BadInput(f"--set {setting}: {text!r} is none of {', '.join(typing.get_args(hint))}")
        return text
    try:
        if typing.get_origin(hint) is tuple:
            inner, parts = typing.get_args(hint), text.replace("x", ",").split(",")
            return tuple(kind(part) for kind, part in zip(inner, parts, strict=True))
        return {"true": True, "false": False}[text] if hint is bool else hint(text)
    except (ValueError, KeyError):
        example = "8x4" if typing.get_origin(hint) is tuple else "true or false" if hint is bool else f"a {hint.__name__}"
        raise BadInput(f"--set {setting}: {text!r} is not {example}") from None


_AT_LEAST = {
    "dim": 1, "folds": 2, "iterations": 1, "epochs": 1, "validate_every": 1, "patience": 1, "trials": 1,
    "startup": 0, "reproductions": 1, "threads": 1, "size": 1, "stored": 1,
}  # fmt: skip


def _check(protocol: Protocol) -> None:
    for name, least in _AT_LEAST.items():
        value = getattr(protocol, name)
        if value is not None and value < least:
            raise BadInput(f"--set {name}={value}: {name} is at least {least}")
    for kind, shape in vars(protocol.batch).items():
        if min(shape) < 1:
            raise BadInput(f"--set batch.{kind}={shape[0]}x{shape[1]}: a batch holds at least 1x1")
    optimiser, augment = protocol.optimiser, protocol.augment
    _check_between("optimiser.lr", optimiser.lr, 0, math.inf, open_below=True)
    _check_between("optimiser.momentum", optimiser.momentum, 0, 1)
    _check_between("optimiser.weight_decay", optimiser.weight_decay, 0, math.inf)
    _check_between("augment.flip", augment.flip, 0, 1)
    _check_between("augment.rotation", augment.rotation, 0, 180)
    _check_between("augment.shear", augment.shear, 0, 80)
    _check_ends("augment.area", augment.area, 1)
    _check_ends("augment.aspect", augment.aspect, math.inf)


def _check_between(name: str, value: float | None, low: float, high: float, open_below: bool = False) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not low <= value <= high or (open_below and value == low):
        allowed = f"above {low}" if open_below else f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise BadInput(f"--set {name}={value}: {name} is a number {allowed}")


def _check_ends(name: str, ends: tuple[float, float] | None, high: float) -> None:
    if ends is not None and not (0 < ends[0] <= ends[1] <= high and math.isfinite(ends[1])):
        bound = "" if high == math.inf else f" <= {high}"
        raise BadInput(f"--set {name}={ends[0]},{ends[1]}: write low,high with 0 < low <= high{bound}")
