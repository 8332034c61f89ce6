"""One method's study: search -> select -> reproduce -> unseal -> score.

A study is a generator of steps: each step is a list of tasks, which any engine can run. Everything
that is decided goes through the ledger, so a restarted study replays its ledger and goes on.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.engines import Task
from assay.errors import BadInput
from assay.files import write_atomically
from assay.hashing import digest_bytes
from assay.protocols import PROSE
from assay.records.halves import fingerprint_of_contents
from assay.records.ledger import Ledger, Line, announcement
from assay.records.lines import (
    Preregistration,
    Reproduction,
    ReproductionScores,
    Seal,
    Selection,
    TestScores,
    Trial,
)
from assay.records.looks import enter_opened_half
from assay.records.progress import Listener, StudyState
from assay.records.run import WEIGHTS, Run
from assay.records.store import Store
from assay.records.study import StudyRecord, classes_file, peek_of, write_record
from assay.run import (
    CheckpointScoring,
    HalfLabels,
    Keep,
    Scoring,
    TestEmbedding,
    Training,
    Unsealed,
)
from assay.run.testing import place_answers
from assay.space import Parameters, describe_change
from assay.study.design import Design
from assay.study.models import hand_over
from assay.study.places import Places
from assay.study.search import TrialResult, best_of, estimate, is_hopeless

Steps = Generator[list[Task], list[Any], None]
Searches = list[list[Trial]]
"""The finished trials of each search."""


@dataclass(frozen=True)
class Asked:
    """A trial that is to be run.

    Args:
        search: number of the search.
        number: number of the trial in the search.
        parameters: parameters to try.
    """

    search: int
    number: int
    parameters: Parameters


@dataclass(frozen=True)
class Reproduced:
    """One reproduction of one search's choice.

    Args:
        search: number of the search.
        number: number of the reproduction.
        runs: a run for each fold.
    """

    search: int
    number: int
    runs: Sequence[Run]

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its runs."""
        return tuple(run.key for run in self.runs)


def check_space(design: Design, ledger: Path, lines: list[Line]) -> None:
    """Raise `BadInput` where the study of these lines was begun with another space."""
    begun = announcement(lines, str(ledger))
    if begun is None or begun.space == design.space:
        return
    change = describe_change(begun.space.describe(), design.space.describe())
    raise BadInput(
        f"{ledger.parent}: {change}. The search space of {design.method.name} was announced on"
        f" {lines[0].at} and does not change after that: put it back, or start a new study with"
        " --new-study; both studies then stay in the record"
    )


