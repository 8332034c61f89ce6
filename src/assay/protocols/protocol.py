"""A protocol: its settings, its fingerprint, its JSON."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, cast

from assay.errors import BadInput
from assay.hashing import digest, plain
from assay.protocols.batch import Batch
from assay.protocols.by_method import frozen
from assay.space import Parameters, Space, Value

Modality = Literal["drawing", "photo", "features"]
"""Nature of the data. `auto` settings depend on it."""

SampleKind = Literal["images", "vectors"]
"""Kind of samples, and of a trunk's input."""

Resize = Literal["square", "short", "stretch"]
Pooling = Literal["avg", "avg+max", "gem"]
Frozen = Literal["nothing", "batchnorm", "trunk"]
ImageForm = Literal["pixels", "jpeg"]
"""Form in which images are kept after the first step: as pixels, or as JPEG of quality 95 without
subsampling of colours.
"""

Search = Literal["bayesian", "quasi-random", "random"]

Similarity = Literal["cosine", "euclidean", "hamming"]
"""Comparison of embeddings: by the cosine, as unit vectors; by Euclidean distance, without
normalising them; or by Hamming distance, as bits z > 0.
"""

BITS_OF_A_NUMBER: Mapping[Similarity, int] = {"cosine": 32, "euclidean": 32, "hamming": 1}
"""Bits in which each comparison keeps a number of an embedding."""


def bits_of(dim: int, similarity: Similarity) -> int:
    """Return the bits of an embedding of `dim` numbers, as it is kept to be compared.

    >>> bits_of(128, "cosine")
    4096
    """
    return dim * BITS_OF_A_NUMBER[similarity]


OptimiserKind = Literal["rmsprop", "adam", "adamw", "sgd"]
Schedule = Literal["constant", "cosine"]
"""Learning rate during training: constant, or falling to zero along half a cosine over all epochs.
"""

Supervision = Literal["classes", "images", "pairs", "triplets"]
"""What training knows: the class of each sample; or nothing, so that two augmented views of an
image are the only positives, and each image is a class of its own; or the pairs or triplets that
the data set lists, and nothing else is compared. Validation and test go by the classes in any case.
"""

LISTED: Mapping[Supervision, int] = {"pairs": 2, "triplets": 3}
"""Samples of one pair or triplet, where training knows those that the data set lists."""

SettingValue = Value | tuple[Value, ...] | None
"""Value of a setting; None is `auto`."""

FEWEST_CLASSES = 16
"""Classes that a data set needs at least, so that halves and folds have enough of them."""


