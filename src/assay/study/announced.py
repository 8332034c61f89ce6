"""A study as its preregistration fixes it: key, budget, folds, questions and runs.

A study that is run and a study that is verified ask the same object, so there is one derivation of
each of them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.protocols import Modality, Protocol, ResolvedProtocol
from assay.records.keys import fold_seed, question_seed, run_seed, study_key
from assay.records.lines import AnnouncedMethod, Budget, Preregistration, Weights
from assay.records.run import Run
from assay.space import Parameters, Space, Value
from assay.study.search import TrialResult, ask, depends_on_results

Stage = Literal["trial", "reproduction", "final"]


@dataclass(frozen=True)
class AnnouncedStudy:
    """Everything that follows from a preregistration alone, without data, device or store."""

    announced: Preregistration

    @property
    def protocol(self) -> ResolvedProtocol:
        """The protocol for the data and the method."""
        return self.announced.protocol.resolved

    @property
    def run_protocol(self) -> ResolvedProtocol:
        """The protocol of the runs: without a head where the method has none."""
        headless = self.announced.method.head == "none"
        return self.protocol.without_head if headless else self.protocol

    @property
    def twin(self) -> bool:
        """Whether this is the control: the same method once more, with seeds of its own."""
        return self.announced.twin_of is not None

    @property
    def method(self) -> str:
        """Name of the method that is trained; a twin trains the method that it is a twin of."""
        return self.announced.twin_of or self.announced.method.name

    def key(self, generation: int) -> str:
        """Return the key that the study has in a store, as the generation of this number."""
        announced = self.announced
        return study_key(
            announced.protocol.fingerprint,
            announced.data.trainval,
            announced.method.name,
            generation,
            announced.given,
            announced.sweep,
        )

    @property
    def budget(self) -> Budget:
        """The budget that protocol, method and data call for, whatever was announced."""
        announced = self.announced
        return budget_of(
            self.protocol,
            announced.method,
            announced.space,
            given=announced.given is not None,
            fixed_trunk=starts_fixed(announced.data.modality, announced.weights),
        )

    @property
    def folds(self) -> Sequence[int | None]:
        """Folds of a reproduction; [None] where one run stands for all of them."""
        method, data = self.announced.method, self.announced.data
        single = single_run(method, starts_fixed(data.modality, self.announced.weights))
        return [None] if single else range(self.protocol.folds)

    def folds_of_trials(self, search: int) -> Sequence[int]:
        """Return the folds that all trials of a search are validated on."""
        return drawn_folds(self.protocol, self.announced.data.trainval, search, self.twin)

    @property
    def prunes(self) -> bool:
        """Whether hopeless trials are given up after their first fold.

        On features all folds are one task, so nothing would be saved.
        """
        on_features = self.announced.data.modality == "features" or self.protocol.frozen == "trunk"
        return self.protocol.prune is not None and not on_features

    @property
    def _seeds(self) -> tuple[int, str]:
        return self.protocol.seed, self.announced.data.trainval

    def ask(self, search: int, results: Sequence[TrialResult]) -> list[dict[str, Value]]:
        """Return the parameters of the next trials of a search, from the results of those before.

        All trials that depend on no result are asked for together, any other by itself. The budget
        only limits how many there are.
        """
        trials, protocol = self.announced.budget.trials, self.protocol
        last = len(results) + 1
        while (
            last < trials
            and not self.prunes
            and not depends_on_results(last, protocol.startup, protocol.search)
        ):
            last += 1
        return [
            self.ask_one(search, [*results, *[TrialResult({}, None)] * (number - len(results))])
            for number in range(len(results), min(last, trials))
        ]

    def ask_one(self, search: int, results: Sequence[TrialResult]) -> dict[str, Value]:
        """Return the parameters of the next trial of a search."""
        defaults, protocol = dict(self.announced.method.defaults), self.protocol
        seed = question_seed(*self._seeds, self.method, search, self.twin)
        space = self.announced.space
        return {
            **defaults,
            **ask(space, results, defaults, protocol.startup, seed, protocol.search),
        }

    def run(
        self, stage: Stage, search: int, number: int, fold: int | None, parameters: Parameters
    ) -> Run:
        """Return the run in one place of the study.

        Its seed depends on the place alone: the same for every method, never for two searches.
        """
        announced = self.announced
        return Run(
            protocol=self.run_protocol,
            trainval=announced.data.trainval,
            method=self.method,
            source=announced.method.source,
            parameters=dict(parameters),
            batch=announced.method.batch,
            fold=fold,
            seed=run_seed(*self._seeds, stage, search, number, fold, self.twin),
            environment=announced.environment,
        )


def starts_fixed(modality: Modality, weights: Weights | None) -> bool:
    """Return whether a trunk is the same at every build: pretrained, or given features."""
    return weights is not None or modality == "features"


def single_run(method: AnnouncedMethod, fixed_trunk: bool) -> bool:
    """Return whether one run stands for all folds, because nothing is fitted to a fold."""
    return method.head == "none" or (method.baseline and fixed_trunk)


def budget_of(
    protocol: ResolvedProtocol,
    method: AnnouncedMethod,
    space: Space,
    *,
    given: bool,
    fixed_trunk: bool,
) -> Budget:
    """Return how much a study computes under a protocol.

    Args:
        protocol: the protocol.
        method: the method; of a baseline nothing is trained, and so nothing searched.
        space: ranges that are searched; an empty one leaves one trial, the defaults.
        given: whether the parameters were chosen elsewhere, so that nothing is searched.
        fixed_trunk: whether the trunk is the same at every build (`starts_fixed`). One run of a
            baseline then says everything, and there is nothing to reproduce.

    Without a search there is one set of parameters, with as many reproductions in all as a
    searched method has.
    """
    fixed, single = method.baseline and fixed_trunk, single_run(method, fixed_trunk)
    searched = not (method.baseline or given)
    trials = 0 if not searched else protocol.trials if space else min(1, protocol.trials)
    searches = protocol.searches if trials else 1
    reproductions = 1 if fixed else protocol.reproductions * (1 if trials else protocol.searches)
    return Budget(
        searches=searches,
        trials=trials,
        trial_folds=protocol.folds_of_a_trial if trials else 0,
        startup=protocol.startup,
        reproductions=reproductions,
        reproduction_runs=searches * reproductions * (1 if single else protocol.folds),
        folds=protocol.folds,
    )


def drawn_folds(protocol: Protocol, trainval: str, search: int, twin: bool) -> Sequence[int]:
    """Return the folds that the trials of one search are validated on, in order.

    Searches take the folds in turn, from an order that is drawn once: no fold is taken again before
    all have been taken. Drawn anew for each search, one fold would often be that of most searches,
    and what it favours would pass for a difference.

    >>> list(drawn_folds(Protocol("p.v1"), "fingerprint", 0, False))
    [0, 1, 2, 3]
    >>> one = Protocol("p.v1", trial_folds=1)
    >>> sorted(fold for search in range(4) for fold in drawn_folds(one, "t", search, False))
    [0, 1, 2, 3]
    """
    folds, count = range(protocol.folds), protocol.folds_of_a_trial
    if count == protocol.folds:
        return folds
    order = random.Random(fold_seed(protocol.seed, trainval, twin)).sample(folds, protocol.folds)
    return sorted(order[(search * count + place) % protocol.folds] for place in range(count))
