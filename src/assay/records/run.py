"""A run, the files of its folder and the card of a model as types, and the check that the folder of
a run is intact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from assay.errors import failed_here, reason_of
from assay.files import parse_json, read_bytes, read_json
from assay.hashing import digest_file
from assay.protocols import ResolvedProtocol
from assay.records.codec import (
    RESTORE,
    BadRecord,
    Document,
    Record,
    check_format,
    check_types,
    read_document,
    stored_as,
)
from assay.records.keys import Environment, run_key
from assay.records.lines import RunStatus, Scores, Setting
from assay.space import Value

WEIGHTS = "model.safetensors"
CARD = "model.json"
"""Name of the file in a model folder that says what the model is and where it comes from."""
TEST_CONTENTS = "test_half.sha256"
"""Name of the file in a model folder with the content hash of each sample that its study tested on.
"""
MODEL_FILES = (WEIGHTS, CARD, TEST_CONTENTS)
"""Files of a model folder that a study hands over."""
LOOKS_FILE = "looks.jsonl"
"""Name of the file in a model folder outside a store that records looks at test halves."""
CENTURY = 100 * 366 * 24 * 3600
"""Seconds above which a duration in a file is not a measured one."""
MOST_MEMORY = 2**60
"""Bytes from which on an amount of memory in a file is not a measured one."""
MOST_FOLDS = 1000
"""Number of folds that no model is trained with."""
TRAINED_ON = "trained_on.sha256"
"""Name of the file in the folder of a model of all classes with the hashes of its samples."""
CHECKPOINTS = "checkpoints"
"""Name of the folder with the weights of every validation, in the folder of a run."""


def _training_fields(protocol: ResolvedProtocol) -> dict[str, Any]:
    return {**protocol.training, "folds": protocol.folds}


@dataclass(frozen=True)
class Run(Document):
    """All that determines a run; `config.json` holds it.

    Args:
        protocol: protocol under which it trains. The JSON has its training fields only.
        trainval: fingerprint of the half that the run may see.
        method: name of the method.
        source: hash of the method's source.
        parameters: parameters of the method.
        batch: classes x images per class.
        fold: fold that is validated; None where one run stands for all (run/closed_form.py).
        seed: seed of everything random in the run.
        environment: where it runs.
    """

    protocol: ResolvedProtocol = field(
        metadata=stored_as(_training_fields, ResolvedProtocol.from_training)
    )
    trainval: str
    method: str
    source: str
    parameters: Mapping[str, Value]
    batch: tuple[int, int]
    fold: int | None
    seed: int
    environment: Environment

    @cached_property
    def key(self) -> str:
        """Content address: equal runs have equal keys."""
        return run_key(self.to_json())


@dataclass(frozen=True, kw_only=True)
class ImageCounts(Record):
    """How many images a run put through its network, each time counted; of vectors, how many
    vectors.

    Args:
        trained: in training steps; a view of an image that is augmented apart counts by itself.
        refreshed: for the memory bank, and to fit a head in closed form.
        validated: in all validations.
        scored: for the metrics of training samples that the protocol asks for.
        extracted: samples of trainval that a frozen trunk embedded, once for all runs on this half.
            The other counts are then those of the head, which takes the features.
    """

    trained: int = 0
    refreshed: int = 0
    validated: int = 0
    scored: int = 0
    extracted: int = 0

    @property
    def embedded(self) -> int:
        """Images that the run itself put through its network."""
        return self.trained + self.refreshed + self.validated + self.scored


@dataclass(frozen=True, kw_only=True)
class RunBudget(Record):
    """What a run cost, as far as it can be counted: equal runs have equal counts.

    Args:
        trained: numbers that training steps change: the head, a trunk that is not frozen and the
            loss's own weights; 0 where the head is in closed form.
        parameters: numbers of the model at test: trunk, frozen or not, and head. Vectors have no
            trunk.
        dim: numbers of an embedding at test.
        bits: bits of an embedding at test.
        images: how many images went through the network.
        shared: those of `parameters` that belong to a frozen trunk, which the models of all folds
            have in common.
    """

    trained: int
    parameters: int
    dim: int
    bits: int
    images: ImageCounts
    shared: int = 0


@dataclass(frozen=True)
class RunResult(Document):
    """The outcome of a run; `result.json` holds it.

    Args:
        status: finished or diverged.
        best_epoch: epoch of the chosen checkpoint.
        last_epoch: epoch of the last validation.
        validation: scores of the chosen checkpoint on the validation fold.
        weights: SHA-256 of the chosen weights.
        history: SHA-256 of `history.jsonl`.
        view: hash of the samples and labels that the run worked on, as they lay in the cache.
        training: scores of the training samples, where the protocol asks for them.
        budget: what it cost; None in stores of an Assay that did not count.
    """

    status: RunStatus
    best_epoch: int
    last_epoch: int
    validation: Scores
    weights: str
    history: str
    view: str
    training: Scores | None = None
    budget: RunBudget | None = None


@dataclass(frozen=True)
class Timing(Record):
    """When, where and for how long a run was computed; `timing.json` holds it.

    Runs of one task, such as heads that are trained as a stack, share a process: each has the same
    part of its seconds, and the memory of all of them together.

    Args:
        seconds: seconds of computing.
        started: date and time.
        host: name of the machine.
        machine: kind of processor.
        peak_memory: most bytes that the process had at a time, on a GPU most bytes of its tensors
            there; None where that is not known.
    """

    seconds: float
    started: str
    host: str
    machine: str
    peak_memory: int | None = None


@dataclass(frozen=True)
class Checkpoint(Record):
    """One validation, a line of `history.jsonl`.

    Args:
        epoch: after which epoch.
        loss: mean loss since the validation before.
        validation: scores on the validation fold.
    """

    epoch: int
    loss: float | None
    validation: Scores


@dataclass(frozen=True)
class ScoreInterval(Record):
    """A mean test score of a study with its 95% interval.

    Args:
        mean: the mean.
        low: lower end; None where there is a single value.
        high: upper end.
        n: number of searches, or of reproductions of the only search.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class FinalTraining(Record):
    """How a model was trained on all classes, trainval and test half, once its study had ended.

    Args:
        test: fingerprint of the test half.
        samples: SHA-256 of `trained_on.sha256`, the hashes of the content of all samples.
        epochs: epochs that it was trained for, without validation.
        best_epochs: best epoch of each run that reproduced the parameters; `epochs` is the median.
        scores: the study's test scores of single models with these parameters, by metric.
        note: in words, what these scores say of this model.
    """

    test: str
    samples: str
    epochs: int
    best_epochs: tuple[int, ...]
    scores: Mapping[str, ScoreInterval]
    note: str