@dataclass(frozen=True)
class Augment:
    """Ranges of the random changes to training images; None is `auto`, by the modality of the data.

    All changes of an image are one affine resampling.

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
class Optimiser:
    """Optimiser of trunk and head.

    The method's own weights (proxies, class weights) have an optimiser of the same kind, with a
    learning rate that is searched.

    Args:
        lr: learning rate of trunk and head; None is `auto`.
        momentum: momentum of RMSprop and SGD; Adam has its usual betas, 0.9 and 0.999.
        weight_decay: weight decay of trunk and head.
        kind: the algorithm.
        decay_own: whether the method's own weights decay too.
        schedule: schedule of all learning rates; None is `auto`.
    """

    lr: float | None = 1e-6
    momentum: float = 0.9
    weight_decay: float = 1e-4
    kind: OptimiserKind = "rmsprop"
    decay_own: bool = True
    schedule: Schedule | None = "constant"


@dataclass(frozen=True)
class Protocol:
    """Equal conditions for all methods of a bench, as declared.

    Settings that are None or `auto` are replaced for the data and the trunk by `resolve`.

    Args:
        name: name, which ends in a version; a published protocol is never edited.
        trunk: name of the trunk, or `auto`.
        weights: weights of the trunk before training: `pretrained` (random where the trunk has
            none), `none`, or the hash of weights in the cache.
        frozen: what does not train: `nothing`; `batchnorm`, the running statistics (the affine
            weights train); or `trunk`, so that the head alone trains, on features that are computed
            once and without augmentation. None is `auto`: the trunk if it is pretrained.
        pooling: pooling of a convolutional trunk's maps to features.
        layer_norm: whether features are standardised before the head, without weights.
        size: side of the square input in pixels; None is `auto`.
        resize: scaling of every image, once, before any augmentation; see `FirstStep`.
        form: form in which scaled images are kept: `pixels`, or `jpeg`, which takes a fifth of the
            disk and changes the images a little.
        stored: side of the scaled images, of which training takes random crops and evaluation the
            centre; None is `size`.
        dim: width of an embedding; 0 in the runs of a baseline without a head.
        similarity: comparison of embeddings in validation and test. A loss has its own.
        folds: class-disjoint parts of trainval, each validated once.
        supervision: what training knows of the samples: their `classes`, or only which `images`
            two views are of, or the `pairs` or `triplets` that the data set lists.
        sampler: name of the sampler, which draws the training batches; not those of listed pairs or
            triplets.
        refresh: training steps between two times that a sampler with a fresh memory bank embeds all
            training samples and plans its batches; None is one pass.
        iterations: training steps in an epoch; None is one pass over the images of the training
            fold.
        shortest_epoch: fewest steps of an epoch that is one pass; None is `auto`.
        epochs: largest number of epochs; None is `auto`.
        validate_every: epochs between validations; None is `auto`.
        patience: epochs without a better validation after which training stops; None is `auto`.
        searches: independent searches of a method, each with its own trials, selection and
            reproductions.
        search: choice of trials: `quasi-random` and `random` trials do not depend on each other;
            `bayesian` trials come from a model of the earlier ones, after `startup` quasi-random
            trials.
        trials: parameter settings tried in a search; the first is the method's defaults. With 0
            nothing is searched.
        trial_folds: folds that a trial is validated on, the same for all trials of a search; None
            is all folds.
        startup: quasi-random trials after the defaults, before the model of a bayesian search takes
            over.
        prune: share by which the first fold of a trial may lie below the first fold of the best
            trial; a trial further below is given up. None: no trial is given up.
        reproductions: runs of each search's chosen parameters with fresh seeds.
        smallest_difference: smallest difference in MAP@R that matters; methods that differ by less
            are called equivalent.
        threads: torch threads of one run, for any number of workers.
        autocast: whether the network computes in bfloat16 on a GPU.
        compile: whether torch compiles the network, which pays off in long runs.
        shrink_batch: whether a fold that trains on fewer classes than a batch holds takes fewer
            classes and more images of each.
        metrics: metrics of the test half that tables show; MAP@R, which decides verdicts, is always
            computed.
        training_metrics: metrics of the training classes, at the chosen checkpoint of each run.
        seed: seed of everything; another seed gives an independent repetition.
        space: parameters that are searched for every method, beside its own.
        exceptions: other settings for single methods, by method and field:
            `{"dreml": {"dim": 144}}`. A method may be named that Assay does not have yet.
        given: parameters of single methods instead of their defaults, by method and parameter:
            `{"histogram": {"bins": 64}}`.
        departures: differences from the paper that the protocol follows.
        about: one line for lists.
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
    form: ImageForm = "pixels"
    dim: int = 128
    similarity: Similarity = "cosine"
    augment: Augment = Augment()
    folds: int = 4
    supervision: Supervision = "classes"
    sampler: str = "balanced"
    refresh: int | None = None
    batch: Batch = field(default=Batch())
    optimiser: Optimiser = Optimiser()
    iterations: int | None = 100
    shortest_epoch: int | None = 1
    epochs: int | None = 1000
    validate_every: int | None = 2
    patience: int | None = 10
    searches: int = 1
    search: Search = "bayesian"
    trials: int = 50
    trial_folds: int | None = None
    startup: int = 5
    prune: float | None = None
    reproductions: int = 10
    smallest_difference: float = 0.01
    threads: int = 1
    autocast: bool = False
    compile: bool = False
    shrink_batch: bool = False
    metrics: tuple[str, ...] = ("precision_at_1", "r_precision", "map_at_r")
    training_metrics: tuple[str, ...] = ()
    seed: int = 0
    space: Space = field(default_factory=Space)
    exceptions: Mapping[str, Mapping[str, SettingValue]] = field(default_factory=dict)
    given: Mapping[str, Parameters] = field(default_factory=dict)
    departures: tuple[str, ...] = ()
    about: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "exceptions", frozen(self.exceptions))
        object.__setattr__(self, "given", frozen(self.given))
        for method, own in self.exceptions.items():
            for path, value in own.items():
                if path.partition(".")[0] in SAME_FOR_ALL:
                    raise BadInput(
                        f"{self.name}: its exception {as_text(path, value)!r} for {method} changes"
                        " the budget, which is the same for all methods; leave it out, or set"
                        f" {path} for all of them"
                    )

    @property
    def fingerprint(self) -> str:
        """Hash of every setting; the name and the prose are not settings."""
        return digest(settings_of(self, leave_out=PROSE))

    @property
    def question(self) -> str:
        """Fingerprint of what the protocol asks, without how often, with which seed and how finely.

        A second bench that differs in these alone is a second look at the same question.
        """
        usual = Protocol(self.name)
        return replace(self, **{name: getattr(usual, name) for name in NOT_ASKED}).fingerprint

    def to_json(self) -> dict[str, Any]:
        """Return every field as a preregistration has it, without `LATER` at neutral values."""
        shown = {
            name: value
            for name, value in vars(self).items()
            if name not in LATER or value != NEUTRAL[name]
        }
        return cast("dict[str, Any]", plain(_as_json(shown)))

    @property
    def folds_of_a_trial(self) -> int:
        """Number of folds that a trial is validated on."""
        return self.folds if self.trial_folds is None else min(self.trial_folds, self.folds)


