"""The design of one method's study: everything that is decided before the first run."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version

from assay.errors import BadInput
from assay.losses.loss import Method
from assay.methods import (
    defaults,
    departures,
    methods,
    samplers,
    source_of,
    space_of,
    with_given,
)
from assay.methods.from_lists import why_not_listed
from assay.protocols import SAME_FOR_ALL, ResolvedProtocol, SettingValue, protocols
from assay.protocols.protocol import LISTED
from assay.records.benches import TWIN
from assay.records.keys import own_source, search_source
from assay.records.lines import (
    AnnouncedMethod,
    AnnouncedProtocol,
    Budget,
    Preregistration,
    Versions,
)
from assay.records.origin import GivenParameters, SweepPoint
from assay.records.run import Run
from assay.records.study import StudyRecord
from assay.run import check_metrics, check_ranks
from assay.samplers.sampler import bank_of
from assay.space import Space, Value
from assay.study.announced import AnnouncedStudy, budget_of, starts_fixed
from assay.study.conditions import Conditions
from assay.train import iterations_of

STACKED = 64
"""Largest number of runs on vectors in one task. Most of a stack trains until its last runs end, so
longer tasks waste less.
"""
FEWEST_STACKED = 4
"""Number of runs below which a stack saves less time than tracing its step takes."""


@dataclass(frozen=True)
class Design:
    """A method under conditions, and the preregistration that follows. It needs no store.

    Args:
        conditions: data, protocol and device.
        method: the method that is studied.
        given: its parameters, where they were chosen elsewhere.
        point: the point of a sweep that this study is.
        generation: number of studies of its kind that were begun before.
        twin: whether this is a control: the same method once more, with seeds of its own.
    """

    conditions: Conditions
    method: Method
    given: GivenParameters | None = None
    point: SweepPoint | None = None
    generation: int = 0
    twin: bool = False

    @property
    def name(self) -> str:
        """Name of the method in tables; a twin has a suffix."""
        return self.method.name + TWIN * self.twin

    @property
    def protocol(self) -> ResolvedProtocol:
        """The protocol for the data and the method."""
        return self.conditions.resolved

    @property
    def called(self) -> str:
        """Name of the study in progress: the method, and the value in a sweep."""
        return (
            self.name
            if self.point is None
            else f"{self.name}, {self.point.field}={self.point.value}"
        )

    @cached_property
    def key(self) -> str:
        """Key of the study in a store."""
        return self.study.key(self.generation)

    @cached_property
    def study(self) -> AnnouncedStudy:
        """Folds, trials and runs, which follow from the preregistration."""
        return AnnouncedStudy(self.preregistration)

    @cached_property
    def space(self) -> Space:
        """Ranges that are searched."""
        return space_of(self.method, self.protocol)

    @cached_property
    def source(self) -> str:
        """Hash of the code of the method, its trunk and its sampler."""
        return source_of(self.method, self.protocol)

    @cached_property
    def batch(self) -> tuple[int, int]:
        """Classes x images per class of a training batch, or listed pairs x 2 or triplets x 3; for
        a baseline, the protocol's.
        """
        if self.method.loss is None:
            return self.protocol.batch.shape(self.method.batch)
        return self.protocol.batch_for(self.method.batch, self.conditions.classes_in_training)

    @cached_property
    def budget(self) -> Budget:
        """Numbers of searches, trials and reproductions."""
        return budget_of(
            self.protocol,
            self._announced_method,
            self.space,
            given=self.given is not None,
            fixed_trunk=starts_fixed(self.conditions.trainval.modality, self.conditions.weights),
        )

    @property
    def trials(self) -> int:
        """Number of trials of each search; 0 where nothing is searched."""
        return self.budget.trials

    @cached_property
    def first(self) -> dict[str, Value]:
        """Parameters of trial 0: the method's defaults, or what the protocol gives instead."""
        given = self.protocol.given.get(self.method.name)
        if given:
            return with_given(self.method, self.protocol, given)
        return defaults(self.method, self.protocol)

    @property
    def why_not_listed(self) -> str | None:
        """Why the method cannot be trained from the listed pairs or triplets; None where it can be,
        or none are trained on.
        """
        return why_not_listed(self.method, self.protocol, self.first)

    @property
    def chosen(self) -> dict[str, Value]:
        """Parameters that are reproduced where there are no trials."""
        return dict(self.given.parameters) if self.given else self.first

    @property
    def dim(self) -> int:
        """Width of a single model's vector at most; 0: all features of the trunk."""
        return 0 if self.method.head == "none" else self.protocol.dim

    @property
    def runs(self) -> int:
        """Number of runs in all."""
        budget = self.budget
        return budget.searches * budget.trials * budget.trial_folds + budget.reproduction_runs

    @property
    def iterations_of_run(self) -> int:
        """Iterations of a run at most; 0 where nothing is trained."""
        if self.method.loss is None:
            return 0
        folds = self.protocol.folds
        trained = len(self.conditions.trainval.y) * (folds - 1) // folds
        return self.protocol.epochs * iterations_of(self.protocol, trained, self.batch)

    def check(self) -> None:
        """Raise `BadInput` where protocol, method and data do not go together."""
        check_metrics(self.protocol)
        conditions = self.conditions
        trained = conditions.samples_in_training - 1
        references = {"metrics": conditions.test.references, "training_metrics": trained}
        check_ranks(self.protocol, references)
        self._check_start()
        self.conditions.check_listed()
        self._check_listed()
        self.preregistration.to_json()  # batch, space, defaults and source refuse too

    @cached_property
    def preregistration(self) -> Preregistration:
        """The announcement before the first trial: all that could be changed afterwards."""
        declared = self.conditions.protocol
        return Preregistration(
            protocol=AnnouncedProtocol(
                name=declared.name,
                fingerprint=declared.fingerprint,
                question=declared.question,
                resolved=self.protocol,
                settings=protocols.changes(declared),
            ),
            data=self.conditions.announced_data,
            weights=self.conditions.weights,
            method=self._announced_method,
            space=self.space,
            budget=self.budget,
            versions=Versions(
                assay=version("assay-dml"),
                source=own_source(),
                python=platform.python_version(),
                torch=self.conditions.environment.torch,
                optuna=version("optuna"),
                scipy=version("scipy"),
                search=search_source(),
            ),
            environment=self.conditions.environment,
            twin_of=self.method.name if self.twin else None,
            given=self.given,
            sweep=self.point,
            generation=self.generation,
        )

    def together(self, runs: Sequence[Run], parts: int) -> list[tuple[Run, ...]]:
        """Return the runs by task: each by itself, or on vectors stacks of runs in so many parts.

        The result of a run does not depend on the others of its task.
        """
        part = self.method.loss or self.method.fitter
        own = part is not None and part.__module__.startswith("assay.")
        tasks = max(1, min(parts, len(runs) // FEWEST_STACKED), math.ceil(len(runs) / STACKED))
        many = math.ceil(len(runs) / tasks) if self.conditions.on_vectors and own else 1
        return [tuple(runs[start : start + many]) for start in range(0, len(runs), max(1, many))]

    def _check_start(self) -> None:
        """Raise `BadInput` where the method needs a trunk with other weights than this one has."""
        found, wanted = self.conditions.starts, self.method.starts
        if wanted in ("any", found):
            return
        if self.conditions.trainval.modality == "features":
            reason = "the data are vectors of some model"
        else:
            has = "random" if found == "random" else "pretrained"
            reason = f"the trunk {self.protocol.trunk!r} has {has} weights here"
        others = [
            name for name, other in methods.items() if other.baseline and other.starts == found
        ]
        raise BadInput(
            f"{self.method.name}: {reason}, so it is not {self.method.name}; use"
            f" {' or '.join(others)} instead"
        )

    def _check_listed(self) -> None:
        """Raise `BadInput` where the method cannot be trained from listed pairs or triplets."""
        if reason := self.why_not_listed:
            raise BadInput(
                f"{self.method.name} {reason}, so it cannot be trained under --set"
                f" supervision={self.protocol.supervision}; --methods all takes those that can be,"
                " or use --set supervision=classes"
            )

    @cached_property
    def _announced_method(self) -> AnnouncedMethod:
        own = self.method
        return AnnouncedMethod(
            name=self.name,
            baseline=own.baseline,
            source=self.source,
            head=own.head,
            about=own.about,
            miner=own.miner,
            fixed=own.fixed,
            batch=self.batch,
            batch_shrunk=self.protocol.supervision not in LISTED
            and self.batch != self.protocol.batch.shape(own.batch),
            defaults=self.first,
            departures=departures(own),
            paper=own.paper,
            sampler=own.sampler,
        )


def design_methods(conditions: Conditions, names: Sequence[str]) -> list[Design]:
    """Return a checked design for each method.

    A method for which the protocol makes exceptions has conditions of its own.
    """
    by_exceptions: dict[Mapping[str, SettingValue], Conditions] = {}
    designs = []
    for name in names:
        own, exceptions = conditions, conditions.protocol.exceptions.get(name)
        if exceptions:
            own = by_exceptions.setdefault(exceptions, replace(conditions, exceptions=exceptions))
            _check_exceptions(conditions, own, name)
        designs.append(Design(own, methods[name]))
    for used in {id(design.conditions): design.conditions for design in designs}.values():
        used.check_trunk()
    for design in designs:
        design.check()
    _check_refresh(conditions, designs)
    return designs


def _check_refresh(conditions: Conditions, designs: Sequence[Design]) -> None:
    """Raise `BadInput` for a number of steps between refreshes where no sampler is refreshed."""
    drawn = {
        design.method.sampler or design.protocol.sampler
        for design in designs
        if design.method.loss is not None
    }
    refresh = conditions.protocol.refresh
    if refresh is None or any(bank_of(samplers[name]) == "fresh" for name in drawn):
        return
    fresh = ", ".join(name for name, one in samplers.items() if bank_of(one) == "fresh")
    raise BadInput(
        f"--set refresh={refresh}: no method here draws its batches from a bank that is embedded"
        f" again, so it has no effect; leave it out, or use --set sampler= with one of {fresh}"
    )


def method_of(record: StudyRecord) -> Method:
    """Return the method of a study; raise `BadInput` where there is no such method."""
    name = record.trained_method
    if name not in methods:
        raise BadInput(
            f"there is no method {name!r} here; where it is your own, give its file with --import"
        )
    return methods[name]


def design_of(record: StudyRecord, conditions: Conditions) -> Design:
    """Return the design of a study as its announcement has it; raise `BadInput` where there is no
    such method.
    """
    announced = record.announced
    return Design(
        conditions,
        method_of(record),
        given=announced.given,
        point=announced.sweep,
        generation=announced.generation,
        twin=announced.twin_of is not None,
    )


def _check_exceptions(common: Conditions, own: Conditions, method: str) -> None:
    """Raise `BadInput` where a method's exceptions lead to another budget by way of `auto`."""
    for name in SAME_FOR_ALL:
        if getattr(own.resolved, name) != getattr(common.resolved, name):
            raise BadInput(
                f"{common.protocol.name}: its exceptions for {method} lead by way of `auto` to"
                f" another {name} than all other methods have; set {name} in the protocol"
            )
