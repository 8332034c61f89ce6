"""One method's study: search -> select -> reproduce -> unseal -> score, as steps of tasks that any engine can run."""

from collections.abc import Generator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.answers import Answers
from assay.canonical import digest_file
from assay.engines import Task
from assay.errors import BadInput
from assay.ledger import Ledger
from assay.model import WEIGHTS
from assay.protocol import PROSE
from assay.run import CheckpointScoring, Keep, Run, Scoring, TestEmbedding, Training, Unsealed
from assay.space import Parameters, describe_change
from assay.store import Store
from assay.study.arena import place_answers
from assay.study.design import Design
from assay.study.models import hand_over
from assay.study.peek import peek_body
from assay.study.progress import Listener, State
from assay.study.record import StudyRecord, write_record
from assay.study.search import Told
from assay.study.trials import best_of, estimate, is_hopeless

Steps = Generator[list[Task], list[Any], None]


class Study:
    """A study under way: the design of one method, carried out in a store; `steps` is driven by a bench."""

    def __init__(self, design: Design, store: Store, listener: Listener, keep: Keep = "best") -> None:
        self.design, self.store, self.listener, self.keep = design, store, listener, keep
        self.state = State(design.key, design.called, design.trials, design.runs)

    @cached_property
    def folder(self) -> Path:
        """Where the study is kept."""
        return self.store.study(self.design.key)

    def steps(self) -> Steps:
        """Yield the tasks of each step, receive what they gave; all that is decided goes through the ledger."""
        announced = self.ledger.record("preregistration", self._announcement())
        self.say(f"preregistration {announced.hash}")
        trials = yield from self._search()
        chosen = self._select(trials)
        if chosen is None:
            self.state.stage = "failed"
            self.say(f"all {self.design.trials} trials diverged: nothing to select")
            return
        runs = yield from self._reproduce(chosen)
        test = self._unseal()
        yield from self._score(runs, test)
        if self.keep == "all":
            yield from self._peek(trials, test)
        self.state.stage = "done"

    def say(self, text: str) -> None:
        """Tell of something that happened in this study."""
        self.listener.say(self.design.called, text)

    @cached_property
    def ledger(self) -> Ledger:
        """The study's record."""
        return Ledger(self.folder / "ledger.jsonl")

    def check(self) -> None:
        """Raise `BadInput` where the study was begun with another search space: that never changes after preregistration."""
        begun = self.ledger.lines[0].body if self.ledger.lines else None
        if begun is None or begun["space"] == self.design.preregistration["space"]:
            return
        change = describe_change(begun["space"], self.design.preregistration["space"])
        raise BadInput(
            f"{self.folder}: {change}. The search space of {self.design.method.name} was announced on {self.ledger.lines[0].at} "
            "and does not change after that: put it back, or begin afresh with --new-study; both studies then stay in the record"
        )

    def _announcement(self) -> dict[str, Any]:
        """The preregistration; data or a protocol of another name but the same content keep what they were announced with."""
        announced = self.design.preregistration
        begun = self.ledger.next
        if begun is None:
            return announced
        data, protocol = begun.body["data"], begun.body["protocol"]
        prose = {name: protocol["resolved"][name] for name in PROSE if name in protocol["resolved"]}
        return {
            **announced,
            "data": {**announced["data"], "name": data["name"]},
            "protocol": {
                **announced["protocol"],
                "name": protocol["name"],
                "resolved": {**announced["protocol"]["resolved"], **prose},
            },
        }

    def _search(self) -> Generator[list[Task], list[Any], list[dict[str, Any]]]:
        """The trials, one after the other, each over all folds."""
        self.state.stage = "search"
        trials: list[dict[str, Any]] = []
        for number in range(self.design.trials):
            self.state.trial = number
            told = [Told(trial["parameters"], trial.get("estimate", trial["map_at_r"])) for trial in trials]
            parameters = self.design.ask(told)
            runs = [self.design.run("trial", number, fold, parameters) for fold in self.design.folds]
            if self.design.prunes:
                yield self._training(runs[:1])
                if is_hopeless(self.store.result(runs[0].key), trials, self.design.protocol.prune):
                    self.state.total -= len(runs) - 1
                    runs = runs[:1]
            yield self._training(runs[1:] if self.design.prunes else runs)
            trial = self._trial(number, parameters, runs, trials)
            trials.append(self.ledger.record("trial", trial).body)
            self._save()
            self._tell_trial(trial)
        return trials

    def _trial(
        self, number: int, parameters: Parameters, runs: Sequence[Run], before: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The mean over folds; a trial with a diverged fold has failed, one given up was pruned: neither has a value."""
        results = [self._finished(run) for run in runs]
        diverged = any(result["status"] == "diverged" for result in results)
        pruned = len(runs) < len(self.design.folds)
        mean = sum(result["validation"]["map_at_r"] for result in results) / len(results)
        return {
            "trial": number,
            "parameters": dict(parameters),
            "status": "failed" if diverged else "pruned" if pruned else "finished",
            "map_at_r": None if diverged or pruned else mean,
            "runs": results,
            **({"estimate": estimate(mean, before)} if pruned else {}),
        }

    def _tell_trial(self, trial: dict[str, Any]) -> None:
        value = trial["map_at_r"]
        if value is not None:
            self.state.best = max(value, self.state.best or 0.0)
        said = {"failed": "diverged", "pruned": "given up after the first fold"}.get(trial["status"], "")
        said = said or f"validation MAP@R {value:.4f}"
        chosen = ", ".join(f"{name}={setting}" for name, setting in trial["parameters"].items())
        self.say(f"trial {trial['trial']}: {said} ({chosen})")

    def _select(self, trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The parameters with the highest mean validation MAP@R, the earliest among equals; None where all failed."""
        best = best_of(trials)
        if best is None and trials:
            self.ledger.record("selection", {"trial": None, "parameters": None, "edges": {}})
            self._save()
            return None
        chosen: dict[str, Any] = best["parameters"] if best else self.design.chosen
        edges = self.design.space.edges(chosen) if best else {}
        self.ledger.record("selection", {"trial": best and best["trial"], "parameters": chosen, "edges": edges})
        self._save()
        for trial in trials if self.keep == "best" else ():
            if trial is not best:
                self._drop_weights(trial)
        return chosen

    def _drop_weights(self, trial: dict[str, Any]) -> None:
        """Losing trials keep their scores and the hash of their weights, not the weights."""
        for run in trial["runs"]:
            (self.store.run(run["key"]) / WEIGHTS).unlink(missing_ok=True)

    def _reproduce(self, parameters: Parameters) -> Generator[list[Task], list[Any], list[list[Run]]]:
        """The chosen parameters with fresh seeds; the trial that was selected is not one of them."""
        self.state.stage = "reproductions"
        numbers = range(self.design.reproductions)
        runs = [[self.design.run("reproduction", number, fold, parameters) for fold in self.design.folds] for number in numbers]
        yield self._training([run for row in runs for run in row])
        for number, row in enumerate(runs):
            for fold, run in zip(self.design.folds, row, strict=True):
                self.ledger.record("reproduction", {"reproduction": number, "fold": fold, **self._finished(run)})
        self._save()
        return runs

    def _score(self, runs: Sequence[Sequence[Run]], test: Unsealed) -> Steps:
        """Embed the opened test half with every reproduction, score each reproduction, hand the best model over."""
        missing = [run.key for row in runs for run in row if not test.vectors(run.key).exists()]
        yield [TestEmbedding(key, test) for key in missing]
        keys = [tuple(run.key for run in row) for row in runs]
        scored = [line.body for line in self.ledger.lines if line.kind == "test"]
        protocol = self.design.protocol
        fresh = yield [Scoring(row, protocol.dim, protocol.metrics, protocol.similarity, test) for row in keys[len(scored) :]]
        for number, (row, found) in enumerate(zip(keys, [*scored, *fresh], strict=True)):
            self.ledger.record("test", {**found, "reproduction": number, "test": test.fingerprint, "runs": row})
        hand_over(self.design, self._save(), self.store)

    def _peek(self, trials: Sequence[dict[str, Any]], test: Unsealed) -> Steps:
        """Score what was not chosen: every checkpoint of the reproductions, and the best one of every trial's runs.

        Nothing is decided by it. It says what deciding by it would have added.
        """
        if any(line.kind == "peek" for line in self.ledger.lines):
            return
        record, dim = self._save(), self.design.protocol.dim
        tried = [run for trial in trials for run in trial["runs"]]
        found = yield [
            *(CheckpointScoring(entry["key"], dim, test) for entry in record.reproductions),
            *(CheckpointScoring(run["key"], dim, test, (run["best_epoch"],)) for run in tried),
        ]
        self.ledger.look(peek_body(record, test.fingerprint, found, self.store), "peek")
        self._save()

    def _unseal(self) -> Unsealed:
        """Record the opening, then let tasks see the view of the test half."""
        self.state.stage = "test"
        receipt = self.ledger.receipt()
        half = self.design.arena.test.open(receipt)
        opening = {"test": half.fingerprint, "classes": len(half.class_names), "samples": len(half.y)}
        answers = Answers.of(half).fingerprint
        self.ledger.record("seal", {**opening, "labels": answers, "receipt": receipt.hash})
        place_answers(self.store, half)
        view = self.design.arena.place(half, self.listener.preparing)
        return Unsealed(
            store=str(self.store.root),
            view=str(view),
            fingerprint=half.fingerprint,
            receipt=receipt,
            trainval=self.design.arena.trainval.fingerprint,
            threads=self.design.protocol.threads,
            device=self.design.arena.device,
            imports=self.design.arena.imports,
        )

    @cached_property
    def _view(self) -> Path:
        """The folder with the view of trainval, which is all that training tasks get to see."""
        return self.design.arena.place(self.design.arena.trainval, self.listener.preparing)

    def _training(self, runs: Sequence[Run]) -> list[Task]:
        """Tasks for those runs that the store does not have, and those that are computed with them."""
        store, view = str(self.store.root), str(self._view)
        groups = self.design.together(runs)
        missing = [group for group in groups if not all(self.store.has_run(run.key, self.keep) for run in group)]
        self.state.done += len(runs) - sum(map(len, missing))
        return [Training(group, store, view, self.design.arena.imports, self.keep) for group in missing]

    def _finished(self, run: Run) -> dict[str, Any]:
        """What the ledger keeps of a run: its scores, and the hash of its result file, which holds that of its weights."""
        result = self.store.result(run.key)
        path = self.store.run(run.key) / "result.json"
        return {
            "key": run.key,
            "status": result["status"],
            "validation": result["validation"],
            "best_epoch": result["best_epoch"],
            "result": digest_file(path),
            **({"training": result["training"]} if "training" in result else {}),
        }

    def _save(self) -> StudyRecord:
        """Write `study.json`, the ledger in the form that people and reports read."""
        return write_record(self.folder, self.ledger.lines)
