"""One method's study: search -> select -> reproduce -> unseal -> score, as steps of tasks that any
engine can run.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.engines import Task
from assay.errors import BadInput
from assay.files import write_atomically
from assay.hashing import digest_bytes, digest_file
from assay.model import WEIGHTS
from assay.protocols import PROSE
from assay.records.ledger import Ledger
from assay.records.store import Store
from assay.records.study import StudyRecord, classes_file, write_record
from assay.run import (
    CheckpointScoring,
    HalfLabels,
    Keep,
    Run,
    Scoring,
    TestEmbedding,
    Training,
    Unsealed,
)
from assay.space import Parameters, describe_change
from assay.study.conditions import place_answers
from assay.study.design import Design
from assay.study.models import hand_over
from assay.study.peek import peek_body
from assay.study.progress import Listener, State
from assay.study.search import TrialResult
from assay.study.trials import best_of, estimate, is_hopeless

Steps = Generator[list[Task], list[Any], None]
Searches = list[list[dict[str, Any]]]
"""The finished trials of each search, as the ledger has them."""


@dataclass(frozen=True)
class Asked:
    """A trial that is to be run: of which search, its number there, and its parameters."""

    search: int
    number: int
    parameters: Parameters


@dataclass(frozen=True)
class Reproduced:
    """One reproduction of one search's choice: a run for each fold."""

    search: int
    number: int
    runs: Sequence[Run]

    @property
    def place(self) -> dict[str, int]:
        """Where it stands, as ledger lines say it."""
        return {"search": self.search, "reproduction": self.number}

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its runs."""
        return tuple(run.key for run in self.runs)


class Study:
    """A study under way: the design of one method, carried out in a store; `steps` is driven by a
    bench.
    """

    def __init__(
        self, design: Design, store: Store, listener: Listener, keep: Keep = "best", parts: int = 1
    ) -> None:
        self.design, self.store, self.listener, self.keep, self.parts = (
            design,
            store,
            listener,
            keep,
            parts,
        )
        self.state = State(design.key, design.called, design.trials, design.runs)

    @cached_property
    def folder(self) -> Path:
        """Where the study is kept."""
        return self.store.study(self.design.key)

    def steps(self) -> Steps:
        """Yield the tasks of each step, receive what they gave; all that is decided goes through
        the ledger.
        """
        announced = self.ledger.record("preregistration", self._announcement())
        self.say(f"preregistration {announced.hash}")
        trials = yield from self._search()
        chosen = self._select(trials)
        if chosen is None:
            self.state.stage = "failed"
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

    @property
    def trained(self) -> bool:
        """Whether no run is left to train: its seal is open."""
        return any(line.kind == "seal" for line in self.ledger.lines)

    def check(self) -> None:
        """Raise `BadInput` where the study was begun with another search space: that never changes
        after preregistration.
        """
        begun = self.ledger.lines[0].body if self.ledger.lines else None
        if begun is None or begun["space"] == self.design.preregistration["space"]:
            return
        change = describe_change(begun["space"], self.design.preregistration["space"])
        raise BadInput(
            f"{self.folder}: {change}. The search space of {self.design.method.name} was announced"
            f" on {self.ledger.lines[0].at} and does not change after that: put it back, or begin"
            " afresh with --new-study; both studies then stay in the record"
        )

    def _announcement(self) -> dict[str, Any]:
        """The preregistration; data or a protocol of another name but the same content keep what
        they were announced with.
        """
        announced = self.design.preregistration
        begun = self.ledger.next
        if begun is None:
            return announced
        data, protocol = begun.body["data"], begun.body["protocol"]
        prose = {name: protocol["resolved"][name] for name in PROSE if name in protocol["resolved"]}
        return {
            **announced,
            "data": {
                **{name: value for name, value in announced["data"].items() if name != "left_out"},
                **_said_of(data),
            },
            "protocol": {
                **announced["protocol"],
                "name": protocol["name"],
                "resolved": {**announced["protocol"]["resolved"], **prose},
            },
        }

    def _search(self) -> Generator[list[Task], list[Any], Searches]:
        """The trials of every search: those that depend on no answer together, the others one after
        the other.
        """
        self.state.stage = "search"
        searches: Searches = [[] for _ in range(self.design.searches)]
        while asked := [
            Asked(search, len(trials) + place, parameters)
            for search, trials in enumerate(searches)
            for place, parameters in enumerate(self.design.ask(search, _told(trials)))
        ]:
            self.state.trial = max(question.number for question in asked)
            runs = [self._runs_of(question) for question in asked]
            if self.design.prunes:
                runs = yield from self._first_folds(asked, runs, searches)
            yield self._training([row[1:] if self.design.prunes else row for row in runs])
            for question, row in zip(asked, runs, strict=True):
                trials = searches[question.search]
                trials.append(self.ledger.record("trial", self._trial(question, row, trials)).body)
                self._tell_trial(trials[-1])
            self._save()
        return searches

    def _runs_of(self, question: Asked) -> list[Run]:
        folds = self.design.folds_of_trials(question.search)
        return [
            self.design.run("trial", question.search, question.number, fold, question.parameters)
            for fold in folds
        ]

    def _first_folds(
        self, asked: Sequence[Asked], runs: Sequence[list[Run]], searches: Searches
    ) -> Generator[list[Task], list[Any], list[list[Run]]]:
        """Run the first fold of each trial; the rows of runs that remain: only that fold where a
        trial is hopeless.
        """
        yield self._training([row[:1] for row in runs])
        kept = []
        for question, row in zip(asked, runs, strict=True):
            first = self.store.result(row[0].key)
            hopeless = is_hopeless(first, searches[question.search], self.design.protocol.prune)
            self.state.total -= (len(row) - 1) * hopeless
            kept.append(row[:1] if hopeless else row)
        return kept

    def _trial(
        self, question: Asked, runs: Sequence[Run], before: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The mean over folds; a trial with a diverged fold has failed, one given up was pruned:
        neither has a value.
        """
        results = [self._finished(run) for run in runs]
        diverged = any(result["status"] == "diverged" for result in results)
        pruned = len(runs) < self.design.runs_of_a_trial
        mean = sum(result["validation"]["map_at_r"] for result in results) / len(results)
        return {
            "search": question.search,
            "trial": question.number,
            "parameters": dict(question.parameters),
            "status": "failed" if diverged else "pruned" if pruned else "finished",
            "map_at_r": None if diverged or pruned else mean,
            "runs": results,
            **({"estimate": estimate(mean, before)} if pruned else {}),
        }

    def _tell_trial(self, trial: dict[str, Any]) -> None:
        value = trial["map_at_r"]
        if value is not None:
            self.state.best = max(value, self.state.best or 0.0)
        said = {"failed": "diverged", "pruned": "given up after the first fold"}.get(
            trial["status"], ""
        )
        said = said or f"validation MAP@R {value:.4f}"
        chosen = ", ".join(f"{name}={setting}" for name, setting in trial["parameters"].items())
        place = f"search {trial['search']}, " if self.design.searches > 1 else ""
        self.say(f"{place}trial {trial['trial']}: {said} ({chosen})")

    def _select(self, searches: Searches) -> list[Parameters] | None:
        """Each search's parameters with the highest mean validation MAP@R, the earliest among
        equals.

        None where every trial of a search diverged.
        """
        chosen: list[Parameters | None] = []
        for search, trials in enumerate(searches):
            best = best_of(trials)
            parameters = best["parameters"] if best else None if trials else self.design.chosen
            edges = self.design.space.edges(best["parameters"]) if best else {}
            number = best["trial"] if best else None
            self.ledger.record(
                "selection",
                {"search": search, "trial": number, "parameters": parameters, "edges": edges},
            )
            chosen.append(parameters)
            if parameters is None:
                self.say(
                    f"all {self.design.trials} trials of search {search} diverged: nothing to"
                    " select"
                )
            for trial in trials if self.keep == "best" and best else ():
                if trial is not best:
                    self._drop_weights(trial)
        self._save()
        return (
            None
            if None in chosen
            else [parameters for parameters in chosen if parameters is not None]
        )

    def _drop_weights(self, trial: dict[str, Any]) -> None:
        """Losing trials keep their scores and the hash of their weights, not the weights."""
        for run in trial["runs"]:
            (self.store.run(run["key"]) / WEIGHTS).unlink(missing_ok=True)

    def _reproduce(
        self, chosen: Sequence[Parameters]
    ) -> Generator[list[Task], list[Any], list[Reproduced]]:
        """Each search's parameters with fresh seeds; the trial that was selected is not one of
        them.
        """
        self.state.stage = "reproductions"
        reproduced = [
            Reproduced(
                search,
                number,
                [
                    self.design.run("reproduction", search, number, fold, parameters)
                    for fold in self.design.folds
                ],
            )
            for search, parameters in enumerate(chosen)
            for number in range(self.design.reproductions)
        ]
        yield self._training([one.runs for one in reproduced])
        for one in reproduced:
            for fold, run in zip(self.design.folds, one.runs, strict=True):
                self.ledger.record(
                    "reproduction", {**one.place, "fold": fold, **self._finished(run)}
                )
        self._save()
        return reproduced

    def _score(self, reproduced: Sequence[Reproduced], test: Unsealed) -> Steps:
        """Embed the opened test half with every reproduction, score each reproduction, hand the
        best model over.
        """
        missing = [
            run.key for one in reproduced for run in one.runs if not test.vectors(run.key).exists()
        ]
        yield [TestEmbedding(key, test) for key in missing]
        scored = [line.body for line in self.ledger.lines if line.kind == "test"]
        dim, metrics, similarity = (
            self.design.dim,
            self.design.protocol.metrics,
            self.design.protocol.similarity,
        )
        fresh = yield [
            Scoring(one.keys, dim, metrics, similarity, test) for one in reproduced[len(scored) :]
        ]
        bodies = [
            *scored,
            *(
                self._test(one, *found)
                for one, found in zip(reproduced[len(scored) :], fresh, strict=True)
            ),
        ]
        for one, body in zip(reproduced, bodies, strict=True):
            self.ledger.record(
                "test", {**body, **one.place, "test": test.fingerprint, "runs": one.keys}
            )
        hand_over(self.design, self._save(), self.store)

    def _test(self, one: Reproduced, scores: dict[str, Any], classes: bytes) -> dict[str, Any]:
        """The scores, after those of single classes have been kept beside the ledger."""
        path = classes_file(self.folder, one.search, one.number)
        write_atomically(path, classes)
        return {**scores, "classes": digest_bytes(classes)}

    def _peek(self, searches: Searches, test: Unsealed) -> Steps:
        """Score what was not chosen: every checkpoint of the reproductions, and the best one of
        every trial's runs.

        Nothing is decided by it. It says what deciding by it would have added.
        """
        if any(line.kind == "peek" for line in self.ledger.lines):
            return
        record, dim = self._save(), self.design.dim
        tried = [run for trial in record.trials for run in trial["runs"]]
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
        half = self.design.conditions.test.open(receipt)
        opening = {
            "test": half.fingerprint,
            "classes": len(half.class_names),
            "samples": len(half.y),
        }
        answers = HalfLabels.of(half).fingerprint
        self.ledger.record(
            "seal", {**opening, "labels": answers, "receipt": receipt.hash, **self._found()}
        )
        place_answers(self.store, half)
        view = self.design.conditions.place(half, self.listener.preparing)
        return Unsealed(
            store=str(self.store.root),
            view=str(view),
            fingerprint=half.fingerprint,
            receipt=receipt,
            trainval=self.design.conditions.trainval.fingerprint,
            threads=self.design.protocol.threads,
            device=self.design.conditions.device,
            imports=self.design.conditions.imports,
        )

    def _found(self) -> dict[str, Any]:
        """What is wrong with the test half and what was left out of it,
        as it was first recorded.
        """
        begun, test = self.ledger.next, self.design.conditions.test
        if begun is not None:
            return {
                name: begun.body[name] for name in ("problems", "left_out") if name in begun.body
            }
        found = {"problems": list(test.flaws.of_test), "left_out": list(test.left_out)}
        return {name: value for name, value in found.items() if value}

    @cached_property
    def _view(self) -> Path:
        """The folder with the view of trainval, which is all that training tasks get to see."""
        return self.design.conditions.place(
            self.design.conditions.trainval, self.listener.preparing
        )

    def _training(self, rows: Sequence[Sequence[Run]]) -> list[Task]:
        """Tasks for those runs that the store does not have."""
        store, view = str(self.store.root), str(self._view)
        runs = [run for row in rows for run in row]
        missing = [run for run in runs if not self.store.has_run(run.key, self.keep)]
        self.state.done += len(runs) - len(missing)
        groups = self.design.together(missing, self.parts)
        return [
            Training(group, store, view, self.design.conditions.imports, self.keep)
            for group in groups
        ]

    def _finished(self, run: Run) -> dict[str, Any]:
        """What the ledger keeps of a run: its scores, and the hash of its result file, which holds
        that of its weights.
        """
        result = self.store.result(run.key)
        path = self.store.run(run.key) / "result.json"
        return {
            "key": run.key,
            "status": result["status"],
            "validation": result["validation"],
            "best_epoch": result["best_epoch"],
            "last_epoch": result["last_epoch"],
            "result": digest_file(path),
            **({"training": result["training"]} if "training" in result else {}),
        }

    def _save(self) -> StudyRecord:
        """Write `study.json`, the ledger in the form that people and reports read."""
        return write_record(self.folder, self.ledger.lines)


def _told(trials: Sequence[dict[str, Any]]) -> list[TrialResult]:
    """What a search knows of its finished trials."""
    return [
        TrialResult(trial["parameters"], trial.get("estimate", trial["map_at_r"]))
        for trial in trials
    ]


def _said_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """What an announcement says of the data for people, which their content does not determine."""
    return {name: data[name] for name in ("name", "left_out") if name in data}
