"""What all studies of a bench share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from assay.data.arrays import pack_arrays, read_arrays
from assay.data.copies import flaws_of_trainval
from assay.data.dataset import Dataset, Half, Labels, Vectors
from assay.data.images import decoder_hash
from assay.data.packs import expected_bytes, place_pack, place_vectors
from assay.data.seal import SealedTest
from assay.data.splits import TrainVal, folds
from assay.embedding import trunk_features
from assay.errors import BadInput
from assay.files import cache_folder
from assay.hashing import digest
from assay.losses.loss import Start
from assay.methods import trunk_source
from assay.progress import Progress, silent
from assay.protocols import Protocol, ResolvedProtocol, SettingValue, resolve, with_settings
from assay.records.keys import Environment
from assay.records.lines import AnnouncedData, Weights
from assay.records.store import Store, place_file
from assay.run import HalfLabels
from assay.trunks import build, trunk_facts, weights


@dataclass(frozen=True)
class Conditions:
    """What all studies of a bench share: halves of the data, protocol and device.

    Args:
        data: name and size of the data set, for people.
        trainval: the half that studies work on.
        test: the sealed half.
        protocol: as declared, `auto` included.
        device: cpu or cuda.
        imports: the user's own files, for the workers to import too.
        exceptions: settings of the protocol that hold for one method only; these are then the
            conditions of that method.
    """

    data: AnnouncedData
    trainval: TrainVal
    test: SealedTest
    protocol: Protocol
    device: str
    imports: tuple[str, ...] = ()
    exceptions: Mapping[str, SettingValue] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> ResolvedProtocol:
        """The protocol for these data, with the exceptions for the method."""
        return resolve(self._declared, self.trainval.modality, trunk_facts)

    @cached_property
    def weights(self) -> Weights | None:
        """Weights that the trunk starts from; None for random ones."""
        return weights.resolve_weights(self.resolved.trunk, self._declared.weights)

    @property
    def _declared(self) -> Protocol:
        return with_settings(self.protocol, self.exceptions)

    @property
    def starts(self) -> Start:
        """The weights that the trunk has before training: random ones differ from seed to seed;
        vectors count as pretrained.
        """
        fixed = self.weights is not None or self.trainval.modality == "features"
        return "pretrained" if fixed else "random"

    @property
    def on_vectors(self) -> bool:
        """Whether runs train a head on vectors: the data are some, or the trunk is frozen."""
        return self.trainval.modality == "features" or self.resolved.frozen == "trunk"

    def place(self, half: Half, progress: Progress = silent) -> Path:
        """The folder of the view of a half, made where it is not there: features where the trunk is
        frozen, else samples.
        """
        if self.resolved.frozen != "trunk":
            return place_pack(half, self.resolved.first_step, self.resolved.form, progress)
        return place_vectors(
            half, self._features_name(half), lambda: self.features(half, None, progress)
        )

    def _features_name(self, half: Half) -> str:
        """Features depend on the samples, on trunk and first step, and on the code and library that
        compute them.
        """
        settings = {
            name: getattr(self.resolved, name)
            for name in ("trunk", "weights", "pooling", "size", "resize", "stored")
        }
        source = trunk_source(self.resolved.trunk)
        return f"{half.fingerprint}-{digest([settings, self.environment, source])[:16]}"

    def features(
        self, half: Half, rows: Labels | None = None, progress: Progress = silent
    ) -> Vectors:
        """What the frozen trunk says to these samples of a half, to all if None."""
        chosen = np.arange(len(half.y)) if rows is None else rows
        z = trunk_features(
            self.resolved, half.some, chosen, half.inputs, torch.device(self.device), progress
        )
        return np.asarray(z.numpy())

    @cached_property
    def classes_in_training(self) -> int:
        """The fewest classes that any fold trains on."""
        parts = folds(self.trainval, self.protocol.folds)
        return min(len(set(self.trainval.y[fold.train].tolist())) for fold in parts)

    @cached_property
    def environment(self) -> Environment:
        """Where runs run, as far as their bytes may depend on it."""
        images = "" if self.trainval.modality == "features" else decoder_hash()
        return Environment.here(self.device, self.protocol.threads, images)

    def disk_needed(self) -> str | None:
        """What is about to be written beside the store, in words;
        None where it is features only.
        """
        if self.on_vectors:
            return None
        step, form = self.resolved.first_step, self.resolved.form
        needed = expected_bytes(self.trainval, step, form) / 1e9
        return (
            f"trainval takes {needed:.3g} GB after the first step, as {form} in {cache_folder()};"
            " the test half comes later"
        )

    def check_data(self, say: Callable[[str, str], None], allow_leaks: bool) -> None:
        """Say what was left out and what is wrong with the data; raise `BadInput` where no bench
        should start on them.
        """
        flaws = self.test.flaws
        for text in (
            *self.data.left_out,
            *self.test.left_out,
            *flaws.of_trainval,
            *flaws.of_test,
        ):
            say("data", text)
        if flaws.refusal and not allow_leaks:
            raise BadInput(flaws.refusal)

    @property
    def augmentation(self) -> str:
        """What is done to training images, in words."""
        return (
            "none, heads are trained on features"
            if self.on_vectors
            else self.resolved.augment.in_words
        )

    def check_trunk(self) -> None:
        """Show the trunk one blank image, so that what it cannot take is refused before anything is
        begun.
        """
        if self.trainval.modality == "features":
            return
        size = self.resolved.size
        trunk = build(self.resolved.trunk, self.trainval.inputs, self.resolved.pooling).eval()
        with torch.no_grad():
            trunk(torch.zeros(1, self.trainval.inputs, size, size))


def place_answers(store: Store, half: Half) -> None:
    """Keep the labels of an opened test half in the store, so that its scores can be checked where
    the data are not.
    """
    place_file(store.answers(half.fingerprint), pack_arrays(HalfLabels.of(half).marks()))


def read_answers(path: Path) -> HalfLabels | None:
    """The labels of a test half that a store keeps; None where the file is spoilt."""
    try:
        return HalfLabels(**read_arrays(path, str(path), ["y"], ["query", "gallery"]))
    except BadInput:
        return None


def describe_data(dataset: Dataset, trainval: TrainVal) -> AnnouncedData:
    """Return what the preregistration says of the data: nothing that depends on the test half's
    content.
    """
    return AnnouncedData(
        name=dataset.name,
        modality=dataset.modality,
        trainval=trainval.fingerprint,
        classes=len(trainval.class_names),
        samples=len(trainval.y),
        pretrained_on=dataset.pretrained_on or None,
        left_out=tuple(dataset.left_out),
        problems=tuple(flaws_of_trainval(dataset)),
    )
