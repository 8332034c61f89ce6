"""The conditions that all studies of a bench share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from assay.data import splits
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
from assay.study.announced import starts_fixed
from assay.trunks import build, trunk_facts, weights


@dataclass(frozen=True)
class Conditions:
    """Halves of the data, protocol and device: the same for all studies of a bench.

    Args:
        data: name and size of the data set, as studies announce them.
        trainval: the half that studies work on.
        test: the sealed half.
        protocol: the protocol as declared, `auto` included.
        device: cpu or cuda.
        imports: files or modules of the user, which workers import too.
        exceptions: settings of the protocol for one method only; these are then its conditions.
    """

    data: AnnouncedData
    trainval: TrainVal
    test: SealedTest
    protocol: Protocol
    device: str
    imports: tuple[str, ...] = ()
    exceptions: Mapping[str, SettingValue] = field(default_factory=dict)

    @classmethod
    def open(
        cls, dataset: Dataset, protocol: Protocol, device: str, imports: Sequence[str] = ()
    ) -> "Conditions":
        """Split the data set as the protocol says, and return the conditions on it."""
        trainval, test = splits.of(dataset, protocol)
        data = AnnouncedData(
            name=dataset.name,
            modality=dataset.modality,
            trainval=trainval.fingerprint,
            classes=len(trainval.class_names),
            samples=len(trainval.y),
            pretrained_on=dataset.pretrained_on or None,
            left_out=tuple(dataset.left_out),
            problems=tuple(flaws_of_trainval(dataset)),
        )
        here = [str(Path(name).resolve()) if name.endswith(".py") else name for name in imports]
        return cls(data, trainval, test, protocol, device, tuple(here))

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
        """Kind of weights that the trunk has before training.

        Random weights differ from seed to seed. Vectors count as pretrained.
        """
        fixed = starts_fixed(self.trainval.modality, self.weights)
        return "pretrained" if fixed else "random"

    @property
    def on_vectors(self) -> bool:
        """Whether runs train a head on vectors: the data are vectors, or the trunk is frozen."""
        return self.trainval.modality == "features" or self.resolved.frozen == "trunk"

    def place(self, half: Half, progress: Progress = silent, cache: Path | None = None) -> Path:
        """Return the folder of the view of a half in a cache, made where it is not there.

        The view holds features where the trunk is frozen, else samples. The cache is the user's
        where none is given.
        """
        if self.resolved.frozen != "trunk":
            step, form = self.resolved.first_step, self.resolved.form
            return place_pack(half, step, form, progress, cache)
        return place_vectors(
            half, self._features_name(half), lambda: self.features(half, None, progress), cache
        )

    def _features_name(self, half: Half) -> str:
        """Return a name of everything that the features of a half depend on.

        That is the samples, trunk and first step, and the code and libraries that compute them.
        """
        settings = {
            name: getattr(self.resolved, name)
            for name in ("trunk", "weights", "pooling", "size", "resize", "stored")
        }
        computed = digest([settings, self.environment, trunk_source(self.resolved.trunk)])
        return f"{half.fingerprint}-{computed[:16]}"

    def features(
        self, half: Half, rows: Labels | None = None, progress: Progress = silent
    ) -> Vectors:
        """Compute the features of these samples of a half by the frozen trunk; of all if None."""
        chosen = np.arange(len(half.y)) if rows is None else rows
        z = trunk_features(
            self.resolved, half.some, chosen, half.inputs, torch.device(self.device), progress
        )
        return np.asarray(z.numpy())

    @cached_property
    def classes_in_training(self) -> int:
        """Smallest number of classes that a fold trains on."""
        parts = folds(self.trainval, self.protocol.folds)
        return min(len(set(self.trainval.y[fold.train].tolist())) for fold in parts)

    @cached_property
    def environment(self) -> Environment:
        """Machine and software of the runs, as far as their bytes may depend on them."""
        of_images = self.trainval.modality != "features"
        images = digest([decoder_hash(), self.trainval.reader]) if of_images else ""
        return Environment.here(self.device, self.protocol.threads, images)

    def disk_needed(self) -> str | None:
        """Return in words how much disk the images take; None where there are only features."""
        if self.on_vectors:
            return None
        step, form = self.resolved.first_step, self.resolved.form
        needed = expected_bytes(self.trainval, step, form) / 1e9
        return (
            f"trainval takes {needed:.3g} GB after the first step, as {form} in {cache_folder()};"
            " the test half comes later"
        )

    def check_data(self, say: Callable[[str, str], None], allow_leaks: bool) -> None:
        """Report left-out samples and problems of the data.

        Raise `BadInput` where no bench should start on them, unless leaks are allowed.
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
        """Augmentation of training images, in words."""
        return (
            "none, heads are trained on features"
            if self.on_vectors
            else self.resolved.augment.in_words
        )

    def check_trunk(self) -> None:
        """Run the trunk on one blank image, which raises `BadInput` for a size it cannot take."""
        if self.trainval.modality == "features":
            return
        size = self.resolved.size
        trunk = build(self.resolved.trunk, self.trainval.inputs, self.resolved.pooling).eval()
        with torch.no_grad():
            trunk(torch.zeros(1, self.trainval.inputs, size, size))