# --- Which settings count ---
#
# A hash of a protocol's settings leaves some of them out. Three purposes, three lists:
#
# fingerprint   every setting; without PROSE, which explains and changes nothing.
# question      without NOT_ASKED: how often and how finely the same question is asked.
# training      (of a resolved protocol, for a run's key) without NOT_TRAINING: what is decided
#               outside a single run. The batch's shape and the seed have entries of their own
#               there.
#
# In all three, a field of NEUTRAL is left out where it has its neutral value. These fields were
# added after the first protocols had been published. At its neutral value such a field says what
# Assay did before the field existed, so a protocol from before that time keeps its fingerprint,
# and stores made under it stay comparable.

PROSE = ("name", "departures", "about")

NOT_ASKED = (
    "searches", "reproductions", "seed", "smallest_difference", "search", "trials", "trial_folds",
    "startup", "prune", "metrics", "training_metrics", "threads", "autocast", "compile",
)  # fmt: skip

SAME_FOR_ALL = (
    *NOT_ASKED, "folds", "batch", "shrink_batch", "iterations", "shortest_epoch", "epochs",
    "validate_every", "patience", "supervision",
)  # fmt: skip
"""Settings that no exception for a method may change: how often and how long it is searched,
trained and repeated, how many images it sees, and what decides. With more of these a method could
be better for that reason alone. What an exception may change (trunk, dim, similarity, sampler,
optimiser, ...) is what the method is, and the report names it.
"""

NOT_TRAINING = (
    *PROSE, "trials", "startup", "reproductions", "space", "seed", "batch", "shrink_batch",
    "folds", "search", "prune", "metrics", "exceptions", "given", "searches", "trial_folds",
    "smallest_difference",
)  # fmt: skip

NEUTRAL: dict[str, Any] = {
    "weights": "pretrained",
    "frozen": None,
    "pooling": "avg",
    "layer_norm": False,
    "resize": "square",
    "stored": None,
    "form": "pixels",
    "similarity": "cosine",
    "supervision": "classes",
    "refresh": None,
    "shortest_epoch": 1,
    "searches": 1,
    "search": "bayesian",
    "trial_folds": None,
    "prune": None,
    "smallest_difference": 0.01,
    "autocast": False,
    "compile": False,
    "metrics": ("precision_at_1", "r_precision", "map_at_r"),
    "training_metrics": (),
    "exceptions": {},
    "given": {},
    "optimiser.kind": "rmsprop",
    "optimiser.decay_own": True,
    "optimiser.schedule": "constant",
}


LATER = ("supervision", "refresh")
"""Fields that were added after the format of preregistrations. At its neutral value such a field is
left out there, so that older ones are what they were.
"""


def settings_of(protocol: Protocol, leave_out: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a protocol as JSON has them, without those at neutral values."""
    own = {name: value for name, value in vars(protocol).items() if name not in leave_out}
    own["optimiser"] = _without_neutral(vars(protocol.optimiser), "optimiser.")
    return cast("dict[str, Any]", plain(_as_json(_without_neutral(own))))


def _without_neutral(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if path + name not in NEUTRAL or value != NEUTRAL[path + name]
    }


# --- Settings of single methods ---


def _as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a protocol as its JSON has them.

    `exceptions` and `given` are lists of texts there, in the order of the mappings:
    `[["histogram", ["bins=64"]]]`. Published fingerprints are hashes of that form.
    """
    changed: dict[str, Any] = {}
    for name in {"exceptions", "given"} & set(fields):
        changed[name] = [
            [method, [as_text(*setting) for setting in own.items()]]
            for method, own in fields[name].items()
        ]
    if "space" in fields:
        changed["space"] = fields["space"].describe()
    return {**fields, **changed}


def as_text(name: str, value: SettingValue) -> str:
    """Return a setting as a person writes it: `name=value`, and a number in its shorter form.

    >>> as_text("weights_lr", 5e-4), as_text("margin", 0.05), as_text("scale", 16.0)
    ('weights_lr=5e-4', 'margin=0.05', 'scale=16')
    >>> as_text("batch.embedding", (8, 4)), as_text("size", None), as_text("compile", True)
    ('batch.embedding=8x4', 'size=auto', 'compile=true')
    """
    if isinstance(value, tuple):
        between = "x" if all(isinstance(part, int) for part in value) else ","
        return f"{name}={between.join(map(_value_as_text, value))}"
    return f"{name}={_value_as_text(value)}"


def read_given(text: str) -> tuple[str, Value]:
    """Return name and value of a parameter that was written by `as_text`.

    >>> read_given("weights_lr=5e-4"), read_given("bins=64"), read_given("over=all")
    (('weights_lr', 0.0005), ('bins', 64), ('over', 'all'))
    """
    name, _, written = text.partition("=")
    candidates: tuple[Callable[[str], Value], ...] = (
        int,
        float,
        {"true": True, "false": False}.__getitem__,
    )
    for read in candidates:
        with suppress(ValueError, KeyError):
            if as_text(name, read(written)) == text:
                return name, read(written)
    return name, written


def _value_as_text(value: Value | None) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        number = Decimal(repr(value)).normalize()
        return min(f"{number:f}", f"{number:e}", key=len)
    return str(value)
