"""One method's study: search -> select -> reproduce -> unseal -> score, as steps of tasks that any engine can run."""

import platform
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from assay.canonical import digest, digest_file, plain, pretty
from assay.engines import Task
from assay.files import write_atomically
from assay.ledger import Ledger
from assay.method import Method
from assay.methods import defaults, source_of, space_of
from assay.run import Run, Scoring, TestEmbedding, Training, Unsealed, own_source
from assay.seeds import derive
from assay.space import Parameters, Space
from assay.study.arena import Arena
from assay.study.progress import Listener, State
from assay.study.record import StudyRecord
from assay.study.search import Told, ask
from assay.trunks import trunks

Stage = Literal["trial", "reproduction"]
Steps = Generator[list[Task], list[Any], None]


@dataclass
class Study:
    """The study of one method in an arena; `steps` is driven by a bench."""

    arena: Arena
    method: Method
    listener: Listener
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.protocol = self.arena.resolved
        self.space: Space = space_of(self.method, self.protocol)
        self.batch = self.protocol.batch_for(self.method.batch, self.arena.classes_in_training)
        self.trials = self.protocol.trials if self.method.loss else 0
        self.state = State(self.method.name, self.trials, (self.trials + self.reproductions) * len(self.folds))

    @cached_property
    def key(self) -> str:
        """Protocol, data, method and generation."""
        return digest([self.arena.protocol.fingerprint, self.arena.trainval.fingerprint, self.method.name, 0])

    @cached_property
    def folder(self) -> Path:
        """Where the study is kept."""
        return self.arena.store.study(self.key)

    @cached_property
    def fixed_baseline(self) -> bool:
        """An untrained trunk that is the same at every build: one run says it all."""
        return self.method.loss is None and trunks[self.protocol.trunk].deterministic

    @property
    def folds(self) -> Sequence[int | None]:
        """The folds that a trial or reproduction consists of."""
        return [None] if self.fixed_baseline else range(self.protocol.folds)

    @property
    def reproductions(self) -> int:
        """How often the chosen parameters are run with fresh seeds."""
        return 1 if self.fixed_baseline else self.protocol.reproductions

    def steps(self) -> Steps:
        """Yield the tasks of each step, receive what they gave; all that is decided goes through the ledger."""
        self.ledger = Ledger(self.folder / "ledger.jsonl")
        announced = self.ledger.record("preregistration", self.preregistration)
        self.listener.say(self.method.name, f"preregistration {announced.hash}")
        trials = yield from self._search()
        chosen = self._select(trials)
        if chosen is None:
            self.state.stage = "failed"
            self.listener.say(self.method.name, f"all {self.trials} trials diverged: nothing to select")
            return
        runs = yield from self._reproduce(chosen)
        yield from self._unseal_and_score(runs)
        self.state.stage = "done"

    @cached_property
    def preregistration(self) -> dict[str, Any]:
        """What is announced before the first trial: all that could be bent afterwards."""
        own = self.method
        return dict(
            plain(
                {
                    "protocol": {
                        "name": self.arena.protocol.name,
                        "fingerprint": self.arena.protocol.fingerprint,
                        "resolved": {
                            **plain(replace(self.protocol, space=Space())),
                            "space": self.protocol.space.describe(),
                        },
                    },
                    "data": self.arena.data,
                    "method": {
                        "name": own.name,
                        "source": source_of(own),
                        "miner": own.miner,
                        "batch": self.batch,
                        "batch_shrunk": self.batch != getattr(self.protocol.batch, own.batch),
                        "defaults": defaults(own, self.protocol),
                        "departures": own.departures,
                        "paper": None if own.paper is None else vars(own.paper),
                    },
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
            )
        )

    def _search(self) -> Generator[list[Task], list[Any], list[dict[str, Any]]]:
        """The trials, one after the other, each over all folds."""
        self.state.stage = "search"
        trials: list[dict[str, Any]] = []
        for number in range(self.trials):
            self.state.trial = number
            told = [Told(trial["parameters"], trial["map_at_r"]) for trial in trials]
            first = defaults(self.method, self.protocol)
            parameters = ask(self.space, told, first, self.protocol.startup, derive(self.protocol.seed, self.key))
            runs = [self._run("trial", number, fold, parameters) for fold in self.folds]
            yield self._training(runs)
            trial = self._trial(number, parameters, runs)
            trials.append(self.ledger.record("trial", trial).body)
            self._save()
            self._tell_trial(trial)
        return trials

    def _trial(self, number: int, parameters: Parameters, runs: Iterable[Run]) -> dict[str, Any]:
        """The mean over folds; a trial with a diverged fold has failed and has no value."""
        results = [self._finished(run) for run in runs]
        diverged = any(result["status"] == "diverged" for result in results)
        mean = sum(result["validation"]["map_at_r"] for result in results) / len(results)
        return {
            "trial": number,
            "parameters": dict(parameters),
            "status": "failed" if diverged else "finished",
            "map_at_r": None if diverged else mean,
            "runs": results,
        }

    def _tell_trial(self, trial: dict[str, Any]) -> None:
        value = trial["map_at_r"]
        if value is not None:
            self.state.best = max(value, self.state.best or 0.0)
        said = "diverged" if value is None else f"validation MAP@R {value:.4f}"
        chosen = ", ".join(f"{name}={setting}" for name, setting in trial["parameters"].items())
        self.listener.say(self.method.name, f"trial {trial['trial'] + 1} of {self.trials}: {said} ({chosen})")

    def _select(self, trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The parameters with the highest mean validation MAP@R, the earliest among equals; None where all failed."""
        completed = [trial for trial in trials if trial["map_at_r"] is not None]
        best = max(completed, key=lambda trial: float(trial["map_at_r"]), default=None)
        if best is None and trials:
            self.ledger.record("selection", {"trial": None, "parameters": None, "edges": {}})
            self._save()
            return None
        chosen: dict[str, Any] = best["parameters"] if best else {}
        edges = self.space.edges(chosen)
        self.ledger.record("selection", {"trial": best and best["trial"], "parameters": chosen, "edges": edges})
        self._save()
        for trial in trials:
            if trial is not best:
                self._drop_weights(trial)
        return chosen

    def _drop_weights(self, trial: dict[str, Any]) -> None:
        """Losing trials keep their scores and the hash of their weights, not the weights."""
        for run in trial["runs"]:
            (self.arena.store.run(run["key"]) / "model.safetensors").unlink(missing_ok=True)

    def _reproduce(self, parameters: Parameters) -> Generator[list[Task], list[Any], list[list[Run]]]:
        """The chosen parameters with fresh seeds; the trial that was selected is not one of them."""
        self.state.stage = "reproductions"
        numbers = range(self.reproductions)
        runs = [[self._run("reproduction", number, fold, parameters) for fold in self.folds] for number in numbers]
        yield self._training([run for row in runs for run in row])
        for number, row in enumerate(runs):
            for fold, run in zip(self.folds, row, strict=True):
                self.ledger.record("reproduction", {"reproduction": number, "fold": fold, **self._finished(run)})
        self._save()
        return runs

    def _unseal_and_score(self, runs: Sequence[Sequence[Run]]) -> Steps:
        """Open the test half against the receipt, embed it with every reproduction, score each reproduction."""
        self.state.stage = "test"
        test = self._unseal()
        missing = [run.key for row in runs for run in row if not test.vectors(run.key).exists()]
        yield [TestEmbedding(key, test) for key in missing]
        keys = [tuple(run.key for run in row) for row in runs]
        scored = [line.body for line in self.ledger.lines if line.kind == "test"]
        fresh = yield [Scoring(row, self.protocol.dim, test) for row in keys[len(scored) :]]
        for number, (row, found) in enumerate(zip(keys, [*scored, *fresh], strict=True)):
            scores = {name: found[name] for name in ("concatenated", "separated", "vectors")}
            self.ledger.record("test", {"reproduction": number, "test": test.fingerprint, "runs": row, **scores})
        self._save()

    def _unseal(self) -> Unsealed:
        """Record the opening, then let tasks see the view of the test half."""
        receipt = self.ledger.receipt()
        half = self.arena.test.open(receipt)
        opening = {"test": half.fingerprint, "classes": len(half.class_names), "samples": len(half.y)}
        self.ledger.record("seal", {**opening, "receipt": receipt.hash})
        view = self.arena.place(half)
        return Unsealed(
            store=str(self.arena.store.root),
            view=str(view),
            fingerprint=half.fingerprint,
            receipt=receipt,
            trainval=self.arena.trainval.fingerprint,
            threads=self.protocol.threads,
            device=self.arena.device,
        )

    def _run(self, stage: Stage, number: int, fold: int | None, parameters: Parameters) -> Run:
        """A run whose seed depends on stage, number and fold alone: the same for every method, so that they are paired."""
        return Run(
            protocol=self.protocol,
            trainval=self.arena.trainval.fingerprint,
            method=self.method.name,
            source=source_of(self.method),
            parameters=dict(parameters),
            batch=self.batch,
            fold=fold,
            seed=derive(self.protocol.seed, self.arena.trainval.fingerprint, stage, number, fold),
            environment=self.arena.environment,
        )

    def _training(self, runs: Sequence[Run]) -> list[Task]:
        """Tasks for those runs that the store does not have."""
        store, view = str(self.arena.store.root), str(self.arena.view)
        missing = [run for run in runs if not self.arena.store.has_run(run.key)]
        self.state.done += len(runs) - len(missing)
        return [Training(run, store, view, self.arena.imports) for run in missing]

    def _finished(self, run: Run) -> dict[str, Any]:
        """What the ledger keeps of a run: its scores, and the hash of its result file, which holds that of its weights."""
        result = self.arena.store.result(run.key)
        path = self.arena.store.run(run.key) / "result.json"
        return {
            "key": run.key,
            "status": result["status"],
            "validation": result["validation"],
            "best_epoch": result["best_epoch"],
            "result": digest_file(path),
        }

    def _save(self) -> None:
        """Write `study.json`, the ledger in the form that people and reports read."""
        write_atomically(self.folder / "study.json", pretty(StudyRecord.of(self.key, self.ledger.lines)))
