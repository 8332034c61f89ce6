"""One method's study: search -> select -> reproduce -> unseal -> score, as steps of tasks that any engine can run."""

from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.answers import Answers
from assay.canonical import digest_file
from assay.engines import Task
from assay.ledger import Ledger
from assay.model import WEIGHTS
from assay.run import Run, Scoring, TestEmbedding, Training, Unsealed
from assay.space import Parameters
from assay.store import Store
from assay.study.arena import place_answers
from assay.study.design import Design
from assay.study.models import hand_over
from assay.study.progress import Listener, State
from assay.study.record import StudyRecord, write_record
from assay.study.search import Told

Steps = Generator[list[Task], list[Any], None]


class Study:
    """A study under way: the design of one method, carried out in a store; `steps` is driven by a bench."""

    def __init__(self, design: Design, store: Store, listener: Listener) -> None:
        self.design, self.store, self.listener = design, store, listener
        self.state = State(design.method.name, design.trials, design.runs)

    @cached_property
    def folder(self) -> Path:
        """Where the study is kept."""
        return self.store.study(self.design.key)

    def steps(self) -> Steps:
        """Yield the tasks of each step, receive what they gave; all that is decided goes through the ledger."""
        self.ledger = Ledger(self.folder / "ledger.jsonl")
        announced = self.ledger.record("preregistration", self._announcement())
        self.listener.say(self.design.method.name, f"preregistration {announced.hash}")
        trials = yield from self._search()
        chosen = self._select(trials)
        if chosen is None:
            self.state.stage = "failed"
            self.listener.say(self.design.method.name, f"all {self.design.trials} trials diverged: nothing to select")
            return
        runs = yield from self._reproduce(chosen)
        yield from self._unseal_and_score(runs)
        self.state.stage = "done"

    def _announcement(self) -> dict[str, Any]:
        """The preregistration; data that was renamed since the study began keeps the name it was announced with."""
        announced = self.design.preregistration
        begun = self.ledger.next
        if begun is None:
            return announced
        return {**announced, "data": {**announced["data"], "name": begun.body["data"]["name"]}}

    def _search(self) -> Generator[list[Task], list[Any], list[dict[str, Any]]]:
        """The trials, one after the other, each over all folds."""
        self.state.stage = "search"
        trials: list[dict[str, Any]] = []
        for number in range(self.design.trials):
            self.state.trial = number
            told = [Told(trial["parameters"], trial["map_at_r"]) for trial in trials]
            parameters = self.design.ask(told)
            runs = [self.design.run("trial", number, fold, parameters) for fold in self.design.folds]
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
        self.listener.say(self.design.method.name, f"trial {trial['trial']}: {said} ({chosen})")

    def _select(self, trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The parameters with the highest mean validation MAP@R, the earliest among equals; None where all failed."""
        completed = [trial for trial in trials if trial["map_at_r"] is not None]
        best = max(completed, key=lambda trial: float(trial["map_at_r"]), default=None)
        if best is None and trials:
            self.ledger.record("selection", {"trial": None, "parameters": None, "edges": {}})
            self._save()
            return None
        chosen: dict[str, Any] = best["parameters"] if best else {}
        edges = self.design.space.edges(chosen)
        self.ledger.record("selection", {"trial": best and best["trial"], "parameters": chosen, "edges": edges})
        self._save()
        for trial in trials:
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

    def _unseal_and_score(self, runs: Sequence[Sequence[Run]]) -> Steps:
        """Open the test half against the receipt, embed it with every reproduction, score each reproduction."""
        self.state.stage = "test"
        test = self._unseal()
        missing = [run.key for row in runs for run in row if not test.vectors(run.key).exists()]
        yield [TestEmbedding(key, test) for key in missing]
        keys = [tuple(run.key for run in row) for row in runs]
        scored = [line.body for line in self.ledger.lines if line.kind == "test"]
        fresh = yield [Scoring(row, self.design.protocol.dim, test) for row in keys[len(scored) :]]
        for number, (row, found) in enumerate(zip(keys, [*scored, *fresh], strict=True)):
            scores = {name: found[name] for name in ("concatenated", "separated", "vectors")}
            self.ledger.record("test", {"reproduction": number, "test": test.fingerprint, "runs": row, **scores})
        hand_over(self.design, self._save(), self.store)

    def _unseal(self) -> Unsealed:
        """Record the opening, then let tasks see the view of the test half."""
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
        missing = [group for group in groups if not all(self.store.has_run(run.key) for run in group)]
        self.state.done += len(runs) - sum(map(len, missing))
        return [Training(group, store, view, self.design.arena.imports) for group in missing]

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
        }

    def _save(self) -> StudyRecord:
        """Write `study.json`, the ledger in the form that people and reports read."""
        return write_record(self.folder, self.ledger.lines)
