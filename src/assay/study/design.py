"""The design of one method's study: everything that is settled before the first run."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal

from assay.canonical import digest, plain
from assay.method import Method
from assay.methods import defaults, departures, source_of, space_of
from assay.protocol import Protocol
from assay.run import Run, own_source
from assay.seeds import derive
from assay.space import Parameters, Space, Value
from assay.study.arena import Arena
from assay.study.search import Told, ask
from assay.trunks import find

Stage = Literal["trial", "reproduction"]


@dataclass(frozen=True)
class Design:
    """A method in an arena: its key, budget, space, questions and runs. Computing it needs no store."""

    arena: Arena
    method: Method

    @property
    def protocol(self) -> Protocol:
        """The protocol without any `auto`."""
        return self.arena.resolved

    @cached_property
    def key(self) -> str:
        """Protocol, data, method and generation."""
        return digest([self.arena.protocol.fingerprint, self.arena.trainval.fingerprint, self.method.name, 0])

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
        """Parameter settings tried: none for the untrained baseline, one where there is nothing to search."""
        return 0 if self.method.loss is None else self.protocol.trials if self.space else 1

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
            },
            "environment": self.arena.environment,
        }
        return dict(plain(parts))

    def ask(self, told: Sequence[Told]) -> dict[str, Value]:
        """The parameters of the next trial, from what came of those before; the budget has no say in them."""
        first = defaults(self.method, self.protocol)
        seed = derive(self.protocol.seed, self.arena.trainval.fingerprint, "search", self.method.name)
        return ask(self.space, told, first, self.protocol.startup, seed)

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
            "defaults": defaults(own, self.protocol),
            "departures": departures(own),
            "paper": None if own.paper is None else vars(own.paper),
        }