@dataclass(frozen=True, kw_only=True)
class ModelCard(Record):
    """What a model is and where it comes from, as `model.json` of a model folder says.

    The file also has the format number, the architecture of the model, and the hash of the file of
    its weights.

    Args:
        data: name of the data set.
        trainval: fingerprint of the half that the model was trained on.
        classes: names of the classes that it was trained on.
        fold: fold that was held out; None where the run stands for all folds.
        folds: number of folds of trainval.
        protocol: name of the protocol.
        method: name of the method.
        parameters: parameters of the method.
        seed: seed of the run.
        pretrained_on: the data that the trunk was pretrained on; None: it began at random.
        weights: hash of the weights that the trunk started from.
        validation: scores on the fold that was held out.
        environment: where it was trained.
        study: key of the study that handed it over; None for a model of `assay train`, and so are
            all fields up to `test`.
        preregistration: hash of the study's first line.
        search: number of the search.
        searches: number of searches of the study.
        reproduction: number of the reproduction.
        run: key of the run.
        test: test scores of the reproduction.
        status: whether training finished or diverged, where it was trained by itself.
        epoch: epoch of its checkpoint, where it was trained by itself.
        images: fingerprint of the trainval half of the images whose features the head was trained
            on, where the model takes these images.
        final: how it was trained on all classes; None where the test half was kept apart.
        features: name and weights of the trunk whose features the head was trained on; where
            `images` is there too, the model has this trunk.
    """

    data: str
    trainval: str
    classes: tuple[str, ...]
    fold: int | None
    folds: int
    protocol: str
    method: str
    parameters: Mapping[str, Value]
    seed: int
    pretrained_on: str | None
    weights: str
    validation: Scores
    environment: Environment
    study: str | None = None
    preregistration: str | None = None
    search: int | None = None
    searches: int | None = None
    reproduction: int | None = None
    run: str | None = None
    test: Mapping[Setting, Scores] | None = None
    status: RunStatus | None = None
    epoch: int | None = None
    images: str | None = None
    features: str | None = None
    final: FinalTraining | None = None

    @classmethod
    def _read(cls, document: object, path: str) -> Self:
        """Ignore the other entries of the file: format, architecture, hash of the weights."""
        if isinstance(document, Mapping):
            known = {one.name for one in fields(cls)}
            document = {name: value for name, value in document.items() if name in known}
        return super()._read(document, path)


