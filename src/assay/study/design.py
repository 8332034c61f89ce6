"""The design of one method's study: everything that is settled before the first run."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from assay.answers import check_metrics
from assay.canonical import digest, digest_file, plain
from assay.method import Method
from assay.methods import defaults, departures, read_parameters, source_of, space_of
from assay.protocol import Protocol
from assay.run import Run, own_source
from assay.seeds import derive
from assay.space import Parameters, Space, Value
from assay.study import search
from assay.study.arena import Arena
from assay.study.search import Told, ask
from assay.trunks import find

Stage = Literal["trial", "reproduction"]


@dataclass(frozen=True)
class Given:
    """Parameters that were chosen elsewhere, so that nothing is searched: published ones, or those that a study selected."""

    parameters: dict[str, Value]
    source: str


@dataclass(frozen=True)
class Point:
    """One value of a sweep.

    Args:
        field: of the protocol, which the sweep varies.
        value: that it has here, as it was written.
        values: all that it is given.
        base: key of the study whose selected parameters are run.
        protocol: name of the protocol of that study.
    """

    field: str
    value: str
    values: tuple[str, ...]
    base: str
    protocol: str


@dataclass(frozen=True)
class Design:
    """A method in an arena: its key, budget, space, questions and runs. Computing it needs no store.

    Args:
        arena: where it is studied.
        method: what is studied.
        given: its parameters, where they were chosen elsewhere.
        point: the place in a sweep, where it is part of one.
        generation: how often the study was begun afresh before.
    """

    arena: Arena
    method: Method
    given: Given | None = None
    point: Point | None = None
    generation: int = 0

    @property
    def protocol(self) -> Protocol:
        """The protocol without any `auto`."""
        return self.arena.resolved

    @property
    def called(self) -> str:
        """How progress names it: the method, and the value in a sweep."""
        return self.method.name if self.point is None else f"{self.method.name}, {self.point.field}={self.point.value}"

    @cached_property
    def key(self) -> str:
        """Protocol, data, method and generation; where the parameters were chosen, if elsewhere."""
        parts = [self.arena.protocol.fingerprint, self.arena.trainval.fingerprint, self.method.name, self.generation]
        elsewhere = [] if self.given is None else [plain(self.given), plain(self.point)]
        return digest([*parts, *elsewhere])

    @cached_property
    def space(self) -> Space:
        """What is searched."""
        return space_of(self.method, self.protocol)

    @cached_property
    def batch(self) -> tuple[int, int]:
        """Classes x images per class of a training batch."""
        return self.protocol.batch_for(self.method.batch, self.arena.classes_in_training)

    @property
    def trials(self) -> int:
        """Parameter settings tried: none where all is given or untrained, one where there is nothing to search."""
        if self.method.loss is None or self.given is not None:
            return 0
        return self.protocol.trials if self.space else min(1, self.protocol.trials)

    @cached_property
    def first(self) -> dict[str, Value]:
        """The parameters of trial 0: the method's defaults, changed by what the protocol gives it."""
        settings = self.protocol.given_for(self.method.name)
        return read_parameters(self.method, self.protocol, settings) if settings else defaults(self.method, self.protocol)

    @property
    def chosen(self) -> dict[str, Value]:
        """What is reproduced where there are no trials."""
        return dict(self.given.parameters) if self.given else self.first

    @cached_property
    def fixed_baseline(self) -> bool:
        """An untrained trunk that is the same at every build: one run says it all."""
        fixed = self.arena.weights is not None or find(self.protocol.trunk).takes == "vectors"
        return self.method.loss is None and fixed

    @property
    def folds(self) -> Sequence[int | None]:
        """The folds that a trial or reproduction consists of."""
        return [None] if self.fixed_baseline else range(self.protocol.folds)

    @property
    def reproductions(self) -> int:
        """How often the chosen parameters are run with fresh seeds."""
        return 1 if self.fixed_baseline else self.protocol.reproductions

    @property
    def runs(self) -> int:
        """Runs in all."""
        return (self.trials + self.reproductions) * len(self.folds)

    @cached_property
    def preregistration(self) -> dict[str, Any]:
        """What is announced before the first trial: all that could be bent afterwards.

        Raises `BadInput` where protocol, method and data do not go together, so asking for it is also the check.
        """
        check_metrics(self.protocol)
        parts = {
            "protocol": self._announced_protocol,
            "data": self.arena.data,
            "weights": self.arena.weights,
            "method": self._announced_method,
            "space": self.space.describe(),
            "budget": {
                "trials": self.trials,
                "startup": self.protocol.startup,
                "reproductions": self.reproductions,
                "reproduction_runs": self.reproductions * len(self.folds),
                "folds": self.protocol.folds,
            },
            "versions": {
                "assay": version("assay-dml"),
                "source": own_source(),
                "python": platform.python_version(),
                "torch": self.arena.environment.torch,
                "optuna": version("optuna"),
                "scipy": version("scipy"),
                "search": digest_file(Path(search.__file__)),
            },
            "environment": self.arena.environment,
            **({"given": self.given} if self.given else {}),
            **({"sweep": self.point} if self.point else {}),
            **({"generation": self.generation} if self.generation else {}),
        }
        return dict(plain(parts))

    def ask(self, told: Sequence[Told]) -> dict[str, Value]:
        """The parameters of the next trial, from what came of those before; the budget has no say in them."""
        seed = derive(self.protocol.seed, self.arena.trainval.fingerprint, "search", self.method.name)
        asked = ask(self.space, told, self.first, self.protocol.startup, seed, self.protocol.search)
        return {**self.first, **asked}

    @property
    def prunes(self) -> bool:
        """Whether hopeless trials are given up after their first fold; on vectors all folds are one task."""
        return self.protocol.prune is not None and not self.arena.on_vectors

    def run(self, stage: Stage, number: int, fold: int | None, parameters: Parameters) -> Run:
        """A run whose seed depends on stage, number and fold alone: the same for every method, so that they are paired."""
        return Run(
            protocol=self.protocol,
            trainval=self.arena.trainval.fingerprint,
            method=self.method.name,
            source=source_of(self.method, self.protocol),
            parameters=dict(parameters),
            batch=self.batch,
            fold=fold,
            seed=derive(self.protocol.seed, self.arena.trainval.fingerprint, stage, number, fold),
            environment=self.arena.environment,
        )

    def together(self, runs: Sequence[Run]) -> list[tuple[Run, ...]]:
        """The runs by task: on vectors the folds of a trial or reproduction are computed as one, on images each by itself."""
        many = len(self.folds) if self.arena.on_vectors else 1
        return [tuple(runs[start : start + many]) for start in range(0, len(runs), many)]

    @property
    def _announced_protocol(self) -> dict[str, Any]:
        resolved = {**plain(replace(self.protocol, space=Space())), "space": self.protocol.space.describe()}
        declared = self.arena.protocol
        return {"name": declared.name, "fingerprint": declared.fingerprint, "resolved": resolved}

    @property
    def _announced_method(self) -> dict[str, Any]:
        own = self.method
        return {
            "name": own.name,
            "source": source_of(own, self.protocol),
            "miner": own.miner,
            "fixed": own.fixed,
            "batch": self.batch,
            "batch_shrunk": self.batch != self.protocol.batch.shape(own.batch),
            "defaults": self.first,
            "departures": departures(own),
            "paper": None if own.paper is None else vars(own.paper),
        }
