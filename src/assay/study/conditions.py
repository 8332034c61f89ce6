"""The conditions that all studies of a bench share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from assay.data import splits
from assay.data.copies import flaws_of_trainval
from assay.data.dataset import Dataset, Half
from assay.data.images import decoder_hash
from assay.data.packs import expected_bytes, place_pack, place_vectors
from assay.data.seal import SealedTest
from assay.data.splits import TrainVal, folds
from assay.errors import BadInput, in_one_line
from assay.features import FrozenTrunk
from assay.files import cache_folder
from assay.hashing import digest
from assay.losses.loss import Start
from assay.model import Architecture
from assay.progress import Progress, silent
from assay.protocols import Protocol, ResolvedProtocol, SettingValue, resolve, with_settings
from assay.protocols.protocol import LISTED
from assay.records.announced_data import AnnouncedData, AnnouncedRelations
from assay.records.keys import Environment
from assay.records.ledger import Receipt
from assay.records.lines import Weights
from assay.run import Unsealed
from assay.study.announced import starts_fixed
from assay.trunks import build, trunk_facts, weights


@dataclass(frozen=True)
class Conditions:
    """Halves of the data, protocol and device: the same for all studies of a bench.

    Args:
        data: name and size of the data set, as studies announce them (`announced_data`).
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

    def place(self, half: Half, progress: Progress = silent) -> Path:
        """Return the folder of the view of a half in the cache, made where it is not there.

        The view holds features where the trunk is frozen, else samples.
        """
        if self.resolved.frozen != "trunk":
            return place_pack(half, self.resolved.first_step, self.resolved.form, progress)
        trunk = self.frozen_trunk
        return place_vectors(
            half, trunk.name_for(half), lambda: trunk.compute(half, None, progress), progress
        )

    def unsealed(
        self, store: Path, half: Half, receipt: Receipt, progress: Progress, into: str = ""
    ) -> Unsealed:
        """Return an opened test half for tasks: with the receipt of its study in this store.

        Vectors are placed in the store `into`; where it is empty, in `store` itself.
        """
        return Unsealed(
            store=str(store),
            view=str(self.place(half, progress)),
            fingerprint=half.fingerprint,
            receipt=receipt,
            trainval=self.trainval.fingerprint,
            threads=self.resolved.threads,
            device=self.device,
            imports=self.imports,
            into=into,
        )

    @property
    def frozen_trunk(self) -> FrozenTrunk:
        """The trunk of the protocol as it is before training."""
        whole = Architecture.whole(self.resolved, self.trainval.inputs)
        return FrozenTrunk(whole, self.resolved.weights, self.device, self.resolved.seed)

    @cached_property
    def classes_in_training(self) -> int:
        """Smallest number of classes that a fold trains on, as far as training knows them."""
        if self.protocol.supervision != "classes":
            return self.samples_in_training
        parts = folds(self.trainval, self.protocol.folds)
        return min(len(set(self.trainval.y[fold.train].tolist())) for fold in parts)

    @cached_property
    def samples_in_training(self) -> int:
        """Smallest number of samples that a fold trains on."""
        return min(len(fold.train) for fold in folds(self.trainval, self.protocol.folds))

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
        needed = expected_bytes(self.trainval, step, form)
        size = f"{needed / 1e9:.3g} GB" if needed >= 1e9 else f"{needed / 1e6:.3g} MB"
        return (
            f"trainval takes {size} after the first step, as {form} in {cache_folder()};"
            " the test half comes later"
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was left out when the data were read, in words."""
        return *self.data.left_out, *self.test.left_out

    @cached_property
    def listed(self) -> AnnouncedRelations | None:
        """Pairs or triplets that the data set lists; None where it lists none."""
        given = self.trainval.relations
        if given is None:
            return None
        parts = [given.within(fold.train) for fold in folds(self.trainval, self.protocol.folds)]
        return AnnouncedRelations(given.kind, len(given), tuple(map(len, parts)))

    @property
    def announced_data(self) -> AnnouncedData:
        """The data as studies announce them: how much is trained on depends on the protocol too."""
        return replace(self.data, relations=self.listed)

    def check_listed(self) -> None:
        """Raise `BadInput` where training is told pairs or triplets, and a fold lacks them."""
        told, listed, given = self.protocol.supervision, self.listed, self.trainval.relations
        if told not in LISTED:
            return
        wrong = f"--set supervision={told}: {self.data.name}"
        if listed is None or given is None:
            raise BadInput(
                f"{wrong} lists no {told} in trainval; give a table: with the columns positive and"
                " negative, or use supervision=classes"
            )
        if listed.kind != told:
            raise BadInput(f"{wrong} lists {listed.kind}; use --set supervision={listed.kind}")
        for number, fold in enumerate(folds(self.trainval, self.protocol.folds)):
            own = given.within(fold.train)
            if not len(own):
                raise BadInput(
                    f"{wrong} lists {given.words(len(given))}, of which each names a sample of fold"
                    f" {number}, so nothing is left to train on while it is validated; list more,"
                    " or raise --set folds"
                )
            positives = len(own.positives)
            if told == "pairs" and positives in (0, len(own)):
                only, other = ("positive", "negative") if positives else ("negative", "positive")
                raise BadInput(
                    f"{wrong}: all {len(own):,} pairs that are trained on while fold {number} is"
                    f" validated are {only}s, and a loss needs both kinds; list {other}s too"
                )

    @property
    def of_relations(self) -> list[str]:
        """What becomes of the pairs or triplets that the data set lists, in words."""
        given, told = self.listed, self.protocol.supervision
        if given is None:
            return []
        if told not in LISTED:
            return [
                f"the data list {given.count:,} {given.kind}, which training is not told under"
                f" supervision={told}; --set supervision={given.kind} trains on them"
            ]
        return [given.in_words]

    def check_data(self, say: Callable[[str, str], None], allow_leaks: bool) -> None:
        """Report left-out samples, what becomes of listed pairs, and problems of the data.

        Raise `BadInput` where no bench should start on them, unless leaks are allowed.
        """
        flaws = self.test.flaws
        for text in (*self.left_out, *self.of_relations, *flaws.of_trainval, *flaws.of_test):
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
        """Run the trunk on one blank sample; raise `BadInput` where it cannot take that."""
        name, inputs, size = self.resolved.trunk, self.trainval.inputs, self.resolved.size
        shape = (inputs,) if self.trainval.modality == "features" else (inputs, size, size)
        try:
            trunk = build(name, inputs, self.resolved.pooling).eval()
            with torch.no_grad():
                found, width = trunk(torch.zeros(1, *shape)), trunk.features
        except BadInput:
            raise
        except (Exception, SystemExit) as error:
            raise BadInput(
                f"the trunk {name!r} fails on one blank sample of shape {shape}:"
                f" {in_one_line(error)}. Fix it, or use --set trunk=auto"
            ) from error
        if tuple(found.shape) != (1, width):
            raise BadInput(
                f"the trunk {name!r} gives features of shape {tuple(found.shape)} for one sample,"
                f" but says that they are (1, {width}); fix its attribute `features`"
            )