class Study:
    """A study under way: the design of one method, carried out in a store.

    Args:
        design: everything that is decided beforehand.
        store: where runs and ledger are kept.
        listener: reports the progress.
        keep: which weights stay.

    Attributes:
        parts: number of tasks into which runs are split that could be trained as one stack.
        state: how far the study is.
    """

    def __init__(
        self, design: Design, store: Store, listener: Listener, keep: Keep = "best"
    ) -> None:
        self.design, self.store, self.listener, self.keep = design, store, listener, keep
        self.parts = 1
        self.state = StudyState(design.key, design.called, design.trials, design.runs)
        self._places = Places(design.budget.searches)

    @cached_property
    def folder(self) -> Path:
        """Folder of the study."""
        return self.store.study(self.design.key)

    def steps(self) -> Steps:
        """Yield the tasks of each step, and receive their results."""
        announced = self.ledger.record(self._announcement())
        self.listener.detail(self.design.called, f"preregistration {announced.hash}")
        trials = yield from self._search()
        chosen = self._select(trials)
        if chosen is None:
            self.state.stage = "failed"
            return
        runs = yield from self._reproduce(chosen)
        test = self._unseal()
        yield from self._score(runs, test)
        if self.keep == "all":
            yield from self._peek(test)
        self.state.stage = "done"

    def say(self, text: str) -> None:
        """Report an event of this study."""
        self.listener.say(self.design.called, text)

    def report_done(self, run: Run) -> None:
        """Report that a run is done, by its place."""
        self.listener.run_done(self.design.called, self._places.of(run), run.key)

    def announce(self, text: str) -> None:
        """Report an event of this study that has to be seen."""
        self.listener.announce(self.design.called, text)

    @cached_property
    def ledger(self) -> Ledger:
        """Ledger of the study."""
        return Ledger(self.folder / "ledger.jsonl")

    @property
    def trained(self) -> bool:
        """Whether no run is left to train: its seal is open."""
        return self.ledger.opened

    def check(self) -> None:
        """Raise `BadInput` where the study was begun with another space: it never changes."""
        check_space(self.design, self.ledger.path, self.ledger.lines)

    def _announcement(self) -> Preregistration:
        """Return the preregistration; names and prose stay as they were announced first.

        Data or a protocol may have another name now and the same content.
        """
        announced, begun = self.design.preregistration, self.ledger.next
        if not isinstance(begun, Preregistration):
            return announced
        prose = {name: getattr(begun.protocol.resolved, name) for name in PROSE}
        return replace(
            announced,
            data=replace(announced.data, name=begun.data.name, left_out=begun.data.left_out),
            protocol=replace(
                announced.protocol,
                name=begun.protocol.name,
                settings=begun.protocol.settings,
                resolved=replace(announced.protocol.resolved, **prose),
            ),
        )

    def _search(self) -> Generator[list[Task], list[Any], Searches]:
        """Run the trials of every search and return them.

        Trials that depend on no result run together, the others one after the other.
        """
        self.state.stage = "search"
        searches: Searches = [[] for _ in range(self.design.budget.searches)]
        while asked := [
            Asked(search, len(trials) + place, parameters)
            for search, trials in enumerate(searches)
            for place, parameters in enumerate(
                self.design.study.ask(search, [TrialResult.of(one) for one in trials])
            )
        ]:
            self.state.trial = max(question.number for question in asked)
            runs = [
                [
                    self.design.study.run("trial", one.search, one.number, fold, one.parameters)
                    for fold in self.design.study.folds_of_trials(one.search)
                ]
                for one in asked
            ]
            for one, row in zip(asked, runs, strict=True):
                self._places.add(self._places.trial(one.search, one.number), row)
            if self.design.study.prunes:
                runs = yield from self._first_folds(asked, runs, searches)
            yield self._training([row[1:] if self.design.study.prunes else row for row in runs])
            for question, row in zip(asked, runs, strict=True):
                trials = searches[question.search]
                trial = self._trial(question, row, trials)
                self.ledger.record(trial)
                self._report_trial(trial)
                trials.append(trial)
            self._save()
        return searches

    def _first_folds(
        self, asked: Sequence[Asked], runs: Sequence[list[Run]], searches: Searches
    ) -> Generator[list[Task], list[Any], list[list[Run]]]:
        """Run the first fold of each trial; return the runs of each, one for a hopeless trial."""
        yield self._training([row[:1] for row in runs])
        kept = []
        for question, row in zip(asked, runs, strict=True):
            first = self.store.result(row[0].key)
            hopeless = is_hopeless(first, searches[question.search], self.design.protocol.prune)
            self.state.total -= (len(row) - 1) * hopeless
            kept.append(row[:1] if hopeless else row)
        return kept

    def _trial(self, question: Asked, runs: Sequence[Run], before: Sequence[Trial]) -> Trial:
        """Return the trial with the mean over its folds.

        A trial with a diverged fold has failed, one that was given up is pruned: neither has a
        value.
        """
        entries = tuple(self.store.entry(run.key) for run in runs)
        diverged = any(entry.status == "diverged" for entry in entries)
        pruned = len(runs) < self.design.budget.trial_folds
        mean = sum(entry.validation["map_at_r"] for entry in entries) / len(entries)
        return Trial(
            search=question.search,
            trial=question.number,
            parameters=dict(question.parameters),
            status="failed" if diverged else "pruned" if pruned else "finished",
            map_at_r=None if diverged or pruned else mean,
            runs=entries,
            estimate=estimate(mean, before) if pruned else None,
        )

    def _report_trial(self, trial: Trial) -> None:
        if trial.map_at_r is not None:
            self.state.best = max(trial.map_at_r, self.state.best or 0.0)
        said = {
            "failed": "diverged",
            "pruned": "given up after the first fold",
            "finished": f"validation MAP@R {trial.map_at_r or 0.0:.4f}",
        }[trial.status]
        chosen = ", ".join(f"{name}={setting}" for name, setting in trial.parameters.items())
        self.say(f"{self._places.trial(trial.search, trial.trial)}: {said} ({chosen})")

    def _select(self, searches: Searches) -> list[Parameters] | None:
        """Select the parameters of each search and return them; None where a search has none.

        They have the highest mean validation MAP@R, the earliest among equals. A search has none
        where all its trials diverged.
        """
        chosen: list[Parameters | None] = []
        for search, trials in enumerate(searches):
            best = best_of(trials)
            parameters = best.parameters if best else None if trials else self.design.chosen
            edges = self.design.space.edges(best.parameters) if best else {}
            number = best.trial if best else None
            self.ledger.record(Selection(search, number, parameters, edges))
            chosen.append(parameters)
            if parameters is None:
                self.say(
                    f"all {self.design.trials} trials of search {search} diverged: nothing to"
                    " select"
                )
            for trial in trials if self.keep == "best" and best else ():
                for entry in trial.runs if trial is not best else ():
                    (self.store.run(entry.key) / WEIGHTS).unlink(missing_ok=True)
        self._save()
        return (
            None
            if None in chosen
            else [parameters for parameters in chosen if parameters is not None]
        )

    def _reproduce(
        self, chosen: Sequence[Parameters]
    ) -> Generator[list[Task], list[Any], list[Reproduced]]:
        """Run each search's parameters with fresh seeds, without the selected trial."""
        self.state.stage = "reproductions"
        reproduced = [
            Reproduced(
                search,
                number,
                [
                    self.design.study.run("reproduction", search, number, fold, parameters)
                    for fold in self.design.study.folds
                ],
            )
            for search, parameters in enumerate(chosen)
            for number in range(self.design.budget.reproductions)
        ]
        for one in reproduced:
            self._places.add(self._places.reproduction(one.search, one.number), one.runs)
        yield self._training([one.runs for one in reproduced])
        for one in reproduced:
            for fold, run in zip(self.design.study.folds, one.runs, strict=True):
                self.ledger.record(
                    Reproduction(
                        search=one.search,
                        reproduction=one.number,
                        fold=fold,
                        **vars(self.store.entry(run.key)),
                    )
                )
        self._save()
        return reproduced

    def _score(self, reproduced: Sequence[Reproduced], test: Unsealed) -> Steps:
        """Embed the test half with every reproduction, score them, and write the best model."""
        missing = [
            run.key for one in reproduced for run in one.runs if not test.vectors(run.key).exists()
        ]
        yield [TestEmbedding(key, test) for key in missing]
        known = StudyRecord.of(self.design.key, self.ledger.lines).tests
        dim, metrics, similarity = (
            self.design.dim,
            self.design.protocol.metrics,
            self.design.protocol.similarity,
        )
        fresh = yield [
            Scoring(one.keys, dim, metrics, similarity, test) for one in reproduced[len(known) :]
        ]
        scored = [
            self._scored(one, test, *found)
            for one, found in zip(reproduced[len(known) :], fresh, strict=True)
        ]
        for one, scores in zip(reproduced, (*known, *scored), strict=True):
            self.ledger.record(
                replace(
                    scores,
                    search=one.search,
                    reproduction=one.number,
                    test=test.fingerprint,
                    runs=one.keys,
                )
            )
        hand_over(self.design, self._save(), self.store, self.announce)

    def _scored(
        self,
        one: Reproduced,
        test: Unsealed,
        scores: ReproductionScores,
        vectors: tuple[str, ...],
        classes: bytes,
    ) -> TestScores:
        """Write the scores of single classes beside the ledger, and return the others."""
        write_atomically(classes_file(self.folder, one.search, one.number), classes)
        return TestScores(
            **vars(scores),
            search=one.search,
            reproduction=one.number,
            test=test.fingerprint,
            runs=one.keys,
            vectors=vectors,
            classes=digest_bytes(classes),
        )

    def _peek(self, test: Unsealed) -> Steps:
        """Score what was not chosen: every checkpoint of reproductions, the best one of trials.

        Nothing is decided by these scores. They show what deciding by them would have added.
        """
        if any(line.kind == "peek" for line in self.ledger.lines):
            return
        record, dim = self._save(), self.design.dim
        tried = [entry for trial in record.trials for entry in trial.runs]
        found = yield [
            *(CheckpointScoring(entry.key, dim, test) for entry in record.reproductions),
            *(CheckpointScoring(entry.key, dim, test, (entry.best_epoch,)) for entry in tried),
        ]
        self.ledger.look(peek_of(record, test.fingerprint, found, self.store))
        self._save()

    def _unseal(self) -> Unsealed:
        """Open the seal, record it, and return the test half for tasks."""
        self.state.stage = "test"
        receipt = self.ledger.receipt()
        half = self.design.conditions.test.open(receipt)
        begun, sealed = self.ledger.next, self.design.conditions.test
        known = begun if isinstance(begun, Seal) else None  # keeps the words of the first time
        self.ledger.record(
            Seal(
                test=half.fingerprint,
                classes=len(half.class_names),
                samples=len(half.y),
                labels=HalfLabels.of(half).fingerprint,
                contents=fingerprint_of_contents(half.contents()),
                receipt=receipt.hash,
                problems=known.problems if known else tuple(sealed.flaws.of_test),
                left_out=known.left_out if known else tuple(sealed.left_out),
            )
        )
        place_answers(self.store, half)
        enter_opened_half(self.store, self._save(), self.announce)
        progress = self.listener.progress
        return self.design.conditions.unsealed(self.store.root, half, receipt, progress)

    @cached_property
    def _view(self) -> Path:
        """Folder with the view of trainval, the only samples that training tasks see."""
        return self.design.conditions.place(self.design.conditions.trainval, self.listener.progress)

    def _training(self, rows: Sequence[Sequence[Run]]) -> list[Task]:
        """Return tasks for the runs that the store does not have."""
        store, view, conditions = str(self.store.root), str(self._view), self.design.conditions
        channels = conditions.trainval.inputs
        runs = [run for row in rows for run in row]
        missing = [run for run in runs if not self.store.has_run(run.key, self.keep)]
        self.state.done += len(runs) - len(missing)
        groups = self.design.together(missing, self.parts)
        return [
            Training(group, store, view, conditions.imports, self.keep, channels=channels)
            for group in groups
        ]

    def _save(self) -> StudyRecord:
        """Write `study.json`, the ledger in the form that people and reports read."""
        return write_record(self.folder, self.ledger.lines)