REMAKE = "; restore it from a copy, or make the model again in another folder"
"""The remedy where a file of a model folder cannot be read."""


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card in a model folder, which need not have all fields of `ModelCard`.

    Raises `BadRecord` where it cannot be read, or a field has another type or an impossible value.
    """
    path = folder / CARD
    card = read_document(path, REMAKE)
    if not isinstance(card, dict):
        raise BadRecord(f"{path} is no JSON object{REMAKE}")
    check_format(card.get("format"), str(path))
    check_types(ModelCard, card, str(path), REMAKE)
    fold, count = card.get("fold"), card.get("folds", MOST_FOLDS)
    if not 0 <= (fold or 0) < count <= MOST_FOLDS:
        raise BadRecord(f"{path}: fold {fold} of {count} folds is none{REMAKE}")
    return card


def run_of_model(folder: Path) -> str | None:
    """Return the key of the run that the card in a model folder names; None: it names none."""
    key: str | None = read_card(folder).get("run")
    return key


def read_timing(folder: Path) -> Timing | None:
    """Return when and where the run in this folder was computed; None where that is not known.

    Nothing is decided by it, so a damaged file is as good as none.
    """
    try:
        timing = Timing.read(folder / "timing.json")
    except BadRecord:
        return None
    possible = 0 <= timing.seconds < CENTURY and 0 <= (timing.peak_memory or 0) < MOST_MEMORY
    return timing if possible else None


def read_budget(folder: Path) -> RunBudget | None:
    """Return what the run in this folder cost; None where that was not counted or is not known."""
    try:
        return RunResult.read(folder / "result.json").budget
    except BadRecord:
        return None


def read_history(folder: Path) -> list[Checkpoint]:
    """Return every validation of the run in this folder."""
    path = folder / "history.jsonl"
    try:
        lines = [parse_json(line) for line in read_bytes(path).splitlines()]
    except FileNotFoundError:
        raise BadRecord(f"{path} is missing") from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {reason_of(error)}") from None
    except ValueError:
        raise BadRecord(f"{path} cannot be read: it was altered") from None
    return [
        Checkpoint.from_json(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)
    ]


HISTORY_DIFFERS = "result.json does not go with history.jsonl: one of them was altered"
"""What `check_run` says where it cannot tell which of the two files was altered."""


def check_run(folder: Path, *, weights: bool = True) -> str | None:
    """Return what shows that the folder of a finished run is not as it was placed, None if nothing.

    The configuration must give the key, which is the folder's name; result, history and checkpoints
    must go together. Weights may be gone (a losing trial keeps none) but not altered; they may be
    large, so that a caller can leave them out. Raises `BadRecord` or `OSError` where the machine
    cannot read a file: that says nothing of the run.
    """
    try:
        result, run = RunResult.read(folder / "result.json"), Run.read(folder / "config.json")
        history = read_history(folder)
    except BadRecord as error:
        if failed_here(error):
            raise
        return str(error).removeprefix(f"{folder}/").removesuffix(RESTORE)
    if run_key(read_json(folder / "config.json")) != folder.name or run.key != folder.name:
        return "config.json was altered"
    if digest_file(folder / "history.jsonl") != result.history:
        return HISTORY_DIFFERS
    best = (result.best_epoch, result.validation)
    if best not in [(one.epoch, one.validation) for one in history]:
        return HISTORY_DIFFERS
    return _check_weights(folder, result, history) if weights else None


def _check_weights(folder: Path, result: RunResult, history: list[Checkpoint]) -> str | None:
    if (folder / WEIGHTS).exists() and digest_file(folder / WEIGHTS) != result.weights:
        return f"{WEIGHTS} was altered"
    kept = folder / CHECKPOINTS
    if not kept.exists():
        return None
    expected = {f"{one.epoch}.safetensors" for one in history}
    for name in sorted(expected ^ {path.name for path in kept.iterdir()}):
        return f"{CHECKPOINTS}/{name} is {'missing' if name in expected else 'not of this run'}"
    best = kept / f"{result.best_epoch}.safetensors"
    if digest_file(best) != result.weights:
        return f"{CHECKPOINTS}/{best.name} was altered: it is not the chosen model"
    return None
