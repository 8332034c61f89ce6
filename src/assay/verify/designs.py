"""The designs of studies, made again from the data and from what was announced."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from assay.data import Dataset, load_without_broken
from assay.errors import BadInput
from assay.files import empty_cache
from assay.methods import import_parts
from assay.protocols import customise, protocols
from assay.records.lines import Weights
from assay.records.study import StudyRecord
from assay.study.conditions import Conditions
from assay.study.design import Design, design_of, method_of
from assay.trunks.weights import Provenance, bring_weights


@dataclass
class Designs:
    """The designs of studies, made again from their announcements; each design is made once.

    Each data set is loaded once, and studies under one protocol share its halves. All is done in
    an empty cache, so that nothing comes from the user's but weights of trunks that cannot be had
    elsewhere.

    Args:
        data: where the data lie; None: where their name says. Studies on other data are left out.
        imports: the user's own files.
        users_cache: the cache for those weights.
    """

    data: str | None
    imports: Sequence[str]
    users_cache: Path
    _loaded: dict[str, Dataset] = field(default_factory=dict)
    _conditions: dict[tuple[str, str, str], Conditions] = field(default_factory=dict)
    _designs: dict[str, Design] = field(default_factory=dict)
    _weights: dict[tuple[str, Weights], Provenance] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def in_empty_cache(
        cls, data: str | None = None, imports: Sequence[str] = ()
    ) -> Iterator["Designs"]:
        """Import the user's own files, and let the cache be empty inside the block."""
        import_parts(imports)
        with empty_cache() as users_cache:
            yield cls(data, imports, users_cache)

    def has_data_of(self, record: StudyRecord) -> bool:
        """Return whether the data are those that the study worked on."""
        dataset = self._dataset(record)
        try:
            trainval = self._conditions_on(dataset, record).trainval
        except BadInput:  # too few classes for its folds, say
            return False
        return trainval.fingerprint == record.announced.data.trainval

    def check_data(self, records: Sequence[StudyRecord]) -> None:
        """Raise `BadInput` where no data can be loaded, or no study worked on them."""
        failed = None
        for record in records:
            try:
                if self.has_data_of(record):
                    return
            except Exception as error:  # of this study; the data may be those of another one
                failed = failed or error
                if self.data is not None and isinstance(error, BadInput):  # they cannot be loaded
                    break
        if failed is not None:
            raise failed
        if records:
            message = other_data(self.data or records[0].announced.data.name, records[0])
            raise BadInput(f"{message}. Without --data and --rerun, the store is checked by itself")

    def check_methods(self, records: Sequence[StudyRecord]) -> None:
        """Raise `BadInput` where the method of a study is not here, so that no run of it can be
        computed again; studies on other data than those given are left out.
        """
        for record in records:
            if self.data is None or self.has_data_of(record):
                method_of(record)

    def design(self, record: StudyRecord) -> Design:
        """Return the design of a study, as its announcement has it."""
        if record.key not in self._designs:
            self._designs[record.key] = design_of(record, self.conditions(record))
        return self._designs[record.key]

    def announced(self, record: StudyRecord) -> tuple[Design, bool]:
        """Return the design that a study should have announced, and whether its protocol is the one
        of the name and the settings that the announcement gives; else it is the resolved one, with
        the value that a point of a sweep is called by.
        """
        own, protocol = self.design(record), record.announced.protocol
        declared = protocols.declared(protocol.name, protocol.settings)
        if declared is None:
            return _at_its_value(own), False
        exceptions = declared.exceptions.get(record.trained_method, {})
        conditions = replace(own.conditions, protocol=declared, exceptions=exceptions)
        return replace(own, conditions=conditions), True  # on the same halves

    def conditions(self, record: StudyRecord) -> Conditions:
        """Return the data and the protocol of a study, on the device of its runs if it is here."""
        self.provenance_of_weights(record)
        return self._conditions_on(self._dataset(record), record)

    def provenance_of_weights(self, record: StudyRecord) -> Provenance:
        """Bring the weights of a study's trunk into the cache, and return whether they are those of
        their source.
        """
        announced, trunk = record.announced.weights, record.resolved.trunk
        if announced is None:
            return "confirmed"
        if (trunk, announced) not in self._weights:
            found = bring_weights(trunk, announced, self.users_cache)
            self._weights[trunk, announced] = found
        return self._weights[trunk, announced]

    def _conditions_on(self, dataset: Dataset, record: StudyRecord) -> Conditions:
        protocol = record.resolved.declared
        on_gpu = record.announced.environment.device == "cuda" and torch.cuda.is_available()
        device = "cuda" if on_gpu else "cpu"
        key = dataset.name, protocol.fingerprint, device
        if key not in self._conditions:
            self._conditions[key] = Conditions.open(dataset, protocol, device, self.imports)
        return self._conditions[key]

    def _dataset(self, record: StudyRecord) -> Dataset:
        name = self.data or record.announced.data.name
        try:
            if name not in self._loaded:
                self._loaded[name] = load_without_broken(name)
        except BadInput as error:
            remedy = (
                ""
                if self.data
                else (
                    "; a store keeps the name of its data, not where they lie: give --data"
                    " kind:path"
                )
            )
            raise BadInput(f"{error}{remedy}") from None
        return self._loaded[name]


def _at_its_value(design: Design) -> Design:
    """Return the design with the value of its point of a sweep, resolved again."""
    if (point := design.point) is None:
        return design
    protocol = design.conditions.protocol
    varied = customise(protocol, [f"{point.field}={point.value}"])
    conditions = replace(design.conditions, protocol=replace(varied, name=protocol.name))
    return replace(design, conditions=conditions)


def other_data(name: str, record: StudyRecord) -> str:
    """Return the message for data that are not those of a study."""
    data = record.announced.data
    return (
        f"{name} is not the data that {record.method} was studied on ({data.name},"
        f" {data.samples} samples of {data.classes} classes in trainval,"
        f" fingerprint {data.trainval[:12]}): it is another data set, or files were added,"
        " removed or altered. Computing again needs the same data: give those with --data"
    )
