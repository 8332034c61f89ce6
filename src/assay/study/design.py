"""The design of one method's study: everything that is settled before the first run."""

import math
import platform
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from assay.errors import BadInput
from assay.hashing import digest_file
from assay.losses.loss import Method
from assay.methods import defaults, departures, methods, source_of, space_of, with_given
from assay.protocols import Protocol, ResolvedProtocol
from assay.records.benches import TWIN
from assay.records.keys import fold_seed, own_source, question_seed, run_seed, study_key
from assay.records.lines import (
    AnnouncedMethod,
    AnnouncedProtocol,
    Budget,
    Preregistration,
    Versions,
)
from assay.records.origin import GivenParameters, SweepPoint
from assay.records.run import Run
from assay.run import check_metrics
from assay.space import Parameters, Space, Value
from assay.study import search
from assay.study.conditions import Conditions
from assay.study.search import TrialResult, ask, depends_on_answers

Stage = Literal["trial", "reproduction"]
STACKED = 64
"""Runs on vectors that are one task at most. A stack is full until its last runs, so longer tasks
waste less.
"""
FEWEST_STACKED = 4
"""Runs below which a stack saves less than it takes to record its step."""


@dataclass(frozen=True)
class Design:
    """A method in an conditions: its key, budget, space, questions and runs. Computing it needs no
    store.

    Args:
        conditions: where it is studied.
        method: what is studied.
        given: its parameters, where they were chosen elsewhere.
        point: the place in a sweep, where it is part of one.
        generation: how often the study was begun afresh before.
        twin: whether this is the control: the same method once more, with seeds of its own.
    """

    conditions: Conditions
    method: Method
    given: GivenParameters | None = None
    point: SweepPoint | None = None
    generation: int = 0
    twin: bool = False

    @property
    def name(self) -> str:
        """Name of the study's method in tables; a twin is told from its method."""
        return self.method.name + TWIN * self.twin

    @property
    def protocol(self) -> ResolvedProtocol:
        """The protocol for the data and the method."""
        return self.conditions.resolved

    @property
    def called(self) -> str:
        """How progress names it: the method, and the value in a sweep."""
        return (
            self.name
            if self.point is None
            else f"{self.name}, {self.point.field}={self.point.value}"
        )

    @cached_property
    def key(self) -> str:
        """Protocol, data, method and generation; where the parameters were chosen, if elsewhere."""
        return study_key(
            self.conditions.protocol.fingerprint,
            self.conditions.trainval.fingerprint,
            self.name,
            self.generation,
            self.given,
            self.point,
        )

    @cached_property
    def space(self) -> Space:
        """What is searched."""
        return space_of(self.method, self.protocol)

    @cached_property
    def source(self) -> str:
        """Hash of the code of the method, its trunk and its sampler."""
        return source_of(self.method, self.protocol)

    @cached_property
    def batch(self) -> tuple[int, int]:
        """Classes x images per class of a training batch; a baseline, which has none, has the
        protocol's.
        """
        if self.method.loss is None:
            return self.protocol.batch.shape(self.method.batch)
        return self.protocol.batch_for(self.method.batch, self.conditions.classes_in_training)

    @property
    def trials(self) -> int:
        """Parameter settings tried in a search: none where all is given or untrained, one where
        nothing can be searched.
        """
        if self.method.loss is None or self.given is not None:
            return 0
        return self.protocol.trials if self.space else min(1, self.protocol.trials)

    @cached_property
    def first(self) -> dict[str, Value]:
        """The parameters of trial 0: the method's defaults,
        changed by what the protocol gives it.
        """
        given = self.protocol.given.get(self.method.name)
        if given:
            return with_given(self.method, self.protocol, given)
        return defaults(self.method, self.protocol)

    @property
    def chosen(self) -> dict[str, Value]:
        """What is reproduced where there are no trials."""
        return dict(self.given.parameters) if self.given else self.first

    @cached_property
    def fixed_baseline(self) -> bool:
        """Whether nothing depends on fold or seed, see `assay.run.baseline`."""
        return self.method.loss is None and self.conditions.starts == "pretrained"

    @property
    def folds(self) -> Sequence[int | None]:
        """Folds of a trial or reproduction; [None] where one run stands for all folds."""
        return (
            [None]
            if self.fixed_baseline or self.method.head == "none"
            else range(self.protocol.folds)
        )

    @property
    def dim(self) -> int:
        """How many numbers the vector of a single model has; 0: all features of the trunk."""
        return self._run_protocol.dim

    @property
    def _run_protocol(self) -> ResolvedProtocol:
        return self.protocol.without_head if self.method.head == "none" else self.protocol

    @property
    def searches(self) -> int:
        """Independent searches; where nothing is searched there is one set of parameters."""
        return self.protocol.searches if self.trials else 1

    def folds_of_trials(self, search: int) -> Sequence[int]:
        """The folds that the trials of a search are validated on: the same for all of them, drawn
        anew for each search.
        """
        return drawn_folds(self.protocol, self.conditions.trainval.fingerprint, search, self.twin)

    @property
    def reproductions(self) -> int:
        """How often the chosen parameters of a search are run with fresh seeds.

        Where nothing is searched there are as many in all as a searched method has.
        """
        if self.fixed_baseline:
            return 1
        return self.protocol.reproductions * (1 if self.trials else self.protocol.searches)

    @property
    def runs_of_a_trial(self) -> int:
        """Runs that one trial consists of."""
        return self.protocol.folds_of_a_trial if self.trials else 0

    @property
    def runs(self) -> int:
        """Runs in all."""
        return self.searches * (
            self.trials * self.runs_of_a_trial + self.reproductions * len(self.folds)
        )

    @cached_property
    def preregistration(self) -> Preregistration:
        """The announcement before the first trial: all that could be changed afterwards.

        Raises `BadInput` where protocol, method and data do not go together, so asking for it is
        also the check.
        """
        check_metrics(self.protocol)
        self._check_start()
        return Preregistration(
            protocol=self._announced_protocol,
            data=self.conditions.data,
            weights=self.conditions.weights,
            method=self._announced_method,
            space=self.space,
            budget=Budget(
                searches=self.searches,
                trials=self.trials,
                trial_folds=self.runs_of_a_trial,
                startup=self.protocol.startup,
                reproductions=self.reproductions,
                reproduction_runs=self.searches * self.reproductions * len(self.folds),
                folds=self.protocol.folds,
            ),
            versions=Versions(
                assay=version("assay-dml"),
                source=own_source(),
                python=platform.python_version(),
                torch=self.conditions.environment.torch,
                optuna=version("optuna"),
                scipy=version("scipy"),
                search=digest_file(Path(search.__file__)),
            ),
            environment=self.conditions.environment,
            twin_of=self.method.name if self.twin else None,
            given=self.given,
            sweep=self.point,
            generation=self.generation,
        )

    def ask(self, search: int, told: Sequence[TrialResult]) -> list[dict[str, Value]]:
        """Return the parameters of the next trials of a search, from what came of those before.

        All trials that depend on no answer are asked for together, any other by itself. The budget
        has no say in them.
        """
        first, protocol = len(told), self.protocol
        last = first + 1
        while (
            last < self.trials
            and not self.prunes
            and not depends_on_answers(last, protocol.startup, protocol.search)
        ):
            last += 1
        seed = question_seed(*self._seeds, self.method.name, search, self.twin)
        return [
            {
                **self.first,
                **ask(self.space, seen, self.first, protocol.startup, seed, protocol.search),
            }
            for number in range(first, min(last, self.trials))
            for seen in [[*told, *[TrialResult({}, None)] * (number - first)]]
        ]

    @property
    def _seeds(self) -> tuple[int, str]:
        return self.protocol.seed, self.conditions.trainval.fingerprint

    @property
    def prunes(self) -> bool:
        """Whether hopeless trials are given up after their first fold; on vectors all folds are one
        task.
        """
        return self.protocol.prune is not None and not self.conditions.on_vectors

    def run(
        self, stage: Stage, search: int, number: int, fold: int | None, parameters: Parameters
    ) -> Run:
        """A run whose seed depends on its place alone: the same for every method, never for two
        searches.
        """
        return Run(
            protocol=self._run_protocol,
            trainval=self.conditions.trainval.fingerprint,
            method=self.method.name,
            source=self.source,
            parameters=dict(parameters),
            batch=self.batch,
            fold=fold,
            seed=run_seed(*self._seeds, stage, search, number, fold, self.twin),
            environment=self.conditions.environment,
        )

    def together(self, runs: Sequence[Run], parts: int) -> list[tuple[Run, ...]]:
        """Return the runs by task: on vectors many are trained as one stack, in so many parts; else
        each by itself.

        What comes of a run does not depend on the others of its task.
        """
        own = self.method.loss is not None and self.method.loss.__module__.startswith("assay.")
        tasks = max(1, min(parts, len(runs) // FEWEST_STACKED), math.ceil(len(runs) / STACKED))
        many = math.ceil(len(runs) / tasks) if self.conditions.on_vectors and own else 1
        return [tuple(runs[start : start + many]) for start in range(0, len(runs), max(1, many))]

    def _check_start(self) -> None:
        """Raise `BadInput` where the method is about a trunk with other weights than this
        one has.
        """
        found, wanted = self.conditions.starts, self.method.starts
        if wanted in ("any", found):
            return
        if self.conditions.trainval.modality == "features":
            reason = "the data are vectors that some model has made"
        else:
            has = "random" if found == "random" else "pretrained"
            reason = f"the trunk {self.protocol.trunk!r} has {has} weights here"
        others = [
            name for name, other in methods.items() if other.loss is None and other.starts == found
        ]
        raise BadInput(
            f"{self.method.name}: {reason}, so it is not {self.method.name}; use"
            f" {' or '.join(others)} instead"
        )

    @property
    def _announced_protocol(self) -> AnnouncedProtocol:
        declared = self.conditions.protocol
        return AnnouncedProtocol(
            name=declared.name,
            fingerprint=declared.fingerprint,
            question=declared.question,
            resolved=self.protocol,
        )

    @property
    def _announced_method(self) -> AnnouncedMethod:
        own = self.method
        return AnnouncedMethod(
            name=self.name,
            baseline=own.loss is None,
            source=self.source,
            head=own.head,
            about=own.about,
            miner=own.miner,
            fixed=own.fixed,
            batch=self.batch,
            batch_shrunk=self.batch != self.protocol.batch.shape(own.batch),
            defaults=self.first,
            departures=departures(own),
            paper=own.paper,
        )


def drawn_folds(protocol: Protocol, trainval: str, search: int, twin: bool) -> Sequence[int]:
    """Return the folds that the trials of one search are validated on, in order: all of them, or
    some that are drawn.

    Searches take the folds in turn, from an order that is drawn once: no fold is taken again before
    all have been taken. Drawn anew for each search, one fold would often be that of most searches,
    and what it favours would pass for a difference.

    >>> list(drawn_folds(Protocol("p.v1"), "fingerprint", 0, False))
    [0, 1, 2, 3]
    >>> sorted(fold for search in range(4) for fold in drawn_folds(Protocol("p.v1", trial_folds=1), "fingerprint", search, False))
    [0, 1, 2, 3]
    """
    folds, many = range(protocol.folds), protocol.folds_of_a_trial
    if many == protocol.folds:
        return folds
    order = random.Random(fold_seed(protocol.seed, trainval, twin)).sample(folds, protocol.folds)
    return sorted(order[(search * many + place) % protocol.folds] for place in range(many))
